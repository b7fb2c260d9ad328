"""MCQ: its critics' loss against the paper's equations in a slow loop, where gradients go, and its limit SAC."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, replay, same, slow_draw, tiny, weights
from learners import changed_mcq, with_gradient

from mildly.algorithms.mcq import MCQ, spread
from mildly.data.batches import Batch

ROWS, N = 5, 4


def slow_critic_loss(mcq: MCQ, batch: Batch) -> dict[str, float]:
    """The paper's Eq. 11 to 13 in loops over single numbers, on the draws the learner is about to make."""
    c, number = mcq.config, mcq.config.ensemble
    sets = number if c.independent_samples else 1
    m, clip = N if c.ood_actions is None else c.ood_actions, c.behavior.latent_clip
    actor, decoder = Layers.of(mcq.actor.net), Layers.of(mcq.behavior.model.decoder)
    critics = [Layers.of_critic(mcq.critics, j) for j in range(number)]
    targets = [Layers.of_critic(mcq.target_critics, j) for j in range(number)]
    next_noise = torch.randn(ROWS, ACTIONS, generator=replay(mcq.generator)).numpy()
    random = replay(mcq.ood_generator)
    latents = [torch.randn(2 * ROWS, N, 2 * ACTIONS, generator=random).numpy() for _ in range(sets)]
    noises = [torch.randn(2 * ROWS, m, ACTIONS, generator=random).numpy() for _ in range(sets)]
    alpha = math.exp(mcq.log_alpha.item())

    td = [0.0] * number
    for i in range(ROWS):
        s_next = batch.next_observations[i]
        action, log_prob = slow_draw(actor, s_next, next_noise[i], c.log_std_min, c.log_std_max)
        soft = min(target(s_next, action)[0] for target in targets) - alpha * log_prob
        y = batch.rewards[i].item() + (0.0 if batch.terminated[i] else c.gamma * soft)
        for j in range(number):
            td[j] += (critics[j](batch.observations[i], batch.actions[i])[0] - y) ** 2 / ROWS

    judges, pseudo, distances, values = targets if c.pseudo_critics == "target" else critics, [], [], []
    for i, s in enumerate([*batch.observations, *batch.next_observations]):
        behavior = [
            [np.tanh(decoder(s, np.clip(latents[k][i, n], -clip, clip))) for n in range(N)] for k in range(sets)
        ]
        policy = [
            [slow_draw(actor, s, noises[k][i, n], c.log_std_min, c.log_std_max)[0] for n in range(m)]
            for k in range(sets)
        ]
        best = [max(judges[j](s, action)[0] for action in behavior[j % sets]) for j in range(number)]
        if c.pseudo_floor is not None:
            best = [max(value, c.pseudo_floor) for value in best]
        pseudo.append(min(best) if c.pseudo_reduction == "min" else sum(best) / number)
        values.append([[critics[j](s, action)[0] for action in policy[j % sets]] for j in range(number)])
        pairs = [zip(policy[j % sets], behavior[j % sets], strict=False) for j in range(number)]  # k-th with k-th
        distances.append([[sum((ours - theirs) ** 2) for ours, theirs in pair] for pair in pairs])

    middle = sum(pseudo) / len(pseudo)
    spread = math.sqrt(sum((y - middle) ** 2 for y in pseudo) / (len(pseudo) - 1))
    ood, counted = [0.0] * number, 0
    for i, j, n in itertools.product(range(2 * ROWS), range(number), range(m)):
        deviation = values[i][j][n] - (pseudo[i] - c.delta - c.delta_scale * spread)
        near = c.ood_distance_min is not None and distances[i][j][n] < c.ood_distance_min
        if not near and not (c.one_sided and deviation < 0):
            counted += 1
            ood[j] += deviation**2 / (2 * ROWS * m)
    weights_of = (c.lam, 1 - c.lam) if c.ood_weight is None else (1.0, c.ood_weight)
    total = sum(weights_of[0] * td[j] + weights_of[1] * ood[j] for j in range(number))
    return {"loss": total, "td": sum(td), "ood": sum(ood), "pseudo": middle, "counted": counted}


