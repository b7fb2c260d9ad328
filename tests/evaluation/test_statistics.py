"""Aggregates by hand, the bootstrap against all resamples there are, intervals against repeated experiments."""

import itertools
import time
import tracemalloc
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mildly.errors import MildlyError
from mildly.evaluation.statistics import (
    Estimate,
    estimate,
    interquartile_mean,
    mean,
    median,
    optimality_gap,
    performance_profile,
    probability_of_improvement,
    sample_efficiency,
)

gap = optimality_gap(100.0)
AGGREGATES = {"mean": mean, "median": median, "interquartile mean": interquartile_mean, "gap": gap}
every_aggregate = pytest.mark.parametrize("aggregate", AGGREGATES.values(), ids=AGGREGATES.keys())

# Two tasks of four runs, in columns. Sorted: 0 10 20 30 40 50 60 1000.
BY_HAND = np.array([[0.0, 40.0], [30.0, 50.0], [20.0, 60.0], [10.0, 1000.0]])

numbers = st.floats(-1000, 1000).map(lambda number: round(number, 3))
tables = st.dictionaries(st.sampled_from("abcde"), st.lists(numbers, min_size=1, max_size=5), min_size=1)


# Slow references: exact fractions, one run at a time.


def slow_mean(table):
    return sum(sum(map(Fraction, runs)) / len(runs) for runs in table.values()) / len(table)


