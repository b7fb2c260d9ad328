"""How large the pages of a Parquet file are, by their own headers, before any of them is unpacked.

A file's description says how large its columns are, but what is allocated is what each page says of itself. A page
cannot unpack to more than that: pyarrow stops there. Headers are Thrift's compact protocol; only numbers are read.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

_DICTIONARY = 2
_MOST_FIELDS = 64  # of a header, where the format knows 8
_MOST_PAGES = 1_000_000
_VALUE = 12  # bytes: a number, and how often it is repeated and nested


@dataclass(frozen=True)
class Page:
    """What a header says."""

    dictionary: bool
    bytes: int
    """Once unpacked."""
    values: int

    @property
    def as_lists(self) -> int:
        """Bytes that it takes with all its values decoded, and with what tells lists apart."""
        return self.bytes + _VALUE * self.values


def chunks(path: Path, metadata: Any) -> Iterator[tuple[Any, list[Page]]]:
    """Every column of every group of rows, as pyarrow's metadata of the file describe it, and its pages.

    Raises:
        ValueError: there are no sound headers where the description says that pages are.
    """
    left = _MOST_PAGES
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        for group in (metadata.row_group(i) for i in range(metadata.num_row_groups)):
            for column in (group.column(i) for i in range(group.num_columns)):
                pages = list(islice(_pages(content, column), left + 1))
                left -= len(pages)
                if left < 0:
                    raise ValueError(f"it has more than {_MOST_PAGES:,} pages")
                yield column, pages


def _pages(content: mmap, column: Any) -> Iterator[Page]:
    place = column.data_page_offset
    if column.has_dictionary_page and 0 < column.dictionary_page_offset < place:
        place = column.dictionary_page_offset
    end = place + column.total_compressed_size
    if not 0 <= place <= end <= len(content):
        raise ValueError("its description names pages outside the file")
    while place < end:
        header = _Header(content, place)
        fields = header.fields()
        data = fields.get(5) or fields.get(8) or {}  # a data page of the first or the second version
        numbers: list[Any] = [*map(fields.get, (1, 2, 3)), data.get(1, 0) if isinstance(data, dict) else None]
        if not all(type(number) is int and number >= 0 for number in numbers):
            raise ValueError("a page's header is damaged")
        kind, size, packed, values = numbers
        yield Page(kind == _DICTIONARY, size, values)
        place = header.place + packed


class _Header:
    """A Thrift structure of numbers, texts and other such structures."""

    def __init__(self, content: mmap, place: int) -> None:
        self.content, self.place, self.left = content, place, _MOST_FIELDS

    def fields(self, depth: int = 0) -> dict[int, Any]:
        """By number; texts and fractions are passed over."""
        found: dict[int, Any] = {}
        number = 0
        while head := self._byte():
            self.left -= 1
            if self.left < 0 or depth > 3:
                raise ValueError("a page's header is damaged")
            number = number + (head >> 4) if head >> 4 else self._whole()
            found[number] = self._value(head & 15, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if kind in (1, 2):  # true, false
            return kind == 1
        if kind in (4, 5, 6):
            return self._whole()
        if kind == 12:
            return self.fields(depth + 1)
        length = {3: 1, 7: 8}.get(kind)
        if kind == 8:
            length = self._plain()
        if length is None:  # lists and the like, of which a page's header has none
            raise ValueError("a page's header is damaged")
        self.place += length
        return None

    def _whole(self) -> int:
        """A signed number, whose sign is its last bit."""
        number = self._plain()
        return -(number >> 1) - 1 if number & 1 else number >> 1

    def _plain(self) -> int:
        """Seven bits a byte, the lowest first."""
        number, shift = 0, 0
        while True:
            byte = self._byte()
            number |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return number
            if shift > 63:
                raise ValueError("a page's header is damaged")

    def _byte(self) -> int:
        if self.place >= len(self.content):
            raise ValueError("a page's header is cut short")
        self.place += 1
        return self.content[self.place - 1]