OPTIONS = [
    {"lam": 0.7},
    {"lam": 0.3, "pseudo_reduction": "mean"},
    {"pseudo_floor": 0.0},
    {"one_sided": True},
    {"delta": 0.2, "one_sided": True, "ood_distance_min": 0.6},
    {"independent_samples": True},
    {"independent_samples": True, "delta": 0.2, "one_sided": True, "ood_distance_min": 0.6, "pseudo_floor": 0.0},
    {"behavior.latent_clip": 0.1, "log_std_min": -0.1, "log_std_max": 0.1},
    {"ood_weight": 0.4},
    {"ood_weight": 3.0, "lam": 1.0},  # takes the place of lam
    {"ood_actions": 1},
    {"ood_actions": 2, "ood_distance_min": 0.8},  # the first two behavior actions are those to be far from
    {"ood_actions": 2 * N},
    {"pseudo_critics": "target"},
    {"delta_scale": 0.5},
    {"delta_scale": 0.5, "delta": 0.1, "one_sided": True, "pseudo_critics": "target", "independent_samples": True},
    {"ensemble": 5},
    {"ensemble": 3, "pseudo_reduction": "mean", "independent_samples": True},
]


@pytest.mark.parametrize("fields", OPTIONS, ids=str)
def test_critic_loss_equals_the_papers_equations_in_a_slow_loop(fields):
    mcq, batch = changed_mcq(**fields), make_batch(ROWS)
    expected = slow_critic_loss(mcq, batch)
    metrics = mcq.update_critics(batch)
    assert metrics["loss_critic"].item() == pytest.approx(expected["loss"], rel=1e-4)
    assert metrics["loss_td"].item() == pytest.approx(expected["td"], rel=1e-4)
    assert metrics["loss_ood"].item() == pytest.approx(expected["ood"], rel=1e-4)
    assert metrics["pseudo_target"].item() == pytest.approx(expected["pseudo"], rel=1e-4)
    if "ood_distance_min" in fields:
        assert 0 < expected["counted"] < 2 * 2 * ROWS * fields.get("ood_actions", N)


def test_every_option_changes_the_loss():
    losses = [slow_critic_loss(changed_mcq(**fields), make_batch(ROWS))["loss"] for fields in OPTIONS]
    assert len({round(loss, 6) for loss in losses}) == len(OPTIONS)


def test_pseudo_target_uses_the_online_critics_not_their_targets():
    mcq, batch = changed_mcq(), make_batch(ROWS)
    state = mcq.ood_generator.get_state()
    before = mcq.ood_loss(batch)[1]["pseudo_target"]
    for parameter in mcq.target_critics.parameters():
        parameter.data.add_(1.0)
    mcq.ood_generator.set_state(state)
    assert torch.equal(before, mcq.ood_loss(batch)[1]["pseudo_target"])
    for parameter in mcq.critics.parameters():
        parameter.data.add_(1.0)
    mcq.ood_generator.set_state(state)
    assert not torch.equal(before, mcq.ood_loss(batch)[1]["pseudo_target"])


@pytest.mark.parametrize("lam", [0.3, 0.9])
def test_a_weight_of_the_ood_term_of_its_own_is_lams_loss_on_another_scale(lam):
    with_lam, with_weight = changed_mcq(lam=lam), changed_mcq(ood_weight=(1 - lam) / lam)
    losses = [learner.update_critics(make_batch(ROWS))["loss_critic"].item() for learner in (with_lam, with_weight)]
    assert losses[0] == pytest.approx(lam * losses[1], rel=1e-5)


@pytest.mark.parametrize("lam", [0.3, 0.9])
def test_a_weight_of_the_ood_term_of_its_own_takes_lams_steps_since_adam_divides_the_scale_out(lam):
    with_lam, with_weight = changed_mcq(lam=lam), changed_mcq(ood_weight=(1 - lam) / lam)
    faster = changed_mcq(lam=lam, critic_lr=with_lam.config.critic_lr / lam)  # what the scale would be without Adam
    learners = (with_lam, with_weight, faster)
    for step in range(10):
        for learner in learners:
            learner.update_critics(make_batch(ROWS, seed=step))
    expected, got, other = (torch.cat([x.flatten() for x in weights(learner.critics)]) for learner in learners)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    assert (other - expected).abs().max() > 1e-4


