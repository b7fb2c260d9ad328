"""IQL: its losses against slow computations, its order, and what it does to rewards, actions and learning rates."""

from __future__ import annotations

import copy
import dataclasses
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
    content,
    make_batch,
    make_dataset,
    plain_critic,
    replay,
    same,
    tiny,
    train_tiny,
)
from conftest import weights as copied
from torch import nn

from mildly.actors import Gaussian, GaussianActor
from mildly.algorithms.advantage import expectile_loss, exponential_weights, family
from mildly.algorithms.base import make_config
from mildly.algorithms.iql import IQL, reward_scale
from mildly.data.dataset import Dataset, Meta
from mildly.data.replay import Batch, Replay
from mildly.errors import MildlyError
from mildly.networks import Critics, orthogonal_
from mildly.policy import Policy, load_policy
from mildly.training.loop import resume


def changed_iql(**fields: Any) -> IQL:
    """A learner whose weights are all random and whose targets differ from its critics."""
    iql: IQL = tiny("iql", seed=3, **{"gamma": 0.9, **fields})
    random = torch.Generator().manual_seed(9)
    for part in (iql.pi, iql.value, iql.critics, iql.target_critics):
        for parameter in part.parameters():
            parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return iql


def slow_lowest(iql: IQL, batch: Batch) -> list[float]:
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
    differences = [q - value(s)[0] for q, s in zip(slow_lowest(iql, batch), batch.observations, strict=True)]
    expected = np.mean([abs(expectile - (u < 0)) * u**2 for u in differences])
    assert 0 < sum(u < 0 for u in differences) < 20
    loss, metrics = iql.value_loss(batch, iql.lowest_value(batch))
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert metrics["value"].item() == pytest.approx(np.mean([value(s)[0] for s in batch.observations]), rel=1e-4)


def test_the_actors_loss_equals_a_slow_computation_in_which_some_weights_reach_their_limit():
    iql, batch = changed_iql(beta=4.0, weight_limit=3.0), make_batch(20)
    value, log_std = Layers.of(iql.value), iql.pi.spread.detach().tolist()
    expected, weights, advantages = 0.0, [], []
    for lowest, state, action in zip(slow_lowest(iql, batch), batch.observations, batch.actions, strict=True):
        advantages.append(lowest - value(state)[0])
        weights.append(min(math.exp(4.0 * advantages[-1]), 3.0))
        expected -= weights[-1] * slow_log_prob(iql.pi, log_std, state, action) / 20
    assert 0 < sum(weight == 3.0 for weight in weights) < 20
    loss, metrics = iql.actor_loss(batch, iql.lowest_value(batch))
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    assert metrics["advantage"].item() == pytest.approx(np.mean(advantages), rel=1e-4)
    assert metrics["effective_share"].item() == pytest.approx(np.mean(weights) ** 2 / np.mean(np.square(weights)))
    means = [np.tanh(Layers.of(iql.pi.net)(state)) for state in batch.observations]
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
    batch = Replay.of(data, torch.device("cpu")).sample(200, torch.Generator().manual_seed(0))
    ends, cut_off = (torch.from_numpy(column)[batch.rows] for column in (data.terminated, data.truncated))
    assert torch.equal(iql.td_target(batch)[ends], batch.rewards[ends])
    assert (iql.td_target(batch)[cut_off] != batch.rewards[cut_off]).all()


# Where gradients go


def with_gradient(iql: IQL) -> set[str]:
    parts = {name: part for name, part in vars(iql).items() if isinstance(part, nn.Module)}
    return {name for name, part in parts.items() if any(p.grad is not None for p in part.parameters())}


@pytest.mark.parametrize(
    ("loss", "reached"),
    [
        (lambda iql, batch: iql.value_loss(batch, iql.lowest_value(batch)), "value"),
        (lambda iql, batch: iql.actor_loss(batch, iql.lowest_value(batch)), "pi"),
        (lambda iql, batch: iql.critic_loss(batch), "critics"),
    ],
    ids=["value", "actor", "critics"],
)
def test_each_loss_reaches_its_own_network_alone(loss, reached):
    iql = changed_iql()
    loss(iql, make_batch())[0].backward()
    assert with_gradient(iql) == {reached}
    assert all(p.grad.abs().sum() > 0 for p in getattr(iql, reached).parameters())


