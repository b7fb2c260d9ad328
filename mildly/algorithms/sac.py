"""SAC: Soft Actor-Critic (Haarnoja et al. 2018), trained on logged data as MCQ's base and baseline.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    temperature   minimize -log_alpha * (log pi(a~|s) + H),  a~ ~ pi(.|s),  H = -(action dimensions)
    target        y = r + gamma (1 - d) [min_j Q'_j(s', a') - alpha log pi(a'|s')],  a' ~ pi(.|s')
    critics       minimize mean (Q_j(s, a) - y)^2
    actor         minimize mean alpha log pi(a~|s) - min_j Q_j(s, a~)
    targets       theta' <- tau theta + (1 - tau) theta'

The minimum is over K critics, two as published. Offline, its values run away on actions the data never shows: that is
what MCQ mends. Many critics mend it too, at their price (SAC-N, An et al. 2021).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import BOUND_MARGIN, RSample, TanhGaussian, TanhGaussianActor
from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import DEFAULT, KEYS, SMALL, ActorCriticConfig, require
from mildly.algorithms.extras import ActorCriticExtras, AnchoredExtras
from mildly.data.batches import Batch
from mildly.networks import Critics, frozen_copy, polyak_update, td_loss
from mildly.optimizer import minimize


@dataclass(frozen=True)
class SACConfig(ActorCriticConfig):
    """Hyperparameters of SAC; the defaults are those of the MCQ paper."""

    alpha_lr: float = 3e-4
    """Learning rate of the entropy temperature alpha; 0 keeps it as it starts."""
    initial_alpha: float = 1.0
    """Entropy temperature alpha at the start. A large one soon drives an actor away from what it has cloned."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation."""
    target_entropy: float | None = None
    """Entropy that alpha steers towards; minus the number of action dimensions if not given."""
    alpha_first: bool = True
    """Update alpha before the critics, as the official MCQ code does; otherwise after the actor."""
    alpha_max: float | None = None
    """The most that alpha may be; no limit if not given."""
    actor_dropout: float = 0.0
    """Share of the actor's hidden units that are dropped while training. It acts with all of them."""
    ensemble: int = 2
    """K: the number of critics, of which the lowest counts. More of them trust less what few data say, and cost in
    proportion."""
    extras: AnchoredExtras = AnchoredExtras()
    """Options beyond the method."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.alpha_lr >= 0, "alpha_lr", "at least 0", self.alpha_lr)
        require(self.initial_alpha > 0, "initial_alpha", "positive", self.initial_alpha)
        require(self.log_std_min < self.log_std_max, "log_std_min", "below log_std_max", self.log_std_min)
        require(self.alpha_max is None or self.alpha_max > 0, "alpha_max", "positive", self.alpha_max)
        require(0 <= self.actor_dropout < 1, "actor_dropout", "in [0, 1)", self.actor_dropout)
        require(self.ensemble >= 1, "ensemble", "at least 1", self.ensemble)


class SAC(Algorithm):
    """Soft Actor-Critic with K critics, two as published, and a learned temperature."""

    Config = SACConfig
    config: SACConfig
    extras: ActorCriticExtras
    actor: TanhGaussianActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": DEFAULT,
        "paper": {},
        "small": {**SMALL, "alpha_lr": 1e-3},
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **Algorithm.PRESET_NOTES,
        "paper": "as a baseline of the MCQ paper, with its networks",
    }
    KEY_FIELDS = KEYS
    CLONING_MARGIN: ClassVar[float] = BOUND_MARGIN

    def build(self, seed: int) -> None:
        c, sizes = self.config, (self.observation_size, self.action_size)
        self.actor = TanhGaussianActor(*sizes, c.hidden_dims, c.log_std_min, c.log_std_max).to(self.device)
        self.critics = self.make_critics().to(self.device)
        self.target_critics = frozen_copy(self.critics)
        self.log_alpha = torch.full((), math.log(c.initial_alpha), device=self.device, requires_grad=True)
        self.actor_optimizer = self.adam(self.actor, lr=c.actor_lr)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)
        self.alpha_optimizer = self.adam(self.log_alpha, lr=c.alpha_lr)
        self.extras = ActorCriticExtras(c.extras, c.gamma, self.actor, (self.critics, self.target_critics))

    def make_critics(self) -> Critics:
        """The critics, untrained."""
        c = self.config
        return Critics(self.observation_size, self.action_size, c.hidden_dims, c.ensemble, c.layer_norm)

    def update(self, batch: Batch) -> Metrics:
        """One step of temperature, critics, actor and targets."""
        c = self.config
        pi = self.distribution(batch.observations)
        drawn = pi.rsample(self.generator)
        metrics = self.update_temperature(drawn) if c.alpha_first else {}
        metrics |= self.update_critics(batch)
        metrics = self.update_actor(batch, drawn, pi) | metrics
        metrics |= {} if c.alpha_first else self.update_temperature(drawn)
        polyak_update(self.target_critics, self.critics, c.tau)
        return metrics

    def warm_up(self, batch: Batch) -> Metrics:
        """One step of the critics and targets, with an actor that clones."""
        metrics = self.update_critics(batch) | self.clone(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    def distribution(self, observations: Tensor, generator: torch.Generator | None = None) -> TanhGaussian:
        """The policy in training, with dropout if asked for; its draws are the policy's, or a given generator's."""
        pi: TanhGaussian = self.actor(observations, self.config.actor_dropout, generator or self.generator)
        return pi

    @property
    def alpha(self) -> Tensor:
        """The temperature, without gradients."""
        alpha, most = self.log_alpha.detach().exp(), self.config.alpha_max
        return alpha if most is None else alpha.clamp(max=most)

    def update_temperature(self, drawn: RSample) -> Metrics:
        """Raise alpha where the policy's entropy is below its target, lower it where above."""
        log_prob, target = drawn.log_prob.detach(), self.config.target_entropy
        entropy = -float(self.action_size) if target is None else target
        if self.config.alpha_lr:
            minimize(-(self.log_alpha * (log_prob + entropy)).mean(), self.alpha_optimizer)
        return {"alpha": self.alpha, "entropy": -log_prob.mean()}

    def update_critics(self, batch: Batch) -> Metrics:
        """One step of all critics towards y; they share no weights, so one backward pass serves all."""
        loss, metrics = self.critic_loss(batch)
        minimize(loss, self.critic_optimizer)
        return metrics | {"loss_critic": loss.detach()}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """The TD error, summed over critics."""
        return td_loss(self.critics, batch, self.td_target(batch))

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) [min_j Q'_j(s', a') - alpha log pi(a'|s')]."""
        next_actions, log_prob = self.distribution(batch.next_observations).rsample(self.generator)
        min_q: Tensor = self.target_critics(batch.next_observations, next_actions).amin(dim=0)
        value: Tensor = min_q - self.alpha * log_prob
        return batch.rewards + self.config.gamma * (1 - batch.terminated) * value

    def update_actor(self, batch: Batch, drawn: RSample, pi: TanhGaussian | None = None) -> Metrics:
        """One step of the actor up the soft value; the critics' weights receive no gradient."""
        loss, metrics = self.actor_loss(batch, drawn, pi)
        minimize(loss, self.actor_optimizer)
        return metrics

    def actor_loss(self, batch: Batch, drawn: RSample, pi: TanhGaussian | None = None) -> tuple[Tensor, Metrics]:
        """Mean of alpha log pi(a~|s) - min_j Q_j(s, a~), and the anchor if asked for.

        `pi` is what the actions were drawn from, so that the anchor need not run the actor again.
        """
        values: Tensor = self.critics(batch.observations, drawn.actions, freeze=True)  # (critics, batch)
        min_q = values.amin(dim=0)
        loss = (self.alpha * drawn.log_prob - min_q).mean()
        if self.extras.anchored:
            loss = loss + self.extras.anchor(self.bc_losses(batch, pi), batch)
        distance = (drawn.actions.detach() - batch.actions).square().sum(-1).mean()
        return loss, {"q_ood": values.detach().mean(), "loss_actor": loss.detach(), "policy_distance": distance}

    def bc_losses(self, batch: Batch, pi: TanhGaussian | None = None) -> Tensor:
        """The negative log-likelihoods of the data's actions; those at a bound are taken to be near it."""
        pi = self.distribution(batch.observations) if pi is None else pi
        return -pi.log_prob(batch.actions, self.CLONING_MARGIN)
