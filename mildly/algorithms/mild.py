"""The mildly conservative part of MCQ, for any actor-critic method: `class MCQ(MildlyConservative, SAC)`.

It adds to a method's step on a batch (s, a, r, s', d):

    behavior model   train mu_hat on (s, a)
    pseudo target     y'(s_in) = min_j max_i Q_j(s_in, b_i),  b_1..b_N ~ mu_hat(.|s_in),  s_in in {s, s'}
    critics           minimize lam * TD error + (1 - lam) * mean (Q_j(s_in, u) - y'(s_in))^2,  u ~ pi(.|s_in)

and nothing else: with lam = 1 the method is itself again, to the bit.
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
from mildly.algorithms.actor_critic import ActorCritic, ActorCriticConfig
from mildly.algorithms.base import Metrics, require
from mildly.behavior import BEHAVIOR_MODELS
from mildly.behavior.base import BehaviorModel
from mildly.behavior.cache import ActionCache
from mildly.data.dataset import Dataset
from mildly.data.replay import Batch
from mildly.optimizer import minimize

LAM_START, LAM_RANGE = 0.7, (0.3, 0.99)
"""Where lam = "auto" begins and may go: about the range in which the paper searched."""
LAM_RATE = 2e-4
"""The most that it moves in a step."""


@dataclass(frozen=True)
class MildConfig(ActorCriticConfig):
    """Hyperparameters of the mildly conservative term; the defaults are the paper's."""

    lam: float | Literal["auto"] = 0.7
    """Weight of the data's temporal-difference error against the OOD actions' term, in (0, 1]; 1 is the plain method,
    "auto" lets it find itself."""
    ood_weight: float | None = None
    """c in TD error + c * OOD term, the authors' other way to weigh the two. Takes the place of lam."""
    num_actions: int = 10
    """N: behavior actions drawn in each state."""
    ood_actions: int | None = None
    """OOD actions drawn in each state; N if not given. Fewer estimate the same term at less cost."""
    delta: float = 0.0
    """How far below the pseudo target OOD actions are trained to lie."""
    delta_scale: float = 0.0
    """The same in units of the values' own standard deviation over the data, so that it suits any rewards."""
    one_sided: bool = False
    """Train OOD actions only where their value exceeds the pseudo target."""
    ood_distance_min: float | None = None
    """Count an OOD action only if its squared distance to a behavior action is at least this."""
    pseudo_floor: float | None = None
    """Lower bound of the pseudo target. Harmful where values are negative."""
    pseudo_reduction: Literal["min", "mean"] = "min"
    """How the critics' pseudo targets are combined."""
    pseudo_critics: Literal["online", "target"] = "online"
    """Which critics value the behavior actions: those in training, as printed, or their slow targets."""
    independent_samples: bool = False
    """Draw behavior and OOD actions anew for each critic instead of sharing them."""
    behavior: Literal["cvae", "cgan", "flow"] = "cvae"
    """The model of the data's policy."""
    behavior_hidden: tuple[int, ...] | None = None
    """Widths of its hidden layers; its own default if not given ((750, 750) for the CVAE)."""
    behavior_lr: float | None = None
    """Its learning rate; its own default if not given (0.001 for the CVAE)."""
    behavior_steps: int | None = None
    """Train it in this many first steps only; in all if not given."""
    cache_actions: bool = False
    """Once it is trained, decode N actions for every state of the data once and keep them. Needs behavior_steps."""
    cache_megabytes: float = 2000.0
    """Memory that the kept actions may take; beyond it they are drawn in each step after all."""
    refresh_every: int | None = None
    """Steps after which the kept actions are drawn anew; never if not given."""
    latent_size: int | None = None
    """Latent dimensions of the CVAE; twice the action's if not given."""
    kl_weight: float = 1.0
    """Weight of the divergence in the CVAE's loss. Below 1 the model spreads its actions more."""
    latent_clip: float | None = 0.5
    """The CVAE's latents are clipped to plus or minus this when actions are drawn; None draws from the whole prior."""
    encoder_log_std_min: float = -4.0
    """Lower bound of the CVAE encoder's log standard deviation."""
    encoder_log_std_max: float = 15.0
    """Upper bound of the CVAE encoder's log standard deviation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lam == "auto" or 0 < self.lam <= 1, "lam", "in (0, 1] or 'auto'", self.lam)
        require(self.num_actions >= 1, "num_actions", "at least 1", self.num_actions)
        for name in ("delta", "delta_scale", "kl_weight"):
            require(getattr(self, name) >= 0, name, "at least 0", getattr(self, name))
        reduction, distance = self.pseudo_reduction, self.ood_distance_min
        require(reduction in ("min", "mean"), "pseudo_reduction", "'min' or 'mean'", reduction)
        critics, models = self.pseudo_critics, ", ".join(BEHAVIOR_MODELS)
        require(critics in ("online", "target"), "pseudo_critics", "'online' or 'target'", critics)
        require(self.behavior in BEHAVIOR_MODELS, "behavior", f"one of {models}", self.behavior)
        require(distance is None or distance >= 0, "ood_distance_min", "at least 0 or None", distance)
        for name in ("ood_actions", "latent_size", "behavior_steps", "refresh_every"):
            require(getattr(self, name) is None or getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("ood_weight", "behavior_lr", "latent_clip", "cache_megabytes"):
            require(getattr(self, name) is None or getattr(self, name) > 0, name, "positive", getattr(self, name))
        widths = self.behavior_hidden
        require(widths is None or all(width >= 1 for width in widths), "behavior_hidden", "positive widths", widths)
        low, high = self.encoder_log_std_min, self.encoder_log_std_max
        require(low < high, "encoder_log_std_min", "below encoder_log_std_max", low)
        count = self.ood_count
        require(distance is None or count <= self.num_actions, "ood_actions", "at most num_actions with a mask", count)
        known = self.behavior_steps is not None
        require(known or not self.cache_actions, "behavior_steps", "given where actions are kept", None)
        shared = not (self.cache_actions and self.independent_samples)
        require(shared, "independent_samples", "False where actions are kept, which all critics share", True)
        refresh = self.refresh_every
        require(refresh is None or self.cache_actions, "refresh_every", "None where no actions are kept", refresh)

    @property
    def ood_count(self) -> int:
        """OOD actions a state."""
        return self.num_actions if self.ood_actions is None else self.ood_actions


class MildlyConservative(ActorCritic):
    """The part of MCQ's two forms that makes them MCQ. It stands before the method it is added to."""

    Config: ClassVar[type[Any]] = MildConfig
    config: MildConfig
    FORM: ClassVar[str]
    """What it is added to, as `mcq.toml` calls it."""

    def build(self, seed: int) -> None:
        """The method's parts and the behavior model, with random numbers of its own: the method's stay untouched."""
        super().build(seed)
        c, model = self.config, BEHAVIOR_MODELS[self.config.behavior]
        options: dict[str, Any] = {}
        if c.behavior == "cvae":
            options = {
                "latent_size": c.latent_size,
                "latent_clip": c.latent_clip,
                "log_std_range": (c.encoder_log_std_min, c.encoder_log_std_max),
                "kl_weight": c.kl_weight,
            }
        hidden = model.HIDDEN if c.behavior_hidden is None else c.behavior_hidden
        self.behavior: BehaviorModel = model(self.observation_size, self.action_size, hidden, **options)
        self.behavior.to(self.device)
        settings = model.ADAM | ({} if c.behavior_lr is None else {"lr": c.behavior_lr})
        self.behavior_optimizer = self.adam(self.behavior, **settings)
        self.ood_generator = self.random_stream(seed, "ood")
        self.cache: ActionCache | None = None
        adapts = c.lam == "auto" and c.ood_weight is None
        self.lam = torch.full((), LAM_START, device=self.device) if adapts else None

    def prepare(self, dataset: Dataset) -> None:
        """Besides what the method looks at, the states whose actions are kept."""
        super().prepare(dataset)
        if self.config.cache_actions:
            cache = ActionCache(dataset, self.config.num_actions, self.device, self.scaling)
            self.cache = cache if cache.megabytes <= self.config.cache_megabytes else None

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore; actions that were kept came from the weights before."""
        super().load_state_dict(state)
        if self.cache is not None:
            self.cache.edition = -1

    def skip_start(self) -> None:
        """Go to the end of the behavior model's training, too."""
        super().skip_start()
        self.updates = max(self.updates, self.config.behavior_steps or 0)

    @property
    def mild(self) -> bool:
        """Whether there is an OOD term at all."""
        return self.config.lam != 1 or self.config.ood_weight is not None

    def update(self, batch: Batch) -> Metrics:
        """One step of the behavior model while it trains, then the method's own with the critics' loss below."""
        steps = self.config.behavior_steps
        fitting = self.mild and (steps is None or self.updates < steps)
        metrics = self.update_behavior(batch) if fitting else {}
        return metrics | super().update(batch)

    def update_behavior(self, batch: Batch) -> Metrics:
        """One step of the behavior model towards the data's actions."""
        loss = self.behavior.loss(batch.observations, batch.actions, self.ood_generator, self.updates)
        minimize(loss, self.behavior_optimizer)
        return {"loss_behavior": loss.detach()}

    def critic_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """lam * TD error + (1 - lam) * OOD term, summed over critics."""
        td_loss, metrics = super().critic_loss(batch)
        if not self.mild:
            return td_loss, metrics
        ood_loss, ood_metrics = self.ood_loss(batch)
        metrics |= ood_metrics
        if self.config.ood_weight is not None:
            return td_loss + self.config.ood_weight * ood_loss, metrics
        lam: float | Tensor
        if self.config.lam == "auto":
            lam = metrics["lam"] = self.adapted_lam(metrics)
        else:
            lam = self.config.lam
        return lam * td_loss + (1 - lam) * ood_loss, metrics

    def ood_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Train the policy's actions in s and s' towards the best of the behavior's."""
        c = self.config
        states = torch.cat([batch.observations, batch.next_observations])  # s_in, (2 batch, o)
        behavior_actions = self.behavior_actions(states, batch.rows)
        critics = self.critics if c.pseudo_critics == "online" else self.target_critics
        target = mcb.pseudo_target(
            critics, states, behavior_actions, floor=c.pseudo_floor, reduction=c.pseudo_reduction
        )
        ood_actions = self._for_critics(lambda: self.policy_actions(states, c.ood_count, self.ood_generator))
        mask = None
        if c.ood_distance_min is not None:
            paired = behavior_actions[..., : ood_actions.shape[-2], :]
            mask = mcb.far_from_behavior(ood_actions, paired, c.ood_distance_min)
        delta = c.delta + c.delta_scale * target.std() if c.delta_scale else c.delta
        values = self.critics(states, ood_actions)  # (critics, 2 batch, n)
        loss = mcb.ood_loss(values, target, delta=delta, one_sided=c.one_sided, mask=mask).sum()
        metrics = {
            "loss_ood": loss.detach(),
            "q_ood": values.detach().mean(),
            "pseudo_target": target.mean(),
            "behavior_spread": behavior_actions.std(dim=-2, unbiased=False).mean(),
        }
        if self.lam is not None:
            with torch.no_grad():
                of_data = self.critics(batch.observations, batch.actions)
            metrics["ood_gap"] = (loss.detach() / self.critics.ensemble).sqrt()
            metrics["data_gap"] = (of_data - target[: len(batch.actions)]).square().mean().sqrt()
        return loss, metrics

    def behavior_actions(self, states: Tensor, rows: Tensor) -> Tensor:
        """N actions a state from the behavior model: kept ones if there are any, else fresh ones."""
        c = self.config
        if self.cache is not None and c.behavior_steps is not None and len(rows) and self.updates >= c.behavior_steps:
            edition = (self.updates - c.behavior_steps) // c.refresh_every if c.refresh_every else 0
            self.cache.fill(self.behavior, edition, self.ood_generator.initial_seed())
            return self.cache.gather(rows)
        return self._for_critics(lambda: self.behavior.sample(states, c.num_actions, self.ood_generator))

    def _for_critics(self, draw: Callable[[], Tensor]) -> Tensor:
        """One set of n actions a state for all critics, (states, n, a), or one for each, (critics, states, n, a)."""
        if not self.config.independent_samples:
            return draw()
        return torch.stack([draw() for _ in range(self.critics.ensemble)])

    def adapted_lam(self, metrics: Metrics) -> Tensor:
        """lam = "auto": OOD values may differ from the pseudo targets as much as the values of the data's actions do.

            ratio  = OOD term, mean (Q(s_in, u) - y'(s_in))^2, over mean (Q(s, a) - y'(s))^2
            lam   <- clip(lam + rate * clip(1 - ratio, -1, 1), 0.3, 0.99)

        Where they differ more, their term gains weight; where they are in hand, the data's does. Data whose actions
        differ much in value have shown what good actions look like, and a policy's may look as good.
        """
        assert self.lam is not None
        room = 1 - (metrics["ood_gap"] / metrics["data_gap"].clamp(min=1e-6)).square()
        self.lam.add_(LAM_RATE * room.clamp(-1, 1)).clamp_(*LAM_RANGE)
        return self.lam.clone()

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The paper's lam for a data set and what a preset does on it besides."""
        table = _hyperparameters()
        task = re.sub(r"-v\d+$", "", re.sub(r"-(re)?collected$", "", name))
        lams = table["lam"] | table.get(f"lam-{cls.FORM}", {})
        lam = {"lam": lams[task]} if task in lams and "lam" not in cls.PRESETS.get(preset, {}) else {}
        besides: dict[str, Any] = table["presets"].get(preset, {}).get(task, {}) if cls.FORM == "sac" else {}
        return lam | besides


@cache
def _hyperparameters() -> dict[str, Any]:
    return tomllib.loads((files("mildly.algorithms") / "mcq.toml").read_text())
