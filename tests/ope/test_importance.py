"""Importance weights against tabular truth: small processes whose every episode is enumerated."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from tabular import GAMMA, HORIZON, MU, PI, PROCESS, enumerated, exact_q, exact_v

from mildly.ope.importance import Paths, Weights, discounts, doubly_robust, weighted_return

WRONG_MU = np.array([[0.9, 0.1], [0.2, 0.8]])


def ratios(table, mu):
    return np.where(table.paths.there, np.log(PI[table.states, table.actions] / mu[table.states, table.actions]), 0.0)


def no_clip(table, mu):
    return Weights.of(table.paths, ratios(table, mu), 1e12)


def test_weighted_importance_is_exact_when_every_episode_counts_as_often_as_it_happens():
    """So its numerator is unbiased, and the expected weight of every step is 1."""
    table = enumerated(MU)
    found = weighted_return(table.paths, no_clip(table, MU), table.rewards, GAMMA, table.chances[None])
    assert found[0] == pytest.approx(exact_v(PI)[PROCESS.start], abs=1e-12)
    weights = np.exp(np.cumsum(ratios(table, MU), axis=1))
    assert table.chances @ weights == pytest.approx(np.ones(HORIZON), abs=1e-12)


def test_a_wrong_density_of_the_data_spoils_importance_sampling():
    table = enumerated(MU)
    found = weighted_return(table.paths, no_clip(table, WRONG_MU), table.rewards, GAMMA, table.chances[None])
    assert abs(found[0] - exact_v(PI)[PROCESS.start]) > 0.05


@pytest.mark.parametrize(("mu", "off"), [(MU, 0.0), (MU, 3.0), (WRONG_MU, 0.0)])
def test_doubly_robust_is_exact_if_either_of_its_two_models_is_right(mu, off):
    table = enumerated(MU)
    found = doubly_robust(no_clip(table, mu), *errors(table, off), GAMMA, table.chances[None])
    assert found[0] == pytest.approx(exact_v(PI)[PROCESS.start], abs=1e-10)


def test_doubly_robust_errs_if_both_models_are_wrong():
    table = enumerated(MU)
    found = doubly_robust(no_clip(table, WRONG_MU), *errors(table, 3.0), GAMMA, table.chances[None])
    assert abs(found[0] - exact_v(PI)[PROCESS.start]) > 0.05


def errors(table, off):
    """Of values that are wrong by `off` in one place, with a horizon: the values depend on the step."""
    q = [exact_q(PI, steps) + off * np.array([[1.0, -0.5], [0.3, 0.8]]) for steps in range(HORIZON, 0, -1)]
    v = [(PI * at).sum(axis=1) for at in q] + [np.zeros(2)]
    found = np.zeros(table.rewards.shape)
    for i, t in product(range(len(found)), range(HORIZON)):
        state, action, following = table.states[i, t], table.actions[i, t], table.following[i, t]
        found[i, t] = table.rewards[i, t] + GAMMA * v[t + 1][following] - q[t][state, action]
    return found, np.full(len(found), v[0][PROCESS.start])


def test_episodes_that_terminate_keep_their_weight_and_those_that_are_cut_off_leave():
    """By hand: three episodes of which the first ends after a step and the second is cut off after one."""
    there = np.array([[True, False], [True, False], [True, True]])
    paths = Paths(np.zeros((3, 2), np.int64), there, np.array([True, False, True]))
    log_ratios = np.log([[2.0, 1.0], [1.0, 1.0], [1.0, 3.0]])
    weights = Weights.of(paths, log_ratios, 10.0)
    assert weights.values == pytest.approx(np.array([[1, 2 / 3], [0.5, 0], [0.5, 1]]))
    rewards = np.array([[4.0, 0], [2.0, 0], [1.0, 5.0]])
    found = weighted_return(paths, weights, rewards, 0.5, np.ones((1, 3)))
    first = (2 * 4 + 1 * 2 + 1 * 1) / 4
    assert found[0] == pytest.approx(first + 0.5 * (3 * 5) / (2 + 3))


def test_what_comes_behind_a_time_limit_goes_on_as_before():
    """A constant reward of 1 under a limit of five steps is worth 1 / (1 - gamma), as without a limit."""
    paths = Paths(np.zeros((4, 5), np.int64), np.ones((4, 5), bool), np.zeros(4, bool))
    weights = Weights.of(paths, np.zeros((4, 5)), 10.0)
    found = weighted_return(paths, weights, np.ones((4, 5)), 0.9, np.ones((1, 4)))
    assert found[0] == pytest.approx(10.0)


def test_clipped_ratios_are_counted_and_held():
    paths = Paths(np.zeros((2, 1), np.int64), np.ones((2, 1), bool), np.ones(2, bool))
    weights = Weights.of(paths, np.log([[100.0], [1.0]]), 5.0)
    assert weights.values[:, 0] == pytest.approx([1.0, 0.2])
    assert weights.clipped == 0.5


def test_effective_size_and_top_share_by_hand():
    paths = Paths(np.zeros((4, 1), np.int64), np.ones((4, 1), bool), np.ones(4, bool))
    equal, single = (Weights.of(paths, np.log(np.array(w)[:, None]), 1e9) for w in ([1, 1, 1, 1], [1e6, 1, 1, 1]))
    assert equal.effective(0.9) == pytest.approx(4.0)
    assert equal.top_share(0.9) == pytest.approx(0.25)
    assert single.effective(0.9) == pytest.approx(1.0, abs=1e-4)
    assert single.top_share(0.9) == pytest.approx(1.0, abs=1e-4)
    assert discounts(0.5, 3) == pytest.approx([1, 0.5, 0.25])


def test_an_action_that_the_policy_never_takes_has_no_weight():
    paths = Paths(np.zeros((2, 2), np.int64), np.ones((2, 2), bool), np.ones(2, bool))
    with np.errstate(divide="ignore"):
        weights = Weights.of(paths, np.log([[0.0, 1.0], [1.0, 1.0]]), 10.0)
    assert weights.values == pytest.approx(np.array([[0, 0], [1, 1]]))
