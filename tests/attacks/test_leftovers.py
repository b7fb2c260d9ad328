"""What a killed process leaves behind is removed by the next one in the same place; what is in use is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from mildly.data import scratch
from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset
from mildly.data.writer import Writer
from mildly.experiments import on_ray

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


def test_only_what_is_ours_and_dead_is_removed(tmp_path: Path) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    here, token = scratch._host(), "0" * 8
    elsewhere = "ffff" if here != "ffff" else "0000"
    kept = [f".tmp-{os.getpid()}-{here}{token}-a", f".tmp-{dead.pid}-{elsewhere}{token}-b", ".tmp-folder", ".mildly"]
    gone = [f".tmp-{dead.pid}-{here}{token}-c", f".tmp-1-{elsewhere}{token}-d"]
    for name in (*kept, *gone):
        (tmp_path / name / "content").mkdir(parents=True)
        (tmp_path / name / "content" / "file").write_text("x")
    for path in (tmp_path / gone[1], *(tmp_path / gone[1]).rglob("*")):
        os.utime(path, (0, 0))
    precious = tmp_path / "precious"
    precious.mkdir()
    (tmp_path / f".tmp-{dead.pid}-{here}{token}-link").symlink_to(precious)
    scratch.remove_stale(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted([*kept, "precious", f".tmp-{dead.pid}-{here}{token}-link"])


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
