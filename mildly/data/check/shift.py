"""What is different in further logs: observations, actions and rewards beside those of the first."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mildly.data.check.inspection import Columns, Finding, Inspection, figure, percent, sentence
from mildly.data.dataset import Dataset
from mildly.observation_space import ObservationSpace

_MOVED = 0.5  # standard deviations of the first: a mean that moves by more is told
_WIDER = 2.0  # times the spread of the first, or one over it
_NAMED = 4  # columns told one by one
_BEYOND = 0.01  # share of rows outside of the first's range that is told


def shift(old: Dataset, new: Dataset) -> list[Finding]:
    """What of the new data is unlike the old: warnings where a policy of the old has never been, else good to know."""
    before, now = Inspection(old, thorough=False), Inspection(new, thorough=False)
    with np.errstate(all="ignore"):
        return [
            *_beyond(old, new, now),
            *_columns(before, before.observations, now.observations, "observations"),
            *_columns(before, before.actions, now.actions, "actions"),
            *_returns(before, now),
        ]


def _beyond(old: Dataset, new: Dataset, now: Inspection) -> Iterator[Finding]:
    """Rows whose observations the old data do not cover."""
    space = ObservationSpace.of(old.observations)
    outside, _ = now.count(new.observations, space.outside)
    rows = sum(int(space.outside(new.observations[piece]).any(axis=1).sum()) for piece in now.pieces())
    if rows > _BEYOND * now.looked_at:
        most = np.argsort(-outside, kind="stable")[:_NAMED]
        told = ", ".join(f"{now.column_name(i)} in {outside[i]:,}" for i in most.tolist() if outside[i])
        yield Finding(
            "warning",
            "shift-beyond",
            f"{percent(rows / now.looked_at)} of the new observations lie outside the range of the old.",
            f"{rows:,} {now.of_rows}: {told}.",
            "Nothing about them is known from the old data; normalization stays that of the old.",
        )


def _columns(before: Inspection, old: Columns, new: Columns, field: str) -> Iterator[Finding]:
    """Columns whose mean or spread is another."""
    usual = np.where(old.std > 0, old.std, np.maximum(np.abs(old.mean), 1.0) * 1e-6)
    moved, wider = np.abs(new.mean - old.mean) / usual, new.std / usual
    unlike = np.flatnonzero((moved > _MOVED) | (wider > _WIDER) | (wider < 1 / _WIDER))
    size = np.maximum(moved, np.abs(np.log(np.maximum(wider, 1e-6))))
    most = unlike[np.argsort(-size[unlike], kind="stable")]
    if len(most):
        told = "; ".join(
            f"{before.column_name(i, field)}: mean {figure(old.mean[i])} to {figure(new.mean[i])}, "
            f"deviation {figure(old.std[i])} to {figure(new.std[i])}"
            for i in most[:_NAMED].tolist()
        )
        more = f"; and {len(most) - _NAMED} more" if len(most) > _NAMED else ""
        yield Finding(
            "info",
            f"shift-{field}",
            f"{len(most)} of {len(old.mean)} columns of the {field} are distributed otherwise in the new data.",
            f"{told}{more}.",
            "",
        )


def _returns(before: Inspection, now: Inspection) -> Iterator[Finding]:
    old, new = before.returns, now.returns
    steps = [float(inspection.rewards.mean[0]) for inspection in (before, now)]
    what = f"mean return of an episode {figure(old.mean())} in the old data, {figure(new.mean())} in the new"
    yield Finding(
        "info", "shift-returns", sentence(f"{what}."), f"Mean reward {figure(steps[0])} and {figure(steps[1])}.", ""
    )
