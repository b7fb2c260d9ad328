"""Each counterexample, with its numbers worked out by hand."""

from __future__ import annotations

from math import log, sqrt

import numpy as np
import pytest

from mildly.theory import (
    COUNTEREXAMPLES,
    batch_optimal_q,
    counterexamples as examples,
    policy_value,
    practical_fixed_point,
    tilted_policy,
)
from mildly.theory.counterexamples import DATA, SEEN, one_state
from mildly.theory.figures import worst_excess
from mildly.theory.propositions import proposition_1, proposition_3, proposition_5


@pytest.mark.parametrize("make", [make for each in COUNTEREXAMPLES.values() for make in each])
def test_every_counterexample_refutes_its_sentence_by_far_more_than_rounding(make):
    assert make().gap > 0.01


def test_proposition_1_values_outside_the_support_reach_inside():
    found = examples.contraction_on_the_support_alone()
    assert found.demanded == 0.0
    assert found.actual == pytest.approx(0.9 * 10)
    assert not proposition_1(one_state((0.0, 0.0), 0.9), DATA).claims[0].holds


def test_proposition_2_the_optimum_is_reached_with_delta_far_above_the_limit_of_the_proof():
    found = examples.strictly_below_the_batch_optimum()
    assert found.actual == pytest.approx(1 / (1 - 0.9))
    assert found.demanded == pytest.approx(1 + 0.9 * (10 - 50))


@pytest.mark.parametrize("gamma", [0.0, 0.9])
def test_proposition_3_a_close_policy_can_be_worse_than_the_bound(gamma):
    found = examples.close_policy_that_is_worse(gamma)
    epsilon = max(0.5 * log(0.5 / 0.45) + 0.5 * log(0.5 / 0.55), 0.45 * log(0.45 / 0.5) + 0.55 * log(0.55 / 0.5))
    assert found.actual == pytest.approx(0.45 / (1 - gamma))
    assert found.demanded == pytest.approx(0.5 / (1 - gamma) - sqrt(2 * epsilon) * gamma * 0.05 / (1 - gamma) ** 2)


@pytest.mark.parametrize("gamma", [0.5, 0.8, 0.9, 0.95, 0.99])
@pytest.mark.parametrize("strength", [0.02, 0.1, 0.3, 1.0])
def test_proposition_3_with_one_state_fails_exactly_below_a_divergence(gamma, strength):
    mu = np.array([[0.5, 0.5]])
    policy = tilted_policy(mu, np.array([[-1.0, 1.0]]), strength)  # r = (1, 0): towards the worse action
    divergences = [float((p * np.log(p / q)).sum()) for p, q in ((mu, policy), (policy, mu))]
    printed = proposition_3(one_state((1.0, 0.0), gamma), mu, policy).claims[0]
    assert printed.holds == (max(divergences) >= ((1 - gamma) / (sqrt(2) * gamma)) ** 2)


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99])
@pytest.mark.parametrize("strength", [0.02, 0.3, 1.0])
def test_proposition_3_with_one_state_cannot_fail_for_a_policy_better_than_mu(gamma, strength):
    mu = np.array([[0.5, 0.5]])
    policy = tilted_policy(mu, np.array([[1.0, -1.0]]), strength)  # r = (1, 0): towards the better action
    assert proposition_3(one_state((1.0, 0.0), gamma), mu, policy).claims[0].holds


def test_proposition_3_without_delta_a_tie_can_cost_everything():
    found = examples.no_delta_and_a_tie()
    assert (found.demanded, found.actual) == (pytest.approx(10), pytest.approx(-10))


def test_proposition_4_a_model_that_leaks_keeps_the_difference_alive():
    found = examples.practical_contraction_on_the_support_alone()
    assert found.demanded == 0.0
    assert found.actual == pytest.approx(0.9 * (9 * 9 / 16 + 10 * 7 / 16) - 0.9 * 9)


def test_proposition_4_needs_the_discount_outside_the_support():
    found = examples.identity_outside_the_support()
    assert (found.demanded, found.actual) == (0.0, pytest.approx(1 - 0.5**2))


def test_proposition_4_without_delta_a_deterministic_behavior_policy_ties():
    found = examples.practical_tie()
    assert (found.demanded, found.actual) == (pytest.approx(10), pytest.approx(-10))


@pytest.mark.parametrize("gamma", [0.0, 0.5, 0.99])
def test_proposition_4_the_fixed_point_of_a_leaking_model_exceeds_the_batch_optimum(gamma):
    mdp = one_state((-1.0, 1.0), gamma)
    q = practical_fixed_point(mdp, SEEN, np.array([[0.75, 0.25]]), 2, tolerance=1e-9).q
    outside = -0.125 / (1 - gamma)  # y = 9/16 (-1 + gamma y) + 7/16 (1 + gamma y)
    assert q[0].tolist() == pytest.approx([-1 + gamma * outside, outside], abs=1e-7)
    assert batch_optimal_q(mdp, SEEN)[0, 0] == pytest.approx(-1 / (1 - gamma))
    assert policy_value(mdp, DATA)[0] == pytest.approx(-1 / (1 - gamma))


def test_proposition_5_fails_where_the_best_value_is_negative():
    found = examples.negative_best_value()
    assert found.actual == pytest.approx(9 / 16 * -1 + 7 / 16 * 1)
    assert found.demanded == pytest.approx(-1 + (1 - 0.5**2))


@pytest.mark.parametrize(("gamma", "fails"), [(0.0, True), (0.14, True), (0.15, False), (0.9, False)])
def test_proposition_5_at_its_own_fixed_point_fails_below_gamma_one_seventh(gamma, fails):
    verdict = proposition_5(one_state((-1.0, 1.0), gamma), DATA, np.array([[0.75, 0.25]]), n=2)
    (own,) = [claim for claim in verdict.claims if claim.part == "one target, at the fixed point"]
    assert own.holds != fails


@pytest.mark.parametrize("epsilon", [0.01, 0.2, 0.45])
def test_proposition_5_the_factor_two_makes_up_for_negative_values_at_one_draw_only(epsilon):
    for n in (1, 2, 10):
        printed = 1 - (1 - 2 * epsilon) ** n
        excess = float(worst_excess(-1.0, np.asarray(epsilon), np.asarray(n)))
        assert excess == pytest.approx(2 * (1 - (1 - epsilon) ** n))
        assert (excess > printed + 1e-12) == (n > 1)
        assert float(worst_excess(0.0, np.asarray(epsilon), np.asarray(n))) == pytest.approx(1 - (1 - epsilon) ** n)
