"""Names and paths to data sets, and what is known of the benchmark's tasks."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import h5py
import numpy as np
import pytest
from conftest import Refused

from mildly.cli import main
from mildly.data import registry
from mildly.data.convert import export
from mildly.data.dataset import FIELDS, Dataset, Meta, normalized_score
from mildly.data.official import CACHE_VARIABLE, MIRROR_VARIABLE, official_files
from mildly.data.registry import (
    DATA_VARIABLE,
    builtin_names,
    find,
    list_datasets,
    load_dataset,
    name_of,
    stable_source,
)
from mildly.data.tasks import PAPER_DATASETS, base_name, task_of, task_of_env, tasks
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
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """No data folder, an empty cache, and no way to the network."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.delenv(DATA_VARIABLE, raising=False)
    monkeypatch.setenv(CACHE_VARIABLE, str(folder))
    monkeypatch.setenv(MIRROR_VARIABLE, "file:///there/is/nothing")
    return folder


# Tasks


def test_the_paper_has_27_data_sets_and_each_belongs_to_a_task() -> None:
    assert len(PAPER_DATASETS) == len(set(PAPER_DATASETS)) == 27
    used = {task.prefix for name in PAPER_DATASETS if (task := task_of(name))}
    assert all(task_of(name) for name in PAPER_DATASETS)
    assert used == {task.prefix for task in tasks()}


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("hopper-medium-v2", "hopper-medium"),
        ("hopper-medium-v10", "hopper-medium"),
        ("hopper-medium-collected", "hopper-medium"),
        ("hopper-medium-recollected", "hopper-medium"),
        ("hopper-medium-v2-recollected", "hopper-medium"),
        ("Hopper-v4", "Hopper"),
        ("hopper-medium", "hopper-medium"),
        ("hopper-v2-medium", "hopper-v2-medium"),
        ("recollected", "recollected"),
        ("", ""),
    ],
)
def test_a_base_name_has_neither_version_nor_the_ending_of_recollected_data(name: str, base: str) -> None:
    assert base_name(name) == base


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


@pytest.mark.parametrize(
    ("dataset", "env_id", "reference_max"),
    [
        ("maze2d-umaze-v0", "d4rl/maze2d-umaze-v0", 62.6),
        ("maze2d-umaze-sparse-v0", "d4rl/maze2d-umaze-v0", 62.6),
        ("maze2d-umaze-v1", "d4rl/maze2d-umaze-v1", 161.86),
        ("maze2d-umaze", "d4rl/maze2d-umaze-v1", 161.86),
        ("maze2d-medium-dense-v0", "d4rl/maze2d-medium-dense-v0", 96.03474232952358),
        ("hopper-medium-v0", "Hopper-v4", 3234.3),
        ("pen-human-v1", "d4rl/pen-v0", 3076.8331017826877),
    ],
)
def test_only_the_first_mazes_have_an_environment_and_references_of_their_own(
    dataset: str, env_id: str, reference_max: float
) -> None:
    task = task_of(dataset)
    assert task is not None
    assert (task.env_id, task.reference_max) == (env_id, reference_max)


@pytest.mark.parametrize(
    ("env_id", "prefix"),
    [
        ("Hopper-v2", "hopper"),
        ("HalfCheetah-v3", "halfcheetah"),
        ("Walker2d-v4", "walker2d"),
        ("d4rl/door-v0", "door"),
        ("d4rl/maze2d-medium-dense-v1", "maze2d-medium-dense"),
    ],
)
def test_an_environment_with_d4rl_s_rewards_has_its_references(env_id: str, prefix: str) -> None:
    task = task_of_env(env_id)
    assert task is not None
    assert task.prefix == prefix


@pytest.mark.parametrize("env_id", ["Hopper-v5", "AdroitHandDoor-v1", "AdroitHandPen-v1", "PointMaze_UMaze-v3", ""])
def test_an_environment_with_other_rewards_or_episodes_has_no_references(env_id: str) -> None:
    assert task_of_env(env_id) is None


def test_only_the_mazes_never_terminate() -> None:
    assert {task.prefix for task in tasks() if not task.terminates} == {
        task.prefix for task in tasks() if task.prefix.startswith("maze2d")
    }
    assert all(task.reference_max > task.reference_min and task.horizon > 0 for task in tasks())


def test_the_normalized_score_of_hopper_is_the_one_worked_out_by_hand() -> None:
    task = task_of("hopper-medium-v2")
    assert task is not None
    meta = Meta(name="x", reference_min=task.reference_min, reference_max=task.reference_max)
    # 100 (1000 + 20.272305) / (3234.3 + 20.272305) = 102027.2305 / 3254.572305
    assert normalized_score(1000.0, meta) == pytest.approx(31.34889, abs=1e-5)
    assert normalized_score(-20.272305, meta) == pytest.approx(0.0, abs=1e-12)
    assert normalized_score(3234.3, meta) == pytest.approx(100.0)


