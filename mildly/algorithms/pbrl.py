"""PBRL: Pessimistic Bootstrapping (Bai et al., ICLR 2022), SAC with critics that are punished where they disagree.

One step on a batch (s, a, r, s', d), with U the standard deviation over the K critics (unbiased) of a value, and U' of
the target critics':

    temperature   minimize -log_alpha * (log pi(a~|s) + H),  a~ ~ pi(.|s),  H = -(action dimensions)      (SAC's)
    target        y_k = r + gamma (1 - d) [Q'_k(s', a') - beta_in U'(s', a')],  a' ~ pi(.|s'): each critic follows its
                  own target, without SAC's entropy
    OOD target    z_k(s, u) = max(Q_k(s, u) - beta_t U(s, u), floor),  u_1..u_n ~ pi(.|s), and the same in s' with
                  beta_next in the place of beta_t; no gradient
    critics       minimize mean (Q_k(s, a) - y_k)^2 + mean (Q_k(., u) - z_k(., u))^2, the second mean over both states
    schedule      beta_t falls linearly in the first steps. Thereafter, every 1000 steps, it is divided by
                  `ood_penalty_decay` if the values Q(s, u) are falling, until it is `ood_penalty_min`
    actor         minimize mean alpha log pi(a~|s) - min_k Q_k(s, a~)
    targets       theta' <- tau theta + (1 - tau) theta'

The second mean is over draws of u, so that fewer of them estimate the same loss, without bias, at less cost: U of each
is exact. With `prior_scale` (PBRL-Prior) every critic is its network plus that much of a random one, which never learns
and through which no gradient goes, also not the actor's: critics then disagree where there are no data from the start.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mildly.algorithms.base import Metrics
from mildly.algorithms.config import DEFAULT, require, require_at_least
from mildly.algorithms.sac import SAC, SACConfig
from mildly.data.batches import Batch, Preprocessing
from mildly.data.dataset import Dataset
from mildly.data.returns import discounted_returns
from mildly.data.tasks import base_name
from mildly.networks import Critics, td_loss

_RECORD_EVERY, _RECORDS, _RECENT = 1000, 20, 5

_LOCOMOTION, _HANDS = "(halfcheetah|hopper|walker2d)", "(pen|door|relocate|hammer)"
_CONSTANT = {"ood_penalty_steps": 0, "ood_penalty_decay": 1.0}
DATASETS: dict[str, dict[str, Any]] = {
    f"{_LOCOMOTION}-medium-expert": {"ood_penalty_decay": 1.0},
    f"{_LOCOMOTION}-expert": {"ood_penalty": 2.0, **_CONSTANT},
    f"{_HANDS}-.*": {"td_penalty": 1e-4, "ood_penalty": 0.01, "next_ood_penalty": 0.01, **_CONSTANT},
    f"{_HANDS}-expert": {"ood_penalty": 0.4, "next_ood_penalty": 0.1},
    "pen-human": {"ood_penalty": 0.001, "next_ood_penalty": 0.001},
    "door-expert": {"ood_penalty": 0.2},
    "relocate-expert": {"next_ood_penalty": 0.2},
}
"""The authors' values on data sets whose names are like that; of two that fit, the later."""


