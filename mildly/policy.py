"""Policy: what training is for. Self-contained, in the environment's own units, saved as JSON and safetensors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from mildly.action_space import UNKNOWN, ActionSpace
from mildly.actors import (
    Actor,
    DeterministicActor,
    GaussianActor,
    Memory,
    SoftGaussianActor,
    TanhGaussianActor,
)
from mildly.candidates import BestOfBehavior, BestOfPolicy, BestOfUncertain
from mildly.data.dataset import Array
from mildly.data.normalize import Normalizer
from mildly.environments import check_fit
from mildly.errors import MildlyError
from mildly.files import atomic_write, read_own_json, sha256, write_json

FORMAT = 2
DESCRIPTION, WEIGHTS = "policy.json", "weights.safetensors"
ACTORS: dict[str, type[Actor]] = {
    actor.kind: actor
    for actor in (
        TanhGaussianActor,
        GaussianActor,
        DeterministicActor,
        SoftGaussianActor,
        BestOfPolicy,
        BestOfUncertain,
        BestOfBehavior,
    )
}
"""The kinds of actor a saved policy can hold."""


@dataclass(frozen=True)
class Policy:
    """A trained actor with everything needed to act: observation normalizer and the action space inside."""

    actor: Actor
    normalizer: Normalizer | None = None
    action_space: ActionSpace | None = None
    """The environment's units, in which the policy acts; none where they are [-1, 1]."""
    reward_scale: float = 1.0
    """What rewards were multiplied with in training. Acting does not need it; going on with other data does."""

    @property
    def observation_size(self) -> int:
        """How many numbers an observation must have."""
        return int(self.actor.spec["observation_size"])

    def check_fit(self, env_id: str, whose: str) -> None:
        """Raise where an environment does not take this policy's actions, or shows it other observations."""
        check_fit(env_id, self.observation_size, int(self.actor.spec["action_size"]), whose, self.action_space)

    def act(self, observations: Array, deterministic: bool = True, generator: torch.Generator | None = None) -> Array:
        """Actions in the environment's units, for one observation (o,) or a batch (n, o).

        A policy that remembers the episode cannot act on an observation alone: `start` it instead.

        Args:
            observations: as the environment gives them.
            deterministic: the policy's mean action; otherwise a draw from it.
            generator: source of the draws, for repeatable ones.
        """
        return self._act(observations, lambda states: self.actor.act(states, deterministic, generator))

    def start(self, episodes: int = 1, *, deterministic: bool = True, **conditions: float) -> ActingPolicy:
        """The policy at the start of n episodes side by side, with what it will remember of each.

        Args:
            episodes: how many.
            deterministic: the policy's mean actions; otherwise draws from it.
            conditions: what the policy is to aim at, where it can be told, such as `target_return`.
        """
        return ActingPolicy(self, self.actor.start(episodes, **conditions), episodes, deterministic)

    @torch.inference_mode()
    def _act(self, observations: Array, act: Callable[[Tensor], Tensor]) -> Array:
        """What `act` answers to the normalized observations, in the environment's units."""
        given = self._checked(observations)
        device = next(self.actor.parameters()).device
        states = torch.from_numpy(np.atleast_2d(given)).to(device)
        if self.normalizer is not None:
            states = self.normalizer.apply(states)
        actions: Array = act(states).cpu().numpy()
        if not np.isfinite(actions).all():
            raise MildlyError("the policy's answer is not finite: the observations are too large for its network.")
        if self.action_space is not None:
            actions = self.action_space.clip(self.action_space.from_unit(actions))
        return actions[0] if given.ndim == 1 else actions

    def _checked(self, observations: Array) -> Array:
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
        return given

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `policy.json` and `weights.safetensors`; each file is replaced whole."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        description: dict[str, Any] = {
            "format": FORMAT,
            "actor": self.actor.kind,
            "spec": self.actor.spec,
            **(self.action_space.to_json() if self.action_space else UNKNOWN),
            "observation_mean": self.normalizer.mean.tolist() if self.normalizer else None,
            "observation_std": self.normalizer.std.tolist() if self.normalizer else None,
            "reward_scale": self.reward_scale,
        }
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in self.actor.state_dict().items()}
        description = json.loads(json.dumps(description))
        before = [sha256(folder / WEIGHTS)] if (folder / WEIGHTS).exists() else []
        with atomic_write(folder / WEIGHTS) as unfinished:
            save_file(weights, unfinished)
            hashes = [sha256(unfinished)]
            # The description comes first and allows the weights before, so that a crash between the two harms nothing.
            write_json(folder / DESCRIPTION, {**description, "weights_sha256": hashes + before})
        if before:
            write_json(folder / DESCRIPTION, {**description, "weights_sha256": hashes})
        return folder


