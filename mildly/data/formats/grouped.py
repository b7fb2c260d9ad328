"""HDF5 files that keep each episode apart.

In a group of its own: robomimic (`data/demo_0/obs/...`), Minari's `main_data.hdf5` (`episode_0/observations`), and
others like them. Or in arrays with its number: d3rlpy's `ReplayBuffer.dump` (`observations_0`, `actions_0`, ...).

An episode with one observation more than actions has its final observation there. Otherwise the next observation is
stored, or is that of the following row. An episode ends at the first row that says so: what a demonstration shows after
its end is left out.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Meta
from mildly.data.formats.discrete import watched
from mildly.data.formats.fields import (
    NAMES,
    NEEDED,
    ROW_BYTES,
    WIDE,
    check_numbers,
    clean,
    lacking,
    said,
    unused,
)
from mildly.data.formats.hdf5 import leaves, members, opened
from mildly.data.formats.hdf5_chunks import check_chunks
from mildly.data.memory import memory_limit, schema_bytes
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError
from mildly.words import counted

_NUMBERED = re.compile(r"(observations|actions|rewards|terminated)_(\d+)(?:_(\d+))?")
_D3RLPY_FACTS = ("columns", "num_episodes", "total_size", "version")
_FIELDS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
_BLOCK_BYTES = 1 << 24

Arrays = Mapping[str, Any]
"""The arrays of an episode by name; those in groups are called `obs/object`."""
Chosen = Mapping[str, tuple[str, ...]]
"""The names of each field's arrays, which stand side by side."""


@dataclass(frozen=True)
class Layout:
    """Where the episodes are."""

    episodes: Mapping[str, h5py.Group | Arrays]
    beside: tuple[str, ...]
    """What else is in the file."""

    def __iter__(self) -> Iterator[tuple[str, Arrays]]:
        for name, episode in self.episodes.items():
            yield name, leaves(episode) if isinstance(episode, h5py.Group) else episode


def layout_of(columns: Mapping[str, Any]) -> Layout | None:
    """How a file with these members keeps its episodes apart; None if it does not."""
    if any(name in columns for name in NAMES["actions"]):
        return None
    numbered: dict[str, dict[str, Any]] = {}
    for name, column in columns.items():
        if found := _NUMBERED.fullmatch(name):
            part = found[1] if found[3] is None else f"{found[1]}/{found[3]}"
            numbered.setdefault(f"episode {found[2]}", {})[part] = column
    if any("actions" in episode for episode in numbered.values()):
        rest = [name for name in columns if not _NUMBERED.fullmatch(name) and name not in _D3RLPY_FACTS]
        return Layout(numbered, tuple(rest))
    data = columns.get("data")
    within = members(data) if isinstance(data, h5py.Group) else {}
    for prefix, inner in (("data/", within), ("", columns)):
        groups = {f"{prefix}{name}": member for name, member in inner.items() if _has_actions(member)}
        if groups:
            others = [f"{prefix}{name}" for name in inner if f"{prefix}{name}" not in groups]
            return Layout(groups, (*others, *(name for name in columns if prefix and name != "data")))
    return None


def _has_actions(member: Any) -> bool:
    return isinstance(member, h5py.Group) and any(name in member for name in NAMES["actions"])


def read(path: Path, options: ImportOptions) -> Log:
    """A file for which there is a `layout_of` its members."""
    with opened(path) as (columns, _):
        layout = layout_of(columns)
        assert layout is not None
        first = next(iter(layout))[1]
        chosen = _choose(first, path, options)
        size = _expected_bytes(layout, chosen, path, options)
        notes = [_words(chosen, first)]
    name = path.stem if path.name != "main_data.hdf5" or path.parent.name != "data" else path.parent.parent.name
    log = Log(Meta(name=name, source=f"HDF5 file {path.name}"), iter(()), where=str(path), size=size, notes=notes)
    notes += unused([*(label for label in first if label not in _all(chosen)), *layout.beside])
    if "terminated" not in chosen:
        notes.append("No array says where an episode ended for good: every end is taken for a cut-off.")
    log.steps = watched(_rows(path, chosen, notes), chosen["actions"][0], options, notes)
    return log


def _all(chosen: Chosen) -> list[str]:
    return [label for labels in chosen.values() for label in labels]


