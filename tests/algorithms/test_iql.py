"""IQL: its losses against slow computations, where gradients go, its order, and its actor."""

from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import (
    ACTIONS,
    OBSERVATIONS,
    Layers,
    make_batch,
    make_dataset,
    plain_critic,
    replay,
    same,
    tiny,
    unsealed,
    weights as copied,
)
from learners import changed_iql, with_gradient
from torch import nn

from mildly.actors import Gaussian, GaussianActor
from mildly.algorithms.advantage import expectile_loss, exponential_weights
from mildly.algorithms.iql import IQL
from mildly.data.batches import Batch
from mildly.errors import MildlyError
from mildly.networks import Critics, orthogonal_, td_loss
from mildly.policy import Policy, load_policy


def slow_min_q(iql: IQL, batch: Batch) -> list[float]:
    critics = [Layers.of_critic(iql.target_critics, j) for j in range(2)]
    return [min(q(s, a)[0] for q in critics) for s, a in zip(batch.observations, batch.actions, strict=True)]


def slow_log_prob(actor: GaussianActor, log_std: Any, state: Any, action: Any) -> float:
    """Log-density of one action, dimension by dimension."""
    mean, total = np.tanh(Layers.of(actor.net)(state)), 0.0
    for k, value in enumerate(action.tolist()):
        std = math.exp(log_std[k])
        total += -0.5 * ((value - mean[k]) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))
    return total


# The losses


def test_the_expectile_loss_of_three_numbers_by_hand():
    assert expectile_loss(torch.tensor([2.0, -1.0, 0.0]), 0.7).item() == pytest.approx((0.7 * 4 + 0.3 * 1) / 3)
    assert expectile_loss(torch.tensor([2.0, -1.0]), 0.5).item() == pytest.approx(0.5 * 5 / 2)


def test_weights_are_exponential_up_to_their_limit():
    advantage = torch.tensor([0.0, math.log(2), -math.log(3), 2.0, 500.0])
    expected = [1.0, 8.0, 1 / 27, 100.0, 100.0]
    assert exponential_weights(advantage, 3.0, 100.0).tolist() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("expectile", [0.7, 0.9])
def test_the_values_loss_equals_a_slow_computation(expectile):
    iql, batch = changed_iql(expectile=expectile), make_batch(20)
    value = Layers.of(iql.value)
    differences = [q - value(s)[0] for q, s in zip(slow_min_q(iql, batch), batch.observations, strict=True)]
    expected = np.mean([abs(expectile - (u < 0)) * u**2 for u in differences])
    assert 0 < sum(u < 0 for u in differences) < 20
    loss, metrics = iql.value_loss(batch, iql.min_target_q(batch))
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert metrics["value"].item() == pytest.approx(np.mean([value(s)[0] for s in batch.observations]), rel=1e-4)


def test_the_actors_loss_equals_a_slow_computation_in_which_some_weights_reach_their_limit():
    iql, batch = changed_iql(beta=4.0, weight_limit=3.0), make_batch(20)
    value, log_std = Layers.of(iql.value), iql.actor.spread.detach().tolist()
    expected, weights, advantages = 0.0, [], []
    for min_q, state, action in zip(slow_min_q(iql, batch), batch.observations, batch.actions, strict=True):
        advantages.append(min_q - value(state)[0])
        weights.append(min(math.exp(4.0 * advantages[-1]), 3.0))
        expected -= weights[-1] * slow_log_prob(iql.actor, log_std, state, action) / 20
    assert 0 < sum(weight == 3.0 for weight in weights) < 20
    loss, metrics = iql.actor_loss(batch, iql.min_target_q(batch))
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert metrics["advantage"].item() == pytest.approx(np.mean(advantages), rel=1e-4)
    assert metrics["effective_share"].item() == pytest.approx(np.mean(weights) ** 2 / np.mean(np.square(weights)))
    means = [np.tanh(Layers.of(iql.actor.net)(state)) for state in batch.observations]
    distance = np.square(np.array(means) - batch.actions.numpy()).sum(1).mean()
    assert metrics["policy_distance"].item() == pytest.approx(distance, rel=1e-4)


