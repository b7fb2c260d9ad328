"""Which behavior model, how large, and how long it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from mildly.behavior.models import BEHAVIOR_MODELS
from mildly.errors import MildlyError
from mildly.plugins import OneOf


@dataclass(frozen=True)
class BehaviorConfig:
    """Behavior model: what the algorithm knows of the policy that made the data."""

    model: Annotated[str, OneOf(BEHAVIOR_MODELS)] = "cvae"
    """The kind of model."""
    hidden_dims: tuple[int, ...] | None = None
    """Widths of its hidden layers; its own default if not given (750 750 for the CVAE)."""
    lr: float | None = None
    """Its learning rate; its own default if not given (0.001 for the CVAE)."""
    steps: int | None = None
    """Train it in this many steps before all others, and then no more. If not given it is trained in every step."""
    cache: bool = False
    """Once it is trained, draw its actions for every state of the data once and keep them. Needs behavior.steps."""
    cache_megabytes: float = 2000.0
    """Memory that the kept actions may take. Beyond it they are drawn in each step after all."""
    refresh_every: int | None = None
    """Steps after which the kept actions are drawn anew; never if not given."""
    latent_size: int | None = None
    """Latent dimensions of the CVAE; twice the action's if not given."""
    kl_weight: float = 1.0
    """Weight of the divergence in the CVAE's loss. Below 1 the model spreads its actions more."""
    latent_clip: float | None = 0.5
    """The CVAE's latents are clipped to plus or minus this when actions are drawn; None draws from the whole prior."""
    log_std_min: float = -4.0
    """Lower bound of the log standard deviation of the CVAE's encoder."""
    log_std_max: float = 15.0
    """Upper bound of the log standard deviation of the CVAE's encoder."""

    def __post_init__(self) -> None:
        if self.model not in BEHAVIOR_MODELS:
            _require(False, "model", f"one of {', '.join(BEHAVIOR_MODELS)}", self.model)
        _require(self.kl_weight >= 0, "kl_weight", "at least 0", self.kl_weight)
        for name in ("latent_size", "steps", "refresh_every"):
            _require(getattr(self, name) is None or getattr(self, name) >= 1, name, "at least 1", getattr(self, name))
        for name in ("lr", "latent_clip", "cache_megabytes"):
            _require(getattr(self, name) is None or getattr(self, name) > 0, name, "positive", getattr(self, name))
        widths = self.hidden_dims
        _require(widths is None or all(width >= 1 for width in widths), "hidden_dims", "positive widths", widths)
        _require(self.log_std_min < self.log_std_max, "log_std_min", "below behavior.log_std_max", self.log_std_min)
        _require(self.steps is not None or not self.cache, "steps", "given where actions are kept", None)
        refresh = self.refresh_every
        _require(refresh is None or self.cache, "refresh_every", "None where no actions are kept", refresh)


def _require(condition: bool, field: str, expected: str, value: object) -> None:
    if not condition:
        raise MildlyError(f"behavior.{field} must be {expected}, got {value}.")
