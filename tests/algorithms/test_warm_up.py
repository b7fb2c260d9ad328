"""Cloning alone and the warm-up: what the actor clones by, what else learns, and that the method's own steps follow."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import ACTIONS, Layers, make_batch, same, tiny, weights
from learners import (
    DATA,
    batch_of,
    differing,
    every_with_extras,
    snapshot,
    starting,
    warm_up_of,
    with_gradient,
)

WARM = {"extras.bc_warmup_steps": 4}
every_method = pytest.mark.parametrize("name", ["mcq", "mcq-td3", "sac", "td3", "td3-bc"])


@pytest.mark.parametrize("name", ["td3", "mcq-td3", "td3-bc"])
def test_a_deterministic_actor_clones_by_squared_distance(name):
    learner, batch = starting(name, **WARM), batch_of()
    actor, expected = Layers.of(learner.actor.net), 0.0
    for state, action in zip(batch.observations, batch.actions.tolist(), strict=True):
        expected += sum((np.tanh(actor(state)[k]) - action[k]) ** 2 for k in range(ACTIONS)) / 12
    assert learner.warm_up(batch)["loss_bc"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["sac", "mcq"])
def test_a_random_actor_clones_by_likelihood_and_holds_actions_away_from_their_bounds(name):
    learner, batch = starting(name, **WARM), batch_of()
    actor, expected = Layers.of(learner.actor.net), 0.0
    for state, action in zip(batch.observations, batch.actions.tolist(), strict=True):
        out = actor(state)
        for k in range(ACTIONS):
            z = np.log(max(1 + action[k], 0.05) / max(1 - action[k], 0.05)) / 2
            std = np.exp(out[ACTIONS + k])
            density = np.exp(-0.5 * ((z - out[k]) / std) ** 2) / (std * np.sqrt(2 * np.pi)) / (1 - np.tanh(z) ** 2)
            expected -= np.log(density) / 12
    assert batch.actions.abs().max() > 0.95
    assert learner.warm_up(batch)["loss_bc"].item() == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("name", ["iql", "awac"])
def test_an_actor_that_is_not_squashed_clones_by_its_own_likelihood(name):
    learner, batch = starting(name, **WARM), batch_of()
    actor, log_std, expected = Layers.of(learner.actor.net), learner.actor.log_std.tolist(), 0.0
    for state, action in zip(batch.observations, batch.actions.tolist(), strict=True):
        mean = np.tanh(actor(state))
        for k in range(ACTIONS):
            std = np.exp(log_std[k])
            density = np.exp(-0.5 * ((action[k] - mean[k]) / std) ** 2) / (std * np.sqrt(2 * np.pi))
            expected -= np.log(density) / 12
    assert learner.warm_up(batch)["loss_bc"].item() == pytest.approx(expected, rel=1e-3)


@every_with_extras
def test_the_cloning_loss_reaches_the_actor_alone(name):
    learner = starting(name)
    learner.bc_loss(batch_of()).backward()
    assert with_gradient(learner) == {"actor"}
    assert all(p.grad is not None for p in learner.actor.parameters())


@every_with_extras
def test_a_warm_up_step_reaches_networks_that_learn_and_nothing_else(name):
    learner = starting(name, **WARM)
    learner.warm_up(batch_of())
    besides = {"mcq": {"behavior.model"}, "mcq-td3": {"behavior.model"}, "iql": {"value"}, "cql": {"log_alpha"}}
    assert with_gradient(learner) == {"actor", "critics"} | besides.get(name, set())


@every_method
def test_an_actor_that_clones_leaves_the_critics_to_the_method(name):
    """In such a step the critics take the method's step, the actor the cloning one, and the temperature none."""
    fields = {"gamma": 0.9, "actor_lr": 0.01, "critic_lr": 0.003}
    learner, twin = starting(name, **WARM, **fields), tiny(name, **fields)
    (phase,) = learner.phases()
    delay = getattr(learner.config, "policy_delay", 1)
    for step in range(phase.steps):
        twin.load_state_dict(learner.state_dict())
        batch, before = batch_of(step), weights(learner.target_critics)
        metrics = phase.update(batch)
        if name.startswith("mcq"):
            twin.behavior.update(batch)
        expected = twin.update_critics(batch) | twin.clone(batch)
        for key in ("loss_critic", "loss_bc", "q_target"):
            assert torch.equal(metrics[key], expected[key])
        assert same(weights(learner.critics, learner.actor), weights(twin.critics, twin.actor))
        rate = 0.005 if (step + 1) % delay == 0 else 0.0
        for old, new, target in zip(before, weights(learner.critics), weights(learner.target_critics), strict=True):
            torch.testing.assert_close(target, rate * new + (1 - rate) * old)
        assert not {"loss_actor", "alpha"} & metrics.keys()
        if name in ("sac", "mcq"):
            assert learner.log_alpha.item() == 0.0
            assert "alpha_optimizer.0.step" not in learner.state_dict()
    moved = learner.step(batch_of(9))
    assert "loss_bc" not in moved
    assert "loss_actor" in moved