def test_the_target_is_the_reward_and_the_value_of_the_next_state_unless_it_is_terminal():
    iql, batch = changed_iql(), make_batch(12)
    value, expected = Layers.of(iql.value), []
    for reward, state, ends in zip(batch.rewards, batch.next_observations, batch.terminated, strict=True):
        expected.append(reward.item() + (0.0 if ends else 0.9 * value(state)[0]))
    target = iql.td_target(batch)
    np.testing.assert_allclose(target.numpy(), expected, atol=1e-5)
    assert not target.requires_grad
    assert 0 < batch.terminated.sum() < 12


def test_a_time_out_is_no_end():
    iql, data = changed_iql(), make_dataset()
    batch = iql.batches(data).sample(torch.Generator().manual_seed(0), 200)
    ends, cut_off = (torch.from_numpy(column)[batch.rows] for column in (data.terminated, data.truncated))
    assert torch.equal(iql.td_target(batch)[ends], batch.rewards[ends])
    assert (iql.td_target(batch)[cut_off] != batch.rewards[cut_off]).all()


# Where gradients go


@pytest.mark.parametrize(
    ("loss", "reached"),
    [
        (lambda iql, batch: iql.value_loss(batch, iql.min_target_q(batch)), "value"),
        (lambda iql, batch: iql.actor_loss(batch, iql.min_target_q(batch)), "actor"),
        (lambda iql, batch: td_loss(iql.critics, batch, iql.td_target(batch)), "critics"),
    ],
    ids=["value", "actor", "critics"],
)
def test_each_loss_reaches_its_own_network_alone(loss, reached):
    iql = changed_iql()
    loss(iql, make_batch())[0].backward()
    assert with_gradient(iql) == {reached}
    assert all(p.grad.abs().sum() > 0 for p in getattr(iql, reached).parameters())


def test_each_step_reaches_its_own_network_alone():
    batch = make_batch()
    for step, reached in (
        (lambda iql: iql.update_value(batch, iql.min_target_q(batch)), "value"),
        (lambda iql: iql.update_actor(batch, iql.min_target_q(batch)), "actor"),
        (lambda iql: iql.update_critics(batch), "critics"),
    ):
        iql = changed_iql()
        step(iql)
        assert with_gradient(iql) == {reached}


# The order of a step


def slow_steps(iql: IQL, batches: list[Batch]) -> tuple[list[nn.Module], list[nn.Module], torch.Tensor]:
    """Steps in the authors' order with plain layers, Adam and torch's schedule: V and actor, critics, log std."""
    c, state = iql.config, copy.deepcopy
    actor, value, log_std = state(iql.actor.net), state(iql.value), iql.actor.spread.detach().clone().requires_grad_()
    critics = [plain_critic(iql.critics, j) for j in range(2)]
    targets = state(critics)
    value_adam = torch.optim.Adam(value.parameters(), lr=c.value_lr)
    actor_adam = torch.optim.Adam([*actor.parameters(), log_std], lr=c.actor_lr)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=c.critic_lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        actor_adam, lambda step: 0.5 * (1 + math.cos(math.pi * step / c.decay_steps))
    )
    for s, a, r, s_next, d, _ in batches:
        with torch.no_grad():
            min_q = torch.min(*(q(torch.cat([s, a], 1)) for q in targets))[:, 0]
        difference = min_q - value(s)[:, 0]
        weight = (c.expectile - (difference < 0).float()).abs()
        value_adam.zero_grad()
        (weight * difference**2).mean().backward()
        value_adam.step()

        with torch.no_grad():
            weight = torch.clamp(torch.exp(c.beta * (min_q - value(s)[:, 0])), max=c.weight_limit)
        normal = torch.distributions.Normal(torch.tanh(actor(s)), log_std.clamp(-5, 2).exp())
        actor_adam.zero_grad()
        (-(weight * normal.log_prob(a).sum(1)).mean()).backward()
        actor_adam.step()
        schedule.step()

        with torch.no_grad():
            y = r + c.gamma * (1 - d) * value(s_next)[:, 0]
        critic_adam.zero_grad()
        sum(nn.functional.mse_loss(q(torch.cat([s, a], 1))[:, 0], y) for q in critics).backward()
        critic_adam.step()
        for q, target in zip(critics, targets, strict=True):
            for new, old in zip(q.parameters(), target.parameters(), strict=True):
                old.data.copy_(c.tau * new.data + (1 - c.tau) * old.data)
    return [value, actor], [*critics, *targets], log_std


