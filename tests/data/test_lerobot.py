"""LeRobot's roots and RLlib's folders of Parquet: what is odd about them, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Refused

from mildly.data.registry import list_datasets, load_dataset

FOREIGN = Path(__file__).parent / "foreign"
FRAMES = Path("data/chunk-000/file-000.parquet")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A copy of the set of version 3, in a folder of its own."""
    shutil.copytree(FOREIGN / "lerobot-v3", tmp_path / "sets" / "small")
    return tmp_path / "sets" / "small"


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path)


def describe(root: Path, **changes: Any) -> None:
    path = root / "meta" / "info.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_frames_may_go_on_in_another_file(root: Path) -> None:
    whole = load_dataset(root)
    table = pq.read_table(root / FRAMES)
    for number, rows in enumerate((slice(0, 10), slice(10, 11), slice(11, 34))):
        pq.write_table(table[rows], root / FRAMES.with_name(f"file-{9 + number:03d}.parquet"), row_group_size=3)
    (root / FRAMES).unlink()
    assert load_dataset(root).meta.fingerprint == whole.meta.fingerprint


def test_pictures_are_named_and_not_read(root: Path) -> None:
    info = json.loads((root / "meta" / "info.json").read_text())
    more = {"observation.images.top": {"dtype": "video", "shape": [48, 64, 3]}}
    describe(root, features=info["features"] | more)
    whole = load_dataset(root)
    assert whole.observation_size == 3
    assert any("not used" in note and "observation.images.top" in note for note in whole.meta.notes)


def test_the_end_of_an_episode_says_nothing_of_why(root: Path) -> None:
    rewrite(root / FRAMES, lambda table: table.drop_columns(["next.success"]))
    data = load_dataset(root)
    assert not data.terminated.any()
    assert len(data) == 29
    assert "No column says where an episode ended for good: every end is taken for a cut-off." in data.meta.notes
    assert load_dataset(root, terminated="next.done").terminated.sum() == 5


def test_success_before_the_end_ends_nothing(root: Path) -> None:
    def always(table: pa.Table) -> pa.Table:
        i = table.schema.get_field_index("next.success")
        return table.set_column(i, "next.success", pa.array([True] * len(table)))

    rewrite(root / FRAMES, always)
    data = load_dataset(root)
    assert (len(data), int(data.terminated.sum())) == (34, 5)


def test_frames_that_are_missing_are_told(root: Path, refused: Refused) -> None:
    rewrite(root / FRAMES, lambda table: table[:19])  # three episodes
    assert "meta/info.json speaks of 34 frames, but 19 are here." in load_dataset(root).meta.notes
    rewrite(root / FRAMES, lambda table: pa.concat_tables([table[:8], table[9:]]))
    refused.dataset(root, "frames of episode 1 are missing (frame_index is not in order)")


