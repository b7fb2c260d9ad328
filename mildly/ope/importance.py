"""Importance weights of logged episodes, and the estimates that use them. Plain numpy.

With the ratios rho_t = min(pi(a_t|s_t) / mu(a_t|s_t), clip), the weight of an episode i up to step t is the product
w_it = rho_i0 ... rho_it, and W_it = w_it / sum_j w_jt is its share. Then

    wis   V = sum_t gamma^t sum_i W_it r_it                                        weighted, per decision (Precup 2000)
    dr    V = mean_i V^(s_i0) + sum_t gamma^t sum_i W_it [r_it + gamma V^(s_it+1) - Q^(s_it, a_it)]
                                                                     weighted, doubly robust (Thomas, Brunskill 2016)

V^ and Q^ being any values of the policy, here FQE's; V^ is 0 behind a terminal state. An episode that terminates keeps
its weight, and earns nothing more. One that is cut off, by a time limit, a gap or the horizon, is unknown from there
on, and leaves the sums. What comes behind the last step of all goes on as from the start for wis, and is V^ for dr.

Every estimate is a function of how often each episode counts, so that a bootstrap draw is a row of counts.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mildly.data.dataset import Array, Dataset

Floats = npt.NDArray[np.float64]
_NEGLIGIBLE = 1e-3  # of a reward's weight is what the discount leaves at the horizon
_MOST_STEPS = 5_000


class Paths(NamedTuple):
    """The first stretch of every episode as a table (episodes, steps)."""

    rows: npt.NDArray[np.int64]
    """Rows of the data; 0 behind the end."""
    there: npt.NDArray[np.bool_]
    """Whether the log has this step."""
    ended: npt.NDArray[np.bool_]
    """(episodes,): whether the episode terminates with its last step, instead of being cut off."""

    @classmethod
    def of(cls, data: Dataset, gamma: float) -> Paths:
        """The paths up to where the discount leaves next to nothing."""
        first = {segment.start: segment for segment in data.segments()}
        stretches = [first[episode.start] for episode in data.episodes()]
        lengths = np.array([stretch.stop - stretch.start for stretch in stretches])
        starts, kept = np.array([stretch.start for stretch in stretches]), np.minimum(lengths, horizon(gamma))
        steps = np.arange(kept.max())
        there = steps < kept[:, None]
        ended = np.asarray(data.terminated)[starts + kept - 1]
        return cls(np.where(there, starts[:, None] + steps, 0), there, ended)

    def table(self, column: Array) -> Floats:
        """A column of the data, 0 behind the ends."""
        return np.where(self.there, np.asarray(column, np.float64)[self.rows], 0.0)


class Weights(NamedTuple):
    """The weights w_it of episodes, each step's in units of its largest one."""

    values: Floats
    """(episodes, steps); 0 where an episode has been cut off before."""
    clipped: float
    """Share of the steps whose ratio was clipped."""

    @classmethod
    def of(cls, paths: Paths, log_ratios: Floats, clip: float) -> Weights:
        """From log pi(a|s) - log mu(a|s) of each step, (episodes, steps)."""
        limit = math.log(clip)
        product = np.cumsum(np.where(paths.there, np.minimum(log_ratios, limit), 0.0), axis=1)
        product[~(paths.there | paths.ended[:, None])] = -np.inf
        highest = product.max(axis=0)
        values = np.exp(product - np.where(np.isfinite(highest), highest, 0.0))
        return cls(values, float((log_ratios > limit)[paths.there].mean()))

    def shares(self, counts: Floats) -> Floats:
        """The sum of weights of each step, (draws, steps), not below what can be divided by."""
        return np.maximum(counts @ self.values, 1e-300)

    def effective(self, gamma: float) -> float:
        """How many episodes carry an estimate: Kish's effective size of a step's sample, averaged as steps count."""
        size = self.values.sum(axis=0) ** 2 / np.maximum((self.values**2).sum(axis=0), 1e-300)
        return float(np.average(size, weights=discounts(gamma, len(size))))

    def top_share(self, gamma: float, part: float = 0.01) -> float:
        """Share of the weight that the heaviest hundredth of the episodes has, at least one, averaged likewise."""
        episodes, steps = self.values.shape
        most = math.ceil(part * episodes)
        heaviest = np.partition(self.values, episodes - most, axis=0)[episodes - most :].sum(axis=0)
        share = heaviest / np.maximum(self.values.sum(axis=0), 1e-300)
        return float(np.average(share, weights=discounts(gamma, steps)))


def weighted_return(paths: Paths, weights: Weights, rewards: Floats, gamma: float, counts: Floats) -> Floats:
    """wis, (draws,), for rewards (episodes, steps) and counts of episodes (draws, episodes)."""
    steps = rewards.shape[1]
    total = weights.shares(counts)
    found = ((counts @ (weights.values * rewards)) / total) @ discounts(gamma, steps)
    last = weights.values[:, -1] * (paths.there[:, -1] & ~paths.ended)
    goes_on = (counts @ last) / total[:, -1]
    return np.asarray(found / (1 - goes_on * gamma**steps))


def doubly_robust(weights: Weights, errors: Floats, start_values: Floats, gamma: float, counts: Floats) -> Floats:
    """dr, (draws,), for the values' errors r + gamma V^(s') - Q^(s, a), (episodes, steps), and V^(s_0), (episodes,)."""
    mended = ((counts @ (weights.values * errors)) / weights.shares(counts)) @ discounts(gamma, errors.shape[1])
    return np.asarray(counts @ start_values / counts.sum(axis=1) + mended)


def horizon(gamma: float) -> int:
    """Steps behind which the discount leaves next to nothing."""
    if gamma == 0:
        return 1
    return _MOST_STEPS if gamma >= 1 else min(math.ceil(math.log(_NEGLIGIBLE) / math.log(gamma)), _MOST_STEPS)


def discounts(gamma: float, steps: int) -> Floats:
    """1, gamma, gamma^2, ..."""
    return np.asarray(gamma ** np.arange(steps), dtype=np.float64)
