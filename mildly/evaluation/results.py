"""Results of runs so far, read from their folders: the score by the paper's protocol."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.dataset import Array
from mildly.errors import MildlyError
from mildly.run import Plan, Run

FINAL = 10
"""Evaluations at the end of a run whose mean is its score (the paper's protocol)."""
SCORE_RULE = f"the mean of a run's last {FINAL} evaluations, of those in the second half of its steps"
"""What a score is, in words: a short run has few evaluations, and the first are of a policy that is hardly trained. In
a fine-tuned run, the steps are those of its last part."""


def std_over_seeds(values: Sequence[float] | Array) -> float | None:
    """The sample standard deviation (n - 1) that all tables and figures show; None for a single seed."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def final_mean(evaluations: Sequence[Mapping[str, Any]], name: str, start: int = 0) -> float | None:
    """A value's mean over the evaluations that make a run's score; None where there is none.

    `start` is the step at which the part that counts began.
    """
    last = evaluations[-1]["step"] if evaluations else start
    values = [line[name] for line in evaluations[-FINAL:] if 2 * (line["step"] - start) > last - start]
    return float(np.mean(values)) if values and None not in values else None


@dataclass(frozen=True)
class Result:
    """One run, as far as it has come."""

    path: Path
    plan: Plan
    evaluations: list[dict[str, Any]]
    """The lines of `evaluations.jsonl`: step, returns, scores, mean_return, score."""

    @property
    def step(self) -> int:
        """The step of the last evaluation; 0 before the first."""
        return int(self.evaluations[-1]["step"]) if self.evaluations else 0

    @property
    def complete(self) -> bool:
        """Whether all steps that were planned are made and evaluated."""
        return self.step >= self.plan.steps

    @property
    def score(self) -> float | None:
        """Mean normalized score of the last ten evaluations in the second half of the steps; None without a score."""
        return final_mean(self.evaluations, "score", self.start)

    @property
    def mean_return(self) -> float | None:
        """Mean return of those evaluations."""
        return final_mean(self.evaluations, "mean_return", self.start)

    @property
    def start(self) -> int:
        """The step at which the last part that was evaluated began: what came before fine-tuning is not averaged."""
        return max((stage.start for stage in self.plan.finetune if stage.start < self.step), default=0)


def find_runs(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Every run folder at or below the given ones, in order; hidden folders are passed over."""
    found: dict[Path, None] = {}
    for given in paths:
        root = Path(given)
        if not root.is_dir():
            raise MildlyError(f"{root}: no such folder.")
        for folder, below, files in os.walk(root):
            below[:] = [] if "run.json" in files else sorted(name for name in below if not name.startswith("."))
            if "run.json" in files:
                found[Path(folder)] = None
    return list(found)


def load_results(paths: Iterable[str | os.PathLike[str]]) -> list[Result]:
    """The results of all runs at or below the given folders."""
    runs = [Run.open(path) for path in find_runs(paths)]
    return [Result(run.path, run.plan(), run.evaluations()) for run in runs]
