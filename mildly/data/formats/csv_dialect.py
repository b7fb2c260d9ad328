"""How a table of text is written, told by its start: encoding, comments, names, units, signs, lists in cells."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from mildly.errors import MildlyError
from mildly.words import counted

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "None", "-", "--"]
"""What stands in a cell that has no value."""

_SIGNS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_ROWS_LOOKED_AT = 200
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
_WITH_COMMA = re.compile(r"[-+]?\d*,\d+(e[-+]?\d+)?", re.IGNORECASE)
_WITH_POINT = re.compile(r"[-+]?\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)
_AMOUNT = re.compile(r"[-+]?(\d+[.,]?\d*|[.,]\d+)(e[-+]?\d+)?", re.IGNORECASE)
_THOUSANDS = re.compile(r"[-+]?[1-9]\d{0,2}(,\d{3})+")
_LIST = re.compile(r"\[.*\]|\(.*\)", re.DOTALL)
_MOSTLY = 0.9  # of a column's values
_MOST_TEXT_ROWS = 3  # of units and the like below a header


@dataclass(frozen=True)
class Dialect:
    """How to read a table of text."""

    delimiter: str
    decimal: str = "."
    encoding: str = "utf8"
    skip: int = 0
    """Lines before the header, or before the first row if the header is given here."""
    header: tuple[str, ...] | None = None
    """The columns' names, where they stand in a comment, or are but numbers because there are none."""
    named: bool = True
    """Whether the columns have names."""
    text_rows: int = 0
    """Rows of text between the header and the first row, such as one of units."""
    units: tuple[str, ...] = ()
    """What the first of them says of each column."""
    lists: frozenset[int] = frozenset()
    """Columns whose cells are lists of numbers."""
    numbers: frozenset[int] = frozenset()
    """Columns of numbers, by most of the first rows; others are mistakes, or have another decimal sign."""

    def words(self, usual: str) -> str | None:
        """A sentence on what is unusual about it; `usual` is the delimiter that the file's ending promises."""
        parts = [{"utf-16": "UTF-16", "latin-1": "Latin-1 (it is no UTF-8)"}.get(self.encoding)]
        parts.append(f"{_SIGNS[self.delimiter]} between the columns" if self.delimiter != usual else None)
        parts.append("decimal commas" if self.decimal == "," else None)
        in_comment = self.header is not None and self.named
        parts.append("the columns' names in a comment" if in_comment else None)
        parts.append("no names of columns, which are counted from 0" if not self.named else None)
        parts.append(f"{counted(self.skip, 'line')} of comments skipped" if self.skip and not in_comment else None)
        found = [part for part in parts if part]
        return f"Read with: {', '.join(found)}." if found else None


def detect(head: bytes, *, whole: bool, usual: str, where: str) -> Dialect:
    """The dialect of a file.

    Args:
        head: how the file begins.
        whole: whether that is all of it.
        usual: the delimiter that the file's ending promises; it wins where others would do as well.
        where: the file, for messages.
    """
    text, encoding = _decoded(head, whole, where)
    lines = re.split(r"\r\n|\r|\n", text)
    if not whole and len(lines) > 1:
        del lines[-1]  # which may go on
    start = next((i for i, line in enumerate(lines) if line.strip() and not line.startswith("#")), None)
    comments = [line for line in lines[:start] if line.startswith("#")]
    if start is None:
        raise MildlyError(f"{where}: {'holds nothing but comments' if comments else 'is empty'}.")
    delimiter, rows = _delimiter(lines[start:], usual)
    decimal = "," if _has_decimal_commas(rows[1:], within_quotes=delimiter == ",") else "."
    header = _names_in(comments, delimiter, rows[0])
    named = header is not None or not is_numbers(rows[0]) or _counts_columns(rows[0])
    if not named:
        header = tuple(str(i) for i in range(len(rows[0])))
    if whole and len(rows) < 2 and header is None:
        raise MildlyError(f"{where}: has no rows.")
    text_rows = _text_rows(rows) if header is None else 0
    lists = _columns_of(rows[1 + text_rows :], lambda cell: bool(_LIST.fullmatch(cell)))
    return Dialect(
        delimiter,
        decimal,
        encoding,
        start if comments else 0,
        header,
        named,
        text_rows,
        tuple(cell.strip() for cell in rows[1]) if text_rows else (),
        frozenset(lists),
        frozenset(_columns_of(rows[1 + text_rows :], lambda cell: bool(_AMOUNT.fullmatch(cell)), _MOSTLY)),
    )


