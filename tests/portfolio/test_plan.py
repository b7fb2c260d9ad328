"""Plans of `mildly solve`: rungs and costs by hand, and budgets that are kept."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from mildly.algorithms.config import preset_fields
from mildly.algorithms.mcq import MCQ
from mildly.portfolio.plan import (
    LEARNERS,
    LEAST,
    MOST,
    PHASES,
    Costs,
    Pace,
    Rung,
    StepPlan,
    halves,
    makespan,
    plan_within,
    seconds_of,
    survivors,
)


def test_each_rung_has_half_the_candidates_and_twice_the_steps():
    plan = StepPlan.of(8_000)
    assert plan.rungs == (Rung(5, 2_000), Rung(3, 4_000), Rung(2, 8_000))
    assert (plan.fit_steps, plan.density_steps, plan.warm_up) == (4_000, 1_200, 800)


def test_fits_and_the_warm_up_have_no_more_steps_than_they_need():
    plan = StepPlan.of(200_000)
    assert (plan.fit_steps, plan.density_steps, plan.warm_up) == (10_000, 3_000, 5_000)


def test_a_long_plan_has_the_phases_of_mcq_s_default():
    default = preset_fields(MCQ, "default")
    warm_up = StepPlan.of(MOST).warm_up
    assert {phase: steps * warm_up for phase, (steps, _) in PHASES.items()} == {name: default[name] for name in PHASES}


def test_fits_are_long_enough_where_training_is_short():
    plan = StepPlan.of(1_500)
    assert (plan.fit_steps, plan.density_steps, plan.warm_up) == (3_000, 900, 150)


def test_the_smallest_plan_still_has_a_step_of_everything():
    plan = StepPlan.of(1)
    assert [rung.steps for rung in plan.rungs] == [1, 1, 1]
    assert (plan.fit_steps, plan.density_steps, plan.warm_up) == (3, 1, 0)


@pytest.mark.parametrize(("candidates", "sizes"), [(2, [2]), (3, [3, 2]), (5, [5, 3, 2]), (9, [9, 5, 3, 2])])
def test_halving_ends_with_the_finalists(candidates, sizes):
    assert halves(candidates) == sizes


def test_no_steps_are_refused(refused):
    refused(lambda: StepPlan.of(0), "steps must be at least 1")


def test_a_plan_is_read_back_and_one_that_was_changed_is_refused():
    plan = StepPlan.of(8_000)
    assert StepPlan.from_json(plan.to_json()) == plan
    with pytest.raises(ValueError, match="not one that follows"):
        StepPlan.from_json({**plan.to_json(), "fit_steps": 7})


def test_the_best_survive_and_what_is_no_number_does_not():
    assert survivors({"a": 1.0, "b": math.nan, "c": 3.0, "d": 1.0}, 2) == ["c", "a"]
    assert survivors({"a": math.nan, "b": -2.0}, 2) == ["b"]


def test_jobs_are_begun_by_the_first_worker_that_is_free():
    assert makespan([5.0, 4.0, 3.0, 1.0], 1) == 13.0
    assert makespan([5.0, 4.0, 3.0, 1.0], 2) == 7.0  # 5 + 1, 4 + 3
    assert makespan([5.0], 3) == 5.0


COSTS = Costs(
    train=dict(
        zip(LEARNERS, [Pace(1, 0.001), Pace(1, 0.001), Pace(1, 0.003), Pace(1, 0.002), Pace(1, 0.010)], strict=True)
    ),
    fit=Pace(2, 0.004),
    choose=Pace(10, 0.05),
)


def test_the_seconds_of_a_plan_are_those_by_hand():
    """Rungs to 1000, 2000 and 4000 steps, fits of 3000; the fifth has 400 steps of warm-up, and before it 1600 of
    its behavior model and 3200 of cloning."""
    first = 5 + 1 + 1 + 3 + 2 + (10 + 4 + 1600 * 0.003 + 3200 * 0.0015) + 5 * (2 + 12)
    second = 3 + 3 + 2 + 10 + 3 * (2 + 12)
    last = 2 + 6 + 20
    assert seconds_of(StepPlan.of(4_000), COSTS) == pytest.approx(first + second + last + 10 + 150)


def test_two_workers_train_side_by_side_and_fits_stay_in_one_process():
    """Of the first rung: 24.6 beside 4 + 3 + 2 + 2; of the second: 11 beside 4 + 3; of the last: 21 beside 7."""
    trained = 24.6 + 11 + 21
    assert seconds_of(StepPlan.of(4_000), COSTS, workers=2) == pytest.approx(trained + 8 * 14 + 160)


seconds = st.floats(1e-4, 1.0)
paces = st.builds(Pace, st.floats(0, 20), seconds)
some_costs = st.builds(Costs, train=st.fixed_dictionaries(dict.fromkeys(LEARNERS, paces)), fit=paces, choose=paces)


@given(costs=some_costs, budget=st.floats(1, 1e5), workers=st.integers(1, 6))
def test_a_plan_is_never_beyond_its_budget(costs, budget, workers):
    plan = plan_within(budget, costs, workers)
    if plan is None:
        assert seconds_of(StepPlan.of(LEAST), costs, workers) > budget
    else:
        assert LEAST <= plan.rungs[-1].steps <= MOST
        assert seconds_of(plan, costs, workers) <= budget


@given(costs=some_costs, budget=st.floats(1, 1e5))
def test_a_plan_leaves_no_more_of_its_budget_than_rounding_does(costs, budget):
    plan = plan_within(budget, costs)
    if plan is not None and plan.rungs[-1].steps < MOST:
        assert seconds_of(StepPlan.of(math.ceil(1.11 * plan.rungs[-1].steps)), costs) > budget


@given(costs=some_costs, steps=st.integers(1, MOST))
def test_more_workers_are_never_slower(costs, steps):
    plan = StepPlan.of(steps)
    assert seconds_of(plan, costs, workers=5) <= seconds_of(plan, costs, workers=1) + 1e-6
