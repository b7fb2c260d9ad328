"""Files that are written whole or not at all, never outside their folder, and JSON that is read with limits."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import IO, Any

from mildly.errors import MildlyError

JSON_BYTES = 16 << 20
"""The most that a JSON file of ours may hold."""
JSON_DEPTH = 32
"""How deep its lists and objects may be nested."""
_TOKENS = re.compile(rb'"(?:\\.|[^"\\])*"?|[\[\]{}]', re.DOTALL)
JSON_DIGITS = 40
"""How many digits a whole number may have; states of random generators have 39."""
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_TEMPORARY = re.compile(r"\.tmp-(?P<pid>\d+)-(?P<where>[0-9a-f]{8})-[0-9a-f]{8}-.+")
_NAME_LENGTH = 50  # characters of a file's own name that its temporary one keeps; file systems allow 255 bytes
_NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_OLD = 24 * 3600.0  # seconds without a change after which what may be a living process's is taken for a leftover


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Gives a path to write to; when the block ends well, that file is on disk and takes the place of `path`.

    A crash at any moment leaves the old file as it was. The path is a new file with a name of its own, so that
    processes do not write over each other, and nobody's link is followed. What crashes have left in the folder before
    is removed.
    """
    remove_leftovers(path.parent)
    unfinished = temporary_path(path)
    try:
        with naming(path):
            os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY | _NO_FOLLOW, 0o666))
            yield unfinished
            with unfinished.open("rb+") as file:
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            sync_folder(path.parent)  # the new name, too, survives a loss of power
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Lets errors of writing name the file: "No space left on device" alone does not say where."""
    try:
        yield
    except OSError as error:
        if error.errno is not None and error.filename is None:
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Make sure that the names in a folder are on disk."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def temporary_path(path: Path) -> Path:
    """A new hidden name beside a path, for what is not finished. It tells whose it is, and keeps the file's ending."""
    own = f".tmp-{os.getpid()}-{_where()}-{secrets.token_hex(4)}"
    return path.with_name(f"{own}-{path.name[-_NAME_LENGTH:]}")


def is_temporary(path: Path) -> bool:
    """Whether a name is one of `temporary_path`'s."""
    return _TEMPORARY.fullmatch(path.name) is not None


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files and folders of ours whose process has died, or that nobody has touched for a day."""
    try:
        paths = list(folder.iterdir())
    except OSError:  # there is none, or it is somebody else's
        return
    for path in paths:
        found = _TEMPORARY.fullmatch(path.name)
        with contextlib.suppress(OSError):  # what we may not see or remove stays
            if found and not path.is_symlink() and _is_stale(path, int(found["pid"]), found["where"]):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink()


def _is_stale(path: Path, pid: int, where: str) -> bool:
    """Only of a process that would be found here is it known that it has died; of all others, time tells."""
    if where == _where():
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        except (PermissionError, OverflowError):
            pass
    newest = max(each.lstat().st_mtime for each in (path, *path.rglob("*")))
    return time.time() - newest > _OLD


@cache
def _where() -> str:
    """A mark of this machine, its boot and this container: beyond them, a process number means another process."""
    told = [platform.node()]
    with contextlib.suppress(OSError):  # Linux alone tells
        told += [Path("/proc/sys/kernel/random/boot_id").read_text(), os.readlink("/proc/self/ns/pid")]
    return hashlib.sha256("\n".join(told).encode()).hexdigest()[:8]


@contextmanager
def open_own(path: Path, mode: str) -> Iterator[IO[bytes]]:
    """Open a file for appending (`ab`) or changing (`rb+`), but not if it is a link: that would write elsewhere."""
    flags = {"ab": os.O_WRONLY | os.O_CREAT | os.O_APPEND, "rb+": os.O_RDWR}[mode]
    try:
        opened = os.open(path, flags | _NO_FOLLOW, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK) or path.is_symlink():
            raise _link(path) from error
        raise
    with naming(path), os.fdopen(opened, mode) as file:
        yield file


def refuse_links(folder: Path) -> None:
    """Raise where a folder that is to be written into holds a link."""
    for path in sorted(folder.rglob("*")):
        if path.is_symlink():
            raise _link(path)


def _link(path: Path) -> MildlyError:
    return MildlyError(f"{path}: is a link. A run's files are never links; put the file itself there.")


def read_json(path: Path, *, most: int = JSON_BYTES) -> Any:
    """What a JSON file holds.

    Raises:
        ValueError: it is no JSON, too large, too deep, or holds text that cannot be written again.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise ValueError(f"larger than {most >> 20} MB")
    return parse_json(content)


def parse_json(content: bytes | str) -> Any:
    """What a piece of JSON means, with the limits of `read_json`."""
    data = content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content
    depth = 0
    for token in _TOKENS.findall(data):
        if token in (b"[", b"{"):
            depth += 1
            if depth > JSON_DEPTH:
                raise ValueError(f"nested deeper than {JSON_DEPTH}")
        elif token in (b"]", b"}"):
            depth -= 1
    try:
        values = json.loads(data.decode("utf-8"), parse_int=_whole_number)
        if _SURROGATE.search(data):
            json.dumps(values, ensure_ascii=False).encode("utf-8")
    except UnicodeError as error:
        raise ValueError("not text in UTF-8") from error
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return values


def _whole_number(digits: str) -> int:
    if len(digits) > JSON_DIGITS:
        raise ValueError(f"a number of {len(digits)} digits")
    return int(digits)


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Replace a JSON file of ours, with a digest of its content, so that damage is noticed."""
    whole = {**values, "digest": json_digest(values)}
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(whole, indent=2) + "\n")


def read_object(path: Path) -> dict[str, Any]:
    """What a JSON file holds that must be an object; raises as `read_json` does."""
    values = read_json(path)
    if not isinstance(values, dict):
        raise ValueError("no JSON object")
    return values


def read_own_json(path: Path, check: Callable[[dict[str, Any]], object] | None = None) -> dict[str, Any]:
    """What `write_json` wrote. `check` looks at it before the digest does, for files of other versions.

    Raises:
        ValueError: besides what `read_json` refuses, content that does not match its digest.
        OSError: it cannot be read.
    """
    values = read_object(path)
    if check is not None:
        check(values)
    if "digest" in values and values.pop("digest") != json_digest(values):
        raise ValueError("its content does not match its digest; if you changed it on purpose, remove the digest")
    for name, value in values.items():  # damage may also have hit the digest's own name
        if value == json_digest({key: kept for key, kept in values.items() if key != name}):
            raise ValueError(f"its digest is called {name!r}")
    return values


def json_digest(values: Mapping[str, Any]) -> str:
    """sha256 of the content, whatever the order and the spaces."""
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    """The digest of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def plain_name(name: str) -> str:
    """A name as one component of a path: no separators, no leading dots, nothing but word characters and `.+,=-`."""
    cleaned = re.sub(r"[^\w.+,=-]", "_", name).lstrip(".")
    return cleaned.encode()[:150].decode(errors="ignore") or "_"  # file systems count bytes


def writable(path: str | os.PathLike[str]) -> Path:
    """The path of a file to write; an error where it is a folder, or its folder does not exist."""
    path = Path(path).expanduser()
    if path.is_dir():
        raise MildlyError(f"{path}: is a folder; give the name of a file.")
    if not path.parent.is_dir():
        raise MildlyError(f"{path}: there is no folder {path.parent} to write it into.")
    return path