# Sources


def test_a_data_set_is_passed_through() -> None:
    dataset = little()
    assert load_dataset(dataset) is dataset


def test_a_folder_is_loaded_by_its_path_as_text_or_as_path(tmp_path: Path) -> None:
    folder = little().save(tmp_path / "mine")
    for source in (folder, str(folder)):
        np.testing.assert_array_equal(load_dataset(source).rewards, little().rewards)
    assert name_of(str(folder)) == "little"


@pytest.mark.parametrize("file", ["hopper_medium-v2.hdf5", "hopper_medium-v2.H5"])
def test_a_d4rl_file_is_loaded_by_its_path(tmp_path: Path, file: str) -> None:
    path = write_d4rl(tmp_path / file)
    dataset = load_dataset(path)
    assert (dataset.meta.name, len(dataset)) == ("hopper-medium-v2", 3)
    assert name_of(str(path)) == "hopper-medium-v2"


@pytest.mark.parametrize("by_variable", [True, False])
@pytest.mark.parametrize("deeper", ["", "sub-folder"])
@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hopper-medium-v2", "hopper-medium-v2.hdf5"),
        ("hopper-medium-v2", "hopper_medium-v2.hdf5"),
        ("halfcheetah-medium-replay-v2", "halfcheetah_medium_replay-v2.h5"),
        ("hopper-medium-replay-v0", "hopper_mixed.hdf5"),
        ("hopper-medium-replay-v0", "hopper_medium_replay-v0.hdf5"),
        ("pen-human-v0", "pen-human-v0.hdf5"),
        ("pen-human-v0", "pen-v0_demos_clipped.hdf5"),
        ("maze2d-umaze-v1", "maze2d-umaze-sparse-v1.hdf5"),
        ("maze2d-umaze-dense-v1", "maze2d-umaze-dense-v1.hdf5"),
        ("walker2d-full-replay-v1", "walker2d_full_replay-v1.hdf5"),
    ],
)
def test_an_official_name_is_found_in_the_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, file: str, deeper: str, by_variable: bool
) -> None:
    (tmp_path / deeper).mkdir(exist_ok=True)
    path = write_d4rl(tmp_path / deeper / file)
    if by_variable:
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    given = None if by_variable else tmp_path
    assert find(name, given) == path
    assert load_dataset(name, data_dir=given).meta.name == name_of(name, given) == name
    assert stable_source(name, given) == str(path.resolve())
    listed = {row.name: row for row in list_datasets(given)}
    assert (listed[name].where, listed[name].path) == ("data folder", path)
    assert listed["walker2d-expert-v2"].where == "to download"


def test_any_set_in_the_data_folder_has_a_name(tmp_path: Path) -> None:
    little("hopper-medium-recollected").save(tmp_path / "hopper-medium-recollected")
    (tmp_path / "robots").mkdir()
    names = ("arm.npz", "my_arm.csv", "leg.csv.gz", "hand.parquet", "robots/foot.npz", "robots/pump-v3.hdf5")
    for name in (*names, ".hidden.npz", "notes.txt", "robots/half.hdf5.part"):
        (tmp_path / name).write_text("not read")
    (tmp_path / "arrays").mkdir()
    np.save(tmp_path / "arrays" / "observations.npy", np.zeros(3))
    found = {row.name: row.path for row in list_datasets(tmp_path) if row.where == "data folder"}
    expected = {"arm": "arm.npz", "my_arm": "my_arm.csv", "leg": "leg.csv.gz", "hand": "hand.parquet"}
    expected |= {"foot": "robots/foot.npz", "pump-v3": "robots/pump-v3.hdf5", "arrays": "arrays"}
    expected |= {"hopper-medium-recollected": "hopper-medium-recollected"}
    assert found == {name: tmp_path / path for name, path in expected.items()}
    for name, path in found.items():
        assert find(name, tmp_path) == path
        assert stable_source(name, tmp_path) == str(path)
    assert find("my-arm", tmp_path) == tmp_path / "my_arm.csv"
    assert load_dataset("hopper-medium-recollected", data_dir=tmp_path).meta.name == "hopper-medium-recollected"
    rows = {row.name: row for row in list_datasets(tmp_path)}
    assert rows["hopper-medium-recollected"].transitions == 5
    assert rows["arm"].size == len("not read")


