"""What a run does after the training on its first data: it learns online, or from further logs."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mildly.errors import MildlyError

NOISE = 0.1
"""The usual noise on the actions of a deterministic policy: TD3's."""
_WHOLE = {"start": 1, "steps": 1, "environments": 1, "eval_every": 0, "episodes": 1}
_MOST = {"environments": 1024, **dict.fromkeys(("start", "steps", "eval_every", "episodes"), 10**15)}


@dataclass(frozen=True)
class Stage:
    """A part of a run, as `run.json` has it."""

    start: int
    """The run's step at which it begins."""
    steps: int
    """How many steps it takes: of the environment, or on logs gradient steps."""
    eval_every: int
    """Steps between evaluations; 0 for none."""
    episodes: int
    """Episodes of an evaluation."""
    env: str | None = None
    """The environment that it acts in, by its id, or by its name where it was given in Python; None for logs."""
    dataset: str | None = None
    """Where the further logs are found; None where it acts itself."""
    fingerprint: str = ""
    """Of the further logs; empty where it acts itself."""
    reading: dict[str, Any] = field(default_factory=dict)
    """The options that they were read with."""
    share: float | None = None
    """Share of the new transitions in a batch; None where all transitions are alike, old and new."""
    share_end: float | None = None
    """The share at the end, to which it goes on a straight line; None where it stays."""
    updates_per_step: float = 1.0
    """Gradient steps for each step of an environment."""
    environments: int = 1
    """Environments side by side."""
    noise: float = NOISE
    """Standard deviation of the noise on the actions of a deterministic policy."""
    stop_below: float | None = None
    """The score, or the return where there is none, below which it stops and the best policy is put back."""

    def __post_init__(self) -> None:
        for name, least in _WHOLE.items():
            value = getattr(self, name)
            if type(value) is not int or not least <= value <= _MOST[name]:
                raise MildlyError(f"{name} must be a whole number from {least} to {_MOST[name]:,}, got {value!r}.")
        for name, low, high in (("share", 0, 1), ("share_end", 0, 1), ("noise", 0, 2), ("updates_per_step", 0, 1000)):
            value = getattr(self, name)
            if value is not None and not (type(value) in (int, float) and low <= value <= high):
                raise MildlyError(f"{name} must be a number from {low} to {high}, got {value!r}.")
        if self.share_end is not None and (self.share is None or not self.online):
            raise MildlyError("share_end needs a share to begin with, and steps in an environment.")
        if self.updates_per_step == 0:
            raise MildlyError("updates_per_step must be positive: without updates nothing is learned.")
        if self.stop_below is not None and not math.isfinite(self.stop_below):
            raise MildlyError(f"stop_below must be a number, got {self.stop_below!r}.")

    @property
    def online(self) -> bool:
        """Whether it acts itself."""
        return not self.fingerprint

    @property
    def words(self) -> str:
        """What it is, for a label."""
        share = "" if self.share is None else f" share {self.share:g}"
        share += "" if self.share_end is None else f" to {self.share_end:g}"
        updates = "" if self.updates_per_step == 1 else f" updates {self.updates_per_step:g}"
        return f"{self.steps:,} {'online' if self.online else 'on more logs'}{share}{updates}"

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Stage:
        """What a file holds, which may be anything.

        Raises:
            ValueError, TypeError or MildlyError: it is not that.
        """
        for name, kind in {"env": str, "dataset": str, "fingerprint": str, "reading": dict}.items():
            if values.get(name) is not None and not isinstance(values[name], kind):
                raise TypeError(f"{name} is {values[name]!r}")
        known = {each.name for each in dataclasses.fields(cls)}
        return cls(**{name: value for name, value in values.items() if name in known})
