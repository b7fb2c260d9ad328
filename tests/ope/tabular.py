"""A process of two states and two actions, small enough to enumerate: the truth for the tests of estimators."""

from __future__ import annotations

from itertools import product
from typing import NamedTuple

import numpy as np

from mildly.action_space import ActionSpace
from mildly.data.dataset import Dataset, Meta
from mildly.ope.importance import Paths

GAMMA, HORIZON = 0.8, 4
MU = np.array([[0.5, 0.5], [0.7, 0.3]])
"""The data's policy: (state, action)."""
PI = np.array([[0.1, 0.9], [0.6, 0.4]])
"""The policy to be judged."""


class Process(NamedTuple):
    moves: np.ndarray
    """Chance of the next state, (state, action, next)."""
    rewards: np.ndarray
    """(state, action)."""
    start: int


PROCESS = Process(
    np.array([[[0.8, 0.2], [0.1, 0.9]], [[0.5, 0.5], [0.3, 0.7]]]), np.array([[1.0, -0.5], [2.0, 0.3]]), start=0
)


def exact_q(policy: np.ndarray, steps: int, gamma: float = GAMMA) -> np.ndarray:
    """Discounted rewards of so many steps, (state, action)."""
    q = np.zeros((2, 2))
    for _ in range(steps):
        q = PROCESS.rewards + gamma * PROCESS.moves @ (policy * q).sum(axis=1)
    return q


def exact_v(policy: np.ndarray, steps: int = HORIZON, gamma: float = GAMMA) -> np.ndarray:
    return (policy * exact_q(policy, steps, gamma)).sum(axis=1)


class Episodes(NamedTuple):
    """Every episode that can happen, with its chance; tables (episodes, steps)."""

    states: np.ndarray
    actions: np.ndarray
    rewards: np.ndarray
    following: np.ndarray
    chances: np.ndarray
    paths: Paths


def enumerated(policy: np.ndarray) -> Episodes:
    """All episodes of the horizon's length, which end there."""
    rows, chances = [], []
    for choices in product(range(4), repeat=HORIZON):
        state, chance, row = PROCESS.start, 1.0, []
        for choice in choices:
            action, following = divmod(choice, 2)
            chance *= policy[state, action] * PROCESS.moves[state, action, following]
            row.append((state, action, PROCESS.rewards[state, action], following))
            state = following
        rows.append(row)
        chances.append(chance)
    table = np.array(rows)  # (episodes, steps, 4)
    count = len(rows)
    there = np.ones((count, HORIZON), bool)
    paths = Paths(np.arange(count * HORIZON).reshape(count, HORIZON), there, np.ones(count, bool))
    whole = table.astype(int)
    return Episodes(whole[..., 0], whole[..., 1], table[..., 2], whole[..., 3], np.array(chances), paths)


def logged(episodes: int, length: int = 20, seed: int = 0, terminal: bool = False) -> Dataset:
    """Episodes of the data's policy: states one-hot, actions -1 and +1, cut off by a time limit, or ending there."""
    random = np.random.default_rng(seed)
    columns: dict[str, list] = {name: [] for name in ("state", "action", "reward", "next", "end")}
    for _ in range(episodes):
        state = PROCESS.start
        for t in range(length):
            action = int(random.random() < MU[state, 1])
            following = int(random.random() < PROCESS.moves[state, action, 1])
            values = state, action, PROCESS.rewards[state, action], following, t == length - 1
            for column, value in zip(columns.values(), values, strict=True):
                column.append(value)
            state = following
    ends = np.array(columns["end"])
    one_hot = np.eye(2)
    return Dataset.from_arrays(
        observations=one_hot[columns["state"]],
        actions=2.0 * np.array(columns["action"])[:, None] - 1,
        rewards=np.array(columns["reward"]),
        next_observations=one_hot[columns["next"]],
        terminated=ends & terminal,
        truncated=ends & (not terminal),
        meta=Meta("tabular", action_space=ActionSpace((-1.0,), (1.0,))),
    )


class TabularPolicy:
    """The policy to be judged, on one-hot states: each action as often among the draws as its chance says."""

    density = "its own"

    def __init__(self, policy: np.ndarray = PI, draws: int = 10) -> None:
        self.policy, self.draws = policy, draws

    def actions(self, observations: np.ndarray, seed: int) -> np.ndarray:
        chance = self.policy[np.argmax(observations, axis=1), 1]
        ranks = (np.arange(self.draws) + 0.5) / self.draws
        return np.where(ranks < chance[:, None], 1.0, -1.0)[..., None].astype(np.float32)

    def log_prob(self, observations: np.ndarray, actions: np.ndarray) -> np.ndarray:
        chosen = (actions[:, 0] > 0).astype(int)
        return np.log(self.policy[np.argmax(observations, axis=1), chosen])
