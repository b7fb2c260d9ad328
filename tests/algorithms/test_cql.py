"""CQL: target, gap, losses and multiplier against slow computations, and where gradients go."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, replay, slow_draw, tiny, weights
from learners import with_gradient
from torch import Tensor

from mildly.algorithms.config import make_config
from mildly.algorithms.cql import CQL
from mildly.algorithms.extras import AnchoredExtras
from mildly.algorithms.sac import SAC
from mildly.data.batches import Batch
from mildly.errors import MildlyError


def changed_cql(**fields: Any) -> CQL:
    """A learner whose target critics and temperature differ from their first values."""
    learner = tiny("cql", seed=3, **{"gamma": 0.9, "num_actions": 4, **fields})
    learner.log_alpha.data.fill_(-0.7)
    random = torch.Generator().manual_seed(9)
    for parameter in learner.target_critics.parameters():
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return learner


def slow_target(cql: CQL, batch: Batch, noise: Tensor) -> list[float]:
    """y of each transition, one number at a time."""
    actor, critics = Layers.of(cql.actor.net), [Layers.of_critic(cql.target_critics, j) for j in range(2)]
    found = []
    for i, s_next in enumerate(batch.next_observations):
        action, _ = slow_draw(actor, s_next, noise[i], cql.config.log_std_min, cql.config.log_std_max)
        value = min(critic(s_next, action)[0] for critic in critics)
        found.append(batch.rewards[i].item() + (0.0 if batch.terminated[i] else cql.config.gamma * value))
    return found


def slow_gaps(cql: CQL, batch: Batch, noise: Tensor, uniform: Tensor) -> list[float]:
    """The gap of each critic: a sum of exponentials over single actions, and its logarithm."""
    actor, rows, gaps = Layers.of(cql.actor.net), len(batch.rewards), []
    low, high = cql.config.log_std_min, cql.config.log_std_max
    for j in range(2):
        critic, total = Layers.of_critic(cql.critics, j), 0.0
        for i, state in enumerate(batch.observations):
            terms = 0.0
            for k in range(cql.config.num_actions):
                terms += math.exp(critic(state, uniform[i, k])[0]) / 0.5**ACTIONS
                for where, row in ((state, i), (batch.next_observations[i], rows + i)):
                    action, log_prob = slow_draw(actor, where, noise[row, k], low, high)
                    terms += math.exp(critic(state, action)[0] - log_prob)  # at s, wherever it was drawn
            total += math.log(terms) - critic(state, batch.actions[i])[0]
        gaps.append(total / rows)
    return gaps


def slow_critic_loss(cql: CQL, batch: Batch) -> tuple[float, list[float], list[float]]:
    """The TD errors summed, the targets, and the gaps, with the numbers that the learner is about to draw."""
    random, rows, n = replay(cql.generator), len(batch.rewards), cql.config.num_actions
    targets = slow_target(cql, batch, torch.randn(rows, ACTIONS, generator=random))
    noise = torch.randn(2 * rows, n, ACTIONS, generator=random)
    uniform = torch.rand(rows, n, ACTIONS, generator=random) * 2 - 1
    critics = [Layers.of_critic(cql.critics, j) for j in range(2)]
    errors = [
        (q(batch.observations[i], batch.actions[i])[0] - targets[i]) ** 2 / rows for q in critics for i in range(rows)
    ]
    return sum(errors), targets, slow_gaps(cql, batch, noise, uniform)


# Target and gap


def test_td_target_equals_a_slow_computation_without_entropy():
    cql, batch = changed_cql(), make_batch(12)
    expected = slow_target(cql, batch, torch.randn(12, ACTIONS, generator=replay(cql.generator)))
    got = cql.td_target(batch)
    np.testing.assert_allclose(got.numpy(), expected, atol=2e-5)
    assert not got.requires_grad
    assert 0 < batch.terminated.sum() < 12
    assert torch.equal(got[batch.terminated == 1], batch.rewards[batch.terminated == 1])


def test_critic_loss_equals_a_slow_computation():
    cql, batch = changed_cql(conservative_weight=3.0), make_batch(6)
    td_loss, targets, gaps = slow_critic_loss(cql, batch)
    loss, metrics = cql.critic_loss(batch)
    assert loss.item() == pytest.approx(td_loss + 3.0 * sum(gaps), rel=1e-4)
    assert metrics["loss_td"].item() == pytest.approx(td_loss, rel=1e-4)
    assert metrics["gap"].item() == pytest.approx(sum(gaps) / 2, rel=1e-4)
    assert metrics["q_target"].item() == pytest.approx(np.mean(targets), rel=1e-4)


def test_the_gap_by_hand_where_all_values_are_equal(monkeypatch):
    # With Q = 2 everywhere the gap is the logarithm of the sum of 1 / p over the 15 actions, not divided by 15.
    cql, batch = changed_cql(conservative_weight=1.0, num_actions=5), make_batch(6)
    for parameter in cql.critics.parameters():
        parameter.data.zero_()
    cql.critics.biases[-1].data.fill_(2.0)
    monkeypatch.setattr(cql, "td_target", lambda batch: batch.rewards)
    random = cql.generator.get_state()
    _, log_density = cql.other_actions(batch)
    assert log_density.shape == (6, 15)
    assert torch.equal(log_density[:, :5], torch.full((6, 5), -ACTIONS * math.log(2)))
    cql.generator.set_state(random)
    loss, metrics = cql.critic_loss(batch)
    gap = np.log(np.exp(-log_density.double().numpy()).sum(1)).mean()
    assert metrics["gap"].item() == pytest.approx(gap, rel=1e-5)
    assert metrics["q_data"].item() == metrics["q_ood"].item() == 2.0
    errors = (2.0 - batch.rewards.double().numpy()) ** 2
    assert loss.item() == pytest.approx(2 * errors.mean() + 2 * gap, rel=1e-5)


def test_the_other_actions_are_uniform_and_the_policys_in_both_states():
    cql, batch = changed_cql(num_actions=2000), make_batch(3)
    with torch.no_grad():  # a policy that knows only its state, and hardly varies
        cql.actor.net[-1].bias[ACTIONS:] = -9.0
    actions, log_density = cql.other_actions(batch)
    uniform, here, there = actions.split(2000, dim=1)
    assert actions.abs().max() <= 1
    torch.testing.assert_close(uniform.mean(1), torch.zeros(3, ACTIONS), atol=0.06, rtol=0)
    torch.testing.assert_close(uniform.var(1), torch.full((3, ACTIONS), 1 / 3), atol=0.03, rtol=0)
    for part, states in ((here, batch.observations), (there, batch.next_observations)):
        mean = cql.actor(states).mean.tanh()
        torch.testing.assert_close(part, mean.unsqueeze(1).expand_as(part), atol=0.05, rtol=0)
    expected = cql.actor(batch.next_observations).log_prob(there[:, 7])
    torch.testing.assert_close(log_density[:, 4007], expected, atol=2e-2, rtol=1e-3)
    assert not actions.requires_grad
    assert not log_density.requires_grad


def test_values_of_the_policys_own_actions_are_reported_from_those_drawn_in_s():
    cql, batch = changed_cql(), make_batch(6)
    random = cql.generator.get_state()
    cql.td_target(batch)
    actions, _ = cql.other_actions(batch)
    values = cql.critics(batch.observations, actions[:, 4:8])
    cql.generator.set_state(random)
    assert cql.critic_loss(batch)[1]["q_ood"].item() == pytest.approx(values.mean().item(), rel=1e-5)


# The actor


def test_in_the_warm_up_the_actors_loss_has_the_datas_likelihood_in_the_place_of_the_value():
    cql, batch = changed_cql(), make_batch(6)
    noise = torch.randn(6, ACTIONS, generator=replay(cql.generator))
    actor, expected = Layers.of(cql.actor.net), 0.0
    for i, state in enumerate(batch.observations):
        log_prob = slow_draw(actor, state, noise[i], -5, 2)[1]
        out = actor(state)
        likelihood = 0.0
        for k in range(ACTIONS):
            action, std = batch.actions[i, k].item(), math.exp(min(max(out[ACTIONS + k], -5), 2))
            z = math.atanh(action)
            likelihood += -0.5 * ((z - out[k]) / std) ** 2 - math.log(std * math.sqrt(2 * math.pi))
            likelihood -= math.log(1 - action**2 + 1e-6)
        expected += (math.exp(-0.7) * log_prob - likelihood) / 6
    drawn = cql.actor(batch.observations).rsample(cql.generator)
    loss, metrics = cql.warm_up_loss(batch, drawn)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert torch.equal(metrics["loss_actor"], loss.detach())


def test_afterwards_the_actors_loss_is_that_of_sac():
    cql, batch = changed_cql(), make_batch(6)
    noise = torch.randn(6, ACTIONS, generator=replay(cql.generator))
    actor, critics = Layers.of(cql.actor.net), [Layers.of_critic(cql.critics, j) for j in range(2)]
    expected = 0.0
    for i, state in enumerate(batch.observations):
        action, log_prob = slow_draw(actor, state, noise[i], -5, 2)
        expected += (math.exp(-0.7) * log_prob - min(q(state, action)[0] for q in critics)) / 6
    drawn = cql.actor(batch.observations).rsample(cql.generator)
    assert cql.actor_loss(batch, drawn)[0].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("step", ["warm_up", "update"])
def test_a_step_moves_the_actor_once_down_the_loss_that_it_shows(step):
    """The loss is of the temperature after its step; Adam's first step has the length of the learning rate."""
    cql, twin = (tiny("cql", actor_lr=1e-3, critic_lr=1.0) for _ in range(2))
    batch = make_batch()
    before, metrics = weights(cql.actor), getattr(cql, step)(batch)
    drawn = twin.actor(batch.observations).rsample(twin.generator)
    twin.update_temperature(drawn)
    loss = twin.warm_up_loss if step == "warm_up" else twin.actor_loss
    assert torch.equal(metrics["loss_actor"], loss(batch, drawn)[0].detach())
    longest = max((new - old).abs().max().item() for new, old in zip(weights(cql.actor), before, strict=True))
    assert longest == pytest.approx(1e-3, rel=0.5)


