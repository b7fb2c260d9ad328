"""A network in a folder: a description in JSON and `weights.safetensors`. Nothing in the files can run code."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save as as_bytes
from torch import Tensor, nn

from mildly.files import atomic_write, read_own_json, sha256, write_json

WEIGHTS = "weights.safetensors"
Module = TypeVar("Module", bound=nn.Module)


def save_described(folder: Path, name: str, description: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Path:
    """Write the description under a name, and the weights; each file is replaced whole."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = {key: tensor.detach().cpu().contiguous() for key, tensor in tensors.items()}
    description = json.loads(json.dumps(description))
    before = [sha256(folder / WEIGHTS)] if (folder / WEIGHTS).exists() else []
    with atomic_write(folder / WEIGHTS) as unfinished:
        unfinished.write_bytes(as_bytes(stored))  # its own writing would leave a second file after a crash
        hashes = [sha256(unfinished)]
        # The description comes first and allows the weights before, so that a crash between the two harms nothing.
        write_json(folder / name, {**description, "weights_sha256": hashes + before})
    if before:
        write_json(folder / name, {**description, "weights_sha256": hashes})
    return folder


def read_description(folder: Path, name: str, check: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The description, if it passes the check and belongs to the weights beside it."""
    description = read_own_json(folder / name, check)
    if sha256(folder / WEIGHTS) not in list(description["weights_sha256"]):
        raise ValueError(f"{WEIGHTS} is not the file that {name} was written for")
    return description


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shapes of a folder's weights, without reading them."""
    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def load_module(build: Callable[[], Module], folder: Path, name: str) -> Module:
    """A network with a folder's weights, which must have the shapes that its description `name` says.

    That is known before anything is allocated.
    """
    found = stored_shapes(folder)
    with torch.device("meta"):  # shapes without memory
        planned = {key: tuple(tensor.shape) for key, tensor in build().state_dict().items()}
    if planned != found:
        wrong = sorted(key for key in planned | found if planned.get(key) != found.get(key))
        raise ValueError(f"{WEIGHTS} does not have the shapes that {name} says: {', '.join(wrong[:3])}")
    module = build()
    module.load_state_dict(load_file(folder / WEIGHTS))
    return module
