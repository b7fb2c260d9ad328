"""The estimators: each a function from a problem to an estimate, and a line in the registry.

All estimate one number: the discounted return of a policy from states like those in which the data's episodes begin.
An estimate is a value with a 95 % interval, facts that tell how far it can be believed, and, in words, the reasons not
to believe it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mildly.algorithms.config import require
from mildly.algorithms.fit_dynamics import FitDynamics
from mildly.data.dataset import Array, Dataset
from mildly.data.findings import lacks_reward
from mildly.data.returns import discounted_returns
from mildly.dynamics import DynamicsEnsemble
from mildly.errors import MildlyError, unknown_name
from mildly.evaluation.statistics import Pool
from mildly.ope.density import Density, DensityConfig
from mildly.ope.fit import Say, fit
from mildly.ope.fqe import FQE, FQEConfig
from mildly.ope.importance import Floats, Paths, Weights, doubly_robust, weighted_return
from mildly.ope.judged import Judged, JudgedPolicy, NoDensity
from mildly.ope.rollouts import model_config, roll_out
from mildly.ope.settings import Settings
from mildly.state import stream_seed

_TAIL = 0.025
_T = {1: 12.71, 2: 4.30, 3: 3.18, 4: 2.78, 5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 14: 2.14, 19: 2.09, 29: 2.05}
"""Student's t at 97.5 %, by degrees of freedom; between two of them, that of the fewer."""
_FEW = 10.0  # effective episodes below which weights say little
_HEAVY = 0.5  # share of the weight on the heaviest hundredth
_LEFT = 0.5  # share of the rollouts that leave what the data have seen
_STILL = 0.1  # of the value: a fit that still moves by more has not converged
_SETTLED = 3.0  # horizons that bring a fit within 5 % of its own level, from wherever it began
_SHARED = ("counts", "paths", "behavior_log_prob", "model")  # by problems of several policies
_LAST = 0.2  # the part of a fit, at its end, in which it should stand still


@dataclass(frozen=True)
class Estimate:
    """What a policy earns from the data's starts, discounted, by one estimator."""

    value: float
    low: float
    high: float
    facts: Mapping[str, float] = field(default_factory=dict)
    """How far it can be believed, in numbers."""
    doubts: tuple[str, ...] = ()
    """Why not to believe it; empty where nothing speaks against it."""

    def to_json(self) -> dict[str, Any]:
        """Plain values; what is not a number is null."""
        values = dataclasses.asdict(self)
        return {name: plain(value) for name, value in values.items()}


@dataclass(frozen=True)
class Problem:
    """A policy, the data to judge it by, and what several estimators share, which is computed once."""

    judged: Judged
    data: Dataset
    gamma: float
    settings: Settings
    folder: Path
    """Where fits are kept."""
    say: Say
    identity: str = ""
    """What tells the policy from others, so that no fit is gone on with for another one."""

    def __post_init__(self) -> None:
        check_data(self.data)
        check_gamma(self.gamma)

    @cached_property
    def counts(self) -> Floats:
        """How often each episode counts: once each, in the first row, and as bootstrap draws have it."""
        episodes = len(self.data.episode_ends())
        random = np.random.default_rng(stream_seed(self.settings.seed, "bootstrap"))
        drawn = Pool.of({"": np.zeros(episodes)}).draws(self.settings.replications, random)
        return np.concatenate([np.ones((1, episodes)), drawn])

    @cached_property
    def fitted(self) -> tuple[FQE, list[dict[str, Any]]]:
        """The critics of the policy, and the log of their fit."""
        config = FQEConfig(gamma=self.gamma, hidden_dims=self.settings.hidden_dims)
        sizes = self.data.observation_size, self.data.action_size
        fqe = FQE(config, self.judged, *sizes, seed=self.settings.seed)
        return fqe, self._fit(fqe, "fqe", config, self.settings.steps, {"policy": self.identity})

    @cached_property
    def behavior_log_prob(self) -> Array:
        """The log density of the logged actions, (rows,)."""
        config = DensityConfig()
        density = Density(config, self.data.observation_size, self.data.action_size, seed=self.settings.seed)
        self._fit(density, "density", config, self.settings.density_steps, {})
        return density.log_prob(self.data.observations, self.data.actions)

    @cached_property
    def model(self) -> DynamicsEnsemble:
        """What follows a state and an action, learned from the data."""
        config = model_config(len(self.data), self.settings.hidden_dims, self.settings.steps)
        fitting = FitDynamics(config, self.data.observation_size, self.data.action_size, seed=self.settings.seed)
        self._fit(fitting, "model", config, self.settings.steps, {})
        return fitting.dynamics.ensemble()

    @cached_property
    def paths(self) -> Paths:
        """The episodes as tables."""
        return Paths.of(self.data, self.gamma)

    @cached_property
    def weights(self) -> Weights:
        """Of the episodes, by the policy's density and the data's."""
        own = self.judged.log_prob(self.data.observations, self.data.actions)
        return Weights.of(self.paths, self.paths.table(own - self.behavior_log_prob), self.settings.clip)

    def for_policy(self, judged: Judged, folder: Path, identity: str) -> Problem:
        """The same problem for another policy, with what does not depend on the policy."""
        other = dataclasses.replace(self, judged=judged, folder=folder, identity=identity)
        vars(other).update({name: vars(self)[name] for name in _SHARED if name in vars(self)})
        return other

    def _fit(self, algorithm: Any, name: str, config: Any, steps: int, more: Mapping[str, Any]) -> list[dict[str, Any]]:
        facts = {"config": {key: plain(value) for key, value in dataclasses.asdict(config).items()}, **more}
        seed = self.settings.seed
        return fit(algorithm, self.data, self.folder / name, facts, steps=steps, seed=seed, say=self.say)


