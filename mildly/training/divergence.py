"""Values that no rewards could bring: a training that has lost its way long before its numbers overflow."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from mildly.data.dataset import Dataset, blocks

_LINES = 5
"""Lines of the log in a row that must lie outside."""
_LEAST = 1.0  # half-width of the bound where all rewards are zero: networks begin with values of this size


class ValueWatch:
    """Compares the logged mean value of the data's actions with what the data's rewards allow.

    A value is a sum of discounted rewards, so it lies between r_min / (1 - gamma) and r_max / (1 - gamma), or zero
    where an episode may end before. That bound is widened by its own width, since estimates overshoot for a while, and
    by what an entropy bonus may add. A value outside in five lines in a row, which is not coming nearer, is divergence:
    five, because networks may begin outside, on observations in large units.
    """

    def __init__(self, low: float, high: float, gamma: float) -> None:
        """`low` and `high` are the smallest and the largest reward as the learner sees them."""
        self.rewards, self.rest = (low, high), 1 - gamma
        low, high = min(0.0, low) / self.rest, max(0.0, high) / self.rest
        width = max(high - low, _LEAST)
        self.low, self.high = low - width, high + width
        self.outside: deque[float] = deque(maxlen=_LINES)
        """By how much the last lines lay outside."""

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
        more = abs(float(entropy)) / self.rest
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
