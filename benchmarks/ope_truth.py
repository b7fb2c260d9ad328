r"""How far the estimators of `mildly ope` are from the truth, for policies whose real return is known.

    python benchmarks/ope_truth.py --policies POLICIES --sets SETS -o benchmarks/results/ope.json

Each policy of a log's ladder (`ope_logs.py`) is run in its world (the truth: the mean discounted return of episodes
that no time limit cuts off), and estimated from the log alone. Of each log: every estimate with its interval, the root
mean square error, the rank correlation, how many intervals held the truth, and the regret at 1: what the policy that an
estimator puts first falls short of the best. What is recorded already is not made again.

POLICIES is a folder of policies as arrays, SETS one of the re-collected sets of `recipes/d4rl_sets.py`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ope_logs import LOGS, Act, Deterministic, Log, open_log

from mildly.evaluation.statistics import rank_correlation
from mildly.files import atomic_write
from mildly.ope.coverage import coverage
from mildly.ope.estimators import ESTIMATORS, Problem, estimate, logged_return
from mildly.ope.settings import Settings
from mildly.run import versions

SMALL = Settings(steps=3000, density_steps=500, hidden_dims=(32, 32))
LARGE = Settings(steps=5000, density_steps=1000, hidden_dims=(64, 64))
ROBOT_EPISODES, EPISODES = 8, 60
"""Of the truth: robots always start alike, pendulums and plants do not."""
ROBOTS = ("hopper", "halfcheetah", "walker2d")


def settings_of(log: str) -> Settings:
    """How much work a log takes."""
    return LARGE if log.startswith(ROBOTS) else SMALL


def truth(log: Log, act: Act, episodes: int) -> dict[str, float]:
    """Mean discounted return with its standard error; behind the horizon a reward counts a ten thousandth."""
    horizon = math.ceil(math.log(1e-4) / math.log(log.gamma))
    rewards = [list(islice(log.play(act, episode), horizon)) for episode in range(episodes)]
    found = [float(np.dot(each, log.gamma ** np.arange(len(each)))) for each in rewards]
    return {"value": float(np.mean(found)), "standard_error": float(np.std(found, ddof=1) / np.sqrt(episodes))}


def summary(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Of each estimator: error, rank correlation, coverage of intervals, regret at 1."""
    real = np.array([row["truth"]["value"] for row in rows.values()])
    noise = np.array([1.96 * row["truth"]["standard_error"] for row in rows.values()])
    found = {}
    for name in next(iter(rows.values()))["estimates"]:
        given = [row["estimates"][name] for row in rows.values()]
        values = np.array([one["value"] for one in given])
        half = np.array([(one["high"] - one["low"]) / 2 for one in given])
        found[name] = {
            "error": round(float(np.sqrt(np.mean((values - real) ** 2))), 2),
            "rank_correlation": round(rank_correlation(values, real), 2),
            "intervals_that_held": round(float(np.mean(np.abs(values - real) <= np.hypot(half, noise))), 2),
            "regret_at_1": round(float(real.max() - real[values.argmax()]), 2),
        }
    return found


def measure(name: str, args: argparse.Namespace, record: dict[str, Any]) -> None:
    """All policies of a log, each written down as soon as it is done."""
    log, settings = open_log(name, args.sets, args.policies, args.work), settings_of(name)
    rows: dict[str, Any] = record.setdefault(name, {}).setdefault("policies", {})
    problem: Problem | None = None
    for policy, act in log.policies.items():
        if policy in rows:
            continue
        judged = Deterministic(act)
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            if problem is None:
                problem = Problem(judged, log.data, log.gamma, settings, Path(folder), lambda text: None)
            else:
                problem = problem.for_policy(judged, Path(folder), policy)
            estimates = {each: estimate(each, problem).to_json() for each in ESTIMATORS}
            seconds = time.process_time() - start
        rows[policy] = {
            "truth": truth(log, act, ROBOT_EPISODES if name.startswith(ROBOTS) else EPISODES),
            "estimates": estimates,
            "coverage": coverage(judged, log.data).share,
            "processor_seconds": round(seconds, 1),
        }
        record[name] |= {"data": logged_return(problem).value, "gamma": log.gamma, "summary": summary(rows)}
        record[name] |= {"rows": len(log.data), "settings": vars(settings), "versions": versions()}
        with atomic_write(args.out) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1) + "\n")
        values = {each: round(one["value"], 2) for each, one in estimates.items()}
        print(f"{name}, {policy}: {rows[policy]['truth']['value']:.2f}, estimated {json.dumps(values)}", flush=True)


def arguments(about: str | None) -> argparse.ArgumentParser:
    """What the records of the estimators have in common."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=Path, required=True, help="folder of policies as arrays (.npz)")
    parser.add_argument("--sets", type=Path, required=True, help="folder of re-collected MuJoCo sets")
    parser.add_argument("--work", type=Path, default=Path("own-logs"), help="folder for the plants' logs")
    parser.add_argument("--logs", nargs="+", default=list(LOGS), choices=LOGS)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    return parser


def main() -> None:
    """Parse, measure, print what was found."""
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    record = json.loads(args.out.read_text()) if args.out.exists() else {}
    for log in args.logs:
        measure(log, args, record)
        print(json.dumps(record[log]["summary"], indent=1))


if __name__ == "__main__":
    main()
