"""The contract that every algorithm fulfils. Adding one is one file and one line in the registry.

An algorithm is a class with a frozen dataclass `Config`, `update(batch)` (one gradient step) and `policy()`.
Whatever it keeps as attributes (networks, optimizers, tensors, generators) is part of its state: `state_dict`
finds it there, so that a checkpoint forgets no piece. What follows from the data alone, such as the observation
scaling, is computed anew by `prepare`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Any, ClassVar, Literal, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from mildly.actors import Actor
from mildly.behavior.cache import ActionCache
from mildly.data.dataset import Dataset, Meta
from mildly.data.normalize import Scaling
from mildly.data.replay import Batch
from mildly.data.returns import Returns
from mildly.errors import MildlyError, unknown_name
from mildly.optimizer import Adam
from mildly.policy import Policy

Metrics = dict[str, Tensor]


@dataclass(frozen=True)
class AlgorithmConfig:
    """What all algorithms have in common."""

    batch_size: int = 256
    """Transitions in a minibatch."""
    normalize_observations: bool = False
    """Scale observations to zero mean and unit variance (the policy keeps the scaling)."""

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)


def require(condition: bool, field: str, expected: str, value: object) -> None:
    """Raise an error that names the field unless the condition holds."""
    if not condition:
        raise MildlyError(f"{field} must be {expected}, got {value}.")


_FIXED = (AlgorithmConfig, torch.device, Scaling, Returns, ActionCache, str, type(None))
"""What an algorithm may keep besides its state: it follows from the config, the data and that state."""


class Algorithm(ABC):
    """An offline learner. Subclasses build their networks in `build` and learn in `update`."""

    Config: ClassVar[type[Any]] = AlgorithmConfig
    PRESETS: ClassVar[Mapping[str, Mapping[str, Any]]] = {"paper": {}}
    """Named sets of config fields. `paper` is the default everywhere."""
    reward_scale: float = 1.0
    """What the data's rewards are multiplied with."""

    def __init__(
        self,
        config: Any,
        observation_size: int,
        action_size: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> None:
        self.config = config
        self.observation_size, self.action_size = observation_size, action_size
        self.device = torch.device(device)
        self.scaling: Scaling | None = None
        self.generator = self.random_stream(seed, "policy")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(stream_seed(seed, "weights"))
            self.build(seed)

    @abstractmethod
    def build(self, seed: int) -> None:
        """Create networks and optimizers; torch's random numbers are seeded around this call."""

    @abstractmethod
    def update(self, batch: Batch) -> Metrics:
        """One gradient step. Returns scalars as tensors, without waiting for the device."""

    @abstractmethod
    def actor(self) -> Actor:
        """The network that acts."""

    @classmethod
    def for_dataset(cls, name: str, preset: str) -> dict[str, Any]:
        """The paper's hyperparameters for a data set, as config fields."""
        return {}

    def select(self, dataset: Dataset) -> Dataset:
        """The part of the data to train on, always the same of the same data: here, all of it."""
        return dataset

    def prepare(self, dataset: Dataset) -> None:
        """Look at the data before training: here, the observation scaling."""
        if self.config.normalize_observations:
            self.scaling = Scaling.of(dataset, self.device)

    def skip_start(self) -> None:  # noqa: B027
        """Act as if the steps that only begin a training were taken, so that the speed of all others is measured."""

    def policy(self, meta: Meta | None = None) -> Policy:
        """The learned policy, acting in the units of the environment that `meta` describes."""
        return Policy(
            self.actor(),
            scaling=self.scaling,
            action_low=meta.action_low if meta else None,
            action_high=meta.action_high if meta else None,
            reward_scale=self.reward_scale,
        )

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that changes during training, flat, as tensors: weights, optimizers, generators, counters."""
        state: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            if isinstance(value, nn.Module):
                state |= {f"{name}.{key}": tensor for key, tensor in value.state_dict().items()}
            elif isinstance(value, torch.optim.Optimizer):
                for index, slots in value.state_dict()["state"].items():
                    state |= {f"{name}.{index}.{slot}": torch.as_tensor(tensor) for slot, tensor in slots.items()}
            elif isinstance(value, torch.Generator):
                state[name] = value.get_state()
            elif isinstance(value, Tensor):
                state[name] = value.detach()
            elif isinstance(value, int | float):
                state[name] = torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)
            elif not isinstance(value, _FIXED):
                raise TypeError(
                    f"{type(self).__name__}.{name} is a {type(value).__name__}, which a checkpoint cannot keep: "
                    "make it a module, an optimizer, a tensor, a generator or a number."
                )
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave, so exactly that training goes on as if never interrupted."""
        for name, value in vars(self).items():
            own = {key.removeprefix(f"{name}."): t for key, t in state.items() if key.startswith(f"{name}.")}
            if isinstance(value, nn.Module):
                value.load_state_dict(own)
            elif isinstance(value, torch.optim.Optimizer):
                slots: dict[int, dict[str, Tensor]] = {}
                for key, tensor in own.items():
                    index, slot = key.split(".", 1)
                    slots.setdefault(int(index), {})[slot] = tensor.clone()  # torch would share, not copy, it
                value.load_state_dict({"state": slots, "param_groups": value.state_dict()["param_groups"]})
            elif isinstance(value, torch.Generator):
                value.set_state(state[name].cpu())
            elif isinstance(value, Tensor):
                with torch.no_grad():
                    value.copy_(state[name])
            elif isinstance(value, int | float):
                setattr(self, name, type(value)(state[name].item()))

    def adam(self, *modules: nn.Module | Tensor, **settings: Any) -> Adam:
        """Adam over the parameters of modules or over single tensors."""
        return Adam([p for m in modules for p in (m.parameters() if isinstance(m, nn.Module) else (m,))], **settings)

    def random_stream(self, seed: int, stream: str) -> torch.Generator:
        """A generator on the learner's device with numbers of its own."""
        return torch.Generator(device=self.device).manual_seed(stream_seed(seed, stream))


def stream_seed(seed: int, stream: str) -> int:
    """Seeds of independent streams (weights, batches, ...) from a run's one seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:7])


def make_config(algorithm: type[Algorithm], preset: str, dataset: str, fields: Mapping[str, Any]) -> Any:
    """A config from a preset, the paper's values for the data set, and the user's own fields, the last winning."""
    if preset not in algorithm.PRESETS:
        raise unknown_name("preset", preset, algorithm.PRESETS)
    return build_config(algorithm, {**algorithm.PRESETS[preset], **algorithm.for_dataset(dataset, preset), **fields})


def build_config(algorithm: type[Algorithm], fields: Mapping[str, Any]) -> Any:
    """A config from fields that came from a user or a file: names and types are checked, lists become tuples."""
    types = get_type_hints(algorithm.Config)
    for name, value in fields.items():
        if name not in types:
            raise unknown_name("hyperparameter", name, types)
        require(_fits(value, types[name]), name, _described(types[name]), repr(value))
    return algorithm.Config(**{name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})


def _fits(value: Any, kind: Any) -> bool:
    """Whether a value is of an annotated type; whole numbers pass as floats, lists as tuples."""
    choices = get_args(kind)
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(value, choice) for choice in choices)
    if get_origin(kind) is Literal:
        return value in choices
    if get_origin(kind) is tuple:
        return isinstance(value, tuple | list) and all(_fits(item, choices[0]) for item in value)
    if kind in (int, float):
        return isinstance(value, int | kind) and not isinstance(value, bool)
    return isinstance(value, kind)


def _described(kind: Any) -> str:
    """A type in words: `a number or 'auto'`."""
    if get_origin(kind) in (Union, UnionType):
        return " or ".join(_described(choice) for choice in get_args(kind))
    if get_origin(kind) is Literal:
        return " or ".join(repr(choice) for choice in get_args(kind))
    names = {"int": "a whole number", "float": "a number", "bool": "True or False", "tuple[int, ...]": "whole numbers"}
    names |= {"NoneType": "None"}
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return names.get(text, text.replace("typing.", ""))
