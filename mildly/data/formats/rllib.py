"""The folder into which RLlib records Parquet: many files, often of a single row each.

A row is a step, an episode goes on from file to file, and several may go by turns. (RLlib's JSON: `json_lines.py`. A
single file of Parquet is read as any other table.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.assemble import Log
from mildly.data.dataset import Array
from mildly.data.formats import cells
from mildly.data.formats.fields import FLAGS, check_width, choose, clean, natural
from mildly.data.formats.fragments import Block, log_of
from mildly.data.formats.parquet import expected_bytes, matrix
from mildly.data.formats.table_file import TableFile, open_table
from mildly.data.memory import memory_limit
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError

_STEPS = {"eps_id", "obs", "actions", "rewards"}
_EPISODES = ("item",)  # the only column of a file with whole episodes
_WHERE = ("*.parquet", "run-*/*.parquet", "*/run-*/*.parquet")


def _files_in(folder: Path) -> list[Path]:
    """The files of a recording: in this folder, or in those of its runs."""
    for pattern in _WHERE:
        found = [path for path in folder.glob(pattern) if path.is_file()]
        if found:
            return sorted(found, key=lambda path: natural(str(path.relative_to(folder))))
    return []


def is_folder(path: Path) -> bool:
    """Whether a folder holds Parquet files of which the first has RLlib's columns."""
    files = _files_in(path)
    if not files:
        return False
    try:
        names = open_table(files[0]).names
    except MildlyError:  # told by who reads it as a table
        return False
    return set(names) >= _STEPS or names == _EPISODES


def read(path: Path, options: ImportOptions) -> Log:
    """A recording."""
    tables = [open_table(file) for file in _files_in(path)]
    first = tables[0].names
    if first == _EPISODES:
        raise MildlyError(
            f"{path}: holds whole episodes, packed in one column. Let RLlib write a row per step, with "
            "output_write_episodes=False in AlgorithmConfig.offline_data."
        )
    names = choose(first, path, options)
    for table in tables:
        absent = [name for name in names.values() if name not in table.names]
        if absent:
            raise MildlyError(f"{table.path}: lacks column '{absent[0]}', which {tables[0].path.name} has.")
    observations, actions = [names["observations"]], [names["actions"]]
    limit = memory_limit(options.max_memory)
    size = expected_bytes(tables, list(names.values()), observations, actions, limit)
    return log_of(path, f"RLlib's Parquet {path.name}", names, first, _blocks(tables, names), options, size)


def _blocks(tables: Sequence[TableFile], names: Mapping[str, str]) -> Iterator[Block]:
    numbers = [name for field, name in names.items() if field not in (*FLAGS, "episodes")]
    flags = [name for field, name in names.items() if field in FLAGS]
    widths: dict[str, int] = {}
    for table in tables:
        for name in numbers:
            if name not in table.numeric and table.size and table.size.rows:
                raise MildlyError(
                    f"{table.path}: column '{name}' does not hold numbers. RLlib packs observations unless it is told "
                    "output_compress_columns=[] in AlgorithmConfig.offline_data."
                )
        for batch in table.batches(numbers, flags, [names["episodes"]] if "episodes" in names else []):
            if batch.num_rows == 0:
                continue
            block = {field: _field(batch, field, name, table.path) for field, name in names.items()}
            for field, values in block.items():
                check_width(widths, field, values, f"{table.path}: '{names[field]}'")
            yield block


def _field(batch: Any, field: str, name: str, path: Path) -> Array:
    if field == "episodes":
        return np.array(cells.column(batch, name).to_pylist(), dtype=object)
    if field in FLAGS:
        return cells.flag(batch, name, path)
    return clean(matrix(batch, name, path), field, f"{path}: '{name}'")
