"""Logs whose episodes may come in fragments by turns, as several environments write them: put together by their ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Meta
from mildly.data.formats.arrays import steps_of
from mildly.data.formats.discrete import watched
from mildly.data.formats.episodes import DONE, with_ends
from mildly.data.formats.fields import unused
from mildly.data.memory import Limit, memory_limit
from mildly.data.options import ImportOptions

_ROWS = 4096  # gathered before they are handed over

Block = Mapping[str, Array]
"""Rows by field; in `episodes` the ids as objects."""


def log_of(
    path: Path,
    source: str,
    names: Mapping[str, str],
    columns: Iterable[str],
    blocks: Iterator[Block],
    options: ImportOptions,
    size: int | None = None,
) -> Log:
    """A log of blocks of rows.

    Args:
        path: the file or folder.
        source: what it is, in words.
        names: what the field's columns are called.
        columns: the names of all columns, to say which are not used.
        blocks: the rows.
        options: what the user says.
        size: bytes that the transitions will take, if that is known.
    """
    log = Log(Meta(name=path.stem, source=source), iter(()), where=str(path), size=size)
    log.notes += unused((name for name in columns if name not in names.values()), "Columns")
    if "terminated" not in names:
        log.notes.append("No column says where an episode ended for good: every end is taken for a cut-off.")
    rows = _gathered(blocks)
    if "episodes" in names:
        parts = _episode_by_episode(rows, path, memory_limit(options.max_memory))
    else:
        parts = ((steps_of(block), block.get("starts")) for block in rows)
    done = names["terminated"] if "truncated" in names and names.get("terminated") in DONE else None
    steps = with_ends(parts, log.notes, done=done, episode=names.get("starts"))
    log.steps = watched(steps, names["actions"], options, log.notes)
    return log


def _gathered(blocks: Iterator[Block]) -> Iterator[Block]:
    """Blocks of more rows, where they have few."""
    held: list[Block] = []
    for block in blocks:
        held.append(block)
        if sum(len(part["rewards"]) for part in held) >= _ROWS:
            yield {field: np.concatenate([part[field] for part in held]) for field in block}
            held = []
    if held:
        yield {field: np.concatenate([part[field] for part in held]) for field in held[0]}


def _episode_by_episode(blocks: Iterator[Block], path: Path, limit: Limit) -> Iterator[tuple[Steps, Array | None]]:
    """Whole episodes, in the order in which they end: their fragments are held until a flag ends them, or the log."""
    open_ones: dict[object, list[Steps]] = {}
    for block in blocks:
        steps, ids = steps_of(block), block["episodes"]
        changes = np.flatnonzero(ids[1:] != ids[:-1]) + 1
        for start, stop in pairwise([0, *changes.tolist(), len(ids)]):
            part = steps.part(slice(start, stop))
            ends = np.flatnonzero(part.terminated | part.truncated)
            whole = int(ends[-1]) + 1 if len(ends) else 0
            if whole:
                yield Steps.joined([*open_ones.pop(ids[start], []), part.part(slice(0, whole))]), None
            if whole < len(part.rewards):
                open_ones.setdefault(ids[start], []).append(part.part(slice(whole, None)))
        held = (column for parts in open_ones.values() for part in parts for column in part)
        size = sum(column.nbytes for column in held if column is not None)
        limit.check_piece(str(path), f"what has no end yet of {len(open_ones):,} episodes", size)
    for parts in open_ones.values():
        episode = Steps.joined(parts)
        episode.truncated[-1] = True
        yield episode, None
