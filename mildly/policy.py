"""Policy: what training is for. Self-contained, in the environment's own units, saved as JSON and safetensors."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from mildly.actors import ACTORS, Actor
from mildly.data.dataset import Array
from mildly.data.normalize import Scaling
from mildly.environments import check_fit
from mildly.errors import MildlyError
from mildly.files import atomic_write

FORMAT = 1
DESCRIPTION, WEIGHTS = "policy.json", "weights.safetensors"


@dataclass(frozen=True)
class Policy:
    """A trained actor with everything needed to act: observation scaling and the action bounds inside."""

    actor: Actor
    scaling: Scaling | None = None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    reward_scale: float = 1.0
    """What rewards were multiplied with in training. Acting does not need it; going on with other data does."""

    @property
    def observation_size(self) -> int:
        """How many numbers an observation must have."""
        return int(self.actor.spec["observation_size"])

    def check_fit(self, env_id: str, whose: str) -> None:
        """Raise where an environment does not take this policy's actions, or shows it other observations."""
        bounds = self.action_low, self.action_high
        check_fit(env_id, self.observation_size, int(self.actor.spec["action_size"]), whose, bounds)

    @torch.inference_mode()
    def act(self, observations: Array, deterministic: bool = True, generator: torch.Generator | None = None) -> Array:
        """Actions in the environment's units, for one observation (o,) or a batch (n, o).

        Args:
            observations: as the environment gives them.
            deterministic: the policy's mean action; otherwise a draw from it.
            generator: source of the draws, for repeatable ones.
        """
        try:
            # a copy, since torch takes no read-only or reversed arrays
            given = np.array(observations, dtype=np.float32, order="C")
        except (TypeError, ValueError) as error:
            kind = type(observations).__name__
            hint = " env.reset() returns (observation, info): give the first." if kind == "tuple" else ""
            raise MildlyError(f"observations must be an array of numbers, not a {kind}.{hint}") from error
        if given.ndim not in (1, 2) or given.shape[-1] != self.observation_size:
            raise MildlyError(
                f"observations have shape {given.shape}; this policy takes ({self.observation_size},) "
                f"or (n, {self.observation_size})."
            )
        if not np.isfinite(given).all():
            raise MildlyError("observations hold NaN or infinite values; a policy cannot act on them.")
        device = next(self.actor.parameters()).device
        states = torch.from_numpy(np.atleast_2d(given)).to(device)
        if self.scaling is not None:
            states = self.scaling.apply(states)
        actions: Array = self.actor.act(states, deterministic, generator).cpu().numpy()
        if self.action_low is not None and self.action_high is not None:
            low, high = np.asarray(self.action_low, np.float32), np.asarray(self.action_high, np.float32)
            actions = np.clip(low + (actions + 1) * (high - low) / 2, low, high)  # rounding may pass a bound
        return actions[0] if given.ndim == 1 else actions

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `policy.json` and `weights.safetensors`; each file is replaced whole."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        description: dict[str, Any] = {
            "format": FORMAT,
            "actor": self.actor.kind,
            "spec": self.actor.spec,
            "action_low": self.action_low,
            "action_high": self.action_high,
            "observation_mean": self.scaling.mean.tolist() if self.scaling else None,
            "observation_std": self.scaling.std.tolist() if self.scaling else None,
            "reward_scale": self.reward_scale,
        }
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.actor.state_dict().items()}
        with atomic_write(folder / WEIGHTS) as unfinished:
            save_file(weights, unfinished)
        with atomic_write(folder / DESCRIPTION) as unfinished:
            unfinished.write_text(json.dumps(description, indent=2) + "\n")
        return folder


def load_policy(folder: str | os.PathLike[str]) -> Policy:
    """Load a policy from a run's folder or from a `policy` folder. Nothing in the files can run code."""
    folder = Path(folder)
    if (folder / "policy" / DESCRIPTION).is_file():
        folder = folder / "policy"
    path = folder / DESCRIPTION
    try:
        description = json.loads(path.read_text())
        if description["format"] != FORMAT:
            raise MildlyError(f"{path}: format {description['format']}; this version of mildly reads {FORMAT}.")
        actor = ACTORS[description["actor"]](**description["spec"])
        actor.load_state_dict(load_file(folder / WEIGHTS))
        mean, std = (_numbers(description, f"observation_{x}", actor.spec["observation_size"]) for x in ("mean", "std"))
        low, high = (_numbers(description, f"action_{x}", actor.spec["action_size"]) for x in ("low", "high"))
        scaling = Scaling(torch.tensor(mean), torch.tensor(std)) if mean is not None else None
        reward_scale = float(description.get("reward_scale", 1.0))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MildlyError(
            f"{folder}: no policy here (needs {DESCRIPTION} and {WEIGHTS}). Give the folder of a training run."
        ) from error
    except (ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise MildlyError(f"{folder}: the policy is damaged ({error}).") from error
    actor.eval().requires_grad_(False)
    return Policy(actor, scaling=scaling, action_low=low, action_high=high, reward_scale=reward_scale)


def _numbers(description: dict[str, Any], name: str, size: int) -> tuple[float, ...] | None:
    """An entry of the description that is one number a dimension, or nothing."""
    values = description[name]
    if values is not None and len(values) != size:
        raise ValueError(f"{name} has {len(values)} numbers instead of {size}")
    return None if values is None else tuple(float(value) for value in values)