def _words(chosen: Chosen, first: Arrays) -> str:
    """Which array was taken for what; the order of an observation's parts matters to who uses the policy."""
    parts = {field: ", ".join(f"{label} ({_width(first[label])})" for label in chosen[field]) for field in WIDE[:2]}
    parts |= {"next observations": ", ".join(chosen.get("next_observations", ())) or "the following ones"}
    parts |= {field: chosen[field][0] if field in chosen else "none" for field in ("rewards", "terminated")}
    return f"An episode each in groups or arrays of its own: {'; '.join(f'{a} = {b}' for a, b in parts.items())}."


def _choose(first: Arrays, path: Path, options: ImportOptions) -> Chosen:
    """The arrays of each field, by those of the first episode."""
    chosen: dict[str, tuple[str, ...]] = {}
    for field in _FIELDS:
        named = said(field, options)
        if named is not None:
            found = _fitting(first, named, field)
        elif field == "next_observations":
            found = _following(first, chosen["observations"])
        else:
            found = _usual(first, field)
        if field in WIDE and named is None:
            found = _vectors(first, found, path)
        if found:
            chosen[field] = found if field in WIDE else found[:1]
        elif named is not None or field in NEEDED:
            raise lacking(field, first, path, named)
    return chosen


def _fitting(first: Arrays, named: str, field: str) -> tuple[str, ...]:
    """The arrays that fit the user's names or patterns, in the order in which they are given.

    A name may be that of a group, or of an array in the group where the field's are: `object` for `obs/object`.
    """
    inside = {label.split("/", 1)[1]: label for label in first if "/" in label and label.split("/")[0] in NAMES[field]}
    found: dict[str, None] = {}
    for pattern in (part.strip() for part in named.split(",")):
        fitting = [label for label in first if fnmatchcase(label, pattern) or label.startswith(f"{pattern}/")]
        found |= dict.fromkeys(fitting or [label for name, label in inside.items() if fnmatchcase(name, pattern)])
    return tuple(found)


def _usual(first: Arrays, field: str) -> tuple[str, ...]:
    """The array of the usual name, or all arrays in the group of that name."""
    heads = {label.split("/")[0] for label in first}
    head = next((name for name in NAMES[field] if name in heads), None)
    return tuple(label for label in first if label.split("/")[0] == head)


def _following(first: Arrays, observations: Sequence[str]) -> tuple[str, ...]:
    """The next observations that belong to observations, if those of all are stored: `next_obs/x` for `obs/x`."""
    own, head = _usual(first, "observations"), _usual(first, "next_observations")
    if not head or not set(observations) <= set(own):
        return ()
    wanted = tuple("/".join([head[0].split("/")[0], *label.split("/")[1:]]) for label in observations)
    return wanted if set(wanted) <= set(head) else ()


def _vectors(first: Arrays, labels: Sequence[str], path: Path) -> tuple[str, ...]:
    """Those arrays that have a vector of numbers a row; an error if all are images or the like."""
    kept = [label for label in labels if first[label].dtype.kind in "biuf" and len(first[label].shape) in (1, 2)]
    if labels and not kept:
        shapes = ", ".join(f"{label} {first[label].shape}" for label in labels)
        raise MildlyError(
            f"{path}: a vector of numbers per step is needed, but there is {shapes}. If other arrays hold it, name "
            f"them with --obs or --action; there are {', '.join(first)}."
        )
    return tuple(kept)


def _width(column: Any) -> int:
    return math.prod(column.shape[1:])


def _expected_bytes(layout: Layout, chosen: Chosen, path: Path, options: ImportOptions) -> int:
    """What the transitions will take, by the shapes that the arrays claim, which must fit each other."""
    limit = memory_limit(options.max_memory)
    total, has_final = 0, set()
    widths: dict[str, int] = {}
    for name, arrays in layout:
        rows, final = _check(name, arrays, chosen, path)
        has_final.add(final)
        here = {label: _width(arrays[label]) for field in WIDE for label in chosen.get(field, ())}
        widths = widths or here
        if here != widths:
            label = next(label for label in here if here[label] != widths[label])
            raise MildlyError(f"{path}: '{name}/{label}' has {here[label]} columns, but {widths[label]} elsewhere.")
        if len(has_final) > 1:
            raise MildlyError(f"{path}: '{name}' differs from others in whether a final observation is stored.")
        chunks = [math.prod(arrays[label].chunks or ()) * arrays[label].dtype.itemsize for label in _all(chosen)]
        limit.check_piece(str(path), f"a piece of '{name}'", sum(chunks))
        for array in (arrays[label] for label in _all(chosen)):
            if isinstance(array, h5py.Dataset):
                check_chunks(array, limit)
        total += rows
    if total == 0:
        raise MildlyError(f"{path}: its episodes have no rows.")
    sizes = [sum(widths[label] for label in chosen[field]) for field in ("observations", "actions")]
    if 0 in sizes or sum(sizes) * 8 > ROW_BYTES:
        raise MildlyError(f"{path}: a row has {sum(sizes):,} numbers, which is no log.")
    return schema_bytes(total, *sizes)


