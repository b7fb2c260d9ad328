"""MCQ: its critics' loss against the paper's equations in a slow loop, its limit SAC, and its presets by data set."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, replay, same, slow_draw, tiny, weights

from mildly.algorithms.base import make_config
from mildly.algorithms.mcq import MCQ
from mildly.data.replay import Batch
from mildly.errors import MildlyError

ROWS, N = 5, 4


def changed_mcq(**fields: Any) -> MCQ:
    """A learner whose targets, temperature and spread of actions are not as they were built."""
    mcq = tiny("mcq", seed=4, gamma=0.9, num_actions=N, **fields)
    mcq.log_alpha.data.fill_(-0.4)
    random = torch.Generator().manual_seed(8)
    for parameter in [*mcq.target_critics.parameters(), *mcq.critics.parameters()]:
        parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return mcq


def slow_critic_loss(mcq: MCQ, batch: Batch) -> dict[str, float]:
    """The paper's Eq. 11 to 13 in loops over single numbers, on the draws the learner is about to make."""
    c, sets = mcq.config, 2 if mcq.config.independent_samples else 1
    actor, decoder = Layers.of(mcq.pi.net), Layers.of(mcq.behaviour.decoder)
    critics = [Layers.of_critic(mcq.critics, j) for j in range(2)]
    targets = [Layers.of_critic(mcq.target_critics, j) for j in range(2)]
    following = torch.randn(ROWS, ACTIONS, generator=replay(mcq.generator)).numpy()
    random = replay(mcq.ood_generator)
    latents = [torch.randn(2 * ROWS, N, 2 * ACTIONS, generator=random).numpy() for _ in range(sets)]
    noises = [torch.randn(2 * ROWS, N, ACTIONS, generator=random).numpy() for _ in range(sets)]
    alpha = math.exp(mcq.log_alpha.item())

    td = [0.0, 0.0]
    for i in range(ROWS):
        s_next = batch.next_observations[i]
        action, log_prob = slow_draw(actor, s_next, following[i], c.log_std_min, c.log_std_max)
        soft = min(target(s_next, action)[0] for target in targets) - alpha * log_prob
        y = batch.rewards[i].item() + (0.0 if batch.terminated[i] else c.gamma * soft)
        for j in range(2):
            td[j] += (critics[j](batch.observations[i], batch.actions[i])[0] - y) ** 2 / ROWS

    ood, counted, pseudo = [0.0, 0.0], 0, []
    s_in = [*batch.observations, *batch.next_observations]
    for i, s in enumerate(s_in):
        behaviour = [
            [np.tanh(decoder(s, np.clip(latents[k][i, n], -c.latent_clip, c.latent_clip))) for n in range(N)]
            for k in range(sets)
        ]
        policy = [
            [slow_draw(actor, s, noises[k][i, n], c.log_std_min, c.log_std_max)[0] for n in range(N)]
            for k in range(sets)
        ]
        best = [max(critics[j](s, action)[0] for action in behaviour[j % sets]) for j in range(2)]
        if c.pseudo_floor is not None:
            best = [max(value, c.pseudo_floor) for value in best]
        pseudo.append(min(best) if c.pseudo_reduction == "min" else sum(best) / 2)
        for j in range(2):
            for n in range(N):
                deviation = critics[j](s, policy[j % sets][n])[0] - (pseudo[-1] - c.delta)
                near = c.ood_distance_min is not None and (
                    sum((policy[j % sets][n] - behaviour[j % sets][n]) ** 2) < c.ood_distance_min
                )
                if near or (c.one_sided and deviation < 0):
                    continue
                counted += 1
                ood[j] += deviation**2 / (2 * ROWS * N)
    total = sum(c.lam * td[j] + (1 - c.lam) * ood[j] for j in range(2))
    return {"loss": total, "td": sum(td), "ood": sum(ood), "pseudo": sum(pseudo) / len(pseudo), "counted": counted}


OPTIONS = [
    {"lam": 0.7},
    {"lam": 0.3, "pseudo_reduction": "mean"},
    {"pseudo_floor": 0.0},
    {"one_sided": True},
    {"delta": 0.2, "one_sided": True, "ood_distance_min": 0.6},
    {"independent_samples": True},
    {"independent_samples": True, "delta": 0.2, "one_sided": True, "ood_distance_min": 0.6, "pseudo_floor": 0.0},
    {"latent_clip": 0.1, "log_std_min": -0.1, "log_std_max": 0.1},
]


