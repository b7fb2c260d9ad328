"""Choosing among policies by logged data alone, against "keep doing what the log did"; a verdict in plain words.

Each candidate is judged by episodes that none of them was trained on, where their runs held some out. The estimators
are graded on the log first; a candidate's value is their mean, weighted by grade. A policy is worth deploying if it is
better than the log beyond both intervals, if the data know what it does, and if an estimator passed on this very log.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.dataset import Array, Dataset
from mildly.errors import MildlyError
from mildly.ope.coverage import Coverage, coverage
from mildly.ope.estimators import ESTIMATORS, Estimate, Problem, disagreement, estimate, logged_return
from mildly.ope.evaluate import COVERED, gamma_of, identity_of, judging_data, kept_in, plan_of, silent
from mildly.ope.fit import Say
from mildly.ope.grade import Grading, grade as grade_log
from mildly.ope.judged import JudgedPolicy
from mildly.ope.settings import QUICK, Settings
from mildly.policy import load_policy
from mildly.run import Plan


@dataclass(frozen=True)
class Candidate:
    """A policy and what the data tell of it."""

    run: str
    value: Estimate
    """The mean of the estimators, weighted by their grades."""
    gain: Estimate
    """What it earns more than the log."""
    estimates: Mapping[str, Estimate]
    covered: Coverage

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {
            "run": self.run,
            "value": self.value.to_json(),
            "gain": self.gain.to_json(),
            "estimates": {name: one.to_json() for name, one in self.estimates.items()},
            "coverage": self.covered.share,
        }


@dataclass(frozen=True)
class Choice:
    """The candidates, the best first, and what to do."""

    dataset: str
    episodes: int
    gamma: float
    log: Estimate
    candidates: tuple[Candidate, ...]
    grading: Grading | None
    weights: Mapping[str, float]
    """Of the estimators."""
    deploy: str | None
    """The run to deploy; None where nothing speaks clearly enough for one."""
    verdict: str
    notes: tuple[str, ...]
    projection: Array
    """Where the states of the coverage lie on a map, (states, 2): along the two directions of largest variance."""

    @property
    def basis(self) -> str:
        """Which estimators are behind the values, in words."""
        if self.grading is not None and self.grading.best is not None:
            return f"Estimators by weight: {', '.join(f'{name} {each:.2f}' for name, each in self.weights.items())}."
        if self.grading is None:
            reason = "The estimators were not graded on this log"
        else:
            reason = f"No estimator {'could be graded' if self.grading.alike else 'passed'} on this log"
        return f"{reason}: the values are fqe's alone, which no grade backs."

    def to_json(self) -> dict[str, Any]:
        """Plain values; the map is left out."""
        plain = {name: value for name, value in vars(self).items() if name != "projection"}
        return {
            **plain,
            "log": self.log.to_json(),
            "candidates": [each.to_json() for each in self.candidates],
            "grading": None if self.grading is None else self.grading.to_json(),
        }


def choose(
    runs: Sequence[str | os.PathLike[str]],
    data: Dataset,
    *,
    gamma: float | None = None,
    grade: bool = True,
    groups: int = 5,
    by: str = "time",
    labels: Array | None = None,
    settings: Settings = QUICK,
    out: str | os.PathLike[str] | None = None,
    say: Say = silent,
) -> Choice:
    """Rank the policies of runs by what they would earn, and say whether one should replace what the log did.

    Args:
        runs: folders of runs, or of policies.
        data: the log that they were trained on, of which the held-out episodes are judged by; or another one.
        gamma: the discount factor; by default the runs' own.
        grade: grade the estimators on the log first; otherwise fqe alone is believed.
        groups: groups of the grading.
        by: how the grading groups episodes: `time`, `cluster`, or what the labels are called.
        labels: a value for each episode, where groups are those of equal ones.
        settings: how much work an estimate takes.
        out: a folder to keep fits in, so that an interrupted call goes on where it was; otherwise nothing is kept.
        say: hears of progress.
    """
    names = [os.fspath(run) for run in runs]
    if not names:
        raise MildlyError("no candidates: give the folders of runs, mildly choose RUN RUN ... --dataset SET.")
    if len(set(names)) < len(names):
        raise MildlyError("a run is given twice: a candidate is chosen among different ones.")
    plans = {name: plan_of(name) for name in names}
    gamma = _common_gamma(plans) if gamma is None else gamma
    judging, notes = judging_data(plans, data)
    policies = {name: JudgedPolicy.of(load_policy(name), judging, name) for name in names}
    with kept_in(out) as folder:
        grading = None
        if grade:
            grading = grade_log(
                data,
                by=by,
                groups=groups,
                labels=labels,
                gamma=gamma,
                settings=settings,
                out=folder / "grade",
                say=say,
            )
        weights = _weights(grading)
        log, found = _judged(policies, judging, gamma, weights, settings, folder, say)
    ranked = sorted(found, key=lambda each: -each.value.value if math.isfinite(each.value.value) else math.inf)
    deploy, words = verdict(ranked, grading)
    return Choice(
        data.meta.name,
        len(judging.episode_ends()),
        gamma,
        log,
        tuple(ranked),
        grading,
        weights,
        deploy,
        words,
        tuple(notes),
        _projection(judging, ranked[0].covered.rows),
    )


def _judged(
    policies: Mapping[str, JudgedPolicy],
    data: Dataset,
    gamma: float,
    weights: Mapping[str, float],
    settings: Settings,
    folder: Path,
    say: Say,
) -> tuple[Estimate, list[Candidate]]:
    """What the log earned, and every candidate."""
    wanted = [name for name in ESTIMATORS if weights.get(name, 0.0) > 0]
    found, problem = list[Candidate](), None
    for i, (name, judged) in enumerate(policies.items()):
        say(f"candidate {i + 1} of {len(policies)}: {name}")
        place, identity = folder / f"candidate-{i + 1}", identity_of(name)
        new = Problem(judged, data, gamma, settings, place, say, identity)
        problem = new if problem is None else problem.for_policy(judged, place, identity)
        log = logged_return(problem)
        estimates = {each: estimate(each, problem) for each in wanted}
        value = combined(estimates, weights)
        covered = coverage(judged, data, settings.seed)
        found.append(Candidate(name, value, gain_over(value, log), estimates, covered))
    return log, found


def combined(estimates: Mapping[str, Estimate], weights: Mapping[str, float]) -> Estimate:
    """The weighted mean of estimates that are numbers, and of their intervals' ends."""
    usable = {name: one for name, one in estimates.items() if math.isfinite(one.value)}
    if not usable:
        return Estimate(math.nan, math.nan, math.nan, doubts=tuple(d for one in estimates.values() for d in one.doubts))
    share = np.array([weights.get(name, 0.0) for name in usable])
    share = share / share.sum() if share.sum() else np.full(len(usable), 1 / len(usable))
    ends = np.array([(one.value, one.low, one.high) for one in usable.values()])
    doubts = [f"{name}: {doubt}" for name, one in estimates.items() for doubt in one.doubts]
    value, low, high = (share @ ends).tolist()
    return Estimate(value, low, high, doubts=(*doubts, *disagreement(estimates)))


