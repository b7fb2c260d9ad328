"""What the methods share that stay where the data's policy would act: BCQ, BEAR and UWAC, and in part CDC.

A CVAE of the data's actions is trained beside the rest, in every step, or before it (`behavior.steps`). Then its draws
in every state of the data can be kept (`behavior.cache`), so that a step neither trains it nor decodes. Targets and
actions are the best of candidates (`mildly/candidates.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from mildly.algorithms.base import Algorithm, Metrics, Phase, behavior_phases
from mildly.algorithms.config import ActorCriticConfig, require
from mildly.behavior import BehaviorConfig, BehaviorLearner
from mildly.behavior.cvae import CVAE
from mildly.candidates import MOST_DRAWS
from mildly.data.batches import Batch, Sampler
from mildly.data.dataset import Dataset
from mildly.networks import Critics

KEPT_DRAWS: dict[str, Any] = {"behavior.steps": 20_000, "behavior.cache": True}
"""What the preset `fast` adds to `default`."""


@dataclass(frozen=True)
class CandidateConfig(ActorCriticConfig):
    """Hyperparameters of methods that choose the best of candidates."""

    num_actions: int = 10
    """n: actions drawn in the next state, of which the best is the target's."""
    candidates: int = 100
    """Actions drawn in a state when the policy acts, of which it takes the best."""
    min_weight: float = 0.75
    """Weight of the lowest critic where several are one number, as in the target; the highest has the rest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_actions", "candidates"):
            require(1 <= getattr(self, name) <= MOST_DRAWS, name, f"in 1 to {MOST_DRAWS:,}", getattr(self, name))
        require(0 <= self.min_weight <= 1, "min_weight", "in [0, 1]", self.min_weight)


@dataclass(frozen=True)
class SupportConfig(CandidateConfig):
    """Hyperparameters of methods that stay where the data's policy would act."""

    behavior: BehaviorConfig = BehaviorConfig(hidden_dims=(750, 750), lr=1e-3, kl_weight=0.25)
    """The model of the data's policy; the weight is BCQ's in sums over dimensions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model = self.behavior.model
        require(model == "cvae", "behavior.model", "'cvae' for this algorithm, which needs its latents", model)


class SupportConstrained(Algorithm):
    """A learner with a CVAE of the data's policy."""

    config: SupportConfig
    critics: Critics
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **Algorithm.PRESET_NOTES,
        "fast": "as default, with the CVAE trained first and its draws kept",
    }
    PRESET_STEPS: ClassVar[Mapping[str, int]] = {**Algorithm.PRESET_STEPS, "fast": Algorithm.PRESET_STEPS["default"]}
    DERIVED: ClassVar = Algorithm.DERIVED | {"joint"}

    def build(self, seed: int) -> None:
        sizes, behavior = (self.observation_size, self.action_size), self.config.behavior
        self.behavior = BehaviorLearner(behavior, *sizes, self.device, self.generator)
        self.joint = behavior.steps is None  # whether every step trains it

    @property
    def cvae(self) -> CVAE:
        """The model of the data's policy."""
        assert isinstance(self.behavior.model, CVAE)
        return self.behavior.model

    def draws_per_state(self) -> int:
        """How many draws of the CVAE are kept in a state, if any are."""
        return self.config.num_actions

    def batches(self, dataset: Dataset) -> Sampler:
        """Transitions; the CVAE keeps draws for their states, if asked for."""
        sampler = super().batches(dataset)
        kept, normalizer = self.select(dataset), self.preprocessing.normalizer
        self.behavior.keep_actions(kept, self.draws_per_state(), self.device, normalizer)
        return sampler

    def update_behavior(self, batch: Batch) -> Metrics:
        """The beginning of a step: one of the CVAE, unless it has been trained before."""
        self.behavior.begin_step()
        return self.behavior.update(batch) if self.joint else {}

    def phases(self) -> list[Phase]:
        """The CVAE first, if it has steps of its own."""
        return behavior_phases(self.behavior)

    def begin_finetuning(self) -> None:
        """The CVAE learns on in every step: the data's policy is no longer the one that it was trained on."""
        super().begin_finetuning()
        self.joint = True
        self.behavior.cache = None
