"""Normalization of observations, computed from the data and stored with the policy."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Dataset, blocks

_EPSILON = 1e-3
_ROUNDING = 1e-6  # of the mean: a column that varies by no more is constant


class Normalizer(NamedTuple):
    """x -> (x - mean) / std, per column. A constant column has an infinite std: whatever comes, the networks see 0."""

    mean: Tensor
    std: Tensor

    @classmethod
    def of(cls, dataset: Dataset, device: torch.device) -> Normalizer:
        """Mean and standard deviation of the data's observations; 0.001 is added to the latter.

        What a constant column would do to an action cannot be learned, so that it carries no weight.
        """
        observations = dataset.observations
        mean = sum(observations[rows].sum(axis=0, dtype=np.float64) for rows in blocks(len(dataset))) / len(dataset)
        squares = sum(((observations[rows] - mean) ** 2).sum(axis=0) for rows in blocks(len(dataset)))
        std = np.sqrt(squares / len(dataset))
        std = np.where(std <= _ROUNDING * np.abs(mean), np.inf, std + _EPSILON)
        return cls(
            torch.tensor(mean, dtype=torch.float32, device=device),
            torch.tensor(std, dtype=torch.float32, device=device),
        )

    def apply(self, observations: Tensor) -> Tensor:
        """Normalized observations."""
        return (observations - self.mean.to(observations.device)) / self.std.to(observations.device)
