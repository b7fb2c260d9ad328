"""Collecting: whole episodes in the order they started, the same again from the same seed, actions in [-1, 1]."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import CountingActor

from mildly.action_space import ActionSpace
from mildly.actors import TanhGaussianActor
from mildly.collect.rollouts import (
    ArrayPolicy,
    PolicyBehavior,
    collect,
    concatenate,
    describe,
    from_own_units,
    stream,
    uniform,
)
from mildly.data.dataset import FIELDS, Dataset, Meta
from mildly.environments import make_env
from mildly.errors import MildlyError
from mildly.policy import Policy

META = Meta(name="pendulum-random", env_id="Pendulum-v1", action_space=ActionSpace((-2.0,), (2.0,)))


def pendulum(steps: int = 450, seed: int = 0, environments: int = 3) -> Dataset:
    return collect("Pendulum-v1", uniform(1), steps, META, seed=seed, environments=environments)


@pytest.mark.parametrize(("steps", "environments"), [(1, 3), (200, 1), (450, 3), (601, 2)])
def test_exactly_the_asked_number_of_steps_is_collected(steps: int, environments: int) -> None:
    assert len(pendulum(steps, environments=environments)) == steps


@pytest.mark.parametrize("steps", [0, -5])
def test_no_steps_are_refused(steps: int) -> None:
    with pytest.raises(MildlyError, match="steps"):
        pendulum(steps)


def test_the_same_seed_gives_the_same_data_and_another_seed_others() -> None:
    first, again, other = pendulum(seed=4), pendulum(seed=4), pendulum(seed=5)
    assert first.meta.fingerprint == again.meta.fingerprint != other.meta.fingerprint
    assert not np.array_equal(first.observations[0], other.observations[0])


def test_all_episodes_but_the_last_are_whole_and_end_by_the_time_limit() -> None:
    dataset = pendulum(450)
    assert [episode.stop - episode.start for episode in dataset.episodes()] == [200, 200, 50]
    assert not dataset.terminated.any()
    assert np.flatnonzero(dataset.truncated).tolist() == [199, 399, 449]
    for episode in dataset.episodes():
        following = dataset.next_observations[episode.start : episode.stop - 1]
        np.testing.assert_array_equal(following, dataset.observations[episode.start + 1 : episode.stop])


def test_episodes_of_unequal_length_stand_in_the_order_in_which_they_started() -> None:
    dataset = collect("Hopper-v4", uniform(3), 400, Meta(name="hopper-random"), seed=2, environments=4)
    episodes = dataset.episodes()
    assert len({episode.stop - episode.start for episode in episodes}) > 3
    assert all(dataset.terminated[episode.stop - 1] for episode in episodes[:-1])  # the robot fell
    env = make_env("Hopper-v4")
    for number, episode in enumerate(episodes):
        first = env.reset(seed=2 * 1_000_003 + number)[0].astype(np.float32)
        np.testing.assert_array_equal(dataset.observations[episode.start], first)
    env.close()


def test_stored_actions_lie_in_the_unit_box_while_the_environment_gets_its_own_scale() -> None:
    dataset = pendulum(300)
    assert np.abs(dataset.actions).max() <= 1.0
    assert dataset.actions.min() < -0.9
    assert dataset.actions.max() > 0.9
    # Pendulum's own equation of motion (g 10, m 1, l 1, dt 0.05) with a torque of twice the stored action.
    sine, speed = dataset.observations[:, 1], dataset.observations[:, 2]
    torque = 2 * dataset.actions[:, 0]
    expected = np.clip(speed + (15 * sine + 3 * torque) * 0.05, -8, 8)
    np.testing.assert_allclose(dataset.next_observations[:, 2], expected, atol=1e-4)
    angle = np.arctan2(sine, dataset.observations[:, 0])
    np.testing.assert_allclose(dataset.rewards, -(angle**2 + 0.1 * speed**2 + 0.001 * torque**2), atol=1e-4)


def test_a_policy_that_leaves_the_unit_box_is_clipped() -> None:
    dataset = collect("Pendulum-v1", lambda o, rng: np.full((len(o), 1), 3.0), 5, META, environments=1)
    assert dataset.actions.tolist() == [[1.0]] * 5


def test_collecting_gives_the_bits_it_always_gave() -> None:
    """Sets and results were published from these; the fingerprint was taken when the built-in sets were made."""
    assert pendulum(450, seed=3, environments=5).meta.fingerprint == (
        "e63827b2ac7bb74fc6f87291207c11fab3f37dfcb0530c3df70251075ea3b432"
    )


def test_environments_that_begin_again_act_behind_the_others() -> None:
    """Which draw goes to which environment is part of the bits: those whose episode has just begun come last."""
    dataset = collect("Hopper-v4", uniform(3), 200, Meta(name="hopper"), seed=2, environments=3)
    episodes, draws = dataset.episodes(), np.random.default_rng(2)
    lengths = [episode.stop - episode.start for episode in episodes]
    running, begun, step = [0, 1, 2], 3, dict.fromkeys(range(len(episodes) + 3), 0)
    seen: list[int] = []
    while any(step[i] < lengths[i] for i in running if i < len(episodes)):
        for number, action in zip(list(running), draws.uniform(-1, 1, (len(running), 3)), strict=True):
            if number < len(episodes) and step[number] < lengths[number]:
                row = episodes[number].start + step[number]
                np.testing.assert_array_equal(dataset.actions[row], action.astype(np.float32))
                seen.append(row)
            step[number] += 1
            if number < len(episodes) - 1 and step[number] == lengths[number]:
                running.remove(number)
                running.append(begun)
                begun += 1
    assert sorted(seen) == list(range(200))
    assert len(episodes) > 4


@pytest.mark.parametrize("steps", [1, 20, 300])
def test_a_stream_gives_the_episodes_of_a_collection_one_by_one(steps: int) -> None:
    whole = collect("Hopper-v4", uniform(3), steps, Meta(name="hopper"), seed=2, environments=4)
    pieces = list(stream("Hopper-v4", uniform(3), steps, seed=2, environments=4))
    assert [len(piece["rewards"]) for piece in pieces] == [e.stop - e.start for e in whole.episodes()]
    for field in FIELDS:
        joined = np.concatenate([piece[field] for piece in pieces]).astype(getattr(whole, field).dtype)
        np.testing.assert_array_equal(joined, getattr(whole, field))
    assert pieces[-1]["truncated"][-1] or pieces[-1]["terminated"][-1]


def test_collecting_stops_as_soon_as_the_steps_are_there() -> None:
    """One episode of 200 gives all of 150 steps: the other environments' episodes need no end."""
    calls = []
    act = uniform(1)
    collect("Pendulum-v1", lambda o, rng: calls.append(len(o)) or act(o, rng), 150, META, environments=3)
    assert calls == [3] * 150


