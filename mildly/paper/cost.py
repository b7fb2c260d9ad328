"""What runs cost, beside the paper's cost table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mildly.evaluation.results import Result
from mildly.experiments.process import reached
from mildly.paper.exhibits import COST, METHODS, Exhibit
from mildly.paper.tables import official_name
from mildly.run import Run, training_seconds


@dataclass(frozen=True)
class Cost:
    """The cost of one method."""

    method: str
    seconds: float | None
    """For 1,000 gradient steps, the mean over runs; evaluations and checkpoints do not count."""
    megabytes: float | None
    """The most memory that one of the runs used."""
    runs: int
    paper: tuple[float, float] | None
    """The paper's seconds and gigabytes."""


def costs(exhibit: Exhibit, results: Sequence[Result]) -> list[Cost]:
    """Seconds for 1,000 gradient steps of each of the exhibit's methods, on its data set."""
    found = []
    for method in exhibit.methods:
        seconds, peaks = [], []
        for result in results:
            if result.plan.algorithm == METHODS[method] and official_name(result.plan.data.name, exhibit.datasets):
                run = Run(result.path)
                spent, steps = run.timing(), reached(run.path)  # both as of the last checkpoint
                if steps and "update" in spent:
                    seconds.append(1000 * training_seconds(spent) / steps)
                    peaks.append(run.peak_megabytes())
        mean = float(np.mean(seconds)) if seconds else None
        peak = max((peak for peak in peaks if peak is not None), default=None)
        found.append(Cost(method, mean, peak, len(seconds), COST.get(method)))
    return found
