"""Downloading from real servers on this machine: whole, resumed, dropped, wrong, absent."""

from __future__ import annotations

import hashlib
import re
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from conftest import Refused
from hypothesis import given, settings, strategies as st

from mildly.data import download as module
from mildly.data.download import download
from mildly.errors import MildlyError

CONTENT = bytes(range(256)) * 4000  # a megabyte
SUM = hashlib.sha256(CONTENT).hexdigest()


@dataclass
class Server:
    """What the server does, and what it was asked for."""

    address: str = ""
    content: bytes = CONTENT
    ranges: bool = True
    drop_after: list[int] = field(default_factory=list)
    """Bytes after which the answer to the first, second, ... request breaks off."""
    codes: list[int] = field(default_factory=list)
    """Answers to the first, second, ... request instead of the content."""
    kind: str = "application/octet-stream"
    tells_length: bool = True
    asked: list[str | None] = field(default_factory=list)
    """The Range header of each request."""


def handler_for(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            number, asked = len(server.asked), self.headers.get("Range")
            server.asked.append(asked)
            if number < len(server.codes):
                self.send_error(server.codes[number])
                return
            start = int(re.fullmatch(r"bytes=(\d+)-", asked)[1]) if asked and server.ranges else 0
            if start >= len(server.content):
                self.send_error(416)
                return
            body = server.content[start:]
            self.send_response(206 if start else 200)
            self.send_header("Content-Type", server.kind)
            if server.tells_length:
                self.send_header("Content-Length", str(len(body)))
            if start:
                total = len(server.content)
                self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
            self.end_headers()
            if number < len(server.drop_after):
                body = body[: server.drop_after[number]]
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    return Handler


class Listening(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that go away early are part of the tests."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    with Listening(("127.0.0.1", 0), handler_for(made)) as listening:
        made.address = f"http://127.0.0.1:{listening.server_port}/data/file.hdf5"
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield made
        listening.shutdown()


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "file.hdf5"


def part_of(target: Path, content: bytes) -> Path:
    target.parent.mkdir(exist_ok=True)
    part = target.with_name("file.hdf5.part")
    part.write_bytes(content)
    return part


def files(target: Path) -> list[str]:
    return sorted(path.name for path in target.parent.iterdir())


def get(server: Server, target: Path, size: int | None = len(CONTENT), sha256: str | None = SUM) -> Path:
    return download(server.address, target, size=size, sha256=sha256)


@pytest.fixture
def fails(server: Server, target: Path, refused: Refused) -> Callable[..., None]:
    """A download that must fail with these words and leave no file."""

    def check(*words: str, **given: str | int | None) -> None:
        refused(get, *words, server=server, target=target, **given)
        assert not target.exists()

    return check


def test_a_file_arrives_whole_and_nothing_else_is_left(
    server: Server, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert get(server, target) == target
    assert target.read_bytes() == CONTENT
    assert files(target) == ["file.hdf5"]
    out, err = capsys.readouterr()
    assert out == ""
    assert f"downloading file.hdf5 (1.0 MB) from {server.address} into {target.parent}" in err
    assert "sha256 is right" in err


def test_a_part_is_continued_from_its_end(server: Server, target: Path) -> None:
    part_of(target, CONTENT[:700_000])
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.asked == ["bytes=700000-"]


def test_a_part_that_is_whole_needs_no_server(target: Path) -> None:
    part_of(target, CONTENT)
    download("http://127.0.0.1:1/nobody", target, size=len(CONTENT), sha256=SUM)
    assert files(target) == ["file.hdf5"]


def test_a_server_without_ranges_is_asked_again_for_everything(server: Server, target: Path) -> None:
    server.ranges = False
    part_of(target, b"x" * 1000)
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.asked == ["bytes=1000-"]


def test_a_part_longer_than_the_file_is_dropped_and_the_download_starts_over(server: Server, target: Path) -> None:
    part_of(target, CONTENT + b"more")
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.asked == [f"bytes={len(CONTENT) + 4}-", None]


def test_a_dropped_connection_is_continued_where_it_broke_off(
    server: Server, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.drop_after = [300_000, 200_000]
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.asked == [None, "bytes=300000-", "bytes=500000-"]
    assert capsys.readouterr().err.count("trying again in") == 2


@settings(max_examples=20)
@given(st.lists(st.integers(0, 400_000), max_size=4), st.integers(0, len(CONTENT) - 1), st.booleans(), st.booleans())
def test_whatever_drops_the_file_is_the_same(
    tmp_path_factory: pytest.TempPathFactory, drops: list[int], begun: int, ranges: bool, tells_length: bool
) -> None:
    target = tmp_path_factory.mktemp("any") / "file.hdf5"
    server = Server(drop_after=drops, ranges=ranges, tells_length=tells_length)
    part_of(target, CONTENT[:begun])
    with pytest.MonkeyPatch.context() as patch, Listening(("127.0.0.1", 0), handler_for(server)) as listening:
        patch.setattr(module, "_FIRST_PAUSE", 0.0)
        server.address = f"http://127.0.0.1:{listening.server_port}/"
        threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        get(server, target)
        listening.shutdown()
    assert target.read_bytes() == CONTENT
    assert files(target) == ["file.hdf5"]


def test_a_connection_that_always_drops_is_given_up_and_the_part_kept(
    server: Server, target: Path, fails: Callable[..., None]
) -> None:
    server.drop_after = [1000] * 20
    fails("could not be downloaded", server.address, "ended early", "5.0 kB that arrived are kept")
    assert len(server.asked) == 5
    assert target.with_name("file.hdf5.part").read_bytes() == CONTENT[:5000]
    assert files(target) == ["file.hdf5.part"]


def test_tries_are_counted_anew_when_one_made_headway(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_HEADWAY", 100_000)
    server.drop_after = [100_000] * 9
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert len(server.asked) == 10


def test_a_busy_server_is_tried_again(server: Server, target: Path) -> None:
    server.codes = [503, 429]
    get(server, target)
    assert target.read_bytes() == CONTENT


def test_a_file_that_the_server_does_not_have_is_not_tried_again(
    server: Server, target: Path, fails: Callable[..., None]
) -> None:
    server.codes = [404] * 9
    fails("could not be downloaded", server.address, "404 Not Found")
    assert len(server.asked) == 1
    assert files(target) == []


def test_a_wrong_sum_is_told_and_the_part_removed(server: Server, target: Path, fails: Callable[..., None]) -> None:
    server.content = b"!" + CONTENT[1:]
    got = hashlib.sha256(server.content).hexdigest()
    fails(f"has the sha256 {got}, expected {SUM}", "removed")
    assert files(target) == []


def test_a_wrong_beginning_in_an_old_part_is_found_out_and_the_next_try_is_right(
    server: Server, target: Path, fails: Callable[..., None]
) -> None:
    part_of(target, b"?" * 1000)
    fails(f"expected {SUM}")
    get(server, target)
    assert target.read_bytes() == CONTENT


@pytest.mark.parametrize("tells_length", [True, False])
@pytest.mark.parametrize("longer", [-1, 1])
def test_a_wrong_size_is_told_and_the_part_removed(
    server: Server, target: Path, tells_length: bool, longer: int, fails: Callable[..., None]
) -> None:
    server.content, server.tells_length = (CONTENT + b"!")[: len(CONTENT) + longer], tells_length
    if longer < 0 and not tells_length:  # looks like a connection that broke off a byte too early, every time
        fails("ended early")
        return
    fails(f"{len(server.content):,} bytes, expected {len(CONTENT):,}")
    assert files(target) == []


def test_a_web_page_instead_of_the_file_is_refused(server: Server, target: Path, fails: Callable[..., None]) -> None:
    server.kind = "text/html; charset=utf-8"
    fails("a web page", size=None, sha256=None)
    assert files(target) == []


def test_without_a_known_sum_the_file_is_taken_and_that_is_said(
    server: Server, target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server.drop_after = [1000]
    get(server, target, size=None, sha256=None)
    assert target.read_bytes() == CONTENT
    assert "no checksum known" in capsys.readouterr().err


def test_without_a_known_sum_an_old_part_is_not_continued(server: Server, target: Path) -> None:
    part_of(target, b"of another version")
    get(server, target, size=None, sha256=None)
    assert server.asked == [None]
    assert target.read_bytes() == CONTENT


def test_no_network_is_told_at_once_and_keeps_the_part(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 5.0)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    part_of(target, CONTENT[:1000])
    began = time.monotonic()
    with pytest.raises(MildlyError, match=r"could not be downloaded from http://127.*\(.*refused.*\)"):
        download(f"http://127.0.0.1:{port}/file.hdf5", target, size=len(CONTENT), sha256=SUM)
    assert time.monotonic() - began < 2
    assert files(target) == ["file.hdf5.part"]


def test_a_server_that_never_answers_is_given_up(target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TIMEOUT", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent, pytest.raises(MildlyError, match="timed out"):
        download(f"http://127.0.0.1:{silent.getsockname()[1]}/file.hdf5", target)


@pytest.mark.parametrize("address", ["nonsense", "gopher://127.0.0.1/file.hdf5", "http://[bad/file.hdf5"])
def test_an_address_that_is_none_is_told(target: Path, address: str) -> None:
    with pytest.raises(MildlyError, match=re.escape(f"could not be downloaded from {address}")):
        download(address, target)


def test_a_full_disk_is_told_before_anything_is_asked_for(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., None]
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(10**9, 10**9, 500_000))
    fails("1.0 MB to download", "only 500.0 kB free", str(target.parent))
    assert server.asked == []
    fails("only 500.0 kB free", size=None, sha256=None)
    part_of(target, CONTENT[:600_000])
    get(server, target)  # the rest fits


def test_a_folder_that_cannot_be_made_is_told(server: Server, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(MildlyError, match="could not be written into"):
        get(server, tmp_path / "cache" / "file.hdf5")


def test_a_second_download_of_the_same_file_waits_for_the_first(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slowly: Callable[..., bytes] = module._read
    monkeypatch.setattr(module, "_BLOCK", 100_000)
    monkeypatch.setattr(module, "_read", lambda response: time.sleep(0.02) or slowly(response))
    with ThreadPoolExecutor(3) as pool:
        paths = [download_.result() for download_ in [pool.submit(get, server, target) for _ in range(3)]]
    assert paths == [target] * 3
    assert target.read_bytes() == CONTENT
    assert len(server.asked) == 1
    assert files(target) == ["file.hdf5"]
    assert "another process is downloading it" in capsys.readouterr().err


def test_a_lock_without_headway_is_given_up(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., None]
) -> None:
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr(module, "_STALLED", 0.2)
    target.parent.mkdir()
    with target.with_name("file.hdf5.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        fails("another process", "file.hdf5.lock")
    get(server, target)  # a lock file that nobody holds is no hindrance


def test_an_interruption_keeps_what_has_arrived(server: Server, target: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(module._Report, "at", lambda self, length: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            get(server, target)
    assert files(target) == ["file.hdf5.part"]
    get(server, target)
    assert target.read_bytes() == CONTENT
    assert server.asked[1] is not None


def test_progress_off_a_terminal_is_plain_lines_with_speed_and_time_left(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "_PLAIN_SECONDS", 0.0)
    monkeypatch.setattr(module, "_BLOCK", 512_000)
    get(server, target)
    err = capsys.readouterr().err
    assert re.search(r"file\.hdf5: .*B of 1\.0 MB \(\d+ %\), 0:00:\d\d left, .*B/s", err)
    assert "\x1b" not in err


def test_no_progress_is_silent(server: Server, target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    download(server.address, target, size=len(CONTENT), sha256=SUM, progress=False)
    assert capsys.readouterr() == ("", "")


def test_a_terminal_gets_a_bar(
    server: Server, target: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "120")
    get(server, target)
    err = capsys.readouterr().err
    assert "━" in err
    assert "1.0/1.0 MB" in err