def check_gamma(gamma: float) -> None:
    """Refuse a discount with which returns need not be finite."""
    require(0 <= gamma < 1, "gamma", "in [0, 1)", gamma)


def check_data(data: Dataset) -> None:
    """Refuse data that cannot judge a policy."""
    name, episodes = data.meta.name, len(data.episode_ends())
    if lacks_reward(data.meta.notes):
        raise MildlyError(f"'{name}' has no reward, so that nothing tells what a policy earns. Read it with --reward.")
    if episodes < 2:
        raise MildlyError(
            f"'{name}' is one single episode: nothing tells what a start looks like, or how much episodes differ. Say "
            "where episodes begin (--episode COLUMN, or --time-limit), or add logs of others."
        )
    if np.asarray(data.terminated).all():
        raise MildlyError(
            f"'{name}': every row is terminal, so that no action has a future to judge. Is the column of 'terminated' "
            "(--terminated) the right one?"
        )


def logged_return(problem: Problem) -> Estimate:
    """The anchor: what the data's own policies earned, whatever the policy to be judged does."""
    value, weight = discounted_returns(problem.data, problem.gamma)
    starts = [episode.start for episode in problem.data.episodes()]
    value, weight = value[starts], weight[starts]
    drawn = (problem.counts @ (value * weight)) / (problem.counts @ weight)
    return _of_draws(drawn, {"episodes": float(len(starts))})


def fitted_q(problem: Problem) -> Estimate:
    """FQE: the mean of its critics; the interval from their spread, since each has its own draw of the episodes."""
    fqe, lines = problem.fitted
    found = fqe.estimates()
    value, spread = float(found.mean()), float(found.std(ddof=1))
    half = _t(len(found) - 1) * spread
    moved = _moved(lines)
    doubts = list(_unsettled(problem, fqe.config.tau, moved, max(_STILL * abs(value), half)))
    low, high = (bound / fqe.scale for bound in fqe.bounds)
    if value <= low + 0.02 * (high - low) or value >= high - 0.02 * (high - low):
        doubts.append("the value stands at the end of what rewards allow at all: the fit has diverged")
    facts = {"moved in the last fifth of the fit": moved, "spread of critics": spread}
    return Estimate(value, value - half, value + half, facts, tuple(doubts))


def weighted_importance(problem: Problem) -> Estimate:
    """Weighted importance sampling, per decision, clipped."""
    weights = problem.weights
    rewards = problem.paths.table(problem.data.rewards)
    drawn = weighted_return(problem.paths, weights, rewards, problem.gamma, problem.counts)
    return _of_draws(drawn, *_of_weights(problem))


def doubly_robust_q(problem: Problem) -> Estimate:
    """Doubly robust: FQE's values, mended by the weighted errors that they make on the logged steps."""
    fqe, _ = problem.fitted
    data, paths, gamma, seed = problem.data, problem.paths, problem.gamma, problem.settings.seed
    rows = np.unique(paths.rows[paths.there])
    own, following = (
        fqe.values(states, problem.judged.actions(states, stream_seed(seed, name)))
        for name, states in (("starts", data.observations[rows]), ("next actions", data.next_observations[rows]))
    )
    logged = fqe.values(data.observations[rows], np.asarray(data.actions[rows])[:, None])
    goes_on = gamma * ~np.asarray(data.terminated[rows])
    drawn = np.empty(len(problem.counts))
    whole = 0.0
    for k in range(len(own)):  # each critic with a part of the draws, so that the critics' spread is in the interval
        errors = np.zeros(len(data))
        errors[rows] = np.asarray(data.rewards[rows], np.float64) + goes_on * following[k] - logged[k]
        starts = own[k][np.searchsorted(rows, paths.rows[:, 0])]
        part = np.concatenate([[0], np.arange(1 + k, len(drawn), len(own))])
        found = doubly_robust(problem.weights, paths.table(errors), starts, gamma, problem.counts[part])
        whole += found[0] / len(own)
        drawn[part[1:]] = found[1:]
    drawn[0] = whole
    return _of_draws(drawn, *_of_weights(problem))


