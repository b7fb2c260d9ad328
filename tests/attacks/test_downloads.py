"""Servers that mean no good: redirections, bytes that drip, other files than before. All on this machine."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from conftest import Refused
from servers import serving

from mildly.data import download as module
from mildly.data.download import download
from mildly.data.official import CACHE_VARIABLE, MIRROR_VARIABLE, fetch, official_files
from mildly.data.registry import find
from mildly.errors import MildlyError

CONTENT = bytes(range(256)) * 40
SUM = hashlib.sha256(CONTENT).hexdigest()
MAZE = "maze2d-umaze-v1"


def sends(content: bytes) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(content)))
        request.end_headers()
        request.wfile.write(content)

    return answer


def leads_to(address: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(302)
        request.send_header("Location", address)
        request.end_headers()

    return answer


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_every_official_address_is_https() -> None:
    assert {entry.address.partition(":")[0] for entry in official_files().values()} == {"https"}


@pytest.mark.parametrize("scheme", ["file", "ftp", "data", "gopher"])
def test_a_redirection_to_another_scheme_is_refused(tmp_path: Path, scheme: str) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(CONTENT)
    to = {"file": secret.as_uri(), "data": "data:,hello"}.get(scheme, f"{scheme}://127.0.0.1:1/file.hdf5")
    with serving(leads_to(to)) as address, pytest.raises(MildlyError, match=rf"{scheme}:.*is not (followed|allowed)"):
        download(address, tmp_path / "file.hdf5")
    assert os.listdir(tmp_path) == ["secret"]


def test_a_redirection_from_https_to_http_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mildly.data import connection

    monkeypatch.setattr(connection, "_Secure", connection._Plain)  # the same, without the certificates
    with serving(sends(CONTENT)) as plain, serving(leads_to(plain)) as address:
        with pytest.raises(MildlyError, match="not followed from https"):
            download(address.replace("http:", "https:"), tmp_path / "file.hdf5")
        download(address, tmp_path / "file.hdf5", sha256=SUM)  # from http it is no loss
    assert (tmp_path / "file.hdf5").read_bytes() == CONTENT


def drips(part: str) -> Callable[[BaseHTTPRequestHandler], None]:
    """A byte now and then, in the header, in the content, or in the length of a chunk; endless."""
    start = {
        "header": b"HTTP/1.1 200 OK\r\nX: ",
        "content": b"HTTP/1.1 200 OK\r\nContent-Length: 10240\r\n\r\n",
        "endless": b"HTTP/1.0 200 OK\r\n\r\n",
        "chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    }[part]

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(start)
        for _ in range(400):
            request.wfile.write(b"0")
            request.wfile.flush()
            time.sleep(0.02)

    return answer


@pytest.mark.parametrize("part", ["header", "content", "endless", "chunk"])
def test_a_server_that_drips_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    monkeypatch.setattr(module, "_SLOW_SECONDS", 0.3, raising=False)
    monkeypatch.setattr(module, "_TRIES", 2)
    began = time.monotonic()
    with serving(drips(part)) as address, pytest.raises(MildlyError, match=r"sent less than 65\.5 kB in 0\.3 s"):
        download(address, tmp_path / "file.hdf5")
    assert time.monotonic() - began < 4
    assert not (tmp_path / "file.hdf5").exists()


def test_a_slow_server_that_makes_headway_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SLOW_SECONDS", 0.5)
    monkeypatch.setattr(module, "_SLOW_BYTES", 1000)

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(CONTENT)))
        request.end_headers()
        for start in range(0, len(CONTENT), 1024):
            request.wfile.write(CONTENT[start : start + 1024])
            request.wfile.flush()
            time.sleep(0.1)

    with serving(answer) as address:
        download(address, tmp_path / "file.hdf5", size=len(CONTENT), sha256=SUM)


@pytest.mark.parametrize("known", [True, False])
def test_what_is_said_of_a_part_is_true(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, known: bool) -> None:
    monkeypatch.setattr(module, "_TRIES", 1)

    def breaks_off(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "10240")
        request.end_headers()
        request.wfile.write(CONTENT[:1000])

    with serving(breaks_off) as address, pytest.raises(MildlyError) as caught:
        download(address, tmp_path / "file.hdf5", size=len(CONTENT), sha256=SUM if known else None)
    assert ("are kept" in str(caught.value)) == known
    assert os.listdir(tmp_path) == (["file.hdf5.part"] if known else [])


def test_a_file_without_a_sum_is_compared_with_its_first_use(
    cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], refused: Refused
) -> None:
    with serving(sends(CONTENT)) as address:
        monkeypatch.setenv(MIRROR_VARIABLE, address)
        path = find(MAZE)
    said = capsys.readouterr().err
    assert "WARNING" in said
    assert SUM in said
    record = path.with_name(f"{path.name}.sha256")
    assert record.read_text() == f"{SUM}  {path.name}\n"
    assert find(MAZE) == path
    assert "WARNING" not in capsys.readouterr().err
    path.write_bytes(CONTENT[::-1])
    refused(lambda: find(MAZE), "is not the file that it was at first use", SUM, str(record))
    path.unlink()
    with serving(sends(CONTENT[::-1])) as address:
        monkeypatch.setenv(MIRROR_VARIABLE, address)
        refused(lambda: fetch(MAZE), f"expected {SUM}", "first download", str(record))
    assert sorted(os.listdir(cache)) == [record.name]
    with serving(sends(CONTENT)) as address:
        monkeypatch.setenv(MIRROR_VARIABLE, address)
        assert find(MAZE).read_bytes() == CONTENT


def test_a_file_put_there_by_hand_is_recorded_too(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = cache / official_files()[MAZE].file
    cache.mkdir()
    path.write_bytes(CONTENT)
    assert find(MAZE) == path
    assert SUM in capsys.readouterr().err
    assert sorted(os.listdir(cache)) == [path.name, f"{path.name}.sha256"]


def test_a_damaged_record_is_told(cache: Path, refused: Refused) -> None:
    path = cache / official_files()[MAZE].file
    cache.mkdir()
    path.write_bytes(CONTENT)
    path.with_name(f"{path.name}.sha256").write_text("nothing")
    refused(lambda: find(MAZE), "does not hold a sha256")


def test_old_parts_are_removed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    old, new = cache / "hopper_medium-v2.hdf5.part", cache / "hopper_random-v2.hdf5.part"
    for part in (old, new):
        part.write_bytes(b"begun")
    os.utime(old, (0, 0))
    with serving(sends(CONTENT)) as address:
        monkeypatch.setenv(MIRROR_VARIABLE, address)
        fetch(MAZE)
    assert not old.exists()
    assert new.exists()
