"""All five propositions on many random processes: what the command `mildly theory` runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mildly.errors import MildlyError
from mildly.theory.evaluation import policy_q
from mildly.theory.example_mdps import random_mdp
from mildly.theory.mdp import Array, TabularMDP, stream
from mildly.theory.policies import leaking_policy, random_policy, random_support, tilted_policy
from mildly.theory.propositions import proposition_1, proposition_2, proposition_3, proposition_4, proposition_5
from mildly.theory.verdict import Verdict, merge

BATCH = 200
"""Processes handled at once: enough to share the cost of Python, few enough to show progress and save memory."""


@dataclass(frozen=True)
class Problem:
    """Everything the propositions speak of, for one process or a batch.

    Attributes:
        mdp: the process.
        mu: the behavior policy.
        mu_hat: a model of it that errs.
        policy: pi_p, a policy close to mu, as a policy constraint would leave it.
        delta: of T1.
        n: draws from mu_hat.
    """

    mdp: TabularMDP
    mu: Array
    mu_hat: Array
    policy: Array
    delta: Array
    n: Array


def random_problem(count: int, *, states: int = 20, actions: int = 10, seed: int | np.random.Generator = 0) -> Problem:
    """A batch of random problems that covers the ranges of every parameter.

    gamma is 0, 0.5, 0.9 or 0.99; rewards lie in an interval that may be positive, negative or both; half of all actions
    are in the support, at least one in each state; delta is 0.001, 1 or 50; N is 1, 2, 5 or 10; mu_hat leaks up to 0.49
    of its mass; pi_p leans away from mu, at random or towards worse actions, by much or by little.
    """
    rng = stream(seed, "problem")
    mdp = random_mdp(states, actions, count=count, gamma=rng.choice([0.0, 0.5, 0.9, 0.99], count), seed=rng)
    shift = rng.choice([-1.0, 0.0, 1.0], count)[:, None, None]
    mdp = TabularMDP(mdp.transitions, mdp.rewards + shift, mdp.gamma, mdp.initial)
    mu = random_policy(random_support(mdp.shape, seed=rng), seed=rng)
    worse = -policy_q(mdp, mu)
    scores = np.where(rng.random((count, 1, 1)) < 0.5, worse, rng.normal(size=mdp.shape))
    return Problem(
        mdp=mdp,
        mu=mu,
        mu_hat=leaking_policy(mu, rng.uniform(0, 0.49, count), seed=rng),
        policy=tilted_policy(mu, scores, 10 ** rng.uniform(-3, 0, count)),
        delta=rng.choice([1e-3, 1.0, 50.0], count),
        n=rng.choice([1.0, 2.0, 5.0, 10.0], count),
    )


def check(problem: Problem, *, seed: int = 0) -> list[Verdict]:
    """The verdicts of all five propositions on one problem or a batch."""
    mdp, mu, mu_hat = problem.mdp, problem.mu, problem.mu_hat
    return [
        proposition_1(mdp, mu, delta=problem.delta, seed=seed),
        proposition_2(mdp, mu, delta=problem.delta),
        proposition_3(mdp, mu, problem.policy, delta=problem.delta),
        proposition_4(mdp, mu, mu_hat, n=problem.n, seed=seed),
        proposition_5(mdp, mu, mu_hat, n=problem.n, seed=seed),
    ]


def check_random(
    mdps: int,
    *,
    states: int = 20,
    actions: int = 10,
    seed: int = 0,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Verdict]:
    """The verdicts of all five propositions on many random problems.

    Args:
        mdps: how many.
        states: of each process.
        actions: of each process.
        seed: the same seed, the same problems.
        progress: called with the number of processes done.
    """
    for name, number in (("mdps", mdps), ("states", states), ("actions", actions)):
        if number < 1:
            raise MildlyError(f"{name} must be at least 1, got {number}.")
    rng = stream(seed, "problem")
    parts = []
    for begin in range(0, mdps, BATCH):
        count = min(BATCH, mdps - begin)
        parts.append(check(random_problem(count, states=states, actions=actions, seed=rng), seed=seed))
        progress(begin + count)
    return [merge(same) for same in zip(*parts, strict=True)]