@pytest.mark.parametrize("fields", OPTIONS, ids=lambda fields: ",".join(fields))
def test_critic_loss_equals_the_papers_equations_in_a_slow_loop(fields):
    mcq, batch = changed_mcq(**fields), make_batch(ROWS)
    expected = slow_critic_loss(mcq, batch)
    loss, metrics = mcq.critic_loss(batch)
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-4)
    assert metrics["loss_td"].item() == pytest.approx(expected["td"], rel=1e-4)
    assert metrics["loss_ood"].item() == pytest.approx(expected["ood"], rel=1e-4)
    assert metrics["pseudo_target"].item() == pytest.approx(expected["pseudo"], rel=1e-4)
    if "ood_distance_min" in fields:
        assert 0 < expected["counted"] < 2 * 2 * ROWS * N


def test_every_option_changes_the_loss():
    losses = [slow_critic_loss(changed_mcq(**fields), make_batch(ROWS))["loss"] for fields in OPTIONS]
    assert len({round(loss, 6) for loss in losses}) == len(OPTIONS)


def test_pseudo_target_uses_the_online_critics_not_their_targets():
    mcq, batch = changed_mcq(), make_batch(ROWS)
    state = mcq.ood_generator.get_state()
    before = mcq.ood_loss(batch)[1]["pseudo_target"]
    for parameter in mcq.target_critics.parameters():
        parameter.add_(1.0)
    mcq.ood_generator.set_state(state)
    assert torch.equal(before, mcq.ood_loss(batch)[1]["pseudo_target"])
    for parameter in mcq.critics.parameters():
        parameter.data.add_(1.0)
    mcq.ood_generator.set_state(state)
    assert not torch.equal(before, mcq.ood_loss(batch)[1]["pseudo_target"])


# Draws


def test_samples_are_shared_by_the_critics_unless_independent():
    states = make_batch(3).observations
    shared, own = tiny("mcq", num_actions=N), tiny("mcq", num_actions=N, independent_samples=True)
    for draw in ("draw_behaviour", "draw_ood"):
        assert getattr(shared, draw)(states).shape == (3, N, ACTIONS)
        sets = getattr(own, draw)(states)
        assert sets.shape == (2, 3, N, ACTIONS)
        assert not torch.isclose(sets[0], sets[1]).all(dim=-1).any()


def test_draws_carry_no_gradient():
    mcq, states = tiny("mcq"), make_batch(3).observations
    assert not mcq.draw_behaviour(states).requires_grad
    assert not mcq.draw_ood(states).requires_grad


# Where gradients go


def with_gradient(mcq: MCQ) -> set[str]:
    parts = {"pi": mcq.pi, "critics": mcq.critics, "targets": mcq.target_critics, "behaviour": mcq.behaviour}
    found = {name for name, part in parts.items() if any(p.grad is not None for p in part.parameters())}
    return found | ({"alpha"} if mcq.log_alpha.grad is not None else set())


@pytest.mark.parametrize("independent", [False, True])
def test_ood_loss_gives_a_gradient_to_the_critics_alone(independent):
    mcq = changed_mcq(independent_samples=independent, ood_distance_min=0.01)
    mcq.ood_loss(make_batch())[0].backward()
    assert with_gradient(mcq) == {"critics"}
    assert all(p.grad.abs().sum() > 0 for p in mcq.critics.parameters())


def test_critic_loss_gives_a_gradient_to_the_critics_alone():
    mcq = changed_mcq()
    mcq.critic_loss(make_batch())[0].backward()
    assert with_gradient(mcq) == {"critics"}


def test_actor_loss_gives_a_gradient_to_the_actor_alone():
    mcq, batch = changed_mcq(), make_batch()
    mcq.actor_loss(batch, mcq.pi(batch.observations).draw(mcq.generator))[0].backward()
    assert with_gradient(mcq) == {"pi"}


def test_behaviour_loss_gives_a_gradient_to_the_behaviour_model_alone():
    mcq, batch = changed_mcq(), make_batch()
    mcq.behaviour.loss(batch.observations, batch.actions, mcq.ood_generator).backward()
    assert with_gradient(mcq) == {"behaviour"}


def test_each_part_of_a_step_changes_its_own_weights_only():
    mcq, batch = changed_mcq(), make_batch()
    parts = {"pi": mcq.pi, "critics": mcq.critics, "targets": mcq.target_critics, "behaviour": mcq.behaviour}
    drawn = mcq.pi(batch.observations).draw(mcq.generator)
    for step, own in (
        (lambda: mcq.update_behaviour(batch), "behaviour"),
        (lambda: mcq.update_critics(batch), "critics"),
        (lambda: mcq.update_actor(batch, drawn), "pi"),
    ):
        before, alpha = {name: weights(part) for name, part in parts.items()}, mcq.log_alpha.item()
        step()
        assert {name for name, part in parts.items() if not same(before[name], weights(part))} == {own}
        assert mcq.log_alpha.item() == alpha


