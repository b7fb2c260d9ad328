"""CQL: Conservative Q-Learning (Kumar et al., NeurIPS 2020), SAC whose critics keep all values below the data's.

One step on a batch (s, a, r, s', d):

    temperature   minimize -log_alpha * (log pi(a~|s) + H),  a~ ~ pi(.|s),  H = -(action dimensions)      (SAC's)
    actor         the slope of mean alpha log pi(a~|s) - min_j Q_j(s, a~), with the critics as they are before their
                  step; in the warm-up log pi(a|s) stands in the place of min_j Q_j(s, a~)
    target        y = r + gamma (1 - d) min_j Q'_j(s', a'),  a' ~ pi(.|s'): without SAC's entropy
    gap           g_j = mean log sum_i exp(Q_j(s, b_i) - log p(b_i)) - mean Q_j(s, a),  where of the b_i in each state
                  n are uniform with p = 2^-(action dimensions), n from pi(.|s) and n from pi(.|s'), p that policy's
                  density of them; no gradient to b_i or p
    critics       minimize mean (Q_j(s, a) - y)^2 + w g_j,
                  or with `lagrange_threshold` mean (Q_j(s, a) - y)^2 + a' (w g_j - threshold)
    multiplier    with `lagrange_threshold`: raise log a' along a' (w mean_j g_j - threshold), a' = exp(log a') <= 10^6
    actor         one step down the slope taken above
    targets       theta' <- tau theta + (1 - tau) theta'

In three details the authors' code differs: it clones for one step less (39,999), clamps the mean to +-9 in log pi(a|s)
of the warm-up, and takes the actor's slope through critics that were overwritten by their step, where torch allows it.

The sum over i is not divided by the number of actions, as in the authors' code. Its slope is a mean of the slopes of
all Q_j(s, b_i), weighted by exp(Q_j(s, b_i) - log p(b_i)) / sum: with `gradient_actions` = k it is estimated, without
bias, by k of the 3n, drawn by those weights, and costs half as much.

With `calibrated` (Cal-QL, Nakamoto et al. 2023) the values of the policy's actions count in the gap as at least G(s),
the data's own discounted return from s on: max(Q_j(s, b_i), G(s)) stands in the place of Q_j(s, b_i). So nothing is
pressed below what the data's policy earns, and fine-tuning need not first climb back. Of transitions that are in no log
G is not known, and nothing is calibrated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from mildly.actors import RSample, TanhGaussian
from mildly.algorithms.base import Metrics
from mildly.algorithms.config import DEFAULT, require
from mildly.algorithms.extras import AnchoredExtras
from mildly.algorithms.sac import SAC, SACConfig
from mildly.data.batches import Batch
from mildly.data.dataset import Array, Dataset
from mildly.data.returns import discounted_returns
from mildly.networks import polyak_update
from mildly.optimizer import minimize

_MULTIPLIER_MAX = 1e6

ActorLoss = Callable[[Batch, RSample], tuple[Tensor, Metrics]]


@dataclass(frozen=True)
class CQLConfig(SACConfig):
    """Hyperparameters of CQL; the defaults are what its authors recommend for D4RL's locomotion tasks."""

    hidden_dims: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of actor and critics."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    alpha_lr: float = 1e-4
    """Learning rate of the entropy temperature alpha."""
    log_std_min: float = -5.0
    """Lower bound of the policy's log standard deviation."""
    extras: AnchoredExtras = AnchoredExtras(bc_warmup_steps=40_000)
    """Options beyond the method, of which the warm-up is the authors' own."""
    num_actions: int = 10
    """n: actions drawn uniformly, from pi(.|s) and from pi(.|s'), that many of each, in every state."""
    gradient_actions: int | None = None
    """k: of the 3n drawn actions, how many the gap's slope goes through, chosen by their weight in it; all if not
    given."""
    conservative_weight: float = 5.0
    """w: weight of the gap between the values of drawn actions and of the data's. 10 is the authors' other choice."""
    lagrange_threshold: float | None = None
    """If given, the gap's weight is steered (by a Lagrange multiplier) so that w times the gap comes to this value."""
    calibrated: bool = False
    """Cal-QL: press no value below the data's own return, for a policy that is to learn online afterwards."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.num_actions >= 1, "num_actions", "at least 1", self.num_actions)
        require(self.conservative_weight >= 0, "conservative_weight", "at least 0", self.conservative_weight)
        through = self.gradient_actions
        require(through is None or through >= 1, "gradient_actions", "at least 1", through)
        threshold = self.lagrange_threshold
        require(threshold is None or threshold >= 0, "lagrange_threshold", "at least 0 or None", threshold)


class CQL(SAC):
    """SAC with critics that are pressed down on all actions and up on the data's."""

    Config = CQLConfig
    config: CQLConfig
    CLONING_MARGIN = 1e-6  # the authors'
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {**DEFAULT, "gradient_actions": 4, "extras.bc_warmup_steps": 4_000},
        "paper": {},
        "lagrange": {"conservative_weight": 1.0, "lagrange_threshold": 5.0},
        "simple": {
            "hidden_dims": (256, 256),
            "actor_lr": 3e-4,
            "alpha_lr": 3e-4,
            "alpha_first": False,
            "log_std_min": -20.0,
            "extras.bc_warmup_steps": 0,
        },
        "small": {**SAC.PRESETS["small"], "extras.bc_warmup_steps": 0},
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **SAC.PRESET_NOTES,
        "default": "for data of your own: the gap's slope through 4 of 30 actions, at half the cost",
        "paper": "as published, with a warm-up of 40,000 steps",
        "lagrange": "with a threshold that steers the weight of the gap",
        "simple": "two layers and no warm-up, as most reimplementations",
    }
    KEY_FIELDS = ("conservative_weight", "num_actions", *SAC.KEY_FIELDS)

    def build(self, seed: int) -> None:
        super().build(seed)
        self.log_multiplier: Tensor | None = None
        if self.config.lagrange_threshold is not None:
            self.log_multiplier = torch.zeros((), device=self.device, requires_grad=True)
            self.multiplier_optimizer = self.adam(self.log_multiplier, lr=self.config.critic_lr)

    def prepare(self, data: Dataset) -> Mapping[str, Array]:
        """G of each row, where values are calibrated by it."""
        if not self.config.calibrated:
            return {}
        return {"returns": discounted_returns(self.preprocessing.scaled(data), self.config.gamma)[0]}

    def update(self, batch: Batch) -> Metrics:
        """One step of temperature, critics, actor and targets; the actor's slope is of the critics before theirs."""
        return self.update_all(batch, self.actor_loss)

    def warm_up(self, batch: Batch) -> Metrics:
        """The same, with an actor that climbs the likelihood of the data's actions."""
        return self.update_all(batch, self.warm_up_loss)

    def update_all(self, batch: Batch, actor_loss: ActorLoss) -> Metrics:
        """One step of everything, with one of two losses of the actor."""
        c = self.config
        drawn = self.distribution(batch.observations).rsample(self.generator)
        metrics = self.update_temperature(drawn) if c.alpha_first else {}
        loss, actor_metrics = actor_loss(batch, drawn)
        self.actor_optimizer.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)  # the step comes later, since the critics still learn from the actor as it is
        metrics |= actor_metrics | self.update_critics(batch)
        self.actor_optimizer.step()
        metrics |= {} if c.alpha_first else self.update_temperature(drawn)
        polyak_update(self.target_critics, self.critics, c.tau)
        return metrics

    def warm_up_loss(self, batch: Batch, drawn: RSample) -> tuple[Tensor, Metrics]:
        """Mean of alpha log pi(a~|s) - log pi(a|s)."""
        loss = (self.alpha * drawn.log_prob).mean() + self.bc_loss(batch)
        distance = (drawn.actions.detach() - batch.actions).square().sum(-1).mean()
        return loss, {"loss_actor": loss.detach(), "policy_distance": distance}

    def update_critics(self, batch: Batch) -> Metrics:
        """One step of both critics and of the multiplier, each seeing the other as it was."""
        loss, metrics = self.critic_loss(batch)
        minimize(loss, self.critic_optimizer)
        threshold = self.config.lagrange_threshold
        metrics |= {} if threshold is None else self.update_multiplier(metrics["gap"], threshold)
        return metrics | {"loss_critic": loss.detach()}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """TD error + weighted gap, summed over critics."""
        c, target = self.config, self.td_target(batch)
        of_data, of_others, soft_maximum = self.values(batch)
        td_loss = (of_data - target).square().mean(dim=-1).sum()
        gap = (soft_maximum - of_data).mean(dim=-1)  # (critics,)
        penalty = c.conservative_weight * gap
        if c.lagrange_threshold is not None:
            penalty = self.multiplier().detach() * (penalty - c.lagrange_threshold)
        from_policy = of_others[..., c.num_actions : 2 * c.num_actions]
        return td_loss + penalty.sum(), {
            "loss_td": td_loss.detach(),
            "gap": gap.detach().mean(),
            "q_data": of_data.detach().mean(),
            "q_ood": from_policy.detach().mean(),
            "q_target": target.mean(),
        }

    def values(self, batch: Batch) -> tuple[Tensor, Tensor, Tensor]:
        """Of the data's actions, (critics, batch), of the others, (critics, batch, 3n), and the gap's log-sum-exp."""
        through, states, data = self.config.gradient_actions, batch.observations, batch.actions.unsqueeze(1)
        others, log_density = self.other_actions(batch)
        floor = self.value_floor(batch)  # (batch, 3n)
        if through is None or through >= others.shape[1]:
            values: Tensor = self.critics(states, torch.cat([data, others], dim=1))  # (critics, batch, 1 + 3n)
            of_others = values[..., 1:]
            counted = of_others if floor is None else torch.maximum(of_others, floor)
            return values[..., 0], of_others, torch.logsumexp(counted - log_density, dim=-1)
        with torch.no_grad():
            of_others = self.critics(states, others)
        logits = (of_others if floor is None else torch.maximum(of_others, floor)) - log_density
        chosen = systematic_draws(logits.softmax(dim=-1), through, self.generator)  # (critics, batch, k)
        sets = (len(chosen), *others.shape)
        picked = others.expand(sets).gather(2, chosen.unsqueeze(-1).expand(*chosen.shape, self.action_size))
        values = self.critics(states, torch.cat([data.expand(len(chosen), *data.shape), picked], dim=2))
        counted = values[..., 1:]
        if floor is not None:
            counted = torch.maximum(counted, floor.expand(sets[:-1]).gather(2, chosen))
        slope = counted.mean(dim=-1)
        return values[..., 0], of_others, torch.logsumexp(logits, dim=-1) + slope - slope.detach()

    def value_floor(self, batch: Batch) -> Tensor | None:
        """G(s) for the policy's actions, none (minus infinity) for uniform ones and where it is not known."""
        if not self.config.calibrated:
            return None
        n, returns = self.config.num_actions, self.prepared["returns"][batch.rows].nan_to_num(nan=-math.inf)
        floor = returns.unsqueeze(1).repeat(1, 3 * n)
        floor[:, :n] = -math.inf
        return floor

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (1 - d) min_j Q'_j(s', a')."""
        next_actions = self.distribution(batch.next_observations).rsample(self.generator).actions
        min_q: Tensor = self.target_critics(batch.next_observations, next_actions).amin(dim=0)
        return batch.rewards + self.config.gamma * (1 - batch.terminated) * min_q

    @torch.no_grad()
    def other_actions(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """In each state n uniform actions, n from pi(.|s), n from pi(.|s'), (batch, 3n, a), and their log-densities."""
        states = torch.cat([batch.observations, batch.next_observations])
        shape = (len(states), self.config.num_actions, self.action_size)
        mean, log_std = (parameter.unsqueeze(1).expand(shape) for parameter in self.distribution(states))
        drawn = TanhGaussian(mean, log_std).rsample(self.generator)  # the actor runs once per state, not per action
        here, there = (RSample(*half) for half in zip(*(part.chunk(2) for part in drawn), strict=True))
        uniform = torch.rand(here.actions.shape, generator=self.generator, device=self.device) * 2 - 1
        density = torch.full_like(here.log_prob, -self.action_size * math.log(2))
        actions = torch.cat([uniform, here.actions, there.actions], dim=1)
        return actions, torch.cat([density, here.log_prob, there.log_prob], dim=1)

    def update_multiplier(self, gap: Tensor, threshold: float) -> Metrics:
        """Raise a' where w times the gap, averaged over critics, exceeds the threshold; lower it where it does not."""
        multiplier = self.multiplier()
        minimize(-multiplier * (self.config.conservative_weight * gap - threshold), self.multiplier_optimizer)
        return {"multiplier": multiplier.detach()}

    def multiplier(self) -> Tensor:
        """a', the gap's weight that the threshold steers."""
        assert self.log_multiplier is not None
        return self.log_multiplier.exp().clamp(max=_MULTIPLIER_MAX)


def systematic_draws(weights: Tensor, k: int, generator: torch.Generator) -> Tensor:
    """Of the last dimension's indices k, index i on average k * weights[i] times: at equal steps from a random start.

    Drawn so, no index comes up more than once too often or too rarely, and their mean is steadier than k draws apart.
    """
    start = torch.rand((*weights.shape[:-1], 1), generator=generator, device=weights.device)
    points = (start + torch.arange(k, device=weights.device)) / k
    return torch.searchsorted(weights.cumsum(dim=-1), points).clamp(max=weights.shape[-1] - 1)
