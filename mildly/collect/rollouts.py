"""Make data sets by rolling policies out in a gymnasium environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

from mildly.action_space import ActionSpace
from mildly.data.dataset import FIELDS, Array, Dataset, Meta
from mildly.data.formats.arrays import load_arrays
from mildly.data.tasks import task_of
from mildly.environments import action_space_of, make_env, stored_action_space
from mildly.errors import MildlyError
from mildly.policy import Policy

if TYPE_CHECKING:
    import gymnasium as gym

ActFunction = Callable[[Array, np.random.Generator], Array]
"""Observations (n, o) to actions (n, a) in [-1, 1]."""


class Behavior(Protocol):
    """Acts in [-1, 1] in several environments side by side, which are called by their numbers, `rows`."""

    def act(self, observations: Array, rows: Sequence[int], rng: np.random.Generator) -> Array:
        """Actions (rows, a) for observations (rows, o)."""
        ...

    def observe(self, rewards: Array, rows: Sequence[int]) -> None:
        """The rewards that followed."""
        ...

    def reset(self, rows: Sequence[int]) -> None:
        """New episodes begin there."""
        ...


class FunctionBehavior:
    """A function of the observation, which remembers nothing."""

    def __init__(self, act: ActFunction) -> None:
        self.function = act

    def act(self, observations: Array, rows: Sequence[int], rng: np.random.Generator) -> Array:
        return self.function(observations, rng)

    def observe(self, rewards: Array, rows: Sequence[int]) -> None:
        pass

    def reset(self, rows: Sequence[int]) -> None:
        pass


class PolicyBehavior:
    """A policy of ours with what it remembers, once started; its draws depend on `rng` alone."""

    def __init__(self, policy: Policy, env_id: str, *, deterministic: bool = False) -> None:
        self.policy, self.deterministic = policy, deterministic
        self.space = env_action_space(env_id)

    def start(self, environments: int) -> PolicyBehavior:
        """Begin an episode in each of so many environments."""
        self.acting = self.policy.start(environments, deterministic=self.deterministic, unseen="ignore")
        return self

    def act(self, observations: Array, rows: Sequence[int], rng: np.random.Generator) -> Array:
        draws = not self.deterministic
        generator = torch.Generator().manual_seed(int(rng.integers(2**62))) if draws else None
        return self.space.to_unit(self.acting.act(observations, rows, generator))

    def observe(self, rewards: Array, rows: Sequence[int]) -> None:
        self.acting.observe(rewards, rows)

    def reset(self, rows: Sequence[int]) -> None:
        self.acting.reset(rows)


def describe(name: str, env_id: str, source: str = "") -> Meta:
    """What can be known of a set that is still to be collected: the environment's bounds, the task's references."""
    task = task_of(name)
    known = task is not None and task.env_id == env_id  # another environment has returns of its own
    return Meta(
        name=name,
        env_id=env_id,
        action_space=stored_action_space(env_id),
        reference_min=task.reference_min if task and known else None,
        reference_max=task.reference_max if task and known else None,
        source=source,
    )


def collect(
    env_id: str,
    act: ActFunction | PolicyBehavior,
    steps: int,
    meta: Meta,
    *,
    seed: int = 0,
    environments: int = 16,
    progress: Callable[[int], None] | None = None,
) -> Dataset:
    """Roll a policy out for a number of steps, in several environments side by side, and keep the data in memory.

    Episodes stand in the order in which they started and all but the last are whole, so that short episodes,
    which end first, are not over-represented.
    """
    pieces = list(stream(env_id, act, steps, seed=seed, environments=environments, progress=progress))
    columns = {name: np.concatenate([piece[name] for piece in pieces]) for name in FIELDS}
    return Dataset.from_arrays(**columns, meta=meta)


def stream(
    env_id: str,
    act: ActFunction | PolicyBehavior,
    steps: int,
    *,
    seed: int = 0,
    environments: int = 16,
    progress: Callable[[int], None] | None = None,
) -> Iterator[dict[str, Array]]:
    """The episodes of `collect` one by one, as columns: only those that have not ended are held in memory.

    The last piece ends with the last of the steps, marked truncated where the episode would have gone on.
    """
    for name, value, least in (("steps", steps, 1), ("environments", environments, 1), ("seed", seed, 0)):
        if value < least:
            raise MildlyError(f"{name} must be at least {least}, not {value}.")
    envs = [make_env(env_id) for _ in range(environments)]
    try:
        given = 0
        behavior = act.start(environments) if isinstance(act, PolicyBehavior) else FunctionBehavior(act)
        for rows in _episodes(envs, behavior, steps, seed, progress):
            piece = {name: np.asarray(column) for name, column in zip(FIELDS, zip(*rows, strict=True), strict=True)}
            given += len(rows)
            if given == steps:
                piece["truncated"][-1] |= not piece["terminated"][-1]
            yield piece
    finally:
        for env in envs:
            env.close()


_Row = tuple[Array, Array, float, Array, bool, bool]


def _episodes(
    envs: Sequence[gym.Env[Any, Any]], behavior: Behavior, steps: int, seed: int, progress: Callable[[int], None] | None
) -> Iterator[list[_Row]]:
    """Rows of episodes in the order in which they started, `steps` rows together."""
    rng = np.random.default_rng(seed)
    space = action_space_of(envs[0])
    episodes: dict[int, list[_Row]] = {}  # by number: those not yet given out, as they must wait for an earlier one
    current: dict[int, int] = {}  # environment -> its episode
    observations: dict[int, Array] = {}
    taken = started = first = 0

    def start(i: int) -> None:
        nonlocal started
        observations[i] = envs[i].reset(seed=seed * 1_000_003 + started)[0].astype(np.float32)
        current[i] = started
        episodes[started] = []
        started += 1

    for i in range(len(envs)):
        start(i)
    left = steps
    while left:
        running, ended = list(current), dict[int, bool]()  # and whether another episode begins there
        given = behavior.act(np.stack([observations[i] for i in running]), running, rng)
        actions = _checked(given, (len(running), space.size))
        for i, action, own in zip(running, actions, space.from_unit(actions), strict=True):
            raw, reward, terminated, truncated, _ = envs[i].step(own)
            next_observation = raw.astype(np.float32)
            row = (observations[i], action, float(reward), next_observation, bool(terminated), bool(truncated))
            episodes[current[i]].append(row)
            observations[i] = next_observation
            taken += 1
            if terminated or truncated:
                ended[i] = taken < steps
        behavior.observe(np.array([episodes[current[i]][-1][2] for i in running]), running)
        behavior.reset(list(ended))
        for i, goes_on in ended.items():
            del current[i]
            if goes_on:
                start(i)
        if progress is not None:
            progress(min(taken, steps))
        while left and (len(episodes[first]) >= left or first not in current.values()):
            rows = episodes.pop(first)[:left]
            left -= len(rows)
            first += 1
            yield rows


def _checked(actions: Array, expected: tuple[int, int]) -> Array:
    """A policy's answer as actions in [-1, 1]."""
    actions = _shaped(actions, expected)
    if not np.isfinite(actions).all():
        raise MildlyError("the policy gives actions that are NaN or infinite.")
    clipped: Array = actions.clip(-1, 1).astype(np.float32)
    return clipped


