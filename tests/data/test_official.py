"""The list of D4RL's official files, the cache, and the mirror."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest
from conftest import Refused

from mildly.data import official
from mildly.data.formats.d4rl import dataset_name
from mildly.data.official import (
    CACHE_VARIABLE,
    MIRROR_VARIABLE,
    OfficialFile,
    address_of,
    cache_folder,
    cached,
    fetch,
    name_of_file,
    official_files,
)
from mildly.data.tasks import PAPER_DATASETS, task_of

CHECKSUMS = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "d4rl_slices" / "checksums"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.delenv(MIRROR_VARIABLE, raising=False)
    return tmp_path / "cache"


def test_every_data_set_of_the_paper_is_official() -> None:
    assert set(PAPER_DATASETS) <= set(official_files())


def test_every_line_is_complete_and_unique() -> None:
    entries = list(official_files().values())
    assert len(entries) == len({entry.file for entry in entries}) == len({entry.address for entry in entries}) == 79
    for entry in entries:
        assert re.fullmatch(r"\w+-[a-z-]+-v[012]", entry.name)
        assert task_of(entry.name) is not None
        assert entry.address.endswith(f"/{entry.file}")
        assert (entry.size is None) == (entry.sha256 is None) == entry.name.startswith("maze2d-")
        assert entry.sha256 is None or re.fullmatch("[0-9a-f]{64}", entry.sha256)


def test_the_list_agrees_with_the_published_checksums() -> None:
    if not CHECKSUMS.is_dir():
        pytest.skip("the published checksums are not here")
    lines = [line.split("\t") for path in CHECKSUMS.glob("*.tsv") for line in path.read_text().splitlines()]
    published = {(plain.replace("http:", "https:"), int(size), sum_, file) for plain, size, sum_, file in lines}
    known = {(e.address, e.size, e.sha256, e.file) for e in official_files().values() if e.sha256}
    assert known == published


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("hopper_medium_replay-v2.hdf5", "hopper-medium-replay-v2"),
        ("walker2d_full_replay-v1.hdf5", "walker2d-full-replay-v1"),
        ("halfcheetah_medium_expert.hdf5", "halfcheetah-medium-expert-v0"),
        ("hopper_mixed.hdf5", "hopper-medium-replay-v0"),
        ("walker_mixed.hdf5", "walker2d-medium-replay-v0"),
        ("pen-v0_demos_clipped.hdf5", "pen-human-v0"),
        ("pen-demos-v0-bc-combined.hdf5", "pen-cloned-v0"),
        ("relocate-v0_expert_clipped.hdf5", "relocate-expert-v0"),
        ("door-cloned-v1.hdf5", "door-cloned-v1"),
        ("maze2d-umaze-sparse-v1.hdf5", "maze2d-umaze-v1"),
        ("maze2d-medium-dense-v1.hdf5", "maze2d-medium-dense-v1"),
        ("hopper_mixed.h5", "hopper-medium-replay-v0"),
    ],
)
def test_an_official_file_name_tells_the_data_set_s_name(file: str, name: str) -> None:
    assert name_of_file(file) == name
    assert dataset_name(Path("/somewhere") / file) == name


@pytest.mark.parametrize("file", ["hopper-medium-v2.hdf5", "my_robot.hdf5", "hopper_mixed-v2.hdf5", ""])
def test_other_file_names_are_not_official(file: str) -> None:
    assert name_of_file(file) is None


def test_the_cache_is_where_the_variables_say(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv(CACHE_VARIABLE, "~/here")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "common"))
    assert cache_folder() == tmp_path / "here"
    monkeypatch.delenv(CACHE_VARIABLE)
    assert cache_folder() == tmp_path / "common" / "mildly"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert cache_folder() == tmp_path / ".cache" / "mildly"


def test_a_mirror_takes_the_place_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = official_files()["hopper-medium-v2"]
    assert address_of(entry) == entry.address
    monkeypatch.setenv(MIRROR_VARIABLE, "https://mirror.example/d4rl/")
    assert address_of(entry) == "https://mirror.example/d4rl/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5"


def publish(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes, sha256: str | None) -> None:
    """Make a mirror on disk that holds one data set, and let its sum be the official one."""
    entry = official_files()[name]
    path = tmp_path / "mirror" / "offline_rl" / entry.address.split("/offline_rl/")[1]
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    size = len(content) if sha256 else None
    made = {name: OfficialFile(name, entry.file, entry.address, size, sha256)}
    monkeypatch.setattr(official, "official_files", lambda: made)
    monkeypatch.setenv(MIRROR_VARIABLE, (tmp_path / "mirror").as_uri())


def test_a_fetched_file_is_in_the_cache_under_its_official_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    publish(tmp_path, monkeypatch, "pen-cloned-v0", b"content", hashlib.sha256(b"content").hexdigest())
    assert cached("pen-cloned-v0") is None
    assert fetch("pen-cloned-v0") == folder / "pen-demos-v0-bc-combined.hdf5" == cached("pen-cloned-v0")
    assert (folder / "pen-demos-v0-bc-combined.hdf5").read_bytes() == b"content"


def test_a_maze_is_fetched_with_a_word_on_its_missing_checksum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path, monkeypatch, "maze2d-umaze-v1", b"content", None)
    assert fetch("maze2d-umaze-v1") == folder / "maze2d-umaze-sparse-v1.hdf5"
    assert "no checksum known" in capsys.readouterr().err


def test_a_failed_download_says_where_to_put_the_file_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, folder: Path, refused: Refused
) -> None:
    monkeypatch.setenv(MIRROR_VARIABLE, (tmp_path / "nothing").as_uri())
    address = f"{(tmp_path / 'nothing').as_uri()}/offline_rl/gym_mujoco_v2/hopper_medium-v2.hdf5"
    words = ("hopper-medium-v2: ", f"could not be downloaded from {address}", str(folder), "--data-dir", "MILDLY_DATA")
    message = refused(lambda: fetch("hopper-medium-v2"), *words)
    assert "\n" not in message
    assert cached("hopper-medium-v2") is None
