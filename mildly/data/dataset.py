"""Dataset: logged transitions in the one schema that everything in the project speaks.

A transition is (observation, action, reward, next observation, terminated, truncated). `terminated` ends
the value (the robot fell); `truncated` ends the episode but not the value (the time limit was reached).
Actions are stored in [-1, 1]; `meta` remembers the environment's own bounds, and the policy undoes the scaling.

On disk a data set is a folder of plain `.npy` files beside `dataset.json`. It is opened by memory map, so a
set larger than memory can be trained on. Where rows are missing inside episodes, `gaps.npy` tells it. No pickle is
ever read.
"""

from __future__ import annotations

import dataclasses
import math
import os
import tokenize
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mildly.action_space import UNKNOWN, ActionSpace
from mildly.data import content
from mildly.data.content import (
    ACTION_TOLERANCE as ACTION_TOLERANCE,
    DTYPES as DTYPES,
    FIELDS as FIELDS,
    Array as Array,
    blocks as blocks,
    check_shapes,
    examine,
    typed,
)
from mildly.data.gaps import Gaps
from mildly.data.memory import check_npy_header
from mildly.data.origin import Origin, column_name, place
from mildly.errors import MildlyError
from mildly.files import read_own_json
from mildly.words import counted

FORMAT = 1


@dataclass(frozen=True)
class Meta:
    """What is known of a data set besides its transitions.

    Attributes:
        name: what to call it in tables, e.g. `hopper-medium-v2`.
        env_id: the gymnasium environment in which a policy trained on this data can be evaluated.
        action_space: the environment's own action bounds, which are -1 and +1 in `actions`; the policy undoes it.
            Without it the units are [-1, 1], or the environment's, if there is one.
        reference_min: the return that scores 0 (a random policy's); without it there is no normalized score.
        reference_max: the return that scores 100 (an expert's).
        observation_names: what each number of an observation is called in the log; empty where it has no names.
        action_names: the same for actions.
        observation_units: the unit of each number of an observation, empty text where there is none; empty where the
            log tells no units.
        action_units: the same for actions.
        source: where the data came from, in words.
        notes: what was done to the data on the way here (columns guessed, rows dropped), a sentence each.
        fingerprint: sha256 of the content, filled in by itself; sets with equal fingerprints hold the same transitions.
    """

    name: str
    env_id: str | None = None
    action_space: ActionSpace | None = None
    reference_min: float | None = None
    reference_max: float | None = None
    observation_names: tuple[str, ...] = ()
    action_names: tuple[str, ...] = ()
    observation_units: tuple[str, ...] = ()
    action_units: tuple[str, ...] = ()
    source: str = ""
    notes: tuple[str, ...] = ()
    fingerprint: str = ""

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Meta:
        """Rebuild from `dataset.json` or `run.json`; unknown keys are ignored."""
        known = {field.name for field in dataclasses.fields(cls)}
        kept = {key: value for key, value in values.items() if key in known and value is not None}
        for text in {"name", "env_id", "source", "fingerprint"} & kept.keys():
            if not isinstance(kept[text], str):
                raise TypeError(f"{text} is {kept[text]!r}, expected text")
        for number in {"reference_min", "reference_max"} & kept.keys():
            if type(kept[number]) not in (int, float) or not math.isfinite(kept[number]):
                raise ValueError(f"{number} is {kept[number]!r}, expected a number")
            kept[number] = float(kept[number])
        kept["action_space"] = ActionSpace.from_json({**UNKNOWN, **values})
        for texts in ("notes", "observation_names", "action_names", "observation_units", "action_units"):
            if not isinstance(kept.get(texts, ()), list | tuple):
                raise TypeError(f"{texts} are {kept[texts]!r}, expected a list")
            kept[texts] = tuple(str(text) for text in kept.get(texts, ()))
        return cls(**kept)

    def to_json(self) -> dict[str, Any]:
        """What `from_json` reads."""
        values: dict[str, Any] = {}
        for name, value in vars(self).items():
            if name == "action_space":
                values |= UNKNOWN if value is None else value.to_json()
            else:
                values[name] = value
        return values


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
    gaps: Gaps | None = None
    """What is missing inside episodes; None where nothing is."""
    origin: Origin | None = None
    """Where the rows stand in the log that they were read from just now; it is not saved."""

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
        arrays = {name: typed(value, name, meta.name) for name, value in given.items()}
        return cls.adopt(arrays, meta, meta.name)

    @classmethod
    def adopt(
        cls,
        arrays: Mapping[str, Array],
        meta: Meta,
        where: str,
        *,
        gaps: Gaps | None = None,
        origin: Origin | None = None,
        verify: bool = True,
    ) -> Dataset:
        """A data set of arrays that have the schema's types already and may be changed: no copy is made.

        Messages name the data as `where`.
        With `verify=False` the content is taken as it is, NaN included, for those who want to look at what is wrong.
        """
        check_shapes(arrays, meta, where)
        arrays["truncated"][-1] |= not arrays["terminated"][-1]
        data = cls(**arrays, meta=meta, gaps=gaps, origin=origin)
        fingerprint = examine(data, where, clip=True) if verify else ""
        return dataclasses.replace(data, meta=dataclasses.replace(meta, fingerprint=fingerprint))

    @classmethod
    def load(cls, folder: str | os.PathLike[str], *, verify: bool = True) -> Dataset:
        """Open a data set saved by `save`, by memory map. A damaged folder gives a clear error.

        With `verify=False` the content is not looked at, which is quicker for a set larger than memory.
        """
        folder = Path(folder)
        meta = cls.describe(folder)
        arrays = {name: _open(folder / f"{name}.npy", DTYPES[name]) for name in FIELDS}
        check_shapes(arrays, meta, str(folder))
        if not (arrays["terminated"][-1] or arrays["truncated"][-1]):
            raise MildlyError(f"{folder}: 'truncated' must be true in the last row, where no episode goes on.")
        data = cls(**arrays, meta=meta, gaps=_open_gaps(folder, arrays), origin=None)
        if not verify:
            return data
        fingerprint = examine(data, str(folder))
        if meta.fingerprint not in ("", fingerprint):
            raise MildlyError(f"{folder}: its content is not what was saved (the fingerprint differs). Copy it again.")
        return dataclasses.replace(data, meta=dataclasses.replace(meta, fingerprint=fingerprint))

    @staticmethod
    def describe(folder: Path) -> Meta:
        """What `dataset.json` says, without opening the transitions."""
        try:
            values = read_own_json(folder / "dataset.json", lambda given: _check_format(folder, given["format"]))
            meta = Meta.from_json(values["meta"])
        except FileNotFoundError as error:
            raise MildlyError(f"{folder}: no dataset.json in this folder, so it is not a data set.") from error
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MildlyError(f"{folder / 'dataset.json'}: damaged or not a data set's ({error}).") from error
        return meta

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the native form. The folder appears whole or not at all."""
        from mildly.data.writer import Writer

        with Writer(folder) as writer:
            writer.append({name: getattr(self, name) for name in FIELDS})
            return writer.finish(self.meta, self.gaps)

    def examined(self) -> Dataset:
        """The same, with the fingerprint of its content. Raises if the content would spoil a training."""
        return dataclasses.replace(self, meta=dataclasses.replace(self.meta, fingerprint=examine(self, self.meta.name)))

    def __repr__(self) -> str:
        extent = f"{counted(len(self), 'transition')}, {counted(len(self.episode_ends()), 'episode')}"
        return f"<Dataset '{self.meta.name}': {extent}, observation {self.observation_size}, action {self.action_size}>"

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

    def place(self, row: int) -> str:
        """Where a row stands: in the log that it was read from, or by its number."""
        return place(self.origin, row)

    def column_name(self, column: int, field: str = "observations") -> str:
        """What the log calls a column, or else `column 3`."""
        return column_name(self.meta.action_names if field == "actions" else self.meta.observation_names, column)

    def segments(self) -> list[slice]:
        """The stretches of rows that follow each other without a gap: whole episodes, or parts of them."""
        return _slices(self._segment_ends())

    def episodes(self) -> list[slice]:
        """The rows of each episode, in order; gaps inside it do not end it."""
        return _slices(self.episode_ends())

    def episode_ends(self) -> Array:
        """The row behind each episode's last one."""
        return self._segment_ends() if self.gaps is None else self.gaps.ends

    def episode_lengths(self) -> Array:
        """The steps of each episode, those that are missing included."""
        lengths = np.diff(self.episode_ends(), prepend=0)
        return lengths if self.gaps is None else lengths + self.gaps.rows

    def _segment_ends(self) -> Array:
        return np.flatnonzero(self.terminated | self.truncated) + 1

    def episode_returns(self) -> Array:
        """The sum of rewards of each episode; NaN where rows are missing whose rewards are not known."""
        ends = self.episode_ends()
        returns, done, start = np.empty(len(ends)), 0, 0
        while done < len(ends):  # some episodes at a time: a mapped set may be larger than memory
            stop = max(int(np.searchsorted(ends, start + content.BLOCK, side="right")), done + 1)
            starts = np.concatenate([[start], ends[done : stop - 1]]) - start
            returns[done:stop] = np.add.reduceat(self.rewards[start : ends[stop - 1]].astype(np.float64), starts)
            done, start = stop, int(ends[stop - 1])
        return returns if self.gaps is None else returns + self.gaps.rewards

    def known_returns(self) -> Array:
        """The returns that are known, for those who summarize them; one NaN where none is."""
        returns = self.episode_returns()
        known = returns[np.isfinite(returns)]
        return known if len(known) else np.full(1, np.nan)

    def score(self, returns: Array | float) -> Array | None:
        """Returns on the scale where the reference minimum is 0 and the reference maximum 100."""
        return normalized_score(returns, self.meta)


