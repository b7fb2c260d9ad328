"""AWAC: Advantage-Weighted Actor-Critic (Nair et al. 2020), whose actor clones the data's better actions.

One step on a batch of B transitions (s, a, r, s', d), d marking terminal states only:

    target    y = r + gamma (1 - d) min_j Q'_j(s', a'),  a' ~ pi(.|s')
    critics   minimize mean (Q_j(s, a) - y)^2
    actor     minimize -mean w log pi(a|s),  w = B softmax(A / beta) over the batch,
              A = min_j Q_j(s, a) - min_j Q_j(s, a~),  a~ ~ pi(.|s)
    targets   theta' <- tau theta + (1 - tau) theta'

Both losses are computed before either step. The preset `hand` is what the authors do on robot hands that are paid -1
until they succeed: a smaller actor, a~ the policy's mean, A at most 0.5, no value above 0 and no terminal states.
On the Adroit data sets, whose rewards are not like that, `paper` takes the first three.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mildly.actors import Gaussian, GaussianActor
from mildly.algorithms.advantage import AdvantageConfig, AdvantageWeighted, batch_weights
from mildly.algorithms.base import Metrics, require
from mildly.data.dataset import Dataset
from mildly.data.replay import Batch
from mildly.data.returns import discounted_returns
from mildly.errors import MildlyError
from mildly.networks import Critics, polyak_update
from mildly.optimizer import minimize

_HAND_ACTOR: dict[str, Any] = {"beta": 0.5, "actor_hidden": (256, 256), "advantage_limit": 0.5, "baseline": "mean"}


@dataclass(frozen=True)
class AWACConfig(AdvantageConfig):
    """Hyperparameters of AWAC; the defaults are its authors' for MuJoCo."""

    batch_size: int = 1024
    """Transitions in a minibatch."""
    hidden: tuple[int, ...] = (256, 256)
    """Widths of the critics' hidden layers."""
    actor_hidden: tuple[int, ...] = (256, 256, 256, 256)
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

    def __post_init__(self) -> None:
        super().__post_init__()
        require(all(width >= 1 for width in self.actor_hidden), "actor_hidden", "positive widths", self.actor_hidden)
        require(self.baseline in ("draw", "mean"), "baseline", "'draw' or 'mean'", self.baseline)
        require(self.actor_weight_decay >= 0, "actor_weight_decay", "at least 0", self.actor_weight_decay)


class AWAC(AdvantageWeighted):
    """Two critics of the policy, and an actor that clones by advantage."""

    Config = AWACConfig
    config: AWACConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "hand": {**_HAND_ACTOR, "value_ceiling": 0.0, "ignore_terminals": True},
        "small": {
            "hidden": (128, 128),
            "actor_hidden": (128, 128),
            "batch_size": 128,
            "actor_lr": 1e-3,
            "critic_lr": 1e-3,
        },
    }
    FAMILIES: ClassVar[Mapping[str, Mapping[str, Any]]] = {"adroit": _HAND_ACTOR}

    def build(self, seed: int) -> None:
        """Actor and critics; the actor's weights decay."""
        super().build(seed)
        c = self.config
        self.pi_optimizer = self.adam(self.pi, lr=c.actor_lr, weight_decay=c.actor_weight_decay)

    def build_actor(self) -> GaussianActor:
        """A Gaussian actor, its log standard deviation between its bounds by a sigmoid."""
        c, sizes = self.config, (self.observation_size, self.action_size)
        return GaussianActor(*sizes, c.actor_hidden, c.log_std_min, c.log_std_max, "sigmoid").to(self.device)

    def build_critics(self) -> Critics:
        """Two critics, under the ceiling if there is one."""
        c, sizes = self.config, (self.observation_size, self.action_size)
        return Critics(*sizes, c.hidden, layer_norm=c.layer_norm, ceiling=c.value_ceiling)

    def prepare(self, dataset: Dataset) -> None:
        """Besides what is learned from returns, whether the ceiling can be right."""
        ceiling = self.config.value_ceiling
        if ceiling is not None:
            value, shown = discounted_returns(dataset, self.config.gamma)
            best = float((value * shown).max())  # what the data show, without a guess at what would follow
            if best > ceiling:
                raise MildlyError(
                    f"{dataset.meta.name}: discounted returns reach {best:.6g}, above the value_ceiling of {ceiling:g} "
                    "(of the preset `hand`, if you did not set it), and could not be learned. Set it to None."
                )
        super().prepare(dataset)

    def learn(self, batch: Batch) -> Metrics:
        """One step of critics, actor and targets."""
        metrics = self.update_critics(batch) | self.clone(batch) if self.cloning else self.update_both(batch)
        polyak_update(self.target_critics, self.critics, self.config.tau)
        return metrics

    def update_both(self, batch: Batch) -> Metrics:
        """One step of critics and actor, whose losses know neither step."""
        critic_loss, metrics = self.critic_loss(batch)
        actor_loss, actor_metrics = self.actor_loss(batch)
        minimize(critic_loss, self.critic_optimizer)
        minimize(actor_loss, self.pi_optimizer)
        return metrics | {"loss_critic": critic_loss.detach()} | actor_metrics

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) min_j Q'_j(s', a'), a' a draw."""
        following: Gaussian = self.pi(batch.next_observations)
        actions = following.sample(1, self.generator)[:, 0]
        value: Tensor = self.target_critics(batch.next_observations, actions).amin(dim=0)
        goes_on = 1.0 if self.config.ignore_terminals else 1 - batch.terminated
        return batch.rewards + self.config.gamma * goes_on * value

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """-mean w log pi(a|s), w = B softmax(A / beta)."""
        distribution = self.distribution(batch.observations)
        advantage, metrics = self.advantage(batch, distribution)
        loss, actor_metrics = self.weighted_loss(batch, distribution, batch_weights(advantage, self.config.beta))
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