@pytest.mark.parametrize(("wrong", "message"), [({"environments": 0}, "environments must be"), ({"seed": -1}, "seed")])
def test_impossible_numbers_are_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(MildlyError, match=message):
        collect("Pendulum-v1", uniform(1), 5, META, **wrong)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda n: np.zeros((n, 2)), r"shape \(2, 2\); the environment needs \(2, 1\)"),
        (lambda n: np.zeros(n), r"shape \(2,\)"),
        (lambda n: np.full((n, 1), np.nan), "NaN"),
    ],
)
def test_a_policy_with_unusable_answers_is_told(answer: Callable[[int], np.ndarray], message: str) -> None:
    for act in (lambda o, rng: answer(len(o)), from_own_units(lambda o, rng: answer(len(o)), "Pendulum-v1")):
        with pytest.raises(MildlyError, match=message):
            collect("Pendulum-v1", act, 5, META, environments=2)


def test_actions_in_the_environments_units_are_stored_in_the_unit_box_and_clipped() -> None:
    values = np.array([[-5.0], [-2.0], [0.5], [2.0], [3.0]])
    act = from_own_units(lambda o, rng: values, "Pendulum-v1")
    dataset = collect("Pendulum-v1", act, 5, META, environments=5)
    assert dataset.actions[0].tolist() == [-1.0]
    np.testing.assert_array_equal(
        act(np.zeros((5, 3)), np.random.default_rng(0)), [[-2.5], [-1.0], [0.25], [1.0], [1.5]]
    )


