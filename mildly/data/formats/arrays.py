"""Logs kept as arrays, one a field: `.npz` files, folders of `.npy` files, and the columns of HDF5 files.

Field names differ between projects; the usual ones are known, and any other can be given. Arrays are read in step,
block by block, so that a file larger than memory can be converted. No pickle is ever read.
"""

from __future__ import annotations

import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import FIELDS, Array, Dataset, Meta, blocks
from mildly.data.formats.episodes import DONE, with_ends
from mildly.data.memory import check_npy_header, column_bytes, memory_limit, schema_bytes
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError
from mildly.files import JSON_BYTES, parse_json

META = "mildly"
"""Under this name our own files keep the set's description, as JSON."""

NAMES = {
    "observations": ("observations", "observation", "obs", "states", "state"),
    "actions": ("actions", "action", "acts", "act"),
    "rewards": ("rewards", "reward", "rews", "rew"),
    "next_observations": ("next_observations", "next_observation", "next_obs", "new_obs", "next_states", "next_state"),
    "terminated": ("terminated", "terminals", "terminal", "terminations", *DONE),
    "truncated": ("truncated", "timeouts", "timeout", "truncations"),
    "episodes": ("episodes", "episode", "episode_ids", "episode_id", "trajectory_ids", "trajectory_id"),
}
"""What a field is called elsewhere, the likeliest name first."""

DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    EOFError,
    OverflowError,
    SyntaxError,
    RuntimeError,
    NotImplementedError,
    MemoryError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
)
"""What the libraries raise at a file that is not what its name says."""

_OPTION = {
    "observations": "obs",
    "actions": "action",
    "rewards": "reward",
    "next_observations": "next_obs",
    "terminated": "terminated",
    "truncated": "truncated",
    "episodes": "episode",
}
_WIDE = ("observations", "actions", "next_observations")
_NEEDED = ("observations", "actions", "rewards")
_BLOCK_BYTES = 1 << 24
_MOST_WORDS = 300  # letters
_MOST_MEMBERS = 1000  # arrays of an archive


class Column(Protocol):
    """An array on disk: its shape and type, and slices of its rows (in order, from the first)."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    def __getitem__(self, rows: slice) -> Array: ...


def read(path: Path, options: ImportOptions) -> Log:
    """A `.npz` file or a folder of `.npy` files."""
    with _opened(path) as columns:
        stored = read_meta(columns, path)
        size = expected_bytes(columns, path, options)
    meta = stored or Meta(name=path.stem, source=f"arrays file {path.name}")
    log = Log(meta, iter(()), where=str(path), scaled=stored is not None, size=size, notes=list(meta.notes))
    log.steps = _rows(path, options, log.notes)
    return log


def _rows(path: Path, options: ImportOptions, notes: list[str]) -> Iterator[Steps]:
    with _opened(path) as columns:
        yield from in_step(columns, path, options, notes)


@contextmanager
def _opened(path: Path) -> Iterator[dict[str, Column]]:
    """The arrays by name; whatever goes wrong while they are read is told as the file's damage."""
    with ExitStack() as stack:
        try:
            if path.is_dir():
                yield {file.stem: _mapped(file) for file in sorted(path.glob("*.npy"))}
            else:
                archive = stack.enter_context(zipfile.ZipFile(path))
                members = [name for name in archive.namelist() if name.endswith(".npy")]
                if len(members) > _MOST_MEMBERS:
                    raise ValueError(f"it holds {len(members):,} arrays")
                yield {
                    name.removesuffix(".npy"): _Member(
                        stack.enter_context(archive.open(name)), archive.getinfo(name).file_size
                    )
                    for name in members
                }
        except FileNotFoundError as error:
            raise MildlyError(f"{path}: no such file.") from error
        except DAMAGE as error:
            raise damaged(path, error) from error


def damaged(path: Path, error: BaseException) -> MildlyError:
    """The error for a file that cannot be read to its end."""
    return MildlyError(
        f"{path}: damaged, cut short or not what its name says ({shortened(str(error))}). Copy or make it again."
    )


def shortened(words: str) -> str:
    """A library's message, which may quote a whole line of the file."""
    return words if len(words) < _MOST_WORDS else f"{words[:_MOST_WORDS]}..."


def _mapped(path: Path) -> Any:
    with path.open("rb") as file:
        check_npy_header(file)
    return np.load(path, mmap_mode="r", allow_pickle=False)


