"""A log as a reader gives it: rows in order, block by block, in whatever units."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from mildly.data.dataset import Array, Meta


class Steps(NamedTuple):
    """Consecutive rows of a log. The last row of an episode is terminated or truncated."""

    observations: Array
    actions: Array
    rewards: Array
    terminated: Array
    truncated: Array
    next_observations: Array | None = None

    def part(self, rows: slice | Array) -> Steps:
        """Some of the rows."""
        following = None if self.next_observations is None else self.next_observations[rows]
        return Steps(*(column[rows] for column in self[:5]))._replace(next_observations=following)

    @staticmethod
    def join(first: Steps | None, second: Steps) -> Steps:
        """The rows of one behind those of the other."""
        if first is None:
            return second
        joined = Steps(*(np.concatenate(pair) for pair in zip(first[:5], second[:5], strict=True)))
        if first.next_observations is None or second.next_observations is None:
            return joined
        return joined._replace(next_observations=np.concatenate([first.next_observations, second.next_observations]))


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
    notes: list[str] = field(default_factory=list)
    """What the user should know; readers may add to it until the last row is read."""