def test_a_policy_that_remembers_has_its_own_episode_and_rewards_in_each_environment() -> None:
    """Hopper's episodes end at different times, so that environments are at different steps of theirs."""
    behavior = PolicyBehavior(Policy(CountingActor(11, 3), reward_scale=0.5), "Hopper-v4", deterministic=True)
    dataset, again = (
        collect("Hopper-v4", behavior, 300, Meta(name="hopper"), seed=2, environments=4) for _ in range(2)
    )
    assert dataset.meta.fingerprint == again.meta.fingerprint  # it is started anew
    episodes = dataset.episodes()
    assert len({episode.stop - episode.start for episode in episodes}) > 3
    assert len(episodes) > 4  # so some environments have begun a second one
    for episode in episodes:
        actions, rewards = dataset.actions[episode], dataset.rewards[episode].astype(np.float64)
        before = np.concatenate([[0.0], rewards.cumsum()[:-1]])
        np.testing.assert_allclose(actions[:, 0], np.arange(len(rewards)) / 1000, atol=1e-7)
        np.testing.assert_allclose(actions[:, 1], np.tanh(0.5 * before / 100), atol=1e-6)
        np.testing.assert_allclose(actions[:, 2], np.tanh(2 * dataset.observations[episode][:, -1]), atol=1e-6)


def test_a_policys_draws_depend_on_the_seed_alone() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        policy = Policy(TanhGaussianActor(3, 1, (8,)), action_space=ActionSpace((-2.0,), (2.0,)))
    drawn = PolicyBehavior(policy, "Pendulum-v1")

    def made(behavior: PolicyBehavior, seed: int) -> Dataset:
        return collect("Pendulum-v1", behavior, 50, META, seed=seed, environments=2)

    first = made(drawn, 0)
    torch.rand(7)  # torch's global numbers play no part
    assert made(drawn, 0).meta.fingerprint == first.meta.fingerprint != made(drawn, 1).meta.fingerprint
    mean = made(PolicyBehavior(policy, "Pendulum-v1", deterministic=True), 0)
    np.testing.assert_allclose(2 * mean.actions, policy.act(mean.observations), atol=1e-6)
    assert np.abs(2 * first.actions - policy.act(first.observations)).max() > 0.1


def test_reference_returns_are_the_benchmarks_only_in_its_own_environment() -> None:
    assert describe("hopper-medium-collected", "Hopper-v4").reference_max == 3234.3
    assert describe("hopper-medium-collected", "Hopper-v5").reference_max is None
    assert describe("anything", "Pendulum-v1").action_space == ActionSpace((-2.0,), (2.0,))


def test_progress_rises_to_the_number_of_steps() -> None:
    seen: list[int] = []
    collect("Pendulum-v1", uniform(1), 250, META, environments=2, progress=seen.append)
    assert seen == sorted(seen)
    assert seen[0] == 2
    assert seen[-1] == 250


def test_an_environment_that_does_not_exist_is_named() -> None:
    with pytest.raises(MildlyError, match="NoSuchPendulum-v1"):
        collect("NoSuchPendulum-v1", uniform(1), 5, META)


def test_parts_stand_behind_one_another_with_their_episodes_apart() -> None:
    parts = [pendulum(30, seed=1), pendulum(20, seed=2)]
    whole = concatenate(parts, Meta(name="both"))
    assert (len(whole), whole.meta.name) == (50, "both")
    assert whole.episodes() == [slice(0, 30), slice(30, 50)]
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(whole, field)[:30], getattr(parts[0], field))
        np.testing.assert_array_equal(getattr(whole, field)[30:], getattr(parts[1], field))


# ArrayPolicy

