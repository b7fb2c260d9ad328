"""Normalization of observations, computed from the data and stored with the policy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Dataset, blocks

_EPSILON = 1e-3


class Normalizer(NamedTuple):
    """x -> (x - mean) / std, per column."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device) -> Normalizer:
        """Mean and standard deviation of the data's observations; 0.001 is added to the latter."""
        observations = dataset.observations
        mean = sum(observations[rows].sum(axis=0, dtype=np.float64) for rows in blocks(len(dataset))) / len(dataset)
        squares = sum(((observations[rows] - mean) ** 2).sum(axis=0) for rows in blocks(len(dataset)))
        std = np.sqrt(squares / len(dataset)) + _EPSILON
        return cls(
            torch.tensor(mean, dtype=torch.float32, device=device),
            torch.tensor(std, dtype=torch.float32, device=device),
        )

    def apply(self, observations: Tensor) -> Tensor:
        """Normalized observations."""
        return (observations - self.mean.to(observations.device)) / self.std.to(observations.device)
