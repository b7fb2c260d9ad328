"""D4RL's HDF5 files, in all the layouts that exist (v0, v1, v2, Adroit, maze2d), and other HDF5 files like them.

The rows follow D4RL's Q-learning view: a row needs a next observation. Where a file stores `next_observations`, every
row has one and is kept (D4RL's own function drops time-outs even then). Where it does not, the next observation of row
i is row i + 1, and rows without one (time limits and the file's last row) are dropped. A time-out never ends the value:
only `terminals` do. A file of no known task is read as any other arrays are: a terminal row needs no next observation.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mildly.data.assemble import Log, Steps, limited
from mildly.data.dataset import FIELDS, Dataset, Meta, blocks
from mildly.data.formats.arrays import DAMAGE, META, NAMES, Column, damaged, expected_bytes, in_step, parse_meta
from mildly.data.formats.careful import CarefulFile
from mildly.data.official import name_of_file
from mildly.data.options import ImportOptions
from mildly.data.tasks import Task, task_of
from mildly.errors import MildlyError
from mildly.files import JSON_BYTES

_FEW = 3  # names quoted in a message
_LARGE = 1 << 30  # bytes
_MOST_PACKED = 2000  # more than any compression in use can do: deflate stops at 1032


def read(path: Path, options: ImportOptions) -> Log:
    """One HDF5 file. Its name tells the task, and with it environment and reference returns."""
    with _opened(path) as (columns, stored):
        has_terminals = any(name in columns for name in (options.terminated or "", *NAMES["terminated"]))
        has_timeouts = any(name in columns for name in (options.truncated or "", *NAMES["truncated"]))
        _check_not_nested(columns, path, options)
        size = expected_bytes(columns, path, options)
    if stored is not None:
        meta = parse_meta(stored, path)
        log = Log(meta, iter(()), where=str(path), scaled=True, size=size, notes=list(meta.notes))
        log.steps = _rows(path, options, log.notes)
        return log
    name = dataset_name(path)
    task = task_of(name)
    if task is not None and not has_terminals:
        raise MildlyError(f"{path}: lacks terminals; found {', '.join(columns) or 'nothing'}. A D4RL file has them.")
    meta = Meta(
        name=name,
        env_id=task.env_id if task else None,
        reference_min=task.reference_min if task else None,
        reference_max=task.reference_max if task else None,
        source=f"D4RL file {path.name}" if task else f"HDF5 file {path.name}",
    )
    log = Log(meta, iter(()), where=str(path), scaled=task is not None, size=size)
    log.steps = _rows(path, options, log.notes, as_d4rl=task is not None)
    if task is not None:
        log.steps = _as_the_task_knows(log.steps, task, has_timeouts)
    return log


def _check_not_nested(columns: Mapping[str, Any], path: Path, options: ImportOptions) -> None:
    """A file that keeps each episode in a group of its own has no arrays where we look for them."""
    groups = [found for found in columns.values() if isinstance(found, h5py.Group)]
    if not groups or options.obs or any(name in columns for name in (*NAMES["observations"], *NAMES["actions"])):
        return
    inside: list[str] = []

    def look(_: str, found: Any) -> bool | None:
        inside.extend([found.name.strip("/")] if isinstance(found, h5py.Dataset) else [])
        return True if len(inside) == _FEW else None  # which ends the visit

    for group in groups:
        if len(inside) < _FEW:
            group.visititems(look)
    if inside:
        raise MildlyError(
            f"{path}: its arrays are in groups ({', '.join(inside)}, ...), which are not read. They are expected at "
            "the top of the file, 'observations', 'actions' and 'rewards', one row per step, the episodes one after "
            "another, with the last row of each marked in 'terminals' or 'timeouts'."
        )


def _as_the_task_knows(steps: Iterator[Steps], task: Task, has_timeouts: bool) -> Iterator[Steps]:
    """Time-outs where an episode reaches the horizon, if the file stores none; and no ends where a task has none."""
    if not has_timeouts:
        steps = limited(steps, task.horizon)
    if task.terminates:
        return steps
    return (block._replace(terminated=np.zeros_like(block.terminated)) for block in steps)  # maze2d: way-points


def dataset_name(path: Path) -> str:
    """`hopper_medium-v2.hdf5` is `hopper-medium-v2`; without a version it is v0, where medium-replay was 'mixed'."""
    official = name_of_file(path.name)
    if official is not None:
        return official
    name = path.stem.replace("_", "-")
    if re.search(r"-v\d+", name) or task_of(name) is None:
        return name if task_of(name) else path.stem
    return f"{name.replace('-mixed', '-medium-replay')}-v0"


@contextmanager
def _opened(path: Path) -> Iterator[tuple[dict[str, Column], str | None]]:
    """The arrays at the top of the file, and our own description if it is one of ours."""
    if not path.is_file():
        raise MildlyError(f"{path}: no such file.")
    try:
        with h5py.File(path, "r") as file:
            stored = _description(file)
            columns = {name: found for name in file if (found := _inside(file, name)) is not None}
            yield columns, stored
    except DAMAGE as error:
        raise damaged(path, error) from error


def _description(file: h5py.File) -> str | None:
    """Text of fixed length only: HDF5 never returns from reading one of variable length in some damaged files."""
    if META not in file.attrs or file.attrs.get_id(META).dtype.kind != "S":
        return None
    if file.attrs.get_id(META).get_storage_size() > JSON_BYTES:
        raise ValueError("the description in it is too large")
    return str(bytes(file.attrs[META]).decode())


def _inside(file: h5py.File, name: str) -> Any:
    """A group or an array that the file itself holds; None for a link to another file, to nothing, or to itself."""
    if isinstance(file.get(name, getlink=True), h5py.ExternalLink):
        return None
    try:
        found: Any = file.get(name)
    except (KeyError, OSError, RuntimeError):
        return None
    if not isinstance(found, (h5py.Dataset, h5py.Group)) or found.file.filename != file.filename:
        return None
    if isinstance(found, h5py.Dataset):
        if found.is_virtual or found.external:
            raise ValueError(f"'{name}' is kept in other files; h5repack or h5py can copy it into one")
        if found.nbytes > _LARGE and found.nbytes > _MOST_PACKED * os.path.getsize(file.filename):
            raise ValueError(f"'{name}' claims a shape of {found.shape}, far more than the file can hold")
    return found


def _rows(path: Path, options: ImportOptions, notes: list[str], *, as_d4rl: bool = False) -> Iterator[Steps]:
    with _opened(path) as (columns, _):
        yield from in_step(columns, path, options, notes, as_d4rl=as_d4rl)


def write(dataset: Dataset, path: Path, description: str) -> None:
    """D4RL's layout, with next observations, so that D4RL's own tools can read it too."""
    names = dict(zip(FIELDS, FIELDS, strict=True)) | {"terminated": "terminals", "truncated": "timeouts"}
    with path.open("wb+", buffering=0) as raw:
        target = CarefulFile(raw)
        with h5py.File(target, "w") as file:
            for field, name in names.items():
                array = getattr(dataset, field)
                column = file.create_dataset(name, shape=array.shape, dtype=array.dtype)
                for rows in blocks(len(array)):
                    column[rows] = array[rows]
                    target.check()
            file.attrs[META] = np.bytes_(description.encode())
        target.check()