def _shaped(actions: Array, expected: tuple[int, int]) -> Array:
    actions = np.asarray(actions)
    if actions.shape != expected:
        raise MildlyError(f"the policy gives actions of shape {actions.shape}; the environment needs {expected}.")
    return actions


def env_action_space(env_id: str) -> ActionSpace:
    """What -1 and +1 mean in an environment."""
    env = make_env(env_id)
    space = action_space_of(env)
    env.close()
    return space


def from_own_units(act: ActFunction, env_id: str) -> ActFunction:
    """A function that acts in the environment's own units, as one that acts in [-1, 1]."""
    space = env_action_space(env_id)

    def unit_act(observations: Array, rng: np.random.Generator) -> Array:
        return space.to_unit(_shaped(act(observations, rng), (len(observations), space.size)))

    return unit_act


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
        self.arrays = load_arrays(Path(path))
        self.layers = sum(name.startswith("W") and name[1:].isdigit() for name in self.arrays)
        self.deterministic = deterministic
        wrong = self._wrong()
        if wrong:
            raise MildlyError(f"{path}: not a policy's arrays: {wrong}.")
        for name, array in self.arrays.items():
            if array.dtype.kind == "f":
                self.arrays[name] = array.astype(np.float64)

    def _wrong(self) -> str:
        """What is missing or does not fit, in words; nothing if all is well."""
        arrays, last = self.arrays, self.layers - 1
        needed = ["act", "squash", "W0", *(f"{kind}{i}" for i in range(self.layers) for kind in "Wb")]
        needed += ["obs_std"] if "obs_mean" in arrays else []
        if not self.deterministic:
            needed += ["Wls", "bls"] if "Wls" in arrays else ["log_std"]
        for name in needed:
            if name not in arrays:
                return f"'{name}' is missing"
            if name not in ("act", "squash") and arrays[name].dtype.kind not in "fiu":
                return f"'{name}' holds no numbers"
        width = -1  # of the layer before; the first takes any number of observations
        for i in [*range(self.layers), *(["ls"] if "Wls" in needed else [])]:
            shape, offset = arrays[f"W{i}"].shape, arrays[f"b{i}"].shape
            takes = arrays[f"W{last}"].shape[1] if i == "ls" else width
            if len(shape) != 2 or offset != shape[:1] or takes not in (-1, shape[1]):
                return f"'W{i}' has shape {shape} and 'b{i}' {offset}, which do not fit the layer before or each other"
            if i == "ls" and shape[0] != arrays[f"W{last}"].shape[0]:
                return f"'Wls' has {shape[0]} rows, but 'W{last}' {arrays[f'W{last}'].shape[0]}"
            width = shape[0]
        sizes = {"obs_mean": (arrays["W0"].shape[1],), "obs_std": (arrays["W0"].shape[1],), "obs_clip": ()}
        sizes |= {} if self.deterministic else {"log_std": arrays[f"b{last}"].shape}
        for name, size in sizes.items():
            if name in arrays and (arrays[name].dtype.kind not in "fiu" or arrays[name].shape not in (size, ())):
                return f"'{name}' has shape {arrays[name].shape} instead of {size}, or holds no numbers"
        return ""

    @property
    def observation_size(self) -> int:
        """How many numbers an observation must have."""
        return int(self.arrays["W0"].shape[1])

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
