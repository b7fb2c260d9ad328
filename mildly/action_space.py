"""The action space: what -1 and +1 mean in the environment's own units. Nobody else does this arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mildly.errors import MildlyError

Array = npt.NDArray[Any]

UNKNOWN: Mapping[str, Any] = {"action_low": None, "action_high": None}
"""How JSON says that no bounds are known: the actions' units are [-1, 1]."""
_CONTINUOUS = "continuous"
_MOST_PAIRS = 4  # told one by one in a sentence


@dataclass(frozen=True)
class ActionSpace:
    """Continuous actions between two bounds per dimension.

    Data sets and networks hold actions in [-1, 1]; environments take them between `low` and `high`.

    Attributes:
        low: the lower bound of each dimension, in the environment's units; -1 in [-1, 1].
        high: likewise the upper bounds; +1 in [-1, 1].
    """

    low: tuple[float, ...]
    high: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, tuple(float(bound) for bound in getattr(self, name)))
        if not self.low or len(self.low) != len(self.high):
            raise MildlyError(
                f"an action space needs as many lower as upper bounds, got {len(self.low)} and {len(self.high)}."
            )
        if not (np.isfinite([self.low, self.high]).all() and (np.array(self.low) < self.high).all()):
            raise MildlyError(f"an action space needs finite bounds, the lower below the upper, got {self}.")

    @classmethod
    def unit(cls, size: int) -> ActionSpace:
        """The space in which data sets keep actions: [-1, 1] in every dimension."""
        return cls((-1.0,) * size, (1.0,) * size)

    @classmethod
    def of(cls, low: Array, high: Array) -> ActionSpace:
        """The space between two arrays (a,)."""
        return cls(tuple(low.tolist()), tuple(high.tolist()))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> ActionSpace | None:
        """The space that a file's `action_low` and `action_high` describe; None where both are null.

        Raises:
            ValueError, TypeError or KeyError: the file is damaged, or of a later version.
        """
        kind = values.get("action_kind", _CONTINUOUS)
        if kind != _CONTINUOUS:
            raise ValueError(f"action_kind {kind!r}; this version of mildly reads {_CONTINUOUS!r}")
        low, high = values["action_low"], values["action_high"]
        if low is None and high is None:
            return None
        if low is None or high is None:
            raise ValueError("action_low and action_high go together")
        try:
            return cls(tuple(low), tuple(high))
        except MildlyError as error:
            raise ValueError(f"action_low, action_high: {error}") from error

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads. Flat, so that it stands beside a file's other entries; no kind means continuous."""
        return {"action_low": list(self.low), "action_high": list(self.high)}

    @property
    def size(self) -> int:
        """How many numbers an action has."""
        return len(self.low)

    @property
    def is_unit(self) -> bool:
        """Whether the environment's units are [-1, 1] as well."""
        return self == ActionSpace.unit(self.size)

    def to_unit(self, actions: Array) -> Array:
        """Actions (..., a) in the environment's units to [-1, 1], in float64. Those beyond the bounds stay beyond."""
        middle, half = self._middle_and_half()
        return (np.asarray(actions, np.float64) - middle) / half

    def from_unit(self, actions: Array) -> Array:
        """Actions (..., a) in [-1, 1] to the environment's units, in float32 if they are float32, else in float64.

        Rounding may pass a bound by a little; `clip` mends it.
        """
        actions = np.asarray(actions)
        if actions.dtype == np.float32:  # another order of operations would change policies in their last bit
            low, high = self._bounds(np.float32)
            return np.asarray(low + (actions + 1) * (high - low) / 2)
        middle, half = self._middle_and_half()
        return np.asarray(middle + actions * half)

    def clip(self, actions: Array) -> Array:
        """Actions (..., a) in the environment's units, brought within the bounds, in the dtype of `from_unit`."""
        actions = np.asarray(actions)
        return np.clip(actions, *self._bounds(np.float32 if actions.dtype == np.float32 else np.float64))

    def _middle_and_half(self) -> tuple[Array, Array]:
        low, high = self._bounds(np.float64)
        return (high + low) / 2, (high - low) / 2

    def _bounds(self, dtype: npt.DTypeLike) -> tuple[Array, Array]:
        return np.array(self.low, dtype), np.array(self.high, dtype)

    def __str__(self) -> str:
        """The bounds in words: each pair once, or the widest where there are many."""
        pairs = dict.fromkeys(zip(self.low, self.high, strict=True))
        if len(pairs) > _MOST_PAIRS:
            return f"{self.size} columns, from {min(self.low):g} to {max(self.high):g}"
        return ", ".join(f"{low:g} to {high:g}" for low, high in pairs)
