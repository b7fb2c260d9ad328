r"""Is self-grading honest? The regret of the estimator that it picks, beside that of all estimators, on several logs.

    python benchmarks/ope_truth.py --policies POLICIES --sets SETS -o benchmarks/results/ope.json
    python benchmarks/ope_grades.py --policies POLICIES --sets SETS --truth benchmarks/results/ope.json \
        -o benchmarks/results/ope_grades.json

Every log of `ope_logs.py` is graded as `mildly ope grade` does, without a look at the truth: by the parts that it is
made of (two at a time), where it is, otherwise by clusters of episodes that do alike. The record of `ope_truth.py`
then tells what would have been lost by choosing with each estimator: its regret at 1, as a share of what the best
policy of the ladder earns more than the worst. What is recorded already is not made again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ope_logs import open_log
from ope_truth import arguments, settings_of

from mildly.files import atomic_write
from mildly.ope.grade import Grading, grade
from mildly.ope.settings import Settings
from mildly.run import versions

CLUSTERS, PARTS = 4, 3


def work(name: str) -> Settings:
    """Half of the steps that a policy of the ladder takes, since every group takes as many."""
    settings = settings_of(name)
    return dataclasses.replace(settings, steps=settings.steps // 2)


def graded(name: str, args: argparse.Namespace) -> tuple[Grading, float]:
    """The grades of a log, and the seconds of processor time that they took."""
    log, start = open_log(name, args.sets, args.policies, args.work), time.process_time()
    labels = None if log.labels is None else log.labels * PARTS // (log.labels.max() + 1)
    by = "cluster" if labels is None else "part"
    found = grade(log.data, by=by, groups=CLUSTERS, labels=labels, gamma=log.gamma, settings=work(name))
    return found, time.process_time() - start


def regrets(truth: Mapping[str, Any], grading: Mapping[str, Any]) -> dict[str, Any]:
    """Of every estimator, of the one that was picked, and of their mean weighted by grade, as `choose` takes it.

    Where all failed, or the groups earned alike, nothing is picked.
    """
    rows = truth["policies"].values()
    real = np.array([row["truth"]["value"] for row in rows])
    values = {name: np.array([row["estimates"][name]["value"] for row in rows]) for name in truth["summary"]}
    lost = {name: float(real.max() - real[given.argmax()]) / float(np.ptp(real)) for name, given in values.items()}
    weights = {name: one["weight"] for name, one in grading["grades"].items()}
    picked = None if grading["alike"] else grading["best"]
    mixed = sum(weights[name] * given for name, given in values.items())
    return {
        "estimators": lost,
        "mean": float(np.mean(list(lost.values()))),
        "picked": picked,
        "of_picked": None if picked is None else lost[picked],
        "of_weighted": None if picked is None else float(real.max() - real[np.argmax(mixed)]) / float(np.ptp(real)),
        "least": min(lost, key=lambda name: lost[name]),
    }


def summary(found: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over the logs on which an estimator was picked, and over the others."""
    picked, others = ([each for each in found if bool(each["picked"]) is wanted] for wanted in (True, False))

    def mean(logs: Sequence[Mapping[str, Any]], name: str) -> float | None:
        return float(np.mean([each[name] for each in logs])) if logs else None

    return {
        "logs": len(found),
        "picked": len(picked),
        "regret_of_picked": mean(picked, "of_picked"),
        "regret_of_weighted": mean(picked, "of_weighted"),
        "mean_regret_there": mean(picked, "mean"),
        "mean_regret_where_none_was": mean(others, "mean"),
    }


def main() -> None:
    """Grade, compare, print a line for each log."""
    parser = arguments(__doc__)
    parser.add_argument("--truth", type=Path, required=True, help="the record of ope_truth.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    truth = json.loads(args.truth.read_text())
    record: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {"logs": {}}
    for name in args.logs:
        if name not in record["logs"]:
            found, seconds = graded(name, args)
            facts = {"grading": found.to_json(), "processor_seconds": round(seconds, 1), "versions": versions()}
            record["logs"][name] = facts
        entry = record["logs"][name]
        entry |= {"settings": vars(work(name)), "regret": regrets(truth[name], entry["grading"])}
        record["summary"] = summary([each["regret"] for each in record["logs"].values() if "regret" in each])
        with atomic_write(args.out) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {json.dumps(entry['regret'])}\n  {entry['grading']['verdict']}", flush=True)
    print(json.dumps(record["summary"], indent=1))


if __name__ == "__main__":
    main()
