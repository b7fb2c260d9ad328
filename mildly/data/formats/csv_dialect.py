"""How a table of text is written: encoding, comments, the sign between columns, the decimal sign; told by its start."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from mildly.errors import MildlyError

MISSING = ["", "NA", "N/A", "n/a", "#N/A", "NaN", "nan", "NAN", "null", "NULL", "None", "-", "--"]
"""What stands in a cell that has no value."""

_SIGNS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
_ROWS_LOOKED_AT = 200
_NUMBER = re.compile(r"[-+]?[\d.]+(e[-+]?\d+)?", re.IGNORECASE)
_WITH_COMMA = re.compile(r"[-+]?\d*,\d+(e[-+]?\d+)?", re.IGNORECASE)
_WITH_POINT = re.compile(r"[-+]?\d*\.\d+(e[-+]?\d+)?", re.IGNORECASE)


@dataclass(frozen=True)
class Dialect:
    """How to read a table of text."""

    delimiter: str
    decimal: str = "."
    encoding: str = "utf8"
    skip: int = 0
    """Lines before the header, or before the first row if the header is given here."""
    header: tuple[str, ...] | None = None
    """The columns' names, where they stand in a comment."""

    def words(self, usual: str) -> str | None:
        """A sentence on what is unusual about it; `usual` is the delimiter that the file's ending promises."""
        parts = [{"utf-16": "UTF-16", "latin-1": "Latin-1 (it is no UTF-8)"}.get(self.encoding)]
        parts.append(f"{_SIGNS[self.delimiter]} between the columns" if self.delimiter != usual else None)
        parts.append("decimal commas" if self.decimal == "," else None)
        parts.append("the columns' names in a comment" if self.header else None)
        parts.append(f"{self.skip} line(s) of comments skipped" if self.skip and not self.header else None)
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
    decimal = "," if delimiter != "," and _has_decimal_commas(rows[1:]) else "."
    named = _names_in(comments, delimiter, rows[0])
    if whole and len(rows) < 2 and named is None:
        raise MildlyError(f"{where}: has no rows.")
    return Dialect(delimiter, decimal, encoding, start if comments else 0, named)


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
    """The sign that makes the most rows as wide as the header, or else the header widest; and the rows."""
    best = usual, _cells(lines, usual)
    score = (0, 1, False)
    for sign in _SIGNS:
        rows = _cells(lines, sign)
        width = len(rows[0])
        found = sum(len(row) == width for row in rows[1:]), width, sign == usual
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


def _has_decimal_commas(rows: Sequence[Sequence[str]]) -> bool:
    cells = [cell.strip() for row in rows for cell in row]
    return sum(bool(_WITH_COMMA.fullmatch(cell)) for cell in cells) > sum(
        bool(_WITH_POINT.fullmatch(cell)) for cell in cells
    )


def _names_in(comments: Sequence[str], delimiter: str, first: Sequence[str]) -> tuple[str, ...] | None:
    """The header, if it is the last comment: as wide as the first line below it, which holds numbers."""
    if not comments or not is_numbers(first):
        return None
    names = [name.strip() for name in _cells([comments[-1].lstrip("# ")], delimiter)[0]]
    return tuple(names) if len(names) == len(first) > 1 and not is_numbers(names) else None


def is_numbers(cells: Sequence[str]) -> bool:
    """Whether a line holds numbers and nothing else, so that it cannot be a header."""
    return bool(cells) and all(not cell.strip() or _NUMBER.fullmatch(cell.strip()) for cell in cells)
