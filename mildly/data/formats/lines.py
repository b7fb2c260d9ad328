"""Which file and line each row of one or more tables is, rows counted from 0 over all of them."""

from __future__ import annotations

import csv
import gzip
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mildly.data.dataset import Array
from mildly.data.formats.csv_dialect import Dialect
from mildly.data.origin import NAMED, Place, Places, worded

if TYPE_CHECKING:
    from mildly.data.formats.table_file import TableFile


class Lines:
    """Counts the rows of tables that are read one after the other."""

    def __init__(self, sheets: Sequence[TableFile]) -> None:
        self.sheets = sheets
        self.several = len(sheets) > 1
        self.firsts: list[int] = []  # the number of each table's first row
        self.count = 0

    def open(self) -> None:
        """Begin the next table."""
        self.firsts.append(self.count)

    def numbers(self, rows: int) -> Array:
        """The numbers of the rows that come now."""
        self.count += rows
        return np.arange(self.count - rows, self.count)

    def places(self, rows: Sequence[int]) -> list[Place]:
        """Where rows stand."""
        found = []
        for row in rows:
            at = bisect_right(self.firsts, row) - 1
            found.append(self.place(self.sheets[at], int(row) - self.firsts[at]))
        return found

    def place(self, sheet: TableFile, row: int) -> Place:
        """Where a row of one table stands; a line of units has a number below 0."""
        file, line = sheet.path.name if self.several else "", sheet.line(row)
        return Place(file, "row", row) if line is None else Place(file, "line", line)


class Spots:
    """Rows of one kind: how many there are, and the first of them, with something to show of each."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[tuple[int, float]] = []

    def add(self, numbers: Array, sizes: Array | None = None) -> None:
        """Rows that are found now, by their numbers."""
        self.count += len(numbers)
        room = slice(max(NAMED - len(self.first), 0))
        sizes = np.zeros(len(numbers)) if sizes is None else sizes
        self.first += list(zip(numbers[room].tolist(), sizes[room].tolist(), strict=True))

    def words(self, places: Places, shown: Callable[[float], str] | None = None, *, gap: bool = False) -> str:
        """`line 17`, or `lines 17, 30 and 5 more`; with `shown`, what there is to see at each.

        With `gap`, what is meant lies between a row and the one before: `between lines 16 and 17`.
        """
        found = places([row for row, _ in self.first])
        if shown is None:
            return worded(found, self.count)
        before = places([row - 1 for row, _ in self.first]) if gap else found
        parts = [
            (f"{last.file} between {last.kind}s {last.number} and {here.number}".strip() if gap else str(here))
            + f" ({shown(size)})"
            for last, here, (_, size) in zip(before, found, self.first, strict=True)
        ]
        more = self.count - len(self.first)
        return ", ".join(parts) + (f" and {more:,} more" if more else "")


def line_runs(path: Path, dialect: Dialect, *, packed: bool) -> list[tuple[int, int]]:
    """Rows of a text and their lines, where a row does not begin in the line after the row before: it may have several.

    Rows are counted from 0; those of units, and the header, have numbers below 0.
    """
    found: list[tuple[int, int]] = []
    opening: Any = gzip.open if packed else open
    encoding = "utf-8-sig" if dialect.encoding == "utf8" else dialect.encoding
    with opening(path, "rt", encoding=encoding, errors="replace", newline="") as file, suppress(csv.Error):
        for _ in range(dialect.skip):
            next(file)
        reader = csv.reader(file, delimiter=dialect.delimiter)
        row, before, expected = -dialect.text_rows - (dialect.header is None), dialect.skip, -1
        for cells in reader:
            if cells:  # pyarrow, too, passes over empty lines
                if before + 1 != expected:
                    found.append((row, before + 1))
                row, expected = row + 1, before + 2
            before = dialect.skip + reader.line_num
    return found
