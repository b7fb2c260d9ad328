"""The propositions: what is corrected holds everywhere, what is printed where we say so, and verdicts can fail."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from hypothesis import assume, given, settings, strategies as st
from slow_theory import slow_batch_optimal, slow_value, tiny_problems

from mildly.theory import (
    MCB,
    BatchOptimal,
    Problem,
    TabularMDP,
    check,
    check_random,
    fixed_point,
    greedy_policy,
    grid_mdp,
    leaking_policy,
    mcb_fixed_point,
    policy_value,
    proposition_1,
    proposition_2,
    proposition_3,
    proposition_4,
    proposition_5,
    random_policy,
    random_problem,
    random_support,
    sparse_mdp,
    support_max,
    tilted_policy,
)
from mildly.theory.verdict import claim

TRUE_AS_PRINTED = {"convergence", "at least Q_mu", "at most Q_mu*", "MCB's policy"}


def as_problem(tiny) -> Problem:
    policy = tilted_policy(tiny.mu, tiny.q(1.0), 0.3)
    return Problem(tiny.mdp, tiny.mu, tiny.mu_hat, policy, np.asarray(tiny.delta), np.asarray(float(tiny.n)))


@settings(max_examples=60)
@given(tiny_problems(states=5, actions=5))
def test_corrected_statements_hold_for_every_problem(tiny):
    for verdict in check(as_problem(tiny)):
        assert verdict.as_corrected, verdict.to_json()
        for each in verdict.claims:
            if each.kind == "printed" and each.part in TRUE_AS_PRINTED:
                assert each.holds, (verdict.number, each.text, each.worst, each.where)


@settings(max_examples=20)
@given(tiny_problems(states=3, actions=3, gamma=0.9))
def test_mcb_fixed_point_is_the_brute_force_optimum_on_the_support_for_any_delta(tiny):
    best = slow_batch_optimal(tiny.mdp, tiny.mu)
    q = mcb_fixed_point(tiny.mdp, tiny.support, tiny.delta, tolerance=1e-10).q
    np.testing.assert_allclose(q[tiny.support], best[tiny.support], atol=1e-9)
    outside = np.broadcast_to(support_max(best, tiny.support)[:, None] - tiny.delta, q.shape)
    np.testing.assert_allclose(q[~tiny.support], outside[~tiny.support], atol=1e-9)


@given(tiny_problems(gamma=0.95))
def test_mcb_policy_stays_in_the_support_and_is_nowhere_below_mu(tiny):
    q = mcb_fixed_point(tiny.mdp, tiny.support, tiny.delta, tolerance=1e-10).q
    policy = greedy_policy(q, tiny.support, ties="outside")
    assert (policy[~tiny.support] == 0).all()
    assert (slow_value(tiny.mdp, policy) >= slow_value(tiny.mdp, tiny.mu) - 1e-8).all()


@given(tiny_problems(gamma=0.95), st.floats(-10, -0.01))
def test_negative_delta_lifts_the_support_by_gamma_delta_over_one_minus_gamma(tiny, delta):
    assume(not tiny.support.all(axis=-1).any())  # it takes an unseen action in every state
    gamma = float(tiny.mdp.gamma)
    q = fixed_point(MCB(tiny.mdp, tiny.support, delta), tolerance=1e-9, extrapolate=True).q
    best = fixed_point(BatchOptimal(tiny.mdp, tiny.support), tolerance=1e-9, extrapolate=True).q
    np.testing.assert_allclose(q[tiny.support], best[tiny.support] + gamma * -delta / (1 - gamma), atol=1e-7)


def test_printed_statements_fail_where_we_say_they_do():
    verdicts = {verdict.number: verdict for verdict in check(random_problem(200, states=8, actions=5, seed=5))}
    assert [number for number, verdict in verdicts.items() if verdict.as_printed] == [2]
    failures = {(v.number, c.part) for v in verdicts.values() for c in v.claims if c.kind == "printed" and not c.holds}
    assert failures - {(5, "one target, at the fixed point")} == {
        (1, "contraction"),
        (3, "policy constraint"),
        (4, "contraction"),
        (5, "one target, any Q"),
    }


def test_a_contraction_of_gamma_zero_has_no_counterexample():
    problem = random_problem(20, states=5, actions=4, seed=2)
    mdp = TabularMDP(problem.mdp.transitions, problem.mdp.rewards, 0.0)
    assert proposition_1(mdp, problem.mu).as_printed


def test_printed_bound_on_a_target_always_holds_for_one_draw():
    problem = random_problem(100, states=6, actions=4, seed=3)
    assert proposition_5(problem.mdp, problem.mu, problem.mu_hat, n=1).as_printed
    assert not proposition_5(problem.mdp, problem.mu, problem.mu_hat, n=2).as_printed


def test_a_claim_that_is_false_is_reported_with_its_size_and_place():
    problem = random_problem(3, states=4, actions=2)
    margins = np.ones(problem.mdp.shape)
    margins[2, 3, 1] = -0.5
    found = claim("part", "corrected", "text", margins, problem.mdp, np.asarray(1e-9))
    assert (found.holds, found.failures, found.tried, found.worst) == (False, 1, 3, -0.5)
    assert found.where == "MDP 2, state 3, action 1"
    assert claim("part", "corrected", "text", margins, problem.mdp, np.asarray(0.6)).holds
    halves = claim("part", "corrected", "text", margins, problem.mdp, np.asarray(1e-9), unit=np.full(3, 2.0))
    assert halves.worst == -0.25
    nothing = claim("part", "printed", "text", margins, problem.mdp, np.asarray(0.0), applies=np.zeros(3, bool))
    assert (nothing.tried, nothing.holds, nothing.where) == (0, True, "nowhere")


def test_a_wrong_operator_would_be_caught(monkeypatch):
    problem = random_problem(30, states=5, actions=4, seed=1)
    monkeypatch.setattr(MCB, "__call__", lambda self, q: self.mdp.backup(q.max(axis=-1)))  # no T1: plain Q-learning
    verdict = proposition_2(problem.mdp, problem.mu)
    assert not verdict.as_corrected
    assert not verdict.as_printed


def test_one_process_gives_the_verdict_of_its_place_in_a_batch():
    problem = random_problem(4, states=5, actions=3, seed=9)
    whole = proposition_2(problem.mdp, problem.mu, delta=problem.delta)
    one = problem.mdp.select(np.array([2]))
    single = TabularMDP(one.transitions.probabilities[0], one.rewards[0], one.gamma[0])
    alone = proposition_2(single, problem.mu[2], delta=problem.delta[2])
    for a, b in zip(alone.claims, whole.claims, strict=True):
        assert a.margins[0] == pytest.approx(b.margins[2], abs=1e-9)


def test_all_propositions_take_a_sparse_process():
    mdp = grid_mdp(4, 4)
    mu = random_policy(random_support(mdp.shape))
    mu_hat = leaking_policy(mu, 0.2)
    verdicts = [
        proposition_1(mdp, mu),
        proposition_2(mdp, mu),
        proposition_3(mdp, mu),
        proposition_4(mdp, mu, mu_hat),
        proposition_5(mdp, mu, mu_hat),
    ]
    assert all(verdict.as_corrected for verdict in verdicts)


def test_the_same_seed_gives_the_same_verdicts_in_any_number_of_batches(monkeypatch):
    again = [json.dumps([v.to_json() for v in check_random(30, states=4, actions=3, seed=4)]) for _ in range(2)]
    assert again[0] == again[1]
    assert again[0] != json.dumps([v.to_json() for v in check_random(30, states=4, actions=3, seed=5)])
    monkeypatch.setattr("mildly.theory.problems.BATCH", 8)
    assert [c.tried for v in check_random(30, states=4, actions=3) for c in v.claims if c.part == "contraction"] == [
        30
    ] * 4


def test_a_thousand_processes_are_checked_within_thirty_seconds_of_one_core():
    began = time.process_time()
    verdicts = check_random(1000, states=20, actions=10)
    assert time.process_time() - began < 30
    assert all(verdict.as_corrected for verdict in verdicts)
    assert {c.tried for v in verdicts for c in v.claims if c.part != "policy constraint, D >= 0"} == {1000}


def test_ten_thousand_sparse_states_are_solved_to_a_certified_1e_8():
    mdp = sparse_mdp(10_000, 20, successors=5, gamma=0.95)
    support = random_support(mdp.shape)
    began = time.process_time()
    found = mcb_fixed_point(mdp, support, 1e-3, tolerance=1e-8)
    assert time.process_time() - began < 30
    assert found.error <= 1e-8
    # An independent word: the greedy policy inside the support, evaluated on its own, reaches these values.
    policy = greedy_policy(found.q, support, ties="outside")
    assert (policy[~support] == 0).all()
    np.testing.assert_allclose(policy_value(mdp, policy), support_max(found.q, support), atol=1e-6)


def test_plain_iteration_alone_solves_ten_thousand_sparse_states():
    mdp = sparse_mdp(10_000, 20, successors=5, gamma=0.95)
    support = random_support(mdp.shape)
    plain = fixed_point(MCB(mdp, support, 1e-3), tolerance=1e-8)
    quick = mcb_fixed_point(mdp, support, 1e-3, tolerance=1e-8)
    assert plain.error <= 1e-8
    assert plain.iterations > 5 * quick.iterations
    assert np.abs(plain.q - quick.q).max() <= 2e-8
