"""Aggregates of scores over runs and tasks, with bootstrap confidence intervals (Agarwal et al. 2021).

A few runs of each task are a small sample, and the mean of a small sample is luck as well as merit. Every number here
comes with the interval in which it would fall if the same experiment were made again with other seeds.

The scores of one algorithm are an array (runs, tasks), or a mapping from each task to the scores of its runs, which may
be more for one task than for another. A task counts as much as any other, however many runs it has.

The stratified bootstrap draws, for each task by itself, as many runs as there are, with replacement, and aggregates
them; the percentiles of many such draws are the interval. How often each run is drawn is all that matters about a draw,
so a draw is a row of weights, and every statistic below is a function of weights.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mildly.errors import MildlyError

FloatArray: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = NDArray[Any] | Mapping[str, ArrayLike]
"""An array (runs, tasks), or a mapping task -> scores of its runs."""

REPLICATIONS = 50_000
"""Draws for a number: another seed moves the ends of the interval by less than a hundredth of its width or so."""
CURVE_REPLICATIONS = 2_000
"""Draws for a curve, whose band is only drawn."""

_CHUNK = 2**20  # weights handled at once, which bounds the memory: some 30 MB
_ROUNDING = 1e-12  # relative; ends of an interval closer than this to the value are the value


@dataclass(frozen=True)
class Estimate:
    """A number with the ends of its confidence interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class EstimatedCurve:
    """Numbers along an axis, each with the ends of its own (pointwise) confidence interval."""

    at: FloatArray
    value: FloatArray
    low: FloatArray
    high: FloatArray


@dataclass(frozen=True)
class Pool:
    """Checked scores of one algorithm: the runs of the first task, then those of the second, and so on."""

    tasks: tuple[str, ...]
    values: FloatArray
    sizes: tuple[int, ...]
    """Runs of each task."""

    @classmethod
    def of(cls, scores: Scores) -> Pool:
        """The scores of an algorithm, checked."""
        groups = _by_task(scores)
        for task, runs in groups.items():
            if not runs.size:
                raise MildlyError(f"{task}: has no scores. Leave the task out, or add runs of it.")
            if not np.isfinite(runs).all():
                run = int(np.argmin(np.isfinite(runs)))
                raise MildlyError(
                    f"{task}: the score of run {run} (counted from 0) is {runs[run]}. Leave the run out: tasks need "
                    "not have equally many when scores are given as a mapping from task to runs."
                )
        return cls(tuple(groups), np.concatenate(list(groups.values())), tuple(map(len, groups.values())))

    @property
    def starts(self) -> list[int]:
        """Where each task begins."""
        return [0, *np.cumsum(self.sizes[:-1]).tolist()]

    @property
    def unit(self) -> FloatArray:
        """The weight of each run: tasks have equal sums, and a weight is 1 where all tasks have equally many runs."""
        sizes = np.repeat(self.sizes, self.sizes)
        return np.asarray(len(self.values) / (len(self.tasks) * sizes), dtype=np.float64)

    def draws(self, number: int, random: np.random.Generator) -> FloatArray:
        """Weights (draws, runs of all tasks) of random draws: how often a run is drawn, times its own weight."""
        runs = len(self.values)
        chosen = np.empty((number, runs), dtype=np.intp)  # places of runs, counted on from draw to draw
        for start, size in zip(self.starts, self.sizes, strict=True):
            chosen[:, start : start + size] = random.integers(start, start + size, size=(number, size))
        chosen += np.arange(0, number * runs, runs)[:, None]
        counts = np.bincount(chosen.ravel(), minlength=chosen.size).reshape(chosen.shape)
        return np.asarray(counts * self.unit)

    def part(self, task: str) -> slice:
        """Where the runs of a task are."""
        place = self.tasks.index(task)
        return slice(self.starts[place], self.starts[place] + self.sizes[place])


class Aggregate:
    """One number for all runs of all tasks. Call it with scores, or give it to `estimate` for its interval."""

    def __init__(self, over: Callable[[Pool, FloatArray], FloatArray]) -> None:
        self.over = over  # weights (draws, runs of all tasks) -> (draws,)
        update_wrapper(self, over)

    def __call__(self, scores: Scores) -> float:
        """The aggregate of the scores."""
        pool = Pool.of(scores)
        return float(self.over(pool, pool.unit[None])[0])


@Aggregate
def mean(pool: Pool, weights: FloatArray) -> FloatArray:
    """The mean of the tasks' means. One task with huge scores can decide it."""
    return np.asarray(weights @ pool.values / len(pool.values))