def test_fewer_ood_actions_estimate_the_same_term_without_bias():
    """A thousand draws of one action per state, and one of many thousands, about the same pseudo targets."""
    batch = make_batch(ROWS)
    one, many = (changed_mcq(ood_actions=count, **{"behavior.latent_clip": 1e-6}) for count in (1, 20_000))
    draws = np.array([one.ood_loss(batch)[0].item() for _ in range(1000)])
    term, metrics = many.ood_loss(batch)
    assert metrics["pseudo_target"].item() == pytest.approx(one.ood_loss(batch)[1]["pseudo_target"].item(), abs=1e-4)
    error = draws.std(ddof=1) / math.sqrt(len(draws))
    assert error < 0.02 * draws.mean()
    assert abs(draws.mean() - term.item()) < 3 * error


def test_the_step_draws_as_many_actions_as_it_is_told():
    assert [actions.shape[1] for actions in drawn_actions(tiny("mcq", num_actions=5, ood_actions=2))] == [5, 2]
    assert [actions.shape[1] for actions in drawn_actions(tiny("mcq", num_actions=5))] == [5, 5]


# Draws


def drawn_actions(mcq: MCQ) -> list[torch.Tensor]:
    """What the critics are asked to value by the OOD term: the behavior's actions, then the policy's."""
    seen, forward = [], mcq.critics.forward
    mcq.critics.forward = lambda states, actions: seen.append(actions) or forward(states, actions)
    mcq.ood_loss(make_batch(3))
    return seen


def test_samples_are_shared_by_the_critics_unless_independent():
    shared, own = (tiny("mcq", num_actions=N, independent_samples=independent) for independent in (False, True))
    assert [actions.shape for actions in drawn_actions(shared)] == 2 * [(6, N, ACTIONS)]
    for sets in drawn_actions(own):
        assert sets.shape == (2, 6, N, ACTIONS)
        assert not torch.isclose(sets[0], sets[1]).all(dim=-1).any()


def test_draws_carry_no_gradient():
    assert not any(actions.requires_grad for actions in drawn_actions(tiny("mcq")))


# Where gradients go


@pytest.mark.parametrize("independent", [False, True])
def test_ood_loss_gives_a_gradient_to_the_critics_alone(independent):
    mcq = changed_mcq(independent_samples=independent, ood_distance_min=0.01)
    mcq.ood_loss(make_batch())[0].backward()
    assert with_gradient(mcq) == {"critics"}
    assert all(p.grad.abs().sum() > 0 for p in mcq.critics.parameters())


def test_the_critics_step_gives_a_gradient_to_the_critics_alone():
    mcq = changed_mcq()
    mcq.update_critics(make_batch())
    assert with_gradient(mcq) == {"critics"}


def test_actor_loss_gives_a_gradient_to_the_actor_alone():
    mcq, batch = changed_mcq(), make_batch()
    mcq.actor_loss(batch, mcq.actor(batch.observations).rsample(mcq.generator))[0].backward()
    assert with_gradient(mcq) == {"actor"}


def test_the_behavior_models_step_gives_a_gradient_to_the_behavior_model_alone():
    mcq, batch = changed_mcq(), make_batch()
    mcq.behavior.update(batch)
    assert with_gradient(mcq) == {"behavior.model"}


def test_each_part_of_a_step_changes_its_own_weights_only():
    mcq, batch = changed_mcq(), make_batch()
    parts = {"actor": mcq.actor, "critics": mcq.critics, "targets": mcq.target_critics, "behavior": mcq.behavior.model}
    drawn = mcq.actor(batch.observations).rsample(mcq.generator)
    for step, own in (
        (lambda: mcq.behavior.update(batch), "behavior"),
        (lambda: mcq.update_critics(batch), "critics"),
        (lambda: mcq.update_actor(batch, drawn), "actor"),
    ):
        before, alpha = {name: weights(part) for name, part in parts.items()}, mcq.log_alpha.item()
        step()
        assert {name for name, part in parts.items() if not same(before[name], weights(part))} == {own}
        assert mcq.log_alpha.item() == alpha


