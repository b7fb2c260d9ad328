"""CDC: Continuous Doubly Constrained batch RL (Fakoor et al., NeurIPS 2021), which ties actor and critics to the data.

One step on a batch (s, a, r, s', d), with Q = nu min_j Q_j + (1 - nu) max_j Q_j of the critics, nu being `min_weight`:

    actor     minimize mean -Q(s, a~) - lam log pi(a|s),  a~ ~ pi(.|s)
    target    y = r + gamma (1 - d) max_k Q'(s', a_k),  a_1..a_n ~ pi(.|s'), the actor having made its step
    penalty   p = mean over i, j of mean max(max_k Q_i(s, u_k) - Q_j(s, a), 0)^2,  u_1..u_n ~ pi(.|s); no gradient to u
    critics   minimize sum_j mean (Q_j(s, a) - y)^2 + eta p
    targets   theta' <- tau theta + (1 - tau) theta'

It acts by the best of many draws of pi, by Q. The penalty's gradient goes to both of its values, and of each critic's n
only to the best: so all n are valued without gradients, and gradients taken of the best alone. That is exact. eta and
lam are the authors' for each data set, in `cdc.toml`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import Actor, TanhGaussian, TanhGaussianActor
from mildly.algorithms.advantage import require_log_std
from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import DEFAULT, KEYS, SMALL, require_at_least
from mildly.algorithms.extras import ActorCriticExtras, Extras
from mildly.algorithms.support import CandidateConfig
from mildly.candidates import BestOfPolicy, best_of_target, mixture
from mildly.data.batches import Batch
from mildly.data.tasks import base_name
from mildly.networks import Critics, frozen_copy, polyak_update
from mildly.optimizer import minimize

WEIGHTS: dict[str, list[float]] = tomllib.loads((files("mildly.algorithms") / "cdc.toml").read_text())
"""eta and lam by data set."""


@dataclass(frozen=True)
class CDCConfig(CandidateConfig):
    """Hyperparameters of CDC; the defaults are its authors'."""

    hidden_dims: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of actor and critics."""
    critic_lr: float = 7e-4
    """Learning rate of the critics."""
    ensemble: int = 4
    """The number of critics."""
    num_actions: int = 15
    """n: actions drawn in each next state for the target, and in each state for the penalty; the best count."""
    candidates: int = 15
    """Actions drawn in a state when the policy acts, of which it takes the best."""
    critic_penalty: float = 1.0
    """eta: weight of the penalty on values of the policy's actions that exceed the data's."""
    likelihood_weight: float = 1.0
    """lam: weight of the likelihood of the data's actions in the actor's loss."""
    log_std_min: float = -5.0
    """Lower bound of the policy's log standard deviation."""
    log_std_max: float = 2.0
    """Upper bound of the policy's log standard deviation."""
    extras: Extras = Extras()
    """Options beyond the method."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, ensemble=1, critic_penalty=0, likelihood_weight=0)
        require_log_std(self.log_std_min, self.log_std_max)


class CDC(Algorithm):
    """An actor tied to the data's actions, and critics whose values elsewhere may not exceed the data's."""

    Config = CDCConfig
    config: CDCConfig
    extras: ActorCriticExtras
    actor: TanhGaussianActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"default": DEFAULT, "paper": {}, "small": SMALL}
    KEY_FIELDS = ("critic_penalty", "likelihood_weight", "candidates", *KEYS)

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The authors' eta and lam for a data set."""
        weights = WEIGHTS.get(base_name(name), [])
        return dict(zip(("critic_penalty", "likelihood_weight"), weights, strict=False))

    def build(self, seed: int) -> None:
        c, sizes = self.config, (self.observation_size, self.action_size)
        self.actor = TanhGaussianActor(*sizes, c.hidden_dims, c.log_std_min, c.log_std_max).to(self.device)
        self.critics = Critics(*sizes, c.hidden_dims, c.ensemble, c.layer_norm).to(self.device)
        self.target_critics = frozen_copy(self.critics)
        self.actor_optimizer = self.adam(self.actor, lr=c.actor_lr)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)
        self.extras = ActorCriticExtras(c.extras, c.gamma, self.actor, (self.critics, self.target_critics))

    def acting(self) -> Actor:
        """The best of the policy's draws, by the critics."""
        policy = super().acting()
        assert isinstance(policy, TanhGaussianActor)
        return BestOfPolicy.holding(policy, self.critics, self.config.candidates, self.config.min_weight)

    def update(self, batch: Batch) -> Metrics:
        """One step of the actor, then of critics that learn from it, and of the targets."""
        loss, metrics = self.actor_loss(batch)
        minimize(loss, self.actor_optimizer)
        metrics |= self.update_critics(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    def warm_up(self, batch: Batch) -> Metrics:
        """The same, with an actor that clones."""
        metrics = self.clone(batch) | self.update_critics(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Mean of -Q(s, a~) - lam log pi(a|s); the critics' weights receive no gradient."""
        c = self.config
        pi: TanhGaussian = self.actor(batch.observations)
        actions = pi.rsample(self.generator).actions
        values: Tensor = self.critics(batch.observations, actions, freeze=True)  # (critics, batch)
        log_prob = pi.log_prob(batch.actions).mean()
        loss = -mixture(values, c.min_weight).mean() - c.likelihood_weight * log_prob
        distance = (actions.detach() - batch.actions).square().sum(-1).mean()
        metrics = {"loss_actor": loss, "log_prob": log_prob, "q_ood": values.mean(), "policy_distance": distance}
        return loss, {name: value.detach() for name, value in metrics.items()}

    def update_critics(self, batch: Batch) -> Metrics:
        """One step of all critics, for which one backward pass serves."""
        loss, metrics = self.critic_loss(batch)
        minimize(loss, self.critic_optimizer)
        return metrics | {"loss_critic": loss.detach()}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """TD error, summed over critics, + eta * penalty."""
        target = self.td_target(batch)
        data = batch.actions.expand(self.critics.ensemble, *batch.actions.shape)
        both = torch.stack([data, self.best_actions(batch)], dim=2)  # (critics, batch, 2, a)
        of_data, of_best = self.critics(batch.observations, both).unbind(dim=-1)  # (critics, batch) each
        td_loss = (of_data - target).square().mean(dim=-1).sum()
        excess = (of_best.unsqueeze(1) - of_data).clamp_min(0)  # (critics, critics, batch)
        penalty = excess.square().mean()
        return td_loss + self.config.critic_penalty * penalty, {
            "loss_td": td_loss.detach(),
            "loss_penalty": penalty.detach(),
            "q_data": of_data.detach().mean(),
            "q_target": target.mean(),
        }

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) max_k Q'(s', a_k)."""
        c, states = self.config, batch.next_observations
        values: Tensor = self.target_critics(states, self.actor(states).sample(c.num_actions, self.generator))
        return best_of_target(batch, values, c.gamma, c.min_weight)

    @torch.no_grad()
    def best_actions(self, batch: Batch) -> Tensor:
        """Of n draws of the policy in s the one that each critic values most, (critics, batch, a)."""
        draws = self.actor(batch.observations).sample(self.config.num_actions, self.generator)  # (batch, n, a)
        values: Tensor = self.critics(batch.observations, draws)  # (critics, batch, n)
        best: Tensor = draws[torch.arange(len(draws), device=self.device), values.argmax(dim=-1)]
        return best

    def bc_losses(self, batch: Batch) -> Tensor:
        """The negative log-likelihoods of the data's actions."""
        log_prob: Tensor = self.actor(batch.observations).log_prob(batch.actions)
        return -log_prob
