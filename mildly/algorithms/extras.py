"""Extras: what any algorithm with an actor and critics may add to its method. All are off unless asked for.

The data show what each action was followed by, its discounted return G. By default only its rewards are used.

    level_start   the critics begin at the mean of G instead of about 0, so that they need not climb there one reward at
                  a time. It moves the origin of the rewards and changes nothing else, except where a method looks at
                  the size of values, as TD3+BC's weight, a floor or a ceiling do.
    return_mix    k: the critics' target is (1 - k) y + k G, y the method's own. That is y of the policy for about 1 / k
                  steps and of the data's actions from then on (Geng et al. 2024, "Improving Offline RL by Blending
                  Heuristics"). A fall far ahead is known at once, and not after hundreds of sweeps. It is a relabeling
                  of rewards and ends, so that no method knows of it.
    bc_steps      a phase in which the actor alone learns, and clones the data's actions, which costs little.
    bc_warmup_steps   a phase in which the actor clones the data's actions while the critics learn, so that it begins
                  to climb when they know a slope.
    bc_preference   p: warm-up and anchor clone what went well. A transition counts by exp(p z), z being how many
                  standard deviations the return of its episode lies above the mean. Where a good and a poor policy
                  have logged, a clone of both is neither.
    policy_ema    the policy that acts is a running average of the actor. Single updates can make a robot fall in some
                  states; the average of many actors falls less often.

    bc_weight     an anchor: the actor's loss has a cloning term as well, in units of how much G differs between the
                  episodes of the data. Where good and bad policies have logged, critics take what the better one does
                  for the reason of its values, and the anchor must be strong. It is lifted where the learner acts
                  itself: what an action brings is then tried, and need not be feared.
    bc_rise       q: the anchor holds on where the data gain. A transition counts by exp(q z), z being by how many
                  standard deviations G rises in the steps that follow, more than it usually does. Where a robot
                  accelerates, values rise from state to state, and critics take the logged action for the reason.
                  Where the data lose it lets go (z < 0), if all episodes terminate or none does: a hopper that always
                  falls has something to gain there. If half of the rows or more are of episodes that do not terminate,
                  a fall is bad luck, and a transition counts at least 1; if fewer are, at least in proportion.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from mildly.actors import Actor
from mildly.algorithms.config import require
from mildly.data.batches import Batch, Preprocessing, Sampler
from mildly.data.dataset import Array, Dataset
from mildly.data.returns import Returns, pieces
from mildly.networks import polyak_update
from mildly.state import Stateful

Metrics = dict[str, Tensor]
_PIECE = 10.0  # times the horizon 1 / (1 - gamma): longer episodes count as several
_PASSES = 40  # over the data, beyond which a clone learns its noise
_FAR = 3.0  # standard deviations beyond which a return is as good or as poor as can be
_SOON = 0.2  # times the horizon: the steps in which returns rise or fall
_MOSTLY = 0.5  # of the rows: if so many are of episodes that do not terminate, those that do are bad luck
_RECENT = 5  # at first the average is of the last fifth of the main steps
_FINETUNING_RATE = 1e-3  # at least, of an average that must show what few further steps have changed


class Phase(NamedTuple):
    """Steps that are taken before the main ones, with a count of their own."""

    name: str
    """What progress and metrics call it."""
    steps: int
    update: Callable[[Any], Metrics]
    """Takes one step on a batch."""
    field: str = ""
    """The config field that sets its steps."""
    sampler: Sampler | None = None
    """What it draws from, if not from what the main steps do."""
    finished: Callable[[], bool] | None = None
    """Whether it ends here, before its steps are made."""


class Clones(Protocol):
    """A learner with extras, as its phases see it."""

    config: Any
    actor: nn.Module

    def clone(self, batch: Batch) -> Metrics: ...

    def warm_up(self, batch: Batch) -> Metrics: ...


@dataclass(frozen=True)
class Extras:
    """Extras: a start from the data, and an averaged policy."""

    level_start: bool = False
    """Start the critics' values at the data's mean discounted return instead of about 0."""
    return_mix: float = 0.0
    """Weight of the data's own discounted returns in the critics' targets, from 0 (none) to 1 (nothing else). 0.1 suits
    data of one policy, or of a few."""
    return_mix_ends: Literal["all", "terminated"] = "all"
    """Which episodes' returns are mixed: of all, or of those alone that terminate, whose returns are exact."""
    bc_steps: int = 0
    """Steps before all others in which only the actor learns, and clones the data's actions; at most 40 passes over the
    data."""
    bc_warmup_steps: int = 0
    """Steps before the main ones in which the actor clones the data's actions while the critics learn."""
    bc_preference: float = 0.0
    """How much cloning prefers episodes with high returns: one whose return lies a standard deviation above another's
    counts exp of this times as much. 0 is none, 1 suits most data."""
    policy_ema: float | None = None
    """If given, the policy that acts is a running average of the actor over about the last 1 / policy_ema steps, or,
    until there are five times as many main steps, over the last fifth of these; while fine-tuning, over 1,000."""

    def __post_init__(self) -> None:
        require(0 <= self.return_mix <= 1, "extras.return_mix", "in [0, 1]", self.return_mix)
        known = self.return_mix_ends in ("all", "terminated")
        require(known, "extras.return_mix_ends", "'all' or 'terminated'", self.return_mix_ends)
        require(self.bc_steps >= 0, "extras.bc_steps", "at least 0", self.bc_steps)
        require(self.bc_warmup_steps >= 0, "extras.bc_warmup_steps", "at least 0", self.bc_warmup_steps)
        require(0 <= self.bc_preference <= 10, "extras.bc_preference", "in [0, 10]", self.bc_preference)
        average = self.policy_ema
        require(average is None or 0 < average <= 1, "extras.policy_ema", "in (0, 1]", average)


