"""SAC: Soft Actor-Critic (Haarnoja et al. 2018), trained on logged data as MCQ's base and baseline.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    temperature   minimize -log_alpha * (log pi(a~|s) + H),  a~ ~ pi(.|s),  H = -(action dimensions)
    target        y = r + gamma (1 - d) [min_j Q'_j(s', a') - alpha log pi(a'|s')],  a' ~ pi(.|s')
    critics       minimize mean (Q_j(s, a) - y)^2
    actor         minimize mean alpha log pi(a~|s) - min_j Q_j(s, a~)
    targets       theta' <- tau theta + (1 - tau) theta'

Offline, its values run away on actions the data never shows: that is what MCQ mends.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import Draw, TanhGaussian, TanhGaussianActor
from mildly.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from mildly.algorithms.base import Metrics, require
from mildly.data.replay import Batch
from mildly.networks import polyak_update
from mildly.optimizer import minimize


@dataclass(frozen=True)
class SACConfig(ActorCriticConfig):
    """Hyperparameters of SAC; the defaults are those of the MCQ paper."""

    alpha_lr: float = 3e-4
    """Learning rate of the entropy temperature alpha; 0 keeps it as it starts."""
    initial_alpha: float = 1.0
    """Alpha at the start. A large one soon drives an actor away from what it has cloned."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation."""
    target_entropy: float | None = None
    """Entropy that alpha steers towards; minus the number of action dimensions if not given."""
    alpha_first: bool = True
    """Update alpha before the critics, as the official MCQ code does; otherwise after the actor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha_lr >= 0, "alpha_lr", "at least 0", self.alpha_lr)
        require(self.initial_alpha > 0, "initial_alpha", "positive", self.initial_alpha)
        require(self.log_std_min < self.log_std_max, "log_std_min", "below log_std_max", self.log_std_min)


class SAC(ActorCritic):
    """Soft Actor-Critic with two critics and a learned temperature."""

    Config = SACConfig
    config: SACConfig
    pi: TanhGaussianActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "small": {
            "hidden": (128, 128),
            "batch_size": 128,
            "actor_lr": 1e-3,
            "critic_lr": 1e-3,
            "alpha_lr": 1e-3,
        },
    }

    def build(self, seed: int) -> None:
        """Actor, critics and the temperature."""
        super().build(seed)
        c = self.config
        self.log_alpha = torch.full((), math.log(c.initial_alpha), device=self.device, requires_grad=True)
        self.alpha_optimizer = self.adam(self.log_alpha, lr=c.alpha_lr)
        self.target_entropy = -float(self.action_size) if c.target_entropy is None else c.target_entropy

    def build_actor(self) -> TanhGaussianActor:
        """A tanh-Gaussian actor."""
        c, sizes = self.config, (self.observation_size, self.action_size)
        return TanhGaussianActor(*sizes, c.hidden, c.log_std_min, c.log_std_max).to(self.device)

    def learn(self, batch: Batch) -> Metrics:
        """One step of temperature, critics, actor and targets; of critics and targets alone while the actor clones."""
        metrics = self.update_critics(batch) | self.clone(batch) if self.cloning else self.update_all(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    def update_all(self, batch: Batch) -> Metrics:
        """One step of temperature, critics and actor, which share one draw."""
        drawn = self.pi(batch.observations).draw(self.generator)
        metrics = self.update_temperature(drawn) if self.config.alpha_first else {}
        metrics |= self.update_critics(batch)
        metrics = self.update_actor(batch, drawn) | metrics
        if not self.config.alpha_first:
            metrics |= self.update_temperature(drawn)
        return metrics

    def update_temperature(self, drawn: Draw) -> Metrics:
        """Raise alpha where the policy's entropy is below its target, lower it where above."""
        log_prob = drawn.log_prob.detach()
        if self.config.alpha_lr:
            minimize(-(self.log_alpha * (log_prob + self.target_entropy)).mean(), self.alpha_optimizer)
        return {"alpha": self.log_alpha.detach().exp(), "entropy": -log_prob.mean()}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) [min_j Q'_j(s', a') - alpha log pi(a'|s')]."""
        following = self.pi(batch.next_observations).draw(self.generator)
        value: Tensor = self.target_critics(batch.next_observations, following.actions).amin(dim=0)
        value = value - self.log_alpha.exp() * following.log_prob
        return batch.rewards + self.config.gamma * (1 - batch.terminated) * value

    def update_actor(self, batch: Batch, drawn: Draw) -> Metrics:
        """One step of the actor up the soft value; the critics' weights receive no gradient."""
        loss, metrics = self.actor_loss(batch, drawn)
        minimize(loss, self.pi_optimizer)
        distance = (drawn.actions.detach() - batch.actions).square().sum(-1).mean()
        return metrics | {"loss_actor": loss.detach(), "policy_distance": distance}

    def actor_loss(self, batch: Batch, drawn: Draw) -> tuple[Tensor, Metrics]:
        """Mean of alpha log pi(a~|s) - min_j Q_j(s, a~)."""
        values: Tensor = self.critics(batch.observations, drawn.actions, freeze=True)  # (critics, batch)
        lowest = values.amin(dim=0)
        loss = (self.log_alpha.detach().exp() * drawn.log_prob - lowest).mean()
        return self.anchored(loss, batch), {"q_ood": values.detach().mean()}

    def cloning_loss(self, batch: Batch) -> Tensor:
        """The negative log-likelihood of the data's actions."""
        distribution: TanhGaussian = self.pi(batch.observations)
        return -distribution.log_prob(batch.actions).mean()

    def policy_actions(self, states: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """N draws a state; the actor runs once a state."""
        with torch.no_grad():
            distribution: TanhGaussian = self.pi(states)
        return distribution.sample(n, generator)
