r"""What `mildly solve` chooses on logs of different kinds, and what the best candidate in hindsight would have earned.

    python benchmarks/solved.py --minutes 20 -o benchmarks/results/solved.json

Candidates on built-in sets are run in their environment afterwards, those on logs of plants (`own_logs.py`) in the
plant that wrote the log; the choice sees neither. Of each log: the plan, who went on, the verdict with its estimate,
the true returns of all candidates, the log's own, and the regret, also as a share of the range from the worst
candidate to the best. A log whose folder is finished is not solved again; one that was interrupted goes on.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from ope_logs import PLANTS
from own_logs import judged, prepare

from mildly.data.registry import load_dataset
from mildly.errors import tell
from mildly.experiments.sweep import available_cores
from mildly.files import atomic_write
from mildly.portfolio.folder import SolveFolder
from mildly.portfolio.plan import LEARNERS
from mildly.portfolio.solve import Solution, resume_solve, solve
from mildly.run import versions

LOGS = ("pendulum-mixed", "hopper-mixed", "tank", "vehicle")
_CLOCK = "clock.json"


def solved(log: str, source: str, folder: Path, minutes: float, episodes: int) -> tuple[Solution, float | None]:
    """The solution of a log, of now or of before, and the minutes that it took; None where it was interrupted."""
    clock = folder / _CLOCK
    options: dict[str, Any] = {"evaluate": log not in PLANTS, "episodes": episodes, "say": tell}
    if clock.exists():
        return resume_solve(folder, episodes=episodes), float(json.loads(clock.read_text())["minutes"])
    if folder.exists():
        return resume_solve(folder, **options), None
    began = time.monotonic()
    found = solve(source, minutes=minutes, out=folder, **options)
    taken = round((time.monotonic() - began) / 60, 1)
    clock.write_text(json.dumps({"minutes": taken}))
    return found, taken


def returns_of(log: str, found: Solution, episodes: int) -> dict[str, list[float]]:
    """What each candidate earns in the environment, or in the plant."""
    if log not in PLANTS:
        return found.returns
    folder = SolveFolder(found.path)
    return {name: judged(log, folder.run(name), episodes)["returns"] for name in LEARNERS}


def row(found: Solution, returns: dict[str, list[float]], data: float) -> dict[str, Any]:
    """What is recorded of a log."""
    means = {name: statistics.fmean(each) for name, each in returns.items()}
    best, first = max(means, key=means.__getitem__), found.choice.candidates[0]
    regret, width = means[best] - means[found.best], means[best] - min(means.values())
    return {
        "plan": found.plan.to_json(),
        "kept": [rung.kept for rung in found.rungs],
        "chosen": found.best,
        "deploy": found.choice.deploy == first.run,
        "verdict": found.choice.verdict,
        "log_estimate": found.choice.log.to_json(),
        "chosen_estimate": first.value.to_json(),
        "weights": dict(found.choice.weights),
        "data_return": data,
        "mean_returns": {name: round(mean, 2) for name, mean in means.items()},
        "best_in_hindsight": best,
        "regret": regret,
        "regret_share": regret / width if width else 0.0,
        "returns": returns,
    }


def main() -> None:
    """Solve, judge, print a line for each log, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", "-o", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--work", type=Path, default=Path("solved"), help="folder for logs and solutions")
    parser.add_argument("--logs", nargs="+", default=list(LOGS), help="built-in sets, or plants")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--episodes", type=int, default=10)
    args = parser.parse_args()
    record: dict[str, Any] = {"minutes": args.minutes, "cores": available_cores(), "versions": versions(), "logs": {}}
    for log in args.logs:
        if log in PLANTS:
            prepare(log, args.work / "plants")
        source = str(args.work / "plants" / log / "set") if log in PLANTS else log
        found, taken = solved(log, source, args.work / log, args.minutes, args.episodes)
        data = float(load_dataset(source).episode_returns().mean())
        told = row(found, returns_of(log, found, args.episodes), data)
        record["logs"][log] = {"minutes_taken": taken, **told}
        means = {name: told["mean_returns"][told.get(name, name)] for name in ("chosen", "best_in_hindsight", "clone")}
        words = ", ".join(f"{name.replace('_', ' ')} {mean:.4g}" for name, mean in means.items())
        print(f"{log}: {told['verdict']} In truth: {words}, the log {data:.4g}.", flush=True)
        with atomic_write(args.out) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
