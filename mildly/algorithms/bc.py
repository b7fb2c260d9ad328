"""BC: behaviour cloning, the plainest baseline. It imitates the data and never looks at a reward.

The objective is one of

    likelihood    minimise -mean log pi(a|s) of a tanh-Gaussian actor
    mse           minimise mean |tanh(mean(s)) - a|^2
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mildly.algorithms.base import Algorithm, AlgorithmConfig, Metrics, minimise, require
from mildly.data.replay import Batch
from mildly.networks import TanhGaussianActor


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    """Hyperparameters of behaviour cloning; the network is MCQ's actor."""

    hidden: tuple[int, ...] = (400, 400)
    """Widths of the actor's hidden layers."""
    actor_lr: float = 3e-4
    """Learning rate."""
    objective: Literal["likelihood", "mse"] = "likelihood"
    """What to minimise: the negative log-likelihood of the data's actions, or the mean action's squared error."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(width >= 1 for width in self.hidden), "hidden", "positive widths", self.hidden)
        require(self.actor_lr > 0, "actor_lr", "positive", self.actor_lr)
        require(self.objective in ("likelihood", "mse"), "objective", "'likelihood' or 'mse'", self.objective)
        require(self.log_std_min < self.log_std_max, "log_std_min", "below log_std_max", self.log_std_min)


class BC(Algorithm):
    """Behaviour cloning."""

    Config = BCConfig
    config: BCConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "small": {"hidden": (128, 128), "batch_size": 128, "actor_lr": 1e-3},
    }

    def build(self, seed: int) -> None:
        """The actor and its optimiser."""
        c = self.config
        self.pi = TanhGaussianActor(self.observation_size, self.action_size, c.hidden, c.log_std_min, c.log_std_max).to(
            self.device
        )
        self.pi_optimiser = self.adam(self.pi, lr=c.actor_lr)

    def update(self, batch: Batch) -> Metrics:
        """One step towards the data's actions."""
        loss, error = self.actor_loss(batch)
        minimise(loss, self.pi_optimiser)
        return {"loss_actor": loss.detach(), "policy_distance": error.detach()}

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The objective, and the squared distance of the mean action to the data's."""
        distribution = self.pi(batch.observations)
        error = (torch.tanh(distribution.mean) - batch.actions).square().sum(-1).mean()
        if self.config.objective == "mse":
            return error, error
        return -distribution.log_prob(batch.actions).mean(), error

    def actor(self) -> TanhGaussianActor:
        """The tanh-Gaussian actor."""
        return self.pi
