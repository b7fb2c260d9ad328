"""A start at the level of the returns, and a policy that is an average of the actor."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import OBSERVATIONS, make_batch, make_dataset, same, tiny, weights

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.actor_critic import ActorCritic
from mildly.data.replay import Batch, Replay
from mildly.data.returns import discounted_returns
from mildly.errors import MildlyError

DATA = make_dataset()
METHODS = [name for name, kind in ALGORITHMS.items() if issubclass(kind, ActorCritic)]
every_method = pytest.mark.parametrize("name", METHODS)


def batch_of(seed: int = 0) -> Batch:
    return Replay.of(DATA, torch.device("cpu")).sample(12, torch.Generator().manual_seed(seed))


# The level


@every_method
def test_all_values_start_at_the_level_of_the_returns(name):
    """Nothing but the last offsets differs from a learner without it, and no step is spent."""
    value, weight = discounted_returns(DATA, 0.9)
    level, fields = np.average(value, weights=weight), {"gamma": 0.9}
    if name == "iql":
        fields["reward_scaling"] = False
    learner, plain = tiny(name, level_start=True, **fields), tiny(name, **fields)
    for each in (learner, plain):
        each.prepare(DATA)
    assert abs(level) > 0.01
    for critics in (learner.critics, learner.target_critics):
        assert critics.biases[-1].flatten().tolist() == pytest.approx([level, level], rel=1e-5)
    assert same(weights(learner.critics)[:-1], weights(plain.critics)[:-1])
    if name == "iql":
        assert list(learner.value.parameters())[-1].item() == pytest.approx(level, rel=1e-5)
    assert learner.update(batch_of()).keys() == plain.update(batch_of()).keys()


@pytest.mark.parametrize("name", ["mcq", "mcq-td3", "sac", "td3", "cql", "awac"])
def test_a_level_is_another_origin_of_the_rewards(name):
    """With r - (1 - gamma) b inside an episode and r - b at a terminal state, all values are lower by b."""
    rates = {"gamma": 0.9, "actor_lr": 0.01, "critic_lr": 0.01, "cloning_steps": 0}
    shifted, centred = (tiny(name, seed=1, **rates) for _ in range(2))
    before = weights(centred.pi)
    shifted.start_at(torch.tensor(7.0))
    centred.start_at(torch.tensor(0.0))
    for step in range(40):
        batch = make_batch(seed=step)
        inner = 1 - batch.terminated
        rewards = batch.rewards - 7.0 * (1 - 0.9 * inner)
        first, second = shifted.update(batch), centred.update(batch._replace(rewards=rewards))
        assert first["q_data"].item() == pytest.approx(second["q_data"].item() + 7.0, abs=1e-3)
        assert first["loss_td"].item() == pytest.approx(second["loss_td"].item(), rel=1e-3)
    for mine, other in zip(weights(shifted.pi), weights(centred.pi), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-2, rtol=0.0)
    moved = max((new - old).abs().max().item() for new, old in zip(weights(centred.pi), before, strict=True))
    assert moved > 0.1


# The average


@every_method
def test_the_policy_is_a_running_average_of_the_actor(name):
    learner, plain = tiny(name, policy_ema=0.25, actor_lr=0.01), tiny(name, actor_lr=0.01)
    expected = weights(plain.pi)
    for step, rate in enumerate((1, 1 / 2, 1 / 3, 1 / 4, 1 / 4, 1 / 4)):
        learner.update(batch_of(step))
        plain.update(batch_of(step))
        expected = [rate * new + (1 - rate) * old for new, old in zip(weights(plain.pi), expected, strict=True)]
    assert same(weights(learner.pi), weights(plain.pi))  # the training knows nothing of it
    for got, by_hand in zip(weights(learner.actor()), expected, strict=True):
        torch.testing.assert_close(got, by_hand)
    states = np.zeros((2, OBSERVATIONS), np.float32)
    assert not np.array_equal(learner.policy(DATA.meta).act(states), plain.policy(DATA.meta).act(states))
    assert not any(parameter.requires_grad for parameter in learner.actor().parameters())


def test_a_restored_learner_has_the_average_too():
    learner, other = tiny("mcq", policy_ema=0.1), tiny("mcq", policy_ema=0.1, seed=5)
    for step in range(3):
        learner.update(batch_of(step))
    other.load_state_dict(learner.state_dict())
    assert same(weights(other.actor()), weights(learner.actor()))


@pytest.mark.parametrize("rate", [0.0, 1.5])
def test_a_rate_out_of_range_is_an_error(rate):
    with pytest.raises(MildlyError, match="policy_ema must be in"):
        tiny("sac", policy_ema=rate)
