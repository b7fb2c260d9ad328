"""Curves of a group: the mean over its runs at each step, and few enough points for a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mildly.data.dataset import Array

MOST_POINTS = 300
"""The largest number of points of a curve on a page; more would look the same."""


@dataclass(frozen=True)
class MeanCurve:
    """Values against steps over the runs of a group."""

    steps: Array
    mean: Array
    std: Array
    """Standard deviation over runs (n - 1); 0 where there is one."""
    low: Array
    high: Array
    runs: Array
    """How many runs have come that far."""

    def at(self, chosen: Array) -> MeanCurve:
        """Some of the points."""
        columns = (self.steps, self.mean, self.std, self.low, self.high, self.runs)
        return MeanCurve(*(column[chosen] for column in columns))


def mean_curve(runs: Sequence[tuple[Array, Array]]) -> MeanCurve | None:
    """The mean of several curves on all their steps together; None where there is no point.

    Between its own points a curve is taken to be straight, and outside them it has no value.
    """
    runs = [(steps, values) for steps, values in runs if len(steps)]
    if not runs:
        return None
    steps = np.unique(np.concatenate([steps for steps, _ in runs]))
    table = np.array([np.interp(steps, own, values, left=np.nan, right=np.nan) for own, values in runs])
    count = np.isfinite(table).sum(axis=0)
    spread = np.zeros(len(steps))
    several = count > 1
    if several.any():
        spread[several] = np.nanstd(table[:, several], axis=0, ddof=1)
    known = count > 0  # runs that do not overlap leave no gap, since every step is some run's own
    table = table[:, known]
    return MeanCurve(
        steps[known], np.nanmean(table, axis=0), spread[known], np.nanmin(table, axis=0), np.nanmax(table, axis=0),
        count[known],
    )  # fmt: skip


def thin(steps: Array, values: Array, most: int = MOST_POINTS) -> Array:
    """Indices of at most so many points that look the same when drawn: the lowest and the highest of each stretch."""
    if len(steps) <= most:
        return np.arange(len(steps))
    inner = np.arange(1, len(steps) - 1)
    edges = np.linspace(steps[0], steps[-1], (most - 2) // 2 + 1)
    stretch = np.clip(np.searchsorted(edges, steps[inner], side="right") - 1, 0, len(edges) - 2)
    starts = np.flatnonzero(np.diff(stretch, prepend=-1))
    ends = np.append(starts[1:], len(inner))
    kept = {0, len(steps) - 1}
    for start, end in zip(starts, ends, strict=True):
        piece = values[inner[start:end]]
        kept |= {int(inner[start + piece.argmin()]), int(inner[start + piece.argmax()])}
    return np.array(sorted(kept))
