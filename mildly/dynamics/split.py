"""Which transitions a dynamics model learns from: those that are left when some are held out, resampled by member.

A few random rows are held out to tell when training has to end and who is an elite, as MOPO's authors do: a fifth of
the data, but not more than 1000. They are neighbors of rows that are learned from, so that for an honest check whole
episodes can be kept away from both.

A log without next observations, such as a table, has for a terminal row only what follows it: the start of the next
episode, or nothing. Its next observation is not learned from, and its reward and its end are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.data.batches import Batch, Transitions
from mildly.data.dataset import Array, Dataset, blocks

_VALIDATION_SHARE, _VALIDATION_ROWS = 0.2, 1000
_ROUNDING = 1e-6  # of the mean: a column that varies by no more is constant


class Split(NamedTuple):
    """Rows for each use; what is left is learned from."""

    train: Array
    validation: Array
    test: list[slice]
    """Whole episodes."""

    @classmethod
    def of(cls, data: Dataset, test_episodes: float) -> Split:
        """The same data and share give the same split, whatever a run's seed. One episode alone is never held out."""
        random, episodes = np.random.default_rng(0), data.episodes()
        count = min(max(round(test_episodes * len(episodes)), 1), len(episodes) - 1) if test_episodes else 0
        test = [episodes[i] for i in sorted(random.choice(len(episodes), count, replace=False).tolist())]
        free = np.ones(len(data), dtype=bool)
        for episode in test:
            free[episode] = False
        rows = np.flatnonzero(free)
        held_out = min(int(_VALIDATION_SHARE * len(rows)), _VALIDATION_ROWS)
        validation = np.sort(random.choice(rows, held_out, replace=False))
        free[validation] = False
        return cls(np.flatnonzero(free), validation, test)


def unknown_ends(data: Dataset) -> Array:
    """Terminal rows whose next observation is unknown: the data have the following row's in its place, or its own."""
    rows = np.flatnonzero(data.terminated)
    following = np.minimum(rows + 1, len(data) - 1)
    after = data.next_observations[rows]
    same = [(after == data.observations[others]).all(axis=1) for others in (rows, following)]
    found: Array = rows[same[0] | same[1]]
    return found


class Bootstraps(Transitions):
    """For every member a minibatch of its own resample of the rows, (members, batch, ...).

    A next observation that is unknown is NaN in them.

    A resample is as many draws from the rows, with replacement, as there are rows. Here the i-th draw of a member is a
    hash of both, so that it is always the same and takes no memory.
    """

    DERIVED: ClassVar = Transitions.DERIVED | {"rows", "keys", "unknown"}

    def __init__(
        self, data: Dataset, rows: Array, batch_size: int, device: torch.device, keys: Callable[[], Tensor]
    ) -> None:
        """`keys` are whole numbers, (members, 1), that the resamples follow from."""
        super().__init__(data, batch_size, device)
        self.rows, self.keys = torch.from_numpy(rows).to(self.device), keys
        self.unknown: Tensor | None = None
        if len(unknown := unknown_ends(data)):
            self.unknown = torch.zeros(len(data), 1, dtype=torch.bool, device=self.device)
            self.unknown[torch.from_numpy(unknown)] = True

    def __len__(self) -> int:
        return len(self.rows)

    def sample(self, generator: torch.Generator, size: int | None = None) -> Batch:
        """Draws from all rows of a member's resample alike."""
        shape = (len(self.keys()), size or self.batch_size)
        draws = torch.randint(len(self), shape, generator=generator, device=self.device)
        return self.gather(self.rows[self.resampled(draws)])

    def resampled(self, draws: Tensor) -> Tensor:
        """The row, by its place among all, that is a draw of a member's resample, (members, n)."""
        x = draws * -7046029254386353131 + self.keys()  # the steps of splitmix64; products overflow on purpose
        x = (x ^ (x >> 30)) * -4658895280553007687
        x = (x ^ (x >> 27)) * -7723592293110705685
        return ((x ^ (x >> 31)) & (2**63 - 1)) % len(self)

    def gather(self, rows: Tensor) -> Batch:
        """The transitions at these rows of the data, in the data's units, in the shape of the rows."""
        picked = self.preprocessing.apply(self._gather(flat := rows.flatten()))
        if self.unknown is not None:
            picked["next_observations"] = picked["next_observations"].masked_fill(self.unknown[flat], math.nan)
        return Batch(**{name: column.view(*rows.shape, *column.shape[1:]) for name, column in picked.items()})


def moments(data: Dataset, rows: Array) -> dict[str, Array]:
    """Mean and standard deviation of inputs (s, a) and targets (s' - s, r) over rows; 1 where nothing varies.

    Of what is known: a target that is not known is NaN.
    """
    chosen, unknown = (np.zeros(len(data), dtype=bool) for _ in range(2))
    chosen[rows], unknown[unknown_ends(data)] = True, True
    found: dict[str, Array] = {}
    for name, columns in (("input", _inputs), ("target", partial(_targets, unknown=unknown))):
        parts, total, known = list(blocks(len(data))), 0, 0
        for part in parts:
            values = columns(data, part)[chosen[part]]
            total, known = total + np.nansum(values, axis=0), known + np.isfinite(values).sum(axis=0)
        count = np.maximum(known, 1)
        mean = total / count
        squares = sum(np.nansum((columns(data, part)[chosen[part]] - mean) ** 2, axis=0) for part in parts)
        std = np.sqrt(squares / count)
        found |= {f"{name}_mean": mean, f"{name}_std": np.where(std <= _ROUNDING * np.abs(mean), 1.0, std)}
    return found


def _inputs(data: Dataset, rows: slice) -> Array:
    return np.concatenate([data.observations[rows], data.actions[rows]], axis=1).astype(np.float64)


def _targets(data: Dataset, rows: slice, *, unknown: Array) -> Array:
    change = np.asarray(data.next_observations[rows], np.float64) - data.observations[rows]
    change[unknown[rows]] = np.nan
    return np.concatenate([change, np.asarray(data.rewards[rows], np.float64)[:, None]], axis=1)