@pytest.mark.parametrize("name", ["awac", "cql", "iql", "mcq-td3", "td3", "td3-bc"])
def test_the_critics_take_the_step_that_they_would_take_in_a_main_step(name):
    """Of the methods that draw the same numbers in both, so that the bits can be compared."""
    warm, main = (starting(name, policy_delay=1) if "td3" in name else starting(name) for _ in range(2))
    metrics = warm.warm_up(batch_of()), main.update(batch_of())
    for key in ("loss_td", "loss_critic", "q_target"):
        assert torch.equal(metrics[0][key], metrics[1][key])
    for learned in ("critics", "target_critics", *(["value"] if name == "iql" else [])):
        assert same(weights(getattr(warm, learned)), weights(getattr(main, learned)))
    assert not same(weights(warm.actor), weights(main.actor))


@every_with_extras
def test_the_step_after_the_warm_up_is_the_methods_own(name):
    learner, plain = starting(name, **WARM), starting(name, **{"extras.bc_warmup_steps": 0})
    phase = warm_up_of(learner)
    for step in range(phase.steps):
        phase.update(batch_of(step))
    plain.load_state_dict(learner.state_dict())
    for step in range(4, 8):
        expected, got = plain.step(batch_of(step)), learner.step(batch_of(step))
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[key], expected[key]) for key in got)
    state = plain.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in learner.state_dict().items())


@pytest.mark.parametrize(("name", "betas"), [("iql", (1.0, 9.0)), ("awac", (0.1, 9.0))])
def test_an_actor_that_clones_takes_no_notice_of_the_values(name, betas):
    learners = [tiny(name, beta=beta, **{"extras.bc_warmup_steps": 2}) for beta in betas]
    for step in range(2):
        metrics = [learner.warm_up(make_batch(seed=step)) for learner in learners]
        assert {"loss_bc", "loss_critic"} <= metrics[0].keys()
        assert "loss_actor" not in metrics[0]
    assert same(*(weights(learner.actor) for learner in learners))
    assert all("loss_actor" in learner.step(make_batch(seed=2)) for learner in learners)
    assert not same(*(weights(learner.actor) for learner in learners))


@every_with_extras
def test_the_average_of_the_policy_begins_with_the_main_steps(name):
    learner = starting(name, actor_lr=0.01, **WARM, **{"extras.policy_ema": 0.25})
    expected = weights(learner.actor)
    for step, update in enumerate([warm_up_of(learner).update] * 4 + [learner.step] * 7):
        update(batch_of(step))
        rate = 0 if step < 4 else 1 if step < 9 else 5 / (step - 3)
        expected = [rate * new + (1 - rate) * old for new, old in zip(weights(learner.actor), expected, strict=True)]
    for got, by_hand in zip(weights(learner.extras.average), expected, strict=True):
        torch.testing.assert_close(got, by_hand)
    assert learner.extras.steps == 7


@every_with_extras
def test_cloning_alone_moves_the_actor_and_nothing_else(name):
    learner = starting(name, **{"extras.bc_steps": 3, "extras.policy_ema": 0.5})
    (phase,) = (phase for phase in learner.phases() if phase.name == "cloning")
    losses = [phase.update(batch_of())["loss_bc"].item()]  # the first step makes the optimizer's state
    before = snapshot(learner)
    losses += [phase.update(batch_of())["loss_bc"].item() for _ in range(2)]
    assert losses[2] < losses[0]
    moved = {key.split(".")[0] for key in differing(before, snapshot(learner))}
    assert moved <= {"actor", "actor_optimizer", "generator"}
    assert "actor" in moved


def test_cloning_alone_comes_first_and_ends_after_forty_passes():
    fields = {"extras.bc_steps": 1000, "extras.bc_warmup_steps": 2, "batch_size": 8}
    assert [phase.steps for phase in tiny("sac", **fields).phases()] == [1000, 2]  # no data are known yet
    cloning, warm_up = starting("sac", **fields).phases()
    assert (cloning.name, warm_up.name) == ("cloning", "bc warm-up")
    assert cloning.steps == math.ceil(40 * len(DATA) / 8) < 1000
