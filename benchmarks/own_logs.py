r"""From three messy logs to policies that beat the people who ran the plants, with the guide's commands alone.

    python benchmarks/own_logs.py --out benchmarks/results/own_logs.json

The logs of `recipes/messy_logs.py` are written with all their faults and read as the guide says: `mildly data check`,
what its advice asks for (`repair`, in the files; `CONVERT`, as options), `mildly data convert`, `mildly train`. The
plant itself is the judge: every policy acts in it by the log's names and is compared with the operators of the log on
the same episodes. Nothing of the judge reaches a training. Each finished policy is kept in the work folder, so that an
interrupted benchmark goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import importlib.util
import json
import re
import statistics
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

from mildly.cli import main as mildly
from mildly.files import atomic_write
from mildly.policy import load_policy
from mildly.run import Run, versions

_SPEC = importlib.util.spec_from_file_location("messy_logs", Path(__file__).parents[1] / "recipes" / "messy_logs.py")
assert _SPEC is not None
assert _SPEC.loader is not None
messy_logs: Any = importlib.util.module_from_spec(_SPEC)
sys.modules["messy_logs"] = messy_logs
_SPEC.loader.exec_module(messy_logs)

FILES = {"building": "building.csv", "tank": "tank.parquet", "vehicle": "vehicle"}
SENSIBLE: dict[str, dict[str, tuple[float, float]]] = {
    "building": {"obs_outdoor": (-40, 50), "obs_co2": (300, 5000), "obs_supply": (0, 70), "reward": (-500, 0)},
    "tank": {"obs_inflow": (-5, 100), "obs_product": (500, 2000)},
    "vehicle": {"obs_speed": (-1, 50), "next_obs_speed": (-1, 50), "action_throttle": (-1, 1)},
}
"""What the columns of the findings `sentinel`, `spike` and `action-outliers` can hold; other cells are emptied."""
CONVERT: dict[str, list[str]] = {
    "building": ["--obs", "obs_outdoor,obs_sun,obs_room,obs_wall,obs_supply,obs_co2,obs_setpoint,obs_occupied"],
    "tank": ["--time-limit", "150", "--obs", "obs_level,obs_temperature,obs_pressure,obs_ambient,obs_product"],
    "vehicle": [],
}
"""Besides `--fill interpolate --drop-bad-rows`: without constant and copied columns; with the time limit, and without
the flow meter, which shows what the inlet of the same row lets in: an answer, not a question."""
FAHRENHEIT = 45.0  # ambient temperatures beyond it, by the finding `unit-change`
_CELL = re.compile(r"(?P<file>[^\s:]+): column '(?P<column>\w+)' holds '(?P<cell>[^']+)' in line (?P<line>\d+)")
TRAIN: dict[str, list[str]] = {
    "bc": ["--preset", "small", "--steps", "1500"],
    "td3-bc": ["--preset", "small", "--steps", "3000"],
    "iql": ["--preset", "small", "--steps", "3000"],
    "mcq": [
        *("--hidden-dims", "64", "64", "--behavior.hidden-dims", "64", "64", "--batch-size", "128"),
        *("--actor-lr", "0.001", "--critic-lr", "0.001", "--extras.bc-warmup-steps", "1000", "--steps", "3000"),
    ],
}
"""How each algorithm is trained: `small`, and MCQ by its default with networks and a warm-up as small."""


def run(*words: str) -> tuple[int, str]:
    """A command of the guide: its exit code, and what it said."""
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        try:
            code = mildly(list(words))
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, said.getvalue()


def repair(log: str, path: Path) -> list[str]:
    """Change the files as the messages ask for; returns what was done, a sentence each."""
    done = []
    while found := _CELL.search(run("data", "check", str(path))[1]):  # a decimal sign of another country
        lines = Path(found["file"]).read_text().split("\n")
        cell, line = found["cell"], int(found["line"]) - 1
        mended = cell.replace(".", ",") if "." in cell else cell.replace(",", ".")
        lines[line] = lines[line].replace(f'"{cell}"', cell).replace(cell, mended, 1)
        Path(found["file"]).write_text("\n".join(lines))
        done.append(f"{Path(found['file']).name}, line {found['line']}: {cell} became {mended}")
    emptied = sum(_empty(file, SENSIBLE[log]) for file in (sorted(path.iterdir()) if path.is_dir() else [path]))
    return [*done, f"{emptied} cells without a sensible value were emptied"]


def _empty(path: Path, sensible: Mapping[str, tuple[float, float]]) -> int:
    """Empty the cells of a table that no sensor can mean; how many they are."""
    if path.suffix == ".parquet":
        import pyarrow
        import pyarrow.parquet

        table = pyarrow.parquet.read_table(path).to_pydict()
        bad = [(name, i) for name, (low, high) in sensible.items() for i, x in enumerate(table[name])
               if x is not None and not low <= x <= high]  # fmt: skip
        for name, i in bad:
            table[name][i] = None
        ambient = table["obs_ambient"]
        table["obs_ambient"] = [(x - 32) / 1.8 if x is not None and x > FAHRENHEIT else x for x in ambient]
        pyarrow.parquet.write_table(pyarrow.table(table), path)
        return len(bad)
    mark = ";" if ";" in path.read_text().split("\n")[0] else ","
    with path.open(newline="") as file:
        rows = list(csv.reader(file, delimiter=mark))
    emptied = 0
    for name, (low, high) in sensible.items():
        column = rows[0].index(name)
        for row in rows[1:]:
            try:
                value = float(row[column].replace(",", "."))
            except ValueError:  # a unit, or empty already
                continue
            if not low <= value <= high:
                row[column], emptied = "", emptied + 1
    with path.open("w", newline="") as file:
        csv.writer(file, delimiter=mark, lineterminator="\n").writerows(rows)
    return emptied


def prepare(log: str, work: Path) -> dict[str, Any]:
    """The messy log, checked, repaired and converted; what was said and done."""
    folder = work / log
    if not (folder / "prepared.json").exists():
        (folder / "log").mkdir(parents=True)
        path, planted = messy_logs.write(log, folder / "log", messy_logs.FAULTS)
        before = run("data", "check", str(path))
        repairs = repair(log, path)
        options = ["--fill", "interpolate", "--drop-bad-rows", *CONVERT[log]]
        code, said = run("data", "convert", str(path), str(folder / "set"), *options)
        assert code == 0, said
        code, checked = run("data", "check", str(folder / "set"))
        assert code == 0, checked
        facts = {"faults": len(planted), "check_before": before[0], "repairs": repairs, "convert": options}
        (folder / "prepared.json").write_text(json.dumps(facts | {"converted": said.strip().split("\n")[-2:]}))
    facts = json.loads((folder / "prepared.json").read_text().replace(f"{folder}/", ""))
    assert isinstance(facts, dict)
    return facts


def trained(log: str, algorithm: str, seed: int, work: Path) -> Run:
    """A finished run, of now or of before."""
    out = work / log / f"{algorithm}-s{seed}"
    words = ["--dataset", str(work / log / "set"), "--seed", str(seed), "--threads", "1", *TRAIN[algorithm]]
    resumed = ["train", "--resume", str(out)]
    code, said = run(*resumed) if (out / "run.json").exists() else run("train", algorithm, *words, "--out", str(out))
    assert code == 0, said
    return Run.open(out)


def judged(log: str, run: Run, episodes: int) -> dict[str, Any]:
    """What a run's policy earns in the plant, and how often it met what its data do not cover."""
    policy, judge, outside = load_policy(run.path), messy_logs.Judge(log), [0, 0]

    def act(seen: Mapping[str, Any]) -> Mapping[str, Any]:
        known = {name: seen[name] for name in policy.observation_names}
        outside[0] += len({found.row for found in policy.unseen(known)})
        outside[1] += len(known[policy.observation_names[0]])
        return policy.named(policy.act(known, unseen="ignore"))

    returns = judge.returns(act, episodes)
    lines = run.metrics()
    finite = all(value == value for line in lines for value in line.values())
    plan = run.plan()
    return {
        "algorithm": plan.algorithm,
        "preset": plan.preset,
        "seed": plan.seed,
        "steps": lines[-1]["step"],
        "config": plan.config,
        "seconds": round(sum(run.timing().values()), 1),
        "finite_metrics": finite,
        "unseen_share": round(outside[0] / outside[1], 5),
        "mean_return": round(statistics.fmean(returns), 2),
        "returns": [round(value, 2) for value in returns],
    }


