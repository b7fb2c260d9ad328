"""What a killed process leaves behind is removed by the next one in the same place; what is in use is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from conftest import left_by, train_tiny

from mildly import files
from mildly.collect.agent import AgentPlan, train_agent
from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset
from mildly.data.writer import Writer
from mildly.experiments import on_ray
from mildly.files import temporary_path

# Begins to convert, and waits in the middle of it.
PROGRAM = """
import sys, time
from mildly.data import assemble, convert as module
from mildly.data.convert import convert
def wait(*given):
    print("here", flush=True)
    time.sleep(60)
if sys.argv[1] == "export":
    module.formats.module_for = lambda path: type("Slow", (), {"write": wait})
else:
    module.assemble = wait
convert("pendulum-mixed", sys.argv[2])
"""


def begun(when: str, target: Path) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, when, str(target)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"here\n"
    return process


@pytest.mark.parametrize(("when", "target"), [("assemble", "set"), ("assemble", "set.npz"), ("export", "set.npz")])
def test_what_a_killed_conversion_leaves_is_removed_by_the_next(tmp_path: Path, when: str, target: str) -> None:
    process = begun(when, tmp_path / target)
    before = sorted(os.listdir(tmp_path))
    assert before
    assert all(name.startswith(".tmp-") for name in before)
    convert("pendulum-mixed", tmp_path / "other.npz")  # while the first one is at it
    assert sorted(os.listdir(tmp_path)) == [*before, "other.npz"]
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()  # type: ignore[union-attr]
    convert("pendulum-mixed", tmp_path / target)
    assert sorted(os.listdir(tmp_path)) == ["other.npz", target]


@pytest.fixture(scope="module")
def dead() -> int:
    """The number of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


def test_only_what_is_ours_and_dead_is_removed(tmp_path: Path, dead: int) -> None:
    """A process of another machine or container may be alive although it is not found here: its files wait a day."""
    mine, gone = temporary_path(tmp_path / "a").name, left_by(dead, tmp_path / "b").name
    elsewhere = gone.replace(files._where(), "0" * 8)
    kept = [mine, elsewhere, f".tmp-{dead}-0123abcd-old-form", ".tmp-folder", ".mildly"]
    old = elsewhere.removesuffix("-b") + "-old"
    for form in ("file", "folder"):
        place = tmp_path / form
        for name in (*kept, gone, old):
            inner = place / name if form == "file" else place / name / "content" / "file"
            inner.parent.mkdir(parents=True, exist_ok=True)
            inner.write_text("x")
        for path in (place / old, *(place / old).rglob("*")):
            os.utime(path, (0, 0))
        (tmp_path / "precious").mkdir(exist_ok=True)
        link = place / f"{gone}-link"
        link.symlink_to(tmp_path / "precious")
        files.remove_leftovers(place)
        assert sorted(os.listdir(place)) == sorted([*kept, link.name])


def test_a_folder_that_another_machine_still_fills_is_kept_however_old_its_beginning(tmp_path: Path, dead: int) -> None:
    folder = tmp_path / left_by(dead, tmp_path / "set").name.replace(files._where(), "0" * 8)
    folder.mkdir()
    (folder / "grows").write_text("x")
    os.utime(folder, (0, 0))
    files.remove_leftovers(tmp_path)
    assert folder.exists()


@pytest.mark.skipif(not Path("/proc/self/ns/pid").exists(), reason="the system has no containers of this kind")
def test_machine_boot_and_container_make_the_mark_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two containers of one machine often share its name, and number their processes from 1."""

    def mark() -> str:
        files._where.cache_clear()
        return files._where()

    marks = [mark()]
    with monkeypatch.context() as patch:
        patch.setattr(files.os, "readlink", lambda path: "pid:[1]")
        marks.append(mark())
    with monkeypatch.context() as patch:
        patch.setattr(files.platform, "node", lambda: "another")
        marks.append(mark())
    with monkeypatch.context() as patch:
        patch.setattr(files.Path, "read_text", lambda path: "another boot")
        marks.append(mark())
    assert len(set(marks)) == 4
    assert mark() == marks[0]


def test_a_start_that_was_killed_at_its_first_file_can_be_made_again(tmp_path: Path, dead: int) -> None:
    for name, first in (("run", "run.json"), ("agent", "agent.json")):
        (tmp_path / name).mkdir()
        left_by(dead, tmp_path / name / first).write_text("{")
    elsewhere = tmp_path / "run" / left_by(dead, tmp_path / "x").name.replace(files._where(), "0" * 8)
    elsewhere.write_text("{")
    train_tiny("bc", tmp_path / "run", steps=2, eval_every=0)
    assert list((tmp_path / "run").glob(".tmp-*")) == [elsewhere]
    plan = AgentPlan("Pendulum-v1", random_steps=200, eval_every=200, eval_episodes=1, reference_episodes=1)
    train_agent(tmp_path / "agent", plan, 200)
    assert not list((tmp_path / "agent").glob(".tmp-*"))


def test_the_description_and_the_folders_are_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(handle: int) -> None:
        synced.append(Path(os.readlink(f"/proc/self/fd/{handle}")).name)
        real(handle)

    if not Path("/proc/self/fd").is_dir():
        pytest.skip("the system does not tell which file a handle is")
    monkeypatch.setattr(os, "fsync", fsync)
    load_dataset("pendulum-mixed").save(tmp_path / "set")
    assert {"dataset.json", "observations.npy", "content", tmp_path.name} <= set(synced)
    assert synced.index("dataset.json") < synced.index("content") < synced.index(tmp_path.name)


def test_a_writer_that_cannot_begin_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(Exception, match="only"):
        Writer(tmp_path / "set", expected=1 << 60)
    assert os.listdir(tmp_path) == []


def test_copies_of_data_on_a_ray_node_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = type(sys)("ray")
    ray.get = lambda content: content  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(on_ray.tempfile, "gettempdir", lambda: str(tmp_path))
    data = load_dataset("pendulum-mixed")
    fields = {name: np.asarray(getattr(data, name)) for name in on_ray.FIELDS}
    keys = ["a" * 32, "b" * 32, "c" * 32]
    shared = [on_ray._SharedDataset(key, [{"meta": data.meta.to_json(), **fields}]) for key in keys]

    def copies() -> list[str]:
        return sorted(path.name[0] for path in on_ray._cache_folder().iterdir() if path.is_dir())

    with on_ray._local_copy(shared[0]) as first, on_ray._local_copy(shared[0]) as again:
        assert first == again
        assert len(Dataset.load(first)) == len(data)
        with on_ray._local_copy(shared[1]) as second:
            pass
        for folder in (first, second):
            os.utime(folder, (0, 0))
        with on_ray._local_copy(shared[2]):
            assert copies() == ["a", "c"]  # the second was old and unused, the first is old but in use
        on_ray._forget(keys)
        assert copies() == ["a"]
    on_ray._forget(keys)
    assert copies() == []
