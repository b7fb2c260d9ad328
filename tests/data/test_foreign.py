"""Files that other libraries have written (`foreign/README.md`): every transition, without a flag, and a training."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest
from conftest import Refused, train_tiny

from mildly.action_space import ActionSpace
from mildly.cli import main
from mildly.data.convert import convert
from mildly.data.dataset import Array, Dataset
from mildly.data.formats import minari as minari_format
from mildly.data.registry import load_dataset

FOREIGN = Path(__file__).parent / "foreign"
JSON = FOREIGN / "rllib-json"


class Episode(NamedTuple):
    observations: Array  # one more than steps
    actions: Array
    rewards: Array
    over: bool


def episodes(name: str = "rllib-json") -> list[Episode]:
    """The five episodes, from the one file that is plain text."""
    (file,) = (FOREIGN / name).iterdir()
    found = []
    for line in map(json.loads, file.read_text().splitlines()):
        observations = np.array([*line["obs"], line["new_obs"][-1]], np.float32)
        actions = np.array(line["actions"]).reshape(len(line["rewards"]), -1)
        found.append(Episode(observations, actions, np.array(line["rewards"], np.float32), line["terminateds"][-1]))
    return found


def assert_holds(data: Dataset, expected: list[Episode]) -> None:
    """That a data set holds these episodes, and nothing else."""
    assert [rows.stop - rows.start for rows in data.episodes()] == [len(episode.rewards) for episode in expected]
    space = data.meta.action_space or ActionSpace.unit(data.action_size)
    for rows, episode in zip(data.episodes(), expected, strict=True):
        np.testing.assert_array_equal(data.observations[rows], episode.observations[:-1])
        ends = slice(rows.start, rows.stop - episode.over)  # of a terminal row the next observation is never used
        np.testing.assert_array_equal(data.next_observations[ends], episode.observations[1:][: ends.stop - ends.start])
        np.testing.assert_allclose(space.from_unit(data.actions[rows].astype(float)), episode.actions, atol=1e-5)
        np.testing.assert_array_equal(data.rewards[rows], episode.rewards)
        assert data.terminated[rows].tolist() == [False] * (len(episode.rewards) - 1) + [episode.over]
        assert data.truncated[rows].tolist() == [False] * (len(episode.rewards) - 1) + [not episode.over]


def without_last_step(episode: Episode) -> Episode:
    return Episode(episode.observations[:-1], episode.actions[:-1], episode.rewards[:-1], over=False)


def with_next(found: list[Episode]) -> list[Episode]:
    """As files hold them that store next observations."""
    return found


def without_next(found: list[Episode]) -> list[Episode]:
    """As the others do: what was cut off has no next observation in its last step."""
    return [episode if episode.over else without_last_step(episode) for episode in found]


def without_ends(found: list[Episode]) -> list[Episode]:
    """As those do that do not even tell which episodes ended for good."""
    return [without_last_step(episode) for episode in found]


FILES = {
    "d3rlpy-1.1.1.h5": without_next,
    "d3rlpy-2.8.1.h5": without_next,
    "d3rlpy-2.8.1-tuple.h5": without_next,
    "rllib-json": with_next,
    "rllib-json-fragments": with_next,
    "robomimic-0.3.0.hdf5": with_next,
    "lerobot-v2": without_next,
    "lerobot-v3": without_next,
    "stable-baselines.npz": without_ends,
}


@pytest.mark.parametrize("name", FILES)
def test_every_transition_is_read_without_a_flag(name: str, tmp_path: Path) -> None:
    expected = FILES[name](episodes())
    data = load_dataset(FOREIGN / name)
    assert_holds(data, expected)
    assert data.meta.action_space is not None
    assert not any("action-discrete" in note for note in data.meta.notes)
    assert convert(FOREIGN / name, tmp_path / "converted").meta.fingerprint == data.meta.fingerprint


UNUSED = {
    "d3rlpy-1.1.1.h5": None,
    "d3rlpy-2.8.1.h5": None,
    "rllib-json": "Columns that are not used: t, agent_index, action_prob, action_logp, action_dist_inputs, "
    "prev_actions, prev_rewards, infos, unroll_id.",
    "rllib-parquet": "Columns that are not used: agent_id, module_id, weights_seq_no.",
    "robomimic-0.3.0.hdf5": "Arrays that are not used: next_obs/agentview_image, obs/agentview_image, states, mask.",
    "lerobot-v2": "Features that are not used: next.done, timestamp, index, task_index.",
    "lerobot-v3": "Features that are not used: next.done, timestamp, index, task_index.",
    "stable-baselines.npz": "Arrays that are not used: episode_returns.",
}


@pytest.mark.parametrize("name", UNUSED)
def test_what_is_not_used_is_named(name: str) -> None:
    notes = load_dataset(FOREIGN / name).meta.notes
    assert [note for note in notes if "not used" in note] == ([UNUSED[name]] if UNUSED[name] else [])


def test_rllib_writes_a_file_a_row() -> None:
    for path in (FOREIGN / "rllib-parquet", FOREIGN / "rllib-parquet" / "run-000001-00001"):
        data = load_dataset(path)
        assert [rows.stop - rows.start for rows in data.episodes()] == [3, 4]
        assert data.terminated.tolist() == [False, False, True, False, False, False, False]
        assert data.truncated.tolist() == [False, False, False, False, False, False, True]
        for rows in data.episodes():
            inner = slice(rows.start, rows.stop - 1)
            np.testing.assert_array_equal(data.next_observations[inner], data.observations[rows][1:])


def test_one_file_of_several_can_be_read_alone() -> None:
    (file,) = JSON.iterdir()
    assert_holds(load_dataset(file), episodes())


def test_the_parts_of_an_observation_can_be_chosen() -> None:
    demos = FOREIGN / "robomimic-0.3.0.hdf5"
    whole = load_dataset(demos)
    turned = load_dataset(demos, obs="robot0_eef_pos,object")
    np.testing.assert_array_equal(turned.observations, whole.observations[:, [2, 0, 1]])
    np.testing.assert_array_equal(turned.next_observations, whole.next_observations[:, [2, 0, 1]])
    assert load_dataset(demos, obs="states").observation_size == 5
    frames = load_dataset(FOREIGN / "lerobot-v3", obs="observation.environment_state")
    np.testing.assert_array_equal(frames.observations, load_dataset(FOREIGN / "lerobot-v3").observations[:, 2:])


def test_packed_columns_are_refused_and_said_how_to_write(refused: Refused) -> None:
    words = "column 'obs' is packed (a pickle", "compress_columns=[]"
    refused.dataset(FOREIGN / "rllib-json-packed", *words)


@pytest.mark.parametrize("name", ["d3rlpy-1.1.1-discrete.h5", "d3rlpy-2.8.1-discrete.h5", "rllib-json-discrete"])
def test_discrete_actions_are_read_and_not_trained_on(name: str, tmp_path: Path, refused: Refused) -> None:
    expected = episodes("rllib-json-discrete")
    assert_holds(load_dataset(FOREIGN / name), expected if name.startswith("rllib") else without_next(expected))
    for source in (FOREIGN / name, convert(FOREIGN / name, tmp_path / "set") and tmp_path / "set"):
        words = "The actions are discrete", "not supported yet", "--action-low LOW --action-high HIGH"
        message = refused(train_tiny, *words, algorithm="bc", out=tmp_path / "run", dataset=str(source))
        assert "noise" not in message
        assert main(["data", "info", str(source)]) == 0
        assert main(["data", "check", str(source)]) == 1


@pytest.mark.parametrize("name", [*FILES, "rllib-parquet"])
def test_each_can_be_trained_on(name: str, tmp_path: Path) -> None:
    source = tmp_path / name
    shutil.copytree(FOREIGN / name, source) if (FOREIGN / name).is_dir() else shutil.copy(FOREIGN / name, source)
    run = train_tiny("td3-bc", tmp_path / "run", dataset=str(source), steps=4, eval_every=0, log_every=2)
    assert [line["step"] for line in run.metrics()] == [2, 4]


# Minari's own files, by Minari itself


@pytest.fixture
def main_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """`main_data.hdf5` of the five episodes, with observations of two parts; or with choices, if asked for."""
    import minari
    from gymnasium import spaces
    from minari.data_collector import EpisodeBuffer

    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    choices = getattr(request, "param", False)
    buffers = []
    for i, episode in enumerate(episodes("rllib-json-discrete" if choices else "rllib-json")):
        last = np.arange(len(episode.rewards)) == len(episode.rewards) - 1
        observations = {"goal": episode.observations[:, :2], "state": episode.observations[:, 2:]}
        flags = {"terminations": last & episode.over, "truncations": last & (not episode.over)}
        actions = episode.actions[:, 0] if choices else episode.actions.astype(np.float32)
        buffers.append(EpisodeBuffer(i, None, None, observations, actions, episode.rewards, **flags))
    parts = {name: spaces.Box(-np.inf, np.inf, (size,), np.float32) for name, size in (("goal", 2), ("state", 1))}
    space: Any = spaces.Discrete(3) if choices else spaces.Box(-2, 2, (2,), np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        minari.create_dataset_from_buffers(
            "made/small-v0", buffers, observation_space=spaces.Dict(parts), action_space=space
        )
    return tmp_path / "minari" / "made" / "small-v0" / "data" / "main_data.hdf5"


def test_minaris_file_given_directly_is_its_folder(main_data: Path, tmp_path: Path) -> None:
    data = load_dataset(main_data)
    assert_holds(data, episodes())
    assert data.meta.name == "made/small-v0"
    assert data.meta.action_space == ActionSpace((-2.0, -2.0), (2.0, 2.0))
    assert data.meta.fingerprint == load_dataset(main_data.parent.parent).meta.fingerprint
    run = train_tiny("bc", tmp_path / "run", dataset=str(main_data), steps=2, eval_every=0)
    assert run.checkpoint.exists()


@pytest.mark.parametrize("way", ["alone", "without the package", "with options"])
def test_minaris_file_can_be_read_without_what_is_around_it(
    main_data: Path, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"obs": "observations/*"} if way == "with options" else {}
    if way == "alone":
        (main_data.parent / "metadata.json").unlink()
    if way == "without the package":
        monkeypatch.setattr(minari_format, "is_installed", lambda: False)
    data = load_dataset(main_data, **options)
    assert_holds(data, episodes())
    assert data.meta.name == "small-v0"
    assert any("found in the data" in note for note in data.meta.notes)
    assert any(
        "infos" not in note and "observations/goal (2), observations/state (1)" in note for note in data.meta.notes
    )


@pytest.mark.parametrize("main_data", [True], indirect=True)
def test_minaris_choices_are_not_trained_on(main_data: Path, tmp_path: Path, refused: Refused) -> None:
    words = "The actions are discrete", "action space is Discrete(3)"
    refused(train_tiny, *words, algorithm="bc", out=tmp_path / "run", dataset=str(main_data))
    (main_data.parent / "metadata.json").unlink()
    words = "The actions are discrete", "'actions' holds 3 whole numbers (0, 1, 2)"
    refused(train_tiny, *words, algorithm="bc", out=tmp_path / "run", dataset=str(main_data))


def test_an_episode_in_a_group_of_its_own_may_have_any_name(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "log.h5", "w") as file:
        for i, episode in enumerate(episodes()):
            group = file.create_group(f"run {i}")
            group["states"], group["acts"], group["rews"] = episode.observations, episode.actions, episode.rewards
    data = load_dataset(tmp_path / "log.h5")
    assert_holds(data, [episode._replace(over=False) for episode in episodes()])
    assert "No array says where an episode ended for good: every end is taken for a cut-off." in data.meta.notes
