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

    @classmethod
    def of(cls, dataset: Dataset, gamma: float, device: torch.device) -> Returns:
        """The returns of all transitions."""
        columns = discounted_returns(dataset, gamma)
        return cls(*(torch.from_numpy(column.astype(np.float32)).to(device) for column in columns))

    def level(self) -> Tensor:
        """Their weighted mean."""
        return (self.value * self.weight).sum() / self.weight.sum()

    def mixed(self, rewards: Tensor, terminated: Tensor, mix: float) -> dict[str, Tensor]:
        """Rewards and ends r', d' that mix the return G into every target y = r + gamma (1 - d) V.

            r' + gamma (1 - d') V = (1 - k) y + k G,    r' = (1 - k) r + k G,    d' = 1 - (1 - k) (1 - d)

        with k the mix times the return's weight: as if the episode ended with probability k and paid the rest at once.
        """
        k = mix * self.weight
        return {"rewards": torch.lerp(rewards, self.value, k), "terminated": 1 - (1 - k) * (1 - terminated)}


def discounted_returns(dataset: Dataset, gamma: float) -> tuple[Array, Array]:
    """Values and weights as above, in double precision."""
    value = np.empty(len(dataset))
    weight = np.ones(len(dataset))
    rewards, terminated = np.asarray(dataset.rewards, dtype=np.float64), np.asarray(dataset.terminated)
    for episode in dataset.episodes():
        total = 0.0
        for row in range(episode.stop - 1, episode.start - 1, -1):
            total = rewards[row] + gamma * total
            value[row] = total
        if not terminated[episode.stop - 1]:
            to_go = np.arange(episode.stop - episode.start, 0, -1)
            weight[episode] = 1 - gamma**to_go
    return value / weight, weight
