"""How much memory a data set may take, so that a small file which unpacks to a huge one is refused and not loaded.

By default half of what the machine (or the control group that the process is in) has. `--max-memory`, `max_memory` or
the environment variable MILDLY_MAX_MEMORY set another limit, in megabytes.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rich.filesize import decimal

from mildly.errors import MildlyError

VARIABLE = "MILDLY_MAX_MEMORY"
_SHARE = 0.5
_MEGABYTE = 1_000_000
_UNKNOWN = 8 << 30  # where the system does not tell
_HEADER_BYTES = 1 << 16  # of an array file; numpy's own are 128
_CGROUPS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


@dataclass(frozen=True)
class Limit:
    """Bytes, and where they come from in words."""

    bytes: int
    origin: str

    def check_whole(self, where: str, size: int) -> None:
        """Raise where a set does not fit into memory as a whole."""
        if size > self.bytes:
            raise MildlyError(
                f"{where}: its transitions take {decimal(size)} of memory, more than the limit of "
                f"{decimal(self.bytes)} ({self.origin}). 'mildly data convert' makes a folder of it, which is read "
                "piece by piece; or raise the limit with --max-memory MB (max_memory in Python)."
            )

    def check_piece(self, where: str, what: str, size: int) -> None:
        """Raise where what can only be read at once does not fit."""
        if size > self.bytes:
            raise MildlyError(
                f"{where}: {what} can only be read at once and takes {decimal(size)} of memory, more than the limit of "
                f"{decimal(self.bytes)} ({self.origin}). Raise it with --max-memory MB (max_memory in Python) if you "
                "trust the file."
            )


def memory_limit(megabytes: float | None = None) -> Limit:
    """The limit that was given, or else the default."""
    if megabytes is not None:
        return Limit(int(checked_megabytes(megabytes, "max-memory") * _MEGABYTE), "--max-memory")
    named = os.environ.get(VARIABLE)
    if not named:
        return Limit(int(_SHARE * machine_memory()), "half of this machine's memory")
    try:
        given = float(named)
    except ValueError as error:
        raise MildlyError(f"{VARIABLE} must be a number of megabytes, got '{named[:50]}'.") from error
    return Limit(int(checked_megabytes(given, VARIABLE) * _MEGABYTE), VARIABLE)


def checked_megabytes(given: float, name: str) -> float:
    """A number of megabytes that makes sense."""
    if not 0 < given < math.inf:
        raise MildlyError(f"{name} must be a positive number of megabytes, got {given:g}.")
    return given


def set_default(megabytes: float | None) -> None:
    """Set the limit of this process and those that it starts."""
    if megabytes is not None:
        os.environ[VARIABLE] = f"{checked_megabytes(megabytes, 'max-memory'):.17g}"


def machine_memory() -> int:
    """Bytes of memory that this process can have at most."""
    try:
        known = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        known = _UNKNOWN
    for path in _CGROUPS:
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdecimal() and int(text) > 0:
            known = min(known, int(text))
    return known


def schema_bytes(rows: int, observation: int, action: int) -> int:
    """What transitions take: observations and their next ones, actions and rewards as float32, and two flags."""
    return rows * (4 * (2 * observation + action + 1) + 2)


def check_npy_header(file: IO[bytes]) -> None:
    """Raise ValueError where an array file claims a header larger than any: numpy would read it before it looks.

    The file is at its beginning afterwards.
    """
    start = file.read(12)
    if start[:6] == b"\x93NUMPY" and start[6:7] in (b"\x02", b"\x03"):
        length = int.from_bytes(start[8:12], "little")
        if length > _HEADER_BYTES:
            raise ValueError(f"an array's header claims {length:,} bytes")
    file.seek(0)


def column_bytes(column: Any) -> int:
    """What an array takes when it is read whole."""
    size: int = math.prod(column.shape) * int(column.dtype.itemsize)
    return size