def test_the_gradient_of_the_critics_is_the_weighted_sum_of_both_terms():
    def gradient(of) -> list[torch.Tensor]:
        mcq = changed_mcq(lam=0.3)
        return list(torch.autograd.grad(of(mcq), list(mcq.critics.parameters())))

    batch = make_batch()
    both = gradient(lambda mcq: mcq.critic_loss(batch)[0])
    td = gradient(lambda mcq: super(MCQ, mcq).critic_loss(batch)[0])
    ood = gradient(lambda mcq: mcq.ood_loss(batch)[0])
    for total, data_term, ood_term in zip(both, td, ood, strict=True):
        torch.testing.assert_close(total, 0.3 * data_term + 0.7 * ood_term, atol=1e-5, rtol=1e-4)


# lam = 1 is SAC


def sac_state(learner: Any) -> dict[str, torch.Tensor]:
    return {k: v for k, v in learner.state_dict().items() if not k.startswith(("behaviour", "ood_"))}


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


# Learning


def test_values_of_actions_beyond_the_data_stay_at_the_best_of_the_data_where_sacs_run_on():
    """The reward grows with the action, and the data show none above 0: a critic left alone extrapolates."""
    random = torch.Generator().manual_seed(0)
    actions = torch.rand(64, ACTIONS, generator=random) * 0.8 - 0.8  # in [-0.8, 0]
    states, ends = torch.ones(64, OBSERVATIONS), torch.ones(64)
    batch = Batch(states, actions, 3 * actions.mean(dim=-1), states, ends)
    beyond = {}
    for name, fields in {"sac": {}, "mcq": {"lam": 0.5, "behaviour_lr": 3e-3}}.items():
        learner = tiny(name, critic_lr=3e-3, actor_lr=3e-3, alpha_lr=3e-3, hidden=(32, 32), **fields)
        for _ in range(250):
            metrics = learner.update(batch)
        beyond[name] = learner.critics(torch.ones(1, OBSERVATIONS), torch.full((1, ACTIONS), 0.8)).mean().item()
    assert beyond["mcq"] + 0.5 < batch.rewards.max().item() < beyond["sac"]
    assert metrics["q_ood"].item() == pytest.approx(metrics["pseudo_target"].item(), abs=0.15)


def test_the_behaviour_model_learns_within_the_update():
    mcq, batch = tiny("mcq", behaviour_lr=0.01), make_batch()
    losses = [mcq.update(batch)["loss_behaviour"].item() for _ in range(60)]
    assert np.mean(losses[-10:]) < 0.8 * np.mean(losses[:10])


# Configuration


@pytest.mark.parametrize("lam", [0.0, -0.1, 1.01, math.nan])
def test_lam_outside_its_range_is_an_error_that_names_it(lam):
    with pytest.raises(MildlyError, match=r"^lam must be in \(0, 1\]"):
        MCQ.Config(lam=lam)