# The multiplier


def test_the_critics_loss_with_a_threshold_equals_a_slow_computation():
    cql, batch = changed_cql(lagrange_threshold=2.0, conservative_weight=3.0), make_batch(6)
    cql.log_multiplier.data.fill_(0.4)
    td_loss, _, gaps = slow_critic_loss(cql, batch)
    expected = td_loss + math.exp(0.4) * sum(3.0 * gap - 2.0 for gap in gaps)
    assert cql.critic_loss(batch)[0].item() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(("gap", "direction"), [(2.6, 1), (2.4, -1)])
def test_the_multiplier_rises_where_the_weighted_gap_exceeds_the_threshold(gap, direction):
    # 2 * gap against 5; Adam's first step has the length of the learning rate.
    cql = tiny("cql", lagrange_threshold=5.0, conservative_weight=2.0, critic_lr=0.01)
    assert cql.log_multiplier.item() == 0.0
    metrics = cql.update_multiplier(torch.tensor(gap), 5.0)
    assert cql.log_multiplier.item() == pytest.approx(direction * 0.01, rel=1e-3)
    assert metrics["multiplier"].item() == 1.0


def test_the_multiplier_ends_at_a_million_and_goes_no_further():
    cql = tiny("cql", lagrange_threshold=5.0)
    cql.log_multiplier.data.fill_(20.0)
    assert cql.multiplier().item() == 1e6
    cql.update_multiplier(torch.tensor(100.0), 5.0)
    assert cql.log_multiplier.item() == 20.0


