"""Checks of numbers as such, and of the observations' columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, counted, named
from mildly.data.dataset import Array

_LARGE = 1e3
_UNEVEN = 1e4


def not_finite(inspection: Inspection) -> Iterator[Finding]:
    """NaN and infinities, in any field."""
    places = []
    for name in ("observations", "actions", "rewards", "next_observations"):
        facts = getattr(inspection, name)
        if facts.bad.any():
            where = "" if name == "rewards" else f" in {named('column', np.flatnonzero(facts.bad))}"
            values = counted(int(facts.bad.sum()), "value")
            places.append(f"{name}: {values}{where}, first in {named('row', facts.bad_rows)}")
    if places:
        yield Finding(
            "error",
            "nan",
            "The data hold NaN or infinite values; one of them in a minibatch spoils all weights.",
            f"{'; '.join(places)} ({inspection.of_rows}).",
            "Leave those rows out with `mildly data convert SRC DST --drop-bad-rows`, or repair them in the log.",
        )


def scale(inspection: Inspection) -> Iterator[Finding]:
    """Columns with very large numbers, or columns of very different size, which networks learn badly from."""
    facts = inspection.observations
    varying = np.flatnonzero(facts.std > 1e-6 * np.maximum(np.abs(facts.mean), 1.0))  # else rounding, or constant
    large = np.flatnonzero((np.abs(facts.mean) > _LARGE) | (facts.std > _LARGE))
    advice = (
        "Train with `--normalize-observations`, which scales every column to mean 0 and deviation 1, and keeps the "
        "scaling in the policy."
    )
    if len(large):
        column = large[np.argmax(np.maximum(np.abs(facts.mean), facts.std)[large])]
        yield Finding(
            "warning",
            "observation-scale",
            f"Observations reach beyond {_LARGE:,.0f} in size; networks learn slowly, or not at all, from such inputs.",
            f"{counted(len(large), 'such column')}; the largest is column {column}, with mean {facts.mean[column]:.4g} "
            f"and standard deviation {facts.std[column]:.4g}.",
            advice,
        )
    elif len(varying) and facts.std[varying].max() > _UNEVEN * facts.std[varying].min():
        wide, thin = varying[np.argmax(facts.std[varying])], varying[np.argmin(facts.std[varying])]
        yield Finding(
            "warning",
            "observation-scale",
            "Columns of the observation differ widely in size, so that a network hardly sees the small ones.",
            f"Standard deviation {facts.std[wide]:.3g} in column {wide}, {facts.std[thin]:.3g} in column {thin}.",
            advice,
        )


def constant(inspection: Inspection) -> Iterator[Finding]:
    """Columns that never change."""
    still = np.flatnonzero(inspection.observations.constant)
    if not len(still):
        return
    everything = len(still) == inspection.data.observation_size
    evidence = f"{named('Column', still)} of {inspection.data.observation_size} ({inspection.of_rows})."
    if everything:
        yield Finding(
            "warning",
            "observation-constant",
            "The observation never changes, so that a policy can only learn one single action.",
            evidence,
            "Check that the right columns were read: `mildly data convert SRC DST --obs ...` names them.",
        )
    else:
        yield Finding(
            "info",
            "observation-constant",
            "Some columns of the observation never change and tell a policy nothing.",
            evidence,
            "They do no harm as long as they stay so when the policy acts; leave them out with `--obs` otherwise.",
        )


def duplicated_columns(inspection: Inspection) -> Iterator[Finding]:
    """Columns that hold the same numbers as another one."""
    facts = inspection.observations
    alike: dict[tuple[float, ...], list[int]] = defaultdict(list)
    for column in np.flatnonzero(np.isfinite(facts.low) & ~facts.constant):
        alike[tuple(float(fact[column]) for fact in (facts.low, facts.high, facts.mean, facts.std))].append(int(column))
    pairs = [
        (first, other)
        for first, *others in alike.values()
        for other in others
        if _equal(inspection, inspection.data.observations, first, other)
    ]
    if pairs:
        shown = ", ".join(f"{other} repeats {first}" for first, other in pairs[:5])
        more = f" and {len(pairs) - 5} more" if len(pairs) > 5 else ""
        yield Finding(
            "info",
            "observation-duplicated",
            "Some columns of the observation are copies of others.",
            f"Column {shown}{more} ({inspection.of_rows}).",
            "They do little harm; leave the copies out with `mildly data convert SRC DST --obs ...` if they were not "
            "meant.",
        )


def _equal(inspection: Inspection, array: Array, first: int, other: int) -> bool:
    """Whether two columns hold the same numbers, NaN included."""
    pieces = (array[piece] for piece in inspection.pieces(array.shape[1]))
    return all(np.array_equal(piece[:, first], piece[:, other], equal_nan=True) for piece in pieces)
