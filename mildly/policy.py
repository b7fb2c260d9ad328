"""Policy: what training is for. Self-contained, in the environment's own units, saved as JSON and safetensors."""

from __future__ import annotations

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args, get_type_hints

import numpy as np
import torch
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
from mildly.errors import MildlyError, unknown_name
from mildly.observation_space import ObservationSpace, Unseen, UnseenError, UnseenWarning, as_array, in_words, texts
from mildly.plugins import Registry
from mildly.transformer import DecisionTransformerActor
from mildly.weights import WEIGHTS, load_module, loading, read_description, save_described, stored_shapes
from mildly.words import listed

FORMAT = 2
DESCRIPTION = "policy.json"
OnUnseen = Literal["warn", "raise", "clip", "ignore"]
"""What to do about observations that the training data do not cover."""
_OWN: tuple[type[Actor], ...] = (
    TanhGaussianActor,
    GaussianActor,
    DeterministicActor,
    SoftGaussianActor,
    BestOfPolicy,
    BestOfUncertain,
    BestOfBehavior,
    DecisionTransformerActor,
)


def _fault(thing: Any) -> str:
    return "" if isinstance(thing, type) and issubclass(thing, Actor) else "it is no subclass of Actor"


ACTORS = Registry("actor", "mildly.actors", {actor.kind: actor for actor in _OWN}, _fault)
"""The kinds of actor a saved policy can hold. Other packages add theirs by the entry point `mildly.actors`."""


