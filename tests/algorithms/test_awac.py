"""AWAC: target, advantages, weights and losses against slow computations, its order, and the variant for hands."""

from __future__ import annotations

import copy
import dataclasses
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
    weights as copied,
)
from learners import with_gradient
from torch import nn

from mildly.algorithms.advantage import batch_weights
from mildly.algorithms.awac import AWAC
from mildly.algorithms.config import make_config
from mildly.algorithms.extras import Extras
from mildly.data.batches import Batch
from mildly.errors import MildlyError
from mildly.networks import Critics, td_loss

SPREAD = (2.0, -0.5)
"""The parameters of the log standard deviations in these tests."""
LOG_STD = tuple(-6 + 6 / (1 + math.exp(-value)) for value in SPREAD)


def changed_awac(**fields: Any) -> AWAC:
    """A learner whose targets differ from its critics, and whose draws are not all near the mean."""
    awac: AWAC = tiny("awac", seed=3, **{"gamma": 0.9, **fields})
    random = torch.Generator().manual_seed(9)
    for part in (awac.actor, awac.critics, awac.target_critics):
        for parameter in part.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    awac.actor.spread.data = torch.tensor(SPREAD)
    return awac


def slow_draws(awac: AWAC, states: torch.Tensor, noise: Any) -> np.ndarray:
    means = np.array([np.tanh(Layers.of(awac.actor.net)(state)) for state in states])
    return means + np.exp(LOG_STD) * np.asarray(noise, dtype=np.float64).reshape(means.shape)


def slow_min_q(critics: Critics, states: Any, actions: Any) -> np.ndarray:
    both = [Layers.of_critic(critics, j) for j in range(2)]
    return np.array([min(q(s, a)[0] for q in both) for s, a in zip(states, actions, strict=True)])


# The target


def test_the_target_equals_a_slow_computation_with_the_same_draws_and_no_entropy():
    awac, batch = changed_awac(), make_batch(40)
    draws = slow_draws(
        awac, batch.next_observations, torch.randn(40, 1, ACTIONS, generator=replay(awac.generator)).numpy()
    )
    assert (np.abs(draws) > 1).any()  # the critics are asked for what is drawn, as the authors do
    values = slow_min_q(awac.target_critics, batch.next_observations, draws)
    expected = batch.rewards.numpy() + 0.9 * (1 - batch.terminated.numpy()) * values
    target = awac.td_target(batch)
    np.testing.assert_allclose(target.numpy(), expected, atol=2e-5)
    assert not target.requires_grad
    assert 0 < batch.terminated.sum() < 40


def test_terminal_states_can_be_ignored_and_time_outs_are_no_ends():
    data = make_dataset()
    learners = changed_awac(), changed_awac(ignore_terminals=True)
    batches = [awac.batches(data).sample(torch.Generator().manual_seed(0), 200) for awac in learners]
    batch = batches[0]
    assert torch.equal(batch.rows, batches[1].rows)
    ends, cut_off = (torch.from_numpy(column)[batch.rows] for column in (data.terminated, data.truncated))
    plain, blind = (awac.td_target(own) for awac, own in zip(learners, batches, strict=True))
    assert torch.equal(plain[ends], batch.rewards[ends])
    assert (plain[cut_off] != batch.rewards[cut_off]).all()
    assert (blind[ends] != batch.rewards[ends]).all()
    assert torch.equal(plain[~ends], blind[~ends])
    assert not batches[1].terminated.any()


# The actor's loss


def test_weights_are_the_batchs_softmax_times_its_size():
    advantage = torch.tensor([0.0, 2 * math.log(2), 2 * math.log(5)]) + 700
    assert batch_weights(advantage, 2.0).tolist() == pytest.approx([3 / 8, 6 / 8, 15 / 8], rel=1e-4)


