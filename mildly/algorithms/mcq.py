"""MCQ: Mildly Conservative Q-learning (Lyu et al., NeurIPS 2022), Algorithm 1 of the paper: on SAC.

One step on a batch (s, a, r, s', d), with the paper's numbers of lines and equations:

    5, Eq. 10   behavior model   train mu_hat, the paper's being a CVAE, on (s, a)
    6, Eq. 12   target           y = r + gamma (1 - d) [min_j Q'_j(s', a') - alpha log pi(a'|s')]
    7           OOD actions      u_1..u_N ~ pi(.|s_in),  s_in in {s, s'}
    8, Eq. 13   pseudo target    y'(s_in) = min_j max_i Q_j(s_in, b_i),  b_1..b_N ~ mu_hat(.|s_in)
    9, Eq. 11   critics          minimize lam * mean (Q_j(s, a) - y)^2 + (1 - lam) * mean (Q_j(s_in, u) - y'(s_in))^2
    10, Eq. 14  actor            minimize mean alpha log pi(a~|s) - min_j Q_j(s, a~)
    11          targets          theta' <- tau theta + (1 - tau) theta'

The one change to SAC is the second term of the critics' loss: with lam = 1 it is SAC again, to the bit. `mcb.py` holds
that term for any critic, `mcq_td3.py` the form on TD3. Presets and the paper's lam for each data set are in `mcq.toml`.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, ClassVar, Literal, cast

import torch
from torch import Tensor

from mildly import mcb
from mildly.algorithms.auto_lam import AutoLam
from mildly.algorithms.base import Algorithm, Metrics, Phase, behavior_phases
from mildly.algorithms.config import ActorCriticConfig, require, require_at_least
from mildly.algorithms.sac import SAC, SACConfig
from mildly.behavior import BehaviorConfig, BehaviorLearner, draw_sets
from mildly.data.batches import Batch, Sampler
from mildly.data.dataset import Dataset
from mildly.data.tasks import base_name
from mildly.networks import Critics, polyak_update, td_loss
from mildly.optimizer import Adam, minimize

TABLE: dict[str, Any] = tomllib.loads((files("mildly.algorithms") / "mcq.toml").read_text())


@dataclass(frozen=True)
class MildConfig(ActorCriticConfig):
    """Hyperparameters of the mildly conservative term; the defaults are the paper's."""

    lam: float | Literal["auto"] = 0.7
    """Weight of the data's temporal-difference (TD) error against the term of out-of-distribution (OOD) actions, in
    (0, 1]. 1 leaves that term out; auto adapts it while training."""
    ood_weight: float | None = None
    """c in TD error + c * OOD term, the authors' other way to weigh the two. Takes the place of lam, and trains like
    lam = 1 / (1 + c), since Adam does not know the scale of a loss."""
    num_actions: int = 10
    """N: behavior actions drawn in each state; the best of them is the pseudo target of OOD actions."""
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
    behavior: BehaviorConfig = BehaviorConfig()
    """The model of the data's policy."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lam == "auto" or 0 < self.lam <= 1, "lam", "in (0, 1] or 'auto'", self.lam)
        require_at_least(self, delta=0, delta_scale=0, num_actions=1, ood_actions=1, ood_distance_min=0)
        require(self.ood_weight is None or self.ood_weight > 0, "ood_weight", "positive", self.ood_weight)
        count, masked = self.ood_actions or self.num_actions, self.ood_distance_min is not None
        require(not masked or count <= self.num_actions, "ood_actions", "at most num_actions with a mask", count)
        for name, choices in {"pseudo_reduction": ("min", "mean"), "pseudo_critics": ("online", "target")}.items():
            require(getattr(self, name) in choices, name, " or ".join(map(repr, choices)), getattr(self, name))
        shared = not (self.behavior.cache and self.independent_samples)
        require(shared, "independent_samples", "False where actions are kept, which all critics share", True)


class MildlyConservative(Algorithm):
    """What makes a learner MCQ: `class MCQ(MildlyConservative, SAC)`."""

    config: MildConfig
    critics: Critics
    target_critics: Critics
    FORM: ClassVar[str]  # what it is added to, as `mcq.toml` calls it
    PRESET_STEPS: ClassVar = {**Algorithm.PRESET_STEPS, "default": 15_000}  # behind phases of 65,000
    DERIVED: ClassVar = Algorithm.DERIVED | {"mild", "joint"}
    if TYPE_CHECKING:  # the learner it is added to has these
        critic_optimizer: Adam

        def td_target(self, batch: Batch) -> Tensor: ...
        def policy_actions(self, observations: Tensor, n: int) -> Tensor: ...

    def build(self, seed: int) -> None:
        super().build(seed)  # type: ignore[safe-super]
        c = self.config
        self.ood_generator = self.random_stream(seed, "ood")
        sizes = self.observation_size, self.action_size
        self.behavior = BehaviorLearner(c.behavior, *sizes, self.device, self.ood_generator)
        self.mild = c.lam != 1 or c.ood_weight is not None  # whether there is an OOD term at all
        self.joint = self.mild and c.behavior.steps is None  # whether every step trains the behavior model
        self.auto_lam = AutoLam(self.device) if c.lam == "auto" and c.ood_weight is None else None

    def batches(self, dataset: Dataset) -> Sampler:
        """Transitions; the behavior model keeps actions for their states, if asked for."""
        sampler = super().batches(dataset)
        if self.mild:
            kept, normalizer = self.select(dataset), self.preprocessing.normalizer
            self.behavior.keep_actions(kept, self.config.num_actions, self.device, normalizer)
        return sampler

    def phases(self) -> list[Phase]:
        """The behavior model first, if it has steps of its own."""
        return (behavior_phases(self.behavior) if self.mild else []) + super().phases()

    def begin_finetuning(self) -> None:
        """The behavior model learns on in every step: the data's policy is no longer the one that it was trained on."""
        super().begin_finetuning()
        self.joint = self.mild
        self.behavior.cache = None

    def warm_up(self, batch: Batch) -> Metrics:
        return (self.behavior.update(batch) if self.joint else {}) | super().warm_up(batch)

    def update_critics(self, batch: Batch) -> Metrics:
        """Lines 6 to 9: one step of both critics down lam * TD error + (1 - lam) * OOD term (Eq. 11)."""
        loss, metrics = td_loss(self.critics, batch, self.td_target(batch))
        if self.mild:
            ood_loss, ood_metrics = self.ood_loss(batch)
            metrics |= ood_metrics
            weight, lam = self.config.ood_weight, metrics.get("lam", cast(float, self.config.lam))
            loss = lam * loss + (1 - lam) * ood_loss if weight is None else loss + weight * ood_loss
        minimize(loss, self.critic_optimizer)
        return metrics | {"loss_critic": loss.detach()}

    def ood_loss(self, batch: Batch) -> tuple[Tensor, Metrics]:
        """Lines 7 and 8: the policy's actions in s and s' are trained towards the best of the behavior's (Eq. 13)."""
        c = self.config
        s_in = torch.cat([batch.observations, batch.next_observations])  # (2 batch, o)
        sets = self.critics.ensemble if c.independent_samples else 1  # of actions: for all critics, or for each
        behavior_actions = self.behavior.actions(s_in, batch.rows, c.num_actions, sets)  # b, (2 batch, n, a)
        ood_actions = draw_sets(sets, lambda: self.policy_actions(s_in, c.ood_actions or c.num_actions))  # u
        distance = c.ood_distance_min
        mask = None if distance is None else mcb.far_from_behavior(ood_actions, behavior_actions, distance)
        critics = self.critics if c.pseudo_critics == "online" else self.target_critics
        target = mcb.pseudo_target(critics, s_in, behavior_actions, floor=c.pseudo_floor, reduction=c.pseudo_reduction)
        delta = c.delta + c.delta_scale * target.std() if c.delta_scale else c.delta
        values = self.critics(s_in, ood_actions)  # (critics, 2 batch, n)
        loss = mcb.ood_loss(values, target, delta=delta, one_sided=c.one_sided, mask=mask).sum()
        metrics = {
            "loss_ood": loss.detach(),
            "q_ood": values.detach().mean(),
            "pseudo_target": target.mean(),
            "behavior_spread": spread(behavior_actions),
        }
        if self.auto_lam is not None:
            metrics |= self.auto_lam.update(self.critics, batch, target, loss)
        return loss, metrics

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The paper's lam for a data set, and what a preset does on it besides."""
        task, table, lams = base_name(name), TABLE[cls.FORM], TABLE["lam"] | TABLE[cls.FORM]["lam"]
        lam = {"lam": lams[task]} if task in lams else {}
        return lam | dict(table["on"].get(preset, {}).get(task, {}))


