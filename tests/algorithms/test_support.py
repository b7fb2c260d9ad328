"""BCQ, BEAR and UWAC: targets, losses and weights by slow computations, gradients, bounds, and the order of steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, Layers, make_batch, replay, same, slow_draw, tiny, weights
from learners import with_gradient

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import make_config
from mildly.algorithms.mmd import mmd
from mildly.errors import MildlyError

NAMES = ("bcq", "bear", "uwac")
every_name = pytest.mark.parametrize("name", NAMES)
PLAIN = {"gamma": 0.9, "num_actions": 3}


def moved(name: str, **fields: Any) -> Any:
    """A learner whose targets and CVAE are not as they were built."""
    learner, random = tiny(name, seed=3, **PLAIN, **fields), torch.Generator().manual_seed(5)
    targets = [learner.target_critics, learner.cvae, *([learner.target_actor] if name == "bcq" else [])]
    for part in targets:
        for parameter in part.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return learner


def slow_target(learner: Any, batch: Any, candidates: list[list[np.ndarray]]) -> list[float]:
    """r + 0.9 (1 - d) max_k [0.75 min_j Q'_j + 0.25 max_j Q'_j], pair by pair."""
    critics, expected = [Layers.of_critic(learner.target_critics, j) for j in range(2)], []
    for i, own in enumerate(candidates):
        values = [[critic(batch.next_observations[i], action)[0] for critic in critics] for action in own]
        best = max(0.75 * min(pair) + 0.25 * max(pair) for pair in values)
        expected.append(float(batch.rewards[i] + 0.9 * (1 - batch.terminated[i]) * best))
    return expected


def test_bcqs_target_is_of_the_best_perturbed_draw():
    learner, batch = moved("bcq", reach=0.4), make_batch(6)
    random = replay(learner.generator)
    got = learner.td_target(batch)
    latents = torch.randn(6, 3, 2 * ACTIONS, generator=random).clamp(-0.5, 0.5)
    decoder, shift, candidates = Layers.of(learner.cvae.decoder), Layers.of(learner.target_actor.net), []
    for state, own in zip(batch.next_observations, latents, strict=True):
        decoded = [np.tanh(decoder(state, z)) for z in own]
        candidates.append([np.clip(a + 0.4 * np.tanh(shift(state, a)), -1, 1) for a in decoded])
    assert got.tolist() == pytest.approx(slow_target(learner, batch, candidates), abs=1e-5)


def test_bears_target_is_of_the_best_draw_of_the_policy():
    learner, batch = moved("bear"), make_batch(6)
    random = replay(learner.generator)
    got = learner.td_target(batch)
    noise, actor = torch.randn(6, 3, ACTIONS, generator=random), Layers.of(learner.actor.net)
    pairs = zip(batch.next_observations, noise, strict=True)
    candidates = [[slow_draw(actor, state, e, -5, 2)[0] for e in own] for state, own in pairs]
    assert got.tolist() == pytest.approx(slow_target(learner, batch, candidates), abs=1e-5)


@pytest.mark.parametrize("kernel", ["gaussian", "laplacian"])
def test_bears_actor_weighs_the_distance_before_tanh_against_the_lower_critic(kernel):
    learner, batch = moved("bear", kernel=kernel, kernel_width=0.8, mmd_threshold=0.03), make_batch(6)
    learner.dual.log.data.fill_(0.4)
    random = replay(learner.generator)
    latents = torch.randn(6, 4, 2 * ACTIONS, generator=random).clamp(-0.5, 0.5)
    noise, actor = torch.randn(6, 4, ACTIONS, generator=random), Layers.of(learner.actor.net)
    state = learner.generator.get_state()
    found = {}
    for climb in (True, False):
        learner.generator.set_state(state)
        found[climb] = learner.actor_loss(batch, climb)[0].item()
    decoder, critics = Layers.of(learner.cvae.decoder), [Layers.of_critic(learner.critics, j) for j in range(2)]
    distances, gains = [], []
    for s, z, e in zip(batch.observations, latents, noise, strict=True):
        of_data = np.array([decoder(s, one) for one in z])
        out = actor(s)
        own = np.array([out[:2] + np.exp(out[2:]) * one.numpy() for one in e])
        distances.append(mmd(torch.tensor(of_data)[None], torch.tensor(own)[None], kernel, 0.8).item())
        gains.append(min(critic(s, np.tanh(own[0]))[0] for critic in critics))
    penalty = np.exp(0.4) * (np.mean(distances) - 0.03)
    assert found[True] == pytest.approx(penalty - np.mean(gains), rel=1e-4)
    assert found[False] == pytest.approx(penalty, rel=1e-4)


def test_uwac_weighs_errors_by_the_square_of_the_weight():
    """Twice the uncertainty's factor is the square of w, and w stands inside the square."""
    learner, batch = moved("uwac", beta=2.0), make_batch(8)
    state = learner.generator.get_state()
    target, weight = learner.weighted_target(batch)
    learner.generator.set_state(state)
    learner.target_critics.load_state_dict(moved("uwac", beta=2.0).target_critics.state_dict())
    random = learner.generator
    drawn = learner.actor(batch.next_observations).sample(3, random)
    learner.target_critics.power_iteration()
    mean, variance = learner.target_critics.moments(batch.next_observations, drawn, learner.passes, random)
    expected = [max(0.75 * min(p) + 0.25 * max(p) for p in mean[:, i].T.tolist()) for i in range(8)]
    bootstrapped = batch.rewards + 0.9 * (1 - batch.terminated) * torch.tensor(expected)
    torch.testing.assert_close(target, bootstrapped)
    worst = [max((variance[0, i, k] + variance[1, i, k]).item() for k in range(3)) for i in range(8)]
    assert weight.tolist() == pytest.approx(np.exp(-2.0 * np.array(worst)), rel=1e-4)
    assert weight.min() < 0.99

    learner = moved("uwac", beta=2.0)
    learner.weighted_target = lambda _: (target, weight)
    state = learner.generator.get_state()
    loss, _ = learner.critic_loss(batch)
    learner.generator.set_state(state)
    values = learner.critics(batch.observations, batch.actions, generator=learner.generator)
    by_hand = sum((weight[i] ** 2 * (values[j, i] - target[i]) ** 2).item() / 8 for j in range(2) for i in range(8))
    assert loss.item() == pytest.approx(by_hand, rel=1e-5)


