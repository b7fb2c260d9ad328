"""The observation space: what each number of an observation is called, and which values the training data hold."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mildly.action_space import Array
from mildly.errors import MildlyError, printable, unknown_name

QUANTILES = (0.01, 0.05, 0.25, 0.5, 0.75, 0.95, 0.99)
"""Which quantiles of each column are kept."""
LONGEST_NAME = 1000
"""The most letters that a name in a file may have."""
_ROWS = 200_000  # at most, spread evenly, of which the quantiles are computed
_MARGIN = 0.1  # of the spread between the outer quantiles: how far beyond the range is still ordinary
_ROUNDING = 1e-6  # of the largest number: a column that varies by no more is constant
_SHOWN = 3  # values told one by one in a sentence


class Unseen(NamedTuple):
    """A number of an observation that lies outside what the training data hold."""

    row: int
    """Of the batch; 0 for a single observation."""
    column: str
    value: float
    low: float
    """The smallest value in the training data."""
    high: float
    """The largest one."""
    unit: str = ""

    def __str__(self) -> str:
        unit = f" {self.unit}" if self.unit else ""
        known = f"always {self.low:g}" if self.low == self.high else f"{self.low:g} to {self.high:g}"
        return printable(f"{self.column} is {self.value:g}{unit} (in the training data {known}{unit})")


class UnseenError(MildlyError):
    """Observations that the training data do not cover, where `unseen="raise"` was asked for."""

    def __init__(self, unseen: Sequence[Unseen]) -> None:
        super().__init__(f"observations unlike the training data: {in_words(unseen)}.")
        self.unseen = list(unseen)
        """What lies outside."""


class UnseenWarning(UserWarning):
    """Observations that the training data do not cover; told once for each column."""


def in_words(unseen: Sequence[Unseen]) -> str:
    """The first value of each column, and how many columns there are beyond the first few."""
    first = {each.column: each for each in reversed(unseen)}
    told = "; ".join(str(each) for each in list(reversed(first.values()))[:_SHOWN])
    return told + (f"; and {len(first) - _SHOWN} more columns" if len(first) > _SHOWN else "")


@dataclass(frozen=True)
class ObservationSpace:
    """The columns of observations as the training data have them.

    Attributes:
        low: the smallest value of each column.
        high: the largest one.
        quantiles: for each of `QUANTILES`, its value in each column.
        names: what the log calls the columns; empty where it has no names.
        units: of each column, empty text where there is none; empty where the log tells none.
    """

    low: tuple[float, ...]
    high: tuple[float, ...]
    quantiles: tuple[tuple[float, ...], ...]
    names: tuple[str, ...] = ()
    units: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        size = len(self.low)
        if len(self.quantiles) != len(QUANTILES):
            raise ValueError(f"{len(self.quantiles)} observation_quantiles instead of {len(QUANTILES)}")
        if any(len(level) != size for level in (self.high, *self.quantiles)):
            raise ValueError(f"observation_high or observation_quantiles have not {size} numbers")
        if any(len(told) not in (0, size) for told in (self.names, self.units)):
            raise ValueError(f"observation_names or observation_units have not {size} entries")
        levels = np.array([self.low, *self.quantiles, self.high], dtype=np.float64)
        if not (np.isfinite(levels).all() and (np.diff(levels, axis=0) >= 0).all()):
            raise ValueError("observation_low, observation_quantiles, observation_high must be finite and in order")
        if any(len(text) > LONGEST_NAME for text in (*self.names, *self.units)):
            raise ValueError(f"a name of more than {LONGEST_NAME} letters")

    @classmethod
    def of(cls, observations: Array, names: Sequence[str] = (), units: Sequence[str] = ()) -> ObservationSpace:
        """The space of data (n, o), which may be mapped from a file larger than memory."""
        low, high = (bound(axis=0).astype(np.float64) for bound in (observations.min, observations.max))
        some = np.linspace(0, len(observations) - 1, min(len(observations), _ROWS)).astype(np.int64)
        quantiles = np.quantile(np.asarray(observations[some], np.float64), QUANTILES, axis=0, method="nearest")
        return cls(
            tuple(low.tolist()), tuple(high.tolist()), tuple(map(tuple, quantiles.tolist())), tuple(names), tuple(units)
        )

    def including(self, observations: Array) -> ObservationSpace:
        """The space with the range of further observations (n, o); quantiles stay those of the first."""
        low, high = observations.min(axis=0).tolist(), observations.max(axis=0).tolist()
        return dataclasses.replace(self, low=tuple(map(min, self.low, low)), high=tuple(map(max, self.high, high)))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ObservationSpace | None:
        """The space that a file's entries describe; None where it has none.

        Raises:
            ValueError or TypeError: the file is damaged.
        """
        if values.get("observation_low") is None:
            return None
        low, high = (tuple(float(x) for x in values[f"observation_{bound}"]) for bound in ("low", "high"))
        quantiles = tuple(tuple(float(x) for x in row) for row in values["observation_quantiles"])
        names, units = (texts(values, f"observation_{name}", len(low)) for name in ("names", "units"))
        return cls(low, high, quantiles, names, units)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        return {f"observation_{name}": value for name, value in vars(self).items() if name in self.__match_args__}

    @property
    def size(self) -> int:
        """How many numbers an observation has."""
        return len(self.low)

    @cached_property
    def shown_names(self) -> tuple[str, ...]:
        """Names for messages, also where the log has none."""
        return self.names or tuple(f"obs_{i}" for i in range(self.size))

    @cached_property
    def bounds(self) -> tuple[Array, Array]:
        """The smallest and the largest value of each column."""
        return np.array(self.low, np.float32), np.array(self.high, np.float32)

    @cached_property
    def limits(self) -> tuple[Array, Array]:
        """Where unseen values begin: a tenth of the spread beyond the range, since noise passes it now and then.

        The spread is that between the quantiles 0.01 and 0.99, which single outliers in the data do not widen.
        """
        low, high, quantiles = (np.array(x) for x in (self.low, self.high, self.quantiles))
        spread = quantiles[-1] - quantiles[0]
        margin = _MARGIN * np.where(spread > 0, spread, high - low)
        margin = np.maximum(margin, _ROUNDING * np.maximum(np.abs(low), np.abs(high)))
        return (low - margin).astype(np.float32), (high + margin).astype(np.float32)

    @cached_property
    def constant(self) -> Array:
        """The columns that never change, by number: what they would do to an action was never learned."""
        low, high = np.array(self.low), np.array(self.high)
        return np.flatnonzero(high - low <= _ROUNDING * np.maximum(np.abs(low), np.abs(high)))

    def outside(self, observations: Array) -> Array:
        """Which numbers of observations (..., o) lie beyond the limits."""
        lower, upper = self.limits
        return np.asarray((observations < lower) | (observations > upper))

    def unseen(self, observations: Array) -> list[Unseen]:
        """Every number of observations (o,) or (n, o) that lies beyond the limits, row by row."""
        rows = np.atleast_2d(observations)
        found = zip(*np.nonzero(self.outside(rows)), strict=True)
        return [Unseen(int(row), self.shown_names[i], float(rows[row, i]), self.low[i], self.high[i],
                       self.units[i] if self.units else "") for row, i in found]  # fmt: skip


def as_array(given: Any, names: Sequence[str]) -> Any:
    """Observations by name as an array (o,) or (n, o); anything else as it is.

    By name are mappings, and tables whose columns have names: those of pandas, pyarrow and polars, structured arrays,
    and rows of them.
    """
    columns = _names_in(given)
    if columns is None or not (names or isinstance(given, Mapping)):
        return given
    return _by_name(given, columns, names)


def _names_in(given: Any) -> list[str] | None:
    """The names that a mapping or a table has; None for what is none, and for columns that are numbered."""
    if isinstance(given, np.ndarray | np.void):
        found: Any = given.dtype.names
    elif isinstance(given, list | tuple):
        return None
    elif hasattr(given, "keys"):  # mappings, and pandas
        found = given.keys()
    else:  # pyarrow, polars
        found = getattr(given, "column_names", None) or getattr(given, "columns", None)
    names = None if found is None or callable(found) else list(found)
    numbered = not isinstance(given, Mapping) and names and not any(isinstance(name, str) for name in names)
    return None if names is None or numbered else names


def _by_name(given: Any, columns: Sequence[str], names: Sequence[str]) -> Array:
    """The columns of a mapping or table in the order of the log; neither may one be missing nor another be there."""
    if not names:
        raise MildlyError("this policy knows no names of columns, since its log had none: give an array.")
    missing = [name for name in names if name not in columns]
    for name in columns:
        if name not in names:
            raise unknown_name("observation column", str(name), names)
    if missing:
        raise MildlyError(f"observations lack {', '.join(map(repr, missing[:_SHOWN]))}, of {len(names)} columns.")
    try:
        return np.array([given[name] for name in names], np.float32).T
    except (TypeError, ValueError):
        pass  # a cell that is no number, or columns of different lengths
    read = []
    for name in names:
        try:
            read.append(np.asarray(given[name], np.float32))
        except (TypeError, ValueError) as error:
            raise MildlyError(f"observations: '{name}' holds something else than numbers.") from error
    try:
        return np.stack(np.broadcast_arrays(*read), axis=-1)  # one number for all rows
    except ValueError as error:
        lengths = ", ".join(f"'{name}' {column.shape}" for name, column in list(zip(names, read, strict=True))[:_SHOWN])
        raise MildlyError(f"observations: columns of different lengths ({lengths}, ...).") from error


def texts(values: Mapping[str, Any], name: str, size: int) -> tuple[str, ...]:
    """An entry of a file that is a list with a text per column, or nothing.

    Raises:
        ValueError or TypeError: it is anything else.
    """
    found = values.get(name) or ()
    if not isinstance(found, list | tuple) or not all(isinstance(text, str) for text in found):
        raise TypeError(f"{name} is no list of texts")
    if len(found) not in (0, size):
        raise ValueError(f"{name} has {len(found)} entries instead of {size}")
    if any(len(text) > LONGEST_NAME for text in found):
        raise ValueError(f"{name} has an entry of more than {LONGEST_NAME} letters")
    return tuple(found)
