"""IQL: Implicit Q-Learning (Kostrikov et al. 2022), which values no action that the data do not show.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    value     minimize mean |t - 1(u < 0)| u^2,  u = min_j Q'_j(s, a) - V(s),  t the expectile
    actor     minimize -mean min(exp(beta (min_j Q'_j(s, a) - V(s))), 100) log pi(a|s)
    critics   minimize mean (Q_j(s, a) - y)^2,  y = r + gamma (1 - d) V(s')
    targets   theta' <- tau theta + (1 - tau) theta'

Actor and critics see V after its step. With t = 1/2 V is the value of the data's policy; the nearer t comes to 1, the
nearer V comes to the value of the best action that the data show.

On the MuJoCo data sets rewards are multiplied by 1000 / (best - worst return of an episode), as the authors do. On the
Adroit ones they are not, beta is 0.5 and a tenth of the actor's hidden units is dropped in training. The actor's
learning rate falls along half a cosine over the steps of the method: a warm-up comes before it, at the full rate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mildly.actors import Gaussian, GaussianActor
from mildly.algorithms.advantage import (
    expectile_loss,
    exponential_weights,
    family_fields,
    require_log_std,
    weighted_bc_loss,
)
from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import DEFAULT, KEYS, SMALL, ActorCriticConfig, require
from mildly.algorithms.extras import ActorCriticExtras, Extras
from mildly.data.batches import Batch, Preprocessing
from mildly.data.dataset import Dataset
from mildly.networks import Critics, frozen_copy, mlp, orthogonal_, polyak_update, td_loss
from mildly.optimizer import decay_cosine, minimize

ACTION_LIMIT = 1 - 1e-5
"""The data's actions are clipped to plus or minus this."""
RETURN_RANGE = 1000.0
"""What the difference of the best and the worst episode's return is scaled to."""