def main() -> None:
    """Train, judge, print a line per policy, write the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--work", type=Path, default=Path("own-logs"), help="folder for logs and runs")
    parser.add_argument("--logs", nargs="+", default=list(FILES), choices=list(FILES))
    parser.add_argument("--algorithms", nargs="+", default=list(TRAIN), choices=list(TRAIN))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--finished", action="store_true", help="train nothing: record the policies judged so far")
    args = parser.parse_args()
    note = "returns in the plant; operators and policies have the same episodes. A policy's commit is that of its run"
    record: dict[str, Any] = {"note": note, "versions": versions(), "logs": {}}
    for log in args.logs:
        facts = prepare(log, args.work)
        operators = messy_logs.Judge(log).operators(args.episodes)
        mean = statistics.fmean(value for returns in operators for value in returns)
        best = max(statistics.fmean(returns) for returns in operators)
        print(f"{log}: operators {mean:.1f} on average, the best {best:.1f}", flush=True)
        rows = [[round(value, 2) for value in returns] for returns in operators]
        entry = {**facts, "operators_mean": round(mean, 2), "operators_best": round(best, 2), "operators": rows}
        record["logs"][log] = entry | {"policies": []}
        for algorithm in args.algorithms:
            for seed in range(args.seeds):
                kept = args.work / log / f"{algorithm}-s{seed}-{args.episodes}.json"
                if not kept.exists() and args.finished:
                    continue
                if not kept.exists():
                    policy = judged(log, trained(log, algorithm, seed, args.work), args.episodes)
                    kept.write_text(json.dumps(policy))
                begun = json.loads((args.work / log / f"{algorithm}-s{seed}" / "run.json").read_text())
                found = {"commit": begun["versions"].get("commit"), **json.loads(kept.read_text())}
                record["logs"][log]["policies"].append(found)
                won = "beats" if found["mean_return"] > mean else "does not beat"
                print(f"  {algorithm} seed {seed}: {found['mean_return']:.1f}, {won} the operators' mean", flush=True)
                with atomic_write(args.out) as unfinished:
                    unfinished.write_text(_lines(record))


def _lines(record: Mapping[str, Any]) -> str:
    """JSON with a line for each policy and each operator."""
    text = json.dumps(record, indent=1)
    return re.sub(r"\n {5,}|\n {4}(?=[\]}])", " ", text) + "\n"


if __name__ == "__main__":
    main()
