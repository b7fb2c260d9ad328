"""Transitions in a file, one record behind the other: what a learner has experienced in an environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from mildly.data.dataset import DTYPES, FIELDS, Array
from mildly.errors import MildlyError
from mildly.files import naming, open_own


def record(observation_size: int, action_size: int) -> np.dtype[Any]:
    """A transition as the file holds it."""
    widths = {"observations": (observation_size,), "next_observations": (observation_size,), "actions": (action_size,)}
    return np.dtype([(name, DTYPES[name], widths.get(name, ())) for name in FIELDS])


class ExperienceFile:
    """Every transition so far. What was flushed survives any crash; what is behind it is cut off by `rewind`."""

    def __init__(self, path: Path, row: np.dtype[Any]) -> None:
        self.path, self.row = path, row
        self.file: IO[bytes] | None = None
        """Opened by the first `rewind`, when it is known that the folder is ours."""

    def append(self, transition: Mapping[str, Any]) -> None:
        assert self.file is not None
        with naming(self.path):
            self.file.write(np.array([tuple(transition[name] for name in FIELDS)], self.row).tobytes())

    def flush(self) -> None:
        assert self.file is not None
        with naming(self.path):
            self.file.flush()
            os.fsync(self.file.fileno())

    def rewind(self, rows: int) -> Mapping[str, Array]:
        if self.file is None:
            self.file = self.path.open("ab")
        if self.path.stat().st_size < rows * self.row.itemsize:
            raise MildlyError(f"{self.path}: shorter than the checkpoint knows. Restore it from a copy.")
        os.truncate(self.path, rows * self.row.itemsize)
        return columns(self.path, self.row)

    def cut(self, row: int) -> None:
        self.flush()
        with open_own(self.path, "rb+") as file:
            file.seek(row * self.row.itemsize + self.row.fields["truncated"][1])  # type: ignore[index]
            file.write(b"\x01")

    def close(self) -> None:
        if self.file is not None:
            self.file.close()


def columns(path: Path, row: np.dtype[Any]) -> dict[str, Array]:
    """All transitions in a file, as columns."""
    kept = np.fromfile(path, row)
    return {name: np.array(kept[name]) for name in FIELDS}  # a copy: of one row, another stride would stay
