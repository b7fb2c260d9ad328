"""HDF5 files with an episode in each group: what is odd about them, and what is wrong with them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import h5py
import numpy as np
import pytest
from attempts import attempt_bytes
from conftest import Refused
from hypothesis import given, settings, strategies as st

from mildly.data.convert import convert
from mildly.data.formats import grouped
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset

FOREIGN = Path(__file__).parent / "foreign"
Change = Callable[[h5py.Group], object]


def demo(rows: int, seed: int = 0) -> dict[str, Any]:
    """The arrays of an episode that ends for good."""
    random = np.random.default_rng(seed)
    return {
        "obs/a": random.normal(size=(rows, 2)),
        "obs/b": random.normal(size=rows),
        "next_obs/a": random.normal(size=(rows, 2)),
        "next_obs/b": random.normal(size=rows),
        "actions": random.uniform(-1, 1, (rows, 2)),
        "rewards": np.arange(rows, dtype=np.float64),
        "dones": np.arange(rows) == rows - 1,
    }


def save(folder: Path, demos: list[dict[str, Any]], prefix: str = "data/demo_") -> Path:
    with h5py.File(folder / "demos.hdf5", "w") as file:
        for i, arrays in enumerate(demos):
            for name, values in arrays.items():
                file[f"{prefix}{i}/{name}"] = values
    return folder / "demos.hdf5"


def test_episodes_are_counted_as_a_person_counts(tmp_path: Path) -> None:
    data = load_dataset(save(tmp_path, [demo(i + 1, i) for i in range(12)]))
    assert [rows.stop - rows.start for rows in data.episodes()] == list(range(1, 13))
    np.testing.assert_array_equal(
        data.observations[0], [*demo(1)["obs/a"][0].astype("f4"), np.float32(demo(1)["obs/b"][0])]
    )


@pytest.mark.parametrize("block", [1, 3, 100])
def test_the_size_of_the_blocks_makes_no_difference(tmp_path: Path, block: int) -> None:
    path = save(tmp_path, [demo(7), demo(4, 1)])
    whole = load_dataset(path)
    with mock.patch.object(grouped, "_BLOCK_BYTES", 8 * 11 * block):
        assert load_dataset(path).meta.fingerprint == whole.meta.fingerprint


def test_what_comes_behind_the_end_is_left_out(tmp_path: Path) -> None:
    held = demo(10) | {"dones": np.arange(10) >= 6}  # a person held still after the task was done
    data = load_dataset(save(tmp_path, [held, demo(5, 1)]))
    assert [rows.stop - rows.start for rows in data.episodes()] == [7, 5]
    assert np.flatnonzero(data.terminated).tolist() == [6, 11]
    assert "Left out: 3 rows behind the end of an episode, as its flags say." in data.meta.notes


def test_an_episode_without_a_step_is_passed_over(tmp_path: Path) -> None:
    data = load_dataset(save(tmp_path, [demo(3), demo(0), demo(4)]))
    assert [rows.stop - rows.start for rows in data.episodes()] == [3, 4]


def test_next_observations_belong_to_the_observations_that_are_chosen(tmp_path: Path) -> None:
    arrays = demo(5) | {"states": np.arange(10.0).reshape(5, 2), "dones": np.zeros(5)}
    path = save(tmp_path, [arrays])
    data = load_dataset(path, obs="states")
    assert data.next_observations.tolist() == arrays["states"][1:].tolist()  # and not `next_obs`
    assert len(load_dataset(path, obs="obs/b")) == 5
    np.testing.assert_array_equal(
        load_dataset(path, obs="b").next_observations[:, 0], arrays["next_obs/b"].astype(np.float32)
    )


WRONG: dict[str, tuple[Change, str]] = {
    "no rewards": (lambda group: group.pop("rewards"), "lacks rewards (an array called rewards or reward or rews)"),
    "no observations": (lambda group: group.pop("obs"), "lacks observations"),
    "pictures": (
        lambda group: (group.pop("obs"), group.create_dataset("obs/camera", data=np.zeros((5, 4, 4, 3)))),
        "a vector of numbers per step is needed, but there is obs/camera (5, 4, 4, 3)",
    ),
    "texts": (
        lambda group: (group.pop("rewards"), group.create_dataset("rewards", data=["one"] * 5)),
        "'data/demo_0/rewards' holds texts or objects",
    ),
    "lengths": (
        lambda group: (group.pop("rewards"), group.create_dataset("rewards", data=np.zeros(4))),
        "'data/demo_0/rewards' has shape (4,), which does not fit its 5 actions",
    ),
    "parts": (
        lambda group: (group["obs"].pop("b"), group.create_dataset("obs/b", data=np.zeros(6))),
        "the parts of the observations of 'data/demo_0' differ in length",
    ),
    "flags": (
        lambda group: (group.pop("dones"), group.create_dataset("dones", data=np.full(5, 7))),
        "'data/demo_0/dones' holds 7, expected true or false",
    ),
    "deep": (
        lambda group: group.create_dataset("obs/" + "/".join("cdefghijklmn"), data=np.zeros(5)),
        "nested too deep",
    ),
    "itself": (lambda group: group["obs"].__setitem__("again", group["obs"]), "nested too deep"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_with_a_group_is_told(tmp_path: Path, wrong: str, refused: Refused) -> None:
    change, words = WRONG[wrong]
    path = save(tmp_path, [demo(5), demo(5)])
    with h5py.File(path, "r+") as file:
        change(file["data/demo_0"])
    refused.dataset(path, words)


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "lacks": ({"obs/a": None}, "'data/demo_1' lacks 'obs/a', which other episodes have"),
    "width": ({"actions": np.zeros((5, 3))}, "'data/demo_1/actions' has 3 columns, but 2 elsewhere"),
    "final": (
        {"obs/a": np.zeros((6, 2)), "obs/b": np.zeros(6)},
        "'data/demo_1' differs from others in whether a final observation is stored",
    ),
}


@pytest.mark.parametrize("different", DIFFERENT)
def test_episodes_must_be_alike(tmp_path: Path, different: str, refused: Refused) -> None:
    change, words = DIFFERENT[different]
    other = {name: values for name, values in (demo(5) | change).items() if values is not None}
    refused.dataset(save(tmp_path, [demo(5), other]), words)


def test_arrays_of_other_files_are_not_read(tmp_path: Path, refused: Refused) -> None:
    (tmp_path / "secret").mkdir()
    secret = save(tmp_path / "secret", [demo(5)])
    (tmp_path / "inside").mkdir()
    path = save(tmp_path / "inside", [demo(5)])
    with h5py.File(path, "r+") as file:
        del file["data/demo_0/rewards"]
        file["data/demo_0/rewards"] = h5py.ExternalLink(str(secret), "data/demo_0/rewards")
    refused.dataset(path, "lacks rewards")


def test_memory_is_limited(tmp_path: Path, refused: Refused) -> None:
    rows = 400_000
    with h5py.File(tmp_path / "demos.hdf5", "w") as file:
        for name, width in (("obs/a", 50), ("actions", 2), ("rewards", 1)):
            shape = (rows, width) if width > 1 else (rows,)
            file.create_dataset(f"data/demo_0/{name}", shape, "f4", chunks=(50_000, *shape[1:]), compression="gzip")
    words = "its transitions take 165.6 MB of memory", "--max-memory"
    refused(load_dataset, *words, source=tmp_path / "demos.hdf5", max_memory=60)
    words = "a piece of 'data/demo_0' can only be read at once", "--max-memory"
    refused(lambda: convert(tmp_path / "demos.hdf5", tmp_path / "set", ImportOptions(max_memory=1)), *words)


@pytest.mark.parametrize("name", ["d3rlpy-1.1.1.h5", "d3rlpy-2.8.1.h5", "robomimic-0.3.0.hdf5", "stable-baselines.npz"])
@settings(max_examples=25)
@given(
    changes=st.lists(st.tuples(st.floats(0, 1), st.integers(0, 255)), min_size=1, max_size=4), keep=st.floats(0.5, 2)
)
def test_damage_is_told(name: str, changes: list[tuple[float, int]], keep: float) -> None:
    content = bytearray((FOREIGN / name).read_bytes())
    for place, byte in changes:
        content[int(place * (len(content) - 1))] = byte
    attempt_bytes(name, bytes(content[: int(min(keep, 1) * len(content))]))
