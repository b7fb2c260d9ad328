"""Tables with one row per step: CSV (also .tsv, and either of them as .gz) and Parquet, or a folder of them.

In a folder each file is a run of its own: at least one episode.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import Array, Dataset, Meta
from mildly.data.formats.arrays import META, parse_meta
from mildly.data.formats.columns import Columns, choose
from mildly.data.formats.episodes import with_ends
from mildly.data.formats.table_file import (
    SUFFIXES,
    TableFile,
    compression,
    delimiter,
    is_parquet,
    open_table,
    package,
    stem,
)
from mildly.data.memory import Limit, memory_limit, schema_bytes
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError

_ROWS_WRITTEN = 1 << 14
_NAME = 100  # bytes that an episode's name takes, about


def read(path: Path, options: ImportOptions) -> Log:
    """A table, or a folder of them; the notes say which column was taken for what."""
    sheets = [open_table(file) for file in (tables_in(path) if path.is_dir() else [path])]
    _check_same_columns(sheets)
    numeric = [name for name in sheets[0].names if _is_numeric(name, sheets)]
    columns, guessed = choose(sheets[0].names, numeric, options, str(path))
    stored = _stored(sheets, path)
    name, source = (path.name, "folder of tables") if path.is_dir() else (stem(path), "table")
    meta = stored or Meta(name=name, source=f"{source} {path.name}")
    limit = memory_limit(options.max_memory)
    size = _expected_bytes(sheets, columns, limit)
    log = Log(meta, iter(()), where=str(path), scaled=stored is not None, size=size, notes=list(meta.notes))
    if stored is None:
        how = "Columns as guessed from their names" if guessed else "Columns"
        log.notes.append(f"{how}: {columns.words()}.")
        spoken = (sheet.dialect.words(delimiter(sheet.path)) for sheet in sheets if sheet.dialect)
        log.notes += dict.fromkeys(words for words in spoken if words)
        if columns.terminated is None:
            log.notes.append("No column says where an episode ended for good: every end is taken for a cut-off.")
        if not (columns.episode or columns.flags):
            log.notes.append(
                f"No column tells the episodes apart: {'each file is' if path.is_dir() else 'all rows are'} taken "
                "for one."
            )
    log.steps = with_ends(
        (block for sheet in sheets for block in _rows(sheet, columns, limit, apart=path.is_dir())),
        log.notes,
        done=columns.terminated if columns.done_is_over else None,
        episode=columns.episode,
    )
    return log


def _expected_bytes(sheets: Sequence[TableFile], columns: Columns, limit: Limit) -> int | None:
    """What the transitions will take, by what Parquet files claim; None for texts, which claim nothing."""
    total = 0
    for sheet in sheets:
        if sheet.size is None:
            return None
        widths, pieces = sheet.size.widths, sheet.size.pieces
        wanted = dict.fromkeys([*columns.numbers, *columns.flags, *([columns.episode] if columns.episode else [])])
        largest = max(wanted, key=lambda name: pieces[name])
        limit.check_piece(str(sheet.path), f"a group of rows of '{largest}'", pieces[largest])
        sizes = (sum(widths[name] for name in names) for names in (columns.obs, columns.action))
        total += schema_bytes(sheet.size.rows, *sizes)
    return total


def tables_in(folder: Path) -> list[Path]:
    """The tables in a folder, in the order in which a person would count them: run_2 before run_10."""
    found = [
        file
        for file in folder.iterdir()
        if file.name.lower().endswith(SUFFIXES) and not file.name.startswith(".") and file.is_file()
    ]
    return sorted(found, key=lambda file: ([_counted(part) for part in re.split(r"(\d+)", file.name)], file.name))


def _counted(part: str) -> tuple[int, str]:
    return (int(part), "") if part.isdecimal() else (-1, part.lower())


def _check_same_columns(sheets: Sequence[TableFile]) -> None:
    first = sheets[0]
    for sheet in sheets[1:]:
        lacking = [name for name in first.names if name not in sheet.names]
        more = [name for name in sheet.names if name not in first.names]
        if lacking or more:
            what = f"lacks column '{lacking[0]}'" if lacking else f"has a column '{more[0]}' more"
            raise MildlyError(
                f"{sheet.path}: {what}, unlike {first.path.name}. All tables of a folder need the same columns."
            )


def _is_numeric(name: str, sheets: Sequence[TableFile]) -> bool:
    """Numbers wherever there is anything."""
    return any(name in sheet.numeric for sheet in sheets) and all(
        name in sheet.numeric or name in sheet.empty for sheet in sheets
    )


def _stored(sheets: Sequence[TableFile], path: Path) -> Meta | None:
    """The description that our own files carry; files of one folder must agree in what their actions mean."""
    found = [parse_meta(sheet.description, sheet.path) if sheet.description else None for sheet in sheets]
    if len(found) == 1 or (found[0] is None and not any(found)):
        return found[0]
    spaces = {meta.action_space if meta else "none" for meta in found}
    if len(spaces) > 1 or found[0] is None:
        raise MildlyError(f"{path}: its tables differ in the bounds of their actions. Convert them one by one.")
    return dataclasses.replace(found[0], name=path.name, notes=())


def _rows(sheet: TableFile, columns: Columns, limit: Limit, *, apart: bool) -> Iterator[tuple[Steps, Array | None]]:
    """Blocks with where new episodes begin, if anything but flags tells it. `apart`: they do with the file."""
    order = _Order(sheet.path, columns, limit)
    widths: dict[str, int] = {}
    numbers = [*columns.numbers, *([columns.step] if columns.step else [])]
    for batch in sheet.batches(numbers, columns.flags, [columns.episode] if columns.episode else []):
        if batch.num_rows == 0:
            continue
        first = order.count == 0
        steps = Steps(
            _matrix(batch, columns.obs, sheet.path, widths),
            _matrix(batch, columns.action, sheet.path, widths),
            _matrix(batch, (columns.reward,), sheet.path, widths)[:, 0],
            _flag(batch, columns.terminated, sheet.path),
            _flag(batch, columns.truncated, sheet.path),
            _matrix(batch, columns.next_obs, sheet.path, widths) if columns.next_obs else None,
        )
        starts = order.starts(batch, steps)
        if columns.episode is None and not apart:
            yield steps, None
            continue
        starts[0] |= first
        yield steps, starts


class _Order:
    """Looks whether the rows are in order: each episode in one piece, and its steps increasing."""

    def __init__(self, path: Path, columns: Columns, limit: Limit) -> None:
        self.path, self.columns, self.limit = path, columns, limit
        self.count = 0  # rows seen
        self.seen: set[Any] = set()  # episodes
        self.last: Any = None  # the last row's episode
        self.ended = False  # whether the last row had a flag
        self.step = np.nan  # the last row's
        self.episodes = 0  # ended by flags

    def starts(self, batch: Any, steps: Steps) -> Array:
        """Where the episode's number is another one than in the row before."""
        starts = np.zeros(batch.num_rows, dtype=bool)
        ids = _column(batch, self.columns.episode) if self.columns.episode else None
        if ids is not None:
            if ids.null_count:
                raise MildlyError(f"{self.path}: the episode column '{self.columns.episode}' has empty cells.")
            starts = _changes(ids, self.last)
            self._check_contiguous(ids, starts)
            self.last = ids[len(ids) - 1].as_py()
        if self.columns.step is not None:
            self._check_step(batch, steps, starts, ids)
        self.count += batch.num_rows
        return starts

    def _check_contiguous(self, ids: Any, starts: Array) -> None:
        """An episode that comes back later means that the rows are not in order."""
        firsts = np.flatnonzero(starts).tolist() if self.seen else [0, *np.flatnonzero(starts).tolist()]
        for row in firsts:
            episode = ids[row].as_py()
            if episode in self.seen:
                raise MildlyError(
                    f"{self.path}: episode {_name(episode)} (column '{self.columns.episode}') goes on in row "
                    f"{self.count + row} after another one began. Sort the rows by episode and step first."
                )
            self.seen.add(episode)
        self.limit.check_piece(str(self.path), f"the list of its {len(self.seen):,} episodes", _NAME * len(self.seen))

    def _check_step(self, batch: Any, steps: Steps, starts: Array, ids: Any) -> None:
        column = self.columns.step
        assert column is not None
        clock = _matrix(batch, (column,), self.path, {}, np.float64)[:, 0]
        flags = steps.terminated | steps.truncated
        before = np.concatenate([[self.step], clock[:-1]])
        goes_on = ~(starts | np.concatenate([[self.ended], flags[:-1]]))
        back = np.flatnonzero((clock <= before) & goes_on)
        if len(back):
            row = int(back[0])
            episode = _name(ids[row].as_py()) if ids is not None else self.episodes + int(flags[:row].sum())
            raise MildlyError(
                f"{self.path}: in episode {episode} column '{column}' goes from {before[row]:g} to {clock[row]:g} in "
                f"row {self.count + row}, but must increase within an episode. Sort the rows by episode and step first"
                f"{'.' if ids is not None else ', and name the column that tells the episodes apart with --episode.'}"
            )
        self.step, self.ended = clock[-1], bool(flags[-1])
        self.episodes += int(flags.sum())


