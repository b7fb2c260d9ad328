"""A network in a folder: a description in JSON and `weights.safetensors`. Nothing in the files can run code."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save as as_bytes
from torch import Tensor, nn

from mildly.errors import MildlyError
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


@contextmanager
def loading(folder: Path, name: str, what: str, where: str) -> Iterator[None]:
    """Lets whatever goes wrong in reading `what`, described by the file `name`, be told in the user's words.

    `where` says where such a thing is found, for a folder that has none.
    """
    try:
        yield
    except (FileNotFoundError, NotADirectoryError) as error:
        raise MildlyError(f"{folder}: no {what} here (needs {name} and {WEIGHTS}). {where}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise MildlyError(f"{folder}: the {what} is damaged ({error}).") from error
    except (RuntimeError, SafetensorError) as error:  # torch's own words
        raise MildlyError(f"{folder}: the {what} is damaged ({error}).") from error


def read_description(folder: Path, name: str, known_format: int, again: str) -> dict[str, Any]:
    """The description, if it belongs to the weights beside it. `again` is what to do about one of another format."""

    def check(given: dict[str, Any]) -> None:
        if given["format"] != known_format:
            raise MildlyError(
                f"{folder / name}: format {given['format']}; this version of mildly reads {known_format}. {again}"
            )

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