@Aggregate
def median(pool: Pool, weights: FloatArray) -> FloatArray:
    """The median of the tasks' means. Nearly half of the tasks could score nothing without changing it."""
    sums = np.add.reduceat(weights * pool.values, pool.starts, axis=1)
    return np.asarray(np.median(sums * (len(pool.tasks) / len(pool.values)), axis=1))


@Aggregate
def interquartile_mean(pool: Pool, weights: FloatArray) -> FloatArray:
    """The mean of the middle half of all runs: a quarter of them, rounded down, is cut off at either end.

    With equally many runs of each task this is `scipy.stats.trim_mean(scores, 0.25, axis=None)`. Otherwise runs are cut
    by weight, a run at the edge in part, so that tasks still count equally.
    """
    order = np.argsort(pool.values)
    runs = len(order)
    cut = runs // 4
    below = np.cumsum(weights[:, order], axis=1)  # the weight of all runs up to this one
    np.clip(below, cut, runs - cut, out=below)
    below[:, 1:] -= below[:, :-1]  # of this one alone, as far as it is kept
    below[:, 0] -= cut
    return np.asarray(below @ pool.values[order] / (runs - 2 * cut))


def optimality_gap(target: float) -> Aggregate:
    """By how much runs fall short of a target on average; more than the target brings nothing. Less is better.

    The target is on the scale of the scores: 100 for an expert's score in D4RL, 1.0 where scores lie within 0 and 1.
    """

    @Aggregate
    def gap(pool: Pool, weights: FloatArray) -> FloatArray:
        return np.asarray(weights @ np.maximum(target - pool.values, 0.0) / len(pool.values))

    return gap


def estimate(
    scores: Scores,
    aggregate: Aggregate = interquartile_mean,
    *,
    confidence: float = 0.95,
    replications: int = REPLICATIONS,
    seed: int = 0,
) -> Estimate:
    """An aggregate of the scores and its stratified bootstrap interval; same seed, same interval.

    A task with one run shows no spread, so that it adds nothing to the interval: with one run of every task the
    interval is the value itself, which means that nothing is known about it. With n runs of each task the interval of
    a mean is too narrow by a factor of about sqrt(1 - 1/n): a fifth for three runs, a twentieth for ten.

    The ends are percentiles of the draws, so that the value need not lie in the middle.
    """
    pool = Pool.of(scores)
    scale = float(np.abs(pool.values).max())
    found = _bootstrap(partial(aggregate.over, pool), [pool], scale, confidence, replications, seed)
    return Estimate(*map(float, found))


def probability_of_improvement(
    scores: Scores,
    baseline: Scores,
    *,
    confidence: float = 0.95,
    replications: int = REPLICATIONS,
    seed: int = 0,
) -> Estimate:
    """How probably a run scores more than a run of the baseline in the same task, averaged over tasks.

    This is Mann and Whitney's statistic: the fraction of all pairs of runs that are won, ties counting half. It says
    how often, not by how much. Both need the same tasks, but not as many runs.
    """
    ours, theirs = Pool.of(scores), Pool.of(baseline)
    if set(ours.tasks) != set(theirs.tasks):
        missing = ", ".join(sorted(set(ours.tasks) ^ set(theirs.tasks)))
        raise MildlyError(f"only one of the two algorithms has scores of: {missing}. Compare them on the same tasks.")
    won = [
        np.heaviside(ours.values[ours.part(task), None] - theirs.values[None, theirs.part(task)], 0.5)
        for task in ours.tasks
    ]

    def improvement(our_weights: FloatArray, their_weights: FloatArray) -> FloatArray:
        total = np.zeros(len(our_weights))
        for task, wins in zip(ours.tasks, won, strict=True):
            total += ((our_weights[:, ours.part(task)] @ wins) * their_weights[:, theirs.part(task)]).sum(axis=1)
        return total * (len(won) / (len(ours.values) * len(theirs.values)))

    found = _bootstrap(improvement, [ours, theirs], 1.0, confidence, replications, seed)
    return Estimate(*map(float, found))


