"""TD3+BC: the actor's loss against slow computations, and that all else is TD3's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, make_dataset, replay, same, tiny, weights
from learners import with_gradient

from mildly.algorithms.config import build_config, make_config
from mildly.algorithms.extras import AnchoredExtras
from mildly.algorithms.td3 import TD3
from mildly.algorithms.td3_bc import TD3BC
from mildly.data.batches import Batch
from mildly.errors import MildlyError


def slow_actor_loss(learner: TD3BC, batch: Batch) -> tuple[float, float, float]:
    """The actor's loss, the mean value and the mean absolute value of its actions, one number at a time."""
    actor, critic = Layers.of(learner.actor.net), Layers.of_critic(learner.critics, 0)
    values, squares = [], []
    for state, action in zip(batch.observations, batch.actions, strict=True):
        own = np.tanh(actor(state))
        values.append(critic(state, own)[0])
        squares += [(own[k] - action[k].item()) ** 2 for k in range(ACTIONS)]
    size = sum(abs(value) for value in values) / len(values)
    value = sum(values) / len(values)
    return sum(squares) / len(squares) - learner.config.alpha / size * value, value, size


def with_mixed_values(**fields: Any) -> TD3BC:
    """A learner whose first critic gives values on both sides of 0, so that their mean is not their size."""
    learner = tiny("td3-bc", seed=3, **fields)
    batch = make_batch(40)
    with torch.no_grad():
        values = learner.critics(batch.observations, learner.actor(batch.observations))
        learner.critics.biases[-1].sub_(values.mean(dim=1)[:, None, None] - 0.02)
    return learner


# The actor's loss


@pytest.mark.parametrize("alpha", [2.5, 0.7])
def test_actor_loss_equals_a_slow_computation(alpha):
    learner, batch = with_mixed_values(alpha=alpha), make_batch(40)
    expected, value, size = slow_actor_loss(learner, batch)
    assert abs(value) < 0.8 * size
    loss, metrics = learner.actor_loss(batch)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    actor = Layers.of(learner.actor.net)
    distances = [
        np.sum((np.tanh(actor(s)) - a.numpy()) ** 2) for s, a in zip(batch.observations, batch.actions, strict=True)
    ]
    assert metrics["policy_distance"].item() == pytest.approx(np.mean(distances), rel=1e-4)
    values = learner.critics(batch.observations, learner.actor(batch.observations))
    assert metrics["q_ood"].item() == pytest.approx(values.mean().item(), rel=1e-4)


def test_actor_loss_by_hand():
    # Q_1(s, a) = 4 a_1 - 1 and pi(s) = (0.5, 0), whatever the state: all values are 1, so that w = 2.5.
    # The data's actions are (0.5, 0) and (-0.5, 0.6): squares 0, 0, 1 and 0.36, mean 0.34. Loss 0.34 - 2.5.
    learner = tiny("td3-bc", hidden_dims=(), seed=1)
    with torch.no_grad():
        learner.actor.net[0].weight.zero_()
        learner.actor.net[0].bias.copy_(torch.atanh(torch.tensor([0.5, 0.0])))
        learner.critics.weights[0].zero_()[:, OBSERVATIONS] = 4.0
        learner.critics.biases[0].fill_(-1.0)
    batch = make_batch(2)._replace(actions=torch.tensor([[0.5, 0.0], [-0.5, 0.6]]))
    loss, metrics = learner.actor_loss(batch)
    assert loss.item() == pytest.approx(0.34 - 2.5, abs=1e-5)
    assert metrics["q_ood"].item() == pytest.approx(1.0, abs=1e-5)
    assert metrics["policy_distance"].item() == pytest.approx(0.68, abs=1e-5)
    # The slope along pi_1, by hand: -w/2 * 4 for each transition and 2/4 * (0.5 - a_1), times tanh' = 0.75.
    loss.backward()
    slope = 0.75 * (2 * -1.25 * 4 + 0.5 * (0.0 + 1.0))
    assert learner.actor.net[0].bias.grad[0].item() == pytest.approx(slope, rel=1e-5)


def test_the_loss_does_not_know_the_unit_of_the_rewards_and_sees_the_first_critic_alone():
    learner, batch = with_mixed_values(), make_batch(20)
    loss = learner.actor_loss(batch)[0].item()
    for part in (learner.critics.weights[-1], learner.critics.biases[-1]):
        part.data.mul_(1000.0)
    assert learner.actor_loss(batch)[0].item() == pytest.approx(loss, rel=1e-4)
    for parameter in learner.critics.parameters():
        parameter.data[1] += 7.0
    assert learner.actor_loss(batch)[0].item() == pytest.approx(loss, rel=1e-4)


