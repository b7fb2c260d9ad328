"""Tables with one row a step: CSV (also .tsv, and either of them as .gz) and Parquet, read and written in blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Dataset, Meta
from mildly.data.formats.arrays import META, damaged, parse_meta
from mildly.data.formats.columns import Columns, choose
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError

_CSV_BLOCK = 1 << 23  # bytes
_PARQUET_BLOCK = 1 << 16  # rows
_TRUE = ["1", "1.0", "true", "True", "TRUE", "yes", "Yes", "t", "T"]
_FALSE = ["0", "0.0", "false", "False", "FALSE", "no", "No", "f", "F"]
_ROWS_WRITTEN = 1 << 14
_CELL = re.compile(
    r"column #(?P<column>\d+): (Row #(?P<line>\d+): )?CSV conversion error to \w+: invalid value '(?P<value>.*)'",
    re.DOTALL,
)


def read(path: Path, options: ImportOptions) -> Log:
    """A table; the notes say which column was taken for what."""
    with _arrow(path) as arrow:
        schema = _schema(arrow, path)
        _check_header(schema.names, path)
        numeric = [field.name for field in schema if _is_number(arrow, field.type)]
        columns, guessed = choose(schema.names, numeric, options, str(path))
        described = (schema.metadata or {}).get(META.encode())
    stored = parse_meta(described.decode(errors="replace"), path) if described else None
    meta = stored or Meta(name=_stem(path), source=f"table {path.name}")
    log = Log(meta, iter(()), where=str(path), scaled=stored is not None, notes=list(meta.notes))
    if stored is None:
        how = "Columns as guessed from their names" if guessed else "Columns"
        log.notes.append(f"{how}: {columns.words()}.")
        if columns.terminated is None:
            log.notes.append("No column says where an episode ended for good: every end is taken for a cut-off.")
        if not (columns.episode or columns.flags):
            log.notes.append("No column tells the episodes apart: all rows are taken for one.")
    log.steps = _rows(path, columns)
    return log


def _check_header(names: list[str], path: Path) -> None:
    """A line of numbers, or of columns that another sign separates, is no header that we can work with."""
    tabs = _ending(path) == ".tsv"
    if len(names) == 1 and not _is_parquet(path):
        signs = {";": "semicolons", "\t": "tabs", "|": "bars", ",": "commas"}
        found = next((word for sign, word in signs.items() if names[0].count(sign) > 1), None)
        if found is not None:
            raise MildlyError(
                f"{path}: its columns seem to be separated by {found}, but a {_ending(path)} file has "
                f"{'tabs' if tabs else 'commas'} between them. Write it with commas as .csv, or with tabs as .tsv."
            )
    if names and all(re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?|", name.strip(), re.IGNORECASE) for name in names):
        raise MildlyError(
            f"{path}: the first line holds numbers ({', '.join(names[:3])}, ...), but it must name the columns: "
            "put a line such as obs_0,obs_1,action,reward,episode before it."
        )


def _stem(path: Path) -> str:
    name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    return name.rsplit(".", 1)[0]


def _ending(path: Path) -> str:
    """What tells the kind of table: `.csv`, `.tsv`, `.parquet` or `.pq`; .gz and .tmp do not matter."""
    return Path(path.name.lower().removesuffix(".tmp").removesuffix(".gz")).suffix


def _package(path: Path) -> Any:
    try:
        import pyarrow as arrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise MildlyError(f"{path}: tables need pyarrow: pip install 'mildly[tables]'.") from error
    return arrow


@contextmanager
def _arrow(path: Path) -> Iterator[ModuleType]:
    """The pyarrow package; what it finds wrong with a file is told in the file's name."""
    arrow = _package(path)
    try:
        yield arrow
    except FileNotFoundError as error:
        raise MildlyError(f"{path}: no such file.") from error
    except (arrow.ArrowException, OSError, ValueError, UnicodeDecodeError, MemoryError) as error:
        raise damaged(path, error) from error


def _is_parquet(path: Path) -> bool:
    return _ending(path) in (".parquet", ".pq")


@contextmanager
def _csv(arrow: ModuleType, path: Path, **more: Any) -> Iterator[Any]:
    """A reader of the file's record batches."""
    reading = arrow.csv.ReadOptions(block_size=_CSV_BLOCK)
    parsing = arrow.csv.ParseOptions(delimiter=_delimiter(path), newlines_in_values=True)
    with (
        arrow.input_stream(path, compression=_compression(path)) as file,
        arrow.csv.open_csv(file, read_options=reading, parse_options=parsing, **more) as reader,
    ):
        yield reader


def _compression(path: Path) -> str | None:
    return "gzip" if path.name.lower().removesuffix(".tmp").endswith(".gz") else None


def _delimiter(path: Path) -> str:
    return "\t" if _ending(path) == ".tsv" else ","


def _schema(arrow: ModuleType, path: Path) -> Any:
    if _is_parquet(path):
        with arrow.parquet.ParquetFile(path) as file:
            return file.schema_arrow
    with _csv(arrow, path) as reader:
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
    try:
        with _csv(arrow, path, convert_options=conversion) as reader:
            yield from reader
    except arrow.ArrowInvalid as error:
        found = _CELL.search(str(error))
        if found is None:
            raise
        name = _schema(arrow, path).names[int(found["column"])]
        line = f" in line {found['line']}" if found["line"] else ""
        kind = "true or false (or 1 or 0)" if name in columns.flags else "a number"
        raise MildlyError(f"{path}: column '{name}' holds '{found['value'][:50]}'{line}, expected {kind}.") from error


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
            if ids.null_count:
                raise MildlyError(f"{path}: the episode column '{columns.episode}' has empty cells.")
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
        if values.dtype.kind not in "biufO":
            raise MildlyError(f"{path}: column '{name}' does not hold numbers, but {values.dtype}.")
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
    arrow = _package(path)
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
    if _is_parquet(path):
        return stack.enter_context(arrow.parquet.ParquetWriter(path, schema))
    file = stack.enter_context(arrow.output_stream(path, compression=_compression(path)))
    options = arrow.csv.WriteOptions(delimiter=_delimiter(path), quoting_style="needed")
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
