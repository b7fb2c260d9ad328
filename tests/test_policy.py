"""Policy: environment units, shapes, repeatable draws, and files that can be damaged or hostile."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import unsealed
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mildly.action_space import ActionSpace
from mildly.actors import Actor, Memory, TanhGaussianActor
from mildly.data.normalize import Normalizer
from mildly.errors import MildlyError
from mildly.policy import ACTORS, Policy, load_policy

LOW, HIGH = (-2.0, 0.0), (1.0, 0.5)
SPACE = ActionSpace(LOW, HIGH)
NORMALIZER = Normalizer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 0.5, 4.0]))


def make_policy(**fields) -> Policy:
    torch.manual_seed(1)
    return Policy(TanhGaussianActor(3, 2, (6,), log_std_min=-5.0, log_std_max=1.0), **fields)


@pytest.fixture
def policy() -> Policy:
    return make_policy(normalizer=NORMALIZER, action_space=SPACE)


@pytest.fixture
def observations() -> np.ndarray:
    return np.random.default_rng(0).normal(2.0, 3.0, (5, 3))


# Acting


def test_the_deterministic_action_is_tanh_of_the_mean_in_the_environments_units(policy, observations):
    states = torch.tensor((observations - [1, 2, 3]) / [2, 0.5, 4], dtype=torch.float32)
    unit = torch.tanh(policy.actor(states).mean).detach().double().numpy()
    actions = policy.act(observations)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions[:, 0], -2 + 3 * (unit[:, 0] + 1) / 2, atol=1e-5)
    np.testing.assert_allclose(actions[:, 1], 0.5 * (unit[:, 1] + 1) / 2, atol=1e-5)


def test_without_bounds_and_normalizer_the_actor_speaks_for_itself(observations):
    policy = make_policy()
    expected = torch.tanh(policy.actor(torch.tensor(observations, dtype=torch.float32)).mean)
    assert np.array_equal(policy.act(observations), expected.detach().numpy())


def test_one_observation_gives_one_action_and_a_batch_one_each(policy, observations):
    batch = policy.act(observations)
    assert batch.shape == (5, 2)
    for i in range(5):
        single = policy.act(observations[i])
        assert single.shape == (2,)
        np.testing.assert_allclose(single, batch[i], atol=1e-6)
    assert policy.act(observations[:1]).shape == (1, 2)


def test_an_observation_may_be_a_list(policy):
    assert np.array_equal(policy.act([1, 2, 3]), policy.act(np.array([1.0, 2.0, 3.0])))


def test_draws_repeat_with_their_generator_and_differ_without(policy, observations):
    drawn = [policy.act(observations, False, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    generator = torch.Generator().manual_seed(1)
    first, second = (policy.act(observations, False, generator) for _ in range(2))
    assert np.array_equal(first, drawn[0])
    assert not np.array_equal(first, second)


def test_deterministic_actions_consume_no_random_numbers(policy, observations):
    generator = torch.Generator().manual_seed(1)
    before, everyone = generator.get_state(), torch.get_rng_state()
    policy.act(observations, True, generator)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), everyone)


@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_actions_never_pass_the_environments_bounds_not_even_by_rounding(sign):
    random = np.random.default_rng(0)
    low, high = random.uniform(-3, 0, 200).astype(np.float32), random.uniform(0.01, 3, 200).astype(np.float32)
    actor = TanhGaussianActor(3, 200, (6,))
    actor.net[-1].weight.data.zero_()
    actor.net[-1].bias.data.fill_(sign * 50)  # tanh gives exactly +-1
    action = Policy(actor, action_space=ActionSpace.of(low, high)).act(np.zeros(3))
    assert (action >= low).all()
    assert (action <= high).all()
    np.testing.assert_allclose(action, high if sign > 0 else low, atol=1e-6)


@pytest.mark.parametrize("shape", [(), (2,), (4,), (5, 2), (1, 5, 3), (3, 5)])
def test_a_wrong_shape_is_an_error_that_says_which_is_right(policy, shape):
    with pytest.raises(MildlyError, match=r"takes \(3,\) or \(n, 3\)"):
        policy.act(np.zeros(shape))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_observation_that_is_not_finite_is_an_error(policy, observations, value):
    observations[3, 1] = value
    with pytest.raises(MildlyError, match="NaN or infinite"):
        policy.act(observations)


# Starting

OBSERVATIONS = np.random.default_rng(1).normal(2.0, 3.0, (4, 3, 3)).astype(np.float32)
"""Four steps of three episodes."""


def test_a_policy_without_a_memory_acts_once_started_as_it_does_on_each_observation(policy):
    acting = policy.start(3)
    for step in OBSERVATIONS:
        assert np.array_equal(acting.act(step), policy.act(step))
        assert np.array_equal(acting.act(step[[2, 0]], [2, 0]), policy.act(step[[2, 0]]))
        acting.observe(np.ones(3))
        acting.reset([1])
    assert acting.memory is None
    assert policy.start().act(OBSERVATIONS[0, 0]).shape == (2,)
    assert policy.start(1).act(OBSERVATIONS[0, :1]).shape == (1, 2)


def test_a_started_policy_draws_where_it_is_told_to(policy):
    step = OBSERVATIONS[0]
    drawn = policy.start(3, deterministic=False).act(step, generator=torch.Generator().manual_seed(1))
    assert np.array_equal(drawn, policy.act(step, False, torch.Generator().manual_seed(1)))
    assert not np.array_equal(drawn, policy.act(step))


def test_conditions_are_refused_by_a_policy_that_knows_none(policy, refused):
    message = refused(lambda: policy.start(2, target_return=100.0, speed=1.0))
    assert message == "this policy knows no target_return, speed."


class Recalling(Actor):
    """Acts on the sum of all that it saw and was given in an episode, and on what it aims at."""

    kind = "recalling"

    def __init__(
        self, observation_size: int, action_size: int, hidden_dims: Sequence[int], weight: float = 1.0
    ) -> None:
        super().__init__(observation_size, action_size, hidden_dims, weight=weight)
        self.weight = nn.Parameter(torch.tensor(weight))

    def start(self, episodes: int, aim: float = 0.0) -> Memory:
        return Recollection(self.weight, self.spec["action_size"], episodes, aim)


class Recollection(Memory):
    def __init__(self, weight: Tensor, size: int, episodes: int, aim: float) -> None:
        self.weight, self.size, self.aim = weight, size, aim
        self.seen = torch.zeros(episodes)
        self.earned = torch.full((episodes,), -aim)

    def act(
        self, observations: Tensor, rows: Sequence[int], deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        self.seen = self.seen.index_add(0, torch.tensor(list(rows)), observations.sum(-1))  # a new tensor
        level = 0.01 * self.weight * (self.seen + self.earned)[list(rows)]
        if not deterministic:
            level = level + 0.1 * torch.randn(len(rows), generator=generator)
        return torch.tanh(level).unsqueeze(-1).expand(-1, self.size)

    def observe(self, rewards: Tensor, rows: Sequence[int]) -> None:
        self.earned = self.earned.index_add(0, torch.tensor(list(rows)), rewards)

    def reset(self, rows: Sequence[int]) -> None:
        self.seen[list(rows)] = 0.0  # in place: torch would refuse it outside inference mode
        self.earned[list(rows)] = -self.aim


@pytest.fixture
def recalling(monkeypatch) -> Policy:
    """A policy with a memory whose actions in [-1, 1] are twice those of its actor, and whose rewards count tenfold."""
    monkeypatch.setitem(ACTORS, Recalling.kind, Recalling)
    space = ActionSpace((-2.0, -2.0), (2.0, 2.0))
    return Policy(Recalling(3, 2, ()), normalizer=NORMALIZER, action_space=space, reward_scale=10.0)


def recalled(seen: np.ndarray, earned: float = 0.0) -> float:
    """What it does at the end of an episode of these observations, (steps, o), which brought so much."""
    normalized = (seen.astype(np.float64) - [1, 2, 3]) / [2, 0.5, 4]
    return 2 * np.tanh(0.01 * (normalized.sum() + 10 * earned))


def test_a_memory_holds_each_episode_apart_from_its_start_on(recalling):
    acting = recalling.start(3)
    for number, step in enumerate(OBSERVATIONS):
        actions = acting.act(step)
        assert actions.shape == (3, 2)
        for episode in range(3):
            expected = recalled(OBSERVATIONS[: number + 1, episode])
            assert actions[episode].tolist() == pytest.approx([expected] * 2, abs=1e-5)
    alone = recalling.start()
    for step in OBSERVATIONS:
        single = alone.act(step[1])  # one observation gives one action
    assert single.shape == (2,)
    np.testing.assert_allclose(single, actions[1], atol=1e-6)


def test_rows_are_the_numbers_of_the_episodes_that_are_meant(recalling):
    acting = recalling.start(3)
    acting.act(OBSERVATIONS[0])
    some = acting.act(OBSERVATIONS[1][[2, 0]], [2, 0])
    for action, episode in zip(some, (2, 0), strict=True):
        assert action[0] == pytest.approx(recalled(OBSERVATIONS[:2, episode]), abs=1e-5)
    acting.observe(np.array([3.0]), [1])
    everyone = acting.act(OBSERVATIONS[2])
    assert everyone[0, 0] == pytest.approx(recalled(OBSERVATIONS[:3, 0]), abs=1e-5)
    assert everyone[1, 0] == pytest.approx(recalled(OBSERVATIONS[[0, 2], 1], 3.0), abs=1e-5)
    assert everyone[2, 0] == pytest.approx(recalled(OBSERVATIONS[:3, 2]), abs=1e-5)


def test_rewards_arrive_in_the_units_of_training(recalling):
    acting = recalling.start(3)
    acting.act(OBSERVATIONS[0])
    acting.observe(np.array([1.0, -2.0, 0.25]))
    assert acting.memory.earned.tolist() == [10.0, -20.0, 2.5]
    acting.observe(np.array([0.1, 0.0]), [2, 1])
    assert acting.memory.earned.tolist() == pytest.approx([10.0, -20.0, 3.5])
    actions = acting.act(OBSERVATIONS[1])
    for episode, earned in enumerate((1.0, -2.0, 0.35)):
        assert actions[episode, 0] == pytest.approx(recalled(OBSERVATIONS[:2, episode], earned), abs=1e-5)


def test_a_reset_forgets_these_episodes_and_no_others(recalling):
    acting = recalling.start(3)
    acting.act(OBSERVATIONS[0])
    acting.observe(np.ones(3))
    acting.reset([1])
    actions = acting.act(OBSERVATIONS[1])
    assert actions[0, 0] == pytest.approx(recalled(OBSERVATIONS[:2, 0], 1.0), abs=1e-5)
    assert actions[1, 0] == pytest.approx(recalled(OBSERVATIONS[1:2, 1]), abs=1e-5)
    assert actions[2, 0] == pytest.approx(recalled(OBSERVATIONS[:2, 2], 1.0), abs=1e-5)
    acting.reset()
    assert np.array_equal(acting.act(OBSERVATIONS[2]), recalling.start(3).act(OBSERVATIONS[2]))


def test_what_is_started_twice_shares_no_memory(recalling):
    one, other = recalling.start(3), recalling.start(3)
    first = one.act(OBSERVATIONS[0])
    one.act(OBSERVATIONS[1])
    assert np.array_equal(other.act(OBSERVATIONS[0]), first)


def test_conditions_reach_the_memory_and_come_back_with_each_episode(recalling):
    acting = recalling.start(2, aim=50.0)
    at_first = acting.act(OBSERVATIONS[0, :2])
    assert at_first[0, 0] == pytest.approx(recalled(OBSERVATIONS[:1, 0], -5.0), abs=1e-5)
    acting.observe(np.ones(2))
    acting.reset()
    assert np.array_equal(acting.act(OBSERVATIONS[0, :2]), at_first)


def test_a_memory_is_told_whether_to_draw_and_from_what(recalling):
    drawn = [
        recalling.start(3, deterministic=False).act(OBSERVATIONS[0], generator=torch.Generator().manual_seed(seed))
        for seed in (1, 1, 2)
    ]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert not np.array_equal(drawn[0], recalling.start(3).act(OBSERVATIONS[0]))


def test_a_policy_that_remembers_cannot_act_on_an_observation_alone(recalling, refused):
    assert "start()" in refused(lambda: recalling.act(OBSERVATIONS[0]), "remembers its episode")


def test_a_memory_sees_no_observation_that_is_refused(recalling):
    acting = recalling.start(3)
    for wrong, words in ((np.zeros((3, 2)), "takes"), (np.full((3, 3), np.nan), "NaN"), (("text", {}), "tuple")):
        with pytest.raises(MildlyError, match=words):
            acting.act(wrong)
    assert np.array_equal(acting.act(OBSERVATIONS[0]), recalling.start(3).act(OBSERVATIONS[0]))


def test_a_loaded_policy_remembers_as_the_saved_one(recalling, tmp_path):
    recalling.actor.weight.data.fill_(1.5)
    loaded = load_policy(recalling.save(tmp_path))
    assert (loaded.actor.kind, loaded.reward_scale) == ("recalling", 10.0)
    one, other = recalling.start(3), loaded.start(3)
    for step in OBSERVATIONS:
        assert np.array_equal(one.act(step), other.act(step))
        for acting in (one, other):
            acting.observe(np.ones(3))


# Saving and loading


def test_a_loaded_policy_acts_as_the_saved_one(policy, observations, tmp_path):
    policy.save(tmp_path / "deep" / "folder")
    loaded = load_policy(tmp_path / "deep" / "folder")
    assert np.array_equal(policy.act(observations), loaded.act(observations))
    draws = [p.act(observations, False, torch.Generator().manual_seed(1)) for p in (policy, loaded)]
    assert np.array_equal(*draws)
    assert (loaded.action_space, loaded.actor.kind) == (SPACE, "tanh-gaussian")
    assert loaded.actor.spec == policy.actor.spec
    assert not any(parameter.requires_grad for parameter in loaded.actor.parameters())


def test_a_policy_without_bounds_and_normalizer_survives_saving(observations, tmp_path):
    policy = make_policy()
    loaded = load_policy(policy.save(tmp_path))
    assert (loaded.normalizer, loaded.action_space) == (None, None)
    assert np.array_equal(policy.act(observations), loaded.act(observations))


def test_a_policy_is_found_in_the_folder_of_its_run(policy, observations, tmp_path):
    policy.save(tmp_path / "run" / "policy")
    for folder in (tmp_path / "run", str(tmp_path / "run" / "policy")):
        assert np.array_equal(load_policy(folder).act(observations), policy.act(observations))


def test_saving_again_replaces_the_policy_and_leaves_nothing_else(policy, observations, tmp_path):
    policy.save(tmp_path)
    policy.actor.net[-1].bias.data += 1
    policy.save(tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["policy.json", "weights.safetensors"]
    assert np.array_equal(load_policy(tmp_path).act(observations), policy.act(observations))


def test_a_folder_without_a_policy_is_an_error_that_says_what_to_give(tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path, tmp_path / "none", tmp_path / "file"):
        with pytest.raises(MildlyError, match="no policy here"):
            load_policy(folder)


@pytest.mark.parametrize("name", ["policy.json", "weights.safetensors"])
def test_a_missing_file_is_an_error(policy, tmp_path, name):
    (policy.save(tmp_path) / name).unlink()
    with pytest.raises(MildlyError, match="no policy here"):
        load_policy(tmp_path)


@pytest.mark.parametrize("name", ["policy.json", "weights.safetensors"])
@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9])
def test_a_file_cut_short_is_an_error(policy, tmp_path, name, part):
    path = policy.save(tmp_path) / name
    path.write_bytes(path.read_bytes()[: int(part * path.stat().st_size)])
    with pytest.raises(MildlyError, match="damaged"):
        load_policy(tmp_path)


@pytest.mark.parametrize("name", ["policy.json", "weights.safetensors"])
def test_a_file_of_noise_is_an_error(policy, tmp_path, name):
    (policy.save(tmp_path) / name).write_bytes(bytes(range(256)) * 8)
    with pytest.raises(MildlyError, match="damaged"):
        load_policy(tmp_path)


KEYS = (
    "format",
    "actor",
    "spec",
    "action_low",
    "action_high",
    "observation_mean",
    "observation_std",
    "weights_sha256",
)


@pytest.mark.parametrize("key", KEYS)
def test_a_description_without_one_of_its_entries_is_an_error(policy, tmp_path, key):
    path = policy.save(tmp_path) / "policy.json"
    description = unsealed(path)
    assert set(description) == {*KEYS, "reward_scale"}
    del description[key]
    path.write_text(json.dumps(description))
    with pytest.raises(MildlyError, match=f"damaged.*{key}"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor", "oracle"),
        ("spec", {"hidden_dims": [6]}),
        ("spec", {"observation_size": 4, "action_size": 2, "hidden_dims": [6]}),
        ("spec", {"observation_size": 3, "action_size": 2, "hidden": [6]}),
        ("spec", "none"),
        ("action_low", [0.0]),
        ("action_low", None),
        ("action_low", [1.0, 0.5]),
        ("action_kind", "discrete"),
        ("action_high", ["one", "two"]),
        ("observation_mean", [0.0] * 4),
        ("observation_std", None),
        ("observation_std", 1.0),
        ("reward_scale", "much"),
        ("reward_scale", None),
    ],
)
def test_a_description_with_a_wrong_entry_is_an_error(policy, tmp_path, key, value):
    path = policy.save(tmp_path) / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    with pytest.raises(MildlyError, match="damaged"):
        load_policy(tmp_path)


def test_a_reward_scale_that_is_not_told_is_1(policy, tmp_path):
    path = policy.save(tmp_path) / "policy.json"
    description = unsealed(path)
    del description["reward_scale"]
    path.write_text(json.dumps(description))
    assert load_policy(tmp_path).reward_scale == 1.0


@pytest.mark.parametrize("text", ["[]", "3", "null", '"policy"'])
def test_a_description_that_is_no_object_is_an_error(policy, tmp_path, text):
    (policy.save(tmp_path) / "policy.json").write_text(text)
    with pytest.raises(MildlyError, match="damaged"):
        load_policy(tmp_path)


@pytest.mark.parametrize("number", [1, 99])
def test_a_policy_of_another_format_is_refused_in_one_line_that_says_so(policy, tmp_path, number, refused):
    """Also where the rest of the description could not be read: an older one has other names."""
    path = policy.save(tmp_path) / "policy.json"
    spec = {"observation_size": 3, "action_size": 2, "hidden": [6]}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": number, "spec": spec}))
    message = refused(load_policy, folder=tmp_path)
    assert message == f"{path}: format {number}; this version of mildly reads 2. Train it again."


def test_weights_that_lack_a_tensor_are_an_error(policy, tmp_path):
    path = policy.save(tmp_path) / "weights.safetensors"
    tensors = load_file(path)
    tensors.popitem()
    save_file(tensors, path)
    with pytest.raises(MildlyError, match="damaged"):
        load_policy(tmp_path)


class Hostile:
    """An object whose unpickling makes a folder."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self):
        return os.mkdir, (str(self.marker),)


@pytest.mark.parametrize("name", ["policy.json", "weights.safetensors"])
def test_a_hostile_pickle_in_place_of_a_file_runs_no_code(policy, tmp_path, name):
    marker = tmp_path / "marker"
    plain = pickle.dumps(Hostile(marker))
    pickle.loads(plain)
    assert marker.is_dir()  # the pickle is loaded, so to speak
    marker.rmdir()
    policy.save(tmp_path / "policy")
    torch.save(Hostile(marker), tmp_path / "zipped")
    for content in (plain, (tmp_path / "zipped").read_bytes()):
        (tmp_path / "policy" / name).write_bytes(content)
        with pytest.raises(MildlyError, match="damaged"):
            load_policy(tmp_path / "policy")
        assert not marker.exists()


def test_what_reset_returns_is_recognized():
    policy = Policy(TanhGaussianActor(3, 1, (4,)))
    with pytest.raises(MildlyError, match=r"not a tuple. env.reset\(\) returns \(observation, info\)"):
        policy.act((np.zeros(3), {}))
    assert policy.act(np.zeros((4, 3))[::-1]).shape == (4, 1)
