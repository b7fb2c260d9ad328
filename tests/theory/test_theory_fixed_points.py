"""Fixed points: the certificate is true, whatever the start; values agree with brute force; limits are stated."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from slow_theory import slow_batch_optimal, slow_value, tiny_problems

from mildly.errors import MildlyError
from mildly.theory import (
    MCB,
    BatchOptimal,
    DenseTransitions,
    PracticalMCB,
    TabularMDP,
    applications_needed,
    batch_optimal_q,
    chain_mdp,
    expected_return,
    fixed_point,
    grid_mdp,
    mcb_fixed_point,
    one_hot,
    policy_q,
    policy_value,
    practical_fixed_point,
    random_policy,
    random_problem,
    random_support,
    support_max,
    uniform_policy,
)


def dense_twin(mdp: TabularMDP) -> TabularMDP:
    """A sparse process as a dense one."""
    table = np.zeros((*mdp.shape, mdp.states))
    s, a = np.indices(mdp.shape)
    sparse = mdp.transitions
    for k in range(sparse.terms):
        np.add.at(table, (s, a, sparse.successors[..., k]), sparse.probabilities[..., k])
    return TabularMDP(DenseTransitions(table), mdp.rewards, mdp.gamma, mdp.initial)


@settings(max_examples=20)
@given(tiny_problems(states=3, actions=3, gamma=0.95))
def test_batch_optimum_is_the_best_of_all_policies_inside_the_support(tiny):
    slow = slow_batch_optimal(tiny.mdp, tiny.mu)
    np.testing.assert_allclose(batch_optimal_q(tiny.mdp, tiny.support), slow, atol=1e-9)
    np.testing.assert_allclose(fixed_point(BatchOptimal(tiny.mdp, tiny.support)).q, slow, atol=1e-7)


@given(tiny_problems(gamma=0.95))
def test_policy_value_is_the_sum_of_discounted_rewards(tiny):
    np.testing.assert_allclose(policy_value(tiny.mdp, tiny.mu), slow_value(tiny.mdp, tiny.mu), atol=1e-9)
    mean = float((tiny.mdp.initial * slow_value(tiny.mdp, tiny.mu)).sum())
    assert expected_return(tiny.mdp, tiny.mu) == pytest.approx(mean, abs=1e-9)


@settings(max_examples=25)
@given(tiny_problems(states=3, actions=3, gamma=0.9), st.booleans(), st.sampled_from([1e-2, 1e-5, 1e-9]))
def test_the_certified_error_is_never_below_the_true_one(tiny, extrapolate, tolerance):
    best = slow_batch_optimal(tiny.mdp, tiny.mu)
    true = np.where(tiny.support, best, support_max(best, tiny.support)[:, None] - tiny.delta)
    found = fixed_point(
        MCB(tiny.mdp, tiny.support, tiny.delta), start=tiny.q(), tolerance=tolerance, extrapolate=extrapolate
    )
    assert np.abs(found.q - true).max() <= found.error + 1e-12
    assert found.error <= tolerance


def test_the_certificate_is_banachs_bound_on_the_last_change():
    problem = random_problem(1, states=4, actions=3, seed=3)
    mdp, support = problem.mdp.select(np.array([0])), problem.mu > 0
    mdp = TabularMDP(mdp.transitions, mdp.rewards, 0.9)
    operator = MCB(mdp, support, 0.1)
    found = fixed_point(operator, tolerance=1e-6)
    q = np.zeros(mdp.shape)
    for _ in range(found.iterations):
        before, q = q, operator(q)
    assert np.array_equal(q, found.q)
    assert found.error[0] == pytest.approx(0.9 / 0.1 * np.abs(q - before).max(), rel=1e-4)


@given(tiny_problems(gamma=0.95), st.floats(-1e3, 1e3))
def test_any_start_leads_to_the_same_fixed_point(tiny, level):
    operator = PracticalMCB(tiny.mdp, tiny.support, tiny.mu_hat, tiny.n)
    one = fixed_point(operator, start=tiny.q() + level, tolerance=1e-7)
    two = practical_fixed_point(tiny.mdp, tiny.support, tiny.mu_hat, tiny.n, tolerance=1e-7)
    assert np.abs(one.q - two.q).max() <= float(one.error + two.error)


def test_a_batch_with_different_discounts_is_solved_like_each_alone():
    problem = random_problem(12, states=5, actions=3, seed=1)
    together = mcb_fixed_point(problem.mdp, problem.mu > 0, problem.delta, tolerance=1e-9)
    assert (together.error <= 1e-9).all()
    for i in range(12):
        index = np.array([i])
        alone = mcb_fixed_point(problem.mdp.select(index), problem.mu[index] > 0, problem.delta[index], tolerance=1e-9)
        np.testing.assert_allclose(alone.q[0], together.q[i], atol=2e-9)


@pytest.mark.parametrize("rows", [1, 4])
def test_sparse_and_dense_processes_have_the_same_values(rows):
    sparse = grid_mdp(rows, 3)
    dense = dense_twin(sparse)
    support = random_support(sparse.shape, seed=4)
    mu = random_policy(support, seed=5)
    np.testing.assert_allclose(policy_value(sparse, mu), policy_value(dense, mu), atol=1e-7)
    np.testing.assert_allclose(policy_q(sparse, mu), policy_q(dense, mu), atol=1e-7)
    np.testing.assert_allclose(batch_optimal_q(sparse, support), batch_optimal_q(dense, support), atol=1e-7)
    gain = np.random.default_rng(0).normal(size=sparse.states)
    np.testing.assert_allclose(policy_value(sparse, mu, gain), policy_value(dense, mu, gain), atol=1e-7)


def test_chain_pays_for_going_right_as_computed_by_hand():
    mdp = chain_mdp(2, slip=0.0, gamma=0.5)  # right: 0.1 now, then 1 for ever; left: 0.1 for ever
    right, left = one_hot([1, 1], 2), one_hot([0, 0], 2)
    assert policy_value(mdp, right).tolist() == pytest.approx([0.1 + 0.5 * 2, 2.0])
    assert policy_value(mdp, left).tolist() == pytest.approx([0.2, 1.0 + 0.5 * 0.2])
    assert expected_return(mdp, uniform_policy(np.ones((2, 2), bool))) == pytest.approx(
        slow_value(mdp, (left + right) / 2)[0]
    )


@given(st.floats(0.01, 0.98), st.floats(1e-3, 1e3), st.floats(1e-9, 1e-1))
def test_applications_needed_are_enough_and_not_one_too_many(gamma, distance, tolerance):
    k = applications_needed(gamma, distance, tolerance)
    assert gamma**k / (1 - gamma) * distance <= tolerance * (1 + 1e-9)
    assert k == 1 or gamma ** (k - 1) / (1 - gamma) * distance > tolerance * (1 - 1e-9)


def test_a_tolerance_below_double_precision_is_refused():
    problem = random_problem(3, states=4, actions=3)
    with pytest.raises(MildlyError, match=r"too fine.*double precision certifies about"):
        mcb_fixed_point(problem.mdp, problem.mu > 0, tolerance=1e-18)


@pytest.mark.parametrize("count", [1, 3])
def test_too_few_applications_are_an_error_that_says_how_far_they_came(count):
    problem = random_problem(count, states=4, actions=3)
    mdp = TabularMDP(problem.mdp.transitions, problem.mdp.rewards, 0.99)
    with pytest.raises(MildlyError, match=r"leave an error of up to .*max_iterations"):
        fixed_point(MCB(mdp, problem.mu > 0, 0.1), max_iterations=20)


def test_a_start_far_away_is_no_reason_to_give_up():
    mdp = chain_mdp(4, gamma=0.5)
    support = np.ones(mdp.shape, bool)
    found = fixed_point(MCB(mdp, support, 0.1), start=np.full(mdp.shape, 1e12), tolerance=1e-9)
    np.testing.assert_allclose(found.q, batch_optimal_q(mdp, support), atol=2e-9)