# The order of a step


def slow_steps(iql: IQL, batches: list[Batch]) -> tuple[list[nn.Module], list[nn.Module], torch.Tensor]:
    """Steps in the authors' order with plain layers, Adam and torch's schedule: V and actor, critics, log std."""
    c, state = iql.config, copy.deepcopy
    actor, value, log_std = state(iql.pi.net), state(iql.value), iql.pi.spread.detach().clone().requires_grad_()
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
            lowest = torch.min(*(q(torch.cat([s, a], 1)) for q in targets))[:, 0]
        difference = lowest - value(s)[:, 0]
        weight = (c.expectile - (difference < 0).float()).abs()
        value_adam.zero_grad()
        (weight * difference**2).mean().backward()
        value_adam.step()

        with torch.no_grad():
            weight = torch.clamp(torch.exp(c.beta * (lowest - value(s)[:, 0])), max=c.weight_limit)
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
    before = copied(iql.value, iql.pi, iql.critics)
    for batch in batches:
        iql.update(batch)
    assert not same(before, copied(iql.value, iql.pi, iql.critics))
    for ours, plain in ((iql.value, value), (iql.pi.net, actor)):
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(iql.pi.spread, log_std, atol=1e-4, rtol=1e-3)
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
    iql = tiny("iql", hidden=(32, 32), beta=10.0, expectile=0.9, actor_lr=0.01, critic_lr=0.01, value_lr=0.01, tau=0.1)
    for _ in range(300):
        metrics = iql.update(batch)
    assert metrics["value"].item() == pytest.approx(0.9, abs=0.05)
    assert iql.policy().act(np.zeros(OBSERVATIONS)).tolist() == pytest.approx(2 * [0.5], abs=0.1)


# The actor's learning rate


def actor_rates(iql: IQL, steps: int) -> list[float]:
    rates = []
    for step in range(steps):
        iql.update(make_batch(seed=step))
        rates.append(iql.pi_optimizer.param_groups[0]["lr"])
    return rates


def test_the_actors_learning_rate_falls_along_half_a_cosine_and_stays_at_0():
    shares = [1, (2 + math.sqrt(2)) / 4, 0.5, (2 - math.sqrt(2)) / 4, 0, 0]
    iql = tiny("iql", decay_steps=4, actor_lr=0.02, critic_lr=0.03, value_lr=0.04)
    assert actor_rates(iql, 6) == pytest.approx([0.02 * share for share in shares], abs=1e-12)
    assert iql.critic_optimizer.param_groups[0]["lr"] == 0.03
    assert iql.value_optimizer.param_groups[0]["lr"] == 0.04
    assert actor_rates(tiny("iql", decay_steps=None, actor_lr=0.02), 3) == [0.02, 0.02, 0.02]


def test_a_restored_learner_goes_on_with_the_learning_rate_where_it_was():
    iql, restored = (tiny("iql", decay_steps=8, seed=seed) for seed in (0, 1))
    actor_rates(iql, 4)
    restored.load_state_dict(iql.state_dict())
    assert actor_rates(restored, 3) == actor_rates(iql, 3)
    assert same(copied(iql.pi), copied(restored.pi))


# Rewards and actions


def test_rewards_are_scaled_so_that_best_and_worst_return_are_1000_apart():
    data = make_dataset()
    returns = [sum(data.rewards[start : start + 10].tolist()) for start in range(0, 60, 10)]
    scale = 1000 / (max(returns) - min(returns))
    assert reward_scale(data) == pytest.approx(scale, rel=1e-5)
    scaled, plain = changed_iql(reward_scaling=True), changed_iql()
    for iql in (scaled, plain):
        iql.prepare(data)
    batch = make_batch()
    expected = plain.update(batch._replace(rewards=batch.rewards * scale))
    assert scaled.update(batch)["loss_critic"].item() == pytest.approx(expected["loss_critic"].item(), rel=1e-4)
    assert plain.reward_scale == 1.0