def _name(episode: Any) -> str:
    return episode.decode(errors="replace") if isinstance(episode, bytes) else str(episode)


def _column(batch: Any, name: str) -> Any:
    return batch.column(batch.schema.get_field_index(name))


def _changes(ids: Any, last: Any) -> Array:
    """Where a value differs from that of the row before; nothing comes before the first row of all."""
    import pyarrow.compute as compute

    changes = np.empty(len(ids), dtype=bool)
    changes[0] = last is not None and ids[0].as_py() != last
    changes[1:] = compute.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return changes


def _matrix(
    batch: Any, names: tuple[str, ...], path: Path, widths: dict[str, int], dtype: type[np.floating[Any]] = np.float32
) -> Array:
    """Columns side by side; a column of lists is as many columns as the lists are long."""
    import pyarrow as arrow

    parts = []
    for name in names:
        column = _column(batch, name)
        if any(fits(column.type) for fits in (arrow.types.is_boolean, arrow.types.is_null, arrow.types.is_decimal)):
            column = column.cast(arrow.float64())  # so that empty cells become NaN
        if arrow.types.is_fixed_size_list(column.type):
            widths[name] = column.type.list_size
        values = column.to_numpy(zero_copy_only=False)
        if values.dtype == object:
            values = _stacked(values, name, path, widths)
        if values.dtype.kind not in "biufO":
            raise MildlyError(f"{path}: column '{name}' does not hold numbers, but {values.dtype}.")
        try:
            parts.append(values.astype(dtype).reshape(len(values), -1))
        except (TypeError, ValueError) as error:
            raise MildlyError(f"{path}: column '{name}' does not hold numbers ({error}).") from error
    return np.concatenate(parts, axis=1)


