"""Tables with one row a step: CSV (also .tsv, and either of them as .gz) and Parquet, read and written in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Dataset, Meta, blocks
from mildly.data.formats.arrays import META, damaged, parse_meta
from mildly.data.formats.columns import Columns, choose
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError

_CSV_BLOCK = 1 << 23  # bytes
_PARQUET_BLOCK = 1 << 16  # rows
_TRUE = ["1", "1.0", "true", "True", "TRUE", "yes", "Yes", "t", "T"]
_FALSE = ["0", "0.0", "false", "False", "FALSE", "no", "No", "f", "F"]
_ROWS_WRITTEN = 1 << 14


def read(path: Path, options: ImportOptions) -> Log:
    """A table; the notes say which column was taken for what."""
    with _arrow(path) as arrow:
        schema = _schema(arrow, path)
        numeric = [field.name for field in schema if _is_number(arrow, field.type)]
        columns, guessed = choose(schema.names, numeric, options, str(path))
        described = (schema.metadata or {}).get(META.encode())
    stored = parse_meta(described.decode(errors="replace"), path) if described else None
    meta = stored or Meta(name=_stem(path), source=f"table {path.name}")
    log = Log(meta, iter(()), where=str(path), scaled=stored is not None)
    if stored is None:
        how = "Columns as guessed from their names" if guessed else "Columns"
        log.notes.append(f"{how}: {columns.words()}.")
        if columns.terminated is None:
            log.notes.append("No column says where an episode ended for good: every end is taken for a cut-off.")
        if not (columns.episode or columns.flags):
            log.notes.append("No column tells the episodes apart: all rows are taken for one.")
    log.steps = _rows(path, columns)
    return log


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0]


@contextmanager
def _arrow(path: Path) -> Iterator[ModuleType]:
    """The pyarrow package; what it finds wrong with a file is told in the file's name."""
    try:
        import pyarrow as arrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise MildlyError(f"{path}: tables need pyarrow: pip install 'mildly[tables]'.") from error
    try:
        yield arrow
    except FileNotFoundError as error:
        raise MildlyError(f"{path}: no such file.") from error
    except (arrow.ArrowException, OSError, ValueError, UnicodeDecodeError, MemoryError) as error:
        raise damaged(path, error) from error


def _is_parquet(path: Path) -> bool:
    return path.suffix in (".parquet", ".pq")


def _parsing(arrow: ModuleType, path: Path) -> dict[str, Any]:
    tabs = path.name.removesuffix(".gz").endswith(".tsv")
    return {
        "read_options": arrow.csv.ReadOptions(block_size=_CSV_BLOCK),
        "parse_options": arrow.csv.ParseOptions(delimiter="\t" if tabs else ","),
    }


def _schema(arrow: ModuleType, path: Path) -> Any:
    if _is_parquet(path):
        with arrow.parquet.ParquetFile(path) as file:
            return file.schema_arrow
    with arrow.csv.open_csv(path, **_parsing(arrow, path)) as reader:
        return reader.schema


def _is_number(arrow: ModuleType, kind: Any) -> bool:
    types = arrow.types
    if types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _batches(arrow: ModuleType, path: Path, columns: Columns) -> Iterator[Any]:
    """Record batches of the columns that are needed."""
    wanted = list(dict.fromkeys([*columns.numbers, *columns.flags, *([columns.episode] if columns.episode else [])]))
    if _is_parquet(path):
        with arrow.parquet.ParquetFile(path) as file:
            yield from file.iter_batches(batch_size=_PARQUET_BLOCK, columns=wanted)
        return
    kinds = dict.fromkeys(columns.numbers, arrow.float64()) | dict.fromkeys(columns.flags, arrow.bool_())
    if columns.episode:
        kinds[columns.episode] = arrow.string()
    conversion = arrow.csv.ConvertOptions(
        column_types=kinds,
        include_columns=wanted,
        true_values=_TRUE,
        false_values=_FALSE,
        null_values=["", "NA", "N/A", "NaN", "nan", "NAN", "null", "NULL", "None"],
        strings_can_be_null=False,
    )
    with arrow.csv.open_csv(path, convert_options=conversion, **_parsing(arrow, path)) as reader:
        yield from reader


