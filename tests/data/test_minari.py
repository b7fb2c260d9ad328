"""Minari's data sets, made by its own collector: what is read, what is refused, and the way back. Quietly."""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium as gym
import h5py
import minari
import numpy as np
import pytest
from conftest import make_dataset
from gymnasium import spaces

from mildly.action_space import ActionSpace
from mildly.data.convert import convert, export
from mildly.data.dataset import Dataset, Meta
from mildly.data.formats import minari as minari_format
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

ENV = "mildly-tests/Goal-v0"


class Goal(gym.Env[Any, Any]):
    """Observations with a goal, nested, so that their order matters; ends for good at the third step."""

    def __init__(self, actions: str = "box") -> None:
        inner = spaces.Tuple([spaces.Box(-9, 9, (1,)), spaces.Box(-9, 9, (2, 2))])
        self.observation_space = spaces.Dict({"z": spaces.Box(-9, 9, (2,)), "a": spaces.Box(-9, 9, (1,)), "m": inner})
        box, choice = spaces.Box(-3, 5, (1,), np.float32), spaces.Discrete(3)
        self.action_space = {"box": box, "discrete": choice, "both": spaces.Tuple([box, choice])}[actions]

    def _observe(self) -> dict[str, Any]:
        count = np.float32(self.count)
        parts = np.array([count]), np.full((2, 2), count + 0.25, np.float32)
        return {"z": np.array([count, -count]), "a": np.array([count + 0.5], np.float32), "m": parts}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.count = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.count += 1
        return self._observe(), float(self.count), self.count == 3, False, {}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Minari's own folder, and one environment more; any warning of ours is an error."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    if ENV not in gym.registry:
        gym.register(ENV, f"{__name__}:Goal", max_episode_steps=10)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", ResourceWarning)  # Minari's collector leaves its folder to the interpreter
        yield tmp_path / "minari"
    gym.registry.pop(ENV, None)