def normalized_score(returns: Array | float, meta: Meta) -> Array | None:
    """D4RL's score, 100 (R - min) / (max - min); None where the task has no reference returns."""
    if meta.reference_min is None or meta.reference_max is None:
        return None
    span = meta.reference_max - meta.reference_min
    return 100.0 * (np.asarray(returns, dtype=np.float64) - meta.reference_min) / span


def _slices(ends: Array) -> list[slice]:
    starts = np.concatenate([[0], ends[:-1]])
    return [slice(int(start), int(end)) for start, end in zip(starts, ends, strict=True)]


def _check_format(folder: Path, found: object) -> None:
    if found != FORMAT:
        raise MildlyError(f"{folder}: format {found}; this version of mildly reads format {FORMAT}.")


def _open(path: Path, dtype: np.dtype[Any]) -> Array:
    """Map one array, read-only: a writable mapping would be refused for a set larger than memory."""
    try:
        with path.open("rb") as file:
            check_npy_header(file)
        array: Array = np.lib.format.open_memmap(path, mode="r")  # knows .npy alone: no zip, no pickle
    except FileNotFoundError as error:
        raise MildlyError(f"{path}: missing from the data set.") from error
    except (ValueError, OSError, EOFError, OverflowError, TypeError, tokenize.TokenError) as error:
        raise MildlyError(f"{path}: damaged or cut short ({error}). Make or copy the data set again.") from error
    if array.dtype != dtype:
        raise MildlyError(f"{path}: has type {array.dtype}, expected {dtype}.")
    return array


def _open_gaps(folder: Path, arrays: Mapping[str, Array]) -> Gaps | None:
    """What `gaps.npy` tells, if it is there."""
    path = folder / "gaps.npy"
    if not path.exists():
        return None
    table = np.array(_open(path, np.dtype(np.float64)))
    gaps = Gaps.from_table(table, arrays["terminated"] | arrays["truncated"])
    if gaps is None:
        raise MildlyError(f"{path}: does not fit the data set's rows. Make or copy the data set again.")
    return gaps
