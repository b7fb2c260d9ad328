"""TD3, the base of deterministic MCQ: targets and losses against slow computations, delays, and where gradients go."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, make_dataset, plain_critic, replay, same, tiny, weights
from learners import with_gradient
from torch import nn

from mildly.algorithms.config import make_config
from mildly.algorithms.extras import AnchoredExtras
from mildly.algorithms.td3 import TD3
from mildly.data.batches import Batch
from mildly.errors import MildlyError


def changed_td3(**fields: Any) -> TD3:
    """A learner whose targets differ from its networks, and whose target actor comes near the bounds."""
    td3 = tiny("td3", seed=3, **{"gamma": 0.9, **fields})
    random = torch.Generator().manual_seed(9)
    for parameter in [*td3.target_critics.parameters(), *td3.target_actor.parameters()]:
        parameter.add_(0.3 * torch.randn(parameter.shape, generator=random))
    td3.target_actor.net[-1].weight.mul_(2)
    return td3


def slow_td_target(td3: TD3, batch: Batch, noise: Any) -> tuple[list[float], int, int]:
    """y of each transition, one number at a time; how often noise was clipped, and how often an action."""
    c, actor = td3.config, Layers.of(td3.target_actor.net)
    critics = [Layers.of_critic(td3.target_critics, j) for j in range(c.ensemble)]
    targets, clipped_noise, clipped_actions = [], 0, 0
    for i, s_next in enumerate(batch.next_observations):
        action = np.tanh(actor(s_next))
        for k in range(ACTIONS):
            step = c.policy_noise * float(noise[i][k])
            clipped_noise += abs(step) > c.noise_clip
            action[k] += min(max(step, -c.noise_clip), c.noise_clip)
            clipped_actions += abs(action[k]) > 1
            action[k] = min(max(action[k], -1.0), 1.0)
        value = min(critic(s_next, action)[0] for critic in critics)
        targets.append(batch.rewards[i].item() + (0.0 if batch.terminated[i] else c.gamma * value))
    return targets, clipped_noise, clipped_actions


# The target


@pytest.mark.parametrize(("noise", "clip"), [(0.2, 0.5), (0.8, 0.5), (0.3, 0.0)])
def test_td_target_equals_a_slow_computation_with_the_same_noise(noise, clip):
    td3, batch = changed_td3(policy_noise=noise, noise_clip=clip), make_batch(40)
    drawn = torch.randn(40, ACTIONS, generator=replay(td3.generator)).numpy()
    expected, clipped_noise, clipped_actions = slow_td_target(td3, batch, drawn)
    np.testing.assert_allclose(td3.td_target(batch).numpy(), expected, atol=2e-5)
    assert 0 < batch.terminated.sum() < 40
    if noise == 0.8:
        assert 0 < clipped_noise < 40 * ACTIONS
        assert 0 < clipped_actions < 40 * ACTIONS


def test_without_noise_the_target_takes_the_target_actors_action_and_no_random_number():
    td3, batch = changed_td3(policy_noise=0.0), make_batch(12)
    before = td3.generator.get_state()
    expected = slow_td_target(td3, batch, np.zeros((12, ACTIONS)))[0]
    np.testing.assert_allclose(td3.td_target(batch).numpy(), expected, atol=2e-5)
    assert torch.equal(td3.generator.get_state(), before)
    td3 = changed_td3()
    td3.td_target(batch)
    assert not torch.equal(td3.generator.get_state(), before)


def test_target_at_a_terminal_state_is_the_reward_alone_and_at_a_time_out_it_is_not():
    td3, data = changed_td3(), make_dataset()
    batch = td3.batches(data).sample(torch.Generator().manual_seed(0), 200)
    ends = torch.from_numpy(data.terminated)[batch.rows]
    cut_off = torch.from_numpy(data.truncated)[batch.rows]
    target = td3.td_target(batch)
    assert ends.any()
    assert cut_off.any()
    assert torch.equal(target[ends], batch.rewards[ends])
    assert (target[cut_off] != batch.rewards[cut_off]).all()


def test_td_target_carries_no_gradient():
    assert not changed_td3().td_target(make_batch()).requires_grad


# The losses


@pytest.mark.parametrize("ensemble", [1, 2, 4])
def test_critic_loss_is_the_squared_error_averaged_over_the_batch_and_summed_over_critics(ensemble):
    td3, batch = changed_td3(ensemble=ensemble), make_batch(6)
    noise = torch.randn(6, ACTIONS, generator=replay(td3.generator)).numpy()
    targets = slow_td_target(td3, batch, noise)[0]
    expected, data_values = 0.0, []
    for j in range(ensemble):
        critic = Layers.of_critic(td3.critics, j)
        values = [critic(batch.observations[i], batch.actions[i])[0] for i in range(6)]
        expected += sum((value - y) ** 2 for value, y in zip(values, targets, strict=True)) / 6
        data_values += values
    metrics = td3.update_critics(batch)
    assert metrics["loss_critic"].item() == pytest.approx(expected, rel=1e-4)
    assert metrics["loss_td"].item() == pytest.approx(expected, rel=1e-4)
    assert metrics["q_data"].item() == pytest.approx(np.mean(data_values), rel=1e-4)
    assert metrics["q_target"].item() == pytest.approx(np.mean(targets), rel=1e-4)


def test_actor_loss_is_minus_the_first_critics_value_of_the_actors_action():
    td3, batch = changed_td3(), make_batch(6)
    actor, critics = Layers.of(td3.actor.net), [Layers.of_critic(td3.critics, j) for j in range(2)]
    actions = [np.tanh(actor(s)) for s in batch.observations]
    values = [[q(s, a)[0] for s, a in zip(batch.observations, actions, strict=True)] for q in critics]
    distance = np.mean([np.sum((a - b.numpy()) ** 2) for a, b in zip(actions, batch.actions, strict=True)])
    loss, metrics = td3.actor_loss(batch)
    assert loss.item() == pytest.approx(-np.mean(values[0]), abs=1e-5)
    assert metrics["q_ood"].item() == pytest.approx(np.mean(values), abs=1e-5)
    assert metrics["policy_distance"].item() == pytest.approx(distance, rel=1e-5)
    for parameter in td3.critics.parameters():
        parameter.data[1] += 7.0
    assert torch.equal(td3.actor_loss(batch)[0], loss)


# The order of a step


def slow_steps(td3: TD3, batches: list[Batch]) -> tuple[list[nn.Module], list[nn.Module]]:
    """Steps of TD3 as its authors write them, with plain layers, autograd and Adam; networks and their targets."""
    c, random = td3.config, replay(td3.generator)
    actor, critics = copy.deepcopy(td3.actor.net), [plain_critic(td3.critics, j) for j in range(2)]
    networks = [actor, *critics]
    targets = copy.deepcopy(networks)
    actor_adam = torch.optim.Adam(actor.parameters(), lr=c.actor_lr)
    critic_adam = torch.optim.Adam([p for q in critics for p in q.parameters()], lr=c.critic_lr)
    for number, batch in enumerate(batches, start=1):
        s, a, r, s_next, d = batch[:5]
        with torch.no_grad():
            noise = torch.randn(a.shape, generator=random) * c.policy_noise
            noise = noise.clamp(-c.noise_clip, c.noise_clip)
            a_next = (torch.tanh(targets[0](s_next)) + noise).clamp(-1, 1)
            q_next = torch.min(*(q(torch.cat([s_next, a_next], 1)).squeeze(1) for q in targets[1:]))
            y = r + c.gamma * (1 - d) * q_next
        loss = sum(nn.functional.mse_loss(q(torch.cat([s, a], 1)).squeeze(1), y) for q in critics)
        critic_adam.zero_grad()
        loss.backward()
        critic_adam.step()
        if number % c.policy_delay == 0:
            actor_adam.zero_grad()
            (-critics[0](torch.cat([s, torch.tanh(actor(s))], 1)).mean()).backward()
            actor_adam.step()
            for network, target in zip(networks, targets, strict=True):
                for new, old in zip(network.parameters(), target.parameters(), strict=True):
                    old.data.copy_(c.tau * new.data + (1 - c.tau) * old.data)
    return networks, targets


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_many_steps_equal_those_of_a_plain_implementation(delay):
    td3 = tiny("td3", seed=1, policy_delay=delay, tau=0.1, actor_lr=0.01, critic_lr=0.02)
    batches = [make_batch(seed=step) for step in range(7)]
    (actor, *critics), (target_actor, *target_critics) = slow_steps(td3, batches)
    start = weights(td3.actor, td3.critics)
    for batch in batches:
        td3.update(batch)
    assert not same(start, weights(td3.actor, td3.critics))
    for ours, plain in ((td3.actor.net, actor), (td3.target_actor.net, target_actor)):
        for one, other in zip(ours.parameters(), plain.parameters(), strict=True):
            torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-3)
    for ensemble, plain in ((td3.critics, critics), (td3.target_critics, target_critics)):
        for j in range(2):
            for (matrix, offset), layer in zip(Layers.of_critic(ensemble, j), plain[j][::2], strict=True):
                np.testing.assert_allclose(matrix, layer.weight.detach(), atol=1e-4, rtol=1e-3)
                np.testing.assert_allclose(offset, layer.bias.detach(), atol=1e-4, rtol=1e-3)


def test_the_actor_climbs_the_critics_as_they_are_after_their_step():
    td3, twin, batch = (*(tiny("td3", policy_delay=1, critic_lr=0.1) for _ in range(2)), make_batch())
    metrics = td3.update(batch)
    stale = twin.actor_loss(batch)[0].item()
    twin.critics.load_state_dict(td3.critics.state_dict())
    twin.update_actor(batch)
    assert same(weights(td3.actor), weights(twin.actor))
    assert torch.equal(metrics["loss_actor"], twin.actor_metrics[0])
    assert metrics["loss_actor"].item() != pytest.approx(stale, abs=1e-3)


@pytest.mark.parametrize("delay", [1, 2, 3])
def test_actor_and_all_targets_move_in_every_delayth_step_only(delay):
    td3 = tiny("td3", policy_delay=delay)
    slow = (td3.actor, td3.target_actor, td3.target_critics)
    for step in range(1, 8):
        before, critics = [weights(part) for part in slow], weights(td3.critics)
        td3.update(make_batch(seed=step))
        moved = [not same(old, weights(part)) for old, part in zip(before, slow, strict=True)]
        assert moved == 3 * [step % delay == 0]
        assert not same(critics, weights(td3.critics))


def test_targets_start_equal_and_follow_the_updated_networks():
    td3 = tiny("td3", tau=0.25, critic_lr=0.1, actor_lr=0.1, policy_delay=1)
    start = weights(td3.actor, td3.critics)
    assert same(start, weights(td3.target_actor, td3.target_critics))
    td3.update(make_batch())
    targets = weights(td3.target_actor, td3.target_critics)
    for old, new, target in zip(start, weights(td3.actor, td3.critics), targets, strict=True):
        assert not torch.equal(old, new)
        torch.testing.assert_close(target, 0.25 * new + 0.75 * old)


def test_steps_without_an_actors_step_show_the_numbers_of_its_last():
    td3 = tiny("td3", policy_delay=3)
    names = ("loss_actor", "q_ood", "policy_distance")
    history = []
    for step in range(8):
        if step % 3 == 2:
            actor = copy.deepcopy(td3.actor)
        history.append(td3.update(make_batch(seed=step)))
        if step % 3 == 2:  # against the critics of now, which the actor has just climbed
            batch = make_batch(seed=step)
            values = td3.critics(batch.observations, actor(batch.observations)).detach()
            assert history[-1]["loss_actor"].item() == pytest.approx(-values[0].mean().item(), abs=1e-6)
            assert history[-1]["q_ood"].item() == pytest.approx(values.mean().item(), abs=1e-6)
    shown = [tuple(metrics[name].item() for name in names) for metrics in history]
    assert shown[0] == shown[1] == (0.0, 0.0, 0.0)
    assert shown[2] == shown[3] == shown[4] != shown[5]
    assert shown[5] == shown[6] == shown[7]
    assert len({metrics["loss_critic"].item() for metrics in history}) == 8


# Where gradients go


def test_the_critics_step_reaches_the_critics_alone():
    td3 = changed_td3()
    td3.update_critics(make_batch())
    assert with_gradient(td3) == {"critics"}


def test_the_actors_loss_reaches_the_actor_alone():
    td3 = changed_td3()
    td3.actor_loss(make_batch())[0].backward()
    assert with_gradient(td3) == {"actor"}
    assert all(p.grad.abs().sum() > 0 for p in td3.actor.parameters())


# Acting and configuration


def test_the_policys_action_is_one_a_state_without_chance():
    td3, states = tiny("td3"), make_batch(5).observations
    before, actor = td3.generator.get_state(), Layers.of(td3.actor.net)
    expected = [np.tanh(actor(state)) for state in states]
    for deterministic in (True, False):
        np.testing.assert_allclose(td3.policy().act(states.numpy(), deterministic), expected, atol=1e-6)
    assert torch.equal(td3.generator.get_state(), before)


def test_the_defaults_are_the_authors():
    c = make_config(TD3, "paper", "hopper-medium-v2", {})
    assert (c.hidden_dims, c.batch_size, c.gamma, c.tau) == ((256, 256), 256, 0.99, 5e-3)
    assert (c.policy_noise, c.noise_clip, c.policy_delay) == (0.2, 0.5, 2)
    assert (c.actor_lr, c.critic_lr, c.normalize_observations) == (3e-4, 3e-4, False)
    assert c.extras == AnchoredExtras()
    assert (c.extras.return_mix, c.extras.bc_warmup_steps, c.extras.bc_weight, c.extras.policy_ema) == (0, 0, 0, None)
    learner = TD3(c, OBSERVATIONS, ACTIONS)
    assert [w.shape for w in learner.critics.weights] == [(2, 5, 256), (2, 256, 256), (2, 256, 1)]
    assert [tuple(layer.weight.shape) for layer in learner.actor.net[::2]] == [(256, 3), (256, 256), (2, 256)]


@pytest.mark.parametrize(
    "fields",
    [
        {"policy_noise": -0.1},
        {"noise_clip": -0.1},
        {"policy_noise": math.nan},
        {"policy_delay": 0},
        {"gamma": 1.0},
        {"tau": 0.0},
        {"critic_lr": 0.0},
    ],
    ids=str,
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be"):
        TD3.Config(**fields)
