"""The content of a data set: its columns, and what makes them unfit: types, shapes, numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mildly.errors import MildlyError
from mildly.words import counted

if TYPE_CHECKING:
    from mildly.data.dataset import Dataset, Meta

Array = npt.NDArray[Any]

FIELDS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
DTYPES = {name: np.dtype(np.bool_ if name in ("terminated", "truncated") else np.float32) for name in FIELDS}
ACTION_TOLERANCE = 1e-3
BLOCK = 1 << 18  # rows read at a time by checks, so that they never hold a whole set in memory


def blocks(rows: int) -> Iterator[slice]:
    """Slices that cover the rows, small enough that a set larger than memory can be looked at."""
    for start in range(0, rows, BLOCK):
        yield slice(start, min(start + BLOCK, rows))


def typed(values: Any, name: str, where: str) -> Array:
    """A copy of a column in the schema's type. A flag must be true or false, 1 or 0: any text would count as true."""
    kind = DTYPES[name]
    try:
        if kind != np.bool_:
            return np.array(values, dtype=kind, order="C")
        found = np.array(values)
        if found.dtype != np.bool_ and not np.isin(found, (0, 1)).all():
            raise ValueError("neither true nor false")
        return found.astype(np.bool_)
    except (ValueError, TypeError) as error:
        wanted = "true or false, or 1 and 0" if kind == np.bool_ else "numbers, with as many in each row"
        raise MildlyError(f"{where}: '{name}' must be {wanted} ({error}).") from error


def check_shapes(arrays: Mapping[str, Array], meta: Meta, where: str) -> None:
    """Raise where columns do not fit each other, or the action space."""
    dimensions = {"observations": 2, "actions": 2, "next_observations": 2}
    for name, array in arrays.items():
        if name in dimensions and array.ndim > 3:
            raise MildlyError(
                f"{where}: '{name}' has shape {array.shape}: images are not supported. Encode them as vectors first."
            )
        if array.ndim != dimensions.get(name, 1):
            raise MildlyError(
                f"{where}: '{name}' has shape {array.shape}, expected {counted(dimensions.get(name, 1), 'dimension')}."
            )
    rows = len(arrays["observations"])
    if rows == 0:
        raise MildlyError(f"{where}: holds no transitions.")
    for name, array in arrays.items():
        if len(array) != rows:
            raise MildlyError(f"{where}: '{name}' has {len(array):,} rows, but 'observations' has {rows:,}.")
    if arrays["next_observations"].shape != arrays["observations"].shape:
        shapes = arrays["next_observations"].shape, arrays["observations"].shape
        raise MildlyError(f"{where}: 'next_observations' is {shapes[0]}, but 'observations' is {shapes[1]}.")
    if 0 in (arrays["observations"].shape[1], arrays["actions"].shape[1]):
        raise MildlyError(f"{where}: observations and actions need at least one column each.")
    columns = arrays["actions"].shape[1]
    if meta.action_space is not None and meta.action_space.size != columns:
        raise MildlyError(f"{where}: its action space has {meta.action_space.size} dimensions, 'actions' {columns}.")


def examine(data: Dataset, where: str, *, clip: bool = False) -> str:
    """Raise if the content would spoil a training; else its fingerprint. One pass, since a set may not fit memory.

    With `clip`, actions that rounding has put beyond [-1, 1] are clipped, in place.
    """
    digest = hashlib.sha256()
    for name in FIELDS:
        array = getattr(data, name)
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        for rows in blocks(len(array)):
            block = array[rows]
            _check_finite(data, block, name, rows.start, where)
            if name == "actions":
                _check_bounds(data, block, rows.start, where)
                if clip:
                    np.clip(block, -1.0, 1.0, out=block)
            digest.update(np.ascontiguousarray(block).data)
    if data.gaps is not None:
        digest.update(data.gaps.to_table().data)
    return digest.hexdigest()


def _check_finite(data: Dataset, block: Array, name: str, start: int, where: str) -> None:
    bad = ~np.isfinite(block)
    if bad.any():
        row, *columns = np.argwhere(bad)[0].tolist()
        column = f", {data.column_name(columns[0], name)}" if columns else ""
        raise MildlyError(
            f"{where}: '{name}' has NaN or infinite values, first in {data.place(start + row)}{column}. Repair those "
            "rows, or leave them out with mildly data convert SRC DST --drop-bad-rows; --fill interpolate fills short "
            "gaps. mildly data check tells where they are."
        )


def _check_bounds(data: Dataset, actions: Array, start: int, where: str) -> None:
    outside = np.abs(actions) > 1.0 + ACTION_TOLERANCE
    if outside.any():
        row, column = (int(i) for i in np.argwhere(outside)[0])
        raise MildlyError(
            f"{where}: 'actions' must lie in [-1, 1], but {data.place(start + row)}, "
            f"{data.column_name(column, 'actions')} is {actions[row, column]:.6g}. Rescale the actions with the "
            "environment's bounds first (ActionSpace.to_unit); Meta's action_space remembers them."
        )
