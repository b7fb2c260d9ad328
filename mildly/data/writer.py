"""Write a data set piece by piece, so that it may be larger than memory. The folder appears whole or not at all."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np

from mildly.data.dataset import DTYPES, FIELDS, FORMAT, Array, Meta
from mildly.data.gaps import Gaps
from mildly.data.scratch import Scratch, check_room, reserve
from mildly.errors import MildlyError
from mildly.files import json_digest, sync_folder

_HEADER = 128  # bytes, as np.save makes them: room for any number of rows


def description(meta: Meta, rows: int) -> dict[str, Any]:
    """What `dataset.json` holds."""
    values = json.loads(json.dumps({"format": FORMAT, "transitions": rows, "meta": meta.to_json()}))
    return {**values, "digest": json_digest(values)}


class Writer:
    """Growing `.npy` files in a hidden folder beside `folder`, which takes its name when they are complete.

    with Writer(folder) as writer:
        writer.append(columns)  # as often as there is something to add
        writer.finish(meta)     # without this nothing stays behind
    """

    def __init__(
        self, folder: str | os.PathLike[str], *, expected: int = 0, shown: str | os.PathLike[str] | None = None
    ) -> None:
        """`expected`: bytes that will come, for which there must be room. `shown`: what messages call the folder."""
        self.folder = Path(folder)
        self.shown = os.fspath(folder if shown is None else shown)
        self.rows = 0
        self._files: dict[str, BinaryIO] = {}
        self._widths: dict[str, tuple[int, ...]] = {}
        if self.folder.exists():
            raise MildlyError(f"{self.folder}: exists already. Give another folder, or remove it first.")
        with self._writing():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self._unfinished = Scratch(self.folder.parent, self.folder.name)
        self._content = self._unfinished.path / "content"
        try:
            check_room(self.folder.parent, expected, self.shown)
            with self._writing():
                self._content.mkdir()
        except BaseException:
            self._unfinished.remove()
            raise

    def append(self, columns: Mapping[str, Array]) -> None:
        """Add rows: a column for each field, cast to the schema's types. The first block fixes the widths."""
        block = {name: np.ascontiguousarray(columns[name], dtype=DTYPES[name]) for name in FIELDS}
        widths = {name: array.shape[1:] for name, array in block.items()}
        if len({len(array) for array in block.values()}) != 1 or widths != (self._widths or widths):
            shapes = {name: array.shape for name, array in block.items()}
            raise ValueError(f"columns {shapes} do not fit each other, or the widths so far, {self._widths}")
        with self._writing():
            if not self._files:
                self._widths = widths
                for name in FIELDS:
                    self._files[name] = (self._content / f"{name}.npy").open("wb+")
                    self._files[name].write(_header(DTYPES[name], (0, *widths[name])))
            for name, array in block.items():
                self._files[name].write(array.data)
        self.rows += len(block["rewards"])

    def arrays(self) -> dict[str, Array]:
        """All columns so far, as writable memory maps of the files."""
        if self.rows == 0:
            raise MildlyError(f"{self.shown}: holds no transitions.")
        with self._writing():
            for name, file in self._files.items():
                file.seek(0)
                file.write(_header(DTYPES[name], (self.rows, *self._widths[name])))
                file.seek(0, os.SEEK_END)
                file.flush()
                reserve(file)
            return {name: np.lib.format.open_memmap(self._content / f"{name}.npy", mode="r+") for name in FIELDS}

    def finish(self, meta: Meta, gaps: Gaps | None = None) -> Path:
        """Write `dataset.json`, and `gaps.npy` if there are any, and move the folder to its place."""
        arrays = self.arrays()
        with self._writing():
            for array in arrays.values():
                assert isinstance(array, np.memmap)
                array.flush()
            for file in self._files.values():
                os.fsync(file.fileno())
            self._close()
            if gaps is not None:
                with (self._content / "gaps.npy").open("wb") as file:
                    np.save(file, gaps.to_table(), allow_pickle=False)
                    file.flush()
                    os.fsync(file.fileno())
            with (self._content / "dataset.json").open("w") as described:
                described.write(json.dumps(description(meta, self.rows), indent=2) + "\n")
                described.flush()
                os.fsync(described.fileno())
            sync_folder(self._content)
            self._content.rename(self.folder)
            sync_folder(self.folder.parent)  # the name, too, survives a loss of power
        self._unfinished.remove()
        return self.folder

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        with contextlib.suppress(OSError):  # a full disk has been told of
            self._close()
        self._unfinished.remove()

    def _close(self) -> None:
        with contextlib.ExitStack() as stack:  # all of them, even if one cannot be written to its end
            for file in self._files.values():
                stack.callback(file.close)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """A full disk, or a folder that may not be written, told as such."""
        try:
            yield
        except OSError as error:
            raise MildlyError(f"{self.shown}: cannot be written ({error}).") from error


def _header(dtype: np.dtype[Any], shape: tuple[int, ...]) -> bytes:
    """The start of a `.npy` file, format 1.0, always of the same length."""
    values = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': {shape!r}, }}"
    start = b"\x93NUMPY\x01\x00" + (_HEADER - 10).to_bytes(2, "little")
    return start + values.encode().ljust(_HEADER - 11) + b"\n"