@pytest.mark.parametrize(
    "fields",
    [
        {"num_actions": 0},
        {"delta": -1.0},
        {"behaviour_hidden": (0,)},
        {"behaviour_lr": 0.0},
        {"latent_size": 0},
        {"latent_clip": 0.0},
        {"encoder_log_std_min": 15.0},
        {"pseudo_reduction": "max"},
        {"ood_distance_min": -0.1},
        {"gamma": 1.0},
    ],
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be"):
        MCQ.Config(**fields)


def test_the_config_reaches_the_behaviour_model():
    mcq = tiny("mcq", latent_size=3, latent_clip=None, encoder_log_std_min=-1.0, encoder_log_std_max=1.0)
    assert (mcq.behaviour.latent_size, mcq.behaviour.latent_clip) == (3, None)
    assert mcq.behaviour.log_std_range == (-1.0, 1.0)


def test_the_defaults_are_the_papers():
    c = MCQ.Config()
    assert (c.hidden, c.behaviour_hidden, c.batch_size, c.num_actions) == ((400, 400), (750, 750), 256, 10)
    assert (c.actor_lr, c.critic_lr, c.alpha_lr, c.behaviour_lr) == (3e-4, 3e-4, 3e-4, 1e-3)
    assert (c.gamma, c.tau, c.log_std_min, c.log_std_max) == (0.99, 5e-3, -20.0, 2.0)
    assert (c.delta, c.one_sided, c.ood_distance_min, c.pseudo_floor) == (0.0, False, None, None)
    assert (c.pseudo_reduction, c.independent_samples, c.normalise_observations) == ("min", False, False)
    assert (c.latent_size, c.latent_clip, c.encoder_log_std_min, c.encoder_log_std_max) == (None, 0.5, -4.0, 15.0)


LAM = {
    "halfcheetah-random-v2": 0.95,
    "halfcheetah-medium-v2": 0.95,
    "halfcheetah-medium-replay-v2": 0.95,
    "halfcheetah-medium-expert-v2": 0.7,
    "halfcheetah-expert-v2": 0.5,
    "hopper-random-v2": 0.6,
    "hopper-medium-v2": 0.7,
    "hopper-medium-replay-v2": 0.9,
    "hopper-medium-expert-v2": 0.5,
    "hopper-expert-v2": 0.5,
    "walker2d-random-v2": 0.8,
    "walker2d-medium-v2": 0.9,
    "walker2d-medium-replay-v2": 0.9,
    "walker2d-medium-expert-v2": 0.8,
    "walker2d-expert-v2": 0.3,
    "maze2d-umaze-v1": 0.7,
    "maze2d-umaze-dense-v1": 0.95,
    "maze2d-medium-v1": 0.9,
    "maze2d-medium-dense-v1": 0.9,
    "pen-human-v0": 0.3,
    "door-human-v0": 0.7,
    "relocate-human-v0": 0.3,
    "hammer-human-v0": 0.7,
    "pen-cloned-v0": 0.9,
    "door-cloned-v0": 0.3,
    "relocate-cloned-v0": 0.3,
    "hammer-cloned-v0": 0.5,
}
STRICT = {  # the five sets with delta, one side and a mask in the authors' code
    "hopper-medium-v2",
    "hopper-medium-expert-v2",
    "hopper-expert-v2",
    "halfcheetah-medium-expert-v2",
    "halfcheetah-expert-v2",
}


def test_lam_of_every_data_set_is_the_papers():
    assert len(LAM) == 27
    for name, lam in LAM.items():
        assert MCQ.for_dataset(name, "paper") == {"lam": lam}
        assert make_config(MCQ, "paper", name, {}) == MCQ.Config(lam=lam)


def test_a_recollected_set_has_the_hyperparameters_of_its_original():
    for preset in ("paper", "official"):
        for name in LAM:
            assert MCQ.for_dataset(f"{name}-recollected", preset) == MCQ.for_dataset(name, preset)


@pytest.mark.parametrize(
    "name", ["", "mine", "pendulum-mixed", "hopper", "hopper-medium-very-noisy", "my-hopper-medium"]
)
def test_an_unknown_set_has_no_hyperparameters_of_its_own(name):
    assert MCQ.for_dataset(name, "paper") == {}
    assert MCQ.for_dataset(name, "official") == {}


def test_a_field_the_user_gives_wins_over_the_data_sets():
    config = make_config(MCQ, "official", "hopper-medium-v2", {"lam": 0.55, "one_sided": False})
    assert (config.lam, config.one_sided, config.delta) == (0.55, False, 5.0)


def test_the_official_preset_is_what_the_authors_code_does_on_every_set():
    for name, lam in LAM.items():
        config = make_config(MCQ, "official", name, {})
        expected = {
            "lam": lam,
            "hidden": (400, 400, 400),
            "log_std_min": -5.0,
            "log_std_max": 2.0,
            "latent_clip": 0.5,
            "encoder_log_std_min": -4.0,
            "encoder_log_std_max": 15.0,
            "pseudo_floor": 0.0,
            "independent_samples": True,
            "delta": 5.0 if name in STRICT else 0.0,
            "one_sided": name in STRICT or name.startswith("maze2d"),
            "ood_distance_min": 0.1 if name in STRICT else None,
            "alpha_first": True,
            "normalise_observations": False,
        }
        assert {field: getattr(config, field) for field in expected} == expected, name
        assert config == MCQ.Config(**expected), name


@pytest.mark.parametrize("dataset", ["hopper-medium-v2", "maze2d-umaze-v1", "pen-human-v0"])
def test_a_step_of_the_official_preset_runs(dataset):
    config = make_config(MCQ, "official", dataset, {"batch_size": 4})
    mcq = MCQ(config, OBSERVATIONS, ACTIONS, seed=0)
    assert [w.shape for w in mcq.critics.weights] == [(2, 5, 400), (2, 400, 400), (2, 400, 400), (2, 400, 1)]
    assert sum(isinstance(layer, torch.nn.Linear) for layer in mcq.pi.net) == 4
    before = weights(mcq.pi, mcq.critics, mcq.behaviour)
    metrics = mcq.update(make_batch(4))
    assert all(torch.isfinite(value) for value in metrics.values())
    assert metrics["pseudo_target"] >= 0
    assert not any(torch.equal(a, b) for a, b in zip(before, weights(mcq.pi, mcq.critics, mcq.behaviour), strict=True))