class _Member:
    """One array of a `.npz` archive, read forwards; `size` is what the archive says that it unpacks to."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self.file = file
        check_npy_header(file)
        version = np.lib.format.read_magic(file)
        reader = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }.get(version)
        if reader is None:
            raise ValueError(f"array format {version} is not known")
        self.shape, self.by_column, self.dtype = reader(file)
        if self.dtype.hasobject:
            raise ValueError("an array holds Python objects, which are never loaded")
        if min(self.shape, default=0) < 0 or column_bytes(self) > size:
            raise ValueError(f"an array claims a shape of {self.shape}, but only {size:,} bytes are there")
        self.next = 0
        self.whole: Array | None = None

    def __getitem__(self, rows: slice) -> Array:
        """Rows in order; an array stored by columns is read whole."""
        count = rows.stop - rows.start
        if self.by_column and len(self.shape) > 1:
            if self.whole is None:
                self.whole = self._take(self.shape[::-1]).T
            return self.whole[rows]
        if rows.start != self.next:
            raise ValueError("rows are read in order only")
        self.next = rows.stop
        return self._take((count, *self.shape[1:]))

    def _take(self, shape: tuple[int, ...]) -> Array:
        size = math.prod(shape) * self.dtype.itemsize
        data = self.file.read(size)
        if len(data) < size:
            raise ValueError(f"an array of shape {self.shape} ends early")
        return np.frombuffer(data, dtype=self.dtype).reshape(shape)


def read_meta(columns: Mapping[str, Column], path: Path) -> Meta | None:
    """The description that our own files carry; none in others'."""
    column = columns.get(META)
    if column is None or column.shape != () or column.dtype.kind != "U":
        return None
    if column.dtype.itemsize > 4 * JSON_BYTES:
        raise MildlyError(f"{path}: the description in it is larger than {JSON_BYTES >> 20} MB.")
    text = str(column._take(())) if isinstance(column, _Member) else str(np.asarray(column))
    return parse_meta(text, path)