def slow_median(table):
    means = sorted(sum(map(Fraction, runs)) / len(runs) for runs in table.values())
    return (means[(len(means) - 1) // 2] + means[len(means) // 2]) / 2


def slow_interquartile_mean(table):
    """Cut from below and then from above, run by run, until a quarter (of the runs, rounded down) is gone."""
    total = sum(map(len, table.values()))
    kept = sorted([Fraction(score), Fraction(1, len(runs) * len(table))] for runs in table.values() for score in runs)
    for end in (kept, kept[::-1]):
        to_cut = Fraction(total // 4, total)
        for run in end:
            cut = min(run[1], to_cut)
            run[1] -= cut
            to_cut -= cut
    return sum(score * weight for score, weight in kept) / sum(weight for _, weight in kept)


def slow_gap(table):
    return slow_mean(
        {task: [max(100 - Fraction(score), Fraction(0)) for score in runs] for task, runs in table.items()}
    )


SLOW = {"mean": slow_mean, "median": slow_median, "interquartile mean": slow_interquartile_mean, "gap": slow_gap}


def all_resamples(table):
    """Every table that drawing with replacement within each task can give; all are equally probable."""
    drawn = [itertools.product(runs, repeat=len(runs)) for runs in table.values()]
    return [dict(zip(table, runs, strict=True)) for runs in itertools.product(*drawn)]


def check_quantile(exact, found, probability, replications):
    """A quantile of draws, where the probabilities of all outcomes are known, within five standard errors."""
    exact = np.asarray(exact, dtype=float)
    error = 5 * np.sqrt(probability * (1 - probability) / replications)
    assert np.mean(exact < found - 1e-9) <= probability + error
    assert np.mean(exact <= found + 1e-9) >= probability - error


# Aggregates


def test_aggregates_of_a_small_table_are_those_worked_out_by_hand():
    assert mean(BY_HAND) == pytest.approx((15 + 287.5) / 2)
    assert median(BY_HAND) == pytest.approx((15 + 287.5) / 2)
    assert interquartile_mean(BY_HAND) == pytest.approx((20 + 30 + 40 + 50) / 4)
    assert optimality_gap(100)(BY_HAND) == pytest.approx((100 + 70 + 80 + 90 + 60 + 50 + 40 + 0) / 8)


def test_median_is_that_of_task_means_not_of_runs():
    assert median(np.array([[0.0, 5.0, 90.0], [0.0, 7.0, 110.0], [99.0, 9.0, 130.0]])) == pytest.approx(33)


def test_gap_is_on_the_scale_of_its_target():
    assert optimality_gap(1.0)(BY_HAND / 100) == pytest.approx(gap(BY_HAND) / 100)


@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (1, 3), (2, 2), (3, 5), (7, 4), (10, 15)])
def test_interquartile_mean_is_the_trimmed_mean_of_scipy(shape):
    stats = pytest.importorskip("scipy.stats")
    scores = np.random.default_rng(0).normal(50, 40, shape)
    assert interquartile_mean(scores) == pytest.approx(stats.trim_mean(scores, 0.25, axis=None), rel=1e-12)


@pytest.mark.parametrize("name", AGGREGATES)
@given(table=tables)
def test_aggregates_of_unequal_tasks_are_those_of_exact_fractions(name, table):
    assert AGGREGATES[name](table) == pytest.approx(float(SLOW[name](table)), rel=1e-9, abs=1e-9)


@every_aggregate
def test_a_task_with_twice_the_runs_counts_no_more(aggregate):
    table = {"hopper": [3.0, 20.0, 70.0, 90.0], "walker": [10.0, 30.0, 80.0, 120.0]}
    assert aggregate({**table, "hopper": table["hopper"] * 2}) == pytest.approx(aggregate(table))


@every_aggregate
def test_an_array_and_the_mapping_of_its_columns_are_the_same(aggregate):
    mapping = {"first": BY_HAND[:, 0], "second": BY_HAND[:, 1].tolist()}
    assert aggregate(mapping) == aggregate(BY_HAND)
    assert estimate(mapping, aggregate) == estimate(BY_HAND, aggregate)


@every_aggregate
@given(table=tables, random=st.randoms(use_true_random=False))
def test_order_of_runs_and_of_tasks_does_not_matter(aggregate, table, random):
    shuffled = [(task, random.sample(runs, len(runs))) for task, runs in table.items()]
    random.shuffle(shuffled)
    assert aggregate(dict(shuffled)) == pytest.approx(aggregate(table), rel=1e-9, abs=1e-9)


@every_aggregate
@given(table=tables, rise=st.floats(0, 500), data=st.data())
def test_a_better_run_never_makes_an_aggregate_worse(aggregate, table, rise, data):
    task = data.draw(st.sampled_from(sorted(table)))
    run = data.draw(st.integers(0, len(table[task]) - 1))
    better = {**table, task: [score + rise * (i == run) for i, score in enumerate(table[task])]}
    sign = -1 if aggregate is gap else 1
    assert sign * aggregate(better) >= sign * aggregate(table) - 1e-9


# Intervals of aggregates

SMALL = {
    "two tasks": {"a": [0.0, 50.0, 80.0], "b": [20.0, 130.0, 30.0]},
    "unequal": {"a": [3.0, 70.0], "b": [40.0, 95.0, 10.0, 20.0], "c": [60.0]},
    "one task": {"a": [1.0, 2.0, 40.0, 80.0]},
}


@pytest.mark.parametrize("table", SMALL.values(), ids=SMALL.keys())
@pytest.mark.parametrize("name", AGGREGATES)
def test_interval_agrees_with_all_resamples_there_are(name, table):
    exact = [SLOW[name](drawn) for drawn in all_resamples(table)]
    for confidence in (0.5, 0.8, 0.95):
        found = estimate(table, AGGREGATES[name], confidence=confidence, replications=20_000)
        check_quantile(exact, found.low, (1 - confidence) / 2, 20_000)
        check_quantile(exact, found.high, (1 + confidence) / 2, 20_000)


@pytest.mark.parametrize("aggregate", [mean, interquartile_mean, gap], ids=["mean", "interquartile mean", "gap"])
@given(table=tables)
def test_interval_holds_the_value(aggregate, table):
    found = estimate(table, aggregate, replications=1000)
    assert found.low <= found.value <= found.high
    assert found.value == aggregate(table)


@every_aggregate
@given(table=tables, seed=st.integers(0, 9))
def test_interval_lies_within_the_scores_and_widens_with_confidence(aggregate, table, seed):
    narrow, wide = (estimate(table, aggregate, replications=200, seed=seed, confidence=c) for c in (0.5, 0.95))
    scores = np.concatenate(list(table.values()))
    possible = np.maximum(100 - scores, 0) if aggregate is gap else scores
    assert possible.min() - 1e-9 <= wide.low <= narrow.low <= narrow.high <= wide.high <= possible.max() + 1e-9


def test_same_seed_gives_the_same_interval_and_another_seed_nearly_the_same():
    scores = np.random.default_rng(0).normal(50, 20, (10, 15))
    first, again, other = estimate(scores), estimate(scores), estimate(scores, seed=1)
    assert first == again
    assert first.value == other.value
    assert first.low != other.low
    width = first.high - first.low
    assert abs(first.low - other.low) < 0.02 * width
    assert abs(first.high - other.high) < 0.02 * width


@every_aggregate
@pytest.mark.parametrize(
    "scores",
    [
        np.array([[0.1, 70.3, 33.3]]),
        np.full((7, 3), 0.1),
        {"a": [0.3] * 3, "b": [77.7] * 7, "c": [13.1]},
        {"a": [333.333] * 3, "b": [-333.333] * 7},
        np.full((7, 3), 1e-6),
    ],
    ids=["one run a task", "identical", "identical within each task", "identical and cancelling", "near zero"],
)
def test_without_spread_within_tasks_the_interval_is_the_value(aggregate, scores):
    found = estimate(scores, aggregate, replications=3000)
    assert found == Estimate(found.value, found.value, found.value)


def covered(runs, tasks, experiments):
    """How often the interval holds the truth, 0, of symmetric scores, in repeated experiments."""
    random = np.random.default_rng(3)
    centres = np.linspace(-20, 20, tasks) if tasks > 1 else np.zeros(1)
    tables = centres + 15 * random.normal(size=(experiments, runs, tasks))
    found = [estimate(table, replications=1000, seed=seed) for seed, table in enumerate(tables)]
    return np.mean([one.low <= 0 <= one.high for one in found])


def test_interval_of_ten_runs_holds_the_truth_about_as_often_as_it_says():
    assert 0.90 < covered(runs=10, tasks=15, experiments=400) < 0.98  # standard error 0.012


def test_interval_of_three_runs_of_one_task_holds_the_truth_too_rarely_as_the_docs_say():
    assert 0.68 < covered(runs=3, tasks=1, experiments=600) < 0.82  # standard error 0.018


# Probability of improvement


def test_probability_of_improvement_counts_pairs_won_and_half_of_ties():
    ours = {"a": [1.0, 2.0, 3.0], "b": [5.0, 5.0]}
    theirs = {"b": [5.0], "a": [2.0, 0.0]}  # in another order, with other numbers of runs
    assert probability_of_improvement(ours, theirs).value == pytest.approx(((1 + 1.5 + 2) / 6 + 0.5) / 2)


@given(ours=tables, data=st.data())
def test_probabilities_of_improvement_either_way_sum_to_one(ours, data):
    theirs = {task: data.draw(st.lists(st.sampled_from([*runs, 7.0]), min_size=1)) for task, runs in ours.items()}
    one, other = (probability_of_improvement(*pair, replications=50) for pair in ((ours, theirs), (theirs, ours)))
    assert one.value + other.value == pytest.approx(1)
    assert -1e-9 <= one.low <= one.high <= 1 + 1e-9


def test_interval_of_probability_of_improvement_agrees_with_all_resamples_there_are():
    ours, theirs = {"a": [1.0, 2.0, 3.0], "b": [5.0, 9.0]}, {"a": [2.0, 2.5], "b": [5.0, 6.0, 8.0]}
    exact = []
    for x, y in itertools.product(all_resamples(ours), all_resamples(theirs)):
        wins = [np.mean([(p > q) + (p == q) / 2 for p in x[task] for q in y[task]]) for task in ours]
        exact.append(np.mean(wins))
    for confidence in (0.5, 0.95):
        found = probability_of_improvement(ours, theirs, confidence=confidence, replications=20_000)
        check_quantile(exact, found.low, (1 - confidence) / 2, 20_000)
        check_quantile(exact, found.high, (1 + confidence) / 2, 20_000)


def test_an_algorithm_that_always_wins_wins_surely():
    assert probability_of_improvement(BY_HAND + 2000, BY_HAND) == Estimate(1.0, 1.0, 1.0)
    assert probability_of_improvement(BY_HAND, BY_HAND).value == 0.5


# Curves


def test_profile_of_a_small_table_is_that_worked_out_by_hand():
    curve = performance_profile({"a": [10.0, 30.0], "b": [20.0, 20.0, 90.0]}, [0, 10, 20, 89, 90])
    assert curve.at.tolist() == [0, 10, 20, 89, 90]
    assert curve.value == pytest.approx([1, (1 / 2 + 1) / 2, (1 / 2 + 1 / 3) / 2, 1 / 6, 0])


@given(table=tables, thresholds=st.lists(numbers, max_size=6))
def test_profile_and_its_band_fall_from_one_to_zero(table, thresholds):
    scores = np.concatenate(list(table.values()))
    at = sorted([scores.min() - 1, *thresholds, scores.max()])
    curve = performance_profile(table, at, replications=100)
    for line in (curve.value, curve.low, curve.high):
        assert (np.diff(line) <= 1e-9).all()
        assert line[at.index(scores.min() - 1)] == pytest.approx(1)
        assert line[at.index(scores.max())] == 0
    assert (curve.low <= curve.high).all()


def profile_is_nowhere_below(ours, theirs):
    at = np.unique(np.concatenate([*ours.values(), *theirs.values()]))
    values = [performance_profile(table, at, replications=1).value for table in (ours, theirs)]
    return bool((values[0] >= values[1] - 1e-12).all())


@given(table=tables, data=st.data())
def test_with_equally_many_runs_a_profile_nowhere_below_is_no_worse_by_mean_gap_and_interquartile_mean(table, data):
    raised = st.floats(0, 50).map(lambda number: round(number, 3))
    better = {task: [score + data.draw(raised) for score in runs] for task, runs in table.items()}
    assert profile_is_nowhere_below(better, table)
    assert mean(better) >= mean(table) - 1e-9
    assert interquartile_mean(better) >= interquartile_mean(table) - 1e-9
    assert gap(better) <= gap(table) + 1e-9


def test_with_unequal_runs_a_profile_above_can_have_a_worse_interquartile_mean():
    above, below = {"a": [1.0, 1.0, 1.0, 1.0, 91.0, 91.0]}, {"a": [0.0, 0.0, 90.0]}
    assert profile_is_nowhere_below(above, below)
    assert mean(above) > mean(below)
    assert (interquartile_mean(above), interquartile_mean(below)) == (23.5, 30.0)  # one run cut at either end, or none


def test_band_of_a_profile_agrees_with_all_resamples_there_are():
    table, thresholds = SMALL["unequal"], [5.0, 30.0, 65.0]
    exact = [
        [np.mean([np.mean(np.array(runs) > at) for runs in drawn.values()]) for at in thresholds]
        for drawn in all_resamples(table)
    ]
    curve = performance_profile(table, thresholds, replications=20_000)
    for i in range(3):
        check_quantile(np.array(exact)[:, i], curve.low[i], 0.025, 20_000)
        check_quantile(np.array(exact)[:, i], curve.high[i], 0.975, 20_000)


def test_sample_efficiency_is_the_estimate_at_each_step_in_order():
    curve = sample_efficiency({2000: BY_HAND + 5, 1000: BY_HAND}, mean)
    assert curve.at.tolist() == [1000, 2000]
    for i, scores in enumerate((BY_HAND, BY_HAND + 5)):
        assert Estimate(curve.value[i], curve.low[i], curve.high[i]) == estimate(scores, mean, replications=2000)


# Mistakes


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({}, "not a single task"),
        (np.empty((3, 0)), "not a single task"),
        (np.empty((0, 3)), "column 0: has no scores"),
        ({"hopper": [1.0], "walker": []}, "walker: has no scores"),
        ({"hopper": [1.0], "walker": [2.0, float("nan")]}, "walker: the score of run 1.* is nan"),
        (np.array([[1.0, 2.0], [3.0, -np.inf]]), "column 1: the score of run 1.* is -inf"),
        ({"hopper": [None]}, "hopper: the score of run 0.* is nan"),
        ({"hopper": ["good"]}, "hopper: scores must be numbers"),
        ({"hopper": [[1.0]]}, r"hopper: scores must be a list.*\(1, 1\)"),
        (np.array([1.0, 2.0]), r"array \(runs, tasks\).*\(2,\)"),
    ],
)
def test_scores_that_cannot_be_used_are_refused_by_name(scores, message):
    for refuse in (
        lambda: mean(scores),
        lambda: estimate(scores),
        lambda: performance_profile(scores, [0]),
        lambda: probability_of_improvement(BY_HAND, scores),
    ):
        with pytest.raises(MildlyError, match=message):
            refuse()
    with pytest.raises(MildlyError, match=f"step 500: .*{message}"):
        sample_efficiency({500: scores})


