"""Which array of a file is what: as the user says, or by the usual names, of which the first that is there wins.

A name must be met exactly: `action_dist_inputs` is no action.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from mildly.data.dataset import Array
from mildly.data.formats.episodes import DONE
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError
from mildly.words import counted

NAMES = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "new_obs", "next_states", "next_state"),
    "terminated": ("terminated", "terminals", "terminal", "terminations", "terminateds", "is_terminal", *DONE),
    "truncated": ("truncated", "timeouts", "timeout", "truncations", "truncateds", "is_truncated"),
    "episodes": (
        *("episodes", "episode", "episode_ids", "episode_id", "episode_index", "eps_id"),
        *("trajectory_ids", "trajectory_id"),
    ),
    "starts": ("episode_starts", "episode_start", "is_first"),
    "lasts": ("episode_terminals", "is_last"),
}
"""What a field is called elsewhere, the likeliest name first."""

FLAGS = ("terminated", "truncated", "starts", "lasts")
"""Fields that are true or false: ends for good, cut-offs, the first row of an episode, the last one for any reason."""

WIDE = ("observations", "actions", "next_observations")
"""Fields with several numbers a row."""

NEEDED = ("observations", "actions", "rewards")

OPTION = {
    "observations": "obs",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_obs",
    "terminated": "terminated",
    "truncated": "truncated",
    "episodes": "episode",
}
"""The option that names a field's array."""

ROW_BYTES = 1 << 24
"""More than a row of any log takes."""

_NAMED, _NAME = 1000, 200  # arrays, and letters of their names, in a note


class Column(Protocol):
    """An array on disk: its shape and type, and slices of its rows (in order, from the first)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: slice) -> Array: ...


def said(field: str, options: ImportOptions) -> str | None:
    """What the user calls a field, if anything."""
    return getattr(options, OPTION[field]) if field in OPTION else None


def choose(columns: Iterable[str], path: Path, options: ImportOptions) -> dict[str, str]:
    """The name of each field's array."""
    have = set(columns)
    chosen = {}
    for field, usual in NAMES.items():
        named = said(field, options)
        found = next((name for name in ((named,) if named is not None else usual) if name in have), None)
        if found is not None:
            chosen[field] = found
        elif named is not None or field in NEEDED:
            raise lacking(field, have, path, named)
    return chosen


def lacking(field: str, have: Iterable[str], path: Path, named: str | None = None) -> MildlyError:
    """The error for a field without an array."""
    wanted = named or " or ".join(NAMES[field][:3])
    return MildlyError(
        f"{path}: lacks {field} (an array called {wanted}); found {', '.join(sorted(have)) or 'nothing'}. Say which it "
        f"is with mildly data convert SRC DST --{OPTION[field].replace('_', '-')} NAME."
    )


def unused(names: Iterable[str], what: str = "Arrays") -> list[str]:
    """A note that names every array which is not read; none if there is none. No honest file reaches the limits."""
    listed = [name[:_NAME] for name in names]
    more = [f"and {len(listed) - _NAMED:,} more"] if len(listed) > _NAMED else []
    return [f"{what} that are not used: {', '.join([*listed[:_NAMED], *more])}."] if listed else []


def check_rows(columns: Mapping[str, Column], names: Mapping[str, str], path: Path) -> int:
    """The number of rows, once types and shapes are known to be right."""
    for field, name in names.items():
        if not hasattr(columns[name], "dtype"):
            raise MildlyError(f"{path}: '{name}' is a group, expected an array.")
        check_numbers(columns[name].dtype, name, path, labels=field == "episodes")
    shapes = {field: tuple(columns[name].shape or ()) for field, name in names.items()}
    rows = shapes["observations"][0] if shapes["observations"] else 0
    if len(shapes["observations"]) > 3:
        raise MildlyError(
            f"{path}: '{names['observations']}' has shape {shapes['observations']}: images are not supported. "
            "Observations must be vectors, one row per step: encode the images first, or leave them out with --obs."
        )
    if len(shapes["observations"]) == 3:
        episodes, steps, width = shapes["observations"]
        raise MildlyError(
            f"{path}: '{names['observations']}' has shape {shapes['observations']}, as if it were (episodes, steps, "
            f"size), but one row per step is expected, ({episodes * steps}, {width}). Put the episodes one after "
            "another, in all arrays, and mark the last row of each in 'terminals' or 'timeouts', or number them in "
            "'episodes'."
        )
    for field, name in names.items():
        shape, dimensions = shapes[field], 2 if field in WIDE else 1
        column = len(shape) == 3 - dimensions and (dimensions == 2 or shape[1] == 1)  # (n,) for (n, 1), or the reverse
        if not (len(shape) == dimensions or column) or shape[0] != rows:
            raise MildlyError(
                f"{path}: '{name}' has shape {shape}, expected {counted(dimensions, 'dimension')} and {rows:,} rows "
                f"as in '{names['observations']}'."
            )
        if 0 in shape[1:] or math.prod(shape[1:]) * columns[name].dtype.itemsize > ROW_BYTES:
            raise MildlyError(f"{path}: '{name}' has shape {shape}, which is no log.")
    if rows == 0:
        raise MildlyError(f"{path}: '{names['observations']}' has no rows.")
    if shapes.get("next_observations", shapes["observations"]) != shapes["observations"]:
        raise MildlyError(
            f"{path}: '{names['next_observations']}' is {shapes['next_observations']}, but "
            f"'{names['observations']}' is {shapes['observations']}."
        )
    return rows


def check_numbers(kind: np.dtype[Any], name: str, path: Path, *, labels: bool = False) -> None:
    """Raise where an array does not hold numbers; labels of episodes may be texts."""
    if kind.hasobject:
        raise MildlyError(f"{path}: '{name}' holds texts or objects, expected numbers.")
    if kind.kind not in ("biufSU" if labels else "biuf"):
        raise MildlyError(f"{path}: '{name}' holds {kind}, expected numbers.")


def check_width(widths: dict[str, int], field: str, values: Array, where: str) -> None:
    """Raise where a block of a field has another number of columns than those before, which `widths` remembers."""
    width = values.shape[1] if field in WIDE else 1
    if widths.setdefault(field.removeprefix("next_"), width) != width:
        raise MildlyError(f"{where} has {width} columns, unlike elsewhere.")


def clean(values: Array, field: str, where: str) -> Array:
    """One dimension or two as the field needs, and flags as booleans."""
    values = np.asarray(values)
    if field in WIDE:
        return values.reshape(len(values), -1)
    values = values.reshape(len(values))
    if field in FLAGS:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise MildlyError(f"{where} has NaN or infinite values, expected true or false.")
        if not np.isin(values, (0, 1)).all():
            raise MildlyError(f"{where} holds {values[~np.isin(values, (0, 1))][0]}, expected true or false.")
        return values.astype(bool)
    return values


def natural(name: str) -> tuple[list[tuple[int, str]], str]:
    """Sorts names as a person would count: `demo_2` before `demo_10`."""
    parts = re.split(r"(\d+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part.lower()) for part in parts], name
