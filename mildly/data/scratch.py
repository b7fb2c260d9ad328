"""Hidden folders for what is not finished, and room for it on the disk."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import BinaryIO

from rich.filesize import decimal

from mildly.errors import MildlyError
from mildly.files import remove_leftovers, temporary_path

_SPARE = 1 << 20  # bytes left free beside what a file is known to need


class Scratch:
    """A new hidden folder in `parent`, which `remove` takes away. What dead processes have left there goes first."""

    def __init__(self, parent: Path, name: str) -> None:
        remove_leftovers(parent)
        self.path = temporary_path(parent / name)
        self.path.mkdir(mode=0o777)

    def remove(self) -> None:
        """Take it away, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise before anything is written where the disk cannot hold it."""
    free = shutil.disk_usage(folder).free
    if needed and needed + _SPARE > free:
        raise MildlyError(
            f"{what}: cannot be written. It needs {decimal(needed)}, but the disk has only {decimal(free)} free."
        )


def reserve(file: BinaryIO) -> None:
    """Give a file all the room that its size says, so that writing through a memory map cannot meet a full disk."""
    size = os.fstat(file.fileno()).st_size
    if size == 0 or not hasattr(os, "posix_fallocate"):
        return
    try:
        os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):  # a file system that cannot promise it
            raise
