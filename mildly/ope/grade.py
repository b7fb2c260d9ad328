"""Self-grading: the estimators judged on a log whose answers are known.

A log usually holds several policies, or periods. One group of episodes after the other is held out. Its behavior,
cloned, is a policy whose return is known: the group earned it. Each estimator predicts that return from the other
groups' data, and is compared with what happened. An estimator that does no better on its own log than the guess "as the
rest earned", or that does not tell better groups from worse, has failed, and has no weight.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mildly.data.dataset import Array, Dataset
from mildly.data.select import pick_episodes
from mildly.evaluation.statistics import rank_correlation
from mildly.ope.coverage import coverage
from mildly.ope.estimators import (
    ESTIMATORS,
    Estimate,
    Problem,
    check_data,
    check_gamma,
    check_names,
    estimate,
    logged_return,
    plain,
)
from mildly.ope.evaluate import GAMMA, clone_of, identity_of, kept_in, silent
from mildly.ope.fit import Say
from mildly.ope.groups import group
from mildly.ope.judged import JudgedPolicy
from mildly.ope.settings import QUICK, Settings

_RANKED = 0.3  # rank correlation below which an estimator does not tell better from worse
_ALIKE = 2.0  # times the noise of the groups' returns; groups that differ by less grade nothing
_UNGRADED = "not graded: the groups earned alike"
GUESS = "the rest's return"


@dataclass(frozen=True)
class Held:
    """A group that was held out: what it earned, and what was predicted."""

    group: str
    episodes: int
    truth: Estimate
    guess: float
    """What the rest earned."""
    estimates: Mapping[str, Estimate]
    coverage: float
    """How much of what its clone does the rest knows."""


@dataclass(frozen=True)
class Grade:
    """How an estimator did on a log."""

    bias: float
    """Mean of estimate minus truth."""
    error: float
    """Root mean square of it."""
    rank_correlation: float
    """Whether better groups were told from worse ones; 1 is perfect, 0 is chance."""
    interval_coverage: float
    """Share of groups whose interval held the truth; it should be 0.95."""
    weight: float
    """In a mean of all estimators; 0 where it failed, and where nothing could be graded."""
    failure: str
    """Why it must not be believed on this log; empty where it passed."""


@dataclass(frozen=True)
class Grading:
    """The grades of all estimators on a log."""

    dataset: str
    by: str
    gamma: float
    held: tuple[Held, ...]
    grades: Mapping[str, Grade]
    guess_error: float
    """The error of the guess that a group earns what the rest did."""
    alike: bool
    """Whether the groups earned too much alike to grade anything."""

    @property
    def best(self) -> str | None:
        """The estimator with the most weight; None where all failed, and where nothing could be graded."""
        passed = [name for name, grade in self.grades.items() if grade.weight > 0]
        return max(passed, key=lambda name: self.grades[name].weight, default=None)

    def verdict(self) -> str:
        """In plain words, which number to trust."""
        if self.alike:
            return (
                "The groups of this log earned alike, within noise: it cannot tell a good estimator from a bad one. "
                "Group it otherwise (--by), or trust no estimate more than its interval."
            )
        if self.best is None:
            return "Every estimator fails on this log. Do not choose a policy by any of them: test in small steps."
        best = self.grades[self.best]
        return (
            f"Trust {self.best} most on this log: it was off by {best.error:.3g} where guessing was off by "
            f"{self.guess_error:.3g}, and ranked the groups with a correlation of {best.rank_correlation:.2f}."
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        held = [
            {
                **{name: value for name, value in vars(each).items() if name not in ("truth", "estimates")},
                "truth": each.truth.to_json(),
                "estimates": {name: found.to_json() for name, found in each.estimates.items()},
            }
            for each in self.held
        ]
        grades = {
            name: {key: plain(value) for key, value in vars(grade).items()} for name, grade in self.grades.items()
        }
        return {**vars(self), "held": held, "grades": grades, "best": self.best, "verdict": self.verdict()}


def grade(
    data: Dataset,
    *,
    by: str = "time",
    groups: int = 5,
    labels: Array | None = None,
    estimators: Sequence[str] = tuple(ESTIMATORS),
    gamma: float = GAMMA,
    settings: Settings = QUICK,
    out: str | os.PathLike[str] | None = None,
    say: Say = silent,
) -> Grading:
    """Grade the estimators on a log.

    Args:
        data: the log.
        by: how it falls into groups: `time`, `cluster`, or what the labels are called.
        groups: how many, of time or clusters.
        labels: a value for each episode, where groups are those of equal ones.
        estimators: names in `ESTIMATORS`.
        gamma: the discount factor.
        settings: how much work each group takes.
        out: a folder to keep fits in, so that an interrupted call goes on where it was; otherwise nothing is kept.
        say: hears of progress.
    """
    check_names(estimators)
    check_data(data)
    check_gamma(gamma)
    held, every = [], np.arange(len(data.episode_ends()))
    with kept_in(out) as folder:
        for i, (name, chosen) in enumerate(found := group(data, by, groups, settings.seed, labels)):
            say(f"group {i + 1} of {len(found)}: {name}, {len(chosen):,} episodes held out")
            own, rest = pick_episodes(data, chosen), pick_episodes(data, np.setdiff1d(every, chosen))
            place = folder / f"group-{i + 1}"
            policy = clone_of(own, place / "clone", settings)
            judged = JudgedPolicy.of(policy, rest, "the clone", stochastic=True)
            problem = Problem(judged, rest, gamma, settings, place, say, identity_of(place / "clone"))
            held.append(
                Held(
                    name,
                    len(chosen),
                    truth=logged_return(dataclasses.replace(problem, data=own)),
                    guess=logged_return(problem).value,
                    estimates={each: estimate(each, problem) for each in estimators},
                    coverage=coverage(judged, rest, settings.seed).share,
                )
            )
    return grading(data.meta.name, by, gamma, held)


def grading(dataset: str, by: str, gamma: float, held: Sequence[Held]) -> Grading:
    """The grades that follow from what was predicted and what happened."""
    truth = np.array([each.truth.value for each in held])
    noise = np.array([(each.truth.high - each.truth.low) / 2 / 1.96 for each in held])
    guess_error = _root_mean_square(np.array([each.guess for each in held]) - truth)
    names = held[0].estimates
    made = {name: _grade([each.estimates[name] for each in held], held, guess_error) for name in names}
    alike = bool(truth.var(ddof=1) < _ALIKE * (noise**2).mean())
    if alike:
        grades = {name: dataclasses.replace(grade, weight=0.0, failure=_UNGRADED) for name, grade in made.items()}
    else:
        total = sum(grade.weight for grade in made.values()) or 1.0
        grades = {name: dataclasses.replace(grade, weight=grade.weight / total) for name, grade in made.items()}
    return Grading(dataset, by, gamma, tuple(held), grades, guess_error, alike)


def _grade(estimates: Sequence[Estimate], held: Sequence[Held], guess_error: float) -> Grade:
    """One estimator's; its weight is the inverse of its squared error, before all are brought to a sum of 1."""
    values, truths = np.array([each.value for each in estimates]), [each.truth for each in held]
    off = values - np.array([truth.value for truth in truths])
    if not np.isfinite(values).all():
        reasons = dict.fromkeys(doubt for each in estimates for doubt in each.doubts)
        return Grade(math.nan, math.nan, math.nan, math.nan, 0.0, "; ".join(reasons) or "it gave no number")
    error, correlation = _root_mean_square(off), rank_correlation(values.tolist(), [truth.value for truth in truths])
    within = [_within(one, truth) for one, truth in zip(estimates, truths, strict=True)]
    failure = ""
    if error >= guess_error:
        failure = f"off by {error:.3g}, no better than guessing {GUESS} ({guess_error:.3g})"
    elif not correlation >= _RANKED:
        failure = f"does not tell better groups from worse (rank correlation {correlation:.2f})"
    weight = 0.0 if failure else 1 / max(error, 1e-9) ** 2
    return Grade(float(off.mean()), error, correlation, float(np.mean(within)), weight, failure)


def _within(one: Estimate, truth: Estimate) -> bool:
    """Whether an estimate agrees with a truth that is known within an interval itself."""
    return abs(one.value - truth.value) <= math.hypot(one.high - one.low, truth.high - truth.low) / 2


def _root_mean_square(values: Array) -> float:
    return float(np.sqrt(np.mean(np.square(values))))
