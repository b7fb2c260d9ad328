"""Whether the data know a policy's actions: are they like actions that were logged in like states?

For a state of the data, take its nearest neighbors among the states of other episodes, and the distance of an action to
the nearest action that was logged there. Of the logged action itself that distance is known, too. A policy's action
is covered where it is no farther than 95 % of the logged ones are; so 95 % is what the log itself has.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mildly.data.dataset import Array, Dataset
from mildly.ope.judged import Judged

_STATES = 1_000
_AMONG = 20_000  # states that neighbors are looked for among
_NEIGHBORS = 20
_USUAL = 0.95
_BLOCK = 100


class Coverage(NamedTuple):
    """How far actions are from those of like states, for some states of the data."""

    rows: Array
    """Which states."""
    distances: Array
    """Of the policy's actions: the mean over its draws."""
    usual: float
    """What 95 % of the logged actions have at most."""

    @property
    def covered(self) -> Array:
        """Whether the policy's action in each state is one that the data know."""
        return self.distances <= self.usual

    @property
    def share(self) -> float:
        """Of the states, those at which it is."""
        return float(self.covered.mean())


def coverage(judged: Judged, data: Dataset, seed: int = 0) -> Coverage:
    """How well the data cover a policy, by a sample of states."""
    random = np.random.default_rng(seed)
    among = np.sort(random.permutation(len(data))[:_AMONG])
    rows = np.sort(random.permutation(len(data))[:_STATES])
    episode = np.repeat(np.arange(len(data.episode_ends())), np.diff(data.episode_ends(), prepend=0))
    observations = np.asarray(data.observations[among], np.float64)
    center, spread = observations.mean(axis=0), observations.std(axis=0)
    spread = np.where(spread > 1e-6 * np.abs(center), spread, np.inf)
    states, known = (np.asarray(data.observations[rows]) - center) / spread, (observations - center) / spread
    own, squares = np.asarray(judged.actions(data.observations[rows], seed), np.float64), (known**2).sum(axis=1)
    logged, actions = np.asarray(data.actions[rows], np.float64), np.asarray(data.actions[among], np.float64)
    found, usual = np.empty(len(rows)), np.empty(len(rows))
    nearest = min(_NEIGHBORS, len(among))
    for start in range(0, len(rows), _BLOCK):
        part = slice(start, start + _BLOCK)
        apart = squares - 2 * states[part] @ known.T  # but for a constant of each state
        apart[episode[rows[part], None] == episode[among]] = np.inf
        neighbors = actions[np.argpartition(apart, nearest - 1, axis=1)[:, :nearest]]  # (block, neighbors, a)
        found[part] = _nearest(own[part], neighbors).mean(axis=1)
        usual[part] = _nearest(logged[part, None], neighbors)[:, 0]
    return Coverage(rows, found, float(np.quantile(usual, _USUAL)))


def _nearest(actions: Array, neighbors: Array) -> Array:
    """The distance of actions (states, n, a) to the nearest of (states, neighbors, a): (states, n)."""
    apart = actions[:, :, None] - neighbors[:, None]
    distance: Array = np.sqrt((apart**2).sum(axis=-1)).min(axis=-1)
    return distance
