"""Deterministic MCQ: the critics' loss of the paper's Algorithm 2 in a slow loop, its step, and its limit TD3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, replay, same, tiny, weights
from learners import with_gradient

from mildly.algorithms.mcq_td3 import MCQTD3
from mildly.data.batches import Batch
from mildly.errors import MildlyError

ROWS, N = 5, 4


def changed(**fields: Any) -> MCQTD3:
    """A learner whose targets and critics are not as they were built."""
    learner = tiny("mcq-td3", seed=4, gamma=0.9, num_actions=N, **fields)
    random = torch.Generator().manual_seed(8)
    for part in (learner.target_critics, learner.target_actor, learner.critics, learner.behavior.model.decoder):
        for parameter in part.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return learner


def slow_pseudo_targets(learner: MCQTD3, batch: Batch) -> tuple[list[float], list[np.ndarray]]:
    """y'(s_in) for s_in in {s, s'}, one number at a time, and the first behavior action of each state."""
    c, decoder = learner.config, Layers.of(learner.behavior.model.decoder)
    critics = [Layers.of_critic(learner.critics, j) for j in range(2)]
    sets, rows = 2 if c.independent_samples else 1, len(batch.rewards)
    random = replay(learner.ood_generator)
    latents = [torch.randn(2 * rows, N, 2 * ACTIONS, generator=random).clamp(-0.5, 0.5) for _ in range(sets)]
    pseudo, first = [], []
    for i, s in enumerate([*batch.observations, *batch.next_observations]):
        behavior = [[np.tanh(decoder(s, latents[k][i, n])) for n in range(N)] for k in range(sets)]
        best = [max(critics[j](s, action)[0] for action in behavior[j % sets]) for j in range(2)]
        pseudo.append(min(best) if c.pseudo_reduction == "min" else sum(best) / 2)
        first.append(behavior[0][0])
    return pseudo, first


def slow_critic_loss(learner: MCQTD3, batch: Batch) -> dict[str, float]:
    """The appendix's equations of the critics' loss in loops over single numbers."""
    c, rows = learner.config, len(batch.rewards)
    actor, target_actor = Layers.of(learner.actor.net), Layers.of(learner.target_actor.net)
    critics = [Layers.of_critic(learner.critics, j) for j in range(2)]
    targets = [Layers.of_critic(learner.target_critics, j) for j in range(2)]
    noise = np.zeros((rows, ACTIONS))
    if c.policy_noise:
        drawn = torch.randn(rows, ACTIONS, generator=replay(learner.generator)).numpy()
        noise = np.clip(c.policy_noise * drawn, -c.noise_clip, c.noise_clip)
    td, ood = [0.0, 0.0], [0.0, 0.0]
    for i in range(rows):
        s, s_next = batch.observations[i], batch.next_observations[i]
        action = np.clip(np.tanh(target_actor(s_next)) + noise[i], -1, 1)
        y = batch.rewards[i].item()
        y += 0.0 if batch.terminated[i] else c.gamma * min(target(s_next, action)[0] for target in targets)
        for j in range(2):
            td[j] += (critics[j](s, batch.actions[i])[0] - y) ** 2 / rows
    pseudo, behavior = slow_pseudo_targets(learner, batch)
    for i, s in enumerate([*batch.observations, *batch.next_observations]):
        own = np.tanh(actor(s))
        for j in range(2):
            deviation = critics[j](s, own)[0] - (pseudo[i] - c.delta)
            near = c.ood_distance_min is not None and sum((own - behavior[i]) ** 2) < c.ood_distance_min
            if not near and not (c.one_sided and deviation < 0):
                ood[j] += deviation**2 / (2 * rows)
    total = sum(c.lam * td[j] + (1 - c.lam) * ood[j] for j in range(2))
    return {"loss": total, "td": sum(td), "ood": sum(ood), "pseudo": sum(pseudo) / len(pseudo)}


OPTIONS = [
    {},
    {"lam": 0.4},
    {"policy_noise": 0.2},
    {"pseudo_reduction": "mean"},
    {"independent_samples": True},
    {"one_sided": True, "delta": 0.2},
    {"ood_distance_min": 0.3},
]


@pytest.mark.parametrize("fields", OPTIONS, ids=str)
def test_critic_loss_equals_the_appendixs_equations_in_a_slow_loop(fields):
    learner, batch = changed(**fields), make_batch(ROWS)
    expected = slow_critic_loss(learner, batch)
    metrics = learner.update_critics(batch)
    assert metrics["loss_critic"].item() == pytest.approx(expected["loss"], rel=1e-4)
    assert metrics["loss_td"].item() == pytest.approx(expected["td"], rel=1e-4)
    assert metrics["loss_ood"].item() == pytest.approx(expected["ood"], rel=1e-4)
    assert metrics["pseudo_target"].item() == pytest.approx(expected["pseudo"], rel=1e-4)


def test_every_option_changes_the_loss():
    losses = [slow_critic_loss(changed(**fields), make_batch(ROWS))["loss"] for fields in OPTIONS]
    assert len({round(loss, 6) for loss in losses}) == len(OPTIONS)


@pytest.mark.parametrize("ood_actions", [None, 1])
def test_the_ood_term_knows_the_policys_one_action_per_state(ood_actions):
    """And only the behavior model's latents are drawn for it: N a state, for s and s'."""
    learner, batch = changed(ood_actions=ood_actions), make_batch(ROWS)
    random, expected = replay(learner.ood_generator), slow_critic_loss(learner, batch)["ood"]
    torch.randn(2 * ROWS, N, 2 * ACTIONS, generator=random)
    assert learner.ood_loss(batch)[0].item() == pytest.approx(expected, rel=1e-4)
    assert torch.equal(learner.ood_generator.get_state(), random.get_state())


def test_several_ood_actions_are_refused_since_the_policy_has_one():
    with pytest.raises(MildlyError, match=r"ood_actions must be 1, the policy's one action per state, got 7"):
        tiny("mcq-td3", ood_actions=7)


# A step, as the algorithm is printed


def test_a_step_is_the_behavior_model_then_the_critics_then_the_actor_then_the_targets():
    learner = tiny("mcq-td3", seed=4, num_actions=N, lam=0.3, tau=0.2, critic_lr=0.05, actor_lr=0.05)
    batch, twin = make_batch(ROWS), tiny("mcq-td3", seed=4, num_actions=N, lam=0.3, critic_lr=0.05, actor_lr=0.05)
    start = weights(twin.actor, twin.critics)
    metrics = learner.update(batch)
    # The pseudo target is made with the behavior model after its step, and with the critics before theirs.
    twin.behavior.update(batch)
    assert same(weights(twin.behavior.model), weights(learner.behavior.model))
    expected = slow_critic_loss(twin, batch)
    for name, key in {"loss_critic": "loss", "loss_ood": "ood", "pseudo_target": "pseudo"}.items():
        assert metrics[name].item() == pytest.approx(expected[key], rel=1e-4)
    # The OOD term's action is the actor's before its step; the actor then climbs the new critics.
    twin.update_critics(batch)
    assert same(weights(twin.critics), weights(learner.critics))
    actor, first = Layers.of(twin.actor.net), Layers.of_critic(twin.critics, 0)
    values = [first(s, np.tanh(actor(s)))[0] for s in batch.observations]
    assert metrics["loss_actor"].item() == pytest.approx(-np.mean(values), abs=1e-5)
    twin.update_actor(batch)
    assert same(weights(twin.actor), weights(learner.actor))
    targets = weights(learner.target_actor, learner.target_critics)
    for old, new, target in zip(start, weights(learner.actor, learner.critics), targets, strict=True):
        torch.testing.assert_close(target, 0.2 * new + 0.8 * old)


def test_the_papers_step_moves_everything_and_draws_no_noise_for_the_target():
    learner = tiny("mcq-td3")
    parts = (learner.actor, learner.critics, learner.behavior.model, learner.target_actor, learner.target_critics)
    noise = learner.generator.get_state()
    for step in range(3):
        before = [weights(part) for part in parts]
        learner.update(make_batch(seed=step))
        assert not any(same(old, weights(part)) for old, part in zip(before, parts, strict=True))
    assert torch.equal(learner.generator.get_state(), noise)


def test_noise_and_delay_of_td3_can_be_had_again():
    learner = tiny("mcq-td3", policy_noise=0.2, policy_delay=2)
    noise, actor = learner.generator.get_state(), weights(learner.actor)
    learner.update(make_batch())
    assert not torch.equal(learner.generator.get_state(), noise)
    assert same(actor, weights(learner.actor))
    learner.update(make_batch())
    assert not same(actor, weights(learner.actor))


# Where gradients go


def test_each_loss_reaches_its_own_part_alone():
    batch = make_batch()
    for loss, part in (
        (lambda learner: learner.ood_loss(batch)[0], "critics"),
        (lambda learner: learner.actor_loss(batch)[0], "actor"),
    ):
        learner = changed()
        loss(learner).backward()
        assert with_gradient(learner) == {part}


def test_each_step_reaches_its_own_part_alone():
    for step, part in (
        (lambda learner: learner.update_critics(make_batch()), "critics"),
        (lambda learner: learner.update_actor(make_batch()), "actor"),
        (lambda learner: learner.behavior.update(make_batch()), "behavior.model"),
    ):
        learner = changed()
        step(learner)
        assert with_gradient(learner) == {part}


def test_the_policys_action_is_one_a_state_without_gradient_or_chance():
    learner, states = tiny("mcq-td3"), make_batch(5).observations
    before = learner.generator.get_state(), learner.ood_generator.get_state()
    actions = learner.policy_actions(states, 10)
    assert actions.shape == (5, 1, ACTIONS)
    assert not actions.requires_grad
    assert torch.equal(learner.generator.get_state(), before[0])
    assert torch.equal(learner.ood_generator.get_state(), before[1])
    policy = learner.policy()
    for deterministic in (True, False):
        np.testing.assert_allclose(policy.act(states.numpy(), deterministic), actions[:, 0], atol=1e-6)


# lam = 1 is TD3


@pytest.mark.parametrize("fields", [{}, {"policy_noise": 0.2, "policy_delay": 2}], ids=str)
def test_lam_of_one_is_td3_to_the_bit(fields):
    td3 = tiny("td3", seed=5, **{"policy_noise": 0.0, "policy_delay": 1, **fields})
    mcq = tiny("mcq-td3", seed=5, lam=1.0, **fields)
    mild = tiny("mcq-td3", seed=5, lam=0.99, **fields)
    for step in range(5):
        batch = make_batch(seed=step)
        expected, got = td3.update(batch), mcq.update(batch)
        mild.update(batch)
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], expected[name]) for name in got)
    state = td3.state_dict()
    own = {k: v for k, v in mcq.state_dict().items() if not k.startswith(("behavior.", "ood_generator"))}
    assert own.keys() == state.keys()
    assert all(torch.equal(tensor, state[name]) for name, tensor in own.items())
    assert not same(weights(mild.critics), weights(td3.critics))


# Learning


def test_values_of_actions_beyond_the_data_stay_at_the_best_of_the_data_where_td3s_run_on():
    """The reward grows with the action, and the data show none above 0: a critic left alone extrapolates."""
    random = torch.Generator().manual_seed(0)
    actions = torch.rand(64, ACTIONS, generator=random) * 0.8 - 0.8  # in [-0.8, 0]
    states, ends = torch.ones(64, OBSERVATIONS), torch.ones(64)
    batch = Batch(states, actions, 3 * actions.mean(dim=-1), states, ends)
    beyond = {}
    for name, fields in {"td3": {}, "mcq-td3": {"lam": 0.5, "behavior.lr": 3e-3}}.items():
        learner = tiny(name, critic_lr=3e-3, actor_lr=3e-3, hidden_dims=(32, 32), **fields)
        for _ in range(250):
            metrics = learner.update(batch)
        best = learner.actor(torch.ones(1, OBSERVATIONS))
        beyond[name] = learner.critics(torch.ones(1, OBSERVATIONS), best).mean().item()
    assert beyond["mcq-td3"] + 0.5 < beyond["td3"]
    assert beyond["mcq-td3"] < batch.rewards.max().item() + 0.2 < beyond["td3"]
    assert metrics["q_ood"].item() == pytest.approx(metrics["pseudo_target"].item(), abs=0.15)
