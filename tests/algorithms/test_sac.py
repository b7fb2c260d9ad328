"""SAC, the base of MCQ: every loss against a slow scalar computation, and where gradients may go."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, replay, same, slow_draw, tiny, weights
from learners import with_gradient

from mildly.actors import RSample
from mildly.algorithms.sac import SAC
from mildly.data.batches import Batch
from mildly.data.dataset import Dataset, Meta
from mildly.errors import MildlyError


def slow_td_target(sac: SAC, batch: Batch, bootstraps: list[bool], noise: torch.Tensor) -> list[float]:
    """y of each transition, one number at a time."""
    actor = Layers.of(sac.actor.net)
    targets = [Layers.of_critic(sac.target_critics, j) for j in range(sac.config.ensemble)]
    alpha, found = math.exp(sac.log_alpha.item()), []
    for i, goes_on in enumerate(bootstraps):
        y = batch.rewards[i].item()
        if goes_on:
            s_next = batch.next_observations[i]
            action, log_prob = slow_draw(actor, s_next, noise[i], sac.config.log_std_min, sac.config.log_std_max)
            q = min(target(s_next, action)[0] for target in targets)
            y += sac.config.gamma * (q - alpha * log_prob)
        found.append(float(y))
    return found


@pytest.fixture(params=[2, 5], ids=["two critics", "five critics"])
def sac(request) -> SAC:
    """A learner whose target critics and temperature differ from their first values."""
    learner = tiny("sac", seed=3, gamma=0.9, ensemble=request.param)
    learner.log_alpha.data.fill_(-0.7)
    random = torch.Generator().manual_seed(9)
    for parameter in learner.target_critics.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return learner


# The target


def test_td_target_equals_a_slow_computation_with_the_same_draws(sac):
    batch = make_batch(12)
    noise = torch.randn(12, ACTIONS, generator=replay(sac.generator))
    expected = slow_td_target(sac, batch, [d == 0 for d in batch.terminated.tolist()], noise)
    np.testing.assert_allclose(sac.td_target(batch).numpy(), expected, atol=2e-5)
    assert 0 < batch.terminated.sum() < 12


def test_target_at_a_terminal_state_is_the_reward_alone(sac):
    batch = make_batch(5)._replace(terminated=torch.ones(5))
    assert torch.equal(sac.td_target(batch), batch.rewards)


def test_target_at_a_time_out_bootstraps_and_at_a_terminal_state_does_not(sac):
    random = np.random.default_rng(1)
    rewards = [10.0, 20.0, 30.0]  # goes on; times out; terminates
    data = Dataset.from_arrays(
        random.normal(size=(3, OBSERVATIONS)),
        random.uniform(-1, 1, (3, ACTIONS)),
        rewards,
        random.normal(size=(3, OBSERVATIONS)),
        [False, False, True],
        [False, True, False],
        Meta("three"),
    )
    batch = sac.batches(data).sample(torch.Generator().manual_seed(0), 30)
    assert set(batch.rewards.tolist()) == set(rewards)
    noise = torch.randn(30, ACTIONS, generator=replay(sac.generator))
    expected = slow_td_target(sac, batch, [reward < 25 for reward in batch.rewards.tolist()], noise)
    got = sac.td_target(batch)
    np.testing.assert_allclose(got.numpy(), expected, atol=2e-5)
    assert (got[batch.rewards == 30] == 30).all()
    assert (got[batch.rewards == 20] != 20).all()


def test_td_target_carries_no_gradient(sac):
    assert not sac.td_target(make_batch()).requires_grad


# The losses


def test_critic_loss_is_the_squared_error_averaged_over_the_batch_and_summed_over_critics(sac):
    batch = make_batch(6)
    noise = torch.randn(6, ACTIONS, generator=replay(sac.generator))
    targets = slow_td_target(sac, batch, [d == 0 for d in batch.terminated.tolist()], noise)
    expected = 0.0
    for j in range(sac.config.ensemble):
        critic = Layers.of_critic(sac.critics, j)
        errors = [(critic(batch.observations[i], batch.actions[i])[0] - targets[i]) ** 2 for i in range(6)]
        expected += sum(errors) / 6
    metrics = sac.update_critics(batch)
    assert metrics["loss_critic"].item() == pytest.approx(expected, rel=1e-4)
    assert metrics["loss_td"].item() == pytest.approx(expected, rel=1e-4)
    assert metrics["q_target"].item() == pytest.approx(sum(targets) / 6, rel=1e-4)


def test_actor_loss_equals_a_slow_computation(sac):
    batch = make_batch(6)
    noise = torch.randn(6, ACTIONS, generator=replay(sac.generator))
    drawn = sac.actor(batch.observations).rsample(sac.generator)
    actor, critics = Layers.of(sac.actor.net), [Layers.of_critic(sac.critics, j) for j in range(sac.config.ensemble)]
    expected = 0.0
    for i in range(6):
        action, log_prob = slow_draw(actor, batch.observations[i], noise[i], -20, 2)
        min_q = min(critic(batch.observations[i], action)[0] for critic in critics)
        expected += (math.exp(-0.7) * log_prob - min_q) / 6
    assert sac.actor_loss(batch, drawn)[0].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("log_prob", "direction"), [([3.0, 5.0], 1), ([-4.0, 2.0], -1)])
def test_temperature_rises_when_entropy_is_below_its_target_and_falls_when_above(log_prob, direction):
    # The slope of -log_alpha * (log pi + H) with H = -2 is -(4 - 2) = -2, then -(-1 - 2) = 3;
    # Adam's first step has the length of the learning rate.
    sac = tiny("sac", alpha_lr=0.01)
    metrics = sac.update_temperature(RSample(torch.zeros(2, ACTIONS), torch.tensor(log_prob)))
    assert sac.log_alpha.item() == pytest.approx(direction * 0.01, rel=1e-4)
    assert metrics["alpha"].item() == pytest.approx(math.exp(direction * 0.01), rel=1e-4)
    assert metrics["entropy"].item() == -sum(log_prob) / 2


def test_a_learning_rate_of_0_keeps_alpha_as_it_starts():
    sac = tiny("sac", alpha_lr=0.0, initial_alpha=0.25)
    for step in range(3):
        metrics = sac.update(make_batch(seed=step))
    assert metrics["alpha"].item() == pytest.approx(0.25)
    assert metrics["entropy"].item() != 0


@pytest.mark.parametrize(("given", "target"), [(None, -ACTIONS), (-0.5, -0.5), (-9.0, -9.0)])
def test_target_entropy_is_minus_the_action_dimensions_unless_given(given, target):
    """Alpha stands still where the entropy is at its target, and only there."""
    for above, direction in ((-1.0, 1), (0.0, 0), (1.0, -1)):
        sac = tiny("sac", target_entropy=given)
        log_prob = -(target + above)
        sac.update_temperature(RSample(torch.zeros(2, ACTIONS), torch.tensor([log_prob - 3, log_prob + 3])))
        assert np.sign(sac.log_alpha.item()) == direction


def test_alpha_begins_where_it_is_told():
    learner = tiny("sac", initial_alpha=0.2)
    assert learner.log_alpha.item() == pytest.approx(math.log(0.2), rel=1e-6)
    assert tiny("mcq").log_alpha.item() == 0.0
    metrics = learner.step(make_batch())
    assert metrics["alpha"].item() == pytest.approx(0.2, rel=1e-3)
    with pytest.raises(MildlyError, match="initial_alpha must be positive"):
        dataclasses.replace(learner.config, initial_alpha=0.0)


# The order of a step


@pytest.mark.parametrize("alpha_first", [True, False])
def test_alpha_first_says_which_temperature_critics_and_actor_see(alpha_first):
    sac, batch = tiny("sac", alpha_lr=0.5, alpha_first=alpha_first), make_batch(6)
    random = replay(sac.generator)
    own, noise = (torch.randn(6, ACTIONS, generator=random) for _ in range(2))
    before = tiny("sac", alpha_first=alpha_first)
    actor = Layers.of(before.actor.net)
    metrics = sac.update(batch)
    assert sac.log_alpha.item() != 0
    used = sac.log_alpha.item() if alpha_first else 0.0
    before.log_alpha.data.fill_(used)
    targets = slow_td_target(before, batch, [d == 0 for d in batch.terminated.tolist()], noise)
    assert metrics["q_target"].item() == pytest.approx(sum(targets) / 6, rel=1e-4)
    # The actor sees the critics as they are after their step, which the learner still has.
    critics, expected = [Layers.of_critic(sac.critics, j) for j in range(sac.config.ensemble)], 0.0
    for i in range(6):
        action, log_prob = slow_draw(actor, batch.observations[i], own[i], -20, 2)
        min_q = min(critic(batch.observations[i], action)[0] for critic in critics)
        expected += (math.exp(used) * log_prob - min_q) / 6
    assert metrics["loss_actor"].item() == pytest.approx(expected, abs=1e-5)


def test_targets_start_equal_and_follow_the_updated_critics():
    sac = tiny("sac", tau=0.25, critic_lr=0.1)
    start = weights(sac.critics)
    assert same(start, weights(sac.target_critics))
    sac.update(make_batch())
    for old, new, target in zip(start, weights(sac.critics), weights(sac.target_critics), strict=True):
        assert not torch.equal(old, new)
        torch.testing.assert_close(target, 0.25 * new + 0.75 * old)


# Where gradients go


def test_the_critics_step_gives_no_gradient_to_targets_actor_or_temperature(sac):
    sac.update_critics(make_batch())
    assert with_gradient(sac) == {"critics"}
    assert all(parameter.grad is not None for parameter in sac.critics.parameters())


def test_actor_loss_gives_no_gradient_to_critics_or_temperature(sac):
    batch = make_batch()
    sac.actor_loss(batch, sac.actor(batch.observations).rsample(sac.generator))[0].backward()
    assert with_gradient(sac) == {"actor"}
    assert all(parameter.grad is not None for parameter in sac.actor.parameters())


def test_the_temperatures_step_gives_a_gradient_to_the_temperature_alone(sac):
    sac.update_temperature(sac.actor(make_batch().observations).rsample(sac.generator))
    assert with_gradient(sac) == {"log_alpha"}


def test_each_part_of_a_step_changes_its_own_weights_only(sac):
    batch = make_batch()
    parts = {"actor": sac.actor, "critics": sac.critics, "targets": sac.target_critics}

    def changed(step) -> set[str]:
        before, alpha = {name: weights(part) for name, part in parts.items()}, sac.log_alpha.item()
        step()
        moved = {name for name, part in parts.items() if not same(before[name], weights(part))}
        return moved | ({"alpha"} if sac.log_alpha.item() != alpha else set())

    drawn = sac.actor(batch.observations).rsample(sac.generator)
    assert changed(lambda: sac.update_temperature(drawn)) == {"alpha"}
    assert changed(lambda: sac.update_critics(batch)) == {"critics"}
    assert changed(lambda: sac.update_actor(batch, drawn)) == {"actor"}


# Configuration


@pytest.mark.parametrize(
    "fields",
    [
        {"gamma": 1.0},
        {"gamma": -0.1},
        {"gamma": math.nan},
        {"tau": 0.0},
        {"tau": 1.1},
        {"actor_lr": 0.0},
        {"critic_lr": -1.0},
        {"alpha_lr": -0.1},
        {"hidden_dims": (8, 0)},
        {"log_std_min": 3.0},
        {"batch_size": 0},
    ],
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be"):
        SAC.Config(**fields)