def test_uwacs_other_weight_is_inverse_and_at_most_one():
    learner = tiny("uwac", weighting="inverse", beta=0.5)
    assert learner.weight(torch.tensor([0.0, 0.25, 1.0, 5.0])).tolist() == pytest.approx([1.0, 1.0, 0.5, 0.1])


def test_uwacs_actor_climbs_the_weighted_lower_mean_and_no_slope_goes_through_the_weight():
    learner, batch = moved("uwac", beta=2.0), make_batch(5)
    actions = batch.actions.clone().requires_grad_()
    state = learner.generator.get_state()
    learner.gain(batch.observations, actions).sum().backward()
    got, actions.grad = actions.grad.clone(), None
    learner.generator.set_state(state)
    mean, variance = learner.critics.moments(batch.observations, actions, learner.passes, learner.generator)
    weight = (-2.0 * variance.sum(dim=0)).exp().detach()
    (weight * mean.amin(dim=0)).sum().backward()
    torch.testing.assert_close(got, actions.grad)
    assert weight.min() < 0.999


@every_name
def test_each_loss_reaches_its_own_network_alone(name):
    batch = make_batch()
    learner = moved(name)
    if name == "bcq":
        learner.update_actor(batch)
        assert with_gradient(learner) == {"actor"}
        learner = moved(name)
        learner.update_critics(batch)
    else:
        loss, distance, _ = learner.actor_loss(batch, climb=True)
        loss.backward()
        assert with_gradient(learner) == {"actor"}
        assert not distance.requires_grad
        learner = moved(name)
        learner.critic_loss(batch)[0].backward()
    assert with_gradient(learner) == {"critics"}


def test_bcqs_steps_come_in_the_order_of_its_equations():
    """Its perturbation climbs the critics after their step, and both see the CVAE after its own."""
    learner, twin, batch = moved("bcq"), moved("bcq"), make_batch()
    learner.update(batch)
    twin.behavior.update(batch)
    twin.update_critics(batch)
    before = weights(twin.target_critics, twin.target_actor)
    twin.update_actor(batch)
    assert same(weights(learner.critics, learner.actor, learner.cvae), weights(twin.critics, twin.actor, twin.cvae))
    online = weights(twin.critics, twin.actor)
    for old, new, target in zip(before, online, weights(learner.target_critics, learner.target_actor), strict=True):
        torch.testing.assert_close(target, 0.005 * new + 0.995 * old)