REFUSED: dict[str, tuple[Callable[[Path], object], str]] = {
    "version 1": (lambda root: describe(root, codebase_version="v1.6"), "of version v1.6; v2 and v3 are read"),
    "no version": (lambda root: describe(root, codebase_version=3), "not LeRobot's"),
    "features": (lambda root: describe(root, features=[]), "not LeRobot's"),
    "no frames": (lambda root: shutil.rmtree(root / "data"), "without frames"),
    "no reward": (
        lambda root: rewrite(root / FRAMES, lambda table: table.drop_columns(["next.reward"])),
        "lacks the reward, a column next.reward (sets recorded by a person have none)",
    ),
    "no observation": (
        lambda root: rewrite(
            root / FRAMES, lambda table: table.drop_columns(["observation.state", "observation.environment_state"])
        ),
        "no observation is a vector of numbers; pictures and videos are not read",
    ),
    "no episode": (
        lambda root: rewrite(root / FRAMES, lambda table: table.drop_columns(["episode_index"])),
        "lacks column 'episode_index'",
    ),
    "order": (
        lambda root: rewrite(root / FRAMES, lambda table: pa.concat_tables([table[6:], table[:6]])),
        "episode_index goes from 4 back to 0",
    ),
    "empty cells": (
        lambda root: rewrite(
            root / FRAMES,
            lambda table: table.set_column(
                table.schema.get_field_index("action"), "action", pa.array([[1.0, 2.0]] * 33 + [None])
            ),
        ),
        "column 'action' has empty cells",
    ),
    "lists": (
        lambda root: rewrite(
            root / FRAMES,
            lambda table: table.set_column(
                table.schema.get_field_index("action"), "action", pa.array([[1.0, 2.0]] * 32 + [[1.0], [1.0, 2.0, 3.0]])
            ),
        ),
        "the lists in column 'action' differ in length",
    ),
    "widths": (
        lambda root: pq.write_table(
            pq.read_table(root / FRAMES).set_column(0, "observation.state", pa.array([[1.0]] * 34)),
            root / FRAMES.with_name("file-001.parquet"),
        ),
        "'observation.state' has 1 columns, unlike elsewhere",
    ),
    "a pointer": (lambda root: (root / FRAMES).write_text("version https://git-lfs.github.com/spec/v1"), "damaged"),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_is_refused(root: Path, why: str, refused: Refused) -> None:
    change, words = REFUSED[why]
    change(root)
    refused.dataset(root, words)


def test_memory_is_limited_by_names_with_dots_too(root: Path, refused: Refused) -> None:
    rows, width = 20_000, 100

    def wide(table: pa.Table) -> pa.Table:
        numbers = pa.ListArray.from_arrays(np.arange(rows + 1) * width, np.zeros(rows * width, np.float32))
        columns = {name: [0.0] * rows for name in ("next.reward", "timestamp")}
        columns |= {"episode_index": [0] * rows, "frame_index": list(range(rows)), "observation.state": numbers}
        return pa.table({**columns, "action": pa.array([[0.5]] * rows)})

    rewrite(root / FRAMES, wide)
    assert (root / FRAMES).stat().st_size < 1e6
    words = "a row with 'observation.state' can only be read at once", "--max-memory"
    refused(load_dataset, *words, source=root, max_memory=12)
    words = "its transitions take 16.2 MB of memory", "--max-memory"
    pq.write_table(pq.read_table(root / FRAMES), root / FRAMES, row_group_size=1000)
    refused(load_dataset, *words, source=root, max_memory=12)


def test_a_set_in_the_data_folder_is_listed_and_found_by_its_name(root: Path) -> None:
    assert "small" in {entry.name for entry in list_datasets(root.parent)}
    assert len(load_dataset("small", data_dir=root.parent)) == 32


# RLlib


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    shutil.copytree(FOREIGN / "rllib-parquet", tmp_path / "sets" / "recording")
    return tmp_path / "sets" / "recording"


def test_whole_episodes_in_a_cell_are_refused(recording: Path, refused: Refused) -> None:
    for file in recording.rglob("*.parquet"):
        pq.write_table(pa.table({"item": [b"packed"]}), file)
    refused.dataset(recording, "holds whole episodes, packed in one column", "output_write_episodes=False")


def test_packed_observations_are_refused(recording: Path, refused: Refused) -> None:
    for file in recording.rglob("*.parquet"):
        rewrite(file, lambda table: table.set_column(3, "obs", pa.array(["BCJNGGhA"] * len(table))))
    refused.dataset(recording, "column 'obs' does not hold numbers", "output_compress_columns=[]")


def test_files_of_other_columns_are_refused(recording: Path, refused: Refused) -> None:
    last = max(recording.rglob("*.parquet"))
    rewrite(last, lambda table: table.drop_columns(["rewards"]))
    refused.dataset(recording, "lacks column 'rewards'")


def test_lists_of_other_lengths_are_refused(recording: Path, refused: Refused) -> None:
    last = max(recording.rglob("*.parquet"))
    rewrite(last, lambda table: table.set_column(3, "obs", pa.array([[0.0]] * len(table))))
    refused.dataset(recording, "'obs' has 1 columns, unlike elsewhere")
