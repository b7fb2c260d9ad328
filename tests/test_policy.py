"""Policy: environment units, shapes, repeatable draws, and files that can be damaged or hostile."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from mildly.actors import TanhGaussianActor
from mildly.data.normalize import Scaling
from mildly.errors import MildlyError
from mildly.policy import Policy, load_policy

LOW, HIGH = (-2.0, 0.0), (1.0, 0.5)


def make_policy(**fields) -> Policy:
    torch.manual_seed(1)
    return Policy(TanhGaussianActor(3, 2, (6,), log_std_min=-5.0, log_std_max=1.0), **fields)


@pytest.fixture
def policy() -> Policy:
    scaling = Scaling(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 0.5, 4.0]))
    return make_policy(scaling=scaling, action_low=LOW, action_high=HIGH)


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


def test_without_bounds_and_scaling_the_actor_speaks_for_itself(observations):
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
    action = Policy(actor, action_low=tuple(low.tolist()), action_high=tuple(high.tolist())).act(np.zeros(3))
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


# Saving and loading


def test_a_loaded_policy_acts_as_the_saved_one(policy, observations, tmp_path):
    policy.save(tmp_path / "deep" / "folder")
    loaded = load_policy(tmp_path / "deep" / "folder")
    assert np.array_equal(policy.act(observations), loaded.act(observations))
    draws = [p.act(observations, False, torch.Generator().manual_seed(1)) for p in (policy, loaded)]
    assert np.array_equal(*draws)
    assert (loaded.action_low, loaded.action_high, loaded.actor.kind) == (LOW, HIGH, "tanh-gaussian")
    assert loaded.actor.spec == policy.actor.spec
    assert not any(parameter.requires_grad for parameter in loaded.actor.parameters())


def test_a_policy_without_bounds_and_scaling_survives_saving(observations, tmp_path):
    policy = make_policy()
    loaded = load_policy(policy.save(tmp_path))
    assert (loaded.scaling, loaded.action_low, loaded.action_high) == (None, None, None)
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


KEYS = ("format", "actor", "spec", "action_low", "action_high", "observation_mean", "observation_std")


@pytest.mark.parametrize("key", KEYS)
def test_a_description_without_one_of_its_entries_is_an_error(policy, tmp_path, key):
    path = policy.save(tmp_path) / "policy.json"
    description = json.loads(path.read_text())
    assert set(description) == {*KEYS, "reward_scale"}
    del description[key]
    path.write_text(json.dumps(description))
    with pytest.raises(MildlyError, match=f"damaged.*{key}"):
        load_policy(tmp_path)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("actor", "oracle"),
        ("spec", {"hidden": [6]}),
        ("spec", {"observation_size": 4, "action_size": 2, "hidden": [6]}),
        ("spec", "none"),
        ("action_low", [0.0]),
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


def test_a_policy_from_before_rewards_had_a_scale_can_be_loaded(policy, tmp_path):
    path = policy.save(tmp_path) / "policy.json"
    description = json.loads(path.read_text())
    del description["reward_scale"]
    path.write_text(json.dumps(description))
    assert load_policy(tmp_path).reward_scale == 1.0


@pytest.mark.parametrize("text", ["[]", "3", "null", '"policy"'])
def test_a_description_that_is_no_object_is_an_error(policy, tmp_path, text):
    (policy.save(tmp_path) / "policy.json").write_text(text)
    with pytest.raises(MildlyError, match="damaged"):
        load_policy(tmp_path)


def test_a_policy_of_a_later_format_is_an_error_that_says_so(policy, tmp_path):
    path = policy.save(tmp_path) / "policy.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"format": 99}))
    with pytest.raises(MildlyError, match=r"format 99; this version of mildly reads 1"):
        load_policy(tmp_path)


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
