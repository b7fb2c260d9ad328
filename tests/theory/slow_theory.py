"""The slow reference: the paper's definitions as loops over states, actions and draws, and random tiny problems."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from mildly.theory import DenseTransitions, SparseTransitions, TabularMDP


@dataclass
class Tiny:
    """A process small enough for loops, with all that the propositions need."""

    mdp: TabularMDP
    mu: np.ndarray
    mu_hat: np.ndarray
    delta: float
    n: int
    rng: np.random.Generator

    @property
    def support(self) -> np.ndarray:
        return self.mu > 0

    def q(self, scale: float = 5.0) -> np.ndarray:
        return self.rng.uniform(-scale, scale, self.mdp.shape)


@st.composite
def tiny_problems(draw: Any, states: int = 4, actions: int = 4, gamma: float = 0.99) -> Tiny:
    """Sizes, gamma in [0, 1), delta, supports of every shape and rewards of both signs; mu_hat within 1/2 of mu."""
    size = (draw(st.integers(1, states)), draw(st.integers(1, actions)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    rewards = np.array(draw(st.lists(st.floats(-3, 3), min_size=size[0] * size[1], max_size=size[0] * size[1])))
    concentration = draw(
        st.sampled_from([0.05, 1.0, 20.0])
    )  # nearly deterministic, uniform, nearly the same everywhere
    transitions = rng.dirichlet(np.full(size[0], concentration), size)
    support = np.array(draw(st.lists(st.booleans(), min_size=size[0] * size[1], max_size=size[0] * size[1])))
    support = support.reshape(size)
    support[np.arange(size[0]), rng.integers(size[1], size=size[0])] = True
    mu = np.where(support, rng.exponential(size=size) + 0.01, 0)
    mu /= mu.sum(axis=-1, keepdims=True)
    other = rng.dirichlet(np.ones(size[1]), size[0])
    share = draw(st.floats(0, 0.49))
    mdp = TabularMDP(transitions, rewards.reshape(size), draw(st.floats(0, gamma)), rng.dirichlet(np.ones(size[0])))
    return Tiny(
        mdp=mdp,
        mu=mu,
        mu_hat=(1 - share) * mu + share * other,
        delta=draw(st.sampled_from([1e-3, 0.3, 50.0])),
        n=draw(st.integers(1, 4)),
        rng=rng,
    )


def next_states(mdp: TabularMDP, s: int, a: int) -> list[tuple[int, float]]:
    """The successors of a state and action with their probabilities."""
    p = mdp.transitions
    if isinstance(p, SparseTransitions):
        return [(int(j), float(x)) for j, x in zip(p.successors[s, a], p.probabilities[s, a], strict=True)]
    assert isinstance(p, DenseTransitions)
    return [(j, float(p.probabilities[s, a, j])) for j in range(mdp.states)]


def slow_t2(mdp: TabularMDP, mu: np.ndarray, q: np.ndarray) -> np.ndarray:
    out = np.zeros(mdp.shape)
    gamma = float(mdp.gamma)
    for s, a in product(range(mdp.states), range(mdp.actions)):
        if mu[s, a] > 0:
            expected = sum(p * max(q[t, b] for b in range(mdp.actions)) for t, p in next_states(mdp, s, a))
            out[s, a] = mdp.rewards[s, a] + gamma * expected
        else:
            out[s, a] = mdp.rewards[s, a] + gamma * q[s, a]
    return out


def slow_t_mcb(mdp: TabularMDP, mu: np.ndarray, q: np.ndarray, delta: float) -> np.ndarray:
    out = slow_t2(mdp, mu, q)
    for s in range(mdp.states):
        best = max(out[s, b] for b in range(mdp.actions) if mu[s, b] > 0)
        for a in range(mdp.actions):
            if mu[s, a] == 0:
                out[s, a] = best - delta
    return out


def slow_expected_max(values: np.ndarray, weights: np.ndarray, n: int) -> float:
    """Over all tuples of n draws, one by one."""
    total = 0.0
    for draws in product(range(len(values)), repeat=n):
        total += float(np.prod([weights[i] for i in draws])) * max(float(values[i]) for i in draws)
    return total


def slow_t_mcb_hat(mdp: TabularMDP, mu: np.ndarray, mu_hat: np.ndarray, n: int, q: np.ndarray) -> np.ndarray:
    backed_up = slow_t2(mdp, mu, q)
    out = backed_up.copy()
    for s, a in product(range(mdp.states), range(mdp.actions)):
        if mu[s, a] == 0:
            out[s, a] = slow_expected_max(backed_up[s], mu_hat[s], n)
    return out


def slow_value(mdp: TabularMDP, policy: np.ndarray, steps: int = 3000) -> np.ndarray:
    """V^pi by adding up expected discounted rewards step after step."""
    states = mdp.states
    moves = np.zeros((states, states))
    for s, a in product(range(states), range(mdp.actions)):
        for t, p in next_states(mdp, s, a):
            moves[s, t] += policy[s, a] * p
    reward = np.array([sum(policy[s, a] * mdp.rewards[s, a] for a in range(mdp.actions)) for s in range(states)])
    value, weight = np.zeros(states), np.eye(states)
    for _ in range(steps):
        value += weight @ reward
        weight = float(mdp.gamma) * weight @ moves
    return value


def slow_batch_optimal(mdp: TabularMDP, mu: np.ndarray) -> np.ndarray:
    """Q_mu*: every deterministic policy inside the support is tried."""
    best = np.full(mdp.states, -np.inf)
    for chosen in product(*[np.flatnonzero(mu[s] > 0) for s in range(mdp.states)]):
        best = np.maximum(best, slow_value(mdp, np.eye(mdp.actions)[list(chosen)]))
    out = np.zeros(mdp.shape)
    for s, a in product(range(mdp.states), range(mdp.actions)):
        expected = sum(p * best[t] for t, p in next_states(mdp, s, a))
        out[s, a] = mdp.rewards[s, a] + float(mdp.gamma) * expected
    return out
