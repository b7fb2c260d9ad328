"""Parquet files with the columns that a library has written: lists as matrices, in the types they are stored in."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.dataset import Array
from mildly.data.formats import cells
from mildly.data.formats.fields import check_numbers
from mildly.data.formats.table_file import TableFile
from mildly.data.memory import Limit, schema_bytes
from mildly.errors import MildlyError


def matrix(batch: Any, name: str, path: Path) -> Array:
    """A column (n, width): of lists, or of single values. All cells must have a value."""
    import pyarrow as arrow

    column = cells.column(batch, name)
    types = arrow.types
    is_list = any(fits(column.type) for fits in (types.is_list, types.is_large_list, types.is_fixed_size_list))
    values = column.flatten() if is_list else column
    if column.null_count or values.null_count:
        raise MildlyError(f"{path}: column '{name}' has empty cells.")
    array = np.asarray(values.to_numpy(zero_copy_only=False))
    check_numbers(array.dtype, name, path)
    lengths = np.diff(column.offsets) if is_list and not types.is_fixed_size_list(column.type) else np.zeros(0)
    if len(np.unique(lengths)) > 1 or (len(column) and not len(array)):
        raise MildlyError(f"{path}: the lists in column '{name}' differ in length, or are empty.")
    return array.reshape(len(column), -1) if len(column) else array.reshape(0, 1)


def expected_bytes(
    tables: Sequence[TableFile],
    wanted: Sequence[str],
    observations: Sequence[str],
    actions: Sequence[str],
    limit: Limit,
) -> int:
    """What the transitions will take, by what the files claim.

    Raises:
        MildlyError: what must be read at once is more than the limit.
    """
    total = 0
    for table in tables:
        assert table.size is not None
        largest = max(wanted, key=table.size.pieces.__getitem__)
        at_once = sum(table.size.pieces[name] for name in wanted)
        limit.check_piece(str(table.path), f"a row with '{largest}'", at_once)
        widths = [sum(table.size.widths[name] for name in names) for names in (observations, actions)]
        total += schema_bytes(table.size.rows, *widths)
    return total
