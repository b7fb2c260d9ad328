"""Values that are no values are told by column and row; what a plant may well do is not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from checked import changed, codes, found, made, problem

from mildly.action_space import ActionSpace
from mildly.data.check.inspection import Inspection
from mildly.data.check.values import CODES
from mildly.data.dataset import Dataset, Meta


def smooth(rows: int = 4000, episodes: int = 20, seed: int = 0) -> Dataset:
    """Slow sensors with a little noise: a temperature, a pressure, a level and a speed."""
    random = np.random.default_rng(seed)
    time = np.arange(rows)[:, None]
    waves = np.sin(time / [40.0, 55.0, 70.0, 90.0] + random.uniform(0, 6, 4))
    observations = [20.0, 1000.0, 2.0, 50.0] + [4.0, 30.0, 0.5, 20.0] * waves
    observations += [0.05, 0.5, 0.01, 0.3] * random.normal(size=(rows, 4))
    observations = observations.astype(np.float32)
    return changed(
        made([rows // episodes] * episodes, seed=seed),
        observations=observations,
        next_observations=np.concatenate([observations[1:], observations[-1:]]),
    )


def with_values(data: Dataset, column: int, rows: Any, value: Any) -> Dataset:
    observations = np.array(data.observations)
    observations[rows, column] = value
    return changed(
        data,
        observations=observations,
        next_observations=np.concatenate([observations[1:], observations[-1:]]),
    )


def test_healthy_sensors_have_no_errors_and_no_warnings() -> None:
    assert codes(smooth(), "error", "warning") == set()


# Codes


@pytest.mark.parametrize("code", CODES.tolist())
def test_every_code_for_a_missing_value_is_told_with_its_column_and_rows(code: float) -> None:
    finding = problem(with_values(smooth(), 2, [70, 900, 3001], code), "sentinel")
    assert finding.severity == "warning"
    assert f"column 2: 3 values of {np.float32(code):.6g} in rows 70, 900, 3001" in finding.evidence.lower()
    assert "--drop-bad-rows" in finding.advice


def test_a_code_within_the_range_of_a_column_is_a_number() -> None:
    data = smooth()
    wide = data.observations * np.float32([1, 1, 1, 200])  # up to 14,000
    wide[[70, 900], 3] = 9999.0
    assert found(changed(data, observations=wide, next_observations=np.roll(wide, -1, 0)), "sentinel") is None


def test_codes_are_seen_beside_a_flag_and_where_a_third_of_the_values_are_missing() -> None:
    data = smooth()
    flags = with_values(data, 0, slice(None), np.arange(4000) // 300 % 2)
    assert "column 0: 2 values of -999" in problem(with_values(flags, 0, [5, 800], -999), "sentinel").evidence.lower()
    assert found(flags, "sentinel") is None
    often = np.random.default_rng(0).random(4000) < 0.3
    assert "values of 65535" in problem(with_values(data, 1, often, 65535), "sentinel").evidence


def test_a_number_that_comes_back_far_from_all_others_is_a_code_though_nobody_knows_it() -> None:
    rows = [100, 640, 641, 2000]
    assert "4 values of -77.7" in problem(with_values(smooth(), 0, rows, -77.7), "sentinel").evidence
    assert found(with_values(smooth(), 0, slice(100, 160), -77.7), "sentinel") is None  # a state that lasts
    assert found(with_values(smooth(), 1, rows, 0.0), "sentinel") is None  # off


def test_codes_in_actions_are_told_in_the_units_of_the_log() -> None:
    """The bounds were found in the data, so that the code itself is one of them."""
    data = smooth()
    space = ActionSpace((-999.0, -1.0), (100.0, 1.0))
    valve = np.random.default_rng(0).uniform(0, 100, len(data))
    valve[[4, 77]] = -999.0
    actions = space.to_unit(np.stack([valve, data.actions[:, 1]], axis=1)).astype(np.float32)
    logged = changed(data, actions=actions, meta=Meta("made", action_space=space))
    assert "action column 0: 2 values of -999 in rows 4, 77" in problem(logged, "sentinel").evidence.lower()


def test_a_code_among_the_rewards_is_told_but_not_a_penalty_at_the_end() -> None:
    data = smooth()
    rewards = np.array(data.rewards)
    rewards[data.truncated] = -999.0
    assert found(changed(data, rewards=rewards), "sentinel") is None
    rewards[[10, 20]] = -9999.0
    both = changed(data, rewards=rewards)
    assert "reward: 2 values of -9999 in rows 10, 20" in problem(both, "sentinel").evidence.lower()
    assert found(both, "reward-outlier") is None  # said once is enough


# Spikes


def test_a_value_far_from_all_others_is_a_spike() -> None:
    finding = problem(with_values(smooth(), 1, [1234, 2345], [3000.0, 2500.0]), "spike")
    assert "column 1: 2 values from 2500 to 3000 in rows 1234, 2345" in finding.evidence.lower()


def test_a_value_far_from_its_neighbors_in_time_is_a_spike_within_the_range_too() -> None:
    data = smooth()
    low = int(np.argmin(data.observations[1000:1400, 0])) + 1000
    finding = problem(with_values(data, 0, low, 23.0), "spike")
    assert f"column 0: 1 value of 23 in row {low}" in finding.evidence.lower()


@pytest.mark.parametrize(
    "values",
    [
        pytest.param(lambda random, rows: random.normal(size=rows), id="white noise"),
        pytest.param(lambda random, rows: random.exponential(size=rows) ** 2, id="heavy tails"),
        pytest.param(lambda random, rows: np.cumsum(random.random(rows) < 0.01) % 2 * 50.0, id="a switch"),
        pytest.param(lambda random, rows: (random.random(rows) < 0.01) * 100.0, id="pulses"),
        pytest.param(lambda random, rows: np.cumsum(random.normal(size=rows)) // 5, id="coarse steps"),
        pytest.param(lambda random, rows: np.arange(rows) // 500 * 30.0 + random.normal(size=rows), id="levels"),
        pytest.param(lambda random, rows: random.poisson(0.05, rows) * random.gamma(2, 5, rows), id="rain"),
    ],
)
@pytest.mark.parametrize("seed", range(3))
def test_what_a_plant_may_do_is_no_spike_no_code_and_no_stuck_sensor(values: Any, seed: int) -> None:
    data = smooth()
    column = values(np.random.default_rng(seed), len(data))
    told = codes(with_values(data, 2, slice(None), column), "warning")
    assert not told & {"spike", "sentinel", "stuck"}


def test_what_happens_often_is_no_spike() -> None:
    rows = np.arange(4000) % 50 == 7  # 2 %
    assert found(with_values(smooth(), 1, rows, 3000 + np.arange(80.0)), "spike") is None


def test_a_spike_is_not_seen_across_the_end_of_an_episode() -> None:
    data = smooth()
    ends = np.flatnonzero(data.truncated)
    assert found(with_values(data, 0, ends, 23.9), "spike") is None


def test_values_are_looked_at_in_the_units_of_the_log() -> None:
    data = changed(made([40] * 30), meta=Meta("made", action_space=ActionSpace((0.0, -3.0), (10.0, 3.0))))
    look = Inspection(data, thorough=True)
    np.testing.assert_allclose(look.logged("actions", slice(3)), data.actions[:3] * [5, 3] + [5, 0], rtol=1e-6)
    assert look.logged("rewards", slice(3)).shape == (3, 1)
    assert [look.column_name(3), look.column_name(0, "actions"), look.column_name(0, "rewards")] == [
        "column 3",
        "action column 0",
        "reward",
    ]


# What it does to the scale


def test_outliers_that_make_a_columns_spread_are_a_warning_and_large_units_are_not() -> None:
    data = smooth()
    units = with_values(data, 1, slice(None), data.observations[:, 1] * 1e5)
    assert codes(units, "error", "warning") == set()
    assert problem(units, "observation-scale").severity == "info"
    finding = problem(with_values(units, 2, [40, 50, 60], 65535.0), "outliers-dominate")
    assert finding.severity == "warning"
    assert "column 2: standard deviation" in finding.evidence.lower()
    assert "without 3 odd values" in finding.evidence


def test_columns_that_normalizing_cannot_help_are_warnings() -> None:
    data = smooth()
    clock = with_values(data, 3, slice(None), 1.7e9 + 600 * np.random.default_rng(0).random(4000))
    assert "column 3 has mean 1.7e+09" in problem(clock, "observation-digits").evidence.lower()
    tiny = with_values(data, 0, slice(None), data.observations[:, 0] * 1e-6)
    assert "Column 0; column 0 has standard deviation" in problem(tiny, "observation-small").evidence
    assert found(data, "observation-digits") is found(data, "observation-small") is None