@dataclass(frozen=True)
class PBRLConfig(SACConfig):
    """Hyperparameters of PBRL; the defaults are its authors' for MuJoCo."""

    hidden_dims: tuple[int, ...] = (256, 256, 256)
    """Widths of the hidden layers of actor and critics."""
    actor_lr: float = 1e-4
    """Learning rate of the actor."""
    alpha_lr: float = 1e-4
    """Learning rate of the entropy temperature alpha."""
    log_std_min: float = -5.0
    """Lower bound of the policy's log standard deviation."""
    ensemble: int = 10
    """K: the number of critics, whose disagreement is the uncertainty."""
    num_actions: int = 10
    """n: actions of the policy (OOD actions) drawn in each state, and in each next state. Fewer estimate the same loss
    at less cost."""
    td_penalty: float = 0.01
    """beta_in: the uncertainty's weight in the targets of the data's actions."""
    ood_penalty_start: float = 5.0
    """beta_t in the first step."""
    ood_penalty: float = 1.0
    """beta_t, the uncertainty's weight in the targets of OOD actions, after `ood_penalty_steps`."""
    ood_penalty_steps: int = 50_000
    """Steps in which beta_t goes from its start there."""
    ood_penalty_decay: float = 1.01
    """beta_t is divided by this, every 1000 steps after those, where the values of OOD actions are falling; 1 for
    never."""
    ood_penalty_min: float = 0.2
    """Below this beta_t does not fall further."""
    next_ood_penalty: float = 0.1
    """beta_next: the uncertainty's weight in the targets of OOD actions in next states."""
    ood_floor: float | Literal["returns"] | None = 0.0
    """The least that the target of an OOD action may be. `returns`: the data's lowest discounted return. None for no
    bound. The authors' 0 raises values instead of lowering them where returns are negative."""
    prior_scale: float = 0.0
    """Weight of the random networks that are added to the critics; 0 for none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, ensemble=2, num_actions=1, ood_penalty_steps=0, ood_penalty_decay=1)
        penalties = ("td_penalty", "ood_penalty_start", "ood_penalty", "ood_penalty_min", "next_ood_penalty")
        require_at_least(self, prior_scale=0, **dict.fromkeys(penalties, 0))
        known = not isinstance(self.ood_floor, str) or self.ood_floor == "returns"
        require(known, "ood_floor", "a number, 'returns' or None", self.ood_floor)


class PBRL(SAC):
    """SAC with an ensemble of critics, pessimistic where they disagree."""

    Config = PBRLConfig
    config: PBRLConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {**DEFAULT, "num_actions": 1, "ood_penalty_steps": 5_000, "ood_floor": "returns"},
        "paper": {},
        "prior": {"prior_scale": 1.0},
        "small": {**SAC.PRESETS["small"], "num_actions": 1, "ood_penalty_steps": 1_000, "ood_floor": "returns"},
    }
    PRESET_NOTES: ClassVar[Mapping[str, str]] = {
        **SAC.PRESET_NOTES,
        "default": "for data of your own: 1 OOD action per state instead of 10, and a floor that suits any rewards",
        "paper": "as published: PBRL",
        "prior": "as published: PBRL-Prior, with random networks in the critics",
    }
    KEY_FIELDS = ("ensemble", "num_actions", "ood_penalty", "ood_floor", *SAC.KEY_FIELDS)
    DERIVED: ClassVar = SAC.DERIVED | {"floor"}

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The authors' values for a data set."""
        fitting = [fields for names, fields in DATASETS.items() if re.fullmatch(names, base_name(name))]
        return {field: value for fields in fitting for field, value in fields.items()}

    def build(self, seed: int) -> None:
        super().build(seed)
        self.updates = 0
        self.relief = torch.ones((), device=self.device)  # what beta_t is multiplied with
        self.ood_values = torch.zeros(_RECORDS, device=self.device)  # one for every 1000 steps, the newest last
        floor = self.config.ood_floor
        self.floor = None if floor == "returns" else floor

    def make_critics(self) -> Critics:
        c, sizes = self.config, (self.observation_size, self.action_size)
        shape = *sizes, c.hidden_dims, c.ensemble, c.layer_norm
        return CriticsWithPrior(*shape, prior_scale=c.prior_scale) if c.prior_scale else Critics(*shape)

    def preprocess(self, dataset: Dataset) -> Preprocessing:
        """Besides normalization, the lowest return that the data show."""
        if self.config.ood_floor == "returns":
            value, shown = discounted_returns(dataset, self.config.gamma)
            self.floor = float((value * shown).min())
        return super().preprocess(dataset)

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """TD error + OOD term, summed over critics."""
        self.updates += 1
        td_error, metrics = td_loss(self.critics, batch, self.td_target(batch))
        ood_error, ood_metrics = self.ood_loss(batch)
        return td_error + ood_error, metrics | ood_metrics

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y_k = r + gamma (1 - d) [Q'_k(s', a') - beta_in U'(s', a')], (critics, batch)."""
        next_actions = self.distribution(batch.next_observations).rsample(self.generator).actions
        values: Tensor = self.target_critics(batch.next_observations, next_actions)
        pessimistic = values - self.config.td_penalty * values.std(dim=0)
        return batch.rewards + self.config.gamma * (1 - batch.terminated) * pessimistic

    def ood_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Mean (Q_k - z_k)^2 of the policy's actions in s and s', summed over critics."""
        states = torch.cat([batch.observations, batch.next_observations])  # (2 batch, o)
        with torch.no_grad():
            actions = self.distribution(states).sample(self.config.num_actions, self.generator)
        values: Tensor = self.critics(states, actions)  # (critics, 2 batch, n)
        penalty = self.ood_penalty()
        target, uncertainty = self.ood_target(values.detach(), penalty)
        loss = (values - target).square().mean(dim=(-2, -1)).sum()
        here = values.detach()[:, : len(batch.observations)].mean()
        self.relax(here, penalty)
        return loss, {"loss_ood": loss.detach(), "q_ood": here, "uncertainty": uncertainty, "ood_penalty": penalty}

    def ood_target(self, values: Tensor, penalty: Tensor) -> tuple[Tensor, Tensor]:
        """z_k = max(Q_k - beta U, floor), beta being beta_t in the first half of the states; and the mean of U."""
        uncertainty = values.std(dim=0)  # (2 batch, n)
        here, there = uncertainty.chunk(2)
        target = values - torch.cat([penalty * here, self.config.next_ood_penalty * there])
        return target if self.floor is None else target.clamp_min(self.floor), uncertainty.mean()

    def ood_penalty(self) -> Tensor:
        """beta_t of this step."""
        c = self.config
        done = min(self.updates / c.ood_penalty_steps, 1.0) if c.ood_penalty_steps else 1.0
        return (c.ood_penalty_start + done * (c.ood_penalty - c.ood_penalty_start)) * self.relief

    def relax(self, value: Tensor, penalty: Tensor) -> None:
        """Every 1000 steps: lower beta_t if the values of the last 5 records are below those of the 15 before."""
        c = self.config
        if c.ood_penalty_decay == 1 or self.updates % _RECORD_EVERY != 1:
            return
        if self.updates > max(c.ood_penalty_steps, _RECORDS * _RECORD_EVERY):
            falling = self.ood_values[-_RECENT:].mean() < self.ood_values[:-_RECENT].mean()
            lower = falling & (penalty > c.ood_penalty_min)
            self.relief = torch.where(lower, self.relief / c.ood_penalty_decay, self.relief)
        self.ood_values = torch.cat([self.ood_values[1:], value.reshape(1)])


class CriticsWithPrior(Critics):
    """Critics that are the sum of networks and, scaled, of random ones that never learn and pass no gradient."""

    def __init__(self, *shape: Any, prior_scale: float) -> None:
        super().__init__(*shape)
        self.prior_scale = prior_scale
        self.prior = Critics(*shape)
        for module in self.prior.modules():  # buffers are saved and copied, and no optimizer or average moves them
            for name, weight in list(module.named_parameters(recurse=False)):
                delattr(module, name)
                module.register_buffer(name, weight.detach())

    def forward(self, observations: Tensor, actions: Tensor, freeze: bool = False) -> Tensor:
        """Values of every critic. With `freeze` gradients reach the actions but not the weights."""
        with torch.no_grad():
            prior: Tensor = self.prior(observations, actions)
        return super().forward(observations, actions, freeze) + self.prior_scale * prior