@pytest.mark.parametrize("baseline", ["draw", "mean"])
@pytest.mark.parametrize("limit", [None, 0.1])
def test_the_actors_loss_equals_a_slow_computation(baseline, limit):
    awac, batch = changed_awac(baseline=baseline, advantage_limit=limit, beta=0.7), make_batch(20)
    noise = torch.randn(20, 1, ACTIONS, generator=replay(awac.generator)).numpy()
    own = slow_draws(awac, batch.observations, noise if baseline == "draw" else np.zeros((20, ACTIONS)))
    of_data = slow_min_q(awac.critics, batch.observations, batch.actions)
    advantage = of_data - slow_min_q(awac.critics, batch.observations, own)
    if limit is not None:
        assert 0 < (advantage > limit).sum() < 20
        advantage = np.where(advantage > limit, limit, advantage)
    weights = np.exp(advantage / 0.7) / np.exp(advantage / 0.7).sum() * 20
    means, expected = slow_draws(awac, batch.observations, np.zeros((20, ACTIONS))), 0.0
    for i in range(20):
        for k in range(ACTIONS):
            noise_of_action = (batch.actions[i, k].item() - means[i, k]) / math.exp(LOG_STD[k])
            log_prob = -0.5 * noise_of_action**2 - LOG_STD[k] - 0.5 * math.log(2 * math.pi)
            expected -= weights[i] * log_prob / 20
    loss, metrics = awac.actor_loss(batch)
    assert loss.item() == pytest.approx(expected, rel=1e-3)
    assert metrics["advantage"].item() == pytest.approx(advantage.mean(), rel=1e-3)
    assert metrics["effective_share"].item() == pytest.approx(1 / np.mean(weights**2), rel=1e-3)
    critics = [Layers.of_critic(awac.critics, j) for j in range(2)]
    of_policy = np.mean([q(s, a)[0] for q in critics for s, a in zip(batch.observations, own, strict=True)])
    assert metrics["q_ood"].item() == pytest.approx(of_policy, rel=1e-3)


def test_the_mean_as_baseline_takes_no_random_number():
    for baseline, drawn in (("mean", False), ("draw", True)):
        awac = changed_awac(baseline=baseline)
        before = awac.generator.get_state()
        awac.actor_loss(make_batch())
        assert torch.equal(awac.generator.get_state(), before) != drawn


# Where gradients go


def critic_loss(awac: AWAC, batch: Batch) -> Any:
    """What a step minimizes first."""
    return td_loss(awac.critics, batch, awac.td_target(batch))


@pytest.mark.parametrize("baseline", ["draw", "mean"])
def test_each_loss_reaches_its_own_network_alone(baseline):
    for loss, reached in ((AWAC.actor_loss, "actor"), (critic_loss, "critics")):
        awac = changed_awac(baseline=baseline)
        loss(awac, make_batch())[0].backward()
        assert with_gradient(awac) == {reached}
        assert all(p.grad.abs().sum() > 0 for p in getattr(awac, reached).parameters())


def test_a_step_reaches_the_actor_and_the_critics_and_not_the_targets():
    awac = changed_awac()
    awac.update(make_batch())
    assert with_gradient(awac) == {"actor", "critics"}