def gain_over(value: Estimate, log: Estimate) -> Estimate:
    """The difference of two estimates whose errors are independent."""
    low = math.hypot(value.value - value.low, log.high - log.value)
    high = math.hypot(value.high - value.value, log.value - log.low)
    gain = value.value - log.value
    return Estimate(gain, gain - low, gain + high)


def verdict(ranked: Sequence[Candidate], grading: Grading | None) -> tuple[str | None, str]:
    """The run to deploy, if any, and why, in plain words."""
    best = ranked[0]
    if not math.isfinite(best.value.value):
        return None, "Do not deploy: no estimator gives a number for any candidate."
    covered, share = best.covered.share >= COVERED, f"{100 * (1 - best.covered.share):.0f} %"
    unknown = f"in {share} of the states it does what the data hardly show, and nobody knows what follows."
    care = "." if covered else f", and with care: {unknown}"
    if grading is not None and not grading.alike and grading.best is None:
        return None, (
            "Do not deploy by these numbers: every estimator fails on this log, where the answers are known. Test "
            f"{best.run}, the best by fqe, in small steps beside what you do now{care}"
        )
    gain = f"{best.gain.value:+.3g} ({best.gain.low:+.3g} to {best.gain.high:+.3g}) against the log"
    if best.gain.high < 0:
        return None, f"Do not deploy: the best candidate, {best.run}, earns less than the log did, {gain}."
    if best.gain.low <= 0:
        return None, (
            f"Not distinguishable from the log: {best.run} is estimated at {gain}. Keep doing what you do, or test it "
            f"in small steps{care}"
        )
    if not covered:
        return None, f"Do not deploy {best.run} yet, though it is estimated at {gain}: {unknown}"
    if best.estimates and all(one.doubts for one in best.estimates.values()):
        return None, (
            f"Do not deploy {best.run} yet, though it is estimated at {gain}: every estimator behind that number "
            "doubts itself. Give the estimates more work, or test it in small steps."
        )
    doubt = "" if grading is not None and grading.best is not None else " No grading on this log backs the estimate."
    return best.run, f"Deploy {best.run}: it is estimated at {gain}.{doubt}"


def _weights(grading: Grading | None) -> dict[str, float]:
    """By the grades; where no estimator has passed one, fqe alone is shown."""
    if grading is None or grading.best is None:
        return {"fqe": 1.0}
    return {name: grade.weight for name, grade in grading.grades.items()}


def _common_gamma(plans: Mapping[str, Plan | None]) -> float:
    known = {gamma_of(plan) for plan in plans.values() if plan is not None and "gamma" in plan.config}
    if len(known) > 1:
        raise MildlyError(
            f"the candidates were trained with different discounts ({', '.join(f'{g:g}' for g in sorted(known))}). Say "
            "by which to judge them: --gamma."
        )
    return known.pop() if known else gamma_of(None)


def _projection(data: Dataset, rows: Array) -> Array:
    """States along their two directions of largest variance."""
    states = np.asarray(data.observations[rows], np.float64)
    spread = states.std(axis=0)
    states = (states - states.mean(axis=0)) / np.where(spread > 0, spread, 1.0)
    _, _, directions = np.linalg.svd(states, full_matrices=False)
    flat = states @ directions[:2].T
    return flat if flat.shape[1] == 2 else np.concatenate([flat, np.zeros_like(flat)], axis=1)
