"""Checks of the rewards. They look at every row, since a single reward can spoil a training."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mildly.data.check.inspection import Finding, Inspection, first_rows, percent
from mildly.data.check.values import odd_rows
from mildly.data.dataset import blocks
from mildly.words import counted

_HUGE = 1e6
_FAR = 10.0  # times the distance from the median within which 99 % of the rewards lie
_SAMPLE = 1_000_000
_DISCOUNT, _VALUE = 0.99, 1e5

_SCALE = "Divide the rewards in the log by a constant; the best policy stays the same."


def too_large(inspection: Inspection) -> Iterator[Finding]:
    """Rewards at which a critic's squared errors overflow or swamp all else."""
    number, rows = _beyond(inspection, 0.0, _HUGE)
    if number:
        yield Finding(
            "error",
            "reward-huge",
            f"Rewards are larger than {_HUGE:,.0f} in size; a critic diverges on them.",
            f"{counted(number, 'reward')}, from {inspection.rewards.low[0]:.4g} to {inspection.rewards.high[0]:.4g}, "
            f"first in {inspection.places(rows, number)}.",
            f"Repair those rows in the log if the numbers are wrong. {_SCALE}",
        )


def outliers(inspection: Inspection) -> Iterator[Finding]:
    """Single rewards far away from all others; the last one of an episode may be a bonus or a penalty."""
    rewards = inspection.data.rewards[:: max(1, len(inspection.data) // _SAMPLE)].astype(np.float64)
    rewards = rewards[np.isfinite(rewards)]
    if not len(rewards):
        return
    median = float(np.median(rewards))
    distance = np.abs(rewards - median)
    usual = float(np.quantile(distance, 0.99))
    if usual == 0.0 and distance.any():  # sparse rewards: compare with those that are given at all
        usual = float(np.median(distance[distance > 0]))
    number, rows = _beyond(inspection, median, max(_FAR * usual, 1e-6 * abs(median)), inside_episodes=True)
    if number and inspection.rewards.low[0] != inspection.rewards.high[0]:
        worst = max(inspection.rewards.low[0], inspection.rewards.high[0], key=lambda value: abs(value - median))
        yield Finding(
            "warning",
            "reward-outlier",
            f"Some rewards lie more than {_FAR:.0f} times as far from the median as 99 % of them.",
            f"{counted(number, 'reward')} ({percent(number / len(inspection.data))}) in "
            f"{inspection.places(rows, number)}; the median is {median:.4g}, 99 % lie within "
            f"{usual:.3g} of it, the farthest is {worst:.4g}.",
            "Look at those rows: if they are faults of the log, repair or drop them; if they are real events, train as "
            "it is, but expect a critic that is rough around them.",
        )


def constant(inspection: Inspection) -> Iterator[Finding]:
    """Rewards that are all the same."""
    facts = inspection.rewards
    if facts.low[0] != facts.high[0]:
        return
    value, lengths = facts.low[0], inspection.lengths[inspection.data.terminated[inspection.ends]]
    if value != 0 and len(np.unique(lengths)) > 1:
        yield Finding(
            "info",
            "reward-constant",
            "Every reward is the same, so only how long an episode lasts tells good from bad.",
            f"{value:.4g} in all {len(inspection.data):,} rows; terminated episodes last {lengths.min():,} to "
            f"{lengths.max():,} steps.",
            "Right where the aim is to last long, or to be done soon.",
        )
    else:
        yield Finding(
            "warning",
            "reward-constant",
            "Every reward is the same: there is nothing to learn but imitation.",
            f"{value:.4g} in all {len(inspection.data):,} rows.",
            "Check that the right column was read: `mildly data convert SRC DST --reward COLUMN`.",
        )


def value_scale(inspection: Inspection) -> Iterator[Finding]:
    """Rewards so large that the values, sums of a hundred of them, are hard to learn."""
    total = 0.0
    for block in blocks(len(inspection.data)):
        size = np.abs(inspection.data.rewards[block].astype(np.float64))
        total += float(size.sum(where=np.isfinite(size)))
    mean = total / len(inspection.data)
    value = mean / (1 - _DISCOUNT)
    if value > _VALUE:
        yield Finding(
            "warning",
            "value-scale",
            "Rewards are large, and values, which sum them up, even more so; a critic learns those badly.",
            f"The mean size of a reward is {mean:.4g}: with a discount of {_DISCOUNT} values reach {value:.3g}.",
            f"{_SCALE} Values of 100 to 1,000 are easy to learn.",
        )


def _beyond(
    inspection: Inspection, center: float, distance: float, *, inside_episodes: bool = False
) -> tuple[int, list[int]]:
    """How many rewards lie further from the center, and the first rows of them."""
    number, rows = 0, list[int]()
    for block in blocks(len(inspection.data)):
        rewards = inspection.data.rewards[block].astype(np.float64)
        far = np.isfinite(rewards) & (np.abs(rewards - center) > distance)
        if inside_episodes:
            far &= ~inspection.closes(block)
            far &= ~np.isin(np.arange(block.start, block.stop), odd_rows(inspection, "rewards", 0))
        number += int(far.sum())
        first_rows(rows, far, block.start)
    return number, rows
