"""AWAC: Advantage-Weighted Actor-Critic (Nair et al. 2020), whose actor clones the data's better actions.

One step on a batch of B transitions (s, a, r, s', d), d marking terminal states only:

    target    y = r + gamma (1 - d) min_j Q'_j(s', a'),  a' ~ pi(.|s')
    critics   minimize mean (Q_j(s, a) - y)^2
    actor     minimize -mean w log pi(a|s),  w = B softmax(A / beta) over the batch,
              A = min_j Q_j(s, a) - min_j Q_j(s, a~),  a~ ~ pi(.|s)
    targets   theta' <- tau theta + (1 - tau) theta'

Both losses are computed before either step. The weights are relative to the batch, so B is part of the method: the
authors draw 128 transitions in their offline phase, which is what is done here, and 1024 once they collect online.

The preset `hand` is what the authors do on robot hands that are paid -1 until they succeed: beta 0.5, a smaller actor,
a~ the policy's mean, A at most 0.5, no value above 0 and no terminal states. On the Adroit data sets, whose rewards are
not like that, `paper` takes the first four.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mildly.actors import Gaussian, GaussianActor
from mildly.algorithms.advantage import batch_weights, family_fields, require_log_std, weighted_bc_loss
from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import DEFAULT, KEYS, SMALL, ActorCriticConfig, require, require_widths
from mildly.algorithms.extras import ActorCriticExtras, Extras
from mildly.data.batches import Batch, Preprocessing
from mildly.data.dataset import Dataset
from mildly.data.returns import discounted_returns
from mildly.errors import MildlyError
from mildly.networks import Critics, frozen_copy, polyak_update, td_loss
from mildly.optimizer import minimize

_HAND_ACTOR: dict[str, Any] = {"beta": 0.5, "actor_hidden_dims": (256, 256), "advantage_limit": 0.5, "baseline": "mean"}


@dataclass(frozen=True)
class AWACConfig(ActorCriticConfig):
    """Hyperparameters of AWAC; the defaults are its authors' for MuJoCo."""

    batch_size: int = 128
    """Transitions in a minibatch, over which the weights are a softmax."""
    hidden_dims: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    actor_hidden_dims: tuple[int, ...] = (256, 256, 256, 256)
    """Widths of the actor's hidden layers."""
    beta: float = 2.0
    """Temperature: the advantage is divided by it, so that a large one is behavior cloning."""
    advantage_limit: float | None = None
    """The largest advantage that counts as such; None for no limit."""
    baseline: Literal["draw", "mean"] = "draw"
    """The policy's action that the data's is compared with: a draw, or its mean."""
    actor_weight_decay: float = 1e-4
    """Pull of the actor's weights towards 0."""
    log_std_min: float = -6.0
    """Lower bound of the policy's log standard deviation."""
    log_std_max: float = 0.0
    """Upper bound of the policy's log standard deviation."""
    value_ceiling: float | None = None
    """No value exceeds this; None for no ceiling. For rewards of at most 0 it is 0."""
    ignore_terminals: bool = False
    """Learn as if no state were terminal."""
    extras: Extras = Extras()
    """Options beyond the method."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_widths("actor_hidden_dims", self.actor_hidden_dims)
        require(self.beta > 0, "beta", "positive", self.beta)
        require_log_std(self.log_std_min, self.log_std_max)
        require(self.baseline in ("draw", "mean"), "baseline", "'draw' or 'mean'", self.baseline)
        require(self.actor_weight_decay >= 0, "actor_weight_decay", "at least 0", self.actor_weight_decay)


class AWAC(Algorithm):
    """Two critics of the policy, and an actor that clones by advantage."""

    Config = AWACConfig
    config: AWACConfig
    extras: ActorCriticExtras
    actor: GaussianActor
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {**DEFAULT, "actor_hidden_dims": (256, 256)},
        "paper": {},
        "hand": {**_HAND_ACTOR, "value_ceiling": 0.0, "ignore_terminals": True},
        "small": {**SMALL, "actor_hidden_dims": (128, 128)},
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **Algorithm.PRESET_NOTES,
        "hand": "for tasks that pay -1 until they succeed",
    }
    KEY_FIELDS = ("beta", *KEYS)
    FAMILIES: ClassVar[Mapping[str, Mapping[str, Any]]] = {"adroit": _HAND_ACTOR}
    """Config fields on a family of benchmark data sets."""

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The authors' values on a family of data sets."""
        return family_fields(cls.FAMILIES, name)

    def build(self, seed: int) -> None:
        c, sizes = self.config, (self.observation_size, self.action_size)
        actor = GaussianActor(*sizes, c.actor_hidden_dims, c.log_std_min, c.log_std_max, "sigmoid")
        self.actor = actor.to(self.device)
        self.critics = Critics(*sizes, c.hidden_dims, layer_norm=c.layer_norm, ceiling=c.value_ceiling).to(self.device)
        self.target_critics = frozen_copy(self.critics)
        self.actor_optimizer = self.adam(self.actor, lr=c.actor_lr, weight_decay=c.actor_weight_decay)
        self.critic_optimizer = self.adam(self.critics, lr=c.critic_lr)
        self.extras = ActorCriticExtras(c.extras, c.gamma, self.actor, (self.critics, self.target_critics))

    def preprocess(self, dataset: Dataset) -> Preprocessing:
        """Besides normalization, whether terminals count; and whether the ceiling can be right."""
        ceiling = self.config.value_ceiling
        if ceiling is not None:
            value, shown = discounted_returns(dataset, self.config.gamma)
            best = float((value * shown).max())  # what the data show, without a guess at what would follow
            if best > ceiling:
                raise MildlyError(
                    f"{dataset.meta.name}: discounted returns reach {best:.6g}, above the value_ceiling of {ceiling:g} "
                    "(of the preset `hand`, if you did not set it), and could not be learned. Set it to None."
                )
        return dataclasses.replace(super().preprocess(dataset), ignore_terminals=self.config.ignore_terminals)

    def update(self, batch: Batch) -> Metrics:
        """One step of critics, actor and targets; neither loss knows the other's step."""
        critic_loss, metrics = td_loss(self.critics, batch, self.td_target(batch))
        actor_loss, actor_metrics = self.actor_loss(batch)
        minimize(critic_loss, self.critic_optimizer)
        minimize(actor_loss, self.actor_optimizer)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics | {"loss_critic": critic_loss.detach()} | actor_metrics

    def warm_up(self, batch: Batch) -> Metrics:
        """The same, with an actor that clones all actions alike."""
        loss, metrics = td_loss(self.critics, batch, self.td_target(batch))
        minimize(loss, self.critic_optimizer)
        metrics |= {"loss_critic": loss.detach()} | self.clone(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) min_j Q'_j(s', a'), a' a draw."""
        next_actions = self.actor(batch.next_observations).sample(1, self.generator)[:, 0]
        min_q: Tensor = self.target_critics(batch.next_observations, next_actions).amin(dim=0)
        return batch.rewards + self.config.gamma * (1 - batch.terminated) * min_q

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """-mean w log pi(a|s), w = B softmax(A / beta)."""
        distribution: Gaussian = self.actor(batch.observations)
        advantage, metrics = self.advantage(batch, distribution)
        loss, actor_metrics = weighted_bc_loss(batch, distribution, batch_weights(advantage, self.config.beta))
        return loss, metrics | actor_metrics

    @torch.no_grad()
    def advantage(self, batch: Batch, distribution: Gaussian) -> tuple[Tensor, Metrics]:
        """A = min_j Q_j(s, a) - min_j Q_j(s, a~), a~ a draw or the mean."""
        c = self.config
        own = distribution.mean if c.baseline == "mean" else distribution.sample(1, self.generator)[:, 0]
        actions = torch.stack([batch.actions, own], dim=1)  # (batch, 2, a)
        values: Tensor = self.critics(batch.observations, actions)  # (critics, batch, 2)
        of_data, of_policy = values.amin(dim=0).unbind(dim=-1)
        advantage = of_data - of_policy
        if c.advantage_limit is not None:
            advantage = advantage.clamp(max=c.advantage_limit)
        return advantage, {"q_ood": values[..., 1].mean(), "advantage": advantage.mean()}

    def bc_losses(self, batch: Batch) -> Tensor:
        """The negative log-likelihoods of the data's actions."""
        log_prob: Tensor = self.actor(batch.observations).log_prob(batch.actions)
        return -log_prob
