"""HDF5 files opened with care: what they hold themselves, no links to other files, no shapes that cannot be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py

from mildly.data.formats.arrays import DAMAGE, META, damaged
from mildly.data.formats.fields import natural
from mildly.errors import MildlyError
from mildly.files import JSON_BYTES

_LARGE = 1 << 30  # bytes
_MOST_PACKED = 2000  # more than any compression in use can do: deflate stops at 1032
_MOST_LEAVES, _DEEPEST = 1000, 8  # arrays in an episode's group, and groups in groups; a group may hold itself


@contextmanager
def opened(path: Path) -> Iterator[tuple[dict[str, Any], str | None]]:
    """The arrays and groups at the top of the file, and our own description if it is one of ours."""
    if not path.is_file():
        raise MildlyError(f"{path}: no such file.")
    try:
        with h5py.File(path, "r") as file:
            yield members(file), _description(file)
    except DAMAGE as error:
        raise damaged(path, error) from error


def _description(file: h5py.File) -> str | None:
    """Text of fixed length only: HDF5 never returns from reading one of variable length in some damaged files."""
    if META not in file.attrs or file.attrs.get_id(META).dtype.kind != "S":
        return None
    if file.attrs.get_id(META).get_storage_size() > JSON_BYTES:
        raise ValueError("the description in it is too large")
    return str(bytes(file.attrs[META]).decode())


def members(group: h5py.Group) -> dict[str, Any]:
    """The arrays and groups in a group by name, counted as a person would: `demo_2` before `demo_10`."""
    return {name: found for name in sorted(group, key=natural) if (found := _inside(group, name)) is not None}


def _inside(group: h5py.Group, name: str) -> Any:
    """A group or an array that the file itself holds; None for a link to another file, to nothing, or to itself."""
    if isinstance(group.get(name, getlink=True), h5py.ExternalLink):
        return None
    try:
        found: Any = group.get(name)
    except (KeyError, OSError, RuntimeError):
        return None
    if not isinstance(found, (h5py.Dataset, h5py.Group)) or found.file.filename != group.file.filename:
        return None
    if isinstance(found, h5py.Dataset):
        if found.is_virtual or found.external:
            raise ValueError(f"'{name}' is kept in other files; h5repack or h5py can copy it into one")
        if found.nbytes > _LARGE and found.nbytes > _MOST_PACKED * os.path.getsize(group.file.filename):
            raise ValueError(f"'{name}' claims a shape of {found.shape}, far more than the file can hold")
    return found


def leaves(group: h5py.Group, prefix: str = "", depth: int = 0) -> dict[str, h5py.Dataset]:
    """The arrays in a group and in the groups in it, by their paths."""
    if depth > _DEEPEST:
        raise ValueError(f"'{prefix}' is nested too deep")
    found: dict[str, h5py.Dataset] = {}
    for name, member in members(group).items():
        path = f"{prefix}{name}"
        found |= {path: member} if isinstance(member, h5py.Dataset) else leaves(member, f"{path}/", depth + 1)
        if len(found) > _MOST_LEAVES:
            raise ValueError(f"'{group.name}' holds more than {_MOST_LEAVES:,} arrays")
    return found
