"""What `mildly solve` will do, in steps: planned before anything is trained, from costs that were measured.

Successive halving (Jamieson and Talwalkar 2016): all candidates train for a fourth of the last rung's steps, the better
half of them on to a half, and the better half of those to the end. One number, the steps of the last rung, fixes all
others, and so what everything costs; a budget is the largest such number that it pays for.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mildly.errors import MildlyError

LEAST = 1_000
"""Steps of the last rung below which nothing has been learned that a verdict could be about."""
MOST = 1_000_000
FINALISTS = 2
_FIT_STEPS = 3_000, 10_000  # of fitted Q evaluation: fewer do not reach a level, more `mildly choose` does not take
DENSITY = 0.3
"""Steps of a density, or of a clone, for each of fitted Q evaluation."""
_WARM_UP = 5_000  # steps of MCQ's warm-up at most, as in its default; a tenth of all where there are fewer
PHASES: Mapping[str, tuple[int, float]] = {
    "behavior.steps": (4, 0.3),
    "extras.bc_steps": (8, 0.15),
    "extras.bc_warmup_steps": (1, 1.0),
}
"""MCQ's phases: steps of each for a step of its warm-up, as in its default, and what one costs in main steps."""


@dataclass(frozen=True)
class Learner:
    """A candidate: an algorithm, and what is not as by default."""

    algorithm: str
    words: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    discounts: bool = True
    """Whether it takes a discount factor."""
    warms_up: bool = False
    """Whether a warm-up comes before its main steps."""


LEARNERS: Mapping[str, Learner] = {
    "clone": Learner("bc", "imitates the log", discounts=False),
    "clone-best": Learner("bc", "imitates the best tenth of its episodes", {"best_episodes": 0.1}, discounts=False),
    "iql": Learner("iql", "implicit Q-learning: the best of what was tried in like states"),
    "td3-bc": Learner("td3-bc", "improves on the log, held near it"),
    "mcq": Learner("mcq", "mildly conservative Q-learning, the default preset", warms_up=True),
}
"""The portfolio: from plain imitation to what departs most from the log."""


@dataclass(frozen=True)
class Rung:
    """Some candidates, trained to a step."""

    candidates: int
    steps: int


@dataclass(frozen=True)
class StepPlan:
    """Everything that `mildly solve` will do, in steps."""

    rungs: tuple[Rung, ...]
    fit_steps: int
    """Of fitted Q evaluation, for every candidate of a rung and in the choice."""
    density_steps: int
    """Of the density of the logged actions, and of a group's clone."""
    warm_up: int
    """Steps of MCQ's warm-up; those of its other phases are multiples of it (`PHASES`)."""

    @classmethod
    def of(cls, last: int, candidates: int = len(LEARNERS)) -> StepPlan:
        """The plan whose last rung has so many steps."""
        if last < 1:
            raise MildlyError(f"steps must be at least 1, got {last}.")
        sizes = halves(candidates)
        rungs = tuple(Rung(size, max(1, last // 2 ** (len(sizes) - 1 - i))) for i, size in enumerate(sizes))
        least, most = _FIT_STEPS
        fit = min(most, max(last // 2, min(least, 3 * last)))
        return cls(rungs, fit, max(1, int(DENSITY * fit)), min(_WARM_UP, last // 10))

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {**vars(self), "rungs": [vars(rung) for rung in self.rungs]}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> StepPlan:
        """What `to_json` gave, from a file that may hold anything.

        Raises:
            ValueError, TypeError or KeyError: it is not that.
        """
        rungs = tuple(Rung(**each) for each in values["rungs"])
        plan = cls(rungs, *(values[name] for name in ("fit_steps", "density_steps", "warm_up")))
        if not rungs or plan != cls.of(rungs[-1].steps, rungs[0].candidates):
            raise ValueError("the plan is not one that follows from its last rung")
        return plan


def halves(candidates: int) -> list[int]:
    """How many candidates each rung has: half of those before, but never fewer than the finalists."""
    sizes = [candidates]
    while sizes[-1] > FINALISTS:
        sizes.append(max(FINALISTS, math.ceil(sizes[-1] / 2)))
    return sizes


def survivors(values: Mapping[str, float], keep: int) -> list[str]:
    """The candidates with the highest values, the best first; what is no number does not survive."""
    known = [name for name, value in values.items() if math.isfinite(value)]
    return sorted(known, key=lambda name: -values[name])[:keep]


# Costs


@dataclass(frozen=True)
class Pace:
    """What something takes, in seconds: to begin, and for each step."""

    begin: float
    step: float

    def seconds(self, steps: float) -> float:
        """For so many steps."""
        return self.begin + self.step * steps


@dataclass(frozen=True)
class Costs:
    """What everything takes on this machine with these data."""

    train: Mapping[str, Pace]
    """By candidate, in its gradient steps."""
    fit: Pace
    """A fitted Q evaluation on the held-out episodes."""
    choose: Pace
    """The grading, and the choice among the finalists, in steps of fitted Q evaluation."""


def seconds_of(plan: StepPlan, costs: Costs, workers: int = 1) -> float:
    """What a plan takes at most: nobody knows who will survive, so the slowest do."""
    total, before = 0.0, 0
    warm_up = plan.warm_up * sum(steps * cost for steps, cost in PHASES.values())
    for i, rung in enumerate(plan.rungs):
        steps = {
            name: rung.steps - before + (warm_up if i == 0 and LEARNERS[name].warms_up else 0) for name in costs.train
        }
        times = sorted((costs.train[name].seconds(steps[name]) for name in steps), reverse=True)
        total += makespan(times[: rung.candidates], workers)
        if rung is not plan.rungs[-1]:
            total += rung.candidates * costs.fit.seconds(plan.fit_steps)
        before = rung.steps
    return total + costs.choose.seconds(plan.fit_steps)


def makespan(times: Iterable[float], workers: int) -> float:
    """When the last of some jobs ends, if they are begun in this order by the first worker that is free."""
    free = [0.0] * workers
    for time in times:
        heapq.heapreplace(free, free[0] + time)
    return max(free)


def plan_within(seconds: float, costs: Costs, workers: int = 1) -> StepPlan | None:
    """The longest plan that a budget pays for; None where it pays for none that makes sense."""
    if seconds_of(StepPlan.of(LEAST), costs, workers) > seconds:
        return None
    enough, beyond = LEAST, MOST + 1
    while beyond - enough > 1:
        middle = (enough + beyond) // 2
        if seconds_of(StepPlan.of(middle), costs, workers) <= seconds:
            enough = middle
        else:
            beyond = middle
    unit = int(10 ** max(0, len(str(enough)) - 2))
    rounded = StepPlan.of(enough // unit * unit)  # two digits, which people can read
    return rounded if seconds_of(rounded, costs, workers) <= seconds else StepPlan.of(enough)
