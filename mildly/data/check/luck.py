"""Luck or skill: whether some episodes are better than others by more than chance.

Episodes of one policy return different sums, since worlds and policies have noise. Two things would not be so by luck:

- what an episode earns early predicts what it earns late,
- good and bad episodes are in an order: good ones stand together, if the log has sources or a policy that learned; or
  they take turns with bad ones, as two operators do.

Both are rank correlations, compared with those of random orders. What does not tell policies apart is taken out before:
the mean reward of each step of an episode (rewards may rise with time, and episodes differ in length), and what the
state between early and late tells: of one policy, it is all that the past has to do with the future, and a lucky start
may have led to it. Between early and late lies a pause, as long as rewards remember.

Episodes that pass neither test may still differ by far more than luck within them makes. Then policies or conditions
made the difference, and these tests cannot say which.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from mildly.data.check.inspection import Inspection, figure
from mildly.data.dataset import Array

_EPISODES, _ROWS = 300, 500_000  # looked at, at most
_ORDERED = 5_000  # episodes whose neighbors are compared
_STEPS = 6  # of an episode that has an early and a late part, at least
_ENOUGH = 10  # such episodes
_ORDERS = 2_000
_CHANCE = 0.005  # how often luck may pass for skill, in each of the two tests
_TURNS = 0.001  # how often luck may pass for taking turns, which is rarer and, where it is the case, plain
_FORGOTTEN = 0.2  # of the autocorrelation that decays
_NOISE = 4.0  # standard errors within which an autocorrelation is none
_PAUSE = 1 / 3  # of an episode, at most
_LASTING = 0.7  # autocorrelation over an episode that no decay explains
_RIDGES = (0.1, 1.0, 10.0, 100.0, 1e6)
_EQUAL = 0.1  # how much lengths may vary
_PARTS = 4  # of an episode, whose differences show what luck does
_FAR = 2.0  # times the spread that luck makes; of twelve episodes of one policy one log in a thousand has as much


class Test(NamedTuple):
    """A rank correlation, and how often chance would bring as much."""

    correlation: float
    p: float

    def __str__(self) -> str:
        p = f"p = {self.p:.2g}" if self.p > 1.5 / _ORDERS else f"p < {1 / (_ORDERS // 2):.3f}"
        return f"rank correlation {self.correlation:.2f}, {p}"


class LuckTest(NamedTuple):
    """What speaks for skill, and how large luck is."""

    halves: Test | None
    """Early and late rewards of an episode; None where episodes are too short, or too few, to tell them apart."""
    order: Test
    """Returns of neighbors in the log."""
    spread: float
    """Standard deviation of the returns, without what the length makes."""
    luck: float | None
    """What it would be by luck alone; None where lengths differ, or rewards remember too much to tell."""

    @property
    def ordered(self) -> bool:
        """Whether good and bad episodes are in an order that luck does not make."""
        return self.order.p <= (_CHANCE if self.order.correlation > 0 else _TURNS)

    @property
    def skill(self) -> bool:
        """Whether episodes differ by more than luck."""
        return self.ordered or (self.halves is not None and self.halves.p <= _CHANCE)

    @property
    def unexplained(self) -> bool:
        """Whether returns spread by far more than luck within episodes makes."""
        return self.luck is not None and self.spread > _FAR * self.luck

    def words(self) -> str:
        """The numbers in sentences."""
        said = []
        if self.halves is not None:
            does = "predicts" if self.halves.p <= _CHANCE else "does not predict"
            said.append(
                f"Beyond what the state tells, what an episode earns early {does} what it earns late ({self.halves})."
            )
        else:
            said.append("Rewards hang together for too much of an episode to compare what it earns early and late.")
        order = "stand together" if self.order.correlation > 0 else "take turns"
        said.append(
            f"Good and bad episodes {order if self.ordered else 'are mixed'} in the log ({self.order} of neighbors)."
        )
        if self.luck is not None:
            said.append(
                f"Luck alone would spread returns by about {figure(self.luck)} (standard deviation); they spread by "
                f"{figure(self.spread)}."
            )
        return " ".join(said)


def luck_test(inspection: Inspection) -> LuckTest:
    """Test the episodes of a data set; of many, a part."""
    random = np.random.default_rng(0)
    returns = inspection.returns
    order = _serial(_ranks(returns[:_ORDERED]), random)
    steps = _Steps.of(inspection)
    if steps is None:
        return LuckTest(None, order, float(returns.std()), None)
    memory, known = steps.memory()
    spread, luck = steps.spreads(memory)
    if memory > _PAUSE * np.median(steps.lengths) and known < _LASTING:
        return LuckTest(None, order, spread, luck)
    halves, between = steps.halves(memory)
    states = inspection.logged("observations", between)
    early, late = (_beyond(states, half) for half in halves)
    return LuckTest(_correlation(early, late, random), order, spread, luck)


class _Steps(NamedTuple):
    """Rewards of some episodes, one after the other, without the mean of each step of an episode."""

    rewards: Array
    episode: Array
    """Number of each reward's episode."""
    step: Array
    """Of the episode, from 0 on."""
    lengths: Array
    """Of each episode."""
    starts: Array
    """The row where each episode begins."""

    @classmethod
    def of(cls, inspection: Inspection) -> _Steps | None:
        chosen = np.flatnonzero(inspection.lengths >= _STEPS)
        most = min(_EPISODES, max(_ENOUGH, int(_ROWS // max(inspection.lengths.mean(), 1.0))))
        chosen = chosen[np.linspace(0, len(chosen) - 1, min(most, len(chosen))).astype(int)]
        if len(chosen) < _ENOUGH:
            return None
        lengths = inspection.lengths[chosen]
        starts = inspection.ends[chosen] + 1 - lengths
        episode = np.repeat(np.arange(len(chosen)), lengths)
        step = np.arange(len(episode)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rewards = inspection.data.rewards[starts[episode] + step].astype(np.float64)
        rewards = np.nan_to_num(rewards, posinf=0.0, neginf=0.0)
        alike = np.minimum(step, np.sort(lengths)[-_ENOUGH] - 1)  # steps that few episodes reach are taken as one
        mean = np.bincount(alike, rewards) / np.bincount(alike)
        return cls(rewards - mean[alike], episode, step, lengths, starts)

    def memory(self) -> tuple[int, float]:
        """After how many steps rewards have forgotten what they were, and how far an episode's end knows its begin.

        Autocorrelation that decays is luck that lasts for a while. What is left of it between the first and the last
        quarter of an episode, the second number, is what distinguishes the episodes.
        """
        size = float(np.square(self.rewards).mean())
        if size == 0:
            return 0, 0.0
        quarter = self.lengths // 4
        first, last = (
            self._means(self.step < quarter[self.episode]),
            self._means(self._from_end() < quarter[self.episode]),
        )
        known = max(float((first * last).mean()) / size, 0.0)
        lag, beyond = 1, self._autocorrelation(1, size) - known
        if beyond <= _NOISE / np.sqrt(len(self.rewards)):
            return 0, known
        while lag < self.lengths.max() and self._autocorrelation(lag, size) - known > _FORGOTTEN * beyond:
            lag *= 2
        return lag, known

    def _autocorrelation(self, lag: int, size: float) -> float:
        same = self.episode[lag:] == self.episode[:-lag]
        return float((self.rewards[lag:] * self.rewards[:-lag]).sum(where=same)) / max(int(same.sum()), 1) / size

    def _from_end(self) -> Array:
        """Steps to go until the episode's last one."""
        return np.asarray(self.lengths[self.episode] - 1 - self.step)

    def _means(self, part: Array) -> Array:
        """Of each episode, the mean reward of some of its steps."""
        total = np.bincount(self.episode[part], self.rewards[part], len(self.lengths))
        return np.asarray(total / np.maximum(np.bincount(self.episode[part], minlength=len(self.lengths)), 1))

    def halves(self, memory: int) -> tuple[tuple[Array, Array], Array]:
        """Sums over the early and the late part of each episode, and the row where the late one begins.

        They are on a scale on which luck is equally large in all episodes.
        """
        pause = np.minimum(memory, (_PAUSE * self.lengths).astype(int))
        size = (self.lengths - pause) // 2
        early = self.step < size[self.episode]
        late = self._from_end() < size[self.episode]
        first, second = (np.bincount(self.episode[part], self.rewards[part], len(size)) for part in (early, late))
        return (first / np.sqrt(size), second / np.sqrt(size)), self.starts + self.lengths - size

    def spreads(self, memory: int) -> tuple[float, float | None]:
        """The returns' standard deviation, and that which luck alone would make: parts of an episode show it."""
        returns, length = np.bincount(self.episode, self.rewards), float(self.lengths.mean())
        spread = float(np.sqrt(np.mean(np.square(returns) / self.lengths) * length))
        long = self.lengths >= _PARTS * max(2 * memory, 1)
        if long.sum() < _ENOUGH or self.lengths.std() > _EQUAL * length:
            return spread, None
        part = self.step * _PARTS // self.lengths[self.episode]
        cells = len(self.lengths) * _PARTS
        number = self.episode * _PARTS + part
        sums, counts = np.bincount(number, self.rewards, cells), np.bincount(number, minlength=cells)
        sums, counts = sums.reshape(-1, _PARTS)[long], counts.reshape(-1, _PARTS)[long]
        means = (returns / self.lengths)[long, None]
        variance = np.square((sums - counts * means) / np.sqrt(counts)).sum(axis=1).mean() / (_PARTS - 1)  # a step's
        return spread, float(np.sqrt(variance * length))


def _beyond(states: Array, values: Array) -> Array:
    """Ranks of some values of episodes, without what a state in each of them tells.

    Kernel ridge regression, in which each episode is told by the others; how smooth it is, is chosen by the error.
    """
    known = np.where(np.isfinite(states).all(axis=0), states, 0.0)
    known = (known - known.mean(axis=0)) / np.maximum(known.std(axis=0), 1e-9)
    squares = np.square(known).sum(axis=1)
    distances = np.maximum(squares[:, None] + squares - 2 * known @ known.T, 0.0)
    sizes, directions = np.linalg.eigh(np.exp(-distances / max(float(np.median(distances)), 1e-9)))
    values = values - values.mean()
    along, best, errors = directions.T @ values, values, np.inf
    for ridge in _RIDGES:
        kept = sizes / (sizes + ridge)
        left = (values - directions @ (kept * along)) / (1 - np.square(directions) @ kept)
        if np.square(left).sum() < errors:
            best, errors = left, float(np.square(left).sum())
    return _ranks(best)


def _ranks(values: Array) -> Array:
    """Ranks around 0; equal values share theirs."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts + 1) / 2
    return np.asarray(ranks[which] - (len(values) - 1) / 2)


def _correlation(first: Array, second: Array, random: np.random.Generator) -> Test:
    """Of two columns of numbers around 0, against random orders of the second."""
    size = np.sqrt(np.square(first).sum() * np.square(second).sum())
    if size == 0:
        return Test(0.0, 1.0)
    by_chance = np.array([first @ random.permutation(second) for _ in range(_ORDERS)])
    value = float(first @ second)
    return Test(value / float(size), _share_of(by_chance, value, size))


def _serial(ranks: Array, random: np.random.Generator) -> Test:
    """Of neighbors, against random orders: how many have as much of what is seen, together or by turns."""
    size = np.square(ranks).sum()
    if size == 0:
        return Test(0.0, 1.0)
    orders = (random.permutation(ranks) for _ in range(_ORDERS))
    by_chance = np.array([order[1:] @ order[:-1] for order in orders])
    value = float(ranks[1:] @ ranks[:-1])
    sign = 1.0 if value > 0 else -1.0
    return Test(value / float(size), _share_of(sign * by_chance, sign * value, size))


def _share_of(by_chance: Array, value: float, size: float) -> float:
    """How often chance brings at least as much, the value itself counted."""
    rounding = 1e-9 * size
    return float((1 + (by_chance >= value - rounding).sum()) / (1 + len(by_chance)))