def parse_meta(text: str, path: Path) -> Meta:
    """A description kept as JSON."""
    try:
        return Meta.from_json(parse_json(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise MildlyError(f"{path}: the description in it is damaged ({error}).") from error


def expected_bytes(columns: Mapping[str, Column], path: Path, options: ImportOptions) -> int | None:
    """What the transitions will take, by the shapes that the arrays claim; None where they are not as they should be.

    Raises:
        MildlyError: what must be read at once is more than the limit.
    """
    try:
        names = choose(columns, path, options)
        rows = _checked_rows(columns, names, path)
    except MildlyError:  # told when the rows are read
        return None
    pieces = {name: _piece(columns[name]) for name in names.values()}
    if any(pieces.values()):
        largest = max(pieces, key=lambda name: pieces[name])
        memory_limit(options.max_memory).check_piece(str(path), f"a piece of '{largest}'", sum(pieces.values()))
    widths = [math.prod(columns[names[field]].shape[1:]) for field in ("observations", "actions")]
    return schema_bytes(rows, *widths)


def _piece(column: Any) -> int:
    """Bytes that must be read at once to have any row: a chunk of HDF5, an array of an archive that is by columns."""
    chunk = getattr(column, "chunks", None)
    if chunk:
        return int(math.prod(chunk) * column.dtype.itemsize)
    return column_bytes(column) if isinstance(column, _Member) and column.by_column and len(column.shape) > 1 else 0


def in_step(
    columns: Mapping[str, Column], path: Path, options: ImportOptions, notes: list[str], *, as_d4rl: bool = False
) -> Iterator[Steps]:
    """Blocks of rows from arrays of equal length.

    Where a row is both terminal and a cut-off, it is terminal, unless all that was called is `done`. With `as_d4rl` it
    is a cut-off, and so is a last row without a next observation, terminal or not.
    """
    names = choose(columns, path, options)
    rows = _checked_rows(columns, names, path)
    chosen = {field: columns[name] for field, name in names.items()}
    if "terminated" not in names and "mildly" not in columns:
        notes.append("No array says where an episode ended for good: every end is taken for a cut-off.")
    if any(column.dtype == np.float64 for column in chosen.values()):
        notes.append("Stored as float64; kept as float32.")
    widest = max(math.prod(column.shape[1:]) * column.dtype.itemsize for column in chosen.values())
    size = max(1, min(_BLOCK_BYTES // max(widest, 1), rows))
    done = names["terminated"] if "truncated" in names and names.get("terminated") in DONE else None
    yield from with_ends(
        _blocks(chosen, names, path, size, cut_last=as_d4rl),
        notes,
        done=done,
        episode=names.get("episodes"),
        keep_both=as_d4rl,
    )


def _blocks(
    chosen: Mapping[str, Column], names: Mapping[str, str], path: Path, size: int, *, cut_last: bool
) -> Iterator[tuple[Steps, Array | None]]:
    """Rows as they stand, with where the episode's number is a new one, if there are numbers."""
    rows = chosen["observations"].shape[0]
    last: Array | None = None
    for start in range(0, rows, size):
        here = slice(start, min(start + size, rows))
        block = {field: _clean(column[here], field, f"{path}: '{names[field]}'") for field, column in chosen.items()}
        steps = _steps(block)
        if cut_last and here.stop == rows and steps.next_observations is None:
            steps.truncated[-1] = True
        if "episodes" not in block:
            yield steps, None
            continue
        new = np.empty(len(steps.rewards), dtype=bool)
        new[1:] = block["episodes"][1:] != block["episodes"][:-1]
        new[0] = last is None or block["episodes"][0] != last
        last = block["episodes"][-1]
        yield steps, new


def choose(columns: Mapping[str, Column], path: Path, options: ImportOptions) -> dict[str, str]:
    """The name of each field's array: as the user says, or the usual one."""
    chosen = {}
    for field, usual in NAMES.items():
        said = getattr(options, _OPTION[field])
        names = (said,) if said is not None else usual
        found = next((name for name in names if name in columns), None)
        if found is not None:
            chosen[field] = found
        elif said is not None or field in _NEEDED:
            have = ", ".join(sorted(columns)) or "nothing"
            wanted = said or " or ".join(usual[:3])
            raise MildlyError(
                f"{path}: lacks {field} (an array called {wanted}); found {have}. Say which it is with "
                f"mildly data convert SRC DST --{_OPTION[field].replace('_', '-')} NAME."
            )
    return chosen


def _checked_rows(columns: Mapping[str, Column], names: Mapping[str, str], path: Path) -> int:
    """The number of rows, once types and shapes are known to be right."""
    for field, name in names.items():
        if not hasattr(columns[name], "dtype"):
            raise MildlyError(f"{path}: '{name}' is a group, expected an array.")
        if columns[name].dtype.kind not in ("biufSU" if field == "episodes" else "biuf"):
            raise MildlyError(f"{path}: '{name}' holds {columns[name].dtype}, expected numbers.")
    shapes = {field: tuple(columns[name].shape or ()) for field, name in names.items()}
    rows = shapes["observations"][0] if shapes["observations"] else 0
    if len(shapes["observations"]) == 3:
        episodes, steps, width = shapes["observations"]
        raise MildlyError(
            f"{path}: '{names['observations']}' has shape {shapes['observations']}, as if it were (episodes, steps, "
            f"size), but one row per step is expected, ({episodes * steps}, {width}). Put the episodes one after "
            "another, in all arrays, and mark the last row of each in 'terminals' or 'timeouts', or number them in "
            "'episodes'."
        )
    for field, name in names.items():
        shape, dimensions = shapes[field], 2 if field in _WIDE else 1
        column = len(shape) == 3 - dimensions and (dimensions == 2 or shape[1] == 1)  # (n,) for (n, 1), or the reverse
        if not (len(shape) == dimensions or column) or shape[0] != rows:
            raise MildlyError(
                f"{path}: '{name}' has shape {shape}, expected {dimensions} dimension(s) and {rows} rows "
                f"as in '{names['observations']}'."
            )
        if 0 in shape[1:] or math.prod(shape[1:]) * columns[name].dtype.itemsize > _BLOCK_BYTES:
            raise MildlyError(f"{path}: '{name}' has shape {shape}, which is no log.")
    if rows == 0:
        raise MildlyError(f"{path}: '{names['observations']}' has no rows.")
    if shapes.get("next_observations", shapes["observations"]) != shapes["observations"]:
        raise MildlyError(
            f"{path}: '{names['next_observations']}' is {shapes['next_observations']}, but "
            f"'{names['observations']}' is {shapes['observations']}."
        )
    return rows


def _clean(values: Array, field: str, where: str) -> Array:
    """One dimension or two as the field needs, and flags as booleans."""
    values = np.asarray(values)
    if field in _WIDE:
        return values.reshape(len(values), -1)
    values = values.reshape(len(values))
    if field in ("terminated", "truncated"):
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            raise MildlyError(f"{where} has NaN or infinite values, expected true or false.")
        return values.astype(bool)
    return values


def _steps(block: Mapping[str, Array]) -> Steps:
    none = np.zeros(len(block["rewards"]), dtype=bool)
    return Steps(
        block["observations"],
        block["actions"],
        block["rewards"],
        block.get("terminated", none).copy(),
        block.get("truncated", none).copy(),
        block.get("next_observations"),
    )


def write(dataset: Dataset, path: Path, description: str) -> None:
    """A `.npz` file (not compressed), block by block."""
    with zipfile.ZipFile(path, "w", allowZip64=True) as archive:
        for name in FIELDS:
            array = getattr(dataset, name)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                header = {"descr": array.dtype.str, "fortran_order": False, "shape": array.shape}
                np.lib.format.write_array_header_1_0(file, header)
                for rows in blocks(len(array)):
                    file.write(np.ascontiguousarray(array[rows]).data)
        with archive.open(f"{META}.npy", "w") as file:
            np.lib.format.write_array(file, np.array(description), allow_pickle=False)