def test_wrong_settings_are_refused():
    with pytest.raises(MildlyError, match="confidence"):
        estimate(BY_HAND, confidence=95)
    with pytest.raises(MildlyError, match="replications"):
        estimate(BY_HAND, replications=0)
    with pytest.raises(MildlyError, match="thresholds"):
        performance_profile(BY_HAND, [])
    with pytest.raises(MildlyError, match="thresholds"):
        performance_profile(BY_HAND, [0, np.nan])
    with pytest.raises(MildlyError, match="at any step"):
        sample_efficiency({})


def test_algorithms_are_compared_on_the_same_tasks_only():
    with pytest.raises(MildlyError, match=r"only one of the two.*: ant, walker"):
        probability_of_improvement({"hopper": [1.0], "walker": [1.0]}, {"hopper": [1.0], "ant": [1.0]})


# Against rliable, where it is installed


@pytest.fixture
def rliable():
    """rliable's modules; it draws from numpy's global generator, which is seeded here and then put back."""
    pytest.importorskip("rliable")
    try:
        from rliable import library, metrics
    except (
        Exception
    ) as error:  # its dependency arch fails in its own ways with versions of pandas that it does not know
        pytest.skip(f"rliable is installed but does not import: {error}")
    state = np.random.get_state()
    np.random.seed(0)
    yield library, metrics
    np.random.set_state(state)


