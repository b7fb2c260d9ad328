"""BCQ: Batch-Constrained deep Q-learning (Fujimoto et al., ICML 2019), which acts only as its data's policy might.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    behavior   train G, a CVAE, on (s, a); draws G(s) decode latents z ~ N(0, I), clipped to +-0.5
    target     y = r + gamma (1 - d) max_k [lam min_j Q'_j(s', a_k) + (1 - lam) max_j Q'_j(s', a_k)],
               a_k = xi'(s', G(s')) for k = 1..n
    critics    minimize mean (Q_j(s, a) - y)^2
    actor      maximize mean Q_1(s, xi(s, G(s)))
    targets    theta' <- tau theta + (1 - tau) theta', for the critics and xi

with a perturbation xi(s, a) = clip(a + Phi tanh(f(s, a)), -1, 1) that can improve an action a little. The policy draws
100 actions xi(s, G(s)) and takes the one with the highest Q_1.

With `behavior.cache` G is trained before all else, and its n draws in each state of the data are kept: the target takes
those in s', the actor one of those in s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import Actor
from mildly.algorithms.base import Metrics
from mildly.algorithms.config import DEFAULT, KEYS, SMALL, require
from mildly.algorithms.support import KEPT_DRAWS, SupportConfig, SupportConstrained
from mildly.candidates import BestOfBehavior, Perturbation, best_of_target
from mildly.data.batches import Batch
from mildly.networks import Critics, frozen_copy, polyak_update, td_loss
from mildly.optimizer import minimize


@dataclass(frozen=True)
class BCQConfig(SupportConfig):
    """Hyperparameters of BCQ; the defaults are its authors'."""

    batch_size: int = 100
    """Transitions in a minibatch."""
    hidden_dims: tuple[int, ...] = (400, 300)
    """Widths of the hidden layers of perturbation and critics."""
    actor_lr: float = 1e-3
    """Learning rate of the perturbation."""
    critic_lr: float = 1e-3
    """Learning rate of the critics."""
    reach: float = 0.05
    """Phi: how far the perturbation may move an action in each dimension. 0 leaves the CVAE's actions as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.reach <= 2, "reach", "in [0, 2]", self.reach)


class BCQ(SupportConstrained):
    """A CVAE, a perturbation of its actions, and two critics that choose among them."""

    Config = BCQConfig
    config: BCQConfig
    actor: Perturbation
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {**DEFAULT, "behavior.hidden_dims": (256, 256)},
        "paper": {},
        "fast": {**DEFAULT, "behavior.hidden_dims": (256, 256), **KEPT_DRAWS},
        "small": {**SMALL, "behavior.hidden_dims": (128, 128)},
    }
    KEY_FIELDS = ("reach", "num_actions", "candidates", *KEYS)

    def build(self, seed: int) -> None:
        super().build(seed)
        c, sizes = self.config, (self.observation_size, self.action_size)
        self.actor = Perturbation(*sizes, c.hidden_dims, c.reach).to(self.device)
        self.critics = Critics(*sizes, c.hidden_dims, layer_norm=c.layer_norm).to(self.device)
        self.target_actor, self.target_critics = frozen_copy(self.actor), frozen_copy(self.critics)
        self.actor_optimizer = self.adam(self.actor, lr=c.actor_lr)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)

    def acting(self) -> Actor:
        """The best of the perturbed draws."""
        return BestOfBehavior.holding(self.cvae, self.actor, self.critics, self.config.candidates)

    def update(self, batch: Batch) -> Metrics:
        """One step of everything, in the order of the equations."""
        metrics = self.update_behavior(batch)
        metrics |= self.update_critics(batch)
        metrics |= self.update_actor(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        polyak_update(self.target_actor, self.actor, self.config.tau)
        return metrics

    def update_critics(self, batch: Batch) -> Metrics:
        """One step of both critics towards y; they share no weights, so one backward pass serves both."""
        loss, metrics = td_loss(self.critics, batch, self.td_target(batch))
        minimize(loss, self.critic_optimizer)
        return metrics | {"loss_critic": loss.detach()}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y, by the best of n perturbed draws in s'."""
        c, states = self.config, batch.next_observations
        drawn = self.behavior.actions_in(states, batch.rows, c.num_actions, successors=True)  # (batch, n, a)
        perturbed = self.target_actor(states.unsqueeze(1).expand(-1, c.num_actions, -1), drawn)
        return best_of_target(batch, self.target_critics(states, perturbed), c.gamma, c.min_weight)

    def update_actor(self, batch: Batch) -> Metrics:
        """One step of the perturbation up the first critic, whose weights receive no gradient."""
        drawn = self.behavior.actions_in(batch.observations, batch.rows, 1, successors=False)[:, 0]
        perturbed = self.actor(batch.observations, drawn)
        values = self.critics(batch.observations, perturbed, freeze=True)  # (critics, batch)
        loss = -values[0].mean()
        minimize(loss, self.actor_optimizer)
        distance = (perturbed.detach() - batch.actions).square().sum(-1).mean()
        return {"loss_actor": loss.detach(), "q_ood": values.detach().mean(), "policy_distance": distance}
