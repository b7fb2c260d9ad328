"""What a sweep has brought so far, over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mildly.evaluation.results import load_results, spread
from mildly.experiments.spec import Job


@dataclass(frozen=True)
class Cell:
    """The runs of one algorithm and setting on one data set, a value for each seed that is evaluated."""

    values: tuple[float, ...]
    seeds: int
    scored: bool
    """Whether the values are normalized scores, not returns."""

    def __str__(self) -> str:
        if not self.values:
            return "-"
        deviation = spread(self.values)
        band = "" if deviation is None else f" ± {deviation:.1f}"
        unit = "" if self.scored else " (return)"
        missing = "" if len(self.values) == self.seeds else f" ({len(self.values)} of {self.seeds} seeds)"
        return f"{np.mean(self.values):.1f}{band}{unit}{missing}"


def summarize(jobs: Sequence[Job], out: Path) -> dict[tuple[str, str], dict[str, Cell]]:
    """By algorithm and setting, then by data set: the final scores of all seeds, by the paper's protocol."""
    groups: dict[tuple[str, str], dict[str, list[Job]]] = {}
    for job in jobs:
        groups.setdefault((job.algorithm, job.setting), {}).setdefault(job.plan.data.name, []).append(job)
    return {key: {name: _cell(cell, out) for name, cell in row.items()} for key, row in groups.items()}


def _cell(jobs: Sequence[Job], out: Path) -> Cell:
    results = load_results(folder for job in jobs if (folder := out / job.name).is_dir())
    scores = [result.score for result in results]
    scored = any(score is not None for score in scores)
    values = scores if scored else [result.mean_return for result in results]
    return Cell(tuple(value for value in values if value is not None), len(jobs), scored)
