"""Actors that clone the data's actions, each by how much better it is than what the policy does: IQL and AWAC.

    actor   minimize -mean w(s, a) log pi(a|s),  w growing with the advantage A(s, a)

The actor is never asked for an action that the data do not show. It is a Gaussian around tanh(mean(s)) that is not
squashed; w carries no gradient.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import Gaussian, GaussianActor
from mildly.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from mildly.algorithms.base import Metrics, require
from mildly.data.replay import Batch

_FAMILIES = {
    "mujoco": r"(halfcheetah|hopper|walker2d)-(random|medium|medium-replay|medium-expert|expert)",
    "adroit": r"(pen|door|relocate|hammer)-(human|cloned|expert)",
}
_EDITION = r"(-v\d+)?(-(re)?collected)?"
"""Which version of a data set, and whether made anew: no part of what the hyperparameters depend on."""


@dataclass(frozen=True)
class AdvantageConfig(ActorCriticConfig):
    """What actors that clone by advantage have in common."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    beta: float = 1.0
    """How much the advantage counts in an action's weight."""
    log_std_min: float = -5.0
    """Lower bound of the policy's log standard deviation."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.beta > 0, "beta", "positive", self.beta)
        require(self.log_std_min < self.log_std_max, "log_std_min", "below log_std_max", self.log_std_min)
        weight = self.cloning_weight
        require(weight == 0, "cloning_weight", "0 where the actor's own loss clones already", weight)


class AdvantageWeighted(ActorCritic):
    """Two critics and a Gaussian actor that is trained by weighted likelihood."""

    Config = AdvantageConfig
    config: AdvantageConfig
    pi: GaussianActor
    FAMILIES: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Config fields on a family of benchmark data sets (`mujoco`, `adroit`), where they differ from the defaults."""

    def distribution(self, states: Tensor) -> Gaussian:
        """The actor's distribution as it is trained."""
        distribution: Gaussian = self.pi(states)
        return distribution

    def weighted_loss(self, batch: Batch, distribution: Gaussian, weights: Tensor) -> tuple[Tensor, Metrics]:
        """-mean w log pi(a|s). The effective share is the part of the batch that the weights let speak."""
        loss = -(weights * distribution.log_prob(batch.actions)).mean()
        distance = (distribution.mean.detach() - batch.actions).square().sum(-1).mean()
        share = weights.mean().square() / weights.square().mean()
        return loss, {"loss_actor": loss.detach(), "policy_distance": distance, "effective_share": share}

    def cloning_loss(self, batch: Batch) -> Tensor:
        """The negative log-likelihood of the data's actions."""
        return -self.distribution(batch.observations).log_prob(batch.actions).mean()

    def policy_actions(self, states: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """N draws a state, which end at the bounds; the actor runs once a state."""
        with torch.no_grad():
            distribution: Gaussian = self.pi(states)
        return distribution.sample(n, generator).clamp(-1, 1)

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The authors' values on a family of data sets, where the preset does not say otherwise."""
        found = cls.FAMILIES.get(family(name) or "", {})
        return {field: value for field, value in found.items() if field not in cls.PRESETS[preset]}


def family(name: str) -> str | None:
    """The family that a data set of the benchmarks belongs to, if it is one."""
    return next((known for known, names in _FAMILIES.items() if re.fullmatch(names + _EDITION, name)), None)


def expectile_loss(difference: Tensor, expectile: float) -> Tensor:
    """Mean |expectile - 1(u < 0)| u^2: above one half, falling short of the target costs more than exceeding it."""
    weight = torch.where(difference < 0, 1 - expectile, expectile)
    return (weight * difference.square()).mean()


def exponential_weights(advantage: Tensor, beta: float, limit: float) -> Tensor:
    """min(exp(beta A), limit)."""
    return (beta * advantage).exp().clamp(max=limit)


def batch_weights(advantage: Tensor, beta: float) -> Tensor:
    """The batch's softmax of A / beta, times the batch's size: weights with a mean of 1."""
    return len(advantage) * torch.softmax(advantage / beta, dim=0)
