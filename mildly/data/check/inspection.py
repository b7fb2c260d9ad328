"""What the checks of a data set share: a finding, and one look at the data that remembers what it has seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from mildly.data.dataset import Array, Dataset, blocks
from mildly.data.origin import NAMED, Place, worded

Severity = Literal["error", "warning", "info"]
_Result = TypeVar("_Result")

_SAMPLE, _STRETCHES = 100_000, 20  # rows that a quick look reads, in stretches so that neighbors can be compared
_NUMBERS = 1 << 20  # numbers held at a time
_TYPICAL = 50_000  # rows, evenly spread, that show what is usual
_FIELDS = {"observations": "", "next_observations": "next-observation ", "actions": "action "}
_NEXT = {"next_observations": "next "}


@dataclass(frozen=True)
class Finding:
    """Something about a data set that its owner should know.

    Attributes:
        severity: `error`, training would go wrong; `warning`, the result would suffer, or something is odd;
            `info`, good to know.
        code: a short name that stays the same from version to version.
        what: what was found, in a sentence.
        evidence: counts, columns by their names or numbers, rows by their place in the log or their numbers.
        advice: what to do about it.
    """

    severity: Severity
    code: str
    what: str
    evidence: str
    advice: str


class Columns(NamedTuple):
    """Facts about each column of an array; NaN and infinities are counted and otherwise left out."""

    bad: Array
    bad_rows: list[int]
    low: Array
    high: Array
    mean: Array
    std: Array

    @property
    def constant(self) -> Array:
        """Where a column has one value only."""
        constant: Array = self.low == self.high
        return constant


class Inspection:
    """A data set under inspection. What several checks need is worked out once, block by block."""

    def __init__(self, data: Dataset, *, thorough: bool) -> None:
        self.data, self.thorough = data, thorough
        ends = data.episode_ends() - 1
        last = len(data) - 1
        self.ends: Array = ends if len(ends) and ends[-1] == last else np.append(ends, last)
        self.lengths: Array = np.diff(self.ends, prepend=-1)
        """Rows of each episode."""
        self.steps: Array = self.lengths if data.gaps is None else data.episode_lengths()
        """Steps of each episode, those that are missing included."""
        self._done: dict[Any, Any] = {}

    def once(self, work: Callable[..., _Result], *of: Any) -> _Result:
        """The result of `work(self, *of)`, which several checks need: it is done for the first that asks."""
        if (work, of) not in self._done:
            self._done[work, of] = work(self, *of)
        result: _Result = self._done[work, of]
        return result

    def closes(self, rows: slice | Array) -> Array:
        """Whether each of these rows is the last of a stretch, so that the row below does not continue it."""
        closes: Array = self.data.terminated[rows] | self.data.truncated[rows]
        return closes

    def logged(self, field: str, rows: slice | Array) -> Array:
        """Numbers of a field (row, column) as they were logged: actions in their own units, rewards as one column."""
        values = getattr(self.data, field)[rows].astype(np.float64)
        if field == "actions" and self.data.meta.action_space is not None:
            values = self.data.meta.action_space.from_unit(values)
        logged: Array = values[:, None] if values.ndim == 1 else values
        return logged

    def column_name(self, column: int, field: str = "observations") -> str:
        """What a text calls a column: `'temp'`, or `column 3`, `action column 0`, `reward` where it has no name."""
        if field == "rewards":
            return self.flag_name("rewards", "reward")
        name = self.data.column_name(column, field)
        return f"{_FIELDS[field]}{name}" if name.startswith("column") else f"{_NEXT.get(field, '')}{name}"

    def column_names(self, columns: Array, field: str = "observations") -> str:
        """Several of them: `'temp', 'valve'`, or `columns 1, 2, 3, 4, 5 and 95 more`."""
        if self.data.column_name(0, field).startswith("column"):
            return named("column", columns)
        more = f" and {len(columns) - NAMED:,} more" if len(columns) > NAMED else ""
        return ", ".join(self.data.column_name(column, field) for column in columns[:NAMED]) + more

    def flag_name(self, field: str, usual: str) -> str:
        """What the log calls a field of one number."""
        return usual if self.data.origin is None else self.data.origin.names.get(field, usual)

    @property
    def next_is_following_row(self) -> bool:
        """Whether the log is known to have no next observations of its own."""
        names = {} if self.data.origin is None else self.data.origin.names
        return bool(names) and "next_observations" not in names

    def places(self, rows: Sequence[int] | Array, total: int | None = None) -> str:
        """Where rows stand, the first of them: `lines 3, 17`, or `rows 2, 16` where the log has no lines."""
        first = [int(row) for row in rows[:NAMED]]
        origin = self.data.origin
        found = [Place("", "row", row) for row in first] if origin is None else origin.of(first)
        return worded(found, len(rows) if total is None else total)

    def place(self, row: int) -> str:
        """Where a row stands."""
        return self.data.place(int(row))

    @cached_property
    def typical_rows(self) -> Array:
        """Rows, evenly spread over those to look at, that show what is usual."""
        step = -(-self.looked_at // _TYPICAL)
        return np.concatenate([np.arange(piece.start, piece.stop, step) for piece in self.pieces()])

    def pieces(self, width: int = 1) -> Iterator[slice]:
        """The rows to look at, in pieces small enough for `width` columns: all of them, or a sample in a quick one."""
        rows = len(self.data)
        if self.thorough or rows <= _SAMPLE:
            stretches = list(blocks(rows))
        else:
            size = _SAMPLE // _STRETCHES
            starts = np.linspace(0, rows - size, _STRETCHES).astype(int)
            stretches = [slice(int(start), int(start) + size) for start in starts]
        step = max(_NUMBERS // width, 1)
        for stretch in stretches:
            for start in range(stretch.start, stretch.stop, step):
                yield slice(start, min(start + step, stretch.stop))

    @cached_property
    def looked_at(self) -> int:
        """How many rows `pieces` gives."""
        return sum(piece.stop - piece.start for piece in self.pieces())

    @property
    def of_rows(self) -> str:
        """`of 1,000 rows`, or of how many of them."""
        some = "" if self.looked_at == len(self.data) else " looked at"
        return f"of {self.looked_at:,} rows{some}"

    @cached_property
    def observations(self) -> Columns:
        """Facts about the observations."""
        return _columns(self.data.observations, self.pieces(self.data.observation_size))

    @cached_property
    def next_observations(self) -> Columns:
        """Facts about the next observations."""
        return _columns(self.data.next_observations, self.pieces(self.data.observation_size))

    @cached_property
    def actions(self) -> Columns:
        """Facts about the actions."""
        return _columns(self.data.actions, self.pieces(self.data.action_size))

    @cached_property
    def rewards(self) -> Columns:
        """Facts about all rewards, as of one column."""
        return _columns(self.data.rewards[:, None], blocks(len(self.data)))

    @cached_property
    def returns(self) -> Array:
        """The sum of rewards of each episode; a reward that is no number counts as 0."""
        totals = np.zeros(len(self.ends))
        for block in blocks(len(self.data)):
            episode = np.searchsorted(self.ends, np.arange(block.start, block.stop))
            rewards = np.nan_to_num(self.data.rewards[block].astype(np.float64), posinf=0.0, neginf=0.0)
            totals[episode[0] : episode[-1] + 1] += np.bincount(episode - episode[0], weights=rewards)
        return totals if self.data.gaps is None else totals + np.nan_to_num(self.data.gaps.rewards)

    def count(self, array: Array, condition: Callable[[Array], Array]) -> tuple[Array, list[int]]:
        """How often each column meets a condition, and the first rows in which one does."""
        total, rows = np.zeros(array.shape[1], np.int64), list[int]()
        for piece in self.pieces(array.shape[1]):
            met = condition(array[piece])
            total += met.sum(axis=0)
            first_rows(rows, met.any(axis=1), piece.start)
        return total, rows


def _columns(array: Array, pieces: Iterator[slice]) -> Columns:
    width = array.shape[1]
    bad, bad_rows = np.zeros(width, np.int64), list[int]()
    low, high = np.full(width, np.inf), np.full(width, -np.inf)
    # Sums of differences from the first row: sums of squares would lose columns with a large mean to rounding.
    origin = np.nan_to_num(array[0].astype(np.float64), posinf=0.0, neginf=0.0)
    count, total, squares = np.zeros(width), np.zeros(width), np.zeros(width)
    for piece in pieces:
        values = array[piece].astype(np.float64)
        finite = np.isfinite(values)
        where = True if finite.all() else finite
        if where is not True:
            bad += (~finite).sum(axis=0)
            first_rows(bad_rows, ~finite.all(axis=1), piece.start)
        low = np.minimum(low, values.min(axis=0, where=where, initial=np.inf))
        high = np.maximum(high, values.max(axis=0, where=where, initial=-np.inf))
        values -= origin
        count += finite.sum(axis=0)
        total += values.sum(axis=0, where=where)
        squares += np.square(values, out=values).sum(axis=0, where=where)
    mean = total / count
    return Columns(bad, bad_rows, low, high, mean + origin, np.sqrt(np.maximum(squares / count - mean**2, 0.0)))


def hashes(*fields: Array) -> Array:
    """A number for each row, equal where all of its float32 numbers are equal."""
    numbers = np.concatenate(fields, axis=1).view(np.uint32)
    random = np.random.default_rng(0)
    factors = random.integers(1 << 63, size=numbers.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    return np.asarray((numbers * factors).sum(axis=1, dtype=np.uint64))


def first_rows(rows: list[int], met: npt.ArrayLike, start: int) -> None:
    """Add rows that meet a condition until there are enough to name."""
    if len(rows) < NAMED:
        rows += [start + int(row) for row in np.flatnonzero(met)[: NAMED - len(rows)]]


def named(kind: str, numbers: Sequence[int] | Array) -> str:
    """`column 3`, or `columns 1, 2, 3, 4, 5 and 95 more`."""
    return worded([Place("", kind, int(number)) for number in numbers[:NAMED]], len(numbers))


def sentence(text: str) -> str:
    """With a capital letter."""
    return f"{text[0].upper()}{text[1:]}"


def figure(number: float) -> str:
    """A number with as many digits as a reader needs."""
    return f"{number:,.0f}" if 1e3 <= abs(number) < 1e7 else f"{number:.4g}"


def percent(share: float) -> str:
    """`12 %`; shares near none or all with the digits that they need."""
    return f"{100 * share:.0f} %" if 0.1 <= share <= 0.95 else f"{100 * share:.3g} %"