def test_of_several_with_the_same_name_the_folder_comes_first_then_the_official_file(tmp_path: Path) -> None:
    name, below = "hopper-medium-v2", tmp_path / "below"
    below.mkdir()
    candidates = [
        little(name).save(tmp_path / name),
        write_d4rl(tmp_path / "hopper_medium-v2.hdf5"),
        write_d4rl(tmp_path / "hopper-medium-v2.hdf5"),
        tmp_path / "hopper-medium-v2.npz",
        write_d4rl(below / "hopper_medium-v2.hdf5"),
    ]
    candidates[3].write_text("")
    for path in candidates:
        assert find(name, tmp_path) == path
        assert [row.path for row in list_datasets(tmp_path) if row.name == name] == [path]
        path.rename(path.with_name(f".{path.name}"))


def test_the_data_folder_given_wins_over_the_variable_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("given", "variable"):
        (tmp_path / folder).mkdir()
        write_d4rl(tmp_path / folder / "hopper_medium-v2.hdf5")
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "variable"))
    assert find("hopper-medium-v2").parent.name == "variable"
    assert find("hopper-medium-v2", tmp_path / "given").parent.name == "given"


def test_a_data_folder_that_is_not_there_is_named_with_what_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent"
    with pytest.raises(MildlyError, match=rf"{absent}: no such folder; --data-dir"):
        find("hopper-medium-v2", absent)
    monkeypatch.setenv(DATA_VARIABLE, str(absent))
    for ask in (find, name_of, stable_source):
        with pytest.raises(MildlyError, match=rf"{absent}: no such folder; {DATA_VARIABLE}"):
            ask("hopper-medium-v2")
    assert name_of("pendulum-mixed") == "pendulum-mixed"  # needs no folder


def test_an_official_name_is_found_in_the_cache_without_a_download(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "fetch", lambda name: pytest.fail("must not be asked for"))
    path = write_d4rl(cache / "walker_mixed.hdf5")
    assert find("walker2d-medium-replay-v0") == path
    assert load_dataset("walker2d-medium-replay-v0").meta.name == "walker2d-medium-replay-v0"
    listed = {row.name: row.where for row in list_datasets()}
    assert listed["walker2d-medium-replay-v0"] == "cache"
    # The name is enough: whoever has not this cache can download the file.
    assert stable_source("walker2d-medium-replay-v0") == "walker2d-medium-replay-v0"


def test_an_official_name_that_is_nowhere_is_downloaded_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
) -> None:
    folder = tmp_path / "offline_rl" / "maze2d"
    folder.mkdir(parents=True)
    remote = write_d4rl(folder / "maze2d-umaze-sparse-v1.hdf5")
    monkeypatch.setenv(MIRROR_VARIABLE, tmp_path.as_uri())
    assert name_of("maze2d-umaze-v1") == stable_source("maze2d-umaze-v1") == "maze2d-umaze-v1"
    assert list(cache.iterdir()) == []
    assert load_dataset("maze2d-umaze-v1").meta.name == "maze2d-umaze-v1"
    remote.unlink()
    assert find("maze2d-umaze-v1") == cache / "maze2d-umaze-sparse-v1.hdf5"


def test_an_official_name_that_cannot_be_downloaded_says_what_to_do(cache: Path, refused: Refused) -> None:
    words = ("hopper-medium-v2: ", "could not be downloaded", "hopper_medium-v2.hdf5", str(cache), DATA_VARIABLE)
    refused(load_dataset, *words, source="hopper-medium-v2")


def test_every_official_name_has_its_name_without_a_download() -> None:
    for name in official_files():
        assert name_of(name) == stable_source(name) == name


def test_a_minari_name_is_passed_on() -> None:
    assert name_of("minari:D4RL/pen/human-v2") == "D4RL/pen/human-v2"
    assert stable_source("minari:D4RL/pen/human-v2") == "minari:D4RL/pen/human-v2"


@pytest.mark.parametrize("file", ["other.npz", "other.hdf5"])
def test_the_name_stored_in_a_file_of_ours_is_its_name_also_before_it_is_loaded(tmp_path: Path, file: str) -> None:
    path = tmp_path / file
    export(little("mine"), path)
    assert name_of(path) == load_dataset(path).meta.name == "mine"


def test_a_damaged_file_is_named_after_its_file_until_it_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "broken.hdf5").write_text("not HDF5")
    assert name_of(tmp_path / "broken.hdf5") == "broken"
    with pytest.raises(MildlyError, match=r"broken\.hdf5"):
        load_dataset(tmp_path / "broken.hdf5")


@pytest.mark.parametrize("file", ["absent.hdf5", "absent.h5", "absent.csv", "absent/deeper"])
def test_a_path_that_is_not_there_is_named(tmp_path: Path, file: str) -> None:
    with pytest.raises(MildlyError, match=f"{tmp_path / file}: no such file"):
        load_dataset(tmp_path / file)


def test_a_folder_that_is_no_data_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match=rf"{tmp_path}: no dataset\.json.*not a data set"):
        load_dataset(tmp_path)


