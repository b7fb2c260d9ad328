"""D4RL's HDF5 files, in all the layouts that exist (v0, v1, v2, Adroit, maze2d), and other HDF5 files like them.

The rows follow D4RL's Q-learning view: a row needs a next observation. Where a file stores `next_observations`, every
row has one and is kept (D4RL's own function drops time-outs even then). Where it does not, the next observation of row
i is row i + 1, and rows without one (time limits and the file's last row) are dropped. A time-out never ends the value:
only `terminals` do. A file of no known task is read as any other arrays are: a terminal row needs no next observation.

maze2d's `terminals` are way-points, at which nothing ends. D4RL's generator steps the environment there without taking
over its new state, so that the next row repeats the observation: the row at the way-point is no transition, and the row
after it spans two steps. In a file without `timeouts` both are left out (D4RL's own function keeps both, the first as
terminal).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mildly.data.assemble import Log, Steps, limited
from mildly.data.dataset import FIELDS, Dataset, Meta, blocks
from mildly.data.formats import grouped
from mildly.data.formats.arrays import META, expected_bytes, in_step, parse_meta
from mildly.data.formats.careful import CarefulFile
from mildly.data.formats.fields import NAMES
from mildly.data.formats.hdf5 import opened
from mildly.data.formats.hdf5_chunks import check_chunks
from mildly.data.memory import memory_limit
from mildly.data.official import name_of_file
from mildly.data.options import COLUMN_OPTIONS, ImportOptions, refuse
from mildly.data.origin import Origin, rows_of_arrays
from mildly.data.tasks import Task, task_of
from mildly.errors import MildlyError
from mildly.words import counted

_FEW = 3  # names quoted in a message


def read(path: Path, options: ImportOptions) -> Log:
    """One HDF5 file. Its name tells the task, and with it environment and reference returns."""
    with opened(path) as (columns, stored):
        if stored is None and grouped.layout_of(columns) is not None:
            return _episodes_apart(path, options)
        has_terminals = any(name in columns for name in (options.terminated or "", *NAMES["terminated"]))
        has_timeouts = any(name in columns for name in (options.truncated or "", *NAMES["truncated"], *NAMES["lasts"]))
        _check_not_nested(columns, path, options)
        size = expected_bytes(columns, path, options)
        for column in columns.values():
            if isinstance(column, h5py.Dataset):
                check_chunks(column, memory_limit(options.max_memory))
    if stored is not None:
        meta = parse_meta(stored, path)
        log = Log(meta, iter(()), where=str(path), scaled=True, size=size, notes=list(meta.notes))
        log.origin = Origin(rows_of_arrays)
        log.steps = _rows(path, options, log.notes)
        return log
    name = dataset_name(path)
    task = task_of(name)
    if task is not None and not task.terminates:
        refuse(options, ("terminated",), str(path), f"the task of {name} never ends for good:")
    if task is not None and not has_terminals:
        raise MildlyError(f"{path}: lacks terminals; found {', '.join(columns) or 'nothing'}. A D4RL file has them.")
    meta = Meta(
        name=name,
        env_id=task.env_id if task else None,
        reference_min=task.reference_min if task else None,
        reference_max=task.reference_max if task else None,
        source=f"D4RL file {path.name}" if task else f"HDF5 file {path.name}",
    )
    log = Log(meta, iter(()), where=str(path), scaled=task is not None, size=size, origin=Origin(rows_of_arrays))
    log.steps = _rows(path, options, log.notes, as_d4rl=task is not None)
    if task is not None:
        log.steps = _as_the_task_knows(log.steps, task, has_timeouts, log.notes)
    return log


def _episodes_apart(path: Path, options: ImportOptions) -> Log:
    """A file in which episodes are apart; Minari's is read as its folder, where there is one."""
    columns = any(getattr(options, name) is not None for name in COLUMN_OPTIONS)
    folder = path.parent.parent
    if path == folder / "data" / "main_data.hdf5" and (path.parent / "metadata.json").is_file() and not columns:
        from mildly.data.formats import minari

        if minari.is_installed():
            return minari.read(folder, options)
    return grouped.read(path, options)


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


def _as_the_task_knows(steps: Iterator[Steps], task: Task, has_timeouts: bool, notes: list[str]) -> Iterator[Steps]:
    """Time-outs where an episode reaches the horizon, if the file stores none; and no ends where a task has none."""
    if not has_timeouts:
        steps = limited(steps, task.horizon)
    if task.terminates:
        return steps
    if not has_timeouts:
        steps = _cut_at_way_points(steps, notes)
    return (block._replace(terminated=np.zeros_like(block.terminated)) for block in steps)


def _cut_at_way_points(steps: Iterator[Steps], notes: list[str]) -> Iterator[Steps]:
    """Way-points whose observation the next row repeats are cut off, and so is that row: neither is a transition."""
    held: Steps | None = None  # the last row, until the next one is known
    repeats, found = False, 0  # whether the row held repeats the observation of a way-point; way-points so far
    for block in steps:
        if block.next_observations is not None:
            yield block
            continue
        rows = Steps.join(held, block)
        repeated = rows.terminated[:-1] & (rows.observations[:-1] == rows.observations[1:]).all(axis=1)
        stale = np.concatenate([[repeats], repeated])
        stale[:-1] |= repeated
        ready, held, repeats = rows.part(slice(0, -1)), rows.part(slice(-1, None)), bool(stale[-1])
        found += int(repeated.sum())
        yield ready._replace(truncated=ready.truncated | stale[:-1])
    if held is not None:
        yield held._replace(truncated=held.truncated | repeats)
    if found:
        notes.append(
            f"At {counted(found, 'way-point')} the file repeats the observation in the next row. Neither of the two "
            "rows is a transition, and both are among those left out."
        )


def dataset_name(path: Path) -> str:
    """`hopper_medium-v2.hdf5` is `hopper-medium-v2`; without a version it is v0, where medium-replay was 'mixed'."""
    official = name_of_file(path.name)
    if official is not None:
        return official
    name = path.stem.replace("_", "-")
    if re.search(r"-v\d+", name) or task_of(name) is None:
        return name if task_of(name) else path.stem
    return f"{name.replace('-mixed', '-medium-replay')}-v0"


def _rows(path: Path, options: ImportOptions, notes: list[str], *, as_d4rl: bool = False) -> Iterator[Steps]:
    with opened(path) as (columns, _):
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