def spread(actions: Tensor) -> Tensor:
    """The standard deviation of a state's n actions, (..., n, a), averaged; in a seventh of `Tensor.std`'s time."""
    return (actions - actions.mean(dim=-2, keepdim=True)).square().mean(dim=-2).sqrt().mean()


@dataclass(frozen=True)
class MCQConfig(MildConfig, SACConfig):
    """Hyperparameters of MCQ; the defaults are the paper's."""


class MCQ(MildlyConservative, SAC):
    """SAC whose critics also learn, mildly conservatively, the values of actions the data does not show."""

    Config = MCQConfig
    config: MCQConfig
    FORM = "sac"
    PRESETS: ClassVar = TABLE["sac"]["presets"]
    PRESET_NOTES: ClassVar = TABLE["notes"]
    KEY_FIELDS = ("lam", "num_actions", *SAC.KEY_FIELDS)

    def update(self, batch: Batch) -> Metrics:
        """One step of Algorithm 1."""
        c = self.config
        metrics = self.behavior.update(batch) if self.joint else {}  # line 5
        pi = self.distribution(batch.observations)
        drawn = pi.rsample(self.generator)
        metrics |= self.update_temperature(drawn) if c.alpha_first else {}
        metrics |= self.update_critics(batch)  # lines 6 to 9
        metrics = self.update_actor(batch, drawn, pi) | metrics  # line 10
        metrics |= {} if c.alpha_first else self.update_temperature(drawn)
        polyak_update(self.target_critics, self.critics, c.tau)  # line 11
        return metrics

    @torch.no_grad()
    def policy_actions(self, observations: Tensor, n: int) -> Tensor:
        """N draws per state, without gradients; the actor runs once per state."""
        draws: Tensor = self.distribution(observations, self.ood_generator).sample(n, self.ood_generator)
        return draws