def test_a_learner_with_a_threshold_goes_on_to_the_bit_when_restored():
    straight, restored = (tiny("cql", seed=seed, lagrange_threshold=5.0) for seed in (0, 4))
    for step in range(3):
        straight.update(make_batch(seed=step))
    restored.load_state_dict(straight.state_dict())
    for step in range(3, 6):
        one, other = (learner.update(make_batch(seed=step)) for learner in (straight, restored))
        assert all(torch.equal(one[name], other[name]) for name in one)
    assert straight.log_multiplier.item() == restored.log_multiplier.item() != 0


# Where gradients go


@pytest.mark.parametrize("threshold", [None, 5.0])
def test_the_critics_loss_reaches_the_critics_alone(threshold):
    cql = changed_cql(lagrange_threshold=threshold)
    cql.critic_loss(make_batch())[0].backward()
    assert with_gradient(cql) == {"critics"}
    assert all(p.grad.abs().sum() > 0 for p in cql.critics.parameters())


@pytest.mark.parametrize("threshold", [None, 5.0])
def test_the_critics_step_reaches_the_critics_and_the_multiplier(threshold):
    cql = changed_cql(lagrange_threshold=threshold)
    cql.update_critics(make_batch())
    assert with_gradient(cql) == {"critics"} | (set() if threshold is None else {"log_multiplier"})