def test_the_scale_is_part_of_the_state():
    iql, restored = changed_iql(reward_scaling=True), changed_iql(reward_scaling=True)
    iql.prepare(make_dataset())
    restored.load_state_dict(iql.state_dict())
    assert restored.reward_scale == iql.reward_scale != 1.0


def test_the_policy_keeps_the_scale_of_the_rewards(tmp_path):
    data, iql = make_dataset(), changed_iql(reward_scaling=True)
    iql.prepare(data)
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


def test_episodes_of_equal_returns_cannot_be_scaled():
    data = make_dataset()
    data = Dataset.from_arrays(
        data.observations, data.actions, np.ones(60), data.next_observations, data.terminated, data.truncated, data.meta
    )
    with pytest.raises(MildlyError, match=r"tiny: all episodes have the return 10.*reward_scaling off"):
        changed_iql(reward_scaling=True).prepare(data)


def test_the_datas_actions_are_clipped_a_little_inside_their_bounds():
    batch = make_batch()
    outer, inner = (batch._replace(actions=batch.actions.sign() * bound) for bound in (1.0, 1 - 1e-5))
    one, other = changed_iql(), changed_iql()
    metrics = one.update(outer), other.update(inner)
    assert all(torch.equal(metrics[0][name], metrics[1][name]) for name in metrics[0])
    assert same(copied(one.critics, one.pi), copied(other.critics, other.pi))


# The start from the data


def test_v_begins_where_the_critics_do_and_returns_are_of_scaled_rewards():
    iql, plain = (tiny("iql", level_start=True, gamma=0.9, reward_scaling=scaled) for scaled in (True, False))
    data = make_dataset()
    for learner in (iql, plain):
        learner.prepare(data)
        assert learner.value[-1].bias.item() == learner.critics.biases[-1].flatten()[0].item() != 0
    torch.testing.assert_close(iql.returns.value, reward_scale(data) * plain.returns.value, rtol=1e-4, atol=1e-5)
    assert iql.value[-1].bias.item() == pytest.approx(reward_scale(data) * plain.value[-1].bias.item(), rel=1e-4)


def test_an_actor_that_clones_takes_no_notice_of_the_values():
    learners = [tiny("iql", cloning_steps=2, beta=beta) for beta in (1.0, 9.0)]
    for step in range(2):
        metrics = [learner.update(make_batch(seed=step)) for learner in learners]
        assert "loss_cloning" in metrics[0]
        assert "loss_actor" not in metrics[0]
    assert same(*(copied(learner.pi) for learner in learners))
    assert all("loss_actor" in learner.update(make_batch(seed=2)) for learner in learners)
    assert not same(*(copied(learner.pi) for learner in learners))


# The actor


@pytest.mark.parametrize(("parameter", "log_std"), [((0.4, -1.0), (0.4, -1.0)), ((-9.0, 7.0), (-5.0, 2.0))])
def test_the_actors_log_probability_equals_a_slow_computation_with_a_clipped_deviation(parameter, log_std):
    iql, batch = changed_iql(), make_batch(5)
    iql.pi.spread.data = torch.tensor(parameter)
    expected = [slow_log_prob(iql.pi, log_std, *pair) for pair in zip(batch.observations, batch.actions, strict=True)]
    np.testing.assert_allclose(iql.pi(batch.observations).log_prob(batch.actions).detach(), expected, rtol=1e-4)


def test_it_acts_with_the_mean_and_its_draws_end_at_the_bounds():
    actor = changed_iql().pi
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


def test_the_policys_actions_are_draws_within_the_bounds_without_gradients():
    iql, states = changed_iql(), make_batch(50).observations
    actions = iql.policy_actions(states, 4, torch.Generator().manual_seed(5))
    raw = iql.pi(states).sample(4, torch.Generator().manual_seed(5))
    assert actions.shape == (50, 4, ACTIONS)
    assert torch.equal(actions, raw.clamp(-1, 1))
    assert not torch.equal(actions, raw)
    assert not actions.requires_grad


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
    description = json.loads((tmp_path / "policy.json").read_text())
    description["spec"]["log_std_bound"] = "none"
    (tmp_path / "policy.json").write_text(json.dumps(description))
    with pytest.raises(MildlyError, match=r"the policy is damaged .*log_std_bound is 'none'"):
        load_policy(tmp_path)


