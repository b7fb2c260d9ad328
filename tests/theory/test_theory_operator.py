"""The operators against loops over the paper's definitions, and the properties on which the certificates rest."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from slow_theory import (
    Tiny,
    slow_expected_max,
    slow_t2,
    slow_t_mcb,
    slow_t_mcb_hat,
    tiny_problems,
)

from mildly.theory import (
    MCB,
    BatchOptimal,
    PolicyBackup,
    PracticalMCB,
    expected_max,
    greedy_policy,
    grid_mdp,
    random_policy,
    random_problem,
    random_support,
    support_of,
    t1,
    t2,
)


def operators(tiny: Tiny) -> list:
    mdp, support = tiny.mdp, tiny.support
    return [
        MCB(mdp, support, tiny.delta),
        PracticalMCB(mdp, support, tiny.mu_hat, tiny.n),
        BatchOptimal(mdp, support),
        PolicyBackup(mdp, tiny.mu),
    ]


@given(tiny_problems())
def test_mcb_operator_agrees_with_loops_over_the_definition(tiny):
    q = tiny.q()
    np.testing.assert_allclose(t2(tiny.mdp, q, tiny.support), slow_t2(tiny.mdp, tiny.mu, q), atol=1e-12)
    np.testing.assert_allclose(
        MCB(tiny.mdp, tiny.support, tiny.delta)(q), slow_t_mcb(tiny.mdp, tiny.mu, q, tiny.delta), atol=1e-12
    )


@given(tiny_problems())
def test_practical_operator_agrees_with_loops_over_all_draws(tiny):
    q = tiny.q()
    practical = PracticalMCB(tiny.mdp, tiny.support, tiny.mu_hat, tiny.n)
    np.testing.assert_allclose(practical(q), slow_t_mcb_hat(tiny.mdp, tiny.mu, tiny.mu_hat, tiny.n, q), atol=1e-12)


def test_operators_of_a_sparse_process_agree_with_loops():
    mdp = grid_mdp(3, 2)
    mu = random_policy(random_support(mdp.shape, seed=1), seed=2)
    q = np.random.default_rng(0).normal(size=mdp.shape)
    np.testing.assert_allclose(MCB(mdp, support_of(mu), 0.1)(q), slow_t_mcb(mdp, mu, q, 0.1), atol=1e-12)


@given(tiny_problems(), st.floats(-1e6, 1e6))
def test_what_t2_says_outside_the_support_never_reaches_t_mcb(tiny, anything):
    q = tiny.q()
    other = np.where(tiny.support, t2(tiny.mdp, q, tiny.support), anything)
    assert np.array_equal(t1(other, tiny.support, tiny.delta), MCB(tiny.mdp, tiny.support, tiny.delta)(q))


@given(tiny_problems(), st.floats(-20, 20))
def test_operators_carry_a_constant_to_gamma_times_it(tiny, constant):
    q = tiny.q()
    for operator in operators(tiny):
        np.testing.assert_allclose(operator(q + constant), operator(q) + tiny.mdp.gamma * constant, atol=1e-11)


@given(tiny_problems())
def test_operators_are_monotone(tiny):
    q = tiny.q()
    higher = q + tiny.rng.exponential(size=q.shape)
    for operator in operators(tiny):
        assert (operator(higher) >= operator(q) - 1e-12).all()


@given(tiny_problems(), st.sampled_from([-5.0, -0.1, 0.0, 0.1, 5.0]))
def test_every_operator_contracts_by_gamma_over_all_states_and_actions(tiny, delta):
    q1, q2 = tiny.q(), tiny.q()
    allowed = float(tiny.mdp.gamma) * np.abs(q1 - q2).max() + 1e-12
    for operator in [*operators(tiny), MCB(tiny.mdp, tiny.support, delta)]:
        assert np.abs(operator(q1) - operator(q2)).max() <= allowed


def test_a_batch_is_its_processes_one_by_one():
    problem = random_problem(5, states=4, actions=3, seed=7)
    mdp, support = problem.mdp, problem.mu > 0
    q = np.random.default_rng(0).normal(size=mdp.shape)
    whole = MCB(mdp, support, problem.delta)
    practical = PracticalMCB(mdp, support, problem.mu_hat, problem.n)
    for i in range(5):
        index = np.array([i])
        assert np.array_equal(whole(q)[i], whole.select(index)(q[index])[0])
        assert np.array_equal(practical(q)[i], practical.select(index)(q[index])[0])


@given(tiny_problems())
def test_expected_maximum_agrees_with_all_tuples_of_draws(tiny):
    q = tiny.q()
    exact = expected_max(q, tiny.mu_hat, tiny.n)
    for s in range(tiny.mdp.states):
        assert exact[s] == pytest.approx(slow_expected_max(q[s], tiny.mu_hat[s], tiny.n), abs=1e-12)


@given(tiny_problems())
def test_expected_maximum_grows_with_n_from_the_mean_to_the_best_action_drawn(tiny):
    q = tiny.q()
    found = [expected_max(q, tiny.mu_hat, n) for n in (1, 2, 5, 20, 10**7)]
    np.testing.assert_allclose(found[0], (tiny.mu_hat * q).sum(axis=-1), atol=1e-12)
    assert all((later >= earlier - 1e-12).all() for earlier, later in pairwise(found))
    likely = np.where(tiny.mu_hat > 1e-4, q, -np.inf).max(axis=-1)
    assert (found[-1] >= likely - 1e-9).all()
    assert (found[-1] <= np.where(tiny.mu_hat > 0, q, -np.inf).max(axis=-1) + 1e-12).all()


def test_expected_maximum_by_hand_and_never_of_an_action_without_probability():
    q, weights = np.array([[3.0, 1.0, 1e9]]), np.array([[0.25, 0.75, 0.0]])
    assert expected_max(q, weights, 2)[0] == pytest.approx(3 * (1 - 0.75**2) + 1 * 0.75**2, abs=1e-6)
    assert expected_max(q, np.array([[0.0, 1.0, 0.0]]), 10)[0] == 1.0


def test_greedy_policy_breaks_ties_as_it_says():
    q = np.array([[1.0, 3.0, 3.0, 3.0], [5.0, 1.0, 1.0, 5.0 - 1e-12]])
    support = np.array([[True, False, True, False], [False, True, True, True]])
    assert greedy_policy(q).argmax(axis=-1).tolist() == [1, 0]
    assert greedy_policy(q, support, ties="support").argmax(axis=-1).tolist() == [2, 0]
    assert greedy_policy(q, support, ties="outside").argmax(axis=-1).tolist() == [1, 0]
    assert greedy_policy(q, support, ties="support", within=1e-9).argmax(axis=-1).tolist() == [2, 3]
    assert greedy_policy(q).sum() == 2
