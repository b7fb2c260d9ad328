"""Download one file so that it is either whole and right, or not there.

What has arrived is kept in `FILE.part`, and a later try goes on from its end. The file gets its name only after its
size and sha256 were found right. A lock keeps two processes from writing the same part; the second waits for the first.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import shutil
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.filesize import decimal
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from mildly.data.connection import Watch, open_address
from mildly.errors import MildlyError
from mildly.files import sync_folder
from mildly.terminal import SafeConsole

_TIMEOUT = 30.0  # seconds without a byte after which a connection counts as dropped
_TRIES, _FIRST_PAUSE = 5, 1.0  # the pause doubles after each try that failed
_HEADWAY = 8 << 20  # bytes gained by a try that dropped, after which the tries are counted anew
_SLOW_SECONDS, _SLOW_BYTES = 60.0, 1 << 16  # a server that sends less in that time has as good as stopped
_STALLED = 300.0  # seconds after which another process's download that does not grow is given up on
_PLAIN_SECONDS = 5.0
_BLOCK = 1 << 18
_PASSING = (408, 429, 500, 502, 503, 504)  # answers of a server that may be well in a moment


class _Failure(Exception):
    """A try that failed: `refused` for good, `unreachable`, or `dropped` after the server had answered."""

    def __init__(self, kind: str, reason: object) -> None:
        super().__init__(str(reason))
        self.kind = kind


def download(
    address: str, target: Path, *, size: int | None = None, sha256: str | None = None, progress: bool = True
) -> Path:
    """Download a file, or go on with a download that was interrupted.

    Args:
        address: its URL.
        target: where to put it. It appears there whole, or not at all.
        size: the bytes it must have, if that is known.
        sha256: the sum it must have, if that is known.
        progress: whether to show the progress on standard error: a bar on a terminal, a line now and then elsewhere.
    """
    part = target.with_name(f"{target.name}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with _Report(target.name, progress) as report, _locked(part, report):
            if target.is_file():  # the process that we waited for has brought it
                return target
            known = f" ({decimal(size)})" if size else ""
            report.say(f"downloading {target.name}{known} from {address} into {target.parent}")
            if sha256 is None:
                part.unlink(missing_ok=True)  # it may be the beginning of another version, and no sum would tell
            try:
                _fill(address, part, size, report, goes_on=sha256 is not None)
                _verify(address, part, size, sha256)
                os.replace(part, target)
            finally:
                if sha256 is None:
                    part.unlink(missing_ok=True)
            sync_folder(target.parent)
            report.say(
                f"{target}: whole, its sha256 is right" if sha256 else f"{target}: no checksum known, not checked"
            )
    except OSError as error:
        raise MildlyError(f"{target.name}: could not be written into {target.parent} ({error}).") from error
    return target


def _fill(address: str, part: Path, size: int | None, report: _Report, *, goes_on: bool) -> None:
    """Try until the part is whole. Not to reach the server at all is final; a dropped connection is tried again.

    `goes_on`: whether a later download will go on with the part.
    """
    failures, answered, furthest = 0, False, _length(part)
    if size is not None:
        _check_space(part, size - furthest)
    while size is None or _length(part) != size:
        try:
            _try(address, part, size, report)
            return
        except _Failure as failure:
            answered |= failure.kind == "dropped"
            length = _length(part)
            failures = 1 if length >= furthest + _HEADWAY else failures + 1
            furthest = max(furthest, length)
            if failure.kind == "refused" or not answered or failures == _TRIES:
                kept = ""
                if length and goes_on:
                    kept = f" The {decimal(length)} that arrived are kept, and the next try goes on there."
                message = f"{part.stem} could not be downloaded from {address} ({failure}).{kept}"
                raise MildlyError(message) from failure
            pause = _FIRST_PAUSE * 2 ** (failures - 1)
            report.say(f"{part.stem}: {failure}, at {decimal(length)}; trying again in {pause:g} s")
            time.sleep(pause)


def _try(address: str, part: Path, size: int | None, report: _Report) -> None:
    """One request: the rest of the part, or everything if there is none or the server cannot continue."""
    with Watch(_SLOW_SECONDS, _SLOW_BYTES) as watch:
        try:
            _receive(address, part, size, report, watch)
        except _Failure as failure:
            if watch.ended and failure.kind != "refused":
                raise _too_slow() from failure
            raise


def _too_slow() -> _Failure:
    return _Failure("dropped", f"the server sent less than {decimal(_SLOW_BYTES)} in {_SLOW_SECONDS:g} s")


def _receive(address: str, part: Path, size: int | None, report: _Report, watch: Watch) -> None:
    with _answer(address, part, watch) as response:
        length, total = _place(response, part)
        if str(response.headers.get("Content-Type", "")).startswith("text/html"):
            raise _Failure("refused", "the server answers with a web page instead of the file")
        if size is not None and total is not None and total != size:
            part.unlink(missing_ok=True)
            raise _Failure("refused", f"the server's file has {total:,} bytes, expected {size:,}")
        total = size if total is None else total
        _check_space(part, (total or 0) - length)
        report.begin(length, total)
        with part.open("ab" if length else "wb") as file:
            while block := _read(response):
                file.write(block)
                length += len(block)
                watch.came(len(block))
                report.at(length)
                if total is not None and length > total:
                    break
    if watch.ended and length != total:  # an end that we made is none of the server's
        raise _too_slow()
    if total is not None and length < total:
        raise _Failure("dropped", "the connection ended early")


def _answer(address: str, part: Path, watch: Watch) -> Any:
    """The server's answer to a request for what is still missing."""
    length = _length(part)
    headers = {"User-Agent": "mildly"} | ({"Range": f"bytes={length}-"} if length else {})
    try:
        return open_address(urllib.request.Request(address, headers=headers), _TIMEOUT, watch)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416 and length:  # nothing is missing, or the part is longer than the file
            part.unlink()
            raise _Failure("dropped", "the server cannot go on with the part; starting over") from error
        kind = "dropped" if error.code in _PASSING else "refused"
        raise _Failure(kind, f"the server answers {error.code} {error.reason}") from error
    except urllib.error.URLError as error:
        raise _Failure("unreachable", error.reason) from error
    except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: not an address
        raise _Failure("unreachable", error or type(error).__name__) from error


