"""Checkpoints: the whole state of a training in one file, replaced atomically, verified when read.

One file, because replacing one file is atomic: a crash in the middle of writing leaves the previous checkpoint
whole. That previous one is kept beside it, in case the last is damaged later. They are safetensors files, so reading
them cannot run code; a digest in the header tells damage.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as as_bytes
from torch import Tensor

from mildly.errors import MildlyError
from mildly.files import atomic_write, parse_json, temporary_path
from mildly.run import OtherFormat, check_format, is_step

FORMAT = 2


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON facts; afterwards the file is complete on disk, or the old one still stands."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": str(FORMAT), "facts": json.dumps(facts, sort_keys=True)}
    header["digest"] = _digest(stored, header["facts"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        # safetensors' own writing makes a second temporary file, which a crash would leave behind
        unfinished.write_bytes(as_bytes(stored, header))
        _keep_previous(path)


def previous(path: Path) -> Path:
    """Where the checkpoint before the last one is kept."""
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def _keep_previous(path: Path) -> None:
    """The present checkpoint becomes the one before, under a second name: there is one at every moment."""
    if path.exists():
        _second_name(path, previous(path))


def _second_name(path: Path, name: Path) -> None:
    """A file gets a second name, which another file may have had until then."""
    second = temporary_path(name)
    try:
        os.link(path, second)
    except OSError:  # a file system without second names
        shutil.copyfile(path, second)
    os.replace(second, name)
    second.unlink(missing_ok=True)  # replacing one name of a file by another of the same file does nothing


def load_latest(path: Path, say: Callable[[str], object]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The last sound checkpoint; that it is the one before is told with `say`."""
    try:
        return load(path)
    except OtherFormat:
        raise
    except MildlyError as error:
        try:
            found = load(previous(path))
        except MildlyError:
            raise error from None
        say(f"{path}: damaged; going on from the checkpoint before it, at step {found[1]['step']:,}")
        _second_name(previous(path), path)  # or the damaged one would become the one before at the next save
        return found


def step_of(path: Path) -> int:
    """The main step of a checkpoint; 0 where there is none. The last step is evaluated before it is saved."""
    try:
        with safe_open(path, framework="numpy") as file:
            return int(parse_json(file.metadata()["facts"])["step"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):  # resuming the run reports what is wrong
        return 0


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint, or say clearly that it is damaged or of another version."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        check_format(path, header["format"], str(FORMAT))
        if header.get("digest") != _digest(tensors, header.get("facts", "")):
            raise ValueError("its content does not match its digest")
        facts = parse_json(header["facts"])
        if not isinstance(facts, dict) or not is_step(facts.get("step")):
            raise ValueError("its facts do not tell the step")
        return tensors, facts
    except OtherFormat:
        raise
    except (SafetensorError, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MildlyError(
            f"{path}: the checkpoint is damaged ({error}). Restore it from a copy, or delete it to start this run "
            "again from step 0."
        ) from error


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        flat = tensor.reshape(-1).as_strided((tensor.numel(),), (1,))  # a single number may have any stride
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
