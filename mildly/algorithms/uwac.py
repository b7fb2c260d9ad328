"""UWAC: Uncertainty Weighted Actor-Critic (Wu et al., ICML 2021), BEAR that trusts a value less the less sure it is.

The critics drop hidden units in every evaluation, so that a value is random: m_j and v_j are its mean and its unbiased
variance over 100 passes, Q_j is one pass. As BEAR (`bear.py`), but for

    target    y = r + gamma (1 - d) max_k [lam min_j m'_j(s', a_k) + (1 - lam) max_j m'_j(s', a_k)]
    weight    w = e^(-beta V),  V = max_k sum_j v'_j(s', a_k)
    critics   minimize mean (w (Q_j(s, a) - y))^2
    actor     minimize mean e^v (M(s) - threshold) - w_pi min_j m_j(s, a~),  a~ = tanh u_1,
              w_pi = e^(-beta sum_j v_j(s, a~)), through which no gradient goes

The weight is inside the square, so that an error counts by w^2. Weight matrices of the critics are divided by their
largest singular values, and one step of power iteration precedes each use in training: one of the targets, two of the
critics per step. The policy draws 100 actions and takes the one with the highest m_1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mildly.actors import Actor
from mildly.algorithms.base import Metrics
from mildly.algorithms.bear import BEAR, BEARConfig
from mildly.algorithms.config import KEYS, require
from mildly.candidates import MOST_DRAWS, BestOfUncertain, best_of_target
from mildly.data.batches import Batch
from mildly.dropout import DropoutCritics, Passes

_CHEAP: dict[str, Any] = {"passes": 10, "exact_last": True, "shared_masks": True}
"""A tenth of the passes and no random numbers for each pair: a step takes about a thirtieth of the time."""


@dataclass(frozen=True)
class UWACConfig(BEARConfig):
    """Hyperparameters of UWAC; the defaults are its authors'."""

    mmd_threshold: float = 0.07
    """How far draws of policy and CVAE may lie apart."""
    beta: float = 0.5
    """How soon an uncertain value loses its weight; towards 0 it is BEAR with dropout."""
    weighting: Literal["exponential", "inverse"] = "exponential"
    """The weight of a value with variance V: e^(-beta V), or the lower of beta / V and 1."""
    dropout: float = 0.1
    """Share of the critics' hidden units that are dropped, in training and in acting."""
    spectral_norm: bool = True
    """Divide the critics' weight matrices by their largest singular values."""
    passes: int = 100
    """Dropout passes from which mean and variance of a value are estimated. Fewer are cheaper and noisier; both
    estimates stay unbiased."""
    exact_last: bool = False
    """Average over the dropout of the last hidden layer exactly instead of drawing it: the same expectation with less
    noise."""
    shared_masks: bool = False
    """Drop the same units for all states and actions of a call, at less cost. Each estimate is distributed as before;
    those of different actions are no longer independent."""

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = ("exponential", "inverse")
        require(self.beta > 0, "beta", "positive", self.beta)
        require(self.weighting in kinds, "weighting", " or ".join(map(repr, kinds)), self.weighting)
        require(0 <= self.dropout < 1, "dropout", "in [0, 1)", self.dropout)
        require(2 <= self.passes <= MOST_DRAWS, "passes", f"in 2 to {MOST_DRAWS:,}", self.passes)
        require(not self.layer_norm, "layer_norm", "False for this algorithm, which has spectral_norm", True)


class UWAC(BEAR):
    """BEAR with critics that drop units, and errors weighted by what that says of their certainty."""

    Config = UWACConfig
    config: UWACConfig
    critics: DropoutCritics
    target_critics: DropoutCritics
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {**BEAR.PRESETS["default"], **_CHEAP},
        "paper": {},
        "small": {**BEAR.PRESETS["small"], **_CHEAP},
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **BEAR.PRESET_NOTES,
        "default": "for data of your own: 10 passes instead of 100",
    }
    KEY_FIELDS = ("beta", "passes", "mmd_threshold", "candidates", *KEYS)
    TASKS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    DERIVED: ClassVar = BEAR.DERIVED | {"passes"}

    def build(self, seed: int) -> None:
        c = self.config
        self.passes = Passes(c.passes, c.exact_last, c.shared_masks)
        super().build(seed)

    def make_critics(self) -> DropoutCritics:
        c, sizes = self.config, (self.observation_size, self.action_size)
        return DropoutCritics(*sizes, c.hidden_dims, dropout=c.dropout, spectral_norm=c.spectral_norm)

    def acting(self) -> Actor:
        """The best of the policy's draws, by the first critic's mean."""
        return BestOfUncertain.holding(self.actor, self.critics, self.config.candidates, self.passes)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Mean (w (Q_j(s, a) - y))^2, summed over critics."""
        target, weight = self.weighted_target(batch)
        self.critics.power_iteration()
        values = self.critics(batch.observations, batch.actions, generator=self.generator)  # (critics, batch)
        loss = (weight * (values - target)).square().mean(dim=-1).sum()
        return loss, {
            "loss_td": loss.detach(),
            "q_data": values.detach().mean(),
            "q_target": target.mean(),
            "weight": weight.mean(),
        }

    @torch.no_grad()
    def weighted_target(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """y, by the best of n draws of the policy in s', and its weight, by the most uncertain of them."""
        c, states = self.config, batch.next_observations
        drawn = self.actor(states).sample(c.num_actions, self.generator)  # (batch, n, a)
        self.target_critics.power_iteration()
        mean, variance = self.target_critics.moments(states, drawn, self.passes, self.generator)
        target = best_of_target(batch, mean, c.gamma, c.min_weight)
        return target, self.weight(variance.sum(dim=0).amax(dim=-1))

    def actor_loss(self, batch: Batch, climb: bool) -> tuple[Tensor, Tensor, Metrics]:
        """As BEAR's, by the critics' moments."""
        self.critics.power_iteration()
        return super().actor_loss(batch, climb)

    def gain(self, observations: Tensor, actions: Tensor) -> Tensor:
        """What the actor climbs, (batch,): w_pi min_j m_j(s, a). The critics' weights receive no gradient."""
        mean, variance = self.critics.moments(observations, actions, self.passes, self.generator, freeze=True)
        return self.weight(variance.detach().sum(dim=0)) * mean.amin(dim=0)

    def weight(self, variance: Tensor) -> Tensor:
        """In (0, 1], and the lower the more uncertain."""
        beta = self.config.beta
        return (beta / variance).clamp(max=1) if self.config.weighting == "inverse" else (-beta * variance).exp()
