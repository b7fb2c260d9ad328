"""A dynamics model trained on its own, to be looked at and to be used by several runs: `mildly model fit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from mildly.algorithms.base import Algorithm, Metrics, Savable
from mildly.data.batches import Batch, Sampler
from mildly.data.dataset import Dataset
from mildly.dynamics import DynamicsConfig, DynamicsLearner
from mildly.dynamics.config import PRESETS
from mildly.dynamics.ensemble import FOLDER


class FitDynamics(Algorithm):
    """The phase in which MOPO fits its model, as a training of its own."""

    Config = DynamicsConfig
    config: DynamicsConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = PRESETS
    PRESET_STEPS: ClassVar[Mapping[str, int]] = {
        name: DynamicsConfig(**fields).max_steps for name, fields in PRESETS.items()
    }
    ACTS = False
    KEY_FIELDS = ("hidden_dims", "max_steps", "scale_targets", "test_episodes")

    def build(self, seed: int) -> None:
        sizes = self.observation_size, self.action_size
        self.dynamics = DynamicsLearner(self.config, *sizes, self.device)

    def batches(self, dataset: Dataset) -> Sampler:
        """A minibatch for each member."""
        return self.dynamics.start(dataset, self.device)

    def update(self, batch: Batch) -> Metrics:
        """One step of all members."""
        return self.dynamics.update(batch)

    def finished(self) -> bool:
        """Whether no member gets better any more."""
        return self.dynamics.finished()

    def products(self) -> Mapping[str, Savable]:
        """The model."""
        return {FOLDER: self.dynamics.ensemble()}