def test_the_gradient_of_the_critics_is_the_weighted_sum_of_both_terms():
    batch = make_batch()

    def gradient_of_the_step(**fields: Any) -> list[torch.Tensor]:
        mcq = changed_mcq(**fields)
        mcq.update_critics(batch)
        return [parameter.grad for parameter in mcq.critics.parameters()]

    both, td = gradient_of_the_step(lam=0.3), gradient_of_the_step(lam=1.0)
    mcq = changed_mcq(lam=0.3)
    ood = torch.autograd.grad(mcq.ood_loss(batch)[0], list(mcq.critics.parameters()))
    for total, data_term, ood_term in zip(both, td, ood, strict=True):
        torch.testing.assert_close(total, 0.3 * data_term + 0.7 * ood_term, atol=1e-5, rtol=1e-4)


def test_the_behavior_model_trains_in_its_own_steps_only_and_then_stands_still():
    mcq = tiny("mcq", **{"behavior.steps": 3})
    (phase,) = mcq.phases()
    assert phase.steps == 3
    for step, update in enumerate([phase.update] * 3 + [mcq.step] * 3):
        before = weights(mcq.behavior.model)
        metrics = update(make_batch(seed=step))
        assert same(before, weights(mcq.behavior.model)) == (step >= 3)
        assert ("loss_behavior" in metrics) == (step < 3)
        assert ("loss_ood" in metrics) == (step >= 3)


# lam = 1 is SAC


def sac_state(learner: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in learner.state_dict().items() if not k.startswith(("behavior.", "ood_generator"))}


@pytest.mark.parametrize("alpha_first", [True, False])
def test_lam_of_one_is_sac_to_the_bit(alpha_first):
    sac = tiny("sac", seed=5, alpha_first=alpha_first)
    mcq = tiny("mcq", seed=5, alpha_first=alpha_first, lam=1.0)
    mild = tiny("mcq", seed=5, alpha_first=alpha_first, lam=0.99)
    for step in range(5):
        batch = make_batch(seed=step)
        expected = sac.update(batch)
        got = mcq.update(batch)
        mild.update(batch)
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[name], expected[name]) for name in got)
    assert sac_state(mcq).keys() == sac.state_dict().keys()
    assert all(torch.equal(tensor, sac.state_dict()[name]) for name, tensor in sac_state(mcq).items())
    assert not same(weights(mild.critics), weights(sac.critics))


@pytest.mark.parametrize("n", [1, 10])
def test_the_spread_of_behavior_actions_is_their_standard_deviation_within_a_state(n: int) -> None:
    actions = torch.randn(7, n, ACTIONS, generator=torch.Generator().manual_seed(0))
    expected = np.mean([np.std(state, axis=0) for state in actions.numpy()])
    assert spread(actions).item() == pytest.approx(expected, abs=1e-6)


# Learning


def test_values_of_actions_beyond_the_data_stay_at_the_best_of_the_data_where_sacs_run_on():
    """The reward grows with the action, and the data show none above 0: a critic left alone extrapolates."""
    random = torch.Generator().manual_seed(0)
    actions = torch.rand(64, ACTIONS, generator=random) * 0.8 - 0.8  # in [-0.8, 0]
    states, ends = torch.ones(64, OBSERVATIONS), torch.ones(64)
    batch = Batch(states, actions, 3 * actions.mean(dim=-1), states, ends)
    beyond = {}
    for name, fields in {"sac": {}, "mcq": {"lam": 0.5, "behavior.lr": 3e-3}}.items():
        learner = tiny(name, critic_lr=3e-3, actor_lr=3e-3, alpha_lr=3e-3, hidden_dims=(32, 32), **fields)
        for _ in range(250):
            metrics = learner.update(batch)
        beyond[name] = learner.critics(torch.ones(1, OBSERVATIONS), torch.full((1, ACTIONS), 0.8)).mean().item()
    assert beyond["mcq"] + 0.5 < batch.rewards.max().item() < beyond["sac"]
    assert metrics["q_ood"].item() == pytest.approx(metrics["pseudo_target"].item(), abs=0.15)


def test_the_behavior_model_learns_within_the_update():
    mcq, batch = tiny("mcq", **{"behavior.lr": 0.01}), make_batch()
    losses = [mcq.update(batch)["loss_behavior"].item() for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])
