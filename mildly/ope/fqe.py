"""FQE: fitted Q evaluation (Le et al. 2019), the value of a given policy learned from others' transitions.

It is TD learning with nothing to maximize. K critics learn side by side, each from its own bootstrap sample of the
episodes (Hao et al. 2021), so that their spread tells how sure the estimate is. One step on a batch (s, a, r, s', d), d
marking terminal states only:

    target    y_k = r + gamma (1 - d) mean_n Q'_k(s', a'_n),   a'_n ~ pi(.|s'), held within what rewards allow
    critics   minimize mean w_k (Q_k(s, a) - y_k)^2,           w_k: how often critic k drew the row's episode
    targets   theta' <- tau theta + (1 - tau) theta'

and the estimate of critic k is the mean of Q'_k(s_0, a_n), a_n ~ pi(.|s_0), over the starts of its own episodes.

The policy's actions in s' never change. They are computed once, before the first step: one in each state of a
deterministic policy, n draws of a stochastic one. Values are learned in units of the data's own discounted returns, and
begin at their mean, from where a level that differs must travel one reward at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import AlgorithmConfig, require, require_at_least, require_widths
from mildly.data.batches import Batch, Preprocessing, Sampler
from mildly.data.dataset import Array, Dataset, blocks
from mildly.data.normalize import Normalizer
from mildly.data.returns import discounted_returns
from mildly.networks import Critics, frozen_copy, polyak_update
from mildly.ope.judged import Judged
from mildly.optimizer import minimize
from mildly.state import stream_seed

_BLOCK = 8192  # states valued at a time
_WATCHED = 64  # starts whose value is a metric of every step


@dataclass(frozen=True)
class FQEConfig(AlgorithmConfig):
    """Hyperparameters of fitted Q evaluation."""

    hidden_dims: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.05
    """Rate at which the target critics follow the critics."""
    critic_lr: float = 1e-3
    """Learning rate."""
    ensemble: int = 5
    """Critics, each with a bootstrap sample of the episodes."""
    layer_norm: bool = False
    """Normalize the critics' hidden layers."""
    normalize_observations: bool = True
    """Normalize observations to zero mean and unit variance."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_widths("hidden_dims", self.hidden_dims)
        require(0 <= self.gamma < 1, "gamma", "in [0, 1)", self.gamma)
        require(0 < self.tau <= 1, "tau", "in (0, 1]", self.tau)
        require(self.critic_lr > 0, "critic_lr", "positive", self.critic_lr)
        require_at_least(self, ensemble=2)


class FQE(Algorithm):
    """Critics of a policy that does not learn."""

    Config = FQEConfig
    config: FQEConfig
    DERIVED: ClassVar = Algorithm.DERIVED | {"judged", "seed", "scale", "bounds", "starts"}

    def __init__(
        self, config: FQEConfig, judged: Judged, observation_size: int, action_size: int, **options: Any
    ) -> None:
        self.judged, self.seed = judged, int(options.get("seed", 0))
        self.scale, self.bounds = 1.0, (0.0, 0.0)
        self.starts = _Starts(*(torch.empty(0) for _ in range(3)))
        super().__init__(config, observation_size, action_size, **options)

    def build(self, seed: int) -> None:
        c = self.config
        sizes = self.observation_size, self.action_size
        self.critics = Critics(*sizes, c.hidden_dims, c.ensemble, c.layer_norm).to(self.device)
        self.target_critics = frozen_copy(self.critics)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)

    def update(self, batch: Batch) -> Metrics:
        """One step of the critics, and of their targets."""
        target = self.td_target(batch)
        loss, values = self.critic_loss(batch, target)
        minimize(loss, self.critic_optimizer)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return {
            "loss_critic": loss.detach(),
            "q_data": values.mean() / self.scale,
            "v_start": self.watched_value().mean() / self.scale,
        }

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y_k, (critics, batch)."""
        next_actions = self.prepared["next_actions"][batch.rows]  # (batch, n, a)
        following = self.target_critics(batch.next_observations, next_actions).mean(dim=-1)
        target: Tensor = batch.rewards + self.config.gamma * (1 - batch.terminated) * following
        return target.clamp(*self.bounds)

    def critic_loss(self, batch: Batch, target: Tensor) -> tuple[Tensor, Tensor]:
        """The weighted squared error, averaged over the batch and summed over critics; and the values."""
        values: Tensor = self.critics(batch.observations, batch.actions)  # (critics, batch)
        weights = self.prepared["draws_of_episode"][batch.rows].T
        return (weights * (values - target).square()).mean(dim=-1).sum(), values.detach()

    @torch.no_grad()
    def watched_value(self) -> Tensor:
        """The estimate from some of the starts, which tells when it stands still: (critics,)."""
        observations, actions = self.starts.observations[:_WATCHED], self.starts.actions[:_WATCHED]
        values: Tensor = self.target_critics(observations, actions).flatten(1).mean(dim=-1)
        return values

    def estimates(self) -> Array:
        """What each critic believes that the policy earns from the data's starts, discounted: (critics,)."""
        values = self._values_at(self.starts.observations, self.starts.actions)
        weights = self.starts.weights.cpu().numpy()  # (critics, episodes)
        return np.asarray((values * weights).sum(axis=1) / weights.sum(axis=1))

    def values(self, observations: Array, actions: Array) -> Array:
        """Q'_k, in the data's own units, averaged over actions: (critics, rows) of (rows, o) and (rows, n, a)."""
        found = []
        for start in range(0, len(observations), _BLOCK):
            rows = slice(start, start + _BLOCK)
            states = self._normalized(self._on_device(np.array(observations[rows])))
            found.append(self._values_at(states, self._on_device(actions[rows])))
        return np.concatenate(found, axis=1)

    @torch.no_grad()
    def _values_at(self, states: Tensor, actions: Tensor) -> Array:
        values: Array = self.target_critics(states, actions).mean(dim=-1).double().cpu().numpy()
        return values / self.scale

    # What follows from the data

    def batches(self, dataset: Dataset) -> Sampler:
        """Transitions; the unit of values, what they can be, and where they begin."""
        value, weight = discounted_returns(dataset, self.config.gamma)
        size = float(np.sqrt(np.average(value**2, weights=weight)))
        self.scale = 1 / size if size > 0 else 1.0
        self.bounds = possible_values(dataset, self.config.gamma, self.scale)
        sampler = super().batches(dataset)
        rows = np.array([episode.start for episode in dataset.episodes()])
        observations = np.asarray(dataset.observations[rows])
        actions = self.judged.actions(observations, stream_seed(self.seed, "starts"))
        self.starts = _Starts(
            self._normalized(self._on_device(observations)),
            self._on_device(actions),
            self._on_device(self._episode_draws(len(rows))),
        )
        for critics in (self.critics, self.target_critics):
            critics.biases[-1].data.fill_(float(np.average(value, weights=weight)) * self.scale)
        return sampler

    def preprocess(self, dataset: Dataset) -> Preprocessing:
        """Observations are normalized if asked for, and rewards are in units of the data's returns."""
        normalizer = Normalizer.of(dataset, self.device) if self.config.normalize_observations else None
        return Preprocessing(normalizer, reward_scale=self.scale)

    def prepare(self, data: Dataset) -> Mapping[str, Array]:
        """The policy's actions in every successor, and how often each critic drew the row's episode."""
        lengths = np.diff(data.episode_ends(), prepend=0)
        draws = self._episode_draws(len(lengths))  # (critics, episodes)
        return {
            "next_actions": self.judged.actions(data.next_observations, stream_seed(self.seed, "next actions")),
            "draws_of_episode": np.repeat(draws, lengths, axis=1).T,
        }

    def _episode_draws(self, episodes: int) -> Array:
        """How often each critic draws each episode, with replacement, (critics, episodes)."""
        random = np.random.default_rng(stream_seed(self.seed, "episodes"))
        drawn = random.multinomial(episodes, np.full(episodes, 1 / episodes), size=self.config.ensemble)
        return drawn.astype(np.float32)

    def _normalized(self, states: Tensor) -> Tensor:
        normalizer = self.preprocessing.normalizer
        return states if normalizer is None else normalizer.apply(states)


class _Starts(NamedTuple):
    """The starts of all episodes: normalized observations, the policy's actions there, and the critics' weights."""

    observations: Tensor
    actions: Tensor
    weights: Tensor


def possible_values(dataset: Dataset, gamma: float, scale: float = 1.0) -> tuple[float, float]:
    """The lowest and the highest sum of discounted rewards that the data's rewards allow, times a scale."""
    ends = [float(end) for rows in blocks(len(dataset)) for end in _range(np.asarray(dataset.rewards[rows]))]
    low, high = min(ends), max(ends)
    if dataset.terminated.any():  # an end may come at once
        return scale * min(low, low / (1 - gamma)), scale * max(high, high / (1 - gamma))
    return scale * low / (1 - gamma), scale * high / (1 - gamma)


def _range(values: Array) -> tuple[float, float]:
    return values.min(), values.max()
