"""One file of a table, CSV or Parquet, opened with pyarrow: its columns, their types, and its rows in blocks."""

from __future__ import annotations

import re
import sys
from bisect import bisect_right
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from types import ModuleType
from typing import Any

from mildly.data.dataset import Array
from mildly.data.formats import cells
from mildly.data.formats.arrays import META, damaged, shortened
from mildly.data.formats.csv_dialect import MISSING, Dialect, detect
from mildly.data.formats.lines import line_runs
from mildly.data.formats.parquet_pages import Page, chunks
from mildly.errors import MildlyError

SUFFIXES = (".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".pq")

_CSV_BLOCK = 1 << 20  # bytes; pyarrow reads up to 32 of them ahead
_PARQUET_BLOCK = 1 << 16  # rows
_PARQUET_NUMBERS = 1 << 23  # held at a time
_MOST_LABEL = 1 << 10  # letters of an episode's name
_HEAD = 1 << 20  # bytes that tell how a text is written
_TRUE = ["1", "1.0", "true", "True", "TRUE", "yes", "Yes", "t", "T"]
_FALSE = ["0", "0.0", "false", "False", "FALSE", "no", "No", "f", "F"]
_DATES = ("%d.%m.%Y %H:%M:%S", "%d.%m.%Y %H:%M", "%Y/%m/%d %H:%M:%S", "%Y/%m/%d %H:%M")  # and ISO 8601
_LINE = r"(?:Row #(?P<line>\d+): )?"
_CELL = re.compile(
    rf"column #(?P<column>\d+): {_LINE}CSV conversion error to [^:]+: invalid value '(?P<value>.*)'", re.DOTALL
)
_PARSE = re.compile(rf"CSV parse error: {_LINE}(?P<reason>.*)", re.DOTALL)


@dataclass(frozen=True)
class ParquetSize:
    """What a file claims to unpack to."""

    rows: int
    widths: dict[str, int]
    """How many numbers a row of each column has, rounded up."""
    pieces: dict[str, int]
    """The most bytes of each column that must be unpacked at once."""
    texts: frozenset[str]


@dataclass(frozen=True)
class TableFile:
    """What is known of a file before its rows are read."""

    path: Path
    names: tuple[str, ...]
    numeric: frozenset[str]
    """Columns of numbers, of true and false, or of lists of numbers."""
    empty: frozenset[str]
    """Columns without any value (in a text's first block)."""
    boolean: frozenset[str]
    whole: frozenset[str]
    """Columns of integers, or of true and false, or of lists of them (in a text's first block)."""
    times: dict[str, Any]
    """Columns of dates and times, with the types to read them as."""
    dialect: Dialect | None
    """Of a text; None for Parquet."""
    description: str | None
    """The one that our own files carry."""
    size: ParquetSize | None = None
    """Of Parquet."""

    @property
    def lists(self) -> frozenset[str]:
        """Columns of a text whose cells are lists of numbers."""
        found = self.dialect.lists if self.dialect else ()
        return frozenset(self.names[i] for i in found if i < len(self.names))

    @property
    def units(self) -> dict[str, str]:
        """What a row below a text's header says of its columns."""
        given = self.dialect.units if self.dialect else ()
        return {name: unit for name, unit in zip(self.names, given, strict=False) if unit not in MISSING}

    def batches(
        self,
        numbers: Sequence[str],
        flags: Sequence[str],
        labels: Sequence[str],
        time: str | None = None,
        mixed: Callable[[str, Array], None] = lambda name, rows: None,
    ) -> Iterator[Any]:
        """Record batches of some columns; labels may be anything that can be compared, the time also dates.

        `mixed` is called with the column and the rows of cells that have the other decimal sign than their file.
        """
        times = [time] if time is not None else []
        wanted = list(dict.fromkeys([*numbers, *flags, *labels, *times]))
        with opened(self.path) as arrow:
            if self.dialect is None:
                yield from self._parquet_batches(arrow, wanted, labels)
                return
            kinds = {name: self.times.get(name, arrow.float64()) for name in times}
            kinds |= {name: arrow.bool_() if name in self.boolean else arrow.float64() for name in numbers}
            kinds |= dict.fromkeys(self.lists & {*numbers}, arrow.string())
            kinds |= dict.fromkeys(flags, arrow.bool_()) | dict.fromkeys(labels, arrow.binary())  # in any encoding
            yield from self._text_batches(arrow, self.dialect, kinds, mixed)

    def _text_batches(
        self, arrow: ModuleType, dialect: Dialect, kinds: dict[str, Any], mixed: Callable[[str, Array], None]
    ) -> Iterator[Any]:
        """Batches of a text. Where a column turns out to mix decimal signs, it is read again from there, as text."""
        wanted, given = dict(kinds), 0  # rows that were handed over
        while True:
            row = 0
            try:
                with _text(arrow, self.path, dialect, kinds) as reader:
                    for batch in reader:
                        new = batch.slice(max(given - row, 0))
                        row += batch.num_rows
                        if not new.num_rows and batch.num_rows:
                            continue
                        for name in [name for name in wanted if kinds[name] != wanted[name]]:
                            new = self._with_numbers(new, name, given, mixed)
                        given += new.num_rows
                        yield self._with_lists(new, kinds)
                return
            except arrow.ArrowInvalid as error:
                found = _CELL.search(str(error))
                if found is None:
                    raise
                name = self.names[int(found["column"])]
                if kinds[name] == arrow.float64() and cells.has_other_sign(found["value"], dialect.decimal):
                    kinds[name] = arrow.string()
                    continue
                line = f" in line {found['line']}" if found["line"] else ""
                known = {arrow.float64(): "a number", arrow.bool_(): "true or false (or 1 or 0)"}
                kind = known.get(kinds[name], "a date and time")
                raise MildlyError(
                    f"{self.path}: column '{name}' holds '{found['value'][:50]}'{line}, expected {kind}."
                ) from error

    def _with_numbers(self, batch: Any, name: str, start: int, mixed: Callable[[str, Array], None]) -> Any:
        """A batch with a column of text as numbers, whatever their decimal sign."""
        assert self.dialect is not None
        i = batch.schema.get_field_index(name)
        values, other, wrong = cells.numbers(batch.column(i), self.dialect.decimal)
        if wrong is not None:
            line = self.line(start + wrong)
            text = batch.column(i)[wrong].as_py()[:50]
            raise MildlyError(f"{self.path}: column '{name}' holds '{text}' in line {line}, expected a number.")
        if len(other):
            mixed(name, start + other)
        return batch.set_column(i, name, values)

    def _with_lists(self, batch: Any, kinds: dict[str, Any]) -> Any:
        for name in self.lists & kinds.keys():
            i = batch.schema.get_field_index(name)
            batch = batch.set_column(i, name, cells.lists(batch.column(i), name, self.path))
        return batch

    def line(self, row: int) -> int | None:
        """The line in which a row, counted from 0, begins in a text; rows of units have numbers below 0."""
        stretch = bisect_right(self._lines, (row, sys.maxsize)) - 1
        return None if stretch < 0 else self._lines[stretch][1] + row - self._lines[stretch][0]

    @cached_property
    def _lines(self) -> list[tuple[int, int]]:
        """Rows and their lines, where a row does not begin in the line after the row before."""
        return [] if self.dialect is None else line_runs(self.path, self.dialect, packed=bool(compression(self.path)))

    def _parquet_batches(self, arrow: ModuleType, wanted: list[str], labels: Sequence[str]) -> Iterator[Any]:
        """Labels are read as numbers of a dictionary first: a long text that all rows share is small only there."""
        assert self.size is not None
        width = sum(self.size.widths[name] for name in wanted)
        rows = max(1, min(_PARQUET_BLOCK, _PARQUET_NUMBERS // max(width, 1)))
        if width > _PARQUET_NUMBERS:
            raise MildlyError(f"{self.path}: a row has {width:,} numbers, which is no log.")
        with arrow.parquet.ParquetFile(
            self.path, read_dictionary=[name for name in labels if name in self.size.texts]
        ) as file:
            for batch in file.iter_batches(batch_size=rows, columns=wanted):
                for name in labels:
                    i = batch.schema.get_field_index(name)
                    column = batch.column(i)
                    if arrow.types.is_nested(column.type):
                        raise MildlyError(f"{self.path}: column '{name}' tells no episodes: it holds {column.type}.")
                    if arrow.types.is_dictionary(column.type) and _is_text(arrow, column.type.value_type):
                        batch = batch.set_column(i, name, self._decoded(arrow, column, name))
                yield batch

    def _decoded(self, arrow: ModuleType, column: Any, name: str) -> Any:
        longest = arrow.compute.max(arrow.compute.binary_length(column.dictionary)).as_py() or 0
        if longest > _MOST_LABEL:
            raise MildlyError(
                f"{self.path}: column '{name}' holds a text of {longest:,} letters, which is no episode's name."
            )
        return column.dictionary_decode()


def _parquet_size(arrow: ModuleType, path: Path, file: Any) -> ParquetSize:
    """By what the file and its pages say: nothing is unpacked."""
    metadata, schema = file.metadata, file.schema_arrow
    rows = metadata.num_rows
    kinds = {field.name: field.type for field in schema}
    values: dict[str, int] = dict.fromkeys(schema.names, 0)
    pieces: dict[str, int] = dict.fromkeys(schema.names, 0)
    for column, pages in chunks(path, metadata):
        for name in _columns_of(column.path_in_schema, values):
            values[name] += max(column.num_values, sum(page.values for page in pages))
            pieces[name] = max(pieces[name], _at_once(pages, lists=_is_list(arrow, kinds[name])))
    widths = {name: -(-count // max(rows, 1)) for name, count in values.items()}
    for field in schema:
        if arrow.types.is_fixed_size_list(field.type):  # of which a missing one takes as much as any other
            widths[field.name] = max(widths[field.name], field.type.list_size)
    texts = frozenset(field.name for field in schema if _is_text(arrow, field.type))
    return ParquetSize(rows, widths, pieces, texts)


def _columns_of(leaf: str, names: Container[str]) -> list[str]:
    """The columns that a path such as `observation.state.list.element` may belong to; their names may have dots."""
    return [leaf] if leaf in names else [name for name in accumulate(leaf.split("."), "{}.{}".format) if name in names]


def unpacked_bytes(path: Path) -> int:
    """What the whole of a Parquet file takes in memory, at most."""
    with opened(path) as arrow, arrow.parquet.ParquetFile(path) as file:
        return sum(page.as_lists for _, pages in chunks(path, file.metadata) for page in pages)


def _at_once(pages: Sequence[Page], *, lists: bool) -> int:
    """Bytes that a row of a column may need: the dictionary and a page, or all of them, if its list is that long."""
    if lists:
        return sum(page.as_lists for page in pages)
    largest = max((page.bytes for page in pages if not page.dictionary), default=0)
    return largest + sum(page.bytes for page in pages if page.dictionary)


def _is_text(arrow: ModuleType, kind: Any) -> bool:
    types = arrow.types
    return any(fits(kind) for fits in (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary))


def open_table(path: Path) -> TableFile:
    """Look at a file."""
    with opened(path) as arrow:
        dialect = None if is_parquet(path) else _dialect(arrow, path)
        size = None
        if dialect is None:
            with arrow.parquet.ParquetFile(path) as file:
                schema, size = file.schema_arrow, _parquet_size(arrow, path, file)
        else:
            with _text(arrow, path, dialect) as reader:
                schema = reader.schema
        described = (schema.metadata or {}).get(META.encode())
        told = (*dialect.lists, *dialect.numbers) if dialect else ()
        listed = {schema.names[i] for i in told if i < len(schema.names)}
        return TableFile(
            path,
            tuple(schema.names),
            frozenset(field.name for field in schema if _is_number(arrow, field.type)) | listed,
            frozenset(field.name for field in schema if arrow.types.is_null(field.type)),
            frozenset(field.name for field in schema if arrow.types.is_boolean(field.type)),
            frozenset(field.name for field in schema if _is_whole(arrow, field.type)),
            {field.name: kind for field in schema if (kind := _time_type(arrow, field.type)) is not None},
            dialect,
            described.decode(errors="replace") if described else None,
            size,
        )


def package(path: Path) -> Any:
    """pyarrow."""
    try:
        import pyarrow as arrow
        import pyarrow.compute
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise MildlyError(f"{path}: tables need pyarrow: pip install 'mildly[tables]'.") from error
    return arrow


@contextmanager
def opened(path: Path) -> Iterator[ModuleType]:
    """The pyarrow package; what it finds wrong with a file is told in the file's name."""
    arrow = package(path)
    try:
        yield arrow
    except FileNotFoundError as error:
        raise MildlyError(f"{path}: no such file.") from error
    except (arrow.ArrowInvalid, UnicodeDecodeError) as error:
        if is_parquet(path):
            raise damaged(path, error) from error
        raise _unreadable(path, error) from error
    except (arrow.ArrowException, OSError, ValueError, MemoryError) as error:
        raise damaged(path, error) from error


def _unreadable(path: Path, error: BaseException) -> MildlyError:
    found = _PARSE.search(str(error))
    reason = shortened(found["reason"] if found else str(error))
    line = f"line {found['line']}: " if found and found["line"] else ""
    return MildlyError(f"{path}: cannot be read as a table ({line}{reason}).")


def _dialect(arrow: ModuleType, path: Path) -> Dialect:
    with arrow.input_stream(path, compression=compression(path)) as file:
        head = file.read(_HEAD)
    return detect(head, whole=len(head) < _HEAD, usual=delimiter(path), where=str(path))


@contextmanager
def _text(arrow: ModuleType, path: Path, dialect: Dialect, kinds: dict[str, Any] | None = None) -> Iterator[Any]:
    """A reader of a text's record batches: the columns in `kinds`, or all of them with types as they seem to be."""
    reading = arrow.csv.ReadOptions(
        block_size=_CSV_BLOCK,
        encoding=dialect.encoding,
        skip_rows=dialect.skip,
        column_names=dialect.header,
        skip_rows_after_names=dialect.text_rows,
        use_threads=False,  # hardly slower, and it knows the line of an error
    )
    parsing = arrow.csv.ParseOptions(delimiter=dialect.delimiter, newlines_in_values=True)
    conversion = arrow.csv.ConvertOptions(
        decimal_point=dialect.decimal,
        null_values=MISSING,
        strings_can_be_null=True,
        timestamp_parsers=[arrow.csv.ISO8601, *_DATES],
    )
    if kinds is not None:
        conversion.column_types, conversion.include_columns = kinds, list(kinds)
        conversion.true_values, conversion.false_values = _TRUE, _FALSE
    options = {"read_options": reading, "parse_options": parsing, "convert_options": conversion}
    with (
        arrow.input_stream(path, compression=compression(path)) as file,
        arrow.csv.open_csv(file, **options) as reader,
    ):
        yield reader


def _is_list(arrow: ModuleType, kind: Any) -> bool:
    types = arrow.types
    return bool(types.is_list(kind) or types.is_fixed_size_list(kind) or types.is_large_list(kind))


def _time_type(arrow: ModuleType, kind: Any) -> Any:
    """The type to read a column of dates and times as, fine enough for all of them; None for other columns."""
    types = arrow.types
    if types.is_timestamp(kind) or types.is_date(kind):
        return arrow.timestamp("us", getattr(kind, "tz", None))
    return arrow.time64("us") if types.is_time(kind) else kind if types.is_duration(kind) else None


def _is_number(arrow: ModuleType, kind: Any) -> bool:
    types = arrow.types
    if _is_list(arrow, kind):
        kind = kind.value_type
    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind) or types.is_decimal(kind))


def _is_whole(arrow: ModuleType, kind: Any) -> bool:
    kind = kind.value_type if _is_list(arrow, kind) else kind
    return bool(arrow.types.is_integer(kind) or arrow.types.is_boolean(kind))


def stem(path: Path) -> str:
    """The file's name without its endings."""
    name = path.name[:-3] if path.name.lower().endswith(".gz") else path.name
    return name.rsplit(".", 1)[0]


def _ending(path: Path) -> str:
    """What tells the kind of table: `.csv`, `.tsv`, `.parquet` or `.pq`; .gz and .tmp do not matter."""
    return Path(path.name.lower().removesuffix(".tmp").removesuffix(".gz")).suffix


def is_parquet(path: Path) -> bool:
    """Whether the ending says so."""
    return _ending(path) in (".parquet", ".pq")


def compression(path: Path) -> str | None:
    """As pyarrow calls it."""
    return "gzip" if path.name.lower().removesuffix(".tmp").endswith(".gz") else None


def delimiter(path: Path) -> str:
    """The sign between columns that a text's ending promises."""
    return "\t" if _ending(path) == ".tsv" else ","
