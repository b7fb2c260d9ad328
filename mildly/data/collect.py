"""Make data sets by rolling policies out in a gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from mildly.data.dataset import FIELDS, Array, Dataset, Meta
from mildly.data.tasks import task_of
from mildly.environments import action_bounds, make_env, stored_bounds
from mildly.errors import MildlyError

ActFunction = Callable[[Array, np.random.Generator], Array]
"""Observations (n, o) to actions (n, a) in [-1, 1]."""


def describe(name: str, env_id: str, source: str = "") -> Meta:
    """What can be known of a set that is still to be collected: the environment's bounds, the task's references."""
    low, high = stored_bounds(env_id)
    task = task_of(name)
    return Meta(
        name=name,
        env_id=env_id,
        action_low=low,
        action_high=high,
        reference_min=task.reference_min if task else None,
        reference_max=task.reference_max if task else None,
        source=source,
    )


def collect(
    env_id: str,
    act: ActFunction,
    steps: int,
    meta: Meta,
    *,
    seed: int = 0,
    environments: int = 16,
    progress: Callable[[int], None] | None = None,
) -> Dataset:
    """Roll a policy out for a number of steps, in several environments side by side.

    Episodes stand in the order in which they started and all but the last are whole, so that short episodes,
    which end first, are not over-represented.
    """
    if steps < 1:
        raise MildlyError(f"steps must be at least 1, not {steps}.")
    rng = np.random.default_rng(seed)
    envs = [make_env(env_id) for _ in range(environments)]
    low, high = action_bounds(envs[0])
    episodes: list[list[tuple[Array, Array, float, Array, bool, bool]]] = []
    current: dict[int, int] = {}  # environment -> its episode
    observations: dict[int, Array] = {}
    taken = 0

    def start(i: int) -> None:
        observations[i] = envs[i].reset(seed=seed * 1_000_003 + len(episodes))[0].astype(np.float32)
        current[i] = len(episodes)
        episodes.append([])

    for i in range(environments):
        start(i)
    while current:
        running = list(current)
        actions = act(np.stack([observations[i] for i in running]), rng).clip(-1, 1).astype(np.float32)
        for i, action in zip(running, actions, strict=True):
            raw, reward, terminated, truncated, _ = envs[i].step(low + (action + 1) * (high - low) / 2)
            following = raw.astype(np.float32)
            row = (observations[i], action, float(reward), following, bool(terminated), bool(truncated))
            episodes[current[i]].append(row)
            observations[i] = following
            taken += 1
            if terminated or truncated:
                del current[i]
                if taken < steps:
                    start(i)
        if progress is not None:
            progress(min(taken, steps))
    for env in envs:
        env.close()
    rows = [row for episode in episodes for row in episode][:steps]
    columns = {name: np.asarray(column) for name, column in zip(FIELDS, zip(*rows, strict=True), strict=True)}
    return Dataset.from_arrays(**columns, meta=meta)


def concatenate(parts: list[Dataset], meta: Meta) -> Dataset:
    """Several data sets behind one another as one."""
    columns = {field: np.concatenate([getattr(part, field) for part in parts]) for field in FIELDS}
    return Dataset.from_arrays(**columns, meta=meta)


def uniform(action_size: int) -> ActFunction:
    """Uniformly random actions."""
    return lambda observations, rng: rng.uniform(-1, 1, (len(observations), action_size))


class ArrayPolicy:
    """A policy kept as plain arrays in an `.npz` file: an MLP with optional observation scaling and noise.

    x = (o - obs_mean) / obs_std, clipped to +-obs_clip; layers W0 b0, W1 b1, ... with the activation `act`; then
    `squash` (tanh, or a clip to [-1, 1]). Noise comes from `Wls`, `bls` or `log_std`, before the squash.
    """

    def __init__(self, path: str | os.PathLike[str], deterministic: bool = False) -> None:
        path = Path(path)
        try:
            with np.load(path, allow_pickle=False) as file:
                self.arrays: dict[str, Array] = {name: file[name] for name in file.files}
        except FileNotFoundError as error:
            raise MildlyError(f"{path}: no such file.") from error
        except (ValueError, OSError, EOFError, TypeError, BadZipFile) as error:
            raise MildlyError(f"{path}: not a policy's arrays ({error}).") from error
        self.layers = sum(name.startswith("W") and name[1:].isdigit() for name in self.arrays)
        self.deterministic = deterministic

    def __call__(self, observations: Array, rng: np.random.Generator) -> Array:
        """Actions in [-1, 1]."""
        arrays = self.arrays
        x = observations.astype(np.float64)
        if "obs_mean" in arrays:
            x = (x - arrays["obs_mean"]) / arrays["obs_std"]
            if "obs_clip" in arrays:
                x = np.clip(x, -arrays["obs_clip"], arrays["obs_clip"])
        activation = np.tanh if str(arrays["act"]) == "tanh" else lambda h: np.maximum(h, 0)
        for i in range(self.layers - 1):
            x = activation(x @ arrays[f"W{i}"].T + arrays[f"b{i}"])
        z = x @ arrays[f"W{self.layers - 1}"].T + arrays[f"b{self.layers - 1}"]
        if not self.deterministic:
            log_std = x @ arrays["Wls"].T + arrays["bls"] if "Wls" in arrays else arrays["log_std"]
            z = z + np.exp(np.clip(log_std, -20, 2)) * rng.standard_normal(z.shape)
        squashed: Array = np.tanh(z) if str(arrays["squash"]) == "tanh" else np.clip(z, -1, 1)
        return squashed