def collect(env_id: str, name: str, episodes: int = 3, **more: Any) -> minari.MinariDataset:
    """Random episodes, by Minari's own collector."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made_env = gym.make(env_id, **more.pop("env_arguments", {}))
        env = minari.DataCollector(made_env, data_format=more.pop("data_format", None))
        env.action_space.seed(0)
        for episode in range(episodes):
            env.reset(seed=episode)
            done = False
            while not done:
                _, _, terminated, truncated, _ = env.step(env.action_space.sample())
                done = terminated or truncated
        made = env.create_dataset(name, **more)
        env.close()
    return made


@pytest.mark.parametrize("data_format", ["hdf5", "parquet"])
@pytest.mark.parametrize("by", ["name", "folder"])
def test_a_collected_set_is_read_with_its_units_and_scores(folder: Path, by: str, data_format: str) -> None:
    made = collect(
        "Pendulum-v1",
        "pendulum/random-v0",
        data_format=data_format,
        ref_min_score=-1600.0,
        ref_max_score=-150.0,
    )
    path = folder / "pendulum" / "random-v0"
    dataset = load_dataset("minari:pendulum/random-v0" if by == "name" else path)
    episodes = list(made.iterate_episodes())
    assert [len(range(600)[rows]) for rows in dataset.episodes()] == [200, 200, 200]
    for rows, episode in zip(dataset.episodes(), episodes, strict=True):
        np.testing.assert_array_equal(dataset.observations[rows], episode.observations[:-1])
        np.testing.assert_array_equal(dataset.next_observations[rows], episode.observations[1:])
        np.testing.assert_array_equal(dataset.actions[rows], episode.actions / 2)
        np.testing.assert_array_equal(dataset.rewards[rows], episode.rewards.astype(np.float32))
    assert not dataset.terminated.any()
    assert np.flatnonzero(dataset.truncated).tolist() == [199, 399, 599]
    meta = dataset.meta
    assert (meta.name, meta.env_id) == ("pendulum/random-v0", "Pendulum-v1")
    assert meta.action_space == ActionSpace((-2.0,), (2.0,))
    assert (meta.reference_min, meta.reference_max) == (-1600.0, -150.0)
    assert meta.notes == ("Actions were mapped to [-1, 1] from the bounds of the log: -2 to 2.",)


def test_without_scores_of_its_own_a_known_environment_s_are_used_and_told() -> None:
    collect("Hopper-v4", "hopper/random-v0", episodes=1)
    meta = load_dataset("minari:hopper/random-v0").meta
    assert (meta.reference_min, meta.reference_max) == (-20.272305, 3234.3)
    assert any("D4RL's for its environment are used" in note for note in meta.notes)


def test_a_version_whose_rewards_differ_gets_no_scores() -> None:
    collect("Hopper-v5", "hopper/new-v0", episodes=1)
    meta = load_dataset("minari:hopper/new-v0").meta
    assert (meta.env_id, meta.reference_min, meta.reference_max) == ("Hopper-v5", None, None)


def test_observations_of_parts_are_laid_out_as_gymnasium_does_it() -> None:
    collect(ENV, "goal/random-v0", episodes=2)
    dataset = load_dataset("minari:goal/random-v0")
    env = gym.make(ENV)
    flat = gym.wrappers.FlattenObservation(env)
    expected = [flat.reset()[0]] + [flat.step(np.zeros(1, np.float32))[0] for _ in range(3)]
    assert dataset.observation_size == 8
    np.testing.assert_array_equal(dataset.observations[:3], expected[:3])
    np.testing.assert_array_equal(dataset.next_observations[:3], expected[1:])
    assert dataset.terminated.tolist() == [False, False, True] * 2
    assert not dataset.truncated.any()
    assert dataset.meta.action_space == ActionSpace((-3.0,), (5.0,))


# Refused


def test_a_set_that_is_not_here_says_how_to_get_it() -> None:
    with pytest.raises(MildlyError, match=r"minari:D4RL/pen/human-v2: not on this machine.*minari download D4RL/pen/"):
        load_dataset("minari:D4RL/pen/human-v2")


def test_discrete_actions_are_read_and_noted() -> None:
    collect(ENV, "goal/discrete-v0", episodes=1, env_arguments={"actions": "discrete"})
    data = load_dataset("minari:goal/discrete-v0")
    assert data.action_size == 1
    assert any("[The set's action space is Discrete(3).]" in note for note in data.meta.notes)


def test_actions_that_are_no_vectors_are_refused() -> None:
    collect(ENV, "goal/both-v0", episodes=1, env_arguments={"actions": "both"})
    with pytest.raises(MildlyError, match=r"minari:goal/both-v0: its actions are Tuple\(.*\); continuous"):
        load_dataset("minari:goal/both-v0")


def test_bounds_that_leave_no_room_are_refused_unless_others_are_given(folder: Path) -> None:
    collect("Pendulum-v1", "pendulum/random-v0", episodes=1)
    path = folder / "pendulum" / "random-v0" / "data" / "metadata.json"
    described = json.loads(path.read_text())
    space = json.loads(described["action_space"])
    path.write_text(json.dumps(described | {"action_space": json.dumps(space | {"low": [2.0], "high": [2.0]})}))
    with pytest.raises(MildlyError, match=r"minari:pendulum/random-v0: .*got 2 to 2.* --action-low"):
        load_dataset("minari:pendulum/random-v0")
    data = load_dataset("minari:pendulum/random-v0", action_low=-2, action_high=2)
    assert data.meta.action_space == ActionSpace((-2.0,), (2.0,))


@pytest.mark.parametrize("damage", ["cut", "metadata", "no metadata", "other version", "no observations"])
def test_a_damaged_set_is_told_as_such(folder: Path, damage: str) -> None:
    collect("Pendulum-v1", "pendulum/random-v0", episodes=1)
    data = folder / "pendulum" / "random-v0" / "data"
    content = (data / "main_data.hdf5").read_bytes()
    described = json.loads((data / "metadata.json").read_text())
    if damage == "cut":
        (data / "main_data.hdf5").write_bytes(content[: len(content) // 2])
    elif damage == "metadata":
        (data / "metadata.json").write_text("{")
    elif damage == "no metadata":
        (data / "metadata.json").unlink()
    elif damage == "other version":
        (data / "metadata.json").write_text(json.dumps({**described, "minari_version": "99.0"}))
    else:
        with h5py.File(data / "main_data.hdf5", "a") as file:
            del file["episode_0/observations"]
    for source in ("minari:pendulum/random-v0", folder / "pendulum" / "random-v0"):
        with pytest.raises(MildlyError, match=r"pendulum/random-v0: .*damaged"):
            load_dataset(source)


# The way back


def chain(rows: int = 30, **meta: Any) -> Dataset:
    """Episodes whose next observation is the following row's observation, as Minari needs it."""
    data = make_dataset(rows)
    following = data.next_observations.copy()
    inside = ~(data.terminated | data.truncated)
    following[inside] = data.observations[1:][inside[:-1]]
    return Dataset.from_arrays(
        data.observations,
        data.actions,
        data.rewards,
        following,
        data.terminated,
        data.truncated,
        dataclasses.replace(data.meta, **meta),
    )


