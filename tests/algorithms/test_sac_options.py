"""Options of SAC and of what is built on it: dropout in the actor while it trains, and a cap on the temperature."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import ACTIONS, make_batch, replay, tiny

from mildly.actors import TanhGaussian
from mildly.algorithms.config import make_config
from mildly.algorithms.mcq import MCQ
from mildly.errors import MildlyError

on_sac = pytest.mark.parametrize("name", ["sac", "cql", "mcq"])


def slow_distribution(learner, states: torch.Tensor, generator: torch.Generator) -> TanhGaussian:
    """The actor layer by layer; units are dropped by the generator's next draws."""
    keep, x = 1 - learner.config.actor_dropout, states
    *hidden, last = [layer for layer in learner.actor.net if isinstance(layer, torch.nn.Linear)]
    for layer in hidden:
        x = torch.relu(x @ layer.weight.T + layer.bias)
        x = x * torch.empty_like(x).bernoulli_(keep, generator=generator) / keep
    mean, log_std = (x @ last.weight.T + last.bias).chunk(2, dim=-1)
    return TanhGaussian(mean, log_std.clamp(learner.config.log_std_min, learner.config.log_std_max))


def same_distribution(one: TanhGaussian, other: TanhGaussian) -> bool:
    return all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one, other, strict=True))


@on_sac
def test_dropout_drops_hidden_units_in_training_and_none_when_acting(name):
    learner, states = tiny(name, actor_dropout=0.25), make_batch(40).observations
    generator = replay(learner.generator)
    trained = learner.distribution(states)
    assert same_distribution(trained, slow_distribution(learner, states, generator))
    whole = learner.actor(states)
    assert not same_distribution(trained, whole)
    assert torch.equal(learner.actor.act(states, deterministic=True), torch.tanh(whole.mean))


def test_dropout_reaches_td_target_ood_draws_and_actor_loss():
    """The three places where OfflineRL-Kit's actor is in its training mode."""
    plain, dropping = (tiny("mcq", seed=3, actor_dropout=dropout) for dropout in (0.0, 0.5))
    batch = make_batch(30)
    for learner in (plain, dropping):
        learner.log_alpha.data.fill_(-50)  # what is left of the targets is the value of the drawn actions
    generator = replay(dropping.generator)
    pi = slow_distribution(dropping, batch.next_observations, generator)
    actions, _ = pi.rsample(generator)
    values = dropping.target_critics(batch.next_observations, actions).amin(0)
    expected = batch.rewards + dropping.config.gamma * (1 - batch.terminated) * values
    assert torch.allclose(dropping.td_target(batch), expected, atol=1e-5)

    generator = replay(dropping.ood_generator)
    pi = slow_distribution(dropping, batch.observations, generator)
    expected = pi.sample(3, generator)
    assert torch.allclose(dropping.policy_actions(batch.observations, 3), expected, atol=1e-6)
    assert expected.shape == (30, 3, ACTIONS)

    drawn = [learner.distribution(batch.observations).rsample(learner.generator) for learner in (plain, dropping)]
    losses = [learner.actor_loss(batch, draw)[0].item() for learner, draw in zip((plain, dropping), drawn, strict=True)]
    assert losses[0] != pytest.approx(losses[1])


def test_ood_draws_with_dropout_leave_the_other_draws_alone():
    """With lam = 1 MCQ is SAC to the bit, with dropout too."""
    learner, batch = tiny("mcq", actor_dropout=0.3), make_batch(8)
    before = learner.generator.get_state()
    learner.policy_actions(batch.observations, 2)
    assert torch.equal(learner.generator.get_state(), before)


@on_sac
def test_alpha_is_capped_where_it_is_used_and_its_logarithm_is_not(name):
    learner = tiny(name, alpha_max=0.5, initial_alpha=2.0)
    assert learner.alpha.item() == 0.5
    assert learner.log_alpha.item() == pytest.approx(math.log(2.0))
    assert not learner.alpha.requires_grad
    learner.log_alpha.data.fill_(math.log(0.2))
    assert learner.alpha.item() == pytest.approx(0.2)
    assert tiny(name, initial_alpha=2.0).alpha.item() == pytest.approx(2.0)


def test_a_capped_alpha_weighs_the_entropy_in_target_and_loss():
    capped, plain = tiny("sac", alpha_max=0.5, initial_alpha=2.0), tiny("sac", initial_alpha=0.5)
    batch = make_batch(20)
    assert torch.allclose(capped.td_target(batch), plain.td_target(batch), atol=1e-6)
    losses = [
        learner.actor_loss(batch, learner.distribution(batch.observations).rsample(learner.generator))[0]
        for learner in (capped, plain)
    ]
    assert torch.allclose(*losses)
    metrics = capped.update_temperature(capped.distribution(batch.observations).rsample(capped.generator))
    assert metrics["alpha"].item() <= 0.5


@pytest.mark.parametrize(
    "fields", [{"actor_dropout": 1.0}, {"actor_dropout": -0.1}, {"alpha_max": 0.0}, {"ensemble": 0}], ids=str
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be "):
        MCQ.Config(**fields)


def test_the_preset_kit_is_offlinerl_kits_mcq_with_normalized_observations():
    c = make_config(MCQ, "kit", "hopper-medium-v2", {})
    assert (c.lam, c.num_actions, c.ood_actions, c.pseudo_critics) == (0.9, 10, 1, "target")
    assert (c.log_std_min, c.log_std_max, c.actor_dropout, c.alpha_max, c.alpha_first) == (-5.0, 2.0, 0.1, 1.0, False)
    assert (c.hidden_dims, c.behavior.kl_weight, c.normalize_observations) == ((400, 400), 0.5, True)
    assert (c.actor_lr, c.critic_lr, c.alpha_lr, c.initial_alpha) == (3e-4, 3e-4, 3e-4, 1.0)
