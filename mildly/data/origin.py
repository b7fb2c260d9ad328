"""Where a data set was read from: what its columns are called in the log, and in which file and line a row stands.

It lives as long as the data set is in memory. A converted set keeps the names of observations and actions alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

NAMED = 5
"""Places in a text."""


class Place(NamedTuple):
    """A row of a file, as a person finds it."""

    file: str
    """Empty where there is only one."""
    kind: str
    """`line`, counted from 1 as an editor does, or `row`, counted from 0."""
    number: int

    def __str__(self) -> str:
        return f"{self.file} {self.kind} {self.number}".strip()


def worded(places: Sequence[Place], total: int | None = None) -> str:
    """`line 3`, `rows 1, 2, 3, 4, 5 and 95 more`, or `run_1.csv lines 3, 8, run_2.csv line 2`."""
    total = len(places) if total is None else total
    parts = []
    for (file, kind), some in groupby(places[:NAMED], key=lambda place: (place.file, place.kind)):
        numbers = [str(place.number) for place in some]
        plural = "s" if len(numbers) > 1 or (not file and total > 1) else ""
        parts.append(f"{file} {kind}{plural} {', '.join(numbers)}".strip())
    more = total - min(len(places), NAMED)
    return ", ".join(parts) + (f" and {more:,} more" if more > 0 else "")


Places = Callable[[Sequence[int]], list[Place]]
"""Where rows of a log, counted from 0, stand."""


def rows_of_arrays(rows: Sequence[int]) -> list[Place]:
    """In a file of arrays a row is its number."""
    return [Place("", "row", int(row)) for row in rows]


class Origin:
    """The log behind a data set. Which row of it each transition is, is kept as stretches of consecutive rows."""

    def __init__(self, places: Places, names: Mapping[str, str] | None = None) -> None:
        """`places`: where rows of the log stand. `names`: what the columns of rewards and flags are called there."""
        self.places, self.names = places, dict(names or {})
        self.count = 0  # transitions
        self._starts: list[int] = []  # transitions at which a stretch begins
        self._rows: list[int] = []  # the rows of the log that they are

    def add(self, rows: npt.NDArray[np.int64]) -> None:
        """The rows that the next transitions are."""
        begins = np.flatnonzero(np.diff(rows, prepend=self._next_row()) != 1)
        self._starts += (self.count + begins).tolist()
        self._rows += rows[begins].tolist()
        self.count += len(rows)

    def of(self, transitions: Sequence[int]) -> list[Place]:
        """Where transitions, counted from 0, stand."""
        return self.places(self.rows(transitions))

    def rows(self, transitions: Sequence[int]) -> list[int]:
        """The rows of the log, counted from 0, that transitions are."""
        stretches = np.searchsorted(self._starts, transitions, side="right") - 1
        return [self._rows[i] + int(one) - self._starts[i] for i, one in zip(stretches, transitions, strict=True)]

    def _next_row(self) -> int:
        """The row before which the running stretch would go on."""
        return self._rows[-1] + self.count - self._starts[-1] - 1 if self._rows else -2


def place(origin: Origin | None, row: int) -> str:
    """Where a transition stands: in the log, or by its number."""
    return f"row {row}" if origin is None else str(origin.of([row])[0])


def column_name(names: Sequence[str], column: int) -> str:
    """What the log calls a column, or else `column 3`."""
    return f"'{names[column]}'" if len(names) > column else f"column {int(column)}"