@dataclass(frozen=True)
class IQLConfig(ActorCriticConfig):
    """Hyperparameters of IQL; the defaults are its authors' for the MuJoCo data sets, but for the scaled rewards."""

    hidden_dims: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers."""
    beta: float = 3.0
    """Weight of the advantage in the exponent; 0 would be behavior cloning."""
    expectile: float = 0.7
    """t in (0, 1): which of the data's actions V speaks for, 1/2 for their mean and near 1 for the best."""
    weight_limit: float = 100.0
    """The most that one action may weigh."""
    value_lr: float = 3e-4
    """Learning rate of V."""
    decay_steps: int | None = 1_000_000
    """Main steps in which the actor's learning rate falls to 0, along half a cosine; None keeps it as it is."""
    dropout: float = 0.0
    """Share of the actor's hidden units that is left out in each of its training steps."""
    log_std_min: float = -5.0
    """Lower bound of the policy's log standard deviation."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation."""
    reward_scaling: bool = False
    """Scale rewards so that the data's best and worst episode are 1000 apart, which makes beta fit any units."""
    extras: Extras = Extras()
    """Options beyond the method."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.expectile < 1, "expectile", "in (0, 1)", self.expectile)
        require(0 <= self.dropout < 1, "dropout", "in [0, 1)", self.dropout)
        require(self.decay_steps is None or self.decay_steps >= 1, "decay_steps", "at least 1", self.decay_steps)
        require_log_std(self.log_std_min, self.log_std_max)
        for name in ("beta", "weight_limit", "value_lr"):
            require(getattr(self, name) > 0, name, "positive", getattr(self, name))


class IQL(Algorithm):
    """A value function of the states, two critics that learn from it, and an actor that clones by advantage."""

    Config = IQLConfig
    config: IQLConfig
    extras: ActorCriticExtras
    actor: GaussianActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {**DEFAULT, "decay_steps": None, "reward_scaling": True},
        "paper": {},
        "small": {**SMALL, "value_lr": 1e-3, "decay_steps": None},
    }
    KEY_FIELDS = ("expectile", "beta", *KEYS)
    FAMILIES: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "mujoco": {"reward_scaling": True},
        "adroit": {"beta": 0.5, "dropout": 0.1},
    }
    """Config fields on a family of benchmark data sets."""
    DERIVED: ClassVar = Algorithm.DERIVED | {"decay_steps"}

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The authors' values on a family of data sets."""
        return family_fields(cls.FAMILIES, name)

    def build(self, seed: int) -> None:
        c, sizes = self.config, (self.observation_size, self.action_size)
        self.actor = GaussianActor(*sizes, c.hidden_dims, c.log_std_min, c.log_std_max)
        orthogonal_(self.actor)
        self.critics = Critics(*sizes, c.hidden_dims, layer_norm=c.layer_norm)
        orthogonal_(self.critics)
        self.value = mlp((self.observation_size, *c.hidden_dims, 1))
        orthogonal_(self.value)
        for network in (self.actor, self.critics, self.value):
            network.to(self.device)
        self.target_critics = frozen_copy(self.critics)
        self.actor_optimizer = self.adam(self.actor, lr=c.actor_lr)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)
        self.value_optimizer = self.adam(self.value, lr=c.value_lr)
        values = (self.critics, self.target_critics, self.value)
        self.extras = ActorCriticExtras(c.extras, c.gamma, self.actor, values)
        self.updates = 0
        self.decay_steps = c.decay_steps

    def begin_finetuning(self) -> None:
        """The actor's learning rate is the full one again, and stays: at the end of its decay it is 0."""
        super().begin_finetuning()
        self.decay_steps = None
        self.actor_optimizer.param_groups[0]["lr"] = self.config.actor_lr

    def preprocess(self, dataset: Dataset) -> Preprocessing:
        """Besides normalization, the scale of the rewards, and actions that a tanh can reach."""
        scale = reward_scale(dataset) if self.config.reward_scaling else 1.0
        if scale is None:
            known = bool(np.isfinite(dataset.known_returns()).any())
            why = "all episodes have the same return" if known else "no episode's return is known"
            self.notes += (f"{why}, so there is no range to scale the rewards by",)
        return dataclasses.replace(super().preprocess(dataset), reward_scale=scale or 1.0, action_limit=ACTION_LIMIT)

    def update(self, batch: Batch) -> Metrics:
        """One step of V, actor, critics and targets."""
        self.decay_learning_rate()
        min_q = self.min_target_q(batch)
        metrics = self.update_value(batch, min_q)
        metrics |= self.update_actor(batch, min_q)
        metrics |= self.update_critics(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    def warm_up(self, batch: Batch) -> Metrics:
        """The same, with an actor that clones all actions alike, at its full learning rate."""
        metrics = self.update_value(batch, self.min_target_q(batch))
        metrics |= self.clone(batch)
        metrics |= self.update_critics(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    @torch.no_grad()
    def min_target_q(self, batch: Batch) -> Tensor:
        """min_j Q'_j(s, a) of the data's actions."""
        values: Tensor = self.target_critics(batch.observations, batch.actions)
        return values.amin(dim=0)

    def update_value(self, batch: Batch, min_q: Tensor) -> Metrics:
        """One step of V towards an expectile of the data's values."""
        loss, metrics = self.value_loss(batch, min_q)
        minimize(loss, self.value_optimizer)
        return metrics

    def value_loss(self, batch: Batch, min_q: Tensor) -> tuple[Tensor, Metrics]:
        """Mean |t - 1(u < 0)| u^2 with u = min_j Q'_j(s, a) - V(s)."""
        values = self.state_values(batch.observations)
        loss = expectile_loss(min_q - values, self.config.expectile)
        return loss, {"loss_value": loss.detach(), "value": values.detach().mean()}

    def state_values(self, observations: Tensor) -> Tensor:
        """V(s), one number per state."""
        values: Tensor = self.value(observations)
        return values.squeeze(-1)

    def update_actor(self, batch: Batch, min_q: Tensor) -> Metrics:
        """One step of the actor towards the data's actions, the better ones first."""
        loss, metrics = self.actor_loss(batch, min_q)
        minimize(loss, self.actor_optimizer)
        return metrics

    def actor_loss(self, batch: Batch, min_q: Tensor) -> tuple[Tensor, Metrics]:
        """-mean min(exp(beta A), limit) log pi(a|s) with A = min_j Q'_j(s, a) - V(s)."""
        with torch.no_grad():
            advantage = min_q - self.state_values(batch.observations)
        weights = exponential_weights(advantage, self.config.beta, self.config.weight_limit)
        loss, metrics = weighted_bc_loss(batch, self.distribution(batch.observations), weights)
        return loss, metrics | {"advantage": advantage.mean()}

    def bc_losses(self, batch: Batch) -> Tensor:
        """The negative log-likelihoods of the data's actions."""
        return -self.distribution(batch.observations).log_prob(batch.actions)

    def distribution(self, observations: Tensor) -> Gaussian:
        """The actor's distribution in training, with dropout."""
        distribution: Gaussian = self.actor(observations, self.config.dropout, self.generator)
        return distribution

    def update_critics(self, batch: Batch) -> Metrics:
        """One step of both critics towards y."""
        loss, metrics = td_loss(self.critics, batch, self.td_target(batch))
        minimize(loss, self.critic_optimizer)
        return metrics | {"loss_critic": loss.detach()}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) V(s')."""
        next_values = self.state_values(batch.next_observations)
        return batch.rewards + self.config.gamma * (1 - batch.terminated) * next_values

    def decay_learning_rate(self) -> None:
        """The actor's learning rate on its way down half a cosine, one main step further."""
        self.updates += 1
        if self.decay_steps is not None:
            decay_cosine(self.actor_optimizer, self.config.actor_lr, (self.updates - 1) / self.decay_steps)


def reward_scale(dataset: Dataset) -> float | None:
    """What to multiply rewards with so that the best and the worst return are 1000 apart; None if they are equal."""
    returns = dataset.known_returns()
    spread = float(returns.max() - returns.min())
    return RETURN_RANGE / spread if spread > 0 else None
