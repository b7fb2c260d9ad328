"""Data sets as tables: CSV (also .tsv, and either of them as .gz) and Parquet."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mildly.data.dataset import Array, Dataset
from mildly.data.formats.arrays import META
from mildly.data.formats.table_file import compression, delimiter, is_parquet, package

_ROWS_WRITTEN = 1 << 14


def write(dataset: Dataset, path: Path, description: str) -> None:
    """A table with the columns obs_*, action_*, reward, next_obs_*, episode, terminated, truncated."""
    arrow = package(path)
    first = 0
    with ExitStack() as stack:
        writer: Any = None
        for start in range(0, len(dataset), _ROWS_WRITTEN):
            rows = slice(start, min(start + _ROWS_WRITTEN, len(dataset)))
            batch, first = _batch(arrow, dataset, rows, first)
            batch = batch.replace_schema_metadata({META: description})
            writer = writer or _writer(arrow, path, batch.schema, stack)
            writer.write_batch(batch)


def _writer(arrow: ModuleType, path: Path, schema: Any, stack: ExitStack) -> Any:
    """A writer that is closed with the stack, and its file after it, so that a full disk is noticed."""
    if is_parquet(path):
        return stack.enter_context(arrow.parquet.ParquetWriter(path, schema))
    file = stack.enter_context(arrow.output_stream(path, compression=compression(path)))
    options = arrow.csv.WriteOptions(delimiter=delimiter(path), quoting_style="needed")
    return stack.enter_context(arrow.csv.CSVWriter(file, schema, write_options=options))


def _batch(arrow: ModuleType, dataset: Dataset, rows: slice, first: int) -> tuple[Any, int]:
    """Some rows as a record batch, and the number of the episode that the next row belongs to."""
    ends = dataset.terminated[rows] | dataset.truncated[rows]
    episode = first + np.concatenate([[0], np.cumsum(ends)])
    columns: dict[str, Array] = {}
    for name, field in (("obs", "observations"), ("action", "actions"), ("next_obs", "next_observations")):
        values = getattr(dataset, field)[rows]
        columns |= {f"{name}_{i}": np.ascontiguousarray(values[:, i]) for i in range(values.shape[1])}
    columns |= {"reward": dataset.rewards[rows], "episode": episode[:-1]}
    columns |= {"terminated": dataset.terminated[rows], "truncated": dataset.truncated[rows]}
    return arrow.record_batch({name: arrow.array(values) for name, values in columns.items()}), int(episode[-1])