@dataclass(frozen=True)
class Policy:
    """A trained actor with everything needed to act: normalizer, both spaces and the log's names inside."""

    actor: Actor
    normalizer: Normalizer | None = None
    action_space: ActionSpace | None = None
    """The environment's units, in which the policy acts; none where they are [-1, 1]."""
    reward_scale: float = 1.0
    """What rewards were multiplied with in training. Acting does not need it; going on with other data does."""
    observation_space: ObservationSpace | None = None
    """What the training data's observations were like; none where nobody knows."""
    action_names: tuple[str, ...] = ()
    """What the log calls the numbers of an action; empty where it has no names."""
    action_units: tuple[str, ...] = ()
    """Their units, empty text where there is none; empty where the log tells none."""
    _warned: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def __repr__(self) -> str:
        sizes = {"observation": self.observation_names, "action": self.action_names}
        parts = [
            f"{of} {self.actor.spec[f'{of}_size']}" + (f" ({listed(names)})" if names else "")
            for of, names in sizes.items()
        ]
        return f"<Policy, {self.actor.kind}: {', '.join(parts)}>"

    @property
    def observation_size(self) -> int:
        """How many numbers an observation must have."""
        return int(self.actor.spec["observation_size"])

    @property
    def observation_names(self) -> tuple[str, ...]:
        """What the log calls the numbers of an observation; empty where it has no names."""
        return () if self.observation_space is None else self.observation_space.names

    @property
    def target_return(self) -> float | None:
        """The return that the policy aims at unless `start` is told another; None for one that aims at none."""
        return self.actor.spec.get("target_return")

    def check_fit(self, env_id: str, whose: str) -> None:
        """Raise where an environment does not take this policy's actions, or shows it other observations."""
        check_fit(env_id, self.observation_size, int(self.actor.spec["action_size"]), whose, self.action_space)

    def act(
        self,
        observations: Array | Mapping[str, Any] | Any,
        deterministic: bool = True,
        generator: torch.Generator | None = None,
        unseen: OnUnseen = "warn",
    ) -> Array:
        """Actions in the environment's units, for one observation (o,) or a batch (n, o).

        A policy that remembers the episode cannot act on an observation alone: `start` it instead.

        Args:
            observations: as the environment gives them; or by the log's names, a mapping or a table.
            deterministic: the policy's mean action; otherwise a draw from it.
            generator: source of the draws, for repeatable ones.
            unseen: where a number lies outside the training data's range, `warn` once for its column, `raise` an
                `UnseenError`, `clip` it to the range, or `ignore` it. A column that was constant never has a say.
        """
        return self._act(self._given(observations, unseen), lambda s: self.actor.act(s, deterministic, generator))

    def unseen(self, observations: Array | Mapping[str, Any] | Any) -> list[Unseen]:
        """The numbers of observations that the training data do not cover: row, column, value and known range.

        These lie beyond the data's range by a tenth of a column's spread, or differ from a constant.
        """
        given = self._checked(observations)
        return [] if self.observation_space is None else self.observation_space.unseen(given)

    def named(self, actions: Array) -> dict[str, Array]:
        """Actions (a,) or (n, a) by the log's names."""
        if not self.action_names:
            raise MildlyError("this policy knows no names of actions, since its log had none.")
        return dict(zip(self.action_names, np.asarray(actions).T, strict=True))

    def start(
        self, episodes: int = 1, *, deterministic: bool = True, unseen: OnUnseen = "warn", **conditions: float
    ) -> ActingPolicy:
        """The policy at the start of n episodes side by side, with what it will remember of each.

        Args:
            episodes: how many.
            deterministic: the policy's mean actions; otherwise draws from it.
            unseen: what to do about observations that the training data do not cover, as for `act`.
            conditions: what the policy is to aim at, where it can be told, such as `target_return`.
        """
        return ActingPolicy(self, self.actor.start(episodes, **conditions), episodes, deterministic, unseen)

    @torch.inference_mode()
    def _act(self, given: Array, act: Callable[[Tensor], Tensor]) -> Array:
        """What `act` answers to the normalized observations, in the environment's units."""
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

    def _given(self, observations: Any, unseen: OnUnseen) -> Array:
        """Observations as an array of the right shape, guarded against what the training data do not cover."""
        given, space = self._checked(observations), self.observation_space
        if unseen not in get_args(OnUnseen):
            raise unknown_name("choice of unseen", str(unseen), get_args(OnUnseen))
        if space is None:
            return given
        if unseen in ("warn", "raise") and space.outside(given).any():
            found = space.unseen(given)
            if unseen == "raise":
                raise UnseenError(found)
            new = [each for each in found if each.column not in self._warned]
            if new:
                self._warned.update(each.column for each in new)
                warnings.warn(f"observations unlike the training data: {in_words(new)}.", UnseenWarning, stacklevel=3)
        if unseen == "clip":
            return np.clip(given, *space.bounds)
        if space.constant.size:
            given[..., space.constant] = space.bounds[0][space.constant]
        return given

    def _checked(self, observations: Any) -> Array:
        try:
            # a copy, since torch takes no read-only or reversed arrays
            given = np.array(as_array(observations, self.observation_names), dtype=np.float32, order="C")
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
            names = self.observation_names or tuple(f"obs_{i}" for i in range(self.observation_size))
            bad = np.flatnonzero(~np.isfinite(np.atleast_2d(given)).all(axis=0))
            raise MildlyError(
                f"observations hold NaN or infinite values, in {', '.join(names[i] for i in bad[:3])}; "
                "a policy cannot act on them."
            )
        return given

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write `policy.json` and `weights.safetensors`; each file is replaced whole."""
        description: dict[str, Any] = {
            "format": FORMAT,
            "actor": self.actor.kind,
            "spec": self.actor.spec,
            **(self.action_space.to_json() if self.action_space else UNKNOWN),
            "observation_mean": self.normalizer.mean.tolist() if self.normalizer else None,
            # the infinite one of a constant column is 0 in the file
            "observation_std": [x if math.isfinite(x) else 0.0 for x in self.normalizer.std.tolist()]
            if self.normalizer
            else None,
            "reward_scale": self.reward_scale,
            **(self.observation_space.to_json() if self.observation_space else {}),
            "action_names": self.action_names,
            "action_units": self.action_units,
        }
        return save_described(Path(folder), DESCRIPTION, description, self.actor.state_dict())


class ActingPolicy:
    """A policy in n episodes side by side, from `Policy.start`. It costs nothing where the policy has no memory."""

    def __init__(
        self, policy: Policy, memory: Memory | None, episodes: int, deterministic: bool, unseen: OnUnseen
    ) -> None:
        self.policy, self.memory, self.deterministic, self.unseen = policy, memory, deterministic, unseen
        self.every = range(episodes)

    def act(
        self, observations: Any, rows: Sequence[int] | None = None, generator: torch.Generator | None = None
    ) -> Array:
        """Actions (rows, a) for the newest observations (rows, o) of some episodes, or of all."""
        policy, memory, rows = self.policy, self.memory, self.every if rows is None else rows
        given = policy._given(observations, self.unseen)
        if memory is None:
            return policy._act(given, lambda states: policy.actor.act(states, self.deterministic, generator))
        return policy._act(given, lambda states: memory.act(states, rows, self.deterministic, generator))

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
    with loading(folder, DESCRIPTION, "policy", "Give the folder of a training run."):
        description = read_description(folder, DESCRIPTION, FORMAT, "Train it again.")
        actor = _actor(description["actor"], description["spec"], folder)
        observations, actions = actor.spec["observation_size"], actor.spec["action_size"]
        mean, std = (_numbers(description, f"observation_{x}", observations) for x in ("mean", "std"))
        space, observation_space = ActionSpace.from_json(description), ObservationSpace.from_json(description)
        for name, found, size in (("action", space, actions), ("observation", observation_space, observations)):
            if found is not None and found.size != size:
                raise ValueError(f"{name}_low has {found.size} numbers instead of {size}")
        normalizer = _normalizer(mean, std) if mean is not None else None
        names, units = (texts(description, f"action_{told}", actions) for told in ("names", "units"))
        reward_scale = float(description.get("reward_scale", 1.0))
    actor.eval().requires_grad_(False)
    return Policy(actor, normalizer, space, reward_scale, observation_space, names, units)


def _actor(kind: str, spec: dict[str, Any], folder: Path) -> Actor:
    """The actor with its weights; numbers of layers that they cannot have are refused before it is built."""
    layers = sum(len(widths) for name, widths in spec.items() if name.endswith("hidden_dims")) + spec.get("layers", 0)
    tensors = len(stored_shapes(folder))
    if layers > tensors:
        raise ValueError(f"{layers} hidden layers, but {WEIGHTS} holds {tensors} tensors")
    for name, expected in get_type_hints(ACTORS[kind].__init__).items():
        optional = expected == float | None and spec.get(name) is None
        if name in spec and expected in (float, float | None) and not optional and not math.isfinite(spec[name]):
            raise ValueError(f"{name} is {spec[name]}")
    actor: Actor = load_module(lambda: ACTORS[kind](**spec), folder, DESCRIPTION)
    return actor


def _normalizer(mean: Sequence[float], std: Sequence[float] | None) -> Normalizer:
    """What `save` wrote: a deviation of 0 is that of a constant column."""
    if std is None or min(std, default=0.0) < 0:
        raise ValueError(f"observation_std is {std}")
    return Normalizer(torch.tensor(mean), torch.tensor([x or math.inf for x in std]))


def _numbers(description: dict[str, Any], name: str, size: int) -> tuple[float, ...] | None:
    """An entry of the description that is one finite number per dimension, or nothing."""
    values = description[name]
    if values is None:
        return None
    if len(values) != size:
        raise ValueError(f"{name} has {len(values)} numbers instead of {size}")
    numbers = tuple(float(value) for value in values)
    if not all(map(math.isfinite, numbers)):
        raise ValueError(f"{name} is not finite")
    return numbers