def atari_like(seed, runs=10, tasks=26):
    """Human-normalized scores: most below 1, some tasks far above, and more spread where scores are high."""
    random = np.random.default_rng(seed)
    return random.lognormal(-1, 1.2, tasks) * random.gamma(4, 0.25, (runs, tasks))


def test_aggregates_and_intervals_are_those_of_rliable(rliable):
    library, metrics = rliable
    scores, replications = atari_like(0), 10_000
    theirs = [metrics.aggregate_mean, metrics.aggregate_median, metrics.aggregate_iqm, metrics.aggregate_optimality_gap]
    values, intervals = library.get_interval_estimates(
        {"x": scores}, lambda table: np.array([aggregate(table) for aggregate in theirs]), reps=replications
    )
    for i, aggregate in enumerate([mean, median, interquartile_mean, optimality_gap(1.0)]):
        ours = estimate(scores, aggregate)
        assert ours.value == pytest.approx(values["x"][i], rel=1e-9)
        low, high = intervals["x"][:, i]  # each end has a standard error of about 0.007 of the width
        assert [ours.low, ours.high] == pytest.approx([low, high], abs=0.04 * (high - low))


def test_profile_is_that_of_rliable(rliable):
    library, _ = rliable
    scores, thresholds = atari_like(1), np.linspace(0, 4, 9)
    values, bands = library.create_performance_profile({"x": scores}, thresholds, reps=2000)
    ours = performance_profile(scores, thresholds)
    assert ours.value == pytest.approx(values["x"], abs=1e-12)
    one_run = 1 / scores.size  # the profile moves by so much at a time
    assert ours.low == pytest.approx(bands["x"][0], abs=1.1 * one_run)
    assert ours.high == pytest.approx(bands["x"][1], abs=1.1 * one_run)


