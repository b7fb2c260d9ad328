"""What IQL does to rewards, actions and learning rates, and its configuration by data set."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, content, make_batch, make_dataset, same, tiny, train_tiny, weights as copied
from learners import changed_iql

from mildly.algorithms.advantage import family
from mildly.algorithms.config import make_config
from mildly.algorithms.extras import Extras
from mildly.algorithms.iql import IQL, reward_scale
from mildly.data.dataset import Dataset, Meta
from mildly.errors import MildlyError
from mildly.policy import load_policy
from mildly.training.offline import resume

# The actor's learning rate


def actor_rates(iql: IQL, steps: int) -> list[float]:
    rates = []
    for step in range(steps):
        iql.update(make_batch(seed=step))
        rates.append(iql.actor_optimizer.param_groups[0]["lr"])
    return rates


def test_the_actors_learning_rate_falls_along_half_a_cosine_and_stays_at_0():
    shares = [1, (2 + math.sqrt(2)) / 4, 0.5, (2 - math.sqrt(2)) / 4, 0, 0]
    iql = tiny("iql", decay_steps=4, actor_lr=0.02, critic_lr=0.03, value_lr=0.04)
    assert actor_rates(iql, 6) == pytest.approx([0.02 * share for share in shares], abs=1e-12)
    assert iql.critic_optimizer.param_groups[0]["lr"] == 0.03
    assert iql.value_optimizer.param_groups[0]["lr"] == 0.04
    assert actor_rates(tiny("iql", decay_steps=None, actor_lr=0.02), 3) == [0.02, 0.02, 0.02]


def test_the_learning_rate_falls_over_the_main_steps_and_not_in_the_warm_up():
    fields = {"decay_steps": 4, "actor_lr": 0.02}
    warmed, plain = tiny("iql", **fields, **{"extras.bc_warmup_steps": 3}), tiny("iql", **fields)
    (phase,) = warmed.phases()
    for step in range(phase.steps):
        phase.update(make_batch(seed=step))
        assert warmed.actor_optimizer.param_groups[0]["lr"] == 0.02
    assert actor_rates(warmed, 6) == actor_rates(plain, 6)


def test_a_restored_learner_goes_on_with_the_learning_rate_where_it_was():
    iql, restored = (tiny("iql", decay_steps=8, seed=seed) for seed in (0, 1))
    actor_rates(iql, 4)
    restored.load_state_dict(iql.state_dict())
    assert actor_rates(restored, 3) == actor_rates(iql, 3)
    assert same(copied(iql.actor), copied(restored.actor))


# Rewards and actions


def test_rewards_are_scaled_so_that_best_and_worst_return_are_1000_apart():
    data = make_dataset()
    returns = [sum(data.rewards[start : start + 10].tolist()) for start in range(0, 60, 10)]
    scale = 1000 / (max(returns) - min(returns))
    assert reward_scale(data) == pytest.approx(scale, rel=1e-5)
    scaled, plain = changed_iql(reward_scaling=True), changed_iql()
    batch, logged = (iql.batches(data).sample(torch.Generator().manual_seed(0), 40) for iql in (scaled, plain))
    torch.testing.assert_close(batch.rewards, logged.rewards * scale, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(logged.rewards, data.rewards[logged.rows])
    for column in ("observations", "actions", "next_observations", "terminated", "rows"):
        assert torch.equal(getattr(batch, column), getattr(logged, column))
    expected = plain.step(logged._replace(rewards=logged.rewards * scale))
    assert scaled.step(batch)["loss_critic"].item() == pytest.approx(expected["loss_critic"].item(), rel=1e-4)
    assert scaled.preprocessing.reward_scale == pytest.approx(scale, rel=1e-5)
    assert plain.preprocessing.reward_scale == 1.0


def test_the_scale_is_of_the_data_and_no_part_of_the_state():
    """A learner that is restored looks at the same data, and finds the same scale."""
    iql, restored = changed_iql(reward_scaling=True), changed_iql(reward_scaling=True)
    iql.batches(make_dataset())
    assert not [key for key in iql.state_dict() if "scale" in key]
    restored.batches(make_dataset())
    restored.load_state_dict(iql.state_dict())
    assert restored.preprocessing.reward_scale == iql.preprocessing.reward_scale != 1.0


def test_the_policy_keeps_the_scale_of_the_rewards(tmp_path):
    data, iql = make_dataset(), changed_iql(reward_scaling=True)
    iql.batches(data)
    returns = data.episode_returns()
    scale = load_policy(iql.policy(data.meta).save(tmp_path)).reward_scale
    assert scale == pytest.approx(1000 / (returns.max() - returns.min()))
    assert changed_iql().policy().reward_scale == 1


def test_a_resumed_run_with_scaled_rewards_and_dropout_equals_an_uninterrupted_one(tmp_path):
    fields = {"reward_scaling": True, "dropout": 0.2, "decay_steps": 50, "steps": 40, "eval_every": 15}
    whole = train_tiny("iql", tmp_path / "whole", **fields)
    parted = train_tiny("iql", tmp_path / "parted", **{**fields, "steps": 15})
    resume(parted.path, steps=40)
    assert json.loads((whole.path / "run.json").read_text())["config"]["reward_scaling"]
    assert content(whole.path) == content(parted.path)


def test_rewards_of_episodes_with_equal_returns_stay_as_they_are_and_the_user_is_told():
    data = make_dataset()
    data = Dataset.from_arrays(
        data.observations, data.actions, np.ones(60), data.next_observations, data.terminated, data.truncated, data.meta
    )
    iql = changed_iql(reward_scaling=True)
    iql.batches(data)
    assert iql.preprocessing.reward_scale == 1
    assert iql.notes == ("all episodes have the same return, so there is no range to scale the rewards by",)


def test_where_no_return_is_known_rewards_stay_as_they_are_and_that_is_the_reason_given():
    data = make_dataset()
    gaps = dataclasses.replace(data, rewards=np.full(60, np.nan, np.float32))
    iql = changed_iql(reward_scaling=True)
    assert iql.preprocess(gaps).reward_scale == 1
    assert iql.notes == ("no episode's return is known, so there is no range to scale the rewards by",)


def test_the_datas_actions_are_clipped_a_little_inside_their_bounds():
    data = make_dataset()
    limit = np.float32(1 - 1e-5)
    at_bounds = dataclasses.replace(data, actions=np.sign(data.actions).astype(np.float32))
    iql, random = changed_iql(), torch.Generator().manual_seed(0)
    batch = iql.batches(at_bounds).sample(random, 40)
    assert torch.equal(batch.actions, torch.from_numpy(at_bounds.actions)[batch.rows] * limit)
    inner = iql.batches(data).sample(random, 40)
    assert torch.equal(inner.actions, torch.from_numpy(data.actions)[inner.rows])  # none of which is so near
    assert tiny("awac").batches(at_bounds).sample(random, 40).actions.abs().min() == 1  # others are not asked to


def test_the_set_is_left_as_it_is():
    data = make_dataset()
    before, meta = (data.rewards.copy(), data.actions.copy()), dataclasses.replace(data.meta)
    changed_iql(reward_scaling=True).batches(data)
    assert np.array_equal(data.rewards, before[0])
    assert np.array_equal(data.actions, before[1])
    assert isinstance(meta, Meta)
    assert data.meta == meta


# The start from the data


def test_v_begins_where_the_critics_do_and_returns_are_of_scaled_rewards():
    fields = {"gamma": 0.9, "extras.level_start": True, "extras.return_mix": 1.0}
    iql, plain = (tiny("iql", reward_scaling=scaled, **fields) for scaled in (True, False))
    data, scale = make_dataset(), reward_scale(make_dataset())
    batch, logged = (learner.batches(data).sample(torch.Generator().manual_seed(0), 40) for learner in (iql, plain))
    for learner in (iql, plain):
        assert learner.value[-1].bias.item() == learner.critics.biases[-1].flatten()[0].item() != 0
    torch.testing.assert_close(batch.rewards, scale * logged.rewards, rtol=1e-4, atol=1e-5 * scale)
    assert torch.equal(batch.terminated, logged.terminated)
    assert iql.value[-1].bias.item() == pytest.approx(scale * plain.value[-1].bias.item(), rel=1e-4)


# Configuration


def test_the_defaults_are_the_authors():
    c = make_config(IQL, "paper", "hopper-medium-v2", {})
    assert (c.hidden_dims, c.batch_size, c.gamma, c.tau) == ((256, 256), 256, 0.99, 5e-3)
    assert (c.actor_lr, c.critic_lr, c.value_lr, c.decay_steps) == (3e-4, 3e-4, 3e-4, 1_000_000)
    assert (c.expectile, c.beta, c.weight_limit, c.dropout, c.reward_scaling) == (0.7, 3.0, 100.0, 0.0, True)
    assert (c.log_std_min, c.log_std_max, c.normalize_observations, c.extras) == (-5.0, 2.0, False, Extras())
    learner = IQL(c, OBSERVATIONS, ACTIONS)
    assert [w.shape for w in learner.critics.weights] == [(2, 5, 256), (2, 256, 256), (2, 256, 1)]
    assert [tuple(layer.weight.shape) for layer in learner.actor.net[::2]] == [(256, 3), (256, 256), (2, 256)]
    assert [tuple(layer.weight.shape) for layer in learner.value[::2]] == [(256, 3), (256, 256), (1, 256)]


@pytest.mark.parametrize("name", ["pen-human-v0", "hammer-cloned-v0", "door-human", "relocate-cloned-v1-recollected"])
def test_on_adroit_it_takes_the_authors_values_for_adroit(name):
    c = make_config(IQL, "paper", name, {})
    assert (c.expectile, c.beta, c.dropout, c.reward_scaling) == (0.7, 0.5, 0.1, False)


def test_a_family_is_known_by_whole_names():
    names = {
        "mujoco": ["hopper-medium-v2", "walker2d-medium-expert-v0", "halfcheetah-random-v2-collected"],
        "adroit": ["pen-human-v0", "hammer-expert"],
        None: [
            "pendulum-mixed",
            "pen",
            "door-sensor-v1",
            "maze2d-umaze-v1",
            "my-hopper-medium-v2",
            "hopper-medium-v2x",
        ],
    }
    for known, members in names.items():
        assert [family(name) for name in members] == len(members) * [known]
    assert make_config(IQL, "small", "hopper-expert-v2", {}).reward_scaling
    assert not make_config(IQL, "paper", "maze2d-umaze-v1", {}).reward_scaling


@pytest.mark.parametrize(
    "fields",
    [
        {"beta": 0.0},
        {"expectile": 1.0},
        {"expectile": 0.0},
        {"weight_limit": 0.0},
        {"value_lr": 0.0},
        {"decay_steps": 0},
        {"dropout": 1.0},
        {"dropout": -0.1},
        {"log_std_min": 2.0},
        {"gamma": math.nan},
    ],
    ids=str,
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be"):
        IQL.Config(**fields)