@pytest.mark.parametrize("space", [ActionSpace((-2.0, -4.0), (2.0, 4.0)), None])
def test_an_exported_set_comes_back_to_the_bit(space: ActionSpace | None) -> None:
    dataset = chain(action_space=space)
    export(dataset, "minari:mine/chain-v0")
    back = load_dataset("minari:mine/chain-v0")
    assert back.meta.fingerprint == dataset.meta.fingerprint
    assert back.meta.action_space == space
    theirs = next(minari.load_dataset("mine/chain-v0").iterate_episodes())
    half = np.array(space.high if space else (1, 1))
    np.testing.assert_allclose(theirs.actions, dataset.actions[:10] * half, rtol=1e-6)


def test_uneven_bounds_come_back_but_for_rounding() -> None:
    dataset = chain(action_space=ActionSpace((-3.0, 0.0), (5.0, 0.3)))
    export(dataset, "minari:mine/chain-v0")
    back = load_dataset("minari:mine/chain-v0")
    np.testing.assert_allclose(back.actions, dataset.actions, atol=1e-6)
    np.testing.assert_allclose(back.meta.action_space.high, (5.0, 0.3))


def test_environment_and_scores_go_with_the_set() -> None:
    collect("Pendulum-v1", "pendulum/random-v0", episodes=2, ref_min_score=-1600.0, ref_max_score=-150.0)
    dataset = load_dataset("minari:pendulum/random-v0")
    export(dataset, "minari:pendulum/again-v0")
    again = load_dataset("minari:pendulum/again-v0").meta
    assert again == dataclasses.replace(dataset.meta, name=again.name, source=again.source)


def test_a_set_without_bounds_is_exported_in_its_environment_s_units() -> None:
    collect("Pendulum-v1", "pendulum/random-v0", episodes=1)
    dataset = load_dataset("minari:pendulum/random-v0")
    bare = dataclasses.replace(dataset, meta=Meta("bare", env_id="Pendulum-v1"))
    export(bare, "minari:pendulum/bare-v0")
    first, second = (minari.load_dataset(f"pendulum/{name}-v0")[0] for name in ("random", "bare"))
    np.testing.assert_array_equal(first.actions, second.actions)


def test_an_environment_that_is_not_installed_is_left_out_and_the_scores_stay() -> None:
    dataset = chain(env_id="NoSuchRobot-v0", reference_min=1.0, reference_max=2.0)
    export(dataset, "minari:mine/chain-v0")
    meta = load_dataset("minari:mine/chain-v0").meta
    assert (meta.env_id, meta.reference_min, meta.reference_max) == (None, 1.0, 2.0)


def test_an_existing_set_is_never_touched(folder: Path) -> None:
    export(chain(), "minari:mine/chain-v0")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(MildlyError, match="minari:mine/chain-v0: exists already"):
        export(chain(40), "minari:mine/chain-v0")
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("name", ["mine", "mine/", "", "../mine-v0", "mine/../../x-v0", "/tmp/mine-v0"])
def test_a_name_that_minari_does_not_take_is_refused_before_anything_is_written(folder: Path, name: str) -> None:
    with pytest.raises(MildlyError, match="Minari's names look like"):
        export(chain(), f"minari:{name}")
    assert not any(path.is_file() for path in folder.parent.rglob("*"))


def test_steps_that_do_not_join_cannot_be_exported(folder: Path) -> None:
    with pytest.raises(MildlyError, match="in episode 0 the next observation of a row is not"):
        export(make_dataset(), "minari:mine/loose-v0")
    assert not (folder / "mine").exists()


def test_nothing_stays_behind_when_the_disk_is_full(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from minari.dataset.minari_storage import MinariStorage

    def fail(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(MinariStorage, "update_metadata", fail)
    with pytest.raises(MildlyError, match=r"minari:mine/chain-v0: cannot be written.*No space left"):
        export(chain(), "minari:mine/chain-v0")
    assert not (folder / "mine" / "chain-v0").exists()


def test_convert_takes_minari_on_either_side(tmp_path: Path) -> None:
    collect("Pendulum-v1", "pendulum/random-v0", episodes=2)
    native = convert("minari:pendulum/random-v0", tmp_path / "native")
    convert(tmp_path / "native", "minari:pendulum/copy-v0")
    assert load_dataset("minari:pendulum/copy-v0").meta.fingerprint == native.meta.fingerprint


def test_many_episodes_are_handed_over_in_parts_and_come_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minari_format, "_AT_ONCE", 3)
    rows = 80
    observations = np.arange(2 * rows, dtype=np.float32).reshape(rows, 2)
    data = Dataset.from_arrays(
        observations,
        np.random.default_rng(0).uniform(-1, 1, (rows, 1)),
        np.arange(rows),
        observations + 2,
        np.zeros(rows),
        np.arange(rows) % 10 == 9,
        Meta("many"),
    )
    export(data, "minari:many/parts-v0")
    assert load_dataset("minari:many/parts-v0").meta.fingerprint == data.meta.fingerprint
