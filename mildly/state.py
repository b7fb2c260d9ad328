"""State that a checkpoint keeps, found by itself, so that no piece is forgotten.

Whatever a `Stateful` object keeps as an attribute is part of its state: networks, optimizers, generators, tensors,
numbers, other stateful objects, and dicts of these. What follows from the config, the data and that state is not: the
class names it in `DERIVED`. Anything else is refused when the state is asked for, not lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor, nn


def stream_seed(seed: int, stream: str) -> int:
    """Seeds of independent streams (weights, batches, ...) from a run's one seed."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{stream}".encode()).digest()[:7])


class Stateful:
    """An object whose attributes are its state."""

    DERIVED: ClassVar[frozenset[str]] = frozenset()
    """Attributes that are computed anew instead of being saved."""

    def state_dict(self) -> dict[str, Tensor]:
        """Everything that changes during training, flat, as tensors."""
        state: dict[str, Tensor] = {}
        for name, value in vars(self).items():
            if name not in self.DERIVED and value is not None:
                saved = _save(value, f"{type(self).__name__}.{name}")
                state |= {f"{name}.{key}" if key else name: tensor for key, tensor in saved.items()}
        return state

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `state_dict` gave, so exactly that training goes on as if never interrupted."""
        for name, value in vars(self).items():
            if name not in self.DERIVED and value is not None:
                setattr(self, name, _restored(value, _below(name, state), name))


def _save(value: Any, where: str) -> dict[str, Tensor]:
    """One attribute as tensors; a single one has the empty name."""
    if isinstance(value, nn.Module | Stateful):
        return dict(value.state_dict())
    if isinstance(value, torch.optim.Optimizer):
        slots = value.state_dict()["state"]
        return {f"{i}.{slot}": torch.as_tensor(tensor) for i, kept in slots.items() for slot, tensor in kept.items()}
    if isinstance(value, dict):
        parts = {key: _save(part, f"{where}['{key}']") for key, part in value.items()}
        return {
            f"{key}.{name}" if name else key: tensor for key, part in parts.items() for name, tensor in part.items()
        }
    if isinstance(value, torch.Generator):
        return {"": value.get_state()}
    if isinstance(value, Tensor):
        return {"": value.detach()}
    if isinstance(value, int | float):
        return {"": torch.tensor(value, dtype=torch.float64 if isinstance(value, float) else torch.int64)}
    raise TypeError(
        f"{where} is a {type(value).__name__}, which a checkpoint cannot keep: make it a module, an optimizer, a "
        "tensor, a generator or a number, or name it in DERIVED."
    )


def _restored(value: Any, state: Mapping[str, Tensor], name: str) -> Any:
    """The attribute with its state: the same object where it has an identity, a new one where it is a mere value."""
    if isinstance(value, torch.Generator | Tensor | int | float) and "" not in state:
        raise KeyError(f"{name} is missing")
    if isinstance(value, nn.Module | Stateful):
        value.load_state_dict(state)
    elif isinstance(value, torch.optim.Optimizer):
        slots: dict[int, dict[str, Tensor]] = {}
        for key, tensor in state.items():
            index, slot = key.split(".", 1)
            slots.setdefault(int(index), {})[slot] = tensor.clone()  # torch would share it
        value.load_state_dict({"state": slots, "param_groups": value.state_dict()["param_groups"]})
    elif isinstance(value, dict):
        return {key: _restored(part, _below(key, state), f"{name}.{key}") for key, part in value.items()}
    elif isinstance(value, torch.Generator):
        value.set_state(state[""].cpu())
    elif isinstance(value, Tensor):
        if value.shape != state[""].shape:
            raise ValueError(f"{name} has shape {tuple(state[''].shape)} where {tuple(value.shape)} is expected")
        if not value.requires_grad:  # a value that was assigned, perhaps shared with a metric
            return state[""].to(value.device, value.dtype, copy=True)
        with torch.no_grad():
            value.copy_(state[""])
    else:
        return type(value)(state[""].item())
    return value


def _below(name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The entries that belong to an attribute, by their names within it; its only one has the empty name."""
    if name in state:
        return {"": state[name]}
    prefix = f"{name}."
    return {key.removeprefix(prefix): tensor for key, tensor in state.items() if key.startswith(prefix)}