@dataclass(frozen=True)
class AnchoredExtras(Extras):
    """Extras: a start from the data, an anchor in its actions, and an averaged policy."""

    bc_weight: float = 0.0
    """Weight of a behavior cloning term in the actor's loss, in units of how much the data's episodes differ in their
    discounted returns (standard deviation), so that it suits any rewards. 0.02 is a light one."""
    bc_rise: float = 0.0
    """How much that term holds on where the return still to come rises soon after: a transition after which it rises by
    a standard deviation more than after another counts exp of this times as much. Where it falls the term lets go,
    unless some episodes terminate and most do not. 0 is none, 1 suits most data."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.bc_weight >= 0, "extras.bc_weight", "at least 0", self.bc_weight)
        require(0 <= self.bc_rise <= 10, "extras.bc_rise", "in [0, 10]", self.bc_rise)


class ActorCriticExtras(Stateful):
    """The extras of one learner."""

    DERIVED: ClassVar = frozenset(
        {"config", "gamma", "values", "level", "unit", "usual", "preferences"}
        | {"rise", "usual_rise", "loosest", "holds", "anchored", "rows", "rate"}
    )

    def __init__(self, config: Extras, gamma: float, actor: Actor, values: Sequence[nn.Module]) -> None:
        """`values` are the networks that estimate returns; their last parameter is the offset of their output."""
        self.config, self.gamma, self.values = config, gamma, values
        self.rows = 0
        """Of the first data."""
        self.anchored = isinstance(config, AnchoredExtras) and config.bc_weight > 0
        self.rise = config.bc_rise if isinstance(config, AnchoredExtras) and self.anchored else 0.0
        self.level = self.unit = self.usual = torch.zeros(())  # of returns, of their spread, of counts in the data
        self.preferences: Tensor | None = None
        """What each row of the data counts in cloning, on average 1; the last number is of what is no row."""
        self.usual_rise = torch.zeros(2)  # of the data's returns: the median and the standard deviation
        self.loosest = torch.ones(())  # the least that a row counts in the anchor
        self.holds: Tensor | None = None
        """What each row counts in the anchor besides, at the median 1; the last number is of what is no row."""
        self.average = None if config.policy_ema is None else copy.deepcopy(actor).requires_grad_(False)
        self.rate = config.policy_ema or 0.0
        """At which the average follows the actor."""
        self.steps = 0

    def start(self, dataset: Dataset, preprocessing: Preprocessing, device: torch.device) -> dict[str, Tensor]:
        """Bring the values to the level of the data's returns; the columns in which returns are mixed, if asked for."""
        c = self.config
        self.rows = len(dataset)
        if not (c.level_start or c.return_mix or c.bc_preference or self.anchored):
            return {}
        scaled = preprocessing.scaled(dataset)
        returns = Returns.of(scaled, self.gamma, device)
        self.level = returns.level()
        if c.bc_preference or self.anchored:
            self.unit = returns.spread(self._pieces(scaled))
        if c.level_start:
            for network in self.values:
                list(network.parameters())[-1].data.fill_(self.level)
        return self.include(dataset, preprocessing, device, returns)

    def include(
        self, dataset: Dataset, preprocessing: Preprocessing, device: torch.device, returns: Returns | None = None
    ) -> dict[str, Tensor]:
        """Count the rows of data, the first or further ones; the columns in which returns are mixed, if asked for."""
        c = self.config
        if not (c.return_mix or c.bc_preference or self.rise):
            return {}
        scaled = preprocessing.scaled(dataset)
        returns = returns or Returns.of(scaled, self.gamma, device)
        if c.bc_preference:
            self._prefer(returns.of_pieces(self._pieces(scaled)))
        if self.rise:
            self._hold(returns.rise(scaled, max(1, round(_SOON / (1 - self.gamma)))), returns.ended)
        if not c.return_mix:
            return {}
        ended = np.zeros(len(dataset)) if preprocessing.ignore_terminals else np.asarray(dataset.terminated)
        rewards, ends = (torch.from_numpy(np.array(x, dtype=np.float32)).to(device) for x in (scaled.rewards, ended))
        return returns.mixed(rewards, ends, c.return_mix, terminated_only=c.return_mix_ends == "terminated")

    def _pieces(self, scaled: Dataset) -> Array:
        return pieces(scaled, round(_PIECE / (1 - self.gamma)))

    def _prefer(self, means: Tensor) -> None:
        """Count rows by the mean returns of their pieces, in standard deviations of the first data."""
        counts = (self.config.bc_preference * _deviations(means, self.level, self.unit)).exp()
        if self.preferences is None:
            self.usual = counts.mean()
        self.preferences = _followed_by(self.preferences, counts / self.usual)

    def _hold(self, rises: Tensor, ended: Tensor) -> None:
        """Count rows by how much their returns rise, in standard deviations of the first data.

        `ended` is 1 where a row's episode terminates, else 0.
        """
        if self.holds is None:
            self.usual_rise = torch.stack([rises.median(), rises.std(unbiased=False)])
            going = 1 - ended.mean()
            self.loosest = (going / _MOSTLY).clamp(max=1) * (going < 1)
        counts = (self.rise * _deviations(rises, *self.usual_rise)).exp()
        self.holds = _followed_by(self.holds, counts.maximum(self.loosest))

    def phases(self, learner: Clones) -> list[Phase]:
        """Cloning alone, and the warm-up; as far as they are asked for."""
        c = self.config
        most = math.ceil(_PASSES * self.rows / learner.config.batch_size) if self.rows else c.bc_steps
        both = (
            Phase("cloning", min(c.bc_steps, most), learner.clone, "extras.bc_steps"),
            Phase("bc warm-up", c.bc_warmup_steps, learner.warm_up, "extras.bc_warmup_steps"),
        )
        return [phase for phase in both if phase.steps]

    def mean_loss(self, losses: Tensor, batch: Batch) -> Tensor:
        """The mean of a batch's cloning losses, (batch,), in which what went well counts more if asked for."""
        return _counted(losses, self.preferences, batch).mean()

    def begin_finetuning(self) -> None:
        """Let what acts follow sooner what is learned."""
        self.rate = max(self.rate, _FINETUNING_RATE)

    def begin_acting(self) -> None:
        """Lift the anchor."""
        self.anchored = False

    def anchor(self, losses: Tensor, batch: Batch, scale: float | Tensor = 1.0) -> Tensor:
        """The term of the actor's loss: cloning losses, (batch,), in units of the spread of returns between episodes.

        `scale` is what the method multiplies values with in that loss, if with anything.
        """
        assert isinstance(self.config, AnchoredExtras)
        held = _counted(losses, self.holds, batch)
        return self.config.bc_weight * scale * self.unit * self.mean_loss(held, batch)

    def after_step(self, actor: nn.Module) -> None:
        """Let the average follow the actor; at first it averages only the most recent fifth of the steps."""
        self.steps += 1
        if self.average is not None:
            polyak_update(self.average, actor, max(self.rate, min(1.0, _RECENT / self.steps)))


def _deviations(values: Tensor, usual: Tensor, spread: Tensor) -> Tensor:
    """By how many standard deviations values lie above the usual one."""
    return ((values - usual) / spread.clamp(min=torch.finfo(values.dtype).tiny)).clamp(-_FAR, _FAR)


def _followed_by(counts: Tensor | None, more: Tensor) -> Tensor:
    """The counts of all rows and then of further ones; what is no row of the data, which is row -1, counts 1."""
    known = more[:0] if counts is None else counts[:-1]
    return torch.cat([known, more, more.new_ones(1)])


def _counted(losses: Tensor, counts: Tensor | None, batch: Batch) -> Tensor:
    """The losses of a batch times what its rows count, if they do not count alike."""
    return losses if counts is None or not len(batch.rows) else losses * counts[batch.rows]