def _place(response: Any, part: Path) -> tuple[int, int | None]:
    """(byte at which the answer begins, bytes of the whole file if the server tells)."""
    if response.status != 206:
        told = response.headers.get("Content-Length", "")
        return 0, int(told) if told.isdecimal() else None
    begin, _, total = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("/")
    if begin.partition("-")[0] != str(_length(part)):
        part.unlink(missing_ok=True)
        raise _Failure("dropped", "the server sends another piece than was asked for; starting over")
    return _length(part), int(total) if total.isdecimal() else None


def _read(response: Any) -> bytes:
    """What has arrived. Only failures of the connection are caught here: those of the disk are not tried again."""
    try:
        return bytes(response.read1(_BLOCK))
    except (OSError, http.client.HTTPException) as error:
        raise _Failure("dropped", f"the connection was dropped: {error or type(error).__name__}") from error


def _verify(address: str, part: Path, size: int | None, sha256: str | None) -> None:
    """Compare with what is known of the file; a part that is wrong is removed, so that the next try starts anew."""
    with part.open("rb+") as file:
        os.fsync(file.fileno())
        got_sum = hashlib.file_digest(file, "sha256").hexdigest() if sha256 else None
    got_size = _length(part)
    if size is not None and got_size != size:
        wrong = f"has {got_size:,} bytes, expected {size:,}"
    elif got_sum != sha256:
        wrong = f"has the sha256 {got_sum}, expected {sha256}"
    else:
        return
    part.unlink()
    raise MildlyError(f"{part.stem} as downloaded from {address} {wrong}. It was removed; try again.")


def _check_space(part: Path, needed: int) -> None:
    free = shutil.disk_usage(part.parent).free
    if needed > free:
        raise MildlyError(
            f"{part.stem}: {decimal(needed)} to download, but {part.parent} has only {decimal(free)} free."
        )


def _length(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0


@contextmanager
def _locked(part: Path, report: _Report) -> Iterator[None]:
    """Keeps other processes from this part; the lock dies with the process. Waits while another one makes headway."""
    if sys.platform == "win32":  # has no such locks
        yield
        return
    import fcntl

    path = part.with_suffix(".lock")
    length, since = -1, time.monotonic()
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(handle), path.stat()):
                break
        except BlockingIOError:
            pass
        except OSError:  # a file system without locks: the sum still tells a spoilt file
            break
        os.close(handle)  # held by another process, or removed by it just now
        if length < 0:
            report.say(f"{part.stem}: another process is downloading it; waiting")
        if length != _length(part):
            length, since = _length(part), time.monotonic()
        elif time.monotonic() - since > _STALLED:
            raise MildlyError(f"{part.stem}: another process holds {path} and makes no headway. End it, or try later.")
        time.sleep(0.1)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


class _Report:
    """Progress on standard error, with speed and time left."""

    def __init__(self, name: str, shown: bool) -> None:
        self.console = SafeConsole(stderr=True, quiet=not shown)
        self.name, self.total = name, 0
        self.bar: Progress | None = None
        if shown and self.console.is_terminal:
            columns = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
            title = TextColumn("{task.description}", markup=False)
            self.bar = Progress(title, BarColumn(bar_width=16), *columns, console=self.console, transient=True)
            self.task = self.bar.add_task(name, total=None)

    def __enter__(self) -> _Report:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar:
            self.bar.stop()

    def begin(self, length: int, total: int | None) -> None:
        """A try starts at this byte."""
        self.first, self.total = length, total or 0
        self.began = self.shown = time.monotonic()
        if self.bar:
            self.bar.start()
            self.bar.update(self.task, completed=length, total=total)

    def at(self, length: int) -> None:
        """So many bytes are here."""
        if self.bar:
            self.bar.update(self.task, completed=length)
        elif time.monotonic() - self.shown >= _PLAIN_SECONDS:
            self.shown = time.monotonic()
            speed = (length - self.first) / (self.shown - self.began)
            text = f"{self.name}: {decimal(length)}"
            if self.total:
                left = timedelta(seconds=round((self.total - length) / max(speed, 1.0)))
                text += f" of {decimal(self.total)} ({100 * length // self.total} %), {left} left"
            self.say(f"{text}, {decimal(int(speed))}/s")

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, soft_wrap=True)
