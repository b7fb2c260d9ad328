"""Markov decision processes to play with: random ones (a batch at a time), a chain, a grid, a large sparse one."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mildly.errors import MildlyError
from mildly.theory.mdp import SparseTransitions, TabularMDP, stream


def random_mdp(
    states: int,
    actions: int,
    *,
    count: int | None = None,
    gamma: ArrayLike = 0.9,
    reward_low: float = -1.0,
    reward_high: float = 1.0,
    seed: int | np.random.Generator = 0,
) -> TabularMDP:
    """Transitions drawn uniformly from all distributions, rewards uniformly from an interval.

    Args:
        states: how many.
        actions: how many.
        count: None for one process, M for a batch of M.
        gamma: one discount, or one for each process.
        reward_low: the interval's lower end.
        reward_high: the interval's upper end.
        seed: a number, or a generator to draw from.
    """
    _at_least_one(states=states, actions=actions, count=1 if count is None else count)
    rng = stream(seed, "mdp")
    batch = () if count is None else (count,)
    weights = rng.exponential(size=(*batch, states, actions, states))  # normalized: a flat Dirichlet distribution
    rewards = rng.uniform(reward_low, reward_high, (*batch, states, actions))
    return TabularMDP(weights / weights.sum(axis=-1, keepdims=True), rewards, gamma)


def sparse_mdp(
    states: int, actions: int, *, successors: int = 5, gamma: float = 0.95, seed: int | np.random.Generator = 0
) -> TabularMDP:
    """One large process: each state and action leads to a few states, drawn at random."""
    _at_least_one(states=states, actions=actions, successors=successors)
    rng = stream(seed, "mdp")
    shape = (states, actions, successors)
    weights = rng.exponential(size=shape)
    transitions = SparseTransitions(rng.integers(states, size=shape), weights / weights.sum(axis=-1, keepdims=True))
    return TabularMDP(transitions, rng.uniform(-1, 1, shape[:-1]), gamma)


def chain_mdp(states: int = 8, *, slip: float = 0.1, gamma: float = 0.9) -> TabularMDP:
    """A corridor: action 0 goes left, 1 goes right, and with probability `slip` the other way.

    Staying at the right end pays 1, at the left end 0.1, elsewhere nothing. The walk begins on the left.
    """
    _at_least_one(states=states)
    _probability(slip=slip)
    probabilities = np.zeros((states, 2, states))
    rewards = np.zeros((states, 2))
    for state in range(states):
        left, right = max(state - 1, 0), min(state + 1, states - 1)
        for action, (meant, other) in enumerate([(left, right), (right, left)]):
            probabilities[state, action, meant] += 1 - slip
            probabilities[state, action, other] += slip
    rewards[0], rewards[-1] = 0.1, 1.0
    return TabularMDP(probabilities, rewards, gamma, np.eye(states)[0])


def grid_mdp(rows: int = 5, columns: int = 5, *, slip: float = 0.1, gamma: float = 0.95) -> TabularMDP:
    """A floor of squares: up, right, down, left, and with probability `slip` a step in a random direction.

    Every step costs 0.04; the square in the far corner pays 1 and keeps the walker. The walk begins at square 0.
    """
    _at_least_one(rows=rows, columns=columns)
    _probability(slip=slip)
    states = rows * columns
    row, column = np.divmod(np.arange(states), columns)
    steps = [(-1, 0), (0, 1), (1, 0), (0, -1)]
    arrivals = np.stack(
        [np.clip(row + i, 0, rows - 1) * columns + np.clip(column + j, 0, columns - 1) for i, j in steps], axis=-1
    )
    arrivals[-1] = states - 1
    successors = np.broadcast_to(arrivals[:, None, :], (states, 4, 4))
    probabilities = np.broadcast_to((1 - slip) * np.eye(4) + slip / 4, (states, 4, 4))
    rewards = np.full((states, 4), -0.04)
    rewards[-1] = 1.0
    return TabularMDP(SparseTransitions(successors, probabilities), rewards, gamma, np.eye(states)[0])


def _at_least_one(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise MildlyError(f"{name} must be at least 1, got {number}.")


def _probability(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 <= number <= 1:
            raise MildlyError(f"{name} must be in [0, 1], got {number}.")