def test_many_steps_equal_those_of_a_plain_implementation_in_the_authors_order():
    iql = changed_iql(tau=0.1, actor_lr=0.01, critic_lr=0.02, value_lr=0.03, decay_steps=10, weight_limit=2.0)
    iql.target_critics.load_state_dict(iql.critics.state_dict())
    batches = [make_batch(seed=step) for step in range(6)]
    (value, actor), critics, log_std = slow_steps(iql, batches)
    before = copied(iql.value, iql.actor, iql.critics)
    for batch in batches:
        iql.update(batch)
    assert not same(before, copied(iql.value, iql.actor, iql.critics))
    for ours, plain in ((iql.value, value), (iql.actor.net, actor)):
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(iql.actor.spread, log_std, atol=1e-4, rtol=1e-3)
    assert log_std.detach().abs().max() > 0.01
    ours = [Layers.of_critic(ensemble, j) for ensemble in (iql.critics, iql.target_critics) for j in range(2)]
    for layers, plain in zip(ours, critics, strict=True):
        for (matrix, offset), layer in zip(layers, plain[::2], strict=True):
            np.testing.assert_allclose(matrix, layer.weight.detach(), atol=1e-4, rtol=1e-3)
            np.testing.assert_allclose(offset, layer.bias.detach(), atol=1e-4, rtol=1e-3)


def test_it_learns_the_better_of_the_datas_actions():
    """One state, two actions, no future: V comes to lie nearer the better one's value, the policy at that action."""
    good = torch.arange(12) % 2 == 0
    batch = make_batch(12)._replace(
        observations=torch.zeros(12, OBSERVATIONS),
        actions=torch.where(good, 0.5, -0.5)[:, None].expand(12, ACTIONS),
        rewards=good.float(),
        terminated=torch.ones(12),
    )
    iql = tiny(
        "iql", hidden_dims=(32, 32), beta=10.0, expectile=0.9, actor_lr=0.01, critic_lr=0.01, value_lr=0.01, tau=0.1
    )
    for _ in range(300):
        metrics = iql.update(batch)
    assert metrics["value"].item() == pytest.approx(0.9, abs=0.05)
    assert iql.policy().act(np.zeros(OBSERVATIONS)).tolist() == pytest.approx(2 * [0.5], abs=0.1)


# The actor


@pytest.mark.parametrize(("parameter", "log_std"), [((0.4, -1.0), (0.4, -1.0)), ((-9.0, 7.0), (-5.0, 2.0))])
def test_the_actors_log_probability_equals_a_slow_computation_with_a_clipped_deviation(parameter, log_std):
    iql, batch = changed_iql(), make_batch(5)
    iql.actor.spread.data = torch.tensor(parameter)
    expected = [
        slow_log_prob(iql.actor, log_std, *pair) for pair in zip(batch.observations, batch.actions, strict=True)
    ]
    np.testing.assert_allclose(iql.actor(batch.observations).log_prob(batch.actions).detach(), expected, rtol=1e-4)


