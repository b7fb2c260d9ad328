"""A full disk at any moment: an error that names the file, the old file as it was, nothing half-written, no crash."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from mildly.data import convert as convert_module
from mildly.data.dataset import Dataset, Meta
from mildly.errors import MildlyError

ROWS = 3000
TARGETS = ["set.hdf5", "set.npz", "set.parquet", "set.csv", "set.csv.gz", "folder"]

# Writes once for each limit, in a process of its own, since a crash would end it. Prints what happened each time.
PROGRAM = """
import json, os, resource, signal, sys
from pathlib import Path
from mildly.data import convert as module, writer
from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError
from mildly.data.registry import load_dataset

source, target, way, checked, *limits = sys.argv[1:]
target = Path(target)
if checked == "unchecked":  # the room is there when it is looked for, and gone when it is needed
    module.check_room = writer.check_room = lambda *given: None
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
load_dataset(source, verify=False)
usual = resource.getrlimit(resource.RLIMIT_FSIZE)
filler = target.parent / "filler"
for limit in map(int, limits):
    if way == "limit":
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, usual[1]))
    else:
        free = os.statvfs(target.parent).f_bavail * os.statvfs(target.parent).f_frsize
        filler.write_bytes(bytes(max(free - limit, 0)))
    try:
        module.export(Dataset.load(source), target) if "." in target.name else convert(source, target)
        said = "written"
    except MildlyError as error:
        said = str(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    filler.unlink(missing_ok=True)
    print(json.dumps([limit, said, sorted(os.listdir(target.parent))]), flush=True)
    if said == "written":
        assert len(load_dataset(target, **({"scaled": True} if ".csv" in target.name else {}))) == 3000
        target.unlink() if target.is_file() else __import__("shutil").rmtree(target)
"""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    ends = np.zeros(ROWS, bool)
    ends[99::100] = True
    data = Dataset.from_arrays(
        rng.normal(size=(ROWS, 11)),
        rng.uniform(-1, 1, (ROWS, 3)),
        rng.normal(size=ROWS),
        rng.normal(size=(ROWS, 11)),
        ends,
        np.zeros(ROWS, bool),
        Meta(name="filled"),
    )
    return data.save(tmp_path_factory.mktemp("full") / "source")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 4 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        command = ["mount", "-t", "tmpfs", "-o", "size=4m", "none", str(folder)]
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def outcomes(source: Path, target: Path, way: str, limits: list[int], *, checked: bool) -> list[tuple[int, str]]:
    """What each try said; none may crash, or leave anything behind."""
    command = [sys.executable, "-c", PROGRAM, str(source), str(target), way, "checked" if checked else "unchecked"]
    done = subprocess.run([*command, *map(str, limits)], capture_output=True, text=True, check=False, timeout=300)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0, (lines[-1:], done.returncode, done.stderr[-2000:])
    assert done.stderr == ""
    assert len(lines) == len(limits)
    for _, said, left in lines:
        if said == "written":
            assert left == [target.name]
        else:
            assert left == []
            assert str(target) in said
            assert "cannot be written" in said
    return [(limit, said) for limit, said, _ in lines]


def spread(points: int, most: int) -> list[int]:
    return [int(limit) for limit in np.linspace(1, most, points)]


def check(source: Path, target: Path, way: str, points: int, *, checked: bool = False) -> None:
    said = outcomes(source, target, way, [*spread(points, 330_000), 139_017, 900_000, 3_900_000], checked=checked)
    assert said[0][1] != "written"
    assert said[-1][1] == "written"


@pytest.mark.parametrize("target", TARGETS)
def test_a_file_that_may_not_grow_is_an_error_at_any_size(source: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "out").mkdir()
    check(source, tmp_path / "out" / target, "limit", 8)


@pytest.mark.parametrize("target", TARGETS)
def test_a_disk_that_fills_up_is_an_error_at_any_size(source: Path, small_disk: Path, target: str) -> None:
    check(source, small_disk / target, "fill", 8)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["limit", "fill"])
@pytest.mark.parametrize("target", TARGETS)
def test_fifty_sizes(source: Path, small_disk: Path, target: str, way: str) -> None:
    check(source, small_disk / target, way, 50)


@pytest.mark.parametrize("target", ["set.hdf5", "set.npz", "folder"])
def test_the_room_is_looked_at_first(source: Path, small_disk: Path, target: str) -> None:
    ((_, said),) = outcomes(source, small_disk / target, "fill", [100_000], checked=True)
    assert "needs" in said
    assert "free" in said


@pytest.mark.parametrize("target", TARGETS[:5])
def test_an_old_file_stays_as_it_was(
    source: Path, small_disk: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(convert_module, "check_room", lambda *given: None, raising=False)
    old = small_disk / target
    old.write_bytes(b"old")
    (small_disk / "filler").write_bytes(bytes(4_194_304 - 8192 - 40_000))
    with pytest.raises(MildlyError, match="cannot be written"):
        convert_module.export(Dataset.load(source), old)
    assert old.read_bytes() == b"old"
    assert sorted(os.listdir(small_disk)) == ["filler", target]
