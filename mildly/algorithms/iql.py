"""IQL: Implicit Q-Learning (Kostrikov et al. 2022), which values no action that the data do not show.

One step on a batch (s, a, r, s', d), d marking terminal states only:

    value     minimize mean |t - 1(u < 0)| u^2,  u = min_j Q'_j(s, a) - V(s),  t the expectile
    actor     minimize -mean min(exp(beta (min_j Q'_j(s, a) - V(s))), 100) log pi(a|s)
    critics   minimize mean (Q_j(s, a) - y)^2,  y = r + gamma (1 - d) V(s')
    targets   theta' <- tau theta + (1 - tau) theta'

Actor and critics see V after its step. With t = 1/2 V is the value of the data's policy; the nearer t comes to 1, the
nearer V comes to the value of the best action that the data show.

On the MuJoCo data sets rewards are multiplied by 1000 / (best - worst return of an episode), as the authors do. On the
Adroit ones they are not, beta is 0.5 and a tenth of the actor's hidden units is dropped in training.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mildly.actors import Gaussian, GaussianActor
from mildly.algorithms.advantage import AdvantageConfig, AdvantageWeighted, expectile_loss, exponential_weights
from mildly.algorithms.base import Metrics, require
from mildly.data.dataset import Dataset
from mildly.data.replay import Batch
from mildly.errors import MildlyError
from mildly.networks import Critics, mlp, orthogonal_, polyak_update
from mildly.optimizer import minimize

ACTION_LIMIT = 1 - 1e-5
"""The data's actions are clipped to plus or minus this."""
RETURN_RANGE = 1000.0
"""What the difference of the best and the worst episode's return is scaled to."""