def _stacked(values: Array, name: str, path: Path, widths: dict[str, int]) -> Array:
    """Lists as a matrix; a missing list is a row of NaN. What holds no lists is left as it is.

    `widths` remembers how long a column's lists are, for blocks in which all are missing.
    """
    lists = [value for value in values if isinstance(value, np.ndarray)]
    if not lists and name not in widths:
        if all(value is None for value in values):
            raise MildlyError(f"{path}: column '{name}' has no value in the first {len(values):,} rows.")
        return values
    width = widths.setdefault(name, len(lists[0]) if lists else 0)
    if any(value.shape != (width,) for value in lists):
        raise MildlyError(f"{path}: the lists in column '{name}' differ in length.")
    missing = np.full(width, np.nan)
    return np.stack([missing if value is None else value for value in values])


def _flag(batch: Any, name: str | None, path: Path) -> Array:
    """True and false; an empty cell is false."""
    if name is None:
        return np.zeros(batch.num_rows, dtype=bool)
    column = _column(batch, name)
    values = column.to_numpy(zero_copy_only=False)
    if column.null_count or values.dtype.kind == "f":
        empty = column.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        values = np.where(empty, False, values)
        values = values.astype(bool) if all(isinstance(value, bool) for value in values) else values
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise MildlyError(f"{path}: column '{name}' must hold true and false (or 1 and 0).")
    flags: Array = values.astype(bool)
    return flags


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
