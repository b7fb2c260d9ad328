"""Bad input: the message names the entry."""

from __future__ import annotations

import numpy as np
import pytest

from mildly.errors import MildlyError
from mildly.theory import (
    MCB,
    PracticalMCB,
    SparseTransitions,
    TabularMDP,
    chain_mdp,
    expected_return,
    fixed_point,
    greedy_policy,
    grid_mdp,
    proposition_2,
    proposition_3,
    proposition_5,
    random_mdp,
    support_of,
    uniform_policy,
)

P = np.full((3, 2, 3), 1 / 3)
R = np.zeros((3, 2))
MDP = TabularMDP(P, R, 0.9)
ALL = np.ones((3, 2), bool)


def changed(array, at, value):
    copy = np.array(array, dtype=float)
    copy[at] = value
    return copy


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: TabularMDP(changed(P, (2, 1, 0), 0.5), R, 0.9), r"transitions: .*state 2, action 1 sum to 1\.16"),
        (lambda: TabularMDP(changed(P, (1, 0, 2), -0.1), R, 0.9), "state 1, action 0, next state 2 has .* -0.1"),
        (lambda: TabularMDP(changed(P, (1, 0, 2), np.nan), R, 0.9), r"transitions: entry \[1, 0, 2\] is nan"),
        (lambda: TabularMDP(np.stack([P, changed(P, (0, 0), 0.0)]), np.stack([R, R]), 0.9), "MDP 1, state 0, action 0"),
        (lambda: TabularMDP(P[:2], R, 0.9), r"transitions: shape \(2, 2, 3\)"),
        (lambda: TabularMDP("nonsense", R, 0.9), "transitions: not an array of numbers"),
        (lambda: TabularMDP(P, R[:2], 0.9), r"rewards: shape \(2, 2\) .* \(3, 2\)"),
        (lambda: TabularMDP(P, changed(R, (2, 0), np.inf), 0.9), r"rewards: entry \[2, 0\] is inf"),
        (lambda: TabularMDP(P, R, 1.0), r"gamma is 1; it must be in \[0, 1\)"),
        (lambda: TabularMDP(P, R, -0.1), "gamma is -0.1"),
        (lambda: TabularMDP(P, R, float("nan")), "gamma: .* nan"),
        (lambda: TabularMDP(np.stack([P, P]), np.stack([R, R]), [0.5, 1.5]), "gamma of MDP 1 is 1.5"),
        (lambda: TabularMDP(P, R, [0.5, 0.5]), r"gamma: shape \(2,\)"),
        (lambda: TabularMDP(P, R, 0.9, [0.5, 0.5]), r"initial: shape \(2,\)"),
        (lambda: TabularMDP(P, R, 0.9, [0.5, 0.5, 0.5]), "initial: the probabilities sum to 1.5"),
        (lambda: SparseTransitions([[[0], [4]]] * 3, np.ones((3, 2, 1))), "state 0, action 1, successor 0 is state 4"),
        (lambda: SparseTransitions([[[0]]], np.ones((3, 2, 1))), "successors: shape"),
        (lambda: SparseTransitions([[[0.5], [0.5]]] * 3, np.ones((3, 2, 1))), "whole numbers"),
        (lambda: SparseTransitions([[[0], [0]]] * 3, np.full((3, 2, 1), 0.9)), "state 0, action 0 sum to 0.9"),
    ],
)
def test_a_process_that_is_none_is_refused_by_the_entry(build, message):
    with pytest.raises(MildlyError, match=message):
        build()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: support_of([[0.5, 0.5], [0.0, 0.0]]), "support: state 1 has no action"),
        (lambda: uniform_policy(np.zeros((2, 2, 2), bool)), "support: MDP 0, state 0 has no action"),
        (lambda: MCB(MDP, changed(ALL, 1, 0).astype(bool)), "support: state 1 has no action"),
        (lambda: MCB(MDP, ALL[:2]), r"support: shape \(2, 2\)"),
        (lambda: MCB(MDP, np.ones((3, 2))), "support: must be true and false, not float64"),
        (lambda: MCB(MDP, ALL, np.nan), "delta is nan"),
        (lambda: MCB(MDP, ALL, [1.0, 2.0]), r"delta: shape \(2,\)"),
        (lambda: PracticalMCB(MDP, ALL, np.full((3, 2), 0.4)), "mu_hat: the probabilities of state 0 sum to 0.8"),
        (
            lambda: PracticalMCB(MDP, ALL, np.full((3, 2), 0.5), 0),
            "n must be a whole number of draws, at least 1; got 0",
        ),
        (lambda: PracticalMCB(MDP, ALL, np.full((3, 2), 0.5), 1.5), "got 1.5"),
        (lambda: fixed_point(MCB(MDP, ALL), tolerance=0), "tolerance must be above 0"),
        (lambda: fixed_point(MCB(MDP, ALL), start=np.zeros((2, 2))), r"start: shape \(2, 2\)"),
        (lambda: expected_return(MDP, changed(np.full((3, 2), 0.5), (2, 1), 0.6)), "policy: .*state 2 sum to 1.1"),
        (lambda: greedy_policy(R, ties="suport"), "unknown tie rule 'suport'. Did you mean 'support'"),
        (lambda: greedy_policy(R, ties="outside"), "the tie rule 'outside' needs the support"),
        (lambda: proposition_2(MDP, np.full((3, 2), 0.5), delta=-1), "delta must be at least 0, got -1"),
        (lambda: proposition_3(MDP, np.full((3, 2), 0.5), delta=0), "delta must be above 0, got 0"),
        (lambda: proposition_3(MDP, np.full((3, 2), 0.5), [[1, 0]] * 3), "policy: state 0 has not the support of mu"),
        (lambda: proposition_5(MDP, [[1, 0]] * 3, [[0.9, 0.1], [0.4, 0.6], [1, 0]]), "mu_hat: state 1 is 0.6 from mu"),
        (lambda: random_mdp(0, 2), "states must be at least 1, got 0"),
        (lambda: random_mdp(2, 2, seed=-1), "seed must be at least 0, got -1"),
        (lambda: chain_mdp(slip=1.5), r"slip must be in \[0, 1\], got 1.5"),
        (lambda: grid_mdp(0, 2), "rows must be at least 1"),
    ],
)
def test_a_call_that_makes_no_sense_is_refused_with_the_reason(call, message):
    with pytest.raises(MildlyError, match=message):
        call()


def test_probabilities_off_by_rounding_are_accepted_and_made_exact():
    mdp = TabularMDP(P.astype(np.float32), R, 0.9)
    assert np.abs(mdp.transitions.probabilities.sum(axis=-1) - 1).max() < 1e-15


def test_every_maker_makes_what_it_says():
    batch = random_mdp(3, 2, count=4, gamma=[0.1, 0.2, 0.3, 0.4], reward_low=2, reward_high=3)
    assert batch.batch == (4,)
    assert batch.shape == (4, 3, 2)
    assert batch.rewards.min() >= 2
    assert batch.value_bound == pytest.approx(batch.rewards.max(axis=(1, 2)) / (1 - batch.gamma))
    grid = grid_mdp(2, 3, slip=0.0)
    assert (grid.states, grid.actions) == (6, 4)
    assert grid.transitions.expect(np.arange(6.0))[0].tolist() == [0, 1, 3, 0]  # up, right, down, left of square 0
    assert grid.transitions.expect(np.arange(6.0))[5].tolist() == [5, 5, 5, 5]
