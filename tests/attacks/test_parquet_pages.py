"""Parquet files whose description and pages tell different sizes: the limit on memory holds, whoever lies."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from conftest import Refused
from measuring import LIMIT, measured

from mildly.data.memory import VARIABLE
from mildly.data.registry import load_dataset

arrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

VALUES = 8_000_000
"""Of a column. Each takes four bytes, and three columns of them more than the limit."""
WAYS = [
    ("convert", False),
    *(pytest.param(*way, marks=pytest.mark.slow) for way in (("load", False), ("convert", True))),
]
"""To read a file, which is honest or not."""


def varint(number: int) -> bytes:
    """A number as Thrift writes it."""
    number, written = number << 1, b""
    while number > 127:
        written, number = written + bytes([number & 127 | 128]), number >> 7
    return written + bytes([number])


def described(path: Path, **changes: int) -> None:
    """Let the file's description, not its pages, say other numbers: `n25000000=10` writes 10 for 25,000,000."""
    content = path.read_bytes()
    length = int.from_bytes(content[-8:-4], "little")
    pages, footer = content[: -8 - length], content[-8 - length : -8]
    for name, claimed in changes.items():
        assert varint(int(name[1:])) in footer
        footer = footer.replace(varint(int(name[1:])), varint(claimed))
    path.write_bytes(pages + footer + len(footer).to_bytes(4, "little") + b"PAR1")


def column_sizes(path: Path) -> dict[str, int]:
    """What the description says of columns: every number of bytes, unpacked."""
    group = parquet.ParquetFile(path).metadata.row_group(0)
    return {f"n{group.column(i).total_uncompressed_size}": 1000 for i in range(group.num_columns)}


def one_page(path: Path, **options: object) -> Path:
    """Columns of zeros, each in one page that is packed to almost nothing."""
    zeros = arrow.array(np.zeros(VALUES, np.float32))
    table = arrow.table({"obs": zeros, "action": zeros, "reward": zeros})
    plain = {"use_dictionary": False, "data_page_size": 1 << 30, "max_rows_per_page": VALUES, "write_statistics": False}
    parquet.write_table(table, path, row_group_size=VALUES, **{"compression": "zstd", **plain, **options})
    return path


@pytest.mark.parametrize(("task", "honest"), WAYS)
def test_a_page_that_unpacks_to_more_than_its_file_says_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, honest: bool
) -> None:
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    path = one_page(tmp_path / "log.parquet")
    if not honest:
        described(path, **column_sizes(path), **{f"n{VALUES}": 1000})
        assert parquet.ParquetFile(path).metadata.num_rows == 1000
    megabytes, said = measured(task, path, tmp_path / "set")
    assert said.startswith(f"{path}: ")
    assert "--max-memory" in said
    assert megabytes < LIMIT


def lists(path: Path, values: int) -> Path:
    """A thousand lists, of which the first holds everything."""
    offsets = np.full(1001, values, np.int32)
    offsets[0] = 0
    column = arrow.ListArray.from_arrays(arrow.array(offsets), arrow.array(np.zeros(values, np.float32)))
    zeros = arrow.array(np.zeros(1000, np.float32))
    parquet.write_table(arrow.table({"obs": column, "action": zeros, "reward": zeros}), path)
    assert path.stat().st_size < 1_000_000
    return path


@pytest.mark.parametrize(("task", "honest"), WAYS)
def test_a_list_that_holds_all_of_a_column_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, task: str, honest: bool
) -> None:
    monkeypatch.setenv(VARIABLE, str(LIMIT))
    path = lists(tmp_path / "log.parquet", VALUES)
    if not honest:
        described(path, **{f"n{VALUES + 999}": 1000})  # an empty list counts as one
    megabytes, said = measured(task, path, tmp_path / "set")
    assert said.startswith(f"{path}: ")
    assert "--max-memory" in said
    assert megabytes < LIMIT


@pytest.mark.parametrize("rows", [10**15, pytest.param(10**9, marks=pytest.mark.slow)])
def test_a_description_that_claims_countless_rows_is_refused(tmp_path: Path, rows: int) -> None:
    path = tmp_path / "log.parquet"
    zeros = arrow.array(np.zeros(1357, np.float32))
    parquet.write_table(arrow.table({"obs": zeros, "action": zeros, "reward": zeros}), path)
    load_dataset(path)
    described(path, n1357=rows)
    megabytes, said = measured("load", path)
    assert said.startswith(f"{path}: ")
    assert megabytes < LIMIT


def test_a_page_that_unpacks_to_more_than_itself_says_is_damage(tmp_path: Path) -> None:
    path = one_page(tmp_path / "log.parquet", compression="gzip")
    content = path.read_bytes()
    sizes = re.compile(rb"\x15\x00\x15([\x80-\xff]+[\x00-\x7f])\x15")  # a page, and what it unpacks to
    assert len(sizes.findall(content)) == 3
    claimed = sizes.sub(lambda found: found[0].replace(found[1], varint(2**22)), content)
    path.write_bytes(claimed.replace(varint(VALUES), varint(2**20)))
    assert path.stat().st_size == len(content)
    megabytes, said = measured("load", path)
    assert said.startswith(f"{path}: damaged")
    assert megabytes < LIMIT


@pytest.mark.parametrize(
    "header",
    [
        b"\x15\x00\x1c\x00\x15\x02\x00",  # a structure for a size
        b"\x15\x00\x15\x02\x15\x02\x25\x02\x00",  # a number for what is known of the data
        b"\x15\x00\x15\x02\x15\x01\x00",  # less than nothing
        b"\x15\x00\x15\x02\x15" + b"\xff" * 20,
        b"\x19\xf5" + b"\xff" * 20,  # a list
        b"\x1c" * 50,
        b"\x15\x02" * 200,
    ],
)
def test_a_page_s_header_of_other_types_is_damage(tmp_path: Path, refused: Refused, header: bytes) -> None:
    path = tmp_path / "log.parquet"
    numbers = arrow.array(np.arange(1357, dtype=np.float32))
    parquet.write_table(arrow.table({"obs": numbers, "action": numbers, "reward": numbers}), path, use_dictionary=False)
    content = path.read_bytes()
    assert parquet.ParquetFile(path).metadata.row_group(0).column(0).data_page_offset == 4
    path.write_bytes(content[:4] + header + content[4 + len(header) :])
    refused.dataset(path, "damaged")


@pytest.mark.parametrize("place", ["data_page_offset", "total_compressed_size"])
def test_pages_outside_the_file_are_damage(tmp_path: Path, refused: Refused, place: str) -> None:
    path = tmp_path / "log.parquet"
    numbers = arrow.array(np.arange(1357, dtype=np.float32))
    parquet.write_table(arrow.table({"obs": numbers, "action": numbers, "reward": numbers}), path, use_dictionary=False)
    column = parquet.ParquetFile(path).metadata.row_group(0).column(1)
    described(path, **{f"n{getattr(column, place)}": 10**12})
    refused.dataset(path)
