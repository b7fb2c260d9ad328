"""Hidden folders for what is not finished, and the removal of those that a killed process has left behind."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import re
import secrets
import shutil
import socket
import time
from pathlib import Path
from typing import BinaryIO

from rich.filesize import decimal

from mildly.errors import MildlyError
from mildly.files import remove_leftovers

_NAME = re.compile(r"\.tmp-(?P<pid>\d+)-(?P<host>[0-9a-f]{4})[0-9a-f]{8}-.+")
_OLD = 24 * 3600.0  # seconds without a change after which another machine's folder is taken for a leftover
_SPARE = 1 << 20  # bytes left free beside what a file is known to need


class Scratch:
    """A new hidden folder in `parent`, which `remove` takes away. What dead processes have left there goes first.

    Its name holds the process and the machine, so that the next start can tell whether it is still in use.
    """

    def __init__(self, parent: Path, name: str) -> None:
        remove_stale(parent)
        self.path = parent / f".tmp-{os.getpid()}-{_host()}{secrets.token_hex(4)}-{name[:100]}"
        self.path.mkdir(mode=0o777)

    def remove(self) -> None:
        """Take it away, with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)


def remove_stale(parent: Path) -> None:
    """Remove hidden files and folders of ours whose process has died, or that nobody has touched for a day."""
    with contextlib.suppress(OSError):  # somebody else's folder: what we may not see or remove stays
        remove_leftovers(parent)
    with contextlib.suppress(OSError):
        for path in list(parent.iterdir()):
            found = _NAME.fullmatch(path.name)
            if found and path.is_dir() and not path.is_symlink() and _is_stale(path, int(found["pid"]), found["host"]):
                shutil.rmtree(path, ignore_errors=True)


def _is_stale(folder: Path, pid: int, host: str) -> bool:
    if pid == os.getpid() and host == _host():
        return False
    if host == _host():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            pass
    newest = max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
    return time.time() - newest > _OLD


def _host() -> str:
    """A machine's mark: a process number means nothing elsewhere, and folders may be shared."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]


def check_room(folder: Path, needed: int, what: str) -> None:
    """Raise before anything is written where the disk cannot hold it."""
    free = shutil.disk_usage(folder).free
    if needed and needed + _SPARE > free:
        raise MildlyError(
            f"{what}: cannot be written. It needs {decimal(needed)}, but {folder} has only {decimal(free)} free."
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
