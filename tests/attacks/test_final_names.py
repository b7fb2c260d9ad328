"""No command writes a file under its final name: one that is killed while it writes leaves no half of a file there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import left_by, train_tiny

from mildly.cli import main

COMMANDS = {
    "report": "report runs --csv csv --latex table.tex --figures figures",
    "paper": "paper table1 --render-only --runs runs --markdown table.md --latex table.tex --csv table.csv",
    "info": "data info pendulum-mixed --plot set.png",
    "convert": "data convert pendulum-mixed set",
    "csv": "data convert pendulum-mixed set.csv.gz",
    "minari": "data convert pendulum-mixed minari:own/set-v0",
    "collect": "data collect set --env Pendulum-v1 --steps 20",
    "theory": "theory --mdps 2 --out figures",
}
PLACES = {"minari": "minari", "theory": "figures"}
_opened: list[Path] = []
_watching = False


def _watch(event: str, args: tuple[object, ...]) -> None:
    if event != "open":
        return
    path, _, flags = args
    writes = isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if writes and isinstance(path, str | os.PathLike):
        _opened.append(Path(path).absolute())


@pytest.fixture
def opened() -> list[Path]:
    """What is opened for writing from now on. The interpreter's hook stays: it cannot be taken out."""
    global _watching
    if not _watching:
        sys.addaudithook(_watch)
    _watching = True
    _opened.clear()
    return _opened


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "theory" else ()) for name in COMMANDS]
)
def test_no_file_is_written_under_its_final_name_and_what_a_killed_command_left_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opened: list[Path], name: str
) -> None:
    pytest.importorskip({"minari": "minari", "convert": "numpy", "csv": "numpy"}.get(name, "matplotlib"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    if "runs" in COMMANDS[name]:
        train_tiny("bc", tmp_path / "runs" / "bc", steps=20)
    place = tmp_path / PLACES.get(name, ".")
    place.mkdir(exist_ok=True)
    dead = subprocess.Popen(["true"])
    dead.wait()
    left_by(dead.pid, place / "table.tex").write_text("half")
    opened.clear()
    assert main(COMMANDS[name].split()) == 0
    below = [path.relative_to(tmp_path) for path in opened if path.is_relative_to(tmp_path)]
    assert below
    assert [path for path in below if not any(part.startswith(".tmp-") for part in path.parts)] == []
    assert not list(tmp_path.rglob(".tmp-*"))
