"""Values that are no values: codes that stand for a missing one, and spikes.

What is usual is judged by the column itself. Its values fill a range without large gaps; what lies beyond a gap of
several times that range was not measured. A spike within the range shows in time: it lies on one side of both of its
neighbors, by far more than the column otherwise goes away and comes back within a step.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, sentence
from mildly.data.dataset import Array
from mildly.words import counted

CODES = np.sort(
    [
        *(-99, -99.9, -999, -999.9, -9999, -99999, -999999, 999, 999.9, 9999, 99999, 999999),
        *(32767, -32767, -32768, 65535, 2147483647, -2147483648, 4294967295),
        *(1e10, -1e10, 1e20, -1e20, 1e30, -1e30, 9.96921e36, 3.4028235e38, -3.4028235e38),
    ]
)
"""Numbers by which loggers say that there is none: all nines, powers of ten, the ends of integer and float types."""
_ROUNDING = 1e-5
_CODE = 2.0  # times the usual distance from the median
_FAR = {"observations": 4.0, "actions": 10.0, "rewards": np.inf}  # likewise; rewards have a check of their own
_AWAY, _OF_RANGE = 5.0, 0.1  # times the usual way there and back; of the usual distance from the median
_USUAL = 0.9  # share of a column's values that are usual, at least
_DISTINCT, _WAYS = 20, 200  # values that fill a range, ways that show what is usual; fewer tell nothing
_RARE, _FEW = 0.005, 3  # of the rows; what is more frequent is how the column behaves
_MOSTLY = 0.5
_REPEATS, _RUN = 3, 3.0  # times that a code comes back; rows in a row that have it, on average
_PLACES = 6  # named in a text


class Odd(NamedTuple):
    """Odd values of one column."""

    kind: str
    """`code` or `spike`."""
    field: str
    column: int
    rows: Array
    values: Array
    """As they were logged."""

    def words(self, inspection: Inspection) -> str:
        """`column 3: 12 values of -999, in rows 4, 8, ...`."""
        low, high = self.values.min(), self.values.max()
        what = f"of {low:.6g}" if low == high else f"from {low:.5g} to {high:.5g}"
        name = inspection.column_name(self.column, self.field)
        return f"{name}: {counted(len(self.rows), 'value')} {what} in {inspection.places(self.rows)}"


def codes(inspection: Inspection) -> Iterator[Finding]:
    """Values that say that there is none, such as -999."""
    found = [odd for odd in inspection.once(oddities) if odd.kind == "code"]
    if found:
        yield Finding(
            "warning",
            "sentinel",
            "Some values look like codes for 'no value': one number again, far from all others of its column.",
            f"{_places(inspection, found)} ({inspection.of_rows}).",
            f"Take them for missing: `mildly data convert SRC DST --missing {_codes(inspection, found)}`, with `--fill "
            "interpolate` to fill short gaps, and `--drop-bad-rows` to leave out what cannot be filled.",
        )


def _codes(inspection: Inspection, found: Sequence[Odd]) -> str:
    """What `--missing` needs: the numbers, by column where they have names."""
    names = {"observations": inspection.data.meta.observation_names, "actions": inspection.data.meta.action_names}
    parts = []
    for odd in found[:_PLACES]:
        known = names.get(odd.field, ())
        name = "reward" if odd.field == "rewards" else known[odd.column] if odd.column < len(known) else ""
        plain = re.fullmatch(r"[\w.-]+", name)
        parts.append(f"{name}={odd.values[0]:.9g}" if plain else f"{odd.values[0]:.9g}")
    return ",".join(dict.fromkeys(parts))


def spikes(inspection: Inspection) -> Iterator[Finding]:
    """Single values far from all others of their column, or from those just before and after."""
    found = [odd for odd in inspection.once(oddities) if odd.kind == "spike"]
    if found:
        yield Finding(
            "warning",
            "spike",
            "Some values stand alone, far from all others of their column, or from those just before and after.",
            f"{_places(inspection, found)} ({inspection.of_rows}).",
            "Look at those rows: faults of a sensor or of the log are better made empty cells (NaN), so that "
            "`mildly data convert SRC DST --drop-bad-rows` leaves them out. Real events may stay.",
        )


def _places(inspection: Inspection, found: Sequence[Odd]) -> str:
    shown = "; ".join(odd.words(inspection) for odd in found[:_PLACES])
    more = f"; and {len(found) - _PLACES:,} more" if len(found) > _PLACES else ""
    return f"{sentence(shown)}{more}"


def oddities(inspection: Inspection) -> list[Odd]:
    """All odd values of observations, actions and rewards."""
    found = [odd for field in _FAR for odd in _far_values(inspection, field)]
    return found + list(_spikes_in_time(inspection, found))


def odd_rows(inspection: Inspection, field: str, column: int) -> Array:
    """The rows in which a column is odd."""
    rows = [odd.rows for odd in inspection.once(oddities) if (odd.field, odd.column) == (field, column)]
    return np.unique(np.concatenate([np.empty(0, np.int64), *rows]))


class Usual(NamedTuple):
    """The range of a column, as a sample shows it."""

    center: float
    """The median."""
    reach: float
    """How far usual values lie from it; codes are none."""
    filled: bool
    """Whether values fill the range, so that a gap means something: not those of a flag."""


def usual(inspection: Inspection, field: str) -> list[Usual]:
    """The range of each column of a field."""
    values = inspection.logged(field, inspection.typical_rows)
    values[~np.isfinite(values) | _are_codes(values)] = np.nan
    return [_usual(column[~np.isnan(column)], _FAR[field]) for column in values.T]


def _usual(values: Array, factor: float) -> Usual:
    if not len(values):
        return Usual(0.0, np.inf, filled=False)
    center = float(np.median(values))
    distances = np.unique(np.abs(values - center))
    if len(distances) < _DISTINCT:
        return Usual(center, float(distances[-1]), filled=False)
    return Usual(center, _reach(distances, factor, int(_USUAL * len(distances))), filled=True)


def _reach(values: Array, factor: float, first: int = 0) -> float:
    """The last of ascending values, from the first on, before a gap: the next one is `factor` times as large."""
    gaps = np.flatnonzero(values[first + 1 :] > factor * values[first:-1])
    return float(values[first + gaps[0]] if len(gaps) else values[-1])


def _are_codes(values: Array) -> Array:
    above = np.searchsorted(CODES, values).clip(1, len(CODES) - 1)
    near = np.where(values - CODES[above - 1] < CODES[above] - values, CODES[above - 1], CODES[above])
    codes: Array = np.abs(values - near) <= _ROUNDING * np.abs(near)
    return codes


def _collected(inspection: Inspection, width: int, measure: Callable[[slice], Array], limits: Array) -> list[Array]:
    """Of each column the rows in which a measure (row, column) is beyond its limit."""
    rows: list[list[Array]] = [[np.empty(0, np.int64)] for _ in range(width)]
    for piece in inspection.pieces(width):
        beyond = measure(piece) > limits
        for column in np.flatnonzero(beyond.any(axis=0)):
            rows[column].append(piece.start + np.flatnonzero(beyond[:, column]))
    return [np.concatenate(some) for some in rows]


def _far_values(inspection: Inspection, field: str) -> Iterator[Odd]:
    """Codes, and values far from all others."""
    ranges = inspection.once(usual, field)
    centers, reaches = (np.array([getattr(column, name) for column in ranges]) for name in ("center", "reach"))

    def distances(rows: slice) -> Array:
        away = np.abs(inspection.logged(field, rows) - centers)
        return np.where(np.isfinite(away), away, 0.0)

    for column, rows in enumerate(_collected(inspection, len(ranges), distances, reaches)):
        values = inspection.logged(field, rows)[:, column]
        away, coded = np.abs(values - centers[column]), _are_codes(values)
        further = np.unique(away[~coded])  # than the sample showed, and perhaps usual all the same
        reach = _reach(np.append(reaches[column], further), _FAR[field])
        coded &= (away > _CODE * reach) & ~(inspection.closes(rows) & (field == "rewards"))  # a bonus at the end
        single = ~coded & (away > _FAR[field] * reach) & ranges[column].filled
        coded |= _come_back(rows, values, single)
        for value in np.unique(values[coded]):
            picked = coded & (values == value)
            if picked.sum() <= _MOSTLY * inspection.looked_at:
                yield Odd("code", field, column, rows[picked], values[picked])
        single &= ~coded
        if 0 < single.sum() <= _allowed(inspection):
            yield Odd("spike", field, column, rows[single], values[single])


def _come_back(rows: Array, values: Array, single: Array) -> Array:
    """Which of some single values are one number that comes back, a few rows at a time: a code we do not know.

    Where it stays for long it may be a state of the plant, such as a pump that is off.
    """
    again = np.zeros(len(rows), bool)
    found, times = np.unique(values[single], return_counts=True)
    for value in found[(times >= _REPEATS) & (found != 0)]:
        same = single & (values == value)
        runs = 1 + int((np.diff(rows[same]) > 1).sum())
        again |= same & (same.sum() <= _RUN * runs)
    return again


def _allowed(inspection: Inspection) -> float:
    return max(_FEW, _RARE * inspection.looked_at)


def _spikes_in_time(inspection: Inspection, known: Sequence[Odd]) -> Iterator[Odd]:
    """Observations far from those just before and after, which are near each other."""
    ranges = inspection.once(usual, "observations")
    reaches = np.full(len(ranges), np.inf)
    for column, ways in enumerate(there_and_back(inspection, inspection.typical_rows).T):
        ways = np.sort(ways[ways > 0])
        if len(ways) >= _WAYS:
            reaches[column] = _reach(ways, _AWAY, int(_USUAL * len(ways)))

    def measure(rows: slice) -> Array:
        return there_and_back(inspection, np.arange(rows.start, rows.stop))

    for column, rows in enumerate(_collected(inspection, len(ranges), measure, reaches)):
        if not len(rows):
            continue
        way = there_and_back(inspection, rows)[:, column]
        reach = _reach(np.append(reaches[column], np.sort(way)), _AWAY)
        taken = [odd.rows for odd in known if (odd.field, odd.column) == ("observations", column)]
        rows = rows[way > max(_AWAY * reach, _OF_RANGE * ranges[column].reach)]
        rows = np.setdiff1d(rows, np.concatenate([np.empty(0, np.int64), *taken]))
        if 0 < len(rows) <= _allowed(inspection):
            yield Odd("spike", "observations", column, rows, inspection.logged("observations", rows)[:, column])


def there_and_back(inspection: Inspection, rows: Array) -> Array:
    """How far observations (row, column) lie above both of their neighbors in time, or below both; 0 where between."""
    last = len(inspection.data) - 1
    before, after = (rows - 1).clip(0), (rows + 1).clip(max=last)
    inside = (rows > 0) & (rows < last) & ~inspection.closes(before) & ~inspection.closes(rows)
    here = inspection.logged("observations", rows)
    up, down = here - inspection.logged("observations", before), here - inspection.logged("observations", after)
    way = np.where(up * down > 0, np.minimum(np.abs(up), np.abs(down)), 0.0)
    return np.where(inside[:, None] & np.isfinite(way), way, 0.0)