@pytest.mark.parametrize("name", ["bear", "uwac"])
def test_the_actors_slope_is_of_the_critics_before_their_step(name):
    """With a huge rate the critics' step would show in it."""
    fields = {"critic_lr": 10.0, "actor_lr": 1e-3}
    learner, twin, batch = moved(name, **fields), moved(name, **fields), make_batch()
    learner.update(batch)
    twin.behavior.update(batch)
    twin.critic_loss(batch)  # for its draws
    loss, distance, _ = twin.actor_loss(batch, climb=True)
    twin.actor_optimizer.zero_grad()
    loss.backward()
    twin.actor_optimizer.step()
    twin.dual.update(distance - twin.config.mmd_threshold)
    assert same(weights(learner.actor), weights(twin.actor))
    assert torch.equal(learner.dual.log, twin.dual.log)


@pytest.mark.parametrize("name", ["bear", "uwac"])
def test_a_warm_up_step_moves_everything_but_never_looks_at_values(name):
    one, other = (tiny(name, warmup_steps=2) for _ in range(2))
    for parameter in other.critics.parameters():
        parameter.data.mul_(3)
    batch = make_batch()
    before = weights(one.critics, one.target_critics, one.cvae)
    metrics = [learner.warm_up(batch) for learner in (one, other)]
    assert torch.equal(metrics[0]["loss_actor"], metrics[1]["loss_actor"])
    assert "q_ood" not in metrics[0]
    assert one.dual.log.item() != 0
    after = weights(one.critics, one.target_critics, one.cvae)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))
    assert [phase.name for phase in one.phases()] == ["mmd warm-up"]


def test_the_dual_variable_follows_the_distance_and_stays_in_its_bounds():
    fields = {"dual_lr": 1.0, "log_dual_max": 2.5, "log_dual_min": -1.5}
    for threshold, bound in ((0.0, 2.5), (100.0, -1.5)):
        learner = tiny("bear", mmd_threshold=threshold, **fields)
        for step in range(5):
            learner.update(make_batch(seed=step))
        assert learner.dual.log.item() == pytest.approx(bound)


def test_bears_kernel_is_the_authors_for_the_task_and_uwacs_the_same_for_all():
    bear, uwac = ALGORITHMS["bear"], ALGORITHMS["uwac"]
    kernels = {
        name: make_config(bear, "paper", name, {}).kernel
        for name in ("hopper-medium-v2", "walker2d-expert-v2", "halfcheetah-random-v2", "hopper-of-mine")
    }
    assert list(kernels.values()) == ["laplacian", "laplacian", "gaussian", "gaussian"]
    assert make_config(bear, "paper", "hopper-medium-v2", {"kernel": "gaussian"}).kernel == "gaussian"
    assert make_config(uwac, "paper", "hopper-medium-v2", {}).kernel == "gaussian"
    assert make_config(uwac, "paper", "hopper-medium-v2", {}).mmd_threshold == 0.07


@every_name
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"candidates": 0}, "candidates must be in 1 to 10,000"),
        ({"min_weight": 1.5}, "min_weight must be in"),
        ({"behavior.model": "flow"}, "behavior.model must be 'cvae'"),
        ({"behavior.cache": True}, "behavior.steps must be given where actions are kept"),
    ],
    ids=str,
)
def test_what_these_methods_cannot_do_is_refused(name, fields, message):
    with pytest.raises(MildlyError, match=message):
        tiny(name, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"passes": 1}, "passes must be in 2 to 10,000"),
        ({"dropout": 1.0}, "dropout must be in"),
        ({"layer_norm": True}, "layer_norm must be False"),
        ({"beta": 0.0}, "beta must be positive"),
        ({"kernel_width": 0.0}, "kernel_width must be positive"),
        ({"log_dual_max": -1.0}, "log_dual_min must be at most 0, and log_dual_max at least 0"),
    ],
    ids=str,
)
def test_values_out_of_range_are_named(fields, message):
    with pytest.raises(MildlyError, match=message):
        tiny("uwac", **fields)
