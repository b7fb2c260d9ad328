"""The root of a LeRobot data set: `meta/info.json`, and the frames as Parquet under `data`, versions 2 and 3.

A frame is a row. The reward of its action is `next.reward`; `next.done` marks an episode's last frame for whatever
reason, and `next.success` tells whether the episode ended for good there. Pictures and videos are not read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Meta
from mildly.data.formats.discrete import watched
from mildly.data.formats.fields import natural, unused
from mildly.data.formats.parquet import expected_bytes, matrix
from mildly.data.formats.table_file import TableFile, open_table
from mildly.data.memory import Limit, memory_limit
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError
from mildly.files import read_object

_VERSIONS = ("v2", "v3")
_EPISODE, _FRAME = "episode_index", "frame_index"
_ACTIONS, _REWARDS = ("action", "actions"), ("next.reward", "reward")
_SUCCESS = "next.success"


def is_folder(path: Path) -> bool:
    """Whether a folder is the root of such a data set."""
    return (path / "meta" / "info.json").is_file()


@dataclass(frozen=True)
class _Columns:
    observations: tuple[str, ...]
    actions: tuple[str, ...]
    reward: str
    success: str | None
    frame: str | None

    @property
    def all(self) -> tuple[str, ...]:
        single = (self.reward, self.success, self.frame, _EPISODE)
        return tuple(dict.fromkeys([*self.observations, *self.actions, *(name for name in single if name)]))


def read(path: Path, options: ImportOptions) -> Log:
    """A data set by its root."""
    info = _info(path)
    files = sorted((path / "data").glob("chunk-*/*.parquet"), key=lambda file: natural(str(file.relative_to(path))))
    if not files:
        raise MildlyError(f"{path}: is a LeRobot data set without frames: there is no data/chunk-000/*.parquet.")
    tables = [open_table(file) for file in files]
    columns = _choose(tables[0], info["features"], path, options)
    for table in tables:
        absent = [name for name in columns.all if name not in table.names]
        if absent:
            raise MildlyError(f"{table.path}: lacks column '{absent[0]}'.")
    limit = memory_limit(options.max_memory)
    size = expected_bytes(tables, columns.all, columns.observations, columns.actions, limit)
    log = Log(Meta(name=path.name, source=f"LeRobot data set {path.name}"), iter(()), where=str(path), size=size)
    log.notes.append(
        f"LeRobot: observation = {', '.join(columns.observations)}; action = {', '.join(columns.actions)}; reward = "
        f"{columns.reward}; terminated = {columns.success or 'none'}, in an episode's last frame."
    )
    log.notes += unused((name for name in info["features"] if name not in columns.all), "Features")
    if columns.success is None:
        log.notes.append("No column says where an episode ended for good: every end is taken for a cut-off.")
    frames = sum(table.size.rows for table in tables if table.size)
    if frames != info.get("total_frames", frames):
        log.notes.append(f"meta/info.json speaks of {info['total_frames']} frames, but {frames:,} are here.")
    log.steps = watched(_episodes(tables, columns, limit), columns.actions[0], options, log.notes)
    return log


def _info(path: Path) -> dict[str, Any]:
    file = path / "meta" / "info.json"
    try:
        info = read_object(file)
        version, features = info["codebase_version"], info["features"]
        if not isinstance(version, str) or not all(isinstance(feature, dict) for feature in features.values()):
            raise ValueError("its version or its features are not as LeRobot writes them")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise MildlyError(f"{file}: damaged, or not LeRobot's ({error}).") from error
    if not version.startswith(_VERSIONS):
        raise MildlyError(
            f"{path}: is a LeRobot data set of version {version}; {' and '.join(_VERSIONS)} are read. LeRobot has "
            "scripts that convert others."
        )
    return info


def _choose(table: TableFile, features: Mapping[str, Any], path: Path, options: ImportOptions) -> _Columns:
    """The columns of each role. Features that are no columns are videos, and those that are no numbers pictures."""
    vectors = [name for name in table.names if name in table.numeric and _is_vector(features.get(name, {}))]
    observations = (
        _fitting("obs", vectors, options.obs, path)
        if options.obs is not None
        else tuple(name for name in vectors if name.split(".")[0] in ("observation", "observations"))
    )
    if not observations:
        raise MildlyError(
            f"{path}: no observation is a vector of numbers; pictures and videos are not read. Name columns with "
            f"--obs; there are {', '.join(vectors) or 'none'}."
        )
    return _Columns(
        observations,
        _found("action", vectors, _ACTIONS, options.action, path),
        _found("reward", vectors, _REWARDS, options.reward, path)[0],
        _found("terminated", vectors, (_SUCCESS,), options.terminated, path)[0]
        if options.terminated is not None or _SUCCESS in vectors
        else None,
        _FRAME if _FRAME in vectors else None,
    )


def _is_vector(feature: Mapping[str, Any]) -> bool:
    shape = feature.get("shape", [1])
    return isinstance(shape, list) and len(shape) <= 1


def _found(role: str, names: Sequence[str], usual: Sequence[str], said: str | None, path: Path) -> tuple[str, ...]:
    if said is not None:
        return _fitting(role, names, said, path)
    found = next((name for name in usual if name in names), None)
    if found is None:
        why = " (sets recorded by a person have none)" if role == "reward" else ""
        raise MildlyError(
            f"{path}: lacks the {role}, a column {usual[0]}{why}. Say which it is with mildly data convert SRC DST "
            f"--{role} NAME; there are {', '.join(names)}."
        )
    return (found,)


def _fitting(role: str, names: Sequence[str], said: str, path: Path) -> tuple[str, ...]:
    patterns = [part.strip() for part in said.split(",")]
    found = dict.fromkeys(name for pattern in patterns for name in names if fnmatchcase(name, pattern))
    if not found:
        raise MildlyError(f"{path}: no column fits --{role} '{said}'; there are {', '.join(names)}.")
    return tuple(found)


def _episodes(tables: Sequence[TableFile], columns: _Columns, limit: Limit) -> Iterator[Steps]:
    """One block an episode, whose last row has a flag."""
    held: list[dict[str, Array]] = []
    widths: dict[str, int] = {}
    current: int | None = None
    for table in tables:
        for batch in table.batches(columns.all, (), ()):
            block = {name: matrix(batch, name, table.path) for name in columns.all}
            for name, values in block.items():
                if widths.setdefault(name, values.shape[1]) != values.shape[1]:
                    raise MildlyError(f"{table.path}: '{name}' has {values.shape[1]} columns, unlike elsewhere.")
            ids = block[_EPISODE][:, 0]
            starts = [0, *(np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist(), len(ids)]
            for start, stop in pairwise(starts):
                if start == stop:
                    continue
                if current is not None and ids[start] != current:
                    yield _episode(held, columns, table.path)
                    held = []
                    if ids[start] < current:
                        raise MildlyError(f"{table.path}: {_EPISODE} goes from {current} back to {ids[start]}.")
                current = int(ids[start])
                held.append({name: values[start:stop] for name, values in block.items()})
            size = sum(values.nbytes for part in held for values in part.values())
            limit.check_piece(str(table.path), f"episode {current}", size)
    if held:
        yield _episode(held, columns, tables[-1].path)


def _episode(parts: Sequence[Mapping[str, Array]], columns: _Columns, path: Path) -> Steps:
    whole = {name: np.concatenate([part[name] for part in parts]) for name in columns.all}
    if columns.frame and (np.diff(whole[columns.frame][:, 0]) != 1).any():
        raise MildlyError(f"{path}: frames of episode {whole[_EPISODE][0, 0]} are missing ({_FRAME} is not in order).")
    rewards = whole[columns.reward][:, 0]
    terminated, truncated = np.zeros(len(rewards), dtype=bool), np.zeros(len(rewards), dtype=bool)
    terminated[-1] = columns.success is not None and bool(whole[columns.success][-1, 0])
    truncated[-1] = not terminated[-1]
    observations, actions = (
        np.concatenate([whole[name] for name in names], axis=1) for names in (columns.observations, columns.actions)
    )
    return Steps(observations, actions, rewards, terminated, truncated)
