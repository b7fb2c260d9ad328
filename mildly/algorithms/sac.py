"""SAC: Soft Actor-Critic (Haarnoja et al. 2018), trained on logged data as MCQ's base and baseline.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    temperature   minimise -log_alpha * (log pi(a~|s) + H),  a~ ~ pi(.|s),  H = -(action dimensions)
    target        y = r + gamma (1 - d) [min_j Q'_j(s', a') - alpha log pi(a'|s')],  a' ~ pi(.|s')
    critics       minimise mean (Q_j(s, a) - y)^2
    actor         minimise mean alpha log pi(a~|s) - min_j Q_j(s, a~)
    targets       theta' <- tau theta + (1 - tau) theta'

Offline, its values run away on actions the data never shows: that is what MCQ mends.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.algorithms.base import Algorithm, AlgorithmConfig, Metrics, minimise, require
from mildly.data.replay import Batch
from mildly.networks import Critics, Draw, TanhGaussianActor, polyak_update


@dataclass(frozen=True)
class SACConfig(AlgorithmConfig):
    """Hyperparameters of SAC; the defaults are those of the MCQ paper."""

    hidden: tuple[int, ...] = (400, 400)
    """Widths of the hidden layers of actor and critics."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """Rate at which the target critics follow the critics."""
    actor_lr: float = 3e-4
    """Learning rate of the actor."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    alpha_lr: float = 3e-4
    """Learning rate of the entropy temperature alpha."""
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
        require(all(width >= 1 for width in self.hidden), "hidden", "positive widths", self.hidden)
        require(0 <= self.gamma < 1, "gamma", "in [0, 1)", self.gamma)
        require(0 < self.tau <= 1, "tau", "in (0, 1]", self.tau)
        for name in ("actor_lr", "critic_lr", "alpha_lr"):
            require(getattr(self, name) > 0, name, "positive", getattr(self, name))
        require(self.log_std_min < self.log_std_max, "log_std_min", "below log_std_max", self.log_std_min)


class SAC(Algorithm):
    """Soft Actor-Critic with two critics and a learnt temperature."""

    Config = SACConfig
    config: SACConfig
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
        """Actor, two critics with targets, temperature, and their optimisers."""
        c, sizes = self.config, (self.observation_size, self.action_size)
        self.pi = TanhGaussianActor(*sizes, c.hidden, c.log_std_min, c.log_std_max).to(self.device)
        self.critics = Critics(*sizes, c.hidden).to(self.device)
        self.target_critics = copy.deepcopy(self.critics).requires_grad_(False)
        self.log_alpha = torch.zeros((), device=self.device, requires_grad=True)
        self.pi_optimiser = self.adam(self.pi, lr=c.actor_lr)
        self.critic_optimiser = self.adam(self.critics, lr=c.critic_lr)
        self.alpha_optimiser = self.adam(self.log_alpha, lr=c.alpha_lr)
        self.target_entropy = -float(self.action_size) if c.target_entropy is None else c.target_entropy

    def update(self, batch: Batch) -> Metrics:
        """One step of temperature, critics, actor and targets."""
        drawn = self.pi(batch.observations).draw(self.generator)
        metrics: Metrics = {}
        if self.config.alpha_first:
            metrics |= self.update_temperature(drawn)
        metrics |= self.update_critics(batch)
        metrics = self.update_actor(batch, drawn) | metrics
        if not self.config.alpha_first:
            metrics |= self.update_temperature(drawn)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    def update_temperature(self, drawn: Draw) -> Metrics:
        """Raise alpha where the policy's entropy is below its target, lower it where above."""
        log_prob = drawn.log_prob.detach()
        minimise(-(self.log_alpha * (log_prob + self.target_entropy)).mean(), self.alpha_optimiser)
        return {"alpha": self.log_alpha.detach().exp(), "entropy": -log_prob.mean()}

    def update_critics(self, batch: Batch) -> Metrics:
        """One step of both critics; they share no weights, so one backward pass serves both."""
        loss, metrics = self.critic_loss(batch)
        minimise(loss, self.critic_optimiser)
        return metrics | {"loss_critic": loss.detach()}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """The temporal-difference error, summed over critics."""
        target = self.td_target(batch)
        values = self.critics(batch.observations, batch.actions)  # (critics, batch)
        loss = (values - target).square().mean(dim=-1).sum()
        return loss, {
            "loss_td": loss.detach(),
            "q_data": values.detach().mean(),
            "q_target": target.mean(),
        }

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
        minimise(loss, self.pi_optimiser)
        distance = (drawn.actions.detach() - batch.actions).square().sum(-1).mean()
        return metrics | {"loss_actor": loss.detach(), "policy_distance": distance}

    def actor_loss(self, batch: Batch, drawn: Draw) -> tuple[Tensor, Metrics]:
        """Mean of alpha log pi(a~|s) - min_j Q_j(s, a~)."""
        values: Tensor = self.critics(batch.observations, drawn.actions, freeze=True)  # (critics, batch)
        loss = (self.log_alpha.detach().exp() * drawn.log_prob - values.amin(dim=0)).mean()
        return loss, {"q_ood": values.detach().mean()}

    def actor(self) -> TanhGaussianActor:
        """The tanh-Gaussian actor."""
        return self.pi