def _check(name: str, arrays: Arrays, chosen: Chosen, path: Path) -> tuple[int, bool]:
    """How many steps an episode has, and whether its final observation is stored; raises where shapes do not fit."""
    absent = [label for label in _all(chosen) if label not in arrays]
    if absent:
        raise MildlyError(f"{path}: '{name}' lacks '{absent[0]}', which other episodes have.")
    rows = (tuple(arrays[chosen["actions"][0]].shape or ()) or (0,))[0]
    counts = set()
    for field, labels in chosen.items():
        for label in labels:
            shape = tuple(arrays[label].shape or ())
            check_numbers(arrays[label].dtype, f"{name}/{label}", path)
            if field == "terminated" and shape == ():  # one flag for the whole episode
                continue
            flat = len(shape) == 1 or (len(shape) == 2 and (field in WIDE or shape[1] == 1))
            if not flat or shape[0] - rows not in ((0, 1) if field == "observations" else (0,)):
                raise MildlyError(f"{path}: '{name}/{label}' has shape {shape}, which does not fit its {rows} actions.")
            counts |= {shape[0]} if field == "observations" else set()
    if len(counts) > 1:
        raise MildlyError(f"{path}: the parts of the observations of '{name}' differ in length.")
    return rows, rows not in counts


def _rows(path: Path, chosen: Chosen, notes: list[str]) -> Iterator[Steps]:
    """One block or several an episode, whose last row has a flag."""
    beyond = 0
    with opened(path) as (columns, _):
        layout = layout_of(columns)
        assert layout is not None
        for name, arrays in layout:
            count, final = _check(name, arrays, chosen, path)
            width = sum(_width(arrays[label]) for label in _all(chosen)) * 8
            size = max(1, _BLOCK_BYTES // width)
            for start in range(0, count, size):
                here = slice(start, min(start + size, count))
                block = _block(arrays, chosen, here, final=final, last=here.stop == count, where=f"{path}: '{name}")
                ends = np.flatnonzero(block.terminated | block.truncated)
                kept = int(ends[0]) + 1 if len(ends) else len(block.rewards)
                yield block.part(slice(0, kept))
                if len(ends):
                    beyond += count - start - kept
                    break
    if beyond:
        notes.append(f"Left out: {counted(beyond, 'row')} behind the end of an episode, as its flags say.")


def _block(arrays: Arrays, chosen: Chosen, here: slice, *, final: bool, last: bool, where: str) -> Steps:
    observations = _matrix(arrays, chosen["observations"], slice(here.start, here.stop + final))
    following = observations[1:] if final else None
    if not final and "next_observations" in chosen:
        following = _matrix(arrays, chosen["next_observations"], here)
    count = here.stop - here.start
    flags = {field: np.zeros(count, dtype=bool) for field in ("terminated", "truncated")}
    for field in flags:
        label = chosen[field][0] if field in chosen else None
        if label is not None and arrays[label].shape == ():
            flags[field][-1] = last and bool(arrays[label][()])
        elif label is not None:
            flags[field] = clean(arrays[label][here], field, f"{where}/{label}'")
    truncated = flags["truncated"] & ~flags["terminated"]
    truncated[-1] |= last and not flags["terminated"][-1]
    return Steps(
        observations[:count],
        _matrix(arrays, chosen["actions"], here),
        clean(arrays[chosen["rewards"][0]][here], "rewards", where),
        flags["terminated"],
        truncated,
        following,
    )


def _matrix(arrays: Arrays, labels: Sequence[str], here: slice) -> Array:
    """Arrays side by side."""
    return np.concatenate([np.asarray(arrays[label][here]).reshape(here.stop - here.start, -1) for label in labels], 1)
