"""Hyperparameters: frozen dataclasses whose field docstrings are the help, checked when they are built.

A config may hold groups, dataclasses of their own, such as `behavior` or `extras`. Outside Python their fields are
named with a dot: `behavior.hidden_dims`, as in presets, sweeps and flags.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from mildly.errors import MildlyError, unknown_name
from mildly.run import flatten as flatten

if TYPE_CHECKING:
    from mildly.algorithms.base import Algorithm


_MOST_LAYERS, _WIDEST, _LARGEST_BATCH = 64, 65_536, 1 << 24


def require(condition: bool, field: str, expected: str, value: object) -> None:
    """Raise an error that names the field unless the condition holds."""
    if not condition:
        raise MildlyError(f"{field} must be {expected}, got {value}.")


def require_at_least(config: Any, **least: float) -> None:
    """Fields must have a value of at least so much, or none."""
    for name, bound in least.items():
        value = getattr(config, name)
        require(value is None or value >= bound, name, f"at least {bound}", value)


def require_widths(field: str, widths: tuple[int, ...]) -> None:
    """Hidden layers must have at least one unit, and not absurdly many."""
    require(all(width >= 1 for width in widths), field, "positive widths", widths)
    require(len(widths) <= _MOST_LAYERS, field, f"at most {_MOST_LAYERS} widths", f"{len(widths)}")
    require(all(width <= _WIDEST for width in widths), field, f"at most {_WIDEST:,} each", widths)


DEFAULT: dict[str, Any] = {"hidden_dims": (256, 256), "normalize_observations": True}
"""What the preset `default` of every algorithm begins with: what suits data in any units."""
SMALL: dict[str, Any] = {
    "hidden_dims": (128, 128),
    "batch_size": 128,
    "actor_lr": 1e-3,
    "critic_lr": 1e-3,
    "normalize_observations": True,
}
"""The preset `small` of algorithms with an actor and critics, for small tasks and first looks."""
KEYS: tuple[str, ...] = ("gamma", "hidden_dims", "batch_size", "actor_lr", "critic_lr", "normalize_observations")
"""The fields of these that people change first."""


@dataclass(frozen=True)
class AlgorithmConfig:
    """What all algorithms have in common."""

    batch_size: int = 256
    """Samples in a minibatch."""
    normalize_observations: bool = False
    """Normalize observations to zero mean and unit variance. The policy keeps the normalization."""

    def __post_init__(self) -> None:
        require(self.batch_size >= 1, "batch_size", "at least 1", self.batch_size)
        require(self.batch_size <= _LARGEST_BATCH, "batch_size", f"at most {_LARGEST_BATCH:,}", self.batch_size)


@dataclass(frozen=True)
class ActorCriticConfig(AlgorithmConfig):
    """What all algorithms with an actor and critics have in common; the defaults are those of the MCQ paper."""

    hidden_dims: tuple[int, ...] = (400, 400)
    """Widths of the hidden layers of actor and critics."""
    gamma: float = 0.99
    """Discount factor."""
    tau: float = 0.005
    """Rate at which the target networks follow the networks."""
    actor_lr: float = 3e-4
    """Learning rate of the actor."""
    critic_lr: float = 3e-4
    """Learning rate of the critics."""
    layer_norm: bool = False
    """Normalize the critics' hidden layers. This keeps the values of actions far from the data from growing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require_widths("hidden_dims", self.hidden_dims)
        require(0 <= self.gamma < 1, "gamma", "in [0, 1)", self.gamma)
        require(0 < self.tau <= 1, "tau", "in (0, 1]", self.tau)
        for name in ("actor_lr", "critic_lr"):
            require(getattr(self, name) > 0, name, "positive", getattr(self, name))


def field_types(config: type[Any]) -> dict[str, Any]:
    """The annotated type of every field; those of groups by their dotted names."""
    hints, types = get_type_hints(config), dict[str, Any]()
    for field in dataclasses.fields(config):
        kind = hints[field.name]
        if dataclasses.is_dataclass(kind) and isinstance(kind, type):
            types |= {f"{field.name}.{name}": inner for name, inner in field_types(kind).items()}
        else:
            types[field.name] = kind
    return types


def make_config(algorithm: type[Algorithm], preset: str, dataset: str, fields: Mapping[str, Any]) -> Any:
    """A config from the paper's values for the data set, a preset, and the user's own fields, the last winning."""
    known = {**algorithm.for_dataset(dataset, preset), **preset_fields(algorithm, preset)}
    return build_config(algorithm, {**known, **flatten(fields)})


def preset_fields(algorithm: type[Algorithm], preset: str) -> Mapping[str, Any]:
    """What a preset sets. Every algorithm has a `default`: the config's own values, where it names no others."""
    presets = {"default": {}, **algorithm.PRESETS}
    if preset not in presets:
        raise unknown_name("preset", preset, presets)
    return presets[preset]


def build_config(algorithm: type[Algorithm], fields: Mapping[str, Any]) -> Any:
    """A config from fields that came from a user or a file: names and types are checked, lists become tuples."""
    fields = flatten(fields)
    _check_types(algorithm, fields)
    return _built(algorithm.Config, {name: tuple(v) if isinstance(v, list) else v for name, v in fields.items()})


def check_fields(algorithm: type[Algorithm], preset: str, fields: Mapping[str, Any]) -> None:
    """Raise where a preset or a field is unknown or of the wrong type, before the data are read."""
    preset_fields(algorithm, preset)
    _check_types(algorithm, flatten(fields))


@cache
def _types_of(algorithm: type[Algorithm]) -> dict[str, Any]:
    return field_types(algorithm.Config)


def _check_types(algorithm: type[Algorithm], fields: Mapping[str, Any]) -> None:
    types = _types_of(algorithm)
    for name, value in fields.items():
        if name not in types:
            raise unknown_name("hyperparameter", name, types)
        require(_fits(value, types[name]), name, _described(types[name]), repr(value))


def _built(config: type[Any], fields: Mapping[str, Any]) -> Any:
    """A config whose groups are built from the fields with their prefix, on top of the group's own defaults."""
    flat = {name: value for name, value in fields.items() if "." not in name}
    for group in {name.split(".")[0] for name in fields if "." in name}:
        inner = {name.split(".", 1)[1]: value for name, value in fields.items() if name.startswith(f"{group}.")}
        default = next(field.default for field in dataclasses.fields(config) if field.name == group)
        flat[group] = dataclasses.replace(default, **inner)  # type: ignore[type-var]
    return config(**flat)


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
