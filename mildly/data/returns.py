"""Returns: what the data's own policy collected from each transition on."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Array, Dataset


class Returns(NamedTuple):
    """One discounted return per transition, and how much of it the data show.

    With k rewards to go until the log is cut off, the sum of those rewards misses what would have come after. It is
    completed by assuming that the rest goes on as well on average, which divides it by 1 - gamma^k. That is also its
    `weight`: an estimate from the last few steps before a time-out counts little. Where an episode terminates there is
    nothing more to come, and the return is exact with weight 1.
    """

    value: Tensor
    weight: Tensor
    ended: Tensor
    """1 where the episode terminates, else 0."""

    @classmethod
    def of(cls, dataset: Dataset, gamma: float, device: torch.device) -> Returns:
        """The returns of all transitions."""
        ends = np.array([segment.stop for segment in dataset.segments()])
        ended = np.repeat(np.asarray(dataset.terminated)[ends - 1], np.diff(ends, prepend=0))
        columns = *discounted_returns(dataset, gamma), ended
        return cls(*(torch.from_numpy(column.astype(np.float32)).to(device) for column in columns))

    def level(self) -> Tensor:
        """Their weighted mean."""
        return (self.value * self.weight).sum() / self.weight.sum()

    def of_pieces(self, pieces: Array) -> Tensor:
        """For each row the mean return of its piece of the data; `pieces` numbers them."""
        piece, zeros = torch.from_numpy(pieces).to(self.value.device), self.value.new_zeros(int(pieces.max()) + 1)
        weight = zeros.index_add(0, piece, self.weight)
        return (zeros.index_add(0, piece, self.value * self.weight) / weight)[piece]

    def spread(self, pieces: Array) -> Tensor:
        """The standard deviation between pieces of their mean returns."""
        off = self.of_pieces(pieces) - self.level()
        return ((self.weight * off.square()).sum() / self.weight.sum()).sqrt()

    def rise(self, dataset: Dataset, steps: int) -> Tensor:
        """For each row, how much higher the return still to come is so many steps later, or at the end of the log.

        After an episode has terminated, nothing is to come.
        """
        lengths = [segment.stop - segment.start for segment in dataset.segments()]
        last = torch.from_numpy(np.repeat(np.cumsum(lengths) - 1, lengths)).to(self.value.device)
        then = torch.arange(len(last), device=last.device) + steps
        later = self.value[then.minimum(last)]
        return torch.where((then > last) & (self.ended > 0), 0.0, later) - self.value

    def mixed(
        self, rewards: Tensor, terminated: Tensor, mix: float, *, terminated_only: bool = False
    ) -> dict[str, Tensor]:
        """Rewards and ends r', d' that mix the return G into every target y = r + gamma (1 - d) V.

            r' + gamma (1 - d') V = (1 - k) y + k G,    r' = (1 - k) r + k G,    d' = 1 - (1 - k) (1 - d)

        with k the mix times the return's weight: as if the episode ended with probability k and paid the rest at once.
        With `terminated_only` k is 0 in episodes that were cut off.
        """
        k = mix * (self.ended if terminated_only else self.weight)
        return {"rewards": torch.lerp(rewards, self.value, k), "terminated": 1 - (1 - k) * (1 - terminated)}


def pieces(dataset: Dataset, longest: int) -> Array:
    """The number of the piece that each row belongs to: an episode, or equal parts of one that is longer than that."""
    numbers, first = np.empty(len(dataset), dtype=np.int64), 0
    for episode in dataset.episodes():
        length = episode.stop - episode.start
        parts = -(-length // longest)
        numbers[episode] = first + np.arange(length) * parts // length
        first += parts
    return numbers


def discounted_returns(dataset: Dataset, gamma: float) -> tuple[Array, Array]:
    """Values and weights as above, in double precision."""
    value = np.empty(len(dataset))
    weight = np.ones(len(dataset))
    rewards, terminated = np.asarray(dataset.rewards, dtype=np.float64), np.asarray(dataset.terminated)
    for episode in dataset.segments():  # what follows a gap is as unknown as what follows a time limit
        total = 0.0
        for row in range(episode.stop - 1, episode.start - 1, -1):
            total = rewards[row] + gamma * total
            value[row] = total
        if not terminated[episode.stop - 1]:
            to_go = np.arange(episode.stop - episode.start, 0, -1)
            weight[episode] = 1 - gamma**to_go
    return value / weight, weight