POLICY = {
    "W0": np.array([[1.0, -2.0], [0.5, 0.25], [-1.0, 1.0]]),
    "b0": np.array([0.1, -0.2, 0.3]),
    "W1": np.array([[0.5, -1.0, 0.25], [1.5, 0.5, -0.75]]),
    "b1": np.array([0.05, -0.1]),
    "act": np.array("relu"),
    "squash": np.array("tanh"),
    "log_std": np.array([-1.0, 0.5]),
}
OBSERVATIONS = np.array([[0.3, -0.7], [1.2, 0.4], [-2.0, 0.1]], dtype=np.float32)


def save_policy(path: Path, **changes: np.ndarray) -> Path:
    np.savez(path, **(POLICY | changes))
    return path


def hidden_by_hand(observation: np.ndarray, activation: str) -> list[float]:
    values = []
    for weights, bias in zip(POLICY["W0"], POLICY["b0"], strict=True):
        x = sum(float(w) * float(o) for w, o in zip(weights, observation, strict=True)) + float(bias)
        values.append(math.tanh(x) if activation == "tanh" else max(x, 0.0))
    return values


def linear_by_hand(hidden: list[float], weights: np.ndarray, bias: np.ndarray) -> list[float]:
    return [
        sum(float(w) * h for w, h in zip(row, hidden, strict=True)) + float(b)
        for row, b in zip(weights, bias, strict=True)
    ]


@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("squash", ["tanh", "clip"])
def test_a_deterministic_array_policy_equals_the_hand_computation(tmp_path: Path, activation: str, squash: str) -> None:
    path = save_policy(tmp_path / "policy.npz", act=np.array(activation), squash=np.array(squash))
    actions = ArrayPolicy(path, deterministic=True)(OBSERVATIONS, np.random.default_rng(0))
    for observation, action in zip(OBSERVATIONS, actions, strict=True):
        outputs = linear_by_hand(hidden_by_hand(observation, activation), POLICY["W1"], POLICY["b1"])
        by_hand = [math.tanh(z) if squash == "tanh" else min(max(z, -1.0), 1.0) for z in outputs]
        np.testing.assert_allclose(action, by_hand, rtol=1e-12)


def test_an_array_policy_scales_and_clips_observations_where_the_file_says_so(tmp_path: Path) -> None:
    mean, std, clip = np.array([0.5, -0.5]), np.array([0.1, 2.0]), np.array(3.0)
    scaled = save_policy(tmp_path / "scaled.npz", obs_mean=mean, obs_std=std, obs_clip=clip)
    actions = ArrayPolicy(scaled, deterministic=True)(OBSERVATIONS, np.random.default_rng(0))
    plain = ArrayPolicy(save_policy(tmp_path / "plain.npz"), deterministic=True)
    # (0.3 - 0.5) / 0.1 = -2, (1.2 - 0.5) / 0.1 = 7 -> 3, (-2 - 0.5) / 0.1 = -25 -> -3
    by_hand = np.array([[-2.0, -0.1], [3.0, 0.45], [-3.0, 0.3]])
    np.testing.assert_allclose(actions, plain(by_hand, np.random.default_rng(0)), atol=1e-6)


def test_the_noise_of_an_array_policy_is_gaussian_before_the_squash(tmp_path: Path) -> None:
    policy = ArrayPolicy(save_policy(tmp_path / "policy.npz"))
    actions = policy(OBSERVATIONS, np.random.default_rng(7))
    noise = np.random.default_rng(7).standard_normal((3, 2))
    for i, observation in enumerate(OBSERVATIONS):
        outputs = linear_by_hand(hidden_by_hand(observation, "relu"), POLICY["W1"], POLICY["b1"])
        by_hand = [math.tanh(outputs[j] + math.exp((-1.0, 0.5)[j]) * noise[i, j]) for j in range(2)]
        np.testing.assert_allclose(actions[i], by_hand, rtol=1e-12)


