"""How much work an estimate takes. Nothing heavy is imported here: these are flags of commands as well."""

from __future__ import annotations

from dataclasses import dataclass

from mildly.errors import MildlyError


@dataclass(frozen=True)
class Settings:
    """Work: how much an estimate takes."""

    steps: int = 20_000
    """Gradient steps of fitted Q evaluation, and at most of a model for rollouts."""
    density_steps: int = 5_000
    """Gradient steps of the density of the data's actions, and of a clone."""
    hidden_dims: tuple[int, ...] = (256, 256)
    """Widths of the hidden layers of the critics, and of a model for rollouts."""
    clip: float = 10.0
    """A step's importance ratio is at most this."""
    replications: int = 400
    """Bootstrap draws of the episodes."""
    seed: int = 0
    """Decides all random numbers."""

    def __post_init__(self) -> None:
        for name in ("steps", "density_steps", "replications"):
            if getattr(self, name) < 1:
                raise MildlyError(f"{name} must be at least 1, got {getattr(self, name)}.")
        if self.seed < 0:
            raise MildlyError(f"seed must be at least 0, got {self.seed}.")
        if not self.clip > 1:
            raise MildlyError(f"clip must be above 1, got {self.clip}.")


QUICK = Settings(steps=10_000, density_steps=3_000, hidden_dims=(128, 128))
"""What it takes where it is done over and over, for every group of a log and every candidate."""