def test_probability_of_improvement_is_that_of_rliable(rliable):
    library, metrics = rliable
    x, y = atari_like(2, 6, 5), atari_like(2, 4, 5)[:, ::-1]
    x[0] = y[0]  # some ties
    values, intervals = library.get_interval_estimates({"xy": [x, y]}, metrics.probability_of_improvement, reps=1000)
    ours = probability_of_improvement(x, y)
    assert ours.value == pytest.approx(values["xy"])
    low, high = np.ravel(intervals["xy"])  # each end has a standard error of about 0.022 of the width
    assert [ours.low, ours.high] == pytest.approx([low, high], abs=0.12 * (high - low))


# Cost


def test_memory_does_not_grow_with_replications():
    scores = np.random.default_rng(0).normal(size=(10, 15))
    tracemalloc.start()
    try:
        estimate(scores)  # a single array of all draws would take 60 MB, and several are needed
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 50e6


@pytest.mark.slow
def test_sixteen_algorithms_take_a_fraction_of_the_time_of_draws_one_by_one():
    tables = np.random.default_rng(0).uniform(0, 110, (16, 10, 15))

    def one_by_one(table, draws):
        random = np.random.default_rng(0)
        for _ in range(draws):
            drawn = np.sort(table[random.integers(10, size=(10, 15)), np.arange(15)], axis=None)
            drawn[37:-37].mean()

    start = time.process_time()
    for table in tables:
        estimate(table)
    ours = time.process_time() - start
    start = time.process_time()
    for table in tables:
        one_by_one(table, 2000)
    theirs = (time.process_time() - start) * 25  # 50,000 draws
    assert ours < theirs / 2, f"{ours:.1f} s; one by one {theirs:.1f} s"
