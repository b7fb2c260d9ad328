"""Gaps: rows that are missing inside episodes, and what is known of them.

A row that cannot be used (a sensor was silent) leaves a gap. The row before it is marked truncated, since nothing is
known of what followed, but the episode goes on behind the gap: its identity, its length and, where the lost rewards are
known, its return are those of the whole episode.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]


class Gaps(NamedTuple):
    """What is missing of each episode, one entry per episode, in order."""

    ends: npt.NDArray[np.int64]
    """The row behind its last one."""
    rows: npt.NDArray[np.int64]
    """How many of its rows are missing."""
    rewards: npt.NDArray[np.float64]
    """The sum of their rewards; NaN where it is not known."""

    @classmethod
    def from_table(cls, table: npt.NDArray[np.float64], ended: npt.NDArray[np.bool_]) -> Gaps | None:
        """From `to_table`'s form; None where it does not fit rows of which the last of each episode is `ended`."""
        if table.ndim != 2 or table.shape[1] != 3 or not len(table) or not np.isfinite(table[:, :2]).all():
            return None
        ends, rows = table[:, 0].astype(np.int64), table[:, 1].astype(np.int64)
        whole = (ends == table[:, 0]).all() and (rows == table[:, 1]).all() and (rows >= 0).all()
        fits = whole and (np.diff(ends, prepend=0) > 0).all() and ends[-1] == len(ended)
        return cls(ends, rows, np.array(table[:, 2])) if fits and ended[ends - 1].all() else None

    def to_table(self) -> npt.NDArray[np.float64]:
        """One array, a row per episode."""
        return np.stack([self.ends, self.rows, self.rewards], axis=1).astype(np.float64)

    def part(self, chosen: npt.NDArray[np.int64]) -> Gaps:
        """Those of some episodes, which then stand behind one another."""
        lengths = np.diff(self.ends, prepend=0)[chosen]
        return Gaps(np.cumsum(lengths), self.rows[chosen], self.rewards[chosen])


class GapCounter:
    """Follows rows that are kept or lost, block by block, and tells the gaps in the end."""

    def __init__(self, known: Gaps | None = None) -> None:
        """`known`: what is missing already, of the episodes that will come."""
        self.known = known
        self.seen = self.number = 0  # rows; episodes
        self.kept = 0  # rows of all episodes
        self.before = 0  # rows kept when the running episode began
        self.lost, self.reward = 0, 0.0  # of the running episode
        self.entries: list[tuple[int, int, float]] = []
        self.episodes_lost = 0
        """Episodes of which no row is left."""

    def add(self, lost: Array, rewards: Array, ends: Array) -> None:
        """Rows in order: which are lost, their rewards, and which of them end an episode (or stand before a gap)."""
        if self.known is not None:
            ends = np.isin(np.arange(self.seen, self.seen + len(ends)), self.known.ends - 1)
        self.seen += len(ends)
        start = 0
        for end in np.flatnonzero(ends).tolist():
            self._count(lost[start : end + 1], rewards[start : end + 1])
            self._finish()
            start = end + 1
        self._count(lost[start:], rewards[start:])

    def gaps(self) -> Gaps | None:
        """What was lost; None if nothing was."""
        self._finish()
        if not any(rows for _, rows, _ in self.entries):
            return None
        ends, rows, rewards = zip(*self.entries, strict=True)
        return Gaps(np.array(ends, np.int64), np.array(rows, np.int64), np.array(rewards, np.float64))

    def _count(self, lost: Array, rewards: Array) -> None:
        gone = rewards[lost.astype(bool)].astype(np.float64)
        self.kept += len(lost) - len(gone)
        self.lost += len(gone)
        self.reward += float(gone.sum()) if np.isfinite(gone).all() else np.nan

    def _finish(self) -> None:
        if self.known is not None and self.number < len(self.known.ends):
            self.lost += int(self.known.rows[self.number])
            self.reward += float(self.known.rewards[self.number])
        self.number += 1
        if self.kept > self.before:
            self.entries.append((self.kept, self.lost, self.reward))
        elif self.lost:
            self.episodes_lost += 1
        self.before, self.lost, self.reward = self.kept, 0, 0.0