def test_it_acts_with_the_mean_and_its_draws_end_at_the_bounds():
    actor = changed_iql().actor
    states = make_batch(400).observations
    means = np.array([np.tanh(Layers.of(actor.net)(state)) for state in states])
    np.testing.assert_allclose(actor.act(states, True).detach(), means, atol=1e-5)
    actor.spread.data = torch.tensor([0.0, -2.0])
    noise = torch.randn(400, 1, ACTIONS, generator=torch.Generator().manual_seed(5))[:, 0].numpy()
    drawn = actor.act(states, False, torch.Generator().manual_seed(5)).detach().numpy()
    expected = means + np.exp([0.0, -2.0]) * noise
    assert (np.abs(expected) > 1).any()
    np.testing.assert_allclose(drawn, np.clip(expected, -1, 1), atol=1e-5)
    raw = actor(states).sample(1, torch.Generator().manual_seed(5))[:, 0].numpy()
    np.testing.assert_allclose(raw, expected, atol=1e-5)


@pytest.mark.parametrize("bound", ["clip", "sigmoid"])
def test_a_saved_gaussian_policy_acts_the_same_when_it_is_loaded(bound, tmp_path):
    actor = GaussianActor(OBSERVATIONS, ACTIONS, (8, 8), -3.0, 0.5, bound)
    actor.spread.data = torch.tensor([0.3, -0.7])
    loaded = load_policy(Policy(actor).save(tmp_path))
    assert isinstance(loaded.actor, GaussianActor)
    assert loaded.actor.spec == actor.spec
    states = make_batch(30).observations.numpy()
    for deterministic in (True, False):
        actions = [p.act(states, deterministic, torch.Generator().manual_seed(1)) for p in (Policy(actor), loaded)]
        assert np.array_equal(*actions)
    description = unsealed(tmp_path / "policy.json")
    description["spec"]["log_std_bound"] = "none"
    (tmp_path / "policy.json").write_text(json.dumps(description))
    with pytest.raises(MildlyError, match=r"the policy is damaged .*log_std_bound is 'none'"):
        load_policy(tmp_path)


def test_dropout_leaves_out_hidden_units_in_training_and_none_when_acting():
    iql, states = changed_iql(dropout=0.25), make_batch(200).observations
    random = replay(iql.generator)
    first, second = (torch.empty(200, 8).bernoulli_(0.75, generator=random).numpy() for _ in range(2))
    (one, two, three), expected = Layers.of(iql.actor.net), []
    for i, state in enumerate(states.double().numpy()):
        hidden = np.maximum(one[0] @ state + one[1], 0) * first[i] / 0.75
        hidden = np.maximum(two[0] @ hidden + two[1], 0) * second[i] / 0.75
        expected.append(np.tanh(three[0] @ hidden + three[1]))
    assert 0.2 < 1 - first.mean() < 0.3
    trained: Gaussian = iql.distribution(states)
    np.testing.assert_allclose(trained.mean.detach(), expected, atol=1e-5)
    plain = changed_iql()
    assert torch.equal(iql.actor.act(states, True), plain.actor.act(states, True))
    assert torch.equal(plain.distribution(states).mean, plain.actor(states).mean)
    assert np.abs(iql.actor.act(states, True).detach().numpy() - np.array(expected)).max() > 0.1


def test_layers_begin_orthogonal_times_the_root_of_two_with_offsets_of_0():
    iql = tiny("iql")
    assert same(copied(iql.critics), copied(iql.target_critics))
    plain = [*Layers.of(iql.actor.net), *Layers.of(iql.value)]
    stacked = [layer for j in range(2) for layer in Layers.of_critic(iql.critics, j)]
    for matrix, offset in plain + stacked:
        rows, columns = matrix.shape
        product = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
        np.testing.assert_allclose(product, 2 * np.eye(min(rows, columns)), atol=1e-5)
        assert not offset.any()
    assert not np.allclose(stacked[0][0], stacked[3][0])
    assert iql.actor.spread.tolist() == [0.0, 0.0]
    critics = Critics(OBSERVATIONS, ACTIONS, (8,))
    orthogonal_(critics)
    assert critics.weights[0].requires_grad
