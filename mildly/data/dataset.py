"""Dataset: logged transitions in the one schema that everything in the project speaks.

A transition is (observation, action, reward, next observation, terminated, truncated). `terminated` ends
the value (the robot fell); `truncated` ends the episode but not the value (the time limit was reached).
Actions are stored in [-1, 1]; `meta` remembers the environment's own bounds, and the policy undoes the scaling.

On disk a data set is a folder of plain `.npy` files beside `dataset.json`. It is opened by memory map, so a
set larger than memory can be trained on. No pickle is ever read.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tempfile
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mildly.errors import MildlyError

Array = npt.NDArray[Any]

FIELDS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")
FORMAT = 1
_DTYPES = {name: np.dtype(np.bool_ if name in ("terminated", "truncated") else np.float32) for name in FIELDS}
_ACTION_TOLERANCE = 1e-3
_BLOCK = 1 << 18  # rows read at a time by checks, so that they never hold a whole set in memory


@dataclass(frozen=True)
class Meta:
    """What is known of a data set besides its transitions.

    Attributes:
        name: what to call it in tables, e.g. `hopper-medium-v2`.
        env_id: the gymnasium environment in which a policy trained on this data can be evaluated.
        action_low: the environment's own lower action bounds, mapped to -1 in `actions`; the policy undoes it. Where
            they are not given, they are taken from the environment, if there is one.
        action_high: likewise the upper bounds, mapped to +1.
        reference_min: the return that scores 0 (a random policy's); without it there is no normalised score.
        reference_max: the return that scores 100 (an expert's).
        source: where the data came from, in words.
        fingerprint: sha256 of the content, filled in by itself; sets with equal fingerprints hold the same transitions.
    """

    name: str
    env_id: str | None = None
    action_low: tuple[float, ...] | None = None
    action_high: tuple[float, ...] | None = None
    reference_min: float | None = None
    reference_max: float | None = None
    source: str = ""
    fingerprint: str = ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Meta:
        """Rebuild from `dataset.json` or `run.json`; unknown keys are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        kept = {key: value for key, value in values.items() if key in known}
        for bound in ("action_low", "action_high"):
            if kept.get(bound) is not None:
                kept[bound] = tuple(float(x) for x in kept[bound])
        return cls(**kept)


@dataclass(frozen=True)
class Dataset:
    """Transitions in the schema above. Build with `from_arrays` or `load`, which check everything."""

    observations: Array
    actions: Array
    rewards: Array
    next_observations: Array
    terminated: Array
    truncated: Array
    meta: Meta

    @classmethod
    def from_arrays(
        cls,
        observations: Array,
        actions: Array,
        rewards: Array,
        next_observations: Array,
        terminated: Array,
        truncated: Array,
        meta: Meta,
    ) -> Dataset:
        """Convert to the schema's types and check the content. Errors name the set, the field and the row.

        Actions must lie in [-1, 1] (rounding beyond it by 0.001 is clipped). The last row always ends an
        episode: where it is not terminal it is marked truncated.
        """
        given = dict(
            zip(
                FIELDS,
                (observations, actions, rewards, next_observations, terminated, truncated),
                strict=True,
            )
        )
        arrays = {name: np.array(value, dtype=_DTYPES[name], order="C") for name, value in given.items()}
        _check_shapes(arrays, meta.name)
        _check_content(arrays, meta.name)
        np.clip(arrays["actions"], -1.0, 1.0, out=arrays["actions"])
        arrays["truncated"][-1] |= not arrays["terminated"][-1]
        meta = dataclasses.replace(meta, fingerprint=_fingerprint(arrays))
        return cls(**arrays, meta=meta)

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Dataset:
        """Open a data set saved by `save`, by memory map. A damaged folder gives a clear error."""
        folder = Path(folder)
        meta = cls.describe(folder)
        arrays = {name: _open(folder / f"{name}.npy", _DTYPES[name]) for name in FIELDS}
        _check_shapes(arrays, str(folder))
        _check_content(arrays, str(folder))
        if not (arrays["terminated"][-1] or arrays["truncated"][-1]):
            raise MildlyError(f"{folder}: 'truncated' must be true in the last row, where no episode goes on.")
        fingerprint = _fingerprint(arrays)
        if meta.fingerprint not in ("", fingerprint):
            raise MildlyError(f"{folder}: its content is not what was saved (the fingerprint differs). Copy it again.")
        return cls(**arrays, meta=dataclasses.replace(meta, fingerprint=fingerprint))

    @staticmethod
    def describe(folder: Path) -> Meta:
        """What `dataset.json` says, without opening the transitions."""
        try:
            values = json.loads((folder / "dataset.json").read_text())
            stored_format = values["format"]
            meta = Meta.from_json(values["meta"])
        except FileNotFoundError as error:
            raise MildlyError(f"{folder}: no dataset.json in this folder, so it is not a data set.") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MildlyError(f"{folder / 'dataset.json'}: damaged or not a data set's ({error}).") from error
        if stored_format != FORMAT:
            raise MildlyError(f"{folder}: format {stored_format}; this version of mildly reads format {FORMAT}.")
        return meta

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the native form. The folder appears whole or not at all."""
        folder = Path(folder)
        if folder.exists():
            raise MildlyError(f"{folder}: exists already. Give another folder, or remove it first.")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as unfinished:
                content = Path(unfinished) / "content"
                content.mkdir()
                for name in FIELDS:
                    np.save(content / f"{name}.npy", getattr(self, name), allow_pickle=False)
                description = {"format": FORMAT, "transitions": len(self), "meta": dataclasses.asdict(self.meta)}
                (content / "dataset.json").write_text(json.dumps(description, indent=2) + "\n")
                content.rename(folder)
        except OSError as error:
            raise MildlyError(f"{folder}: cannot be written ({error}).") from error
        return folder

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def observation_size(self) -> int:
        """How many numbers an observation has."""
        return int(self.observations.shape[1])

    @property
    def action_size(self) -> int:
        """How many numbers an action has."""
        return int(self.actions.shape[1])

    def episodes(self) -> list[slice]:
        """The rows of each episode, in order."""
        ends = np.flatnonzero(self.terminated | self.truncated) + 1
        starts = np.concatenate([[0], ends[:-1]])
        return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]

    def episode_returns(self) -> Array:
        """The sum of rewards of each episode."""
        starts = [episode.start for episode in self.episodes()]
        return np.add.reduceat(self.rewards.astype(np.float64), starts)

    def score(self, returns: Array | float) -> Array | None:
        """Returns on the scale where the reference minimum is 0 and the reference maximum 100."""
        return normalised_score(returns, self.meta)


def normalised_score(returns: Array | float, meta: Meta) -> Array | None:
    """D4RL's score, 100 (R - min) / (max - min); None where the task has no reference returns."""
    if meta.reference_min is None or meta.reference_max is None:
        return None
    span = meta.reference_max - meta.reference_min
    return 100.0 * (np.asarray(returns, dtype=np.float64) - meta.reference_min) / span


def blocks(rows: int) -> Iterator[slice]:
    """Slices that cover the rows, small enough that a set larger than memory can be looked at."""
    for start in range(0, rows, _BLOCK):
        yield slice(start, min(start + _BLOCK, rows))


def _open(path: Path, dtype: np.dtype[Any]) -> Array:
    """Map one array copy-on-write: the file is never changed, yet torch may wrap the memory."""
    try:
        array: Array = np.lib.format.open_memmap(path, mode="c")  # knows .npy alone: no zip, no pickle
    except FileNotFoundError as error:
        raise MildlyError(f"{path}: missing from the data set.") from error
    except (ValueError, OSError, EOFError, OverflowError, TypeError, tokenize.TokenError) as error:
        raise MildlyError(f"{path}: damaged or cut short ({error}). Make or copy the data set again.") from error
    if array.dtype != dtype:
        raise MildlyError(f"{path}: has type {array.dtype}, expected {dtype}.")
    return array


def _check_shapes(arrays: Mapping[str, Array], where: str) -> None:
    dimensions = {"observations": 2, "actions": 2, "next_observations": 2}
    for name, array in arrays.items():
        if array.ndim != dimensions.get(name, 1):
            raise MildlyError(
                f"{where}: '{name}' has shape {array.shape}, expected {dimensions.get(name, 1)} dimension(s)."
            )
    rows = len(arrays["observations"])
    if rows == 0:
        raise MildlyError(f"{where}: holds no transitions.")
    for name, array in arrays.items():
        if len(array) != rows:
            raise MildlyError(f"{where}: '{name}' has {len(array)} rows, but 'observations' has {rows}.")
    if arrays["next_observations"].shape != arrays["observations"].shape:
        shapes = arrays["next_observations"].shape, arrays["observations"].shape
        raise MildlyError(f"{where}: 'next_observations' is {shapes[0]}, but 'observations' is {shapes[1]}.")
    if 0 in (arrays["observations"].shape[1], arrays["actions"].shape[1]):
        raise MildlyError(f"{where}: observations and actions need at least one column each.")


def _check_content(arrays: Mapping[str, Array], where: str) -> None:
    """NaN, infinities and actions out of bounds, found before they can spoil a training."""
    for name in ("observations", "actions", "rewards", "next_observations"):
        for block in blocks(len(arrays[name])):
            bad = ~np.isfinite(arrays[name][block])
            if bad.any():
                row = block.start + int(np.argwhere(bad)[0][0])
                raise MildlyError(
                    f"{where}: '{name}' has NaN or infinite values, first in row {row}. "
                    "Remove or repair those rows before training."
                )
    for block in blocks(len(arrays["actions"])):
        outside = np.abs(arrays["actions"][block]) > 1.0 + _ACTION_TOLERANCE
        if outside.any():
            row, column = (int(i) for i in np.argwhere(outside)[0])
            value = arrays["actions"][block][row, column]
            raise MildlyError(
                f"{where}: 'actions' must lie in [-1, 1], but row {block.start + row}, column {column} "
                f"is {value:.6g}. Rescale the actions with the environment's bounds first; Meta's action_low "
                "and action_high remember them."
            )


def _fingerprint(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for name in FIELDS:
        array = arrays[name]
        digest.update(f"{name}{array.shape}{array.dtype.str}".encode())
        for block in blocks(len(array)):
            digest.update(np.ascontiguousarray(array[block]).data)
    return digest.hexdigest()