class ActingPolicy:
    """A policy in n episodes side by side, from `Policy.start`. It costs nothing where the policy has no memory."""

    def __init__(self, policy: Policy, memory: Memory | None, episodes: int, deterministic: bool) -> None:
        self.policy, self.memory, self.deterministic = policy, memory, deterministic
        self.every = range(episodes)

    def act(
        self, observations: Array, rows: Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> Array:
        """Actions (rows, a) for the newest observations (rows, o) of some episodes, or of all."""
        memory, rows = self.memory, self.every if rows is None else rows
        if memory is None:
            return self.policy.act(observations, self.deterministic, generator)
        return self.policy._act(observations, lambda states: memory.act(states, rows, self.deterministic, generator))

    @torch.inference_mode()
    def observe(self, rewards: Array, rows: Sequence[int] | None = None) -> None:
        """The rewards that the last actions of these episodes brought, in the environment's units."""
        if self.memory is not None:
            device = next(self.policy.actor.parameters()).device
            scaled = torch.as_tensor(np.asarray(rewards, np.float32) * np.float32(self.policy.reward_scale))
            self.memory.observe(scaled.to(device), self.every if rows is None else rows)

    @torch.inference_mode()
    def reset(self, rows: Sequence[int] | None = None) -> None:
        """These episodes have ended, and others begin in their places."""
        if self.memory is not None:
            self.memory.reset(self.every if rows is None else rows)


def load_policy(folder: str | os.PathLike[str]) -> Policy:
    """Load a policy from a run's folder or from a `policy` folder. Nothing in the files can run code."""
    folder = Path(folder)
    if (folder / "policy" / DESCRIPTION).is_file():
        folder = folder / "policy"
    path = folder / DESCRIPTION
    try:
        description = read_own_json(path, lambda given: _check_format(path, given["format"]))
        if sha256(folder / WEIGHTS) not in list(description["weights_sha256"]):
            raise ValueError(f"{WEIGHTS} is not the file that {DESCRIPTION} was written for")
        actor = _actor(description["actor"], description["spec"], folder / WEIGHTS)
        mean, std = (_numbers(description, f"observation_{x}", actor.spec["observation_size"]) for x in ("mean", "std"))
        space = ActionSpace.from_json(description)
        if space is not None and space.size != actor.spec["action_size"]:
            raise ValueError(f"action_low has {space.size} numbers instead of {actor.spec['action_size']}")
        normalizer = Normalizer(torch.tensor(mean), torch.tensor(std)) if mean is not None else None
        reward_scale = float(description.get("reward_scale", 1.0))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MildlyError(
            f"{folder}: no policy here (needs {DESCRIPTION} and {WEIGHTS}). Give the folder of a training run."
        ) from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MildlyError(f"{folder}: the policy is damaged ({error}).") from error
    except (RuntimeError, SafetensorError) as error:  # torch's own words
        raise MildlyError(f"{folder}: the policy is damaged ({error}).") from error
    actor.eval().requires_grad_(False)
    return Policy(actor, normalizer=normalizer, action_space=space, reward_scale=reward_scale)


def _actor(kind: str, spec: dict[str, Any], weights: Path) -> Actor:
    """The actor with its weights, which must have the shapes that the description says: known before it is built."""
    with safe_open(weights, framework="pt") as file:
        found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    layers = sum(len(widths) for name, widths in spec.items() if name.endswith("hidden_dims"))
    if layers > len(found):
        raise ValueError(f"{layers} hidden layers, but {WEIGHTS} holds {len(found)} tensors")
    for name, expected in get_type_hints(ACTORS[kind].__init__).items():
        number = expected in (float, float | None) and spec.get(name) is not None
        if number and not math.isfinite(spec[name]):
            raise ValueError(f"{name} is {spec[name]}")
    with torch.device("meta"):  # shapes without memory
        planned = {name: tuple(tensor.shape) for name, tensor in ACTORS[kind](**spec).state_dict().items()}
    if planned != found:
        wrong = sorted(name for name in planned | found if planned.get(name) != found.get(name))
        raise ValueError(f"{WEIGHTS} does not have the shapes that {DESCRIPTION} says: {', '.join(wrong[:3])}")
    actor = ACTORS[kind](**spec)
    actor.load_state_dict(load_file(weights))
    return actor


def _check_format(path: Path, found: Any) -> None:
    if found != FORMAT:
        raise MildlyError(f"{path}: format {found}; this version of mildly reads {FORMAT}. Train it again.")


def _numbers(description: dict[str, Any], name: str, size: int) -> tuple[float, ...] | None:
    """An entry of the description that is one number per dimension, or nothing."""
    values = description[name]
    if values is not None and len(values) != size:
        raise ValueError(f"{name} has {len(values)} numbers instead of {size}")
    return None if values is None else tuple(float(value) for value in values)