def _rows(path: Path, columns: Columns) -> Iterator[Steps]:
    """Rows with their flags. The first row of an episode says that the row before was the last of its own."""
    held: Steps | None = None
    last: Any = None
    seen: set[Any] = set()
    count = 0
    with _arrow(path) as arrow:
        for batch in _batches(arrow, path, columns):
            if batch.num_rows == 0:
                continue
            steps = _steps(batch, columns, path, count)
            if columns.episode is None:
                count += batch.num_rows
                yield steps
                continue
            ids = _column(batch, columns.episode)
            starts = _starts(arrow, ids, last)
            _check_contiguous(ids, starts, seen, columns.episode, path, count)
            last = ids[len(ids) - 1].as_py()
            count += batch.num_rows
            steps = Steps.join(held, steps)
            starts = starts if held is None else np.concatenate([[False], starts])
            steps.truncated[:-1] |= starts[1:] & ~steps.terminated[:-1]
            yield steps.part(slice(0, -1))
            held = steps.part(slice(-1, None))
    if held is not None:
        held.truncated[-1] |= not held.terminated[-1]
        yield held


def _column(batch: Any, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _starts(arrow: ModuleType, ids: Any, last: Any) -> Array:
    """Where an episode's number differs from that of the row before."""
    import pyarrow.compute as compute

    if ids.null_count:
        raise ValueError("the episode column has empty cells")
    starts = np.empty(len(ids), dtype=bool)
    starts[0] = last is not None and ids[0].as_py() != last
    starts[1:] = compute.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return starts


def _check_contiguous(ids: Any, starts: Array, seen: set[Any], name: str, path: Path, count: int) -> None:
    """An episode that comes back later means that the rows are not in order."""
    firsts = np.flatnonzero(starts).tolist() if seen else [0, *np.flatnonzero(starts).tolist()]
    for row in firsts:
        episode = ids[row].as_py()
        if episode in seen:
            raise MildlyError(
                f"{path}: episode {episode} (column '{name}') goes on in row {count + row} after another one began. "
                "Sort the rows by episode and step first."
            )
        seen.add(episode)


def _steps(batch: Any, columns: Columns, path: Path, start: int) -> Steps:
    terminated = _flag(batch, columns.terminated, path, start)
    truncated = _flag(batch, columns.truncated, path, start) & ~terminated
    return Steps(
        _matrix(batch, columns.obs, path),
        _matrix(batch, columns.action, path),
        _matrix(batch, (columns.reward,), path)[:, 0],
        terminated,
        truncated,
        _matrix(batch, columns.next_obs, path) if columns.next_obs else None,
    )


def _matrix(batch: Any, names: tuple[str, ...], path: Path) -> Array:
    """Columns side by side; a column of lists is as many columns as the lists are long."""
    parts = []
    for name in names:
        values = _column(batch, name).to_numpy(zero_copy_only=False)
        if values.dtype == object and len(values) and isinstance(values[0], np.ndarray):
            if len({value.shape if value is not None else None for value in values}) > 1:
                raise MildlyError(f"{path}: the lists in column '{name}' differ in length.")
            values = np.stack(values)
        try:
            parts.append(values.astype(np.float32).reshape(len(values), -1))
        except (TypeError, ValueError) as error:
            raise MildlyError(f"{path}: column '{name}' does not hold numbers ({error}).") from error
    return np.concatenate(parts, axis=1)


def _flag(batch: Any, name: str | None, path: Path, start: int) -> Array:
    if name is None:
        return np.zeros(batch.num_rows, dtype=bool)
    column = _column(batch, name)
    if column.null_count:
        row = start + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise MildlyError(f"{path}: column '{name}' must be true or false in every row, but row {row} is empty.")
    values = column.to_numpy(zero_copy_only=False)
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise MildlyError(f"{path}: column '{name}' must hold true and false (or 1 and 0).")
    flags: Array = values.astype(bool)
    return flags


def write(dataset: Dataset, path: Path, description: str) -> None:
    """A table with the columns obs_*, action_*, reward, next_obs_*, episode, terminated, truncated."""
    with _arrow(path) as arrow:
        writer: Any = None
        first = 0
        try:
            for whole in blocks(len(dataset)):
                for start in range(whole.start, whole.stop, _ROWS_WRITTEN):
                    rows = slice(start, min(start + _ROWS_WRITTEN, whole.stop))
                    batch, first = _batch(arrow, dataset, rows, first)
                    if writer is None:
                        schema = batch.schema.with_metadata({META: description})
                        writer = _writer(arrow, path, schema)
                    writer.write_batch(batch.replace_schema_metadata({META: description}))
        finally:
            if writer is not None:
                writer.close()


def _writer(arrow: ModuleType, path: Path, schema: Any) -> Any:
    name = path.name.removesuffix(".tmp")
    if _is_parquet(Path(name)):
        return arrow.parquet.ParquetWriter(path, schema)
    compression = "gzip" if name.endswith(".gz") else None
    tabs = name.removesuffix(".gz").endswith(".tsv")
    options = arrow.csv.WriteOptions(delimiter="\t" if tabs else ",", quoting_style="needed")
    return arrow.csv.CSVWriter(arrow.output_stream(path, compression=compression), schema, write_options=options)


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
