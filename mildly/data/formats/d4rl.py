"""D4RL's HDF5 files, in all the layouts that exist (v0, v1, v2, Adroit, maze2d).

The rows follow D4RL's Q-learning view: a row needs a next observation. Where a file stores `next_observations`, every
row has one and is kept (D4RL's own function drops time-outs even then). Where it does not, the next observation of row
i is row i + 1, and rows without one (time limits and the file's last row) are dropped. A time-out never ends the value:
only `terminals` do.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import h5py
import numpy as np

from mildly.data.dataset import Array, Dataset, Meta
from mildly.data.tasks import task_of
from mildly.errors import MildlyError

_REQUIRED = ("observations", "actions", "rewards", "terminals")
_OPTIONAL = ("next_observations", "timeouts")


def read(path: str | os.PathLike[str]) -> Dataset:
    """Read one HDF5 file. Its name tells the task, and with it environment and reference returns."""
    path = Path(path)
    raw = _read_arrays(path)
    name = dataset_name(path)
    task = task_of(name)
    terminated, timeouts = _episode_ends(raw, task.horizon if task else None)
    if task and not task.terminates:
        terminated[:] = False  # maze2d: `terminals` mark way-points, the episode goes on
    meta = Meta(
        name=name,
        env_id=task.env_id if task else None,
        reference_min=task.reference_min if task else None,
        reference_max=task.reference_max if task else None,
        source=f"D4RL file {path.name}",
    )
    try:
        if "next_observations" in raw:
            return Dataset.from_arrays(
                raw["observations"],
                raw["actions"],
                raw["rewards"],
                raw["next_observations"],
                terminated,
                timeouts & ~terminated,
                meta,
            )
        return _shifted(raw, terminated, timeouts, meta)
    except MildlyError as error:
        raise MildlyError(f"{path}: {str(error).removeprefix(name + ': ')}") from error


def dataset_name(path: Path) -> str:
    """`hopper_medium-v2.hdf5` is `hopper-medium-v2`; without a version it is v0, where medium-replay was 'mixed'."""
    name = path.stem.replace("_", "-")
    if re.search(r"-v\d+", name):
        return name
    return f"{name.replace('-mixed', '-medium-replay')}-v0"


def _read_arrays(path: Path) -> dict[str, Array]:
    if not path.is_file():
        raise MildlyError(f"{path}: no such file.")
    try:
        with h5py.File(path, "r") as file:
            missing = [key for key in _REQUIRED if not isinstance(file.get(key), h5py.Dataset)]
            if missing:
                raise MildlyError(
                    f"{path}: lacks the key(s) {', '.join(missing)}; found {', '.join(sorted(file)) or 'nothing'}. "
                    f"A D4RL file has {', '.join(_REQUIRED)}."
                )
            arrays = {key: np.asarray(file[key]) for key in (*_REQUIRED, *_OPTIONAL) if key in file}
    except MildlyError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise MildlyError(f"{path}: not an HDF5 file, or damaged or cut short ({error}). Copy it again.") from error
    rows = len(arrays["observations"]) if arrays["observations"].ndim else 0
    for key, array in arrays.items():
        if array.dtype.kind not in "biuf":
            raise MildlyError(f"{path}: '{key}' holds {array.dtype}, expected numbers.")
        if array.ndim == 2 and array.shape[1] == 1 and key in ("rewards", "terminals", "timeouts"):
            array = arrays[key] = array[:, 0]
        expected = 2 if key in ("observations", "actions", "next_observations") else 1
        if array.ndim != expected or len(array) != rows:
            raise MildlyError(
                f"{path}: '{key}' has shape {array.shape}, expected {expected} dimension(s) and {rows} rows "
                "as in 'observations'."
            )
        if key in ("terminals", "timeouts") and not np.isfinite(array).all():
            raise MildlyError(f"{path}: '{key}' has NaN or infinite values, expected true or false.")
    if rows == 0:
        raise MildlyError(f"{path}: 'observations' has no rows.")
    return arrays


def _episode_ends(raw: dict[str, Array], horizon: int | None) -> tuple[Array, Array]:
    """(terminated, timeouts). Without stored time-outs they are where an episode reaches the task's horizon."""
    terminated = raw["terminals"].astype(bool)
    if "timeouts" in raw:
        return terminated, raw["timeouts"].astype(bool)
    timeouts = np.zeros_like(terminated)
    if horizon is not None:
        length = 0
        for row in range(len(terminated)):
            length += 1
            timeouts[row] = length == horizon
            if terminated[row] or timeouts[row]:
                length = 0
    return terminated, timeouts


def _shifted(raw: dict[str, Array], terminated: Array, timeouts: Array, meta: Meta) -> Dataset:
    """Next observations from the following row; what has none is dropped, and the row before it ends the episode."""
    keep = ~timeouts
    keep[-1] = False
    if not keep.any():
        raise MildlyError(f"{meta.name}: no row has a next observation.")
    truncated = np.zeros_like(timeouts)
    truncated[:-1] = ~keep[1:] & keep[:-1] & ~terminated[:-1]
    following = np.flatnonzero(keep) + 1
    return Dataset.from_arrays(
        raw["observations"][keep],
        raw["actions"][keep],
        raw["rewards"][keep],
        raw["observations"][following],
        terminated[keep],
        truncated[keep],
        meta,
    )