def model_rollouts(problem: Problem) -> Estimate:
    """The policy rolled out in a learned model; each bootstrap draw of the starts in one member, by turns."""
    model, judged = problem.model, problem.judged
    if isinstance(judged, JudgedPolicy):  # which acts once in each state
        judged = dataclasses.replace(judged, draws=1)
    rolled = roll_out(model, judged, problem.data, problem.gamma, problem.settings.seed)
    counts = problem.counts[:, rolled.episodes]
    member = np.arange(len(counts)) % len(rolled.values)
    drawn = (counts * rolled.values[member]).sum(axis=1) / np.maximum(counts.sum(axis=1), 1)
    drawn[0] = rolled.values.mean()
    facts = {
        "left the data's range": rolled.left,
        "spread of members": float(rolled.values.mean(axis=1).std(ddof=1)),
        "error of a step": math.sqrt(float(model.held_out_errors.mean())),
    }
    doubts = (f"{100 * rolled.left:.0f} % of the rollouts leave what the data have seen",)
    return _of_draws(drawn, facts, doubts if rolled.left > _LEFT else ())


Estimator = Callable[[Problem], Estimate]
ESTIMATORS: dict[str, Estimator] = {
    "fqe": fitted_q,
    "dr": doubly_robust_q,
    "wis": weighted_importance,
    "model": model_rollouts,
}
"""The estimators there are, by the names that tables use."""


def check_names(names: Sequence[str]) -> None:
    """Raise where an estimator is not known."""
    for name in names:
        if name not in ESTIMATORS:
            raise unknown_name("estimator", name, ESTIMATORS)


def estimate(name: str, problem: Problem) -> Estimate:
    """What an estimator says; where it cannot be used, not a number, and why."""
    try:
        return ESTIMATORS[name](problem)
    except NoDensity as error:
        return Estimate(math.nan, math.nan, math.nan, doubts=(str(error),))


def _of_draws(drawn: Floats, facts: Mapping[str, float], doubts: tuple[str, ...] = ()) -> Estimate:
    """The estimate of the data as they are, which comes first, with percentiles of the bootstrap draws."""
    low, high = np.quantile(drawn[1:], [_TAIL, 1 - _TAIL])
    return Estimate(float(drawn[0]), float(low), float(high), facts, doubts)


def _of_weights(problem: Problem) -> tuple[dict[str, float], tuple[str, ...]]:
    """What weights tell of themselves, and against themselves."""
    weights, episodes = problem.weights, len(problem.paths.ended)
    effective, top = weights.effective(problem.gamma), weights.top_share(problem.gamma)
    facts = {"effective episodes": effective, "weight of the top 1 %": top, "clipped": weights.clipped}
    doubts = []
    if effective < min(_FEW, episodes / 2):
        doubts.append(f"{effective:.1f} of {episodes:,} episodes carry all of the weight")
    elif top > _HEAVY:
        doubts.append(f"{100 * top:.0f} % of the weight lies on 1 % of the episodes")
    return facts, tuple(doubts)


def disagreement(estimates: Mapping[str, Estimate]) -> Iterator[str]:
    """A doubt where fqe and dr, which mends it, exclude each other."""
    fqe, dr = estimates.get("fqe"), estimates.get("dr")
    if fqe is not None and dr is not None and (fqe.high < dr.low or dr.high < fqe.low):
        yield "the intervals of fqe and dr do not overlap: one of the two is wrong here, or both"


def _moved(lines: list[dict[str, Any]]) -> float:
    """By how much the value of the starts moved in the last fifth of a fit."""
    values = [line["v_start"] for line in lines]
    part = max(1, round(_LAST * len(values) / 2))
    recent, before = values[-part:], values[-2 * part : -part] or values[:part]
    return float(2 * (np.mean(recent) - np.mean(before)))


def _unsettled(problem: Problem, tau: float, moved: float, much: float) -> Iterator[str]:
    """A doubt where a fit has not come to its own level, from the log's, where it begins.

    Targets look one step ahead and are followed at the rate tau: even where critics fit every target, exp(-n) of what a
    level is wrong by is left after n horizons, steps * tau / horizon, with the horizon 1 / (1 - gamma).
    """
    horizons = problem.settings.steps * tau / _horizon(problem)
    left = math.exp(-_LAST * horizons)
    ahead = moved * left / (1 - left)
    if abs(moved) > much:
        yield f"the fit still moves: by {moved:.3g} in its last fifth. Give it more --steps"
    elif horizons < 1:
        yield (
            f"the fit has hardly begun: it starts at the log's own value, and at discount {problem.gamma:g} it takes "
            f"about {_SETTLED * problem.settings.steps / horizons:,.0f} steps to reach another. Give it more --steps"
        )
    elif abs(ahead) > much:
        yield f"the fit still moves: at its pace in the last fifth {ahead:.3g} is still to come. Give it more --steps"


def _horizon(problem: Problem) -> float:
    """How many steps ahead count, discounted; where all episodes have ended for good, no more than the longest has."""
    ends = problem.data.episode_ends()
    for_good = bool(np.asarray(problem.data.terminated)[ends - 1].all())
    longest = float(np.diff(ends, prepend=0).max()) if for_good else math.inf
    return float((1 - problem.gamma**longest) / (1 - problem.gamma))


def _t(degrees: int) -> float:
    return _T[max(known for known in _T if known <= degrees)]


def plain(value: Any) -> Any:
    """A value as JSON has it; what is no finite number is null."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: plain(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value