@dataclass(frozen=True)
class IQLConfig(AdvantageConfig):
    """Hyperparameters of IQL; the defaults are its authors' for the MuJoCo data sets, but for the scaled rewards."""

    beta: float = 3.0
    """Weight of the advantage in the exponent; 0 would be behavior cloning."""
    expectile: float = 0.7
    """t in (0, 1): which of the data's actions V speaks for, 1/2 for their mean and near 1 for the best."""
    weight_limit: float = 100.0
    """The most that one action may weigh."""
    value_lr: float = 3e-4
    """Learning rate of V."""
    decay_steps: int | None = 1_000_000
    """Steps in which the actor's learning rate falls to 0, along half a cosine; None keeps it as it is."""
    dropout: float = 0.0
    """Share of the actor's hidden units that is left out in each of its training steps."""
    reward_scaling: bool = False
    """Scale rewards so that the data's best and worst episode are 1000 apart, which makes beta fit any units."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.expectile < 1, "expectile", "in (0, 1)", self.expectile)
        require(0 <= self.dropout < 1, "dropout", "in [0, 1)", self.dropout)
        require(self.decay_steps is None or self.decay_steps >= 1, "decay_steps", "at least 1", self.decay_steps)
        for name in ("weight_limit", "value_lr"):
            require(getattr(self, name) > 0, name, "positive", getattr(self, name))


class IQL(AdvantageWeighted):
    """A value function of the states, two critics that learn from it, and an actor that clones by advantage."""

    Config = IQLConfig
    config: IQLConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "small": {
            "hidden": (128, 128),
            "batch_size": 128,
            "actor_lr": 1e-3,
            "critic_lr": 1e-3,
            "value_lr": 1e-3,
            "decay_steps": None,
        },
    }
    FAMILIES: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "mujoco": {"reward_scaling": True},
        "adroit": {"beta": 0.5, "dropout": 0.1},
    }

    def build(self, seed: int) -> None:
        """Actor and critics, and V."""
        super().build(seed)
        self.value = mlp((self.observation_size, *self.config.hidden, 1))
        orthogonal_(self.value)
        self.value.to(self.device)
        self.value_optimizer = self.adam(self.value, lr=self.config.value_lr)
        self.reward_scale = 1.0

    def build_actor(self) -> GaussianActor:
        """A Gaussian actor, its log standard deviation clipped."""
        c = self.config
        actor = GaussianActor(self.observation_size, self.action_size, c.hidden, c.log_std_min, c.log_std_max)
        orthogonal_(actor)
        return actor.to(self.device)

    def build_critics(self) -> Critics:
        """Two critics with orthogonal layers."""
        critics = super().build_critics()
        orthogonal_(critics)
        return critics

    def prepare(self, dataset: Dataset) -> None:
        """Besides what is learned from returns, the scale of the rewards."""
        if self.config.reward_scaling:
            self.reward_scale = reward_scale(dataset)
            rewards = np.asarray(dataset.rewards) * np.float32(self.reward_scale)
            dataset = dataclasses.replace(dataset, rewards=rewards)
        super().prepare(dataset)

    def start_at(self, level: Tensor) -> None:
        """V begins where the critics do."""
        super().start_at(level)
        list(self.value.parameters())[-1].data.fill_(level)

    def update(self, batch: Batch) -> Metrics:
        """One step on the batch with its rewards scaled and its actions clipped."""
        rewards, actions = batch.rewards * self.reward_scale, batch.actions.clamp(-ACTION_LIMIT, ACTION_LIMIT)
        return super().update(batch._replace(rewards=rewards, actions=actions))

    def learn(self, batch: Batch) -> Metrics:
        """One step of V, actor, critics and targets."""
        self._decay()
        lowest = self.lowest_value(batch)
        metrics = self.update_value(batch, lowest)
        metrics |= self.clone(batch) if self.cloning else self.update_actor(batch, lowest)
        metrics |= self.update_critics(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    @torch.no_grad()
    def lowest_value(self, batch: Batch) -> Tensor:
        """min_j Q'_j(s, a) of the data's actions."""
        values: Tensor = self.target_critics(batch.observations, batch.actions)
        return values.amin(dim=0)

    def update_value(self, batch: Batch, lowest: Tensor) -> Metrics:
        """One step of V towards an expectile of the data's values."""
        loss, metrics = self.value_loss(batch, lowest)
        minimize(loss, self.value_optimizer)
        return metrics

    def value_loss(self, batch: Batch, lowest: Tensor) -> tuple[Tensor, Metrics]:
        """Mean |t - 1(u < 0)| u^2 with u = min_j Q'_j(s, a) - V(s)."""
        values = self.state_values(batch.observations)
        loss = expectile_loss(lowest - values, self.config.expectile)
        return loss, {"loss_value": loss.detach(), "value": values.detach().mean()}

    def state_values(self, states: Tensor) -> Tensor:
        """V(s), one number a state."""
        values: Tensor = self.value(states)
        return values.squeeze(-1)

    def update_actor(self, batch: Batch, lowest: Tensor) -> Metrics:
        """One step of the actor towards the data's actions, the better ones first."""
        loss, metrics = self.actor_loss(batch, lowest)
        minimize(loss, self.pi_optimizer)
        return metrics

    def actor_loss(self, batch: Batch, lowest: Tensor) -> tuple[Tensor, Metrics]:
        """-mean min(exp(beta A), limit) log pi(a|s) with A = min_j Q'_j(s, a) - V(s)."""
        with torch.no_grad():
            advantage = lowest - self.state_values(batch.observations)
        weights = exponential_weights(advantage, self.config.beta, self.config.weight_limit)
        loss, metrics = self.weighted_loss(batch, self.distribution(batch.observations), weights)
        return loss, metrics | {"advantage": advantage.mean()}

    def distribution(self, states: Tensor) -> Gaussian:
        """The actor's distribution in training, with dropout."""
        distribution: Gaussian = self.pi(states, self.config.dropout, self.generator)
        return distribution

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) V(s')."""
        following = self.state_values(batch.next_observations)
        return batch.rewards + self.config.gamma * (1 - batch.terminated) * following

    def _decay(self) -> None:
        """The actor's learning rate on its way down half a cosine."""
        c = self.config
        if c.decay_steps is not None:
            done = min((self.updates - 1) / c.decay_steps, 1.0)
            self.pi_optimizer.param_groups[0]["lr"] = c.actor_lr * 0.5 * (1 + math.cos(math.pi * done))


def reward_scale(dataset: Dataset) -> float:
    """What to multiply rewards with so that the returns of the best and the worst episode are 1000 apart."""
    returns = dataset.episode_returns()
    spread = float(returns.max() - returns.min())
    if spread == 0:
        raise MildlyError(
            f"{dataset.meta.name}: all episodes have the return {returns[0]:.6g}, so there is no range to scale the "
            "rewards by. Train with reward_scaling off."
        )
    return RETURN_RANGE / spread
