"""Final scores of a sweep's runs so far, over seeds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mildly.evaluation.results import load_results, std_over_seeds
from mildly.experiments.spec import Job


@dataclass(frozen=True)
class FinalScores:
    """The final scores of one algorithm and variant on one data set."""

    values: tuple[float, ...]
    """One per seed that has been evaluated."""
    seeds: int
    """The number of seeds in the sweep."""
    normalized: bool
    """Whether the values are normalized scores, not returns."""

    def __str__(self) -> str:
        if not self.values:
            return "-"
        std = std_over_seeds(self.values)
        deviation = "" if std is None else f" ± {std:.1f}"
        unit = "" if self.normalized else " (return)"
        missing = "" if len(self.values) == self.seeds else f" ({len(self.values)} of {self.seeds} seeds)"
        return f"{np.mean(self.values):.1f}{deviation}{unit}{missing}"


def final_scores(jobs: Sequence[Job], out: Path) -> dict[tuple[str, str], dict[str, FinalScores]]:
    """By algorithm and variant, then by data set: the final scores of all seeds."""
    groups: dict[tuple[str, str], dict[str, list[Job]]] = {}
    for job in jobs:
        groups.setdefault((job.algorithm, job.variant), {}).setdefault(job.plan.data.name, []).append(job)
    return {key: {name: _scores_of(alike, out) for name, alike in row.items()} for key, row in groups.items()}


def _scores_of(jobs: Sequence[Job], out: Path) -> FinalScores:
    results = load_results(folder for job in jobs if (folder := out / job.name).is_dir())
    scores = [result.score for result in results]
    normalized = any(score is not None for score in scores)
    values = scores if normalized else [result.mean_return for result in results]
    return FinalScores(tuple(value for value in values if value is not None), len(jobs), normalized)
