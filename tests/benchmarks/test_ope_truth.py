"""The record of estimators against the truth: its summary by hand, and its ladder of policies."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
record, logs, grades_of = (importlib.import_module(name) for name in ("ope_truth", "ope_logs", "ope_grades"))


def row(real, error=0.0, **values):
    estimates = {name: {"value": value, "low": value - 1, "high": value + 1} for name, value in values.items()}
    return {"truth": {"value": real, "standard_error": error}, "estimates": estimates}


def test_error_rank_intervals_and_regret_by_hand():
    rows = {
        "bad": row(0.0, fqe=0.5, dr=9.0, wis=0.0),
        "middle": row(5.0, fqe=7.0, dr=4.0, wis=0.0),
        "good": row(8.0, fqe=8.5, dr=0.0, wis=1.0),
    }
    found = record.summary(rows)
    assert found["fqe"]["error"] == pytest.approx(np.sqrt((0.25 + 4 + 0.25) / 3), abs=0.01)
    assert found["fqe"]["rank_correlation"] == 1.0
    assert found["fqe"]["intervals_that_held"] == 0.67
    assert found["fqe"]["regret_at_1"] == 0.0
    assert found["dr"]["rank_correlation"] == -1.0
    assert found["dr"]["regret_at_1"] == 8.0
    assert found["wis"]["rank_correlation"] == pytest.approx(0.87)  # two share a rank


def test_the_pendulums_policies_are_a_ladder():
    log = logs.open_log("pendulum-mixed", Path(), Path(), Path())
    real = [record.truth(log, log.policies[name], 3)["value"] for name in ("against", "rest", "swing 0.5")]
    assert real == sorted(real)


def test_policies_of_a_plant_act_in_its_own_units(tmp_path):
    log = logs.open_log("vehicle", Path(), Path(), tmp_path)
    clone, still = (
        record.truth(log, log.policies[name], 3)["value"] for name in ("clone of the best third", "mean action")
    )
    assert clone > still > 0


def test_the_worse_half_is_worse():
    whole, poor = (logs.open_log(name, Path(), Path(), Path()).data for name in ("pendulum-mixed", "pendulum-poor"))
    assert len(poor) < 0.6 * len(whole)
    assert poor.episode_returns().max() < np.median(whole.episode_returns()) + 1e-6


def test_regrets_of_the_picked_estimator_and_of_all_by_hand():
    rows = {
        "bad": row(0.0, fqe=1.0, dr=9.0, wis=3.0),
        "middle": row(6.0, fqe=7.0, dr=4.0, wis=4.0),
        "good": row(8.0, fqe=6.0, dr=0.0, wis=5.0),
    }
    truth = {"policies": rows, "summary": record.summary(rows)}
    weights = {"fqe": 0.75, "dr": 0.0, "wis": 0.25}
    grades = {name: {"weight": weight} for name, weight in weights.items()}
    found = grades_of.regrets(truth, {"grades": grades, "alike": False, "best": "fqe"})
    assert found["estimators"] == {"fqe": 0.25, "dr": 1.0, "wis": 0.0}
    assert found["mean"] == pytest.approx(1.25 / 3)
    assert (found["picked"], found["of_picked"], found["least"]) == ("fqe", 0.25, "wis")
    assert found["of_weighted"] == 0.25  # 0.75 * 7 + 0.25 * 4 is above 0.75 * 6 + 0.25 * 5
    alike = grades_of.regrets(truth, {"grades": grades, "alike": True, "best": "fqe"})
    assert alike["picked"] is None
    assert alike["of_picked"] is None
    told = grades_of.summary([found, alike])
    assert (told["logs"], told["picked"], told["regret_of_picked"]) == (2, 1, 0.25)
    assert told["mean_regret_there"] == told["mean_regret_where_none_was"] == pytest.approx(1.25 / 3)
