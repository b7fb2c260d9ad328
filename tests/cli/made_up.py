"""MADE-UP: a method with a group of each kind, for the tests of flags and help; nothing of it can be trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from mildly.algorithms.base import Algorithm
from mildly.algorithms.config import AlgorithmConfig


@dataclass(frozen=True)
class BehaviorConfig:
    """The behavior model."""

    kind: Literal["cvae", "flow"] = "cvae"
    """Its form."""
    hidden_dims: tuple[int, ...] = (750, 750)
    """Widths of its hidden layers."""
    steps: int | None = None
    """Train it in this many first steps only; in all
    if not given."""


@dataclass(frozen=True)
class Extras:
    """Extras. What the paper does not have."""

    return_mix: float = 0.0
    """Weight of the data's returns in the targets."""
    level_start: bool = False
    """Start at the level of the data's returns."""


@dataclass(frozen=True)
class BaseConfig(AlgorithmConfig):
    """What methods have in common."""

    gamma: float = 0.99
    """Discount factor."""
    actor_lr: float = 3e-4
    """Learning rate of the actor."""


@dataclass(frozen=True)
class MadeUpConfig(BaseConfig):
    """Hyperparameters of the method."""

    lam: float | Literal["auto"] = 0.7
    """Weight of the data's error against the other
    term, in (0, 1]."""
    floor: float | None = None
    """Lower bound of the targets."""
    reduction: Literal["min", "mean"] = "min"
    """How targets are combined."""
    one_sided: bool = False
    """Train actions only where their value is above the target, not below."""
    behavior: BehaviorConfig = BehaviorConfig()
    extras: Extras = Extras()


class MadeUp(Algorithm):
    """A method that is never built."""

    Config = MadeUpConfig
    PRESETS: ClassVar = {"paper": {}, "quick": {"lam": "auto", "floor": -1.5, "extras": Extras(return_mix=0.1)}}
    PRESET_NOTES: ClassVar = {"paper": "as published", "quick": "fewer actions"}
    KEY_FIELDS: ClassVar = ("lam", "behavior.kind")