def test_no_gradient_flows_through_the_weight_of_the_values():
    """With it, the gradient of mean Q / mean |Q| would vanish where all values have one sign."""
    learner, batch = tiny("td3-bc", seed=3), make_batch()
    learner.critics.biases[-1].data.fill_(50.0)
    batch = batch._replace(actions=learner.actor(batch.observations).detach())  # so that the distance has no slope here
    learner.actor_loss(batch)[0].backward()
    slope = [p.grad.clone() for p in learner.actor.parameters()]
    learner.actor.zero_grad()
    values = learner.critics(batch.observations, learner.actor(batch.observations), freeze=True)[0]
    (-2.5 * values.mean() / values.abs().mean().item()).backward()
    for ours, expected in zip(slope, learner.actor.parameters(), strict=True):
        torch.testing.assert_close(ours, expected.grad)
    assert sum(g.abs().sum() for g in slope) > 1e-5


def test_the_actors_loss_reaches_the_actor_alone():
    learner = tiny("td3-bc")
    learner.actor_loss(make_batch())[0].backward()
    assert all(p.grad.abs().sum() > 0 for p in learner.actor.parameters())
    assert with_gradient(learner) == {"actor"}


def test_without_a_weight_on_the_values_it_is_behavior_cloning():
    learner, batch = tiny("td3-bc", alpha=0.0, actor_lr=0.01, policy_delay=1, hidden_dims=(16,)), make_batch(12)
    states = torch.linspace(-1, 1, 12)[:, None].expand(12, OBSERVATIONS)
    actions = torch.stack([0.8 * states[:, 0], -0.5 * states[:, 0]], dim=-1)
    batch = batch._replace(observations=states, actions=actions)
    for _ in range(300):
        metrics = learner.update(batch)
    assert metrics["policy_distance"].item() < 0.01


def test_an_anchor_is_weighed_as_the_values_are():
    plain, anchored = with_mixed_values(), with_mixed_values(**{"extras.bc_weight": 0.5})
    batch = make_batch(20)
    anchored.extras.unit = torch.tensor(0.7)
    values = plain.critics(batch.observations, plain.actor(batch.observations))[0].detach()
    unit = 2.5 * 0.7 / values.abs().mean()
    expected = plain.actor_loss(batch)[0] + 0.5 * unit * plain.bc_loss(batch)
    assert anchored.actor_loss(batch)[0].item() == pytest.approx(expected.item(), rel=1e-4)


# All else is TD3


def test_the_critics_step_is_that_of_td3():
    ours, td3, batch = tiny("td3-bc", seed=2), tiny("td3", seed=2), make_batch()
    metrics = [learner.update(batch) for learner in (ours, td3)]
    assert same(weights(ours.critics), weights(td3.critics))
    assert torch.equal(*(m["loss_critic"] for m in metrics))
    noise = replay(ours.generator)
    assert torch.equal(torch.rand(3, generator=noise), torch.rand(3, generator=replay(td3.generator)))


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_all_targets_move_in_every_delayth_step_and_the_actor_down_its_own_loss(delay):
    learner, twin = (tiny("td3-bc", policy_delay=delay) for _ in range(2))
    slow = (learner.actor, learner.target_actor, learner.target_critics)
    for step in range(1, 7):
        before, batch = [weights(part) for part in slow], make_batch(seed=step)
        twin.load_state_dict(learner.state_dict())
        metrics = learner.update(batch)
        moved = [not same(old, weights(part)) for old, part in zip(before, slow, strict=True)]
        assert moved == 3 * [step % delay == 0]
        if step % delay == 0:
            twin.critics.load_state_dict(learner.critics.state_dict())  # the actor sees the critics after their step
            assert metrics["loss_actor"].item() == pytest.approx(slow_actor_loss(twin, batch)[0], rel=1e-4)


# Configuration


def test_the_defaults_are_the_authors():
    c = make_config(TD3BC, "paper", "hopper-medium-v2", {})
    assert (c.alpha, c.normalize_observations) == (2.5, True)
    assert (c.hidden_dims, c.batch_size, c.gamma, c.tau) == ((256, 256), 256, 0.99, 5e-3)
    assert (c.policy_noise, c.noise_clip, c.policy_delay) == (0.2, 0.5, 2)
    assert (c.actor_lr, c.critic_lr, c.extras) == (3e-4, 3e-4, AnchoredExtras())
    small = make_config(TD3BC, "small", "", {})
    assert small == build_config(TD3BC, TD3.PRESETS["small"])
    assert small.normalize_observations


def test_observations_are_normalized_by_default_with_a_thousandth_added_to_the_deviation():
    learner, data = tiny("td3-bc"), make_dataset()
    learner.batches(data)
    normalizer = learner.policy().normalizer
    np.testing.assert_allclose(normalizer.mean, data.observations.mean(0), rtol=1e-5)
    np.testing.assert_allclose(normalizer.std, data.observations.std(0) + 1e-3, rtol=1e-5)


def test_a_negative_alpha_is_an_error_that_names_it():
    with pytest.raises(MildlyError, match=r"^alpha must be at least 0"):
        TD3BC.Config(alpha=-0.1)
