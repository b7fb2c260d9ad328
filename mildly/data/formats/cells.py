"""Numbers, flags and times from the columns of a record batch, whatever types they are stored as."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.dataset import Array
from mildly.errors import MildlyError

_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
_OTHER = {".": ",", ",": "."}
_WRITTEN = {sign: rf"-?(?:\d+[{sign}]\d*|[{sign}]\d+)(?:[eE][-+]?\d+)?" for sign in _OTHER}
_WHOLE = r"-?\d+(?:[eE][-+]?\d+)?|-?(?:inf|Inf|INF|infinity|Infinity)"
_THOUSANDS = r"[-+]?[1-9]\d{0,2}(?:[.,]\d{3})+"  # or thousandths, which nobody can tell
_IN_BRACKETS, _BETWEEN = "[]() \t\r\n", r"[,;\s]+"
_PACKED = "RLlib packs its columns unless output_compress_columns is empty: write the table again without."


def column(batch: Any, name: str) -> Any:
    """One column."""
    return batch.column(batch.schema.get_field_index(name))


def changes(ids: Any, last: Any) -> Array:
    """Where a value differs from that of the row before; nothing comes before the first row of all."""
    import pyarrow.compute as compute

    changed = np.empty(len(ids), dtype=bool)
    changed[0] = last is not None and ids[0].as_py() != last
    changed[1:] = compute.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    return changed


def matrix(
    batch: Any, names: tuple[str, ...], path: Path, widths: dict[str, int], dtype: type[np.floating[Any]] = np.float32
) -> Array:
    """Columns side by side; a column of lists is as many columns as the lists are long.

    `widths` remembers how long a column's lists are, for blocks in which all are missing.
    """
    import pyarrow as arrow

    parts = []
    for name in names:
        cells = column(batch, name)
        if any(fits(cells.type) for fits in (arrow.types.is_boolean, arrow.types.is_null, arrow.types.is_decimal)):
            cells = cells.cast(arrow.float64())  # so that empty cells become NaN
        if arrow.types.is_fixed_size_list(cells.type):
            widths[name] = cells.type.list_size
        values = cells.to_numpy(zero_copy_only=False)
        if values.dtype == object:
            values = _stacked(values, name, path, widths)
        if values.dtype.kind not in "biufO":
            raise MildlyError(f"{path}: column '{name}' does not hold numbers, but {values.dtype}.")
        try:
            parts.append(values.astype(dtype).reshape(len(values), -1))
        except (TypeError, ValueError) as error:
            packed = f" {_PACKED}" if name in ("obs", "new_obs") and values.dtype == object else ""
            reason = str(error)[:100]
            raise MildlyError(f"{path}: column '{name}' does not hold numbers ({reason}).{packed}") from error
    return np.concatenate(parts, axis=1)


def _stacked(values: Array, name: str, path: Path, widths: dict[str, int]) -> Array:
    """Lists as a matrix; a missing list is a row of NaN. What holds no lists is left as it is."""
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


def lists(cells: Any, name: str, path: Path) -> Any:
    """Texts such as `[1.0, 2.0]` or `[1. 2.]` as lists of numbers."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    bare = compute.utf8_trim(cells, characters=_IN_BRACKETS)
    try:
        return compute.split_pattern_regex(bare, pattern=_BETWEEN).cast(arrow.list_(arrow.float64()))
    except arrow.ArrowInvalid as error:
        raise MildlyError(
            f"{path}: column '{name}' must hold lists of numbers, such as [1.0, 2.0] ({error})."
        ) from error


def has_other_sign(text: str, decimal: str) -> bool:
    """Whether a text is a number but for its decimal sign, and no number of thousands."""
    return bool(re.fullmatch(_WRITTEN[_OTHER[decimal]], text) and not re.fullmatch(_THOUSANDS, text))


def numbers(cells: Any, decimal: str) -> tuple[Any, Array, int | None]:
    """Texts as numbers, the rows that have the other decimal sign, and the first row that is no number, if any is."""
    import pyarrow as arrow
    import pyarrow.compute as compute

    bare = compute.utf8_trim_whitespace(cells)

    def fits(*patterns: str) -> Any:
        return compute.fill_null(compute.match_substring_regex(bare, f"^(?:{'|'.join(patterns)})$"), False)

    other = compute.and_not(fits(_WRITTEN[_OTHER[decimal]]), fits(_THOUSANDS))
    known = compute.or_(compute.or_(fits(_WRITTEN[decimal], _WHOLE), other), compute.is_null(bare))
    if not compute.all(known).as_py():
        return None, np.empty(0, np.int64), int(compute.index(known, False).as_py())
    values = compute.replace_substring(bare, ",", ".").cast(arrow.float64())
    return values, np.flatnonzero(other.to_numpy(zero_copy_only=False)), None


def flag(batch: Any, name: str | None, path: Path) -> Array:
    """True and false; an empty cell is false."""
    if name is None:
        return np.zeros(batch.num_rows, dtype=bool)
    cells = column(batch, name)
    values = cells.to_numpy(zero_copy_only=False)
    if cells.null_count or values.dtype.kind == "f":
        empty = cells.is_null(nan_is_null=True).to_numpy(zero_copy_only=False)
        values = np.where(empty, False, values)
        values = values.astype(bool) if all(isinstance(value, bool) for value in values) else values
    if values.dtype.kind not in "biuf" or not np.isin(values, (0, 1)).all():
        raise MildlyError(f"{path}: column '{name}' must hold true and false (or 1 and 0).")
    flags: Array = values.astype(bool)
    return flags


def seconds(batch: Any, name: str, path: Path) -> Array:
    """A column of times, float64: dates and times in seconds, numbers as they are; NaN where there is none."""
    import pyarrow as arrow

    cells, types = column(batch, name), arrow.types
    try:
        if types.is_string(cells.type) or types.is_large_string(cells.type) or types.is_date(cells.type):
            cells = cells.cast(arrow.timestamp("us"))
        if not (types.is_temporal(cells.type) or types.is_duration(cells.type)):
            return matrix(batch, (name,), path, {}, np.float64)[:, 0]
        unit = _UNITS[cells.type.unit]
        numbers = cells.cast(arrow.int32() if types.is_time32(cells.type) else arrow.int64())
    except (arrow.ArrowInvalid, arrow.ArrowNotImplementedError) as error:
        reason = str(error)[:100]
        raise MildlyError(f"{path}: column '{name}' cannot be read as times ({reason}).") from error
    values: Array = numbers.cast(arrow.float64(), safe=False).to_numpy(zero_copy_only=False)
    return unit * values
