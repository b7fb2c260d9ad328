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
from typing import IO, Any

import numpy as np

from mildly.data.assemble import Log, Steps
from mildly.data.dataset import FIELDS, Array, Dataset, Meta, blocks
from mildly.data.formats.discrete import watched
from mildly.data.formats.episodes import DONE, with_ends
from mildly.data.formats.fields import Column, check_rows, choose, clean, unused
from mildly.data.memory import check_npy_header, column_bytes, memory_limit, schema_bytes
from mildly.data.options import ImportOptions
from mildly.data.origin import Origin, rows_of_arrays
from mildly.errors import MildlyError
from mildly.files import JSON_BYTES, parse_json
from mildly.words import counted

META = "mildly"
"""Under this name our own files keep the set's description, as JSON."""

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

_RLDS_LAST = "is_last"
_BESIDE_D4RL = ("infos", "metadata")
_BLOCK_BYTES = 1 << 24
_MOST_WORDS = 300  # letters
_MOST_MEMBERS = 1000  # arrays of an archive


def read(path: Path, options: ImportOptions) -> Log:
    """A `.npz` file or a folder of `.npy` files."""
    with _opened(path) as columns:
        stored = read_meta(columns, path)
        size = expected_bytes(columns, path, options)
    meta = stored or Meta(name=path.stem, source=f"arrays file {path.name}")
    log = Log(meta, iter(()), where=str(path), scaled=stored is not None, size=size, notes=list(meta.notes))
    log.origin = Origin(rows_of_arrays)
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
                        name, stack.enter_context(archive.open(name)), archive.getinfo(name).file_size
                    )
                    for name in members
                }
        except FileNotFoundError as error:
            raise MildlyError(f"{path}: no such file.") from error
        except DAMAGE as error:
            raise damaged(path, error) from error


def load_arrays(path: Path) -> dict[str, Array]:
    """All arrays of a `.npz` file, where they take no more memory than the limit allows."""
    with _opened(path) as columns:
        whole = sum(column_bytes(column) for column in columns.values())
        memory_limit().check_piece(str(path), "what it holds", whole)
        return {name: column.read() for name, column in columns.items() if isinstance(column, _Member)}


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

    def __init__(self, name: str, file: IO[bytes], size: int) -> None:
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
            raise ValueError(f"'{name}' holds Python objects, which are never loaded; save the others without it")
        if min(self.shape, default=0) < 0 or column_bytes(self) > size:
            raise ValueError(f"an array claims a shape of {self.shape}, but only {size:,} bytes are there")
        self.next = 0
        self.whole: Array | None = None

    def __getitem__(self, rows: slice | tuple[()]) -> Array:
        """Rows in order; an array stored by columns is read whole, and so is a single value, by `()`."""
        if isinstance(rows, tuple):
            return self._take(self.shape)
        count = rows.stop - rows.start
        if self.by_column and len(self.shape) > 1:
            if self.whole is None:
                self.whole = self.read()
            return self.whole[rows]
        if rows.start != self.next:
            raise ValueError("rows are read in order only")
        self.next = rows.stop
        return self._take((count, *self.shape[1:]))

    def read(self) -> Array:
        """All of it, in any number of dimensions."""
        return self._take(self.shape[::-1]).T if self.by_column else self._take(self.shape)

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
    text = str(column.read()) if isinstance(column, _Member) else str(np.asarray(column))
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
        rows = check_rows(columns, names, path)
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
    rows = check_rows(columns, names, path)
    chosen = {field: columns[name] for field, name in names.items()}
    if META not in columns:
        notes += unused(_left_out(columns, names, as_d4rl=as_d4rl))
        if "terminated" not in names:
            notes.append("No array says where an episode ended for good: every end is taken for a cut-off.")
    if any(column.dtype == np.float64 for column in chosen.values()):
        notes.append("Stored as float64; kept as float32.")
    widest = max(math.prod(column.shape[1:]) * column.dtype.itemsize for column in chosen.values())
    size = max(1, min(_BLOCK_BYTES // max(widest, 1), rows))
    done = names["terminated"] if "truncated" in names and names.get("terminated") in DONE else None
    steps = with_ends(
        _blocks(chosen, names, path, size, cut_last=as_d4rl),
        notes,
        done=done,
        episode=names.get("episodes", names.get("starts")),
        flags=[names[field] for field in ("terminated", "truncated", "lasts") if field in names],
        keep_both=as_d4rl,
        places=rows_of_arrays,
    )
    stated = _says_discrete(columns)
    if stated is not False:
        words = "the file says so (discrete_action)" if stated else None
        steps = watched(steps, names["actions"], options, notes, stated=words)
    yield from steps if names.get("lasts") != _RLDS_LAST else _with_final_observations(steps, notes)


def _left_out(columns: Mapping[str, Column], names: Mapping[str, str], *, as_d4rl: bool) -> list[str]:
    """Arrays and groups that are no field, but for single values and what D4RL's files have beside their fields."""
    beside = _BESIDE_D4RL if as_d4rl else ()
    rest = [name for name in columns if name not in names.values() and name.split("/")[0] not in beside]
    return [name for name in rest if getattr(columns[name], "shape", None) != ()]


def _says_discrete(columns: Mapping[str, Any]) -> bool | None:
    """What a file of d3rlpy says of its actions."""
    column = columns.get("discrete_action")
    if column is None or getattr(column, "shape", None) != () or column.dtype.kind not in "biu":
        return None
    return bool(column[()])


def _with_final_observations(steps: Iterator[Steps], notes: list[str]) -> Iterator[Steps]:
    """In RLDS the last row of an episode is its final observation, without an action: zeros stand in for it.

    Other writers have a real last step in that row; it is told by its action or reward.
    """
    found = 0
    for block in steps:
        last = block.terminated | block.truncated
        final = last & (block.actions == 0).all(axis=1) & (block.rewards == 0)
        found += int(final.sum())
        yield block._replace(actions=np.where(final[:, None], np.nan, block.actions))
    if found:
        notes.append(
            f"Taken for final observations: {counted(found, 'row')} marked by '{_RLDS_LAST}' without action and reward."
        )


def _blocks(
    chosen: Mapping[str, Column], names: Mapping[str, str], path: Path, size: int, *, cut_last: bool
) -> Iterator[tuple[Steps, Array | None]]:
    """Rows as they stand, with where a new episode begins, if anything but ends tells it."""
    rows = chosen["observations"].shape[0]
    last: Array | None = None
    for start in range(0, rows, size):
        here = slice(start, min(start + size, rows))
        block = {field: clean(column[here], field, f"{path}: '{names[field]}'") for field, column in chosen.items()}
        steps = steps_of(block)._replace(numbers=np.arange(here.start, here.stop))
        if cut_last and here.stop == rows and steps.next_observations is None:
            steps.truncated[-1] = True
        new = block.get("starts")
        if "episodes" in block:
            changes = np.empty(len(steps.rewards), dtype=bool)
            changes[1:] = block["episodes"][1:] != block["episodes"][:-1]
            changes[0] = last is None or block["episodes"][0] != last
            last = block["episodes"][-1]
            new = changes if new is None else changes | new
        yield steps, new


def steps_of(block: Mapping[str, Array]) -> Steps:
    """The rows of a block of fields, flags included."""
    none = np.zeros(len(block["rewards"]), dtype=bool)
    terminated = block.get("terminated", none)
    return Steps(
        block["observations"],
        block["actions"],
        block["rewards"],
        terminated.copy(),
        block.get("truncated", none) | (block.get("lasts", none) & ~terminated),
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