def performance_profile(
    scores: Scores,
    thresholds: ArrayLike,
    *,
    confidence: float = 0.95,
    replications: int = CURVE_REPLICATIONS,
    seed: int = 0,
) -> EstimatedCurve:
    """The fraction of runs with a score above each threshold, averaged over tasks.

    Where one algorithm's curve is nowhere below another's, it is no worse by mean and gap. By interquartile mean that
    holds if both have equally many runs in all: the quarter that it cuts off is rounded down to whole runs.
    Memory: 8 bytes for each replication and threshold.
    """
    pool, at = Pool.of(scores), np.asarray(thresholds, dtype=np.float64)
    if at.ndim != 1 or not at.size or not np.isfinite(at).all():
        raise MildlyError("thresholds of a performance profile must be a list of finite numbers, at least one.")
    above = (pool.values[:, None] > at) / len(pool.values)  # (runs of all tasks, thresholds)
    return EstimatedCurve(at, *_bootstrap(lambda weights: weights @ above, [pool], 1.0, confidence, replications, seed))


def sample_efficiency(
    scores_at: Mapping[int, Scores],
    aggregate: Aggregate = interquartile_mean,
    *,
    confidence: float = 0.95,
    replications: int = CURVE_REPLICATIONS,
    seed: int = 0,
) -> EstimatedCurve:
    """An aggregate at each of several steps of training, in the order of steps."""
    if not scores_at:
        raise MildlyError("no scores at any step. Give scores of at least one.")
    found = []
    for step, scores in sorted(scores_at.items()):
        try:
            one = estimate(scores, aggregate, confidence=confidence, replications=replications, seed=seed)
        except MildlyError as error:
            raise MildlyError(f"step {step}: {error}") from error
        found.append((float(step), one.value, one.low, one.high))
    return EstimatedCurve(*np.array(found).T)


def rank_correlation(one: ArrayLike, other: ArrayLike) -> float:
    """Spearman's: 1 where both rank alike, 0 by chance. Equal values share their ranks.

    Not a number where one of the two does not vary.
    """
    ours, theirs = (_ranks(np.asarray(values, dtype=np.float64)) for values in (one, other))
    if np.ptp(ours) == 0 or np.ptp(theirs) == 0:
        return float("nan")
    return float(np.corrcoef(ours, theirs)[0, 1])


def _ranks(values: FloatArray) -> FloatArray:
    below, equal = (compare(values[None], values[:, None]).sum(axis=1) for compare in (np.less, np.equal))
    return np.asarray(below + (equal - 1) / 2, dtype=np.float64)


def _by_task(scores: Scores) -> dict[str, FloatArray]:
    """The scores of each task's runs, whichever way they were given; columns of an array are named by their place."""
    if isinstance(scores, Mapping):
        groups = {task: _numbers(task, runs) for task, runs in scores.items()}
        for task, runs in groups.items():
            if runs.ndim != 1:
                raise MildlyError(f"{task}: scores must be a list, one of each run; got shape {runs.shape}.")
    else:
        table = _numbers("scores", scores)
        if table.ndim != 2:
            raise MildlyError(
                f"scores must be an array (runs, tasks), or a mapping from task to runs; got {table.shape}."
            )
        groups = {f"column {place}": column for place, column in enumerate(table.T)}
    if not groups:
        raise MildlyError("no scores: there is not a single task.")
    return groups


def _numbers(where: str, given: ArrayLike) -> FloatArray:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MildlyError(f"{where}: scores must be numbers ({error}).") from error


def _bootstrap(
    statistic: Callable[..., FloatArray],
    pools: Sequence[Pool],
    scale: float,
    confidence: float,
    replications: int,
    seed: int,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Value, low and high of a statistic, which maps weights (draws, runs) of each pool to (draws, ...).

    Sums of equal numbers in different order differ in their last digits. Ends that differ from the value by no more
    than that, where the summands are of the size of `scale` or of the value, are the value.
    """
    if not 0 < confidence < 1:
        raise MildlyError(f"confidence must be between 0 and 1, such as 0.95; got {confidence}.")
    if replications < 1:
        raise MildlyError(f"replications must be at least 1, got {replications}.")
    value = statistic(*(pool.unit[None] for pool in pools))[0]
    random = np.random.default_rng(seed)
    drawn = np.empty((replications, *value.shape))
    rows = max(1, _CHUNK // max(value.size, *(len(pool.values) for pool in pools)))
    for start in range(0, replications, rows):
        part = drawn[start : start + rows]
        part[:] = statistic(*(pool.draws(len(part), random) for pool in pools))
    tail = (1 - confidence) / 2
    ends = np.quantile(drawn, [tail, 1 - tail], axis=0, overwrite_input=True)
    low, high = np.where(np.abs(ends - value) <= _ROUNDING * np.maximum(np.abs(value), scale), value, ends)
    return value, low, high
