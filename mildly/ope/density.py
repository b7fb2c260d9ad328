"""The density of the data's actions, mu(a|s), which no log tells: estimated by the behavior model `flow`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch

from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import AlgorithmConfig
from mildly.behavior import BehaviorConfig, BehaviorLearner
from mildly.behavior.flow import Flow
from mildly.data.batches import Batch
from mildly.data.dataset import Array

_BLOCK = 4096  # states at a time


@dataclass(frozen=True)
class DensityConfig(AlgorithmConfig):
    """Hyperparameters of the density."""

    hidden_dims: tuple[int, ...] = Flow.HIDDEN_DIMS
    """Widths of the flow's hidden layers."""
    normalize_observations: bool = True
    """Normalize observations to zero mean and unit variance."""


class Density(Algorithm):
    """A flow that learns alone."""

    Config = DensityConfig
    config: DensityConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    def build(self, seed: int) -> None:
        given = BehaviorConfig(model="flow", hidden_dims=self.config.hidden_dims)
        sizes = self.observation_size, self.action_size
        self.behavior = BehaviorLearner(given, *sizes, self.device, self.generator)

    def update(self, batch: Batch) -> Metrics:
        """One step towards the data's actions."""
        return self.behavior.update(batch)

    def log_prob(self, observations: Array, actions: Array) -> Array:
        """The log density (rows,) of actions (rows, a)."""
        model, normalizer = self.behavior.model, self.preprocessing.normalizer
        assert isinstance(model, Flow)
        found = []
        for start in range(0, len(observations), _BLOCK):
            rows = slice(start, start + _BLOCK)
            states = self._on_device(np.array(observations[rows]))
            states = states if normalizer is None else normalizer.apply(states)
            found.append(model.log_prob(states, torch.tensor(actions[rows], device=self.device)).cpu().numpy())
        return np.concatenate(found).astype(np.float64)
