"""MCQ: Mildly Conservative Q-learning (Lyu et al., NeurIPS 2022), Algorithm 1 of the paper, on SAC.

One step on a batch (s, a, r, s', d):

    behaviour model   train the CVAE mu_hat on (s, a)
    target            y = r + gamma (1 - d) [min_j Q'_j(s', a') - alpha log pi(a'|s')]           (SAC's)
    pseudo target     y'(s_in) = min_j max_i Q_j(s_in, b_i),  b_1..b_N ~ mu_hat(.|s_in),  s_in in {s, s'}
    critics           minimise lam * mean (Q_j(s, a) - y)^2
                             + (1 - lam) * mean (Q_j(s_in, u) - y'(s_in))^2,  u_1..u_N ~ pi(.|s_in)
    actor, targets    as SAC

The one change to SAC is the second term of the critics' loss, and lam = 1 is SAC to the bit. The preset `paper`
is the printed method; `official` is what the authors' code does (its differences are the fields below).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from mildly import mcb
from mildly.algorithms.base import Metrics, minimise, require
from mildly.algorithms.sac import SAC, SACConfig
from mildly.behaviour.cvae import CVAE
from mildly.data.replay import Batch


@dataclass(frozen=True)
class MCQConfig(SACConfig):
    """Hyperparameters of MCQ; the defaults are the paper's."""

    lam: float = 0.7
    """Weight of the data's temporal-difference error against the OOD actions' term, in (0, 1]; 1 is SAC."""
    num_actions: int = 10
    """N: behaviour actions and OOD actions drawn in each state."""
    delta: float = 0.0
    """How far below the pseudo target OOD actions are trained to lie."""
    one_sided: bool = False
    """Train OOD actions only where their value exceeds the pseudo target."""
    ood_distance_min: float | None = None
    """Count an OOD action only if its squared distance to a behaviour action is at least this."""
    pseudo_floor: float | None = None
    """Lower bound of the pseudo target. Harmful where values are negative."""
    pseudo_reduction: Literal["min", "mean"] = "min"
    """How the critics' pseudo targets are combined."""
    independent_samples: bool = False
    """Draw behaviour and OOD actions anew for each critic instead of sharing them."""
    cvae_hidden: tuple[int, ...] = (750, 750)
    """Widths of the hidden layers of the behaviour model's encoder and decoder."""
    cvae_lr: float = 1e-3
    """Learning rate of the behaviour model."""
    latent_size: int | None = None
    """Latent dimensions of the behaviour model; twice the action's if not given."""
    kl_weight: float = 1.0
    """Weight of the divergence in the behaviour model's loss. Below 1 the model spreads its actions more."""
    latent_clip: float | None = 0.5
    """Latents are clipped to plus or minus this when behaviour actions are drawn; None draws from the whole prior."""
    encoder_log_std_min: float = -4.0
    """Lower bound of the encoder's log standard deviation."""
    encoder_log_std_max: float = 15.0
    """Upper bound of the encoder's log standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 < self.lam <= 1, "lam", "in (0, 1]", self.lam)
        require(self.num_actions >= 1, "num_actions", "at least 1", self.num_actions)
        require(self.delta >= 0, "delta", "at least 0", self.delta)
        reduction, distance = self.pseudo_reduction, self.ood_distance_min
        require(reduction in ("min", "mean"), "pseudo_reduction", "'min' or 'mean'", reduction)
        require(distance is None or distance >= 0, "ood_distance_min", "at least 0 or None", distance)
        require(all(width >= 1 for width in self.cvae_hidden), "cvae_hidden", "positive widths", self.cvae_hidden)
        require(self.cvae_lr > 0, "cvae_lr", "positive", self.cvae_lr)
        require(self.latent_size is None or self.latent_size >= 1, "latent_size", "at least 1", self.latent_size)
        require(self.kl_weight >= 0, "kl_weight", "at least 0", self.kl_weight)
        clip = self.latent_clip
        require(clip is None or clip > 0, "latent_clip", "positive or None", clip)
        low, high = self.encoder_log_std_min, self.encoder_log_std_max
        require(low < high, "encoder_log_std_min", "below encoder_log_std_max", low)


class MCQ(SAC):
    """SAC whose critics also learn, mildly conservatively, the values of actions the data does not show."""

    Config = MCQConfig
    config: MCQConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "paper": {},
        "official": {
            "hidden": (400, 400, 400),
            "log_std_min": -5.0,
            "pseudo_floor": 0.0,
            "independent_samples": True,
        },
        "small": {**SAC.PRESETS["small"], "cvae_hidden": (128, 128)},
    }

    def build(self, seed: int) -> None:
        """SAC's parts and the behaviour model, with random numbers of its own: SAC's stream stays untouched."""
        super().build(seed)
        c = self.config
        self.behaviour = CVAE(
            self.observation_size,
            self.action_size,
            c.cvae_hidden,
            c.latent_size,
            c.latent_clip,
            (c.encoder_log_std_min, c.encoder_log_std_max),
            c.kl_weight,
        ).to(self.device)
        self.behaviour_optimiser = self.adam(self.behaviour, lr=c.cvae_lr)
        self.ood_generator = self.random_stream(seed, "ood")

    def update(self, batch: Batch) -> Metrics:
        """One step of the behaviour model, then SAC's with the critics' loss below."""
        metrics = self.update_behaviour(batch) if self.config.lam < 1 else {}
        return metrics | super().update(batch)

    def update_behaviour(self, batch: Batch) -> Metrics:
        """One step of the CVAE towards the data's actions."""
        loss = self.behaviour.loss(batch.observations, batch.actions, self.ood_generator)
        minimise(loss, self.behaviour_optimiser)
        return {"loss_cvae": loss.detach()}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """lam * TD error + (1 - lam) * OOD term, summed over critics."""
        td_loss, metrics = super().critic_loss(batch)
        if self.config.lam == 1:
            return td_loss, metrics
        ood_loss, ood_metrics = self.ood_loss(batch)
        lam = self.config.lam
        return lam * td_loss + (1 - lam) * ood_loss, metrics | ood_metrics

    def ood_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Train the policy's actions in s and s' towards the best of the behaviour's."""
        c = self.config
        states = torch.cat([batch.observations, batch.next_observations])  # s_in, (2 batch, o)
        behaviour_actions = self.draw_behaviour(states)
        target = mcb.pseudo_target(
            self.critics, states, behaviour_actions, floor=c.pseudo_floor, reduction=c.pseudo_reduction
        )
        ood_actions = self.draw_ood(states)
        mask = None
        if c.ood_distance_min is not None:
            mask = mcb.far_from_behaviour(ood_actions, behaviour_actions, c.ood_distance_min)
        values = self.critics(states, ood_actions)  # (critics, 2 batch, N)
        loss = mcb.ood_loss(values, target, delta=c.delta, one_sided=c.one_sided, mask=mask).sum()
        return loss, {
            "loss_ood": loss.detach(),
            "q_ood": values.detach().mean(),
            "pseudo_target": target.mean(),
            "behaviour_spread": behaviour_actions.std(dim=-2, unbiased=False).mean(),
        }

    def draw_behaviour(self, states: Tensor) -> Tensor:
        """N actions a state from the behaviour model."""
        return self._draw(lambda n: self.behaviour.sample(states, n, self.ood_generator))

    def draw_ood(self, states: Tensor) -> Tensor:
        """N actions a state from the policy; the actor runs once a state."""
        with torch.no_grad():
            policy = self.pi(states)
        return self._draw(lambda n: policy.sample(n, self.ood_generator))

    def _draw(self, sample: Callable[[int], Tensor]) -> Tensor:
        """One set of N actions a state for all critics, (states, N, a), or one for each, (critics, states, N, a)."""
        n = self.config.num_actions
        if not self.config.independent_samples:
            return sample(n)
        return torch.stack([sample(n) for _ in range(self.critics.ensemble)])

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The paper's lam for a data set and what a preset does on it besides."""
        table = _hyperparameters()
        task = re.sub(r"-v\d+$", "", re.sub(r"-(re)?collected$", "", name))
        lam = {"lam": table["lam"][task]} if task in table["lam"] else {}
        besides: dict[str, Any] = table["presets"].get(preset, {}).get(task, {})
        return lam | besides


@cache
def _hyperparameters() -> dict[str, Any]:
    return tomllib.loads((files("mildly.algorithms") / "mcq.toml").read_text())