def test_a_state_dependent_noise_head_reads_the_last_hidden_layer_and_is_bounded(tmp_path: Path) -> None:
    weights, bias = np.array([[0.2, -0.1, 0.4], [30.0, 30.0, 30.0]]), np.array([-0.5, 3.0])
    policy = ArrayPolicy(save_policy(tmp_path / "policy.npz", Wls=weights, bls=bias))
    assert policy.layers == 2
    actions = policy(OBSERVATIONS, np.random.default_rng(7))
    noise = np.random.default_rng(7).standard_normal((3, 2))
    for i, observation in enumerate(OBSERVATIONS):
        hidden = hidden_by_hand(observation, "relu")
        outputs, log_std = linear_by_hand(hidden, POLICY["W1"], POLICY["b1"]), linear_by_hand(hidden, weights, bias)
        by_hand = [math.tanh(outputs[j] + math.exp(min(log_std[j], 2.0)) * noise[i, j]) for j in range(2)]
        np.testing.assert_allclose(actions[i], by_hand, rtol=1e-12)


def test_an_array_policy_can_collect(tmp_path: Path) -> None:
    path = tmp_path / "policy.npz"
    weights = {"W0": np.array([[0.0, -4.0, -1.0]]), "b0": np.array([0.0]), "log_std": np.array([-1.0])}
    np.savez(path, **weights, act=np.array("tanh"), squash=np.array("clip"))
    dataset = collect("Pendulum-v1", ArrayPolicy(path, deterministic=True), 50, META, environments=1)
    expected = np.clip(-4 * dataset.observations[:, 1] - dataset.observations[:, 2], -1, 1)
    np.testing.assert_allclose(dataset.actions[:, 0], expected, atol=1e-5)


@pytest.mark.parametrize("missing", ["b1", "W0", "act", "squash", "log_std"])
def test_an_array_policy_without_a_part_says_which(tmp_path: Path, missing: str) -> None:
    np.savez(tmp_path / "policy.npz", **{name: array for name, array in POLICY.items() if name != missing})
    with pytest.raises(MildlyError, match=rf"policy\.npz: not a policy's arrays: '{missing}' is missing"):
        ArrayPolicy(tmp_path / "policy.npz")


def test_a_deterministic_array_policy_needs_no_noise(tmp_path: Path) -> None:
    np.savez(tmp_path / "policy.npz", **{name: array for name, array in POLICY.items() if name != "log_std"})
    assert ArrayPolicy(tmp_path / "policy.npz", deterministic=True).observation_size == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"obs_mean": np.zeros(2)}, "'obs_std' is missing"),
        ({"Wls": np.zeros((2, 3))}, "'bls' is missing"),
        ({"Wls": np.zeros((2, 4)), "bls": np.zeros(2)}, "'Wls' has shape"),
        ({"W1": np.zeros((2, 4))}, "'W1' has shape"),
        ({"b0": np.zeros(7)}, "'W0' has shape"),
        ({"W0": np.array("text")}, "'W0' holds no numbers"),
    ],
)
def test_arrays_that_do_not_fit_together_are_named(tmp_path: Path, change: dict[str, np.ndarray], message: str) -> None:
    with pytest.raises(MildlyError, match=message):
        ArrayPolicy(save_policy(tmp_path / "policy.npz", **change))


class Hostile:
    """A pickle that leaves a file behind if anything ever unpickles it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_files_that_are_no_array_policy_are_named_and_no_pickle_runs(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    whole = save_policy(tmp_path / "whole.npz").read_bytes()
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "text.npz").write_text("not a policy")
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    with (tmp_path / "lone.npz").open("wb") as file:
        np.save(file, np.zeros(3))
    save_policy(tmp_path / "hostile.npz", W0=np.array([Hostile(trace)], dtype=object))
    for name in ("empty", "text", "cut", "lone", "hostile"):
        with pytest.raises(MildlyError, match=rf"{name}\.npz: damaged"):
            ArrayPolicy(tmp_path / f"{name}.npz")
    with pytest.raises(MildlyError, match=r"absent\.npz: no such file"):
        ArrayPolicy(tmp_path / "absent.npz")
    assert not trace.exists()