def test_dropout_leaves_out_hidden_units_in_training_and_none_when_acting():
    iql, states = changed_iql(dropout=0.25), make_batch(200).observations
    random = replay(iql.generator)
    first, second = (torch.empty(200, 8).bernoulli_(0.75, generator=random).numpy() for _ in range(2))
    (one, two, three), expected = Layers.of(iql.pi.net), []
    for i, state in enumerate(states.double().numpy()):
        hidden = np.maximum(one[0] @ state + one[1], 0) * first[i] / 0.75
        hidden = np.maximum(two[0] @ hidden + two[1], 0) * second[i] / 0.75
        expected.append(np.tanh(three[0] @ hidden + three[1]))
    assert 0.2 < 1 - first.mean() < 0.3
    trained: Gaussian = iql.distribution(states)
    np.testing.assert_allclose(trained.mean.detach(), expected, atol=1e-5)
    plain = changed_iql()
    assert torch.equal(iql.actor().act(states, True), plain.actor().act(states, True))
    assert torch.equal(plain.distribution(states).mean, plain.pi(states).mean)
    assert np.abs(iql.actor().act(states, True).detach().numpy() - np.array(expected)).max() > 0.1


def test_layers_begin_orthogonal_times_the_root_of_two_with_offsets_of_0():
    iql = tiny("iql")
    assert same(copied(iql.critics), copied(iql.target_critics))
    plain = [*Layers.of(iql.pi.net), *Layers.of(iql.value)]
    stacked = [layer for j in range(2) for layer in Layers.of_critic(iql.critics, j)]
    for matrix, offset in plain + stacked:
        rows, columns = matrix.shape
        product = matrix @ matrix.T if rows <= columns else matrix.T @ matrix
        np.testing.assert_allclose(product, 2 * np.eye(min(rows, columns)), atol=1e-5)
        assert not offset.any()
    assert not np.allclose(stacked[0][0], stacked[3][0])
    assert iql.pi.spread.tolist() == [0.0, 0.0]
    critics = Critics(OBSERVATIONS, ACTIONS, (8,))
    orthogonal_(critics)
    assert critics.weights[0].requires_grad


# Configuration


def test_the_defaults_are_the_authors():
    c = make_config(IQL, "paper", "hopper-medium-v2", {})
    assert (c.hidden, c.batch_size, c.gamma, c.tau) == ((256, 256), 256, 0.99, 5e-3)
    assert (c.actor_lr, c.critic_lr, c.value_lr, c.decay_steps) == (3e-4, 3e-4, 3e-4, 1_000_000)
    assert (c.expectile, c.beta, c.weight_limit, c.dropout, c.reward_scaling) == (0.7, 3.0, 100.0, 0.0, True)
    assert (c.log_std_min, c.log_std_max, c.normalize_observations, c.return_mix) == (-5.0, 2.0, False, 0)
    learner = IQL(c, OBSERVATIONS, ACTIONS)
    assert [w.shape for w in learner.critics.weights] == [(2, 5, 256), (2, 256, 256), (2, 256, 1)]
    assert [tuple(layer.weight.shape) for layer in learner.pi.net[::2]] == [(256, 3), (256, 256), (2, 256)]
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
        {"cloning_weight": 0.1},
        {"gamma": math.nan},
    ],
    ids=str,
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be"):
        IQL.Config(**fields)


def test_the_set_is_left_as_it_is():
    data = make_dataset()
    before, meta = data.rewards.copy(), dataclasses.replace(data.meta)
    changed_iql(reward_scaling=True).prepare(data)
    assert np.array_equal(data.rewards, before)
    assert isinstance(meta, Meta)
    assert data.meta == meta
