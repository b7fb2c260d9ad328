"""BC: behavior cloning, the plainest baseline. It imitates the data and never looks at a reward.

With the objective

    likelihood    minimize -mean log pi(a|s) of a tanh-Gaussian actor, with a held 0.05 away from its bounds
    mse           minimize mean |pi(s) - a|^2 of a deterministic actor
    normal        minimize -mean log N(a; mean(s), std(s)), the mean over dimensions too, of a Gaussian actor that is
                  not squashed, with soft bounds of its log standard deviation that are learned as well; it acts with
                  the mean, clipped to [-1, 1]

on all of the data, or with `best_episodes` on those episodes alone that brought the highest returns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mildly.actors import BOUND_MARGIN, Actor, DeterministicActor, SoftGaussianActor, TanhGaussianActor
from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import DEFAULT, SMALL, AlgorithmConfig, require, require_widths
from mildly.data.batches import Batch
from mildly.data.dataset import Dataset
from mildly.data.select import best_episodes
from mildly.optimizer import minimize


@dataclass(frozen=True)
class BCConfig(AlgorithmConfig):
    """Hyperparameters of behavior cloning; by default the network is MCQ's actor."""

    hidden_dims: tuple[int, ...] = (400, 400)
    """Widths of the actor's hidden layers."""
    actor_lr: float = 3e-4
    """Learning rate."""
    objective: Literal["likelihood", "mse", "normal"] = "likelihood"
    """What to minimize: the negative log-likelihood of the data's actions under a tanh-Gaussian or an un-squashed
    normal distribution, or the squared error of a deterministic actor."""
    log_std_min: float = -20.0
    """Lower bound of the policy's log standard deviation; where it is learned (normal), the one it starts from."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation, likewise."""
    best_episodes: float | None = None
    """Clone this share of the episodes only, in (0, 1]: those with the highest returns. All if not given."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_widths("hidden_dims", self.hidden_dims)
        require(self.actor_lr > 0, "actor_lr", "positive", self.actor_lr)
        known = self.objective in ("likelihood", "mse", "normal")
        require(known, "objective", "'likelihood', 'mse' or 'normal'", self.objective)
        require(self.log_std_min < self.log_std_max, "log_std_min", "below log_std_max", self.log_std_min)
        share = self.best_episodes
        require(share is None or 0 < share <= 1, "best_episodes", "in (0, 1] or None", share)


class BC(Algorithm):
    """Behavior cloning."""

    Config = BCConfig
    config: BCConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": DEFAULT,
        "paper": {},
        "mse": {"hidden_dims": (256, 256), "objective": "mse", "normalize_observations": True},
        "polixir": {
            "hidden_dims": (256, 256),
            "actor_lr": 1e-3,
            "objective": "normal",
            "log_std_min": -10.0,
            "log_std_max": 1.0,
        },
        "small": {name: value for name, value in SMALL.items() if name != "critic_lr"},
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **Algorithm.PRESET_NOTES,
        "paper": "with the network of MCQ's actor",
        "mse": "a deterministic policy on normalized observations",
        "polixir": "a Gaussian that is not squashed, as in NeoRL",
    }
    KEY_FIELDS = (
        "objective",
        "best_episodes",
        "hidden_dims",
        "batch_size",
        "actor_lr",
        "normalize_observations",
    )

    OFFLINE_ONLY = (
        "it imitates, and would imitate itself without ever looking at a reward. It can go on with further logs "
        "(--dataset)"
    )

    def build(self, seed: int) -> None:
        self.actor = self.build_actor().to(self.device)
        self.actor_optimizer = self.adam(self.actor, lr=self.config.actor_lr)

    def build_actor(self) -> Actor:
        """The objective's kind of actor."""
        c, sizes = self.config, (self.observation_size, self.action_size)
        if c.objective == "mse":
            return DeterministicActor(*sizes, c.hidden_dims)
        kind = SoftGaussianActor if c.objective == "normal" else TanhGaussianActor
        return kind(*sizes, c.hidden_dims, c.log_std_min, c.log_std_max)

    def select(self, dataset: Dataset) -> Dataset:
        """The best episodes, or all."""
        share = self.config.best_episodes
        return dataset if share is None else best_episodes(dataset, share)

    def update(self, batch: Batch) -> Metrics:
        """One step towards the data's actions."""
        loss, distance = self.actor_loss(batch)
        minimize(loss, self.actor_optimizer)
        return {"loss_actor": loss.detach(), "policy_distance": distance.detach()}

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """The objective, and the squared distance of the action that the policy would take to the data's."""
        output = self.actor(batch.observations)
        if self.config.objective == "mse":
            distance = _distance(output, batch)
            return distance, distance
        if self.config.objective == "normal":
            normal: Tensor = -output.log_prob(batch.actions).mean() / self.action_size
            return normal, _distance(output.mean.clamp(-1, 1), batch)
        loss: Tensor = -output.log_prob(batch.actions, BOUND_MARGIN).mean()
        return loss, _distance(torch.tanh(output.mean), batch)


def _distance(actions: Tensor, batch: Batch) -> Tensor:
    """Mean squared distance to the data's actions."""
    return (actions - batch.actions).square().sum(-1).mean()
