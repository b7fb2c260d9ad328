"""A log as a reader gives it: rows in order, block by block, in whatever units."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from mildly.data.dataset import Array, Meta
from mildly.data.gaps import Gaps
from mildly.data.origin import Origin

if TYPE_CHECKING:
    from mildly.data.fill import Codes


class Steps(NamedTuple):
    """Consecutive rows of a log. The last row of an episode is terminated or truncated."""

    observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    next_observations: Array | None = None
    numbers: Array | None = None
    """Which rows of the log they are, counted from 0; None where the log does not tell."""

    def part(self, rows: slice | Array) -> Steps:
        """Some of the rows."""
        return Steps(*(None if column is None else column[rows] for column in self))  # type: ignore[arg-type]

    @staticmethod
    def join(first: Steps | None, second: Steps) -> Steps:
        """The rows of one behind those of the other."""
        return second if first is None else Steps.joined([first, second])

    @staticmethod
    def joined(parts: Sequence[Steps]) -> Steps:
        """The rows of all parts, one behind the other."""
        columns = ([getattr(part, name) for part in parts] for name in Steps._fields)
        whole = (None if any(piece is None for piece in column) else np.concatenate(column) for column in columns)
        return Steps(*whole)  # type: ignore[arg-type]


@dataclass
class Log:
    """What a reader found."""

    meta: Meta
    steps: Iterator[Steps]
    where: str
    """The file or folder, for messages."""
    scaled: bool = False
    """Whether the actions are known to be in [-1, 1]."""
    size: int | None = None
    """Bytes that the transitions will take, as far as can be told before they are read."""
    gaps: Gaps | None = None
    """What is missing inside its episodes, if that is known before they are read."""
    origin: Origin | None = None
    """What its rows and columns are called in the files, if a person can look there."""
    codes: Codes | None = None
    """Codes for missing values, where the reader itself must know them: a reward may be computed from their columns."""
    notes: list[str] = field(default_factory=list)
    """What the user should know; readers may add to it until the last row is read."""
