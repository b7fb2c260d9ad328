"""Checks of numbers as such, and of the observations' columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, percent, sentence
from mildly.data.check.values import odd_rows
from mildly.data.dataset import Array
from mildly.data.fill import LIMIT
from mildly.words import counted

_LARGE = 1e3
_UNEVEN = 1e4
_PRESSED = 3.0  # times the spread without odd values
_LOST, _SMALL = 1e-5, 1e-4  # of the mean: a hundred steps of float32; a tenth of what the normalizer adds
_PLACES = 5  # named in a text
_MOST_SHORT = 0.5  # of the gaps


def not_finite(inspection: Inspection) -> Iterator[Finding]:
    """NaN and infinities, in any field."""
    places = []
    for name in ("observations", "actions", "rewards", "next_observations"):
        facts = getattr(inspection, name)
        if facts.bad.any():
            where = "" if name == "rewards" else f" in {inspection.column_names(np.flatnonzero(facts.bad), name)}"
            values = counted(int(facts.bad.sum()), "value")
            follow = name == "next_observations" and inspection.next_is_following_row
            places.append(
                f"{name}: {values}{where}, first {'behind' if follow else 'in'} {inspection.places(facts.bad_rows)}"
            )
    if places:
        yield Finding(
            "error",
            "nan",
            "The data hold NaN or infinite values; one of them in a minibatch spoils all weights.",
            f"{'; '.join(places)} ({inspection.of_rows}).",
            _repair(inspection),
        )


def _repair(inspection: Inspection) -> str:
    """Filling, where most gaps are short; else dropping."""
    drop = "`mildly data convert SRC DST --drop-bad-rows` leaves those rows out, and their episodes go on behind them"
    bad = np.zeros(len(inspection.data) + 2, dtype=bool)
    for piece in inspection.pieces(inspection.data.observation_size):
        found = ~np.isfinite(inspection.data.observations[piece]).all(axis=1)
        bad[piece.start + 1 : piece.stop + 1] = found | ~np.isfinite(inspection.data.actions[piece]).all(axis=1)
    edges = np.flatnonzero(np.diff(bad.astype(np.int8)))
    gaps = edges[1::2] - edges[::2]
    if len(gaps) and (gaps <= LIMIT).mean() >= _MOST_SHORT:
        short = f"{percent(float((gaps <= LIMIT).mean()))} of the gaps have at most {LIMIT} rows"
        return (
            f"Fill them with `mildly data convert SRC DST --fill interpolate` ({short}); add `--drop-bad-rows` for "
            "what cannot be filled: such rows are left out, and their episodes go on behind them."
        )
    return f"{drop}. Or repair them in the log."


def scale(inspection: Inspection) -> Iterator[Finding]:
    """Columns of very different size: harmless as long as observations are normalized."""
    facts = inspection.observations
    size = np.maximum(np.abs(facts.mean), facts.std)
    large = np.flatnonzero(size > _LARGE)
    varying = np.flatnonzero(facts.std > 1e-6 * np.maximum(np.abs(facts.mean), 1.0))  # else rounding, or constant
    if len(large):
        column = large[np.argmax(size[large])]
        what = f"Observations reach beyond {_LARGE:,.0f} in size, from which networks learn badly as they are."
        evidence = (
            f"{counted(len(large), 'such column')}; the largest is {inspection.column_name(column)}, with mean "
            f"{facts.mean[column]:.4g} and standard deviation {facts.std[column]:.4g}."
        )
    elif len(varying) and facts.std[varying].max() > _UNEVEN * facts.std[varying].min():
        wide, thin = varying[np.argmax(facts.std[varying])], varying[np.argmin(facts.std[varying])]
        what = "Columns of the observation differ widely in size; as they are, a network hardly sees the small ones."
        evidence = (
            f"Standard deviation {facts.std[wide]:.3g} in {inspection.column_name(wide)}, {facts.std[thin]:.3g} in "
            f"{inspection.column_name(thin)}."
        )
    else:
        return
    yield Finding(
        "info",
        "observation-scale",
        what,
        evidence,
        "Nothing to do with the presets `default` and `small`: they scale every column to mean 0 and deviation 1, and "
        "keep the scaling in the policy. With the preset `paper`, ask for it: `mildly train mcq --preset paper "
        "--normalize-observations`.",
    )


def dominated(inspection: Inspection) -> Iterator[Finding]:
    """Columns whose spread is that of a few odd values, so that normalizing presses all others together."""
    facts, rows = inspection.observations, inspection.typical_rows
    places = []
    for column in range(inspection.data.observation_size):
        odd = odd_rows(inspection, "observations", column)
        values = inspection.logged("observations", np.setdiff1d(rows, odd))[:, column] if len(odd) else np.empty(0)
        values = values[np.isfinite(values)]
        if len(values) and facts.std[column] > _PRESSED * values.std():
            places.append(
                f"{inspection.column_name(column)}: standard deviation {facts.std[column]:.4g}, but {values.std():.4g} "
                f"without {counted(len(odd), 'odd value')}"
            )
    if places:
        more = f"; and {len(places) - _PLACES} more" if len(places) > _PLACES else ""
        text = "; ".join(places[:_PLACES]) + more
        yield Finding(
            "warning",
            "outliers-dominate",
            "A few values make up most of the spread of a column; scaled by it, all others hardly move.",
            f"{sentence(text)}.",
            "Repair or leave out those values first (see `sentinel` and `spike`).",
        )


def too_fine(inspection: Inspection) -> Iterator[Finding]:
    """Columns that normalizing does not bring to deviation 1: too small, or lost in the digits of a large mean."""
    facts = inspection.observations
    moves = (facts.std > 0) & ~facts.constant
    lost = np.flatnonzero(moves & (facts.std < _LOST * np.abs(facts.mean)))
    small = np.setdiff1d(np.flatnonzero(moves & (facts.std < _SMALL)), lost)
    if len(lost):
        yield Finding(
            "warning",
            "observation-digits",
            "A column varies so little around a large mean that numbers of 32 bits hardly tell its values apart.",
            f"{sentence(inspection.column_names(lost))}; {inspection.column_name(lost[0])} has mean "
            f"{facts.mean[lost[0]]:.6g} and standard deviation {facts.std[lost[0]]:.3g} ({inspection.of_rows}).",
            "Subtract a constant in the log, such as the time at which it begins, or leave the column out (`--obs`).",
        )
    if len(small):
        yield Finding(
            "warning",
            "observation-small",
            "A column varies so little that normalizing, which divides by its standard deviation plus 0.001, leaves "
            "it small.",
            f"{sentence(inspection.column_names(small))}; {inspection.column_name(small[0])} has standard deviation "
            f"{facts.std[small[0]]:.3g} ({inspection.of_rows}).",
            "Log it in a smaller unit, so that its numbers are a thousand times as large.",
        )


def constant(inspection: Inspection) -> Iterator[Finding]:
    """Columns that never change."""
    still = np.flatnonzero(inspection.observations.constant)
    if not len(still):
        return
    everything = len(still) == inspection.data.observation_size
    names = sentence(inspection.column_names(still))
    evidence = f"{names} of {inspection.data.observation_size} ({inspection.of_rows})."
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
        name = inspection.column_name
        shown = ", ".join(f"{name(other)} repeats {name(first)}" for first, other in pairs[:5])
        more = f" and {len(pairs) - 5} more" if len(pairs) > 5 else ""
        yield Finding(
            "info",
            "observation-duplicated",
            "Some columns of the observation are copies of others.",
            f"{sentence(shown)}{more} ({inspection.of_rows}).",
            "They do little harm; leave the copies out with `mildly data convert SRC DST --obs ...` if they were not "
            "meant.",
        )


def _equal(inspection: Inspection, array: Array, first: int, other: int) -> bool:
    """Whether two columns hold the same numbers, NaN included."""
    pieces = (array[piece] for piece in inspection.pieces(array.shape[1]))
    return all(np.array_equal(piece[:, first], piece[:, other], equal_nan=True) for piece in pieces)
