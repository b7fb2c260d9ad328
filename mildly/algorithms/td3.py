"""TD3: Twin Delayed Deep Deterministic policy gradient (Fujimoto et al. 2018), the base of deterministic MCQ.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    target    y = r + gamma (1 - d) min_j Q'_j(s', a'),  a' = clip(pi'(s') + clip(noise, -c, c), -1, 1)
    critics   minimize mean (Q_j(s, a) - y)^2
    actor     maximize mean Q_1(s, pi(s)), every `policy_delay`-th step
    targets   theta' <- tau theta + (1 - tau) theta', in the actor's steps, for the critics and the actor
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import DeterministicActor
from mildly.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from mildly.algorithms.base import Metrics, require
from mildly.data.replay import Batch
from mildly.networks import normal, polyak_update
from mildly.optimizer import minimize

_ACTOR_METRICS = ("loss_actor", "q_ood", "policy_distance")


@dataclass(frozen=True)
class TD3Config(ActorCriticConfig):
    """Hyperparameters of TD3; the defaults are its authors'."""

    hidden: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of actor and critics."""
    policy_noise: float = 0.2
    """Standard deviation of the noise on the target policy's actions, which smooths the values; 0 for none."""
    noise_clip: float = 0.5
    """That noise is clipped to plus or minus this."""
    policy_delay: int = 2
    """Critic steps for each step of the actor and of the targets."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.policy_noise >= 0, "policy_noise", "at least 0", self.policy_noise)
        require(self.noise_clip >= 0, "noise_clip", "at least 0", self.noise_clip)
        require(self.policy_delay >= 1, "policy_delay", "at least 1", self.policy_delay)


class TD3(ActorCritic):
    """A deterministic actor, two critics, delayed updates and smoothed targets."""

    Config = TD3Config
    config: TD3Config
    pi: DeterministicActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "small": {"hidden": (128, 128), "batch_size": 128, "actor_lr": 1e-3, "critic_lr": 1e-3},
    }

    def build(self, seed: int) -> None:
        """Actor and critics, and the actor's target."""
        super().build(seed)
        self.target_pi = copy.deepcopy(self.pi).requires_grad_(False)
        self.actor_metrics = torch.zeros(len(_ACTOR_METRICS), device=self.device)
        """Of the actor's last step, shown in the steps between two of its own."""

    def build_actor(self) -> DeterministicActor:
        """A deterministic actor."""
        return DeterministicActor(self.observation_size, self.action_size, self.config.hidden).to(self.device)

    def learn(self, batch: Batch) -> Metrics:
        """One step of the critics, and every `policy_delay`-th time of actor and targets."""
        metrics = self.update_critics(batch)
        if self.cloning:
            metrics |= self.clone(batch)
        elif self.updates % self.config.policy_delay == 0:
            self.update_actor(batch)
        if self.updates % self.config.policy_delay == 0:
            polyak_update(self.target_critics, self.critics, self.config.tau)
            polyak_update(self.target_pi, self.pi, self.config.tau)
        return metrics if self.cloning else dict(zip(_ACTOR_METRICS, self.actor_metrics.clone(), strict=True)) | metrics

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) min_j Q'_j(s', a'), a' from the target actor with clipped noise."""
        c = self.config
        following = self.target_pi(batch.next_observations)
        if c.policy_noise > 0:
            noise = normal(following.shape, following, self.generator) * c.policy_noise
            following = (following + noise.clamp(-c.noise_clip, c.noise_clip)).clamp(-1, 1)
        value: Tensor = self.target_critics(batch.next_observations, following).amin(dim=0)
        return batch.rewards + c.gamma * (1 - batch.terminated) * value

    def update_actor(self, batch: Batch) -> None:
        """One step of the actor up the first critic, whose weights receive no gradient."""
        loss, metrics = self.actor_loss(batch)
        minimize(loss, self.pi_optimizer)
        self.actor_metrics = torch.stack([loss.detach(), *metrics.values()])

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """-mean Q_1(s, pi(s))."""
        actions = self.pi(batch.observations)
        values: Tensor = self.critics(batch.observations, actions, freeze=True)  # (critics, batch)
        distance = (actions.detach() - batch.actions).square().sum(-1).mean()
        loss = self.anchored(-values[0].mean(), batch)
        return loss, {"q_ood": values.detach().mean(), "policy_distance": distance}

    def cloning_loss(self, batch: Batch) -> Tensor:
        """The squared distance to the data's actions."""
        distances: Tensor = (self.pi(batch.observations) - batch.actions).square().sum(-1)
        return distances.mean()

    def policy_actions(self, states: Tensor, n: int, generator: torch.Generator) -> Tensor:
        """The one action a state, (states, 1, a)."""
        with torch.no_grad():
            actions: Tensor = self.pi(states)
        return actions.unsqueeze(1)
