"""TD3: Twin Delayed Deep Deterministic policy gradient (Fujimoto et al. 2018), the base of deterministic MCQ.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    target    y = r + gamma (1 - d) min_j Q'_j(s', a'),  a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)
    critics   minimize mean (Q_j(s, a) - y)^2
    actor     maximize mean Q_1(s, pi(s)), every `policy_delay`-th step
    targets   theta' <- tau theta + (1 - tau) theta', in the actor's steps, for the critics and the actor
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import DeterministicActor
from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import DEFAULT, KEYS, SMALL, ActorCriticConfig, require_at_least
from mildly.algorithms.extras import ActorCriticExtras, AnchoredExtras
from mildly.data.batches import Batch
from mildly.networks import Critics, frozen_copy, normal, polyak_update, td_loss
from mildly.optimizer import minimize

_ACTOR_METRICS = ("loss_actor", "q_ood", "policy_distance")


@dataclass(frozen=True)
class TD3Config(ActorCriticConfig):
    """Hyperparameters of TD3; the defaults are its authors'."""

    hidden_dims: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, which smooths the values; 0 for none."""
    noise_clip: float = 0.5
    """The noise on the target policy's actions is clipped to plus or minus this."""
    policy_delay: int = 2
    """Critic steps for each step of the actor and of the targets."""
    ensemble: int = 2
    """K: the number of critics, of which the lowest counts in the targets; the actor climbs the first. They cost in
    proportion."""
    extras: AnchoredExtras = AnchoredExtras()
    """Options beyond the method."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, policy_noise=0, noise_clip=0, policy_delay=1, ensemble=1)


class TD3(Algorithm):
    """A deterministic actor, K critics (two as published), delayed updates and smoothed targets."""

    Config = TD3Config
    config: TD3Config
    extras: ActorCriticExtras
    actor: DeterministicActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": DEFAULT,
        "paper": {},
        "small": SMALL,
    }
    KEY_FIELDS = KEYS

    def build(self, seed: int) -> None:
        c, sizes = self.config, (self.observation_size, self.action_size)
        self.actor = DeterministicActor(*sizes, c.hidden_dims).to(self.device)
        self.critics = Critics(*sizes, c.hidden_dims, c.ensemble, c.layer_norm).to(self.device)
        self.target_actor, self.target_critics = frozen_copy(self.actor), frozen_copy(self.critics)
        self.actor_optimizer = self.adam(self.actor, lr=c.actor_lr)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)
        self.extras = ActorCriticExtras(c.extras, c.gamma, self.actor, (self.critics, self.target_critics))
        self.updates = 0
        self.actor_metrics = torch.zeros(len(_ACTOR_METRICS), device=self.device)

    def update(self, batch: Batch) -> Metrics:
        """One step of the critics, and every `policy_delay`-th time of actor and targets."""
        self.updates += 1
        metrics = self.update_critics(batch)
        if self.updates % self.config.policy_delay == 0:
            self.update_actor(batch)
            self.update_targets()
        return self.last_actor_metrics() | metrics

    def warm_up(self, batch: Batch) -> Metrics:
        """As `update`, with an actor that clones in every step."""
        self.updates += 1
        metrics = self.update_critics(batch) | self.clone(batch)
        if self.updates % self.config.policy_delay == 0:
            self.update_targets()
        return metrics

    def update_critics(self, batch: Batch) -> Metrics:
        """One step of all critics towards y; they share no weights, so one backward pass serves all."""
        loss, metrics = td_loss(self.critics, batch, self.td_target(batch))
        minimize(loss, self.critic_optimizer)
        return metrics | {"loss_critic": loss.detach()}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) min_j Q'_j(s', a'), a' from the target actor with clipped noise."""
        c = self.config
        next_actions = self.target_actor(batch.next_observations)
        if c.policy_noise > 0:
            noise = normal(next_actions.shape, next_actions, self.generator) * c.policy_noise
            next_actions = (next_actions + noise.clamp(-c.noise_clip, c.noise_clip)).clamp(-1, 1)
        min_q: Tensor = self.target_critics(batch.next_observations, next_actions).amin(dim=0)
        return batch.rewards + c.gamma * (1 - batch.terminated) * min_q

    def update_actor(self, batch: Batch) -> None:
        """One step of the actor up the first critic, whose weights receive no gradient."""
        loss, metrics = self.actor_loss(batch)
        minimize(loss, self.actor_optimizer)
        self.actor_metrics = torch.stack([loss.detach(), *metrics.values()])

    def last_actor_metrics(self) -> Metrics:
        """Of the actor's last step, also in the steps between two of its own."""
        return dict(zip(_ACTOR_METRICS, self.actor_metrics.clone(), strict=True))

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """-mean Q_1(s, pi(s)), and the anchor if asked for."""
        actions = self.actor(batch.observations)
        values: Tensor = self.critics(batch.observations, actions, freeze=True)  # (critics, batch)
        distances = (actions - batch.actions).square().sum(-1)
        loss = -values[0].mean()
        if self.extras.anchored:
            loss = loss + self.extras.anchor(distances, batch)
        return loss, {"q_ood": values.detach().mean(), "policy_distance": distances.detach().mean()}

    def update_targets(self) -> None:
        """theta' <- tau theta + (1 - tau) theta'."""
        polyak_update(self.target_critics, self.critics, self.config.tau)
        polyak_update(self.target_actor, self.actor, self.config.tau)

    def bc_losses(self, batch: Batch) -> Tensor:
        """The squared distances to the data's actions."""
        distances: Tensor = (self.actor(batch.observations) - batch.actions).square().sum(-1)
        return distances
