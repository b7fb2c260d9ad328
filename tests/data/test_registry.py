"""Names and paths to data sets, and what is known of the benchmark's tasks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest

from mildly.data.dataset import FIELDS, Dataset, Meta, normalised_score
from mildly.data.registry import (
    DATA_VARIABLE,
    builtin_names,
    list_datasets,
    load_dataset,
    name_of,
    reference,
)
from mildly.data.tasks import PAPER_DATASETS, task_of, tasks
from mildly.errors import MildlyError


def little(name: str = "little") -> Dataset:
    rng = np.random.default_rng(3)
    return Dataset.from_arrays(
        observations=rng.normal(size=(5, 3)),
        actions=rng.uniform(-1, 1, (5, 2)),
        rewards=rng.normal(size=5),
        next_observations=rng.normal(size=(5, 3)),
        terminated=np.zeros(5),
        truncated=np.zeros(5),
        meta=Meta(name=name),
    )


def write_d4rl(path: Path, reward: float = 1.0) -> Path:
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(12, dtype=np.float32).reshape(4, 3)
        file["actions"] = np.full((4, 2), 0.5, np.float32)
        file["rewards"] = np.full(4, reward, np.float32)
        file["terminals"] = np.zeros(4, bool)
        file["timeouts"] = np.zeros(4, bool)
    return path


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


# Tasks


def test_the_paper_has_27_data_sets_and_each_belongs_to_a_task() -> None:
    assert len(PAPER_DATASETS) == len(set(PAPER_DATASETS)) == 27
    used = {task.prefix for name in PAPER_DATASETS if (task := task_of(name))}
    assert all(task_of(name) for name in PAPER_DATASETS)
    assert used == {task.prefix for task in tasks()}


@pytest.mark.parametrize(
    ("dataset", "prefix"),
    [
        ("hopper-medium-v2", "hopper"),
        ("hopper-medium-recollected", "hopper"),
        ("hopper", "hopper"),
        ("maze2d-umaze-v1", "maze2d-umaze"),
        ("maze2d-umaze-dense-v1", "maze2d-umaze-dense"),
        ("maze2d-medium-dense-v1", "maze2d-medium-dense"),
        ("pen-human-v0", "pen"),
    ],
)
def test_a_data_set_belongs_to_the_task_with_the_longest_prefix(dataset: str, prefix: str) -> None:
    task = task_of(dataset)
    assert task is not None
    assert task.prefix == prefix


@pytest.mark.parametrize("dataset", ["pendulum-mixed", "hoppers-medium-v2", "penguin-v0", "maze2d-large-v1", ""])
def test_a_name_that_only_resembles_a_task_belongs_to_none(dataset: str) -> None:
    assert task_of(dataset) is None


def test_only_the_mazes_never_terminate() -> None:
    assert {task.prefix for task in tasks() if not task.terminates} == {
        task.prefix for task in tasks() if task.prefix.startswith("maze2d")
    }
    assert all(task.reference_max > task.reference_min and task.horizon > 0 for task in tasks())


def test_the_normalised_score_of_hopper_is_the_one_worked_out_by_hand() -> None:
    task = task_of("hopper-medium-v2")
    assert task is not None
    meta = Meta(name="x", reference_min=task.reference_min, reference_max=task.reference_max)
    # 100 (1000 + 20.272305) / (3234.3 + 20.272305) = 102027.2305 / 3254.572305
    assert normalised_score(1000.0, meta) == pytest.approx(31.34889, abs=1e-5)
    assert normalised_score(-20.272305, meta) == pytest.approx(0.0, abs=1e-12)
    assert normalised_score(3234.3, meta) == pytest.approx(100.0)


# Sources


def test_a_data_set_is_passed_through() -> None:
    dataset = little()
    assert load_dataset(dataset) is dataset


def test_a_folder_is_loaded_by_its_path_as_text_or_as_path(tmp_path: Path) -> None:
    folder = little().save(tmp_path / "mine")
    for source in (folder, str(folder)):
        np.testing.assert_array_equal(load_dataset(source).rewards, little().rewards)
    assert name_of(str(folder)) == "little"


@pytest.mark.parametrize("file", ["hopper_medium-v2.hdf5", "hopper_medium-v2.H5", "hopper_medium-v2.data"])
def test_a_d4rl_file_is_loaded_by_its_path(tmp_path: Path, file: str) -> None:
    path = write_d4rl(tmp_path / file)
    dataset = load_dataset(path)
    assert (dataset.meta.name, len(dataset)) == ("hopper-medium-v2", 3)
    assert name_of(str(path)) == "hopper-medium-v2"


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hopper-medium-v2", "hopper-medium-v2.hdf5"),
        ("hopper-medium-v2", "hopper_medium-v2.hdf5"),
        ("halfcheetah-medium-replay-v2", "halfcheetah_medium_replay-v2.hdf5"),
        ("pen-human-v0", "pen-human-v0.hdf5"),
        ("maze2d-umaze-dense-v1", "maze2d-umaze-dense-v1.hdf5"),
    ],
)
def test_a_d4rl_name_is_found_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str
) -> None:
    write_d4rl(tmp_path / file)
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert load_dataset(name).meta.name == name
    listed = {row.name: row.where for row in list_datasets()}
    assert listed[name] == str(tmp_path / file)
    assert listed["walker2d-expert-v2"] == "not here"


def test_a_d4rl_name_without_a_data_folder_says_which_file_and_which_variable(tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match=rf"hopper_medium-v2\.hdf5.*{DATA_VARIABLE} is not set"):
        load_dataset("hopper-medium-v2")


def test_a_d4rl_name_that_is_not_in_the_data_folder_says_where_it_looked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    with pytest.raises(MildlyError, match=f"hopper-medium-v2: .*not in {tmp_path}"):
        load_dataset("hopper-medium-v2")


@pytest.mark.parametrize("file", ["absent.hdf5", "absent.h5", "absent.csv", "absent/deeper"])
def test_a_path_that_is_not_there_is_named(tmp_path: Path, file: str) -> None:
    with pytest.raises(MildlyError, match=f"{tmp_path / file}: no such file"):
        load_dataset(tmp_path / file)


def test_a_folder_that_is_no_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match=rf"{tmp_path}: no dataset\.json"):
        load_dataset(tmp_path)


def test_an_unknown_name_comes_with_the_nearest_known_one() -> None:
    with pytest.raises(MildlyError, match=r"unknown data set 'hoper-medium-v2'.*'hopper-medium-v2'"):
        load_dataset("hoper-medium-v2")


# Built-in sets


def test_every_set_with_a_name_is_listed_once() -> None:
    names = [row.name for row in list_datasets()]
    assert names == [*builtin_names(), *PAPER_DATASETS]
    assert all(row.where == "not here" for row in list_datasets() if row.name in PAPER_DATASETS)


def test_every_built_in_set_loads_and_has_the_fingerprint_it_was_shipped_with() -> None:
    rows = {row.name: row for row in list_datasets() if row.where == "built in"}
    if not rows:
        pytest.skip("this copy of the package has no built-in sets")
    for name, row in rows.items():
        dataset = load_dataset(name)
        assert dataset.meta.name == name == name_of(name)
        assert len(dataset) == row.transitions
        again = Dataset.from_arrays(**{field: getattr(dataset, field) for field in FIELDS}, meta=dataset.meta)
        assert again.meta.fingerprint == dataset.meta.fingerprint


def test_a_name_means_the_same_set_to_everyone_even_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    builtin = load_dataset("pendulum-mixed")
    other = dataclasses.replace(builtin, meta=dataclasses.replace(builtin.meta, name="hopper-random"))
    other.save(tmp_path / "pendulum-mixed")
    assert load_dataset("pendulum-mixed").meta.name == name_of("pendulum-mixed") == "pendulum-mixed"
    assert load_dataset("./pendulum-mixed").meta.name == name_of("./pendulum-mixed") == "hopper-random"
    assert reference("pendulum-mixed") == "pendulum-mixed"
    assert reference("./pendulum-mixed") == str(tmp_path / "pendulum-mixed")
