"""Checkpoints: the whole state of a training in one file, replaced atomically, verified when read.

One file, because replacing one file is atomic: a crash in the middle of writing leaves the previous checkpoint
whole. It is a safetensors file, so reading it cannot run code; a digest in its header tells damage.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from mildly.errors import MildlyError
from mildly.files import atomic_write
from mildly.run import OtherFormat, check_format

FORMAT = 2


def save(path: Path, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
    """Write tensors and JSON facts; afterwards the file is complete on disk, or the old one still stands."""
    stored = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    header = {"format": str(FORMAT), "facts": json.dumps(facts, sort_keys=True)}
    header["digest"] = _digest(stored, header["facts"])
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        save_file(stored, unfinished, metadata=header)


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read a checkpoint, or say clearly that it is damaged or of another version."""
    try:
        with safe_open(path, framework="pt") as file:
            header = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        check_format(path, header["format"], str(FORMAT))
        if header.get("digest") != _digest(tensors, header.get("facts", "")):
            raise ValueError("its content does not match its digest")
        return tensors, json.loads(header["facts"])
    except OtherFormat:
        raise
    except (SafetensorError, OSError, ValueError, KeyError) as error:
        raise MildlyError(
            f"{path}: the checkpoint is damaged ({error}). Restore it from a copy, or delete it to start this run "
            "again from step 0."
        ) from error


def _digest(tensors: Mapping[str, Tensor], facts: str) -> str:
    digest = hashlib.sha256(facts.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"{name}{tuple(tensor.shape)}{tensor.dtype}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