def test_an_unknown_name_comes_with_the_nearest_known_one() -> None:
    with pytest.raises(MildlyError, match=r"unknown data set 'hoper-medium-v2'.*'hopper-medium-v2'"):
        load_dataset("hoper-medium-v2")


def test_an_unknown_name_comes_with_the_nearest_one_of_the_data_folder(tmp_path: Path) -> None:
    (tmp_path / "greenhouse.csv").write_text("")
    for ask in (find, name_of):
        with pytest.raises(MildlyError, match=rf"'green-house'.*'greenhouse'.* not in {tmp_path}"):
            ask("green-house", tmp_path)


# Built-in sets


def test_every_set_with_a_name_is_listed_once() -> None:
    rows = list_datasets()
    assert [row.name for row in rows] == [*builtin_names(), *official_files()]
    assert all(row.where == "to download" for row in rows if row.name in official_files())


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
    assert stable_source("pendulum-mixed") == "pendulum-mixed"
    assert stable_source("./pendulum-mixed") == str(tmp_path / "pendulum-mixed")


# The command


def printed(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    capsys.readouterr()
    assert main(["data", "list", *args]) == 0
    return capsys.readouterr().out


def test_the_list_is_short_and_tells_the_paper_s_sets_by_family(capsys: pytest.CaptureFixture[str]) -> None:
    shown = printed(capsys)
    assert len(shown.splitlines()) <= 20
    assert all(len(line) <= 100 for line in shown.splitlines())
    (hopper,) = (line for line in shown.splitlines() if "hopper-*-v2" in line)
    assert hopper.split() == [
        "hopper-*-v2",
        "random",
        "medium",
        "medium-replay",
        "medium-expert",
        "expert",
        "838.1",
        "MB",
    ]
    (maze,) = (line for line in shown.splitlines() if "maze2d-*-v1" in line)
    assert maze.split() == ["maze2d-*-v1", "umaze", "umaze-dense", "medium", "medium-dense", "unknown"]


def test_the_list_of_all_has_every_official_name_with_its_size(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line.split() for line in printed(capsys, "--all").splitlines()]
    assert {line[0] for line in lines if line} >= {*official_files(), *builtin_names()}
    assert ["hopper-medium-v2", "152.8", "MB"] in lines
    assert ["maze2d-umaze-v1", "unknown"] in lines


def test_the_list_shows_the_data_folder_and_the_cache_and_not_what_is_there_as_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    little("mine").save(tmp_path / "mine")
    write_d4rl(tmp_path / "hopper_medium-v2.hdf5")
    write_d4rl(cache / "pen-v0_demos_clipped.hdf5")
    shown = printed(capsys, "--data-dir", str(tmp_path))
    assert f"In {tmp_path} (--data-dir):" in shown
    lines = [line.split() for line in shown.splitlines()]
    assert ["mine", "5", "transitions"] in lines
    assert any(line[:1] == ["hopper-medium-v2"] and line[-1] == "hopper_medium-v2.hdf5" for line in lines)
    assert f"Downloaded to {cache}:" in shown
    assert any(line[:1] == ["pen-human-v0"] for line in lines)
    (hopper,) = (line for line in lines if line[:1] == ["hopper-*-v2"])
    assert "medium" not in hopper
    (pen,) = (line for line in lines if line[:1] == ["pen-*-v0"])
    assert "human" not in pen
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
    assert f"In {tmp_path} ({DATA_VARIABLE}):" in printed(capsys)


def test_the_list_survives_a_damaged_set_and_an_empty_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "no data sets" in printed(capsys, "--data-dir", str(tmp_path))
    (tmp_path / "hurt").mkdir()
    (tmp_path / "hurt" / "dataset.json").write_text("{")
    assert "hurt" in printed(capsys, "--data-dir", str(tmp_path))


def test_the_list_of_a_folder_that_is_not_there_ends_with_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "list", "--data-dir", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("pendd", "pend"),
        ("plantt.csv", "plant.csv"),
        ("plant", "plant.csv"),
        ("./pen", "pend"),
        ("logs/runn", "logs/run"),
        ("pendulum-mixd", "pendulum-mixed"),
    ],
)
def test_a_name_like_that_of_a_folder_or_file_here_is_told(
    written: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("pend", "logs/run"):
        little().save(tmp_path / name)
    for name in ("plant.csv", "plant.txt", ".pendd"):
        (tmp_path / name).write_text("")
    refused(load_dataset, f"Did you mean '{meant}'?", source=written)


def test_nothing_is_suggested_where_nothing_is_alike(tmp_path: Path, refused: Refused) -> None:
    assert refused(load_dataset, source=tmp_path / "pend.csv").endswith("pend.csv: no such file or folder.")
