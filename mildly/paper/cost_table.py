"""The paper's cost table with our runs beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mildly.evaluation.results import Result
from mildly.experiments.process import checkpoint_step
from mildly.paper.matching import official_name
from mildly.paper.reproductions import METHODS, PUBLISHED_COST, Reproduction
from mildly.run import Run, training_seconds


@dataclass(frozen=True)
class CostRow:
    """The cost of one method, ours and the published one."""

    method: str
    seconds: float | None
    """Per 1,000 main steps, the mean over runs; phases before them, evaluations and checkpoints do not count."""
    megabytes: float | None
    """The most memory that one of the runs used."""
    runs: int
    paper: tuple[float, float] | None
    """The paper's seconds and gigabytes."""


def cost_table(reproduction: Reproduction, results: Sequence[Result]) -> list[CostRow]:
    """Seconds per 1,000 gradient steps and peak memory, a row per method."""
    found = []
    for method in reproduction.methods:
        seconds, peaks = [], []
        for result in results:
            if result.plan.algorithm == METHODS[method] and official_name(result.plan.data.name, reproduction.datasets):
                run = Run(result.path)
                spent, steps = run.timing(), checkpoint_step(run.path)  # both as of the last checkpoint
                if steps and "update" in spent:
                    seconds.append(1000 * training_seconds(spent) / steps)
                    peaks.append(run.peak_megabytes())
        mean = float(np.mean(seconds)) if seconds else None
        peak = max((peak for peak in peaks if peak is not None), default=None)
        found.append(CostRow(method, mean, peak, len(seconds), PUBLISHED_COST.get(method)))
    return found
