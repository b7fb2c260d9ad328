"""Behavior actions decoded once and kept: drawing them anew in every step is a quarter of what MCQ costs.

Of BCQ's and BEAR's steps at the papers' sizes it is more than a third, and training the model beside the rest as much.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Dataset, blocks
from mildly.data.normalize import Normalizer

_BLOCK = 4096  # states decoded at a time
_LARGEST = torch.finfo(torch.float16).max  # draws before tanh have no bound of their own

Draw = Callable[[Tensor, int, torch.Generator], Tensor]
"""N draws in each of some states, (states, n, a): a model's `sample`, or the same before tanh."""


class ActionCache:
    """N behavior actions for every state of a data set, in half precision.

    A successor that is the observation of the next row, as nearly all are, is one state and not two. The actions
    depend on the model's weights and on the seed alone, so they need not be part of a checkpoint.
    """

    def __init__(self, dataset: Dataset, n: int, device: torch.device, normalizer: Normalizer | None = None) -> None:
        self.dataset, self.n, self.device, self.normalizer = dataset, n, device, normalizer
        self.apart = _ends(dataset)
        successors = torch.arange(1, len(dataset) + 1)
        successors[torch.from_numpy(self.apart)] = len(dataset) + torch.arange(len(self.apart))
        self.successors = successors.to(device)
        """Where the actions of each row's successor are."""
        self.actions: Tensor | None = None
        self.edition = -1

    @property
    def megabytes(self) -> float:
        """What the actions take."""
        return (len(self.dataset) + len(self.apart)) * self.n * self.dataset.action_size * 2 / 1e6

    def fill(self, draw: Draw, edition: int, seed: int) -> None:
        """Decode all actions, unless this edition of them is there already."""
        if edition == self.edition:
            return
        random = torch.Generator(device=self.device).manual_seed(seed + 1 + edition)
        states, size = len(self.dataset) + len(self.apart), self.dataset.action_size
        self.actions = torch.empty((states, self.n, size), dtype=torch.float16, device=self.device)
        for start in range(0, states, _BLOCK):
            stop = min(start + _BLOCK, states)
            drawn = draw(self._states(start, stop), self.n, random)
            self.actions[start:stop] = drawn.clamp(-_LARGEST, _LARGEST)
        self.edition = edition

    def gather(self, rows: Tensor) -> Tensor:
        """The actions in s and then in s' of these rows, (2 batch, n, action)."""
        assert self.actions is not None
        places = torch.cat([rows, self.successors.index_select(0, rows)])
        return self.actions.index_select(0, places).to(torch.float32)

    def pick(self, rows: Tensor, successors: bool, n: int, generator: torch.Generator) -> Tensor:
        """N of the actions in s, or in s', of each of these rows, (batch, n, action).

        Where more are kept they are n in a row from a random one on, the first following the last. Since the kept ones
        are independent draws, these are n draws without replacement.
        """
        assert self.actions is not None
        places = self.successors.index_select(0, rows) if successors else rows
        if n == self.n:
            return self.actions.index_select(0, places).to(torch.float32)
        first = torch.randint(self.n, (len(rows), 1), generator=generator, device=self.device)
        within = (first + torch.arange(n, device=self.device)) % self.n  # (batch, n)
        flat = (places.unsqueeze(1) * self.n + within).flatten()
        size = self.actions.shape[-1]
        return self.actions.view(-1, size).index_select(0, flat).view(len(rows), n, size).to(torch.float32)

    def _states(self, start: int, stop: int) -> Tensor:
        rows = len(self.dataset)
        own = self.dataset.observations[start : min(stop, rows)]
        ends = self.dataset.next_observations[self.apart[max(start - rows, 0) : max(stop - rows, 0)]]
        observations = torch.from_numpy(np.concatenate([own, ends])).to(self.device)
        return observations if self.normalizer is None else self.normalizer.apply(observations)


def _ends(dataset: Dataset) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The rows whose successor is not the observation of the next row; looked for block by block."""
    found = []
    for rows in blocks(len(dataset)):
        stop = min(rows.stop, len(dataset) - 1)
        if rows.start < stop:
            here, there = dataset.next_observations[rows.start : stop], dataset.observations[rows.start + 1 : stop + 1]
            found.append(rows.start + np.flatnonzero((here != there).any(axis=1)))
    return np.concatenate([*found, [len(dataset) - 1]]).astype(np.int64)