def _decoded(head: bytes, whole: bool, where: str) -> tuple[str, str]:
    """The text, and the encoding's name as pyarrow wants it."""
    marked = head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    for name, known_as in [("utf-16", "utf-16")] if marked else [("utf-8-sig", "utf8"), ("latin-1", "latin-1")]:
        try:
            return codecs.getincrementaldecoder(name)().decode(head, final=whole), known_as
        except UnicodeDecodeError:
            continue
    raise MildlyError(f"{where}: cannot be read as a table (it begins like UTF-16, but is none).")


def _delimiter(lines: Sequence[str], usual: str) -> tuple[str, list[list[str]]]:
    """The sign that makes the most rows as wide as the first, or else the most numbers, or the first row widest."""
    best = usual, _cells(lines, usual)
    score = (0, 0.0, 1, False)
    for sign in _SIGNS:
        rows = _cells(lines, sign)
        width = len(rows[0])
        cells = [cell.strip() for row in rows for cell in row]
        numbers = sum(map(_is_number, cells)) / max(len(cells), 1)
        found = sum(len(row) == width for row in rows[1:]), numbers, width, sign == usual
        if width > 1 and found > score:
            best, score = (sign, rows), found
    return best


def _cells(lines: Sequence[str], sign: str) -> list[list[str]]:
    """The first rows; quotes are understood."""
    reader = csv.reader((f"{line}\n" for line in lines), delimiter=sign)
    rows: list[list[str]] = []
    with suppress(csv.Error):  # a cell of a size that is no table's
        rows.extend(row for row in islice(reader, _ROWS_LOOKED_AT) if row)
    return rows or [[]]


def _has_decimal_commas(rows: Sequence[Sequence[str]], *, within_quotes: bool) -> bool:
    """Whether more numbers have a comma than a point. In quotes, commas may stand between thousands instead."""
    cells = [cell.strip() for row in rows for cell in row]
    commas = [cell for cell in cells if _WITH_COMMA.fullmatch(cell)]
    if within_quotes and all(_THOUSANDS.fullmatch(cell) for cell in commas):
        return False
    return len(commas) > sum(bool(_WITH_POINT.fullmatch(cell)) for cell in cells)


def _text_rows(rows: Sequence[Sequence[str]]) -> int:
    """How many rows below the header hold words where all that follow hold numbers: units, and what else there is."""
    for count in range(1, min(_MOST_TEXT_ROWS, len(rows) - 2) + 1):
        numbers = _columns_of(rows[1 + count :], _is_number)
        texts = [[row[i].strip() for i in numbers if i < len(row)] for row in rows[1 : 1 + count]]
        if all(any(cell not in MISSING for cell in row) and not any(map(_is_number, row)) for row in texts):
            return count
    return 0


def _columns_of(rows: Sequence[Sequence[str]], fits: Callable[[str], bool], share: float = 1.0) -> list[int]:
    """The columns that have a value somewhere, and whose values are of a kind, all or at least a share of them."""
    found = []
    for i in range(max(map(len, rows), default=0)):
        cells = [row[i].strip() for row in rows if i < len(row)]
        values = [cell for cell in cells if cell not in MISSING]
        if values and sum(map(fits, values)) >= share * len(values):
            found.append(i)
    return found


def _is_number(cell: str) -> bool:
    return bool(_NUMBER.fullmatch(cell) or _WITH_COMMA.fullmatch(cell))


def _names_in(comments: Sequence[str], delimiter: str, first: Sequence[str]) -> tuple[str, ...] | None:
    """The header, if it is the last comment: as wide as the first line below it, which holds numbers."""
    if not comments or not is_numbers(first):
        return None
    names = [name.strip() for name in _cells([comments[-1].lstrip("# ")], delimiter)[0]]
    return tuple(names) if len(names) == len(first) > 1 and not is_numbers(names) else None


def is_numbers(cells: Sequence[str]) -> bool:
    """Whether a line holds numbers and nothing else, so that it names no columns."""
    filled = [cell.strip() for cell in cells if cell.strip()]
    return bool(filled) and all(map(_is_number, filled))


def _counts_columns(cells: Sequence[str]) -> bool:
    """Whether a line but counts the columns from 0, after an index without a name or not: then it is a header."""
    counted = [cell.strip() for cell in (cells[1:] if not cells[0].strip() else cells)]
    return len(counted) > 1 and counted == [str(i) for i in range(len(counted))]
