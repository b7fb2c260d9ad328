"""What the methods share that stay where the data's policy would act: BCQ, BEAR and UWAC, and in part CDC.

A CVAE of the data's actions is trained beside the rest, in every step, or before it (`behavior.steps`). Targets and
actions are the best of candidates (`mildly/candidates.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from mildly.algorithms.base import Algorithm, Metrics, Phase, behavior_phases
from mildly.algorithms.config import ActorCriticConfig, require
from mildly.behavior import BehaviorConfig, BehaviorLearner
from mildly.behavior.cvae import CVAE
from mildly.candidates import MOST_DRAWS
from mildly.data.batches import Batch
from mildly.networks import Critics


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
        require(not self.behavior.cache, "behavior.cache", "False for this algorithm, which keeps no actions", True)


class SupportConstrained(Algorithm):
    """A learner with a CVAE of the data's policy."""

    config: SupportConfig
    critics: Critics
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

    def update_behavior(self, batch: Batch) -> Metrics:
        """One step of the CVAE, unless it has been trained before."""
        return self.behavior.update(batch) if self.joint else {}

    def phases(self) -> list[Phase]:
        """The CVAE first, if it has steps of its own."""
        return behavior_phases(self.behavior)

    def begin_finetuning(self) -> None:
        """The CVAE learns on in every step: the data's policy is no longer the one that it was trained on."""
        super().begin_finetuning()
        self.joint = True
