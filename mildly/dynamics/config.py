"""How large a dynamics model is, and how it is trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mildly.errors import MildlyError


@dataclass(frozen=True)
class DynamicsConfig:
    """Dynamics model: what follows a state and an action. The defaults are those of MOPO's authors."""

    hidden_dims: tuple[int, ...] = (200, 200, 200, 200)
    """Widths of the hidden layers of every member."""
    members: int = 7
    """Networks in the ensemble."""
    elites: int = 5
    """Of these, how many predict in rollouts: those with the lowest error on transitions that were held out."""
    batch_size: int = 256
    """Transitions in a minibatch of each member."""
    lr: float = 1e-3
    """Learning rate."""
    weight_decay: tuple[float, ...] = (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    """Weight decay of each hidden layer and, the last one, of the output. With fewer layers the first ones hold, with
    more the last of the hidden ones is repeated."""
    patience: int = 5
    """Epochs in a row without an improvement of any member by more than 1 % after which training ends."""
    max_steps: int = 1_000_000
    """Gradient steps after which training ends in any case."""
    scale_targets: bool = False
    """Standardize what is predicted, too, so that columns in any units count alike. Uncertainty is then in units of the
    reward's standard deviation."""
    test_episodes: float = 0.0
    """Share of the episodes that the model never sees, for 'mildly model check'."""

    def __post_init__(self) -> None:
        widths = self.hidden_dims
        _require(len(widths) > 0 and min(widths) >= 1, "hidden_dims", "positive widths", widths)
        for name in ("members", "elites", "batch_size", "patience", "max_steps"):
            _require(getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        _require(self.elites <= self.members, "elites", f"at most the {self.members} members", self.elites)
        _require(self.lr > 0, "lr", "positive", self.lr)
        decays = self.weight_decay
        _require(len(decays) > 0 and min(decays) >= 0, "weight_decay", "numbers of at least 0", decays)
        _require(0 <= self.test_episodes < 1, "test_episodes", "in [0, 1)", self.test_episodes)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> DynamicsConfig:
        """The config that a file holds."""
        fields: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in values.items()}
        return cls(**fields)

    def layer_decays(self) -> tuple[float, ...]:
        """The weight decay of every layer of this network."""
        *hidden, last = self.weight_decay
        hidden = hidden or [last]
        return (*(hidden[min(i, len(hidden) - 1)] for i in range(len(self.hidden_dims))), last)


PRESETS: dict[str, dict[str, Any]] = {
    "default": {"hidden_dims": (200, 200, 200), "max_steps": 50_000, "scale_targets": True, "test_episodes": 0.05},
    "paper": {},
    "small": {"hidden_dims": (128, 128), "max_steps": 10_000, "scale_targets": True, "test_episodes": 0.05},
}
"""Named sets of these fields."""


def _require(condition: bool, field: str, expected: str, value: object) -> None:
    if not condition:
        raise MildlyError(f"{field} of the dynamics model must be {expected}, got {value}.")
