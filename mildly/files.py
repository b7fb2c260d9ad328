"""Writing files: paths that can be written, and files that are replaced whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mildly.errors import MildlyError


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Gives a path to write to; when the block ends well, that file is on disk and takes the place of `path`.

    A crash at any moment leaves the old file as it was.
    """
    unfinished = path.with_name(f"{path.name}.tmp")
    try:
        yield unfinished
        with unfinished.open("rb+") as file:
            os.fsync(file.fileno())
        unfinished.chmod(0o666 & ~_umask())  # safetensors writes files that only their owner can read
        os.replace(unfinished, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # the new name, too, survives a loss of power
        os.close(folder)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _umask() -> int:
    """The process's mask for new files, which can be read only by setting it."""
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def writable(path: str | os.PathLike[str]) -> Path:
    """The path of a file to write; an error where it is a folder, or its folder does not exist."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise MildlyError(f"{path}: is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise MildlyError(f"{path}: there is no folder {path.parent} to write it into.")
    return path
