"""A sensor that is stuck, or changes its unit, is told; setpoints, flags, rest and drift are not."""

from __future__ import annotations

import numpy as np
import pytest
from checked import changed, found, made, problem
from test_check_values import smooth, with_values

from mildly.data.check.inspection import Inspection
from mildly.data.check.sensors import _runs


def test_a_sensor_that_keeps_one_value_is_told_with_its_rows() -> None:
    data = smooth()
    finding = problem(with_values(data, 1, slice(700, 760), data.observations[700, 1]), "stuck")
    assert finding.severity == "warning"
    assert f"column 1: 60 rows from row 700 on at {data.observations[700, 1]:.5g}" in finding.evidence.lower()


def test_a_sensor_that_dies_halfway_is_stuck_across_the_ends_of_episodes() -> None:
    data = smooth()
    finding = problem(with_values(data, 0, slice(2100, None), data.observations[2100, 0]), "stuck")
    assert "column 0: 1,900 rows from row 2100 on" in finding.evidence.lower()


def test_actions_and_rewards_may_be_stuck_too() -> None:
    data = smooth()
    data.actions[500:560, 1] = data.actions[500, 1]
    data.rewards[900:930] = data.rewards[900]
    evidence = problem(data, "stuck").evidence.lower()
    assert "action column 1: 60 rows from row 500 on" in evidence
    assert "reward: 30 rows from row 900 on" in evidence


def test_setpoints_rest_and_coarse_sensors_are_not_stuck() -> None:
    data, rows = smooth(), 4000
    random = np.random.default_rng(0)
    setpoint = np.repeat(random.uniform(15, 25, 40), 100)
    assert found(with_values(data, 1, slice(None), setpoint), "stuck") is None
    noise = np.abs(random.normal(size=rows))
    noise[300:400] = 0.0
    assert found(with_values(data, 1, slice(None), noise), "stuck") is None  # zero
    bounded = np.minimum(data.observations[:, 1], 1010.0)
    assert found(with_values(data, 1, slice(None), bounded), "stuck") is None  # where its range ends
    wall = np.array(data.observations[:, 1])
    wall[300:340] = wall[1200:1230] = 990.0
    assert found(with_values(data, 1, slice(None), wall), "stuck") is None  # where it has stayed before
    coarse = data.observations[:, 0].round(0)
    assert found(with_values(data, 0, slice(None), coarse), "stuck") is None


def test_a_plant_that_stands_still_is_no_stuck_sensor() -> None:
    data = smooth()
    observations = np.array(data.observations)
    observations[700:760] = observations[700]
    assert found(changed(data, observations=observations), "stuck") is None


def test_a_stuck_sensor_is_measured_by_its_own_runs() -> None:
    """Sixty rows are long for a sensor that always moves, and usual for one that moves in steps."""
    data = smooth()
    slow = np.repeat(data.observations[::20, 0].round(1), 20)
    slow[np.random.default_rng(0).random(4000) < 0.2] += 0.1
    stuck = np.array(slow)
    stuck[700:760] = 20.03
    assert found(with_values(data, 0, slice(None), stuck), "stuck") is None
    stuck[700:1000] = 20.03
    assert "300 rows from row 700" in problem(with_values(data, 0, slice(None), stuck), "stuck").evidence


@pytest.mark.parametrize("numbers", [300, 1 << 20])
def test_runs_are_found_however_the_rows_are_cut(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mildly.data.check.inspection._NUMBERS", numbers)
    random = np.random.default_rng(0)
    lengths = random.choice([1, 2, 7, 30], 300)
    values = np.repeat(np.arange(300.0), lengths)[:, None].repeat(4, 1).astype(np.float32)
    data = changed(made([len(values)]), observations=values)
    counts, runs = _runs(Inspection(data, thorough=True), "observations")
    assert [counts[2][length] for length in (1, 2, 7, 19)] == [(lengths == length).sum() for length in (1, 2, 7, 30)]
    starts = np.cumsum(lengths) - lengths
    long = lengths >= 5
    np.testing.assert_array_equal(runs[2], np.stack([starts, lengths, np.arange(300)], axis=1)[long])


# Units


@pytest.mark.parametrize(
    ("column", "change", "words"),
    [
        (0, lambda values: 1.8 * values + 32, "Celsius and Fahrenheit?"),
        (0, lambda values: values + 273.15, "Celsius and kelvins?"),
        (1, lambda values: values / 1000, "a factor of 1000?"),
        (3, lambda values: values - 400, "from row 2345 on."),
    ],
)
def test_a_change_of_unit_is_told_with_its_row(column: int, change: object, words: str) -> None:
    data = smooth()
    values = np.array(data.observations[:, column])
    values[2345:] = change(values[2345:])  # type: ignore[operator]
    finding = problem(with_values(data, column, slice(None), values), "unit-change")
    assert finding.severity == "warning"
    assert f"column {column}: about" in finding.evidence.lower()
    assert "up to row 2344" in finding.evidence
    assert words in finding.evidence


def test_counters_drift_flags_and_other_policies_change_no_unit() -> None:
    data, rows = smooth(), 4000
    random = np.random.default_rng(0)
    for values in (
        np.arange(rows) / 10,  # a counter
        np.linspace(10, 40, rows) + random.normal(size=rows),  # a drift
        (np.arange(rows) > 2000) * 1.0,  # a flag
        random.normal(size=rows) * np.where(np.arange(rows) > 2000, 0.2, 1.0),  # a better policy
        np.where(np.arange(rows) > 3950, 90.0, 20.0) + random.normal(size=rows),  # not for good
    ):
        assert found(with_values(data, 2, slice(None), values), "unit-change") is None