@pytest.mark.parametrize("loss", ["actor_loss", "warm_up_loss"])
def test_the_actors_loss_reaches_the_actor_alone(loss):
    cql, batch = changed_cql(), make_batch()
    getattr(cql, loss)(batch, cql.actor(batch.observations).rsample(cql.generator))[0].backward()
    assert with_gradient(cql) == {"actor"}
    assert all(p.grad.abs().sum() > 0 for p in cql.actor.parameters())


def test_the_gap_lowers_the_values_of_actions_beside_those_of_the_data():
    batch = make_batch(12)._replace(terminated=torch.ones(12), rewards=torch.zeros(12))
    random = torch.rand(12, 50, ACTIONS, generator=torch.Generator().manual_seed(0)) * 2 - 1
    margins = []
    for weight in (0.0, 5.0):
        cql = tiny("cql", conservative_weight=weight, critic_lr=3e-3, hidden_dims=(32, 32))
        for _ in range(200):
            cql.update(batch)
        with torch.no_grad():
            margins.append(
                (
                    cql.critics(batch.observations, batch.actions).mean(dim=1)
                    - cql.critics(batch.observations, random).mean(dim=(1, 2))
                )
                .min()
                .item()
            )
    assert abs(margins[0]) < 0.3
    assert margins[1] > 1.0


# Configuration


def test_the_defaults_are_what_the_authors_recommend():
    c = make_config(CQL, "paper", "hopper-medium-v2", {})
    assert (c.hidden_dims, c.batch_size, c.gamma, c.tau) == ((256, 256, 256), 256, 0.99, 5e-3)
    assert (c.actor_lr, c.alpha_lr, c.critic_lr) == (1e-4, 1e-4, 3e-4)
    assert (c.log_std_min, c.log_std_max, c.initial_alpha, c.alpha_first) == (-5.0, 2.0, 1.0, True)
    assert (c.conservative_weight, c.num_actions, c.lagrange_threshold) == (5.0, 10, None)
    assert c.extras == AnchoredExtras(bc_warmup_steps=40_000)
    assert not c.normalize_observations
    learner = CQL(c, OBSERVATIONS, ACTIONS)
    assert [w.shape[1:] for w in learner.critics.weights] == [(5, 256), (256, 256), (256, 256), (256, 1)]
    assert learner.log_multiplier is None


def test_presets():
    lagrange = make_config(CQL, "lagrange", "", {})
    assert lagrange == CQL.Config(conservative_weight=1.0, lagrange_threshold=5.0)
    simple = make_config(CQL, "simple", "", {})
    assert (simple.hidden_dims, simple.actor_lr, simple.alpha_lr) == ((256, 256), 3e-4, 3e-4)
    assert simple.extras == AnchoredExtras()
    assert (simple.log_std_min, simple.alpha_first, simple.conservative_weight) == (-20.0, False, 5.0)
    small = make_config(CQL, "small", "", {})
    assert {name: getattr(small, name) for name in SAC.PRESETS["small"]} == SAC.PRESETS["small"]
    assert small.extras == AnchoredExtras()


@pytest.mark.parametrize(
    "fields",
    [
        {"num_actions": 0},
        {"conservative_weight": -0.1},
        {"lagrange_threshold": -1.0},
        {"lagrange_threshold": math.nan},
        {"log_std_min": 3.0},
    ],
    ids=str,
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be"):
        CQL.Config(**fields)