def test_the_weights_carry_no_gradient():
    """The actor's gradient is that of a likelihood with numbers for weights."""
    awac, twin, batch = changed_awac(), changed_awac(), make_batch()
    distribution = twin.actor(batch.observations)
    weights = batch_weights(twin.advantage(batch, distribution)[0], 2.0).tolist()
    loss = -(torch.tensor(weights) * distribution.log_prob(batch.actions)).mean()
    awac.actor_loss(batch)[0].backward()
    expected = torch.autograd.grad(loss, list(twin.actor.parameters()))
    for parameter, gradient in zip(awac.actor.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


# The order of a step


def slow_steps(awac: AWAC, batches: list[Batch]) -> tuple[nn.Module, torch.Tensor, list[nn.Module]]:
    """Steps as the authors write them, with plain layers, autograd and Adam: actor, log std, critics and targets."""
    c, random = awac.config, replay(awac.generator)
    actor, spread = copy.deepcopy(awac.actor.net), awac.actor.spread.detach().clone().requires_grad_()
    critics = [plain_critic(awac.critics, j) for j in range(2)]
    targets = copy.deepcopy(critics)
    actor_adam = torch.optim.Adam([*actor.parameters(), spread], lr=c.actor_lr, weight_decay=c.actor_weight_decay)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=c.critic_lr)

    def policy(states: torch.Tensor) -> torch.distributions.Normal:
        return torch.distributions.Normal(torch.tanh(actor(states)), torch.exp(-6 + 6 * torch.sigmoid(spread)))

    def min_q(networks: list[nn.Module], states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return torch.min(*(q(torch.cat([states, actions], 1))[:, 0] for q in networks))

    for s, a, r, s_next, d, _ in batches:
        with torch.no_grad():
            afterwards = policy(s_next)
            a_next = afterwards.mean + afterwards.stddev * torch.randn(a.shape, generator=random)
            y = r + c.gamma * (1 - d) * min_q(targets, s_next, a_next)
        critic_loss = sum(nn.functional.mse_loss(q(torch.cat([s, a], 1))[:, 0], y) for q in critics)
        current = policy(s)
        with torch.no_grad():
            own = current.mean + current.stddev * torch.randn(a.shape, generator=random)
            score = min_q(critics, s, a) - min_q(critics, s, own)
            weights = torch.softmax(score / c.beta, dim=0)
        actor_loss = (-current.log_prob(a).sum(1) * len(weights) * weights).mean()
        for loss, adam in ((critic_loss, critic_adam), (actor_loss, actor_adam)):
            adam.zero_grad()
            loss.backward()
            adam.step()
        for q, target in zip(critics, targets, strict=True):
            for new, old in zip(q.parameters(), target.parameters(), strict=True):
                old.data.copy_(c.tau * new.data + (1 - c.tau) * old.data)
    return actor, spread, [*critics, *targets]


def test_many_steps_equal_those_of_a_plain_implementation_in_the_authors_order():
    awac = changed_awac(tau=0.1, actor_lr=0.01, critic_lr=0.03, actor_weight_decay=0.1, beta=0.3)
    awac.target_critics.load_state_dict(awac.critics.state_dict())
    batches = [make_batch(seed=step) for step in range(6)]
    actor, spread, critics = slow_steps(awac, batches)
    before = copied(awac.actor, awac.critics)
    for batch in batches:
        awac.update(batch)
    assert not same(before, copied(awac.actor, awac.critics))
    for one, other in zip(awac.actor.net.parameters(), actor.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    torch.testing.assert_close(awac.actor.spread, spread, atol=1e-4, rtol=1e-3)
    ours = [Layers.of_critic(ensemble, j) for ensemble in (awac.critics, awac.target_critics) for j in range(2)]
    for layers, plain in zip(ours, critics, strict=True):
        for (matrix, offset), layer in zip(layers, plain[::2], strict=True):
            np.testing.assert_allclose(matrix, layer.weight.detach(), atol=1e-4, rtol=1e-3)
            np.testing.assert_allclose(offset, layer.bias.detach(), atol=1e-4, rtol=1e-3)


def test_both_losses_are_those_of_the_networks_before_either_step():
    awac, twin, batch = changed_awac(critic_lr=0.1, actor_lr=0.1), changed_awac(), make_batch()
    expected = critic_loss(twin, batch)[0], twin.actor_loss(batch)[0]
    metrics = awac.update(batch)
    assert torch.equal(metrics["loss_critic"], expected[0].detach())
    assert torch.equal(metrics["loss_actor"], expected[1].detach())


def test_the_policys_weights_decay_and_the_critics_do_not():
    awac = tiny("awac", actor_weight_decay=0.3)
    assert awac.actor_optimizer.param_groups[0]["weight_decay"] == 0.3
    assert awac.critic_optimizer.param_groups[0]["weight_decay"] == 0


def test_it_learns_the_better_of_the_datas_actions():
    good = torch.arange(12) % 2 == 0
    batch = make_batch(12)._replace(
        observations=torch.zeros(12, OBSERVATIONS),
        actions=torch.where(good, 0.5, -0.5)[:, None].expand(12, ACTIONS),
        rewards=good.float(),
        terminated=torch.ones(12),
    )
    for beta, learned in ((0.1, 0.5), (1e6, 0.0)):  # nearly greedy, and behavior cloning
        awac = tiny("awac", beta=beta, actor_lr=0.01, critic_lr=0.01, baseline="mean")
        for _ in range(300):
            awac.update(batch)
        assert awac.policy().act(np.zeros(OBSERVATIONS)).tolist() == pytest.approx(2 * [learned], abs=0.1)


# The actor's deviation and the critics' ceiling


def test_the_log_standard_deviation_lies_between_its_bounds_by_a_sigmoid():
    actor = tiny("awac").actor
    assert actor.log_std.tolist() == [-3.0, -3.0]
    actor.spread.data = torch.tensor(SPREAD)
    assert actor.log_std.tolist() == pytest.approx(LOG_STD, rel=1e-5)
    actor.spread.data = torch.tensor([-100.0, 100.0])
    assert actor.log_std.tolist() == pytest.approx([-6.0, 0.0], abs=1e-5)


def test_no_value_exceeds_the_ceiling_and_those_at_it_give_no_gradient():
    plain, capped, batch = changed_awac(), changed_awac(value_ceiling=0.0), make_batch(30)
    for kind in ("critics", "target_critics"):
        free, low = (getattr(awac, kind)(batch.observations, batch.actions) for awac in (plain, capped))
        assert (free > 0).any()
        assert (free < 0).any()
        assert torch.equal(low, torch.where(free > 0, 0.0, free))
    actions = batch.actions.clone().requires_grad_()
    values = capped.critics(batch.observations, actions)
    values[0].sum().backward()
    assert torch.equal((actions.grad != 0).any(dim=1), values[0] < 0)


def test_a_ceiling_below_returns_that_the_data_show_is_refused():
    data, awac = make_dataset(), tiny("awac", value_ceiling=0.0)
    with pytest.raises(MildlyError, match=r"tiny: discounted returns reach .*value_ceiling of 0 .*Set it to None"):
        awac.batches(data)
    awac.batches(dataclasses.replace(data, rewards=-np.abs(data.rewards)))
    goal = dataclasses.replace(data, rewards=data.terminated.astype(np.float32))  # paid once, and then it is over
    tiny("awac", value_ceiling=1.0).batches(goal)
    with pytest.raises(MildlyError, match=r"returns reach 1, above the value_ceiling of 0.9 "):
        tiny("awac", value_ceiling=0.9).batches(goal)
    tiny("awac", value_ceiling=1000.0).batches(data)
    tiny("awac").batches(data)


# Configuration


def test_the_defaults_are_the_authors():
    c = make_config(AWAC, "paper", "hopper-medium-v2", {})
    assert (c.hidden_dims, c.actor_hidden_dims, c.batch_size) == ((256, 256), (256, 256, 256, 256), 128)
    assert (c.gamma, c.tau, c.actor_lr, c.critic_lr, c.actor_weight_decay) == (0.99, 5e-3, 3e-4, 3e-4, 1e-4)
    assert (c.beta, c.advantage_limit, c.baseline) == (2.0, None, "draw")
    assert (c.log_std_min, c.log_std_max, c.value_ceiling, c.ignore_terminals) == (-6.0, 0.0, None, False)
    assert c.extras == Extras()
    learner = AWAC(c, OBSERVATIONS, ACTIONS)
    assert [w.shape for w in learner.critics.weights] == [(2, 5, 256), (2, 256, 256), (2, 256, 1)]
    assert [layer.out_features for layer in learner.actor.net[::2]] == [256, 256, 256, 256, 2]


def test_the_preset_for_hands_is_the_authors_and_the_paper_takes_its_actor_on_adroit():
    hand, adroit = make_config(AWAC, "hand", "pen-human-v0", {}), make_config(AWAC, "paper", "pen-human-v0", {})
    for c in (hand, adroit):
        assert (c.beta, c.advantage_limit, c.baseline, c.actor_hidden_dims) == (0.5, 0.5, "mean", (256, 256))
        assert (c.hidden_dims, c.batch_size, c.actor_weight_decay) == ((256, 256), 128, 1e-4)
    assert (hand.value_ceiling, hand.ignore_terminals) == (0.0, True)
    assert (adroit.value_ceiling, adroit.ignore_terminals) == (None, False)
    assert make_config(AWAC, "hand", "hopper-medium-v2", {}) == hand
    small = make_config(AWAC, "small", "pen-human-v0", {})
    assert (small.beta, small.baseline, small.hidden_dims, small.actor_hidden_dims) == (
        0.5,
        "mean",
        (128, 128),
        (128, 128),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"beta": 0.0},
        {"actor_hidden_dims": (8, 0)},
        {"baseline": "median"},
        {"actor_weight_decay": -0.1},
        {"log_std_max": -7.0},
        {"tau": 0.0},
    ],
    ids=str,
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name.replace('log_std_max', 'log_std_min')} must be"):
        AWAC.Config(**fields)
