"""Policies to be judged, in the data's units."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from conftest import CountingActor, make_dataset

from mildly.action_space import ActionSpace
from mildly.actors import DeterministicActor, TanhGaussianActor
from mildly.data.normalize import Normalizer
from mildly.ope.judged import JudgedPolicy, NoDensity
from mildly.policy import Policy

SPACE = ActionSpace((-2.0, 0.0), (1.0, 0.5))


def policy(kind=TanhGaussianActor, space=SPACE, sizes=(3, 2)):
    torch.manual_seed(0)
    data = make_dataset()
    normalizer = Normalizer.of(data, torch.device("cpu"))
    return Policy(kind(*sizes, (8,)).eval().requires_grad_(False), normalizer, space)


def test_actions_are_in_the_data_s_units_whatever_the_policy_s_own_are():
    data = make_dataset()
    wide = ActionSpace((-4.0, -1.0), (4.0, 1.0))
    acts = policy(DeterministicActor, wide)
    judged = JudgedPolicy.of(acts, data, "it")
    assert data.meta.action_space is not None
    expected = data.meta.action_space.to_unit(acts.act(data.observations)).clip(-1, 1)
    assert judged.actions(data.observations, 0)[:, 0] == pytest.approx(expected, abs=1e-6)


def test_draws_repeat_with_their_seed_and_have_the_policy_s_mean():
    data = make_dataset()
    judged = dataclasses.replace(JudgedPolicy.of(policy(), data, "it", stochastic=True), draws=400)
    first, again, other = (judged.actions(data.observations[:5], seed) for seed in (1, 1, 2))
    assert first.shape == (5, 400, 2)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.mean(axis=1) == pytest.approx(other.mean(axis=1), abs=0.15)


def test_the_density_of_a_stochastic_policy_is_its_own_in_the_data_s_units():
    data = make_dataset()
    wide = ActionSpace((-4.0, -1.0), (4.0, 1.0))
    same = JudgedPolicy.of(policy(), data, "it", stochastic=True)
    states = same.policy.normalizer.apply(torch.tensor(data.observations))
    own = same.policy.actor(states).log_prob(torch.tensor(data.actions), margin=0.05)
    assert same.log_prob(data.observations, data.actions) == pytest.approx(own.numpy(), abs=1e-4)
    other = JudgedPolicy.of(policy(space=wide), data, "it", stochastic=True)
    inside = 0.5 * data.actions
    given = wide.to_unit(data.meta.action_space.from_unit(inside)).astype(np.float32)
    expected = other.policy.actor(states).log_prob(torch.tensor(given), margin=0.05) + np.log(3 / 8) + np.log(0.5 / 2)
    assert other.log_prob(data.observations, inside) == pytest.approx(expected.numpy(), abs=1e-4)


def test_a_deterministic_policy_gets_a_named_kernel():
    data = make_dataset()
    judged = JudgedPolicy.of(policy(DeterministicActor), data, "it")
    assert "normal kernel of width 0.1" in judged.density
    away = (data.actions - judged.actions(data.observations, 0)[:, 0]) / 0.1
    expected = (-0.5 * away.astype(np.float64) ** 2 - np.log(0.1) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    assert judged.log_prob(data.observations, data.actions) == pytest.approx(expected, rel=1e-5)


def test_draws_without_a_known_density_are_refused():
    data = make_dataset()
    judged = JudgedPolicy.of(policy(DeterministicActor), data, "it", stochastic=True)
    with pytest.raises(NoDensity, match="no density that is known"):
        judged.log_prob(data.observations, data.actions)


@pytest.mark.parametrize(("sizes", "words"), [((4, 2), "observations of 4"), ((3, 1), "actions of 1")])
def test_a_policy_of_other_sizes_is_refused_by_name(sizes, words, refused):
    space = ActionSpace((-1.0,) * sizes[1], (1.0,) * sizes[1])
    acts = dataclasses.replace(policy(space=space, sizes=sizes), normalizer=None)
    refused(lambda: JudgedPolicy.of(acts, make_dataset(), "runs/other"), "runs/other", words, "'tiny'")


def test_a_policy_that_remembers_is_refused(refused):
    acts = dataclasses.replace(policy(), actor=CountingActor(3, 2))
    refused(lambda: JudgedPolicy.of(acts, make_dataset(), "it"), "remembers its episode")
