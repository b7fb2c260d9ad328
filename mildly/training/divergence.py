"""Divergence: values that no rewards could bring, long before numbers overflow; and what may have caused it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from torch import Tensor

from mildly.data.batches import Preprocessing
from mildly.data.check.inspection import Inspection
from mildly.data.check.values import oddities
from mildly.data.dataset import Dataset, blocks
from mildly.run import flatten

_LINES = 5
"""Lines of the log in a row that must lie outside."""
_LARGE = 100.0  # size of numbers from which networks learn badly
_FAR = 20.0  # times the usual size of rewards
_HUGE = 1e4  # a reward that is large whatever the others are
_HIGH_RATE = 1e-3
_NAMED = 4  # outliers in a message
_LEAST = 1.0  # half-width of the bound where all rewards are zero: networks begin with values of this size


class ValueWatch:
    """Compares the logged mean value of the data's actions with what the data's rewards allow.

    A value is a sum of discounted rewards, so it lies between r_min / (1 - gamma) and r_max / (1 - gamma), or zero
    where an episode may end before. That bound is widened by its own width, since estimates overshoot for a while, and
    by what an entropy bonus or a penalty of rewards may add. A value outside in five lines in a row, which is not
    coming nearer, is divergence: five, because networks may begin outside, on observations in large units.
    """

    def __init__(self, low: float, high: float, gamma: float) -> None:
        """`low` and `high` are the smallest and the largest reward as the learner sees them."""
        self.rewards, self.rest = (low, high), 1 - gamma
        self.include(low, high)
        self.outside: deque[float] = deque(maxlen=_LINES)
        """By how much the last lines lay outside."""

    def include(self, low: float, high: float) -> None:
        """Further rewards have come, from a smallest to a largest."""
        self.rewards = min(low, self.rewards[0]), max(high, self.rewards[1])
        low, high = min(0.0, self.rewards[0]) / self.rest, max(0.0, self.rewards[1]) / self.rest
        width = max(high - low, _LEAST)
        self.low, self.high = low - width, high + width

    @classmethod
    def of(cls, data: Dataset, reward_scale: float, gamma: float) -> ValueWatch:
        """What a data set's rewards allow."""
        ends = [
            float(end) for rows in blocks(len(data)) for end in (data.rewards[rows].min(), data.rewards[rows].max())
        ]
        return cls(min(ends) * reward_scale, max(ends) * reward_scale, gamma)

    @property
    def suspicious(self) -> bool:
        """Whether the last line lay outside, and it is too early to tell what it means."""
        return 0 < len(self.outside) < _LINES

    def restore(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Go to where the lines of a log have led."""
        self.outside.clear()
        for line in lines:
            self.diverged(line)

    def diverged(self, metrics: Mapping[str, Any]) -> str:
        """Take a line of the log; what is wrong in words, or nothing."""
        if "q_data" not in metrics:
            return ""
        value, entropy = float(metrics["q_data"]), metrics.get("alpha", 0.0) * metrics.get("entropy", 0.0)
        more = (abs(float(entropy)) + float(metrics.get("penalty", 0.0))) / self.rest
        low, high = self.low - more, self.high + more
        distance = max(low - value, value - high)
        if distance <= 0:
            self.outside.clear()
            return ""
        self.outside.append(distance)
        if len(self.outside) < _LINES or distance < self.outside[0]:
            return ""
        return (
            f"q_data is {value:.4g}, and has been outside [{low:.4g}, {high:.4g}] for {_LINES} lines of the log, "
            f"though rewards from {self.rewards[0]:.4g} to {self.rewards[1]:.4g} allow no such value"
        )


def likely_causes(
    data: Dataset, preprocessing: Preprocessing, config: Any, prepared: Mapping[str, Tensor] | None = None
) -> str:
    """What may have driven a training apart, in the order of evidence: scale of inputs, outliers, learning rates.

    Rewards are spoken of only where the algorithm learns from them, which is where it has a discount. `prepared` is
    what the algorithm knows of each row besides.
    """
    with np.errstate(all="ignore"):
        inspection = Inspection(data, thorough=True)
        causes = [*_prepared(prepared or {}), *_scale(inspection, preprocessing), *_outliers(inspection)]
        ordinary = "" if causes else f" ({_farthest(inspection)})"
        causes += _rewards(inspection, preprocessing) if hasattr(config, "gamma") else []
    rates = {name: rate for name, rate in flatten(config).items() if name.split(".")[-1].endswith("lr") and rate}
    high = [name for name, rate in rates.items() if rate > _HIGH_RATE] or list(rates)
    causes.append(f"learning rates: lower {', '.join(f'{name} ({rates[name]:g})' for name in high)}{ordinary}")
    return f"Likely causes, by the evidence: {'; '.join(f'{i}. {cause}' for i, cause in enumerate(causes, 1))}."


def _prepared(prepared: Mapping[str, Tensor]) -> Iterator[str]:
    for name, rows in prepared.items():
        unknown = int((~rows.flatten(1).isfinite().all(-1) if rows.ndim > 1 else ~rows.isfinite()).sum())
        if unknown:
            yield (
                f"what the algorithm prepares: '{name}' is not finite in {unknown:,} of {len(rows):,} rows, and a loss "
                "that takes these rows as they are is not finite either"
            )


def _scale(inspection: Inspection, preprocessing: Preprocessing) -> Iterator[str]:
    facts = inspection.observations
    size = np.nan_to_num(np.hypot(facts.mean, facts.std))
    column = int(np.argmax(size))
    if preprocessing.normalizer is None and size[column] > _LARGE:
        yield (
            f"scale of inputs: {inspection.column_name(column)} of the observation has mean {facts.mean[column]:.4g} "
            f"and standard deviation {facts.std[column]:.4g}, and is not normalized (--normalize-observations)"
        )


def _outliers(inspection: Inspection) -> Iterator[str]:
    found = [odd for odd in inspection.once(oddities) if odd.field != "rewards"]
    if found:
        shown = "; ".join(odd.words(inspection) for odd in found[:_NAMED])
        more = f" and {len(found) - _NAMED} more" if len(found) > _NAMED else ""
        yield f"outliers in inputs: {shown}{more} ('mildly data check' shows them)"


def _farthest(inspection: Inspection) -> str:
    """The most extreme input, where none is odd."""
    facts = inspection.observations
    away = np.maximum(facts.high - facts.mean, facts.mean - facts.low) / np.maximum(facts.std, 1e-12)
    column = int(np.argmax(np.nan_to_num(away)))
    return (
        f"no input stands out: the most extreme, in {inspection.column_name(column)} of the observation, lies "
        f"{away[column]:.1f} standard deviations from its mean"
    )


def _rewards(inspection: Inspection, preprocessing: Preprocessing) -> list[str]:
    facts, scale = inspection.rewards, preprocessing.reward_scale
    largest = float(max(-facts.low[0], facts.high[0]) * scale)
    size = float(np.hypot(facts.mean[0], facts.std[0]) * scale)
    if largest <= max(min(_FAR * size, _HUGE), _LARGE):
        return []
    return [f"rewards: they reach {largest:.4g} in size, as the learner sees them, and are {size:.4g} on average"]
