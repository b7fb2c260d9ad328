"""The record of estimators against the truth: its summary by hand, and its ladder of policies."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
record = importlib.import_module("ope_truth")


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
    ladder = record.ladder("pendulum-mixed", Path())
    real = [record.truth("Pendulum-v1", ladder[name], 3)["value"] for name in ("against", "rest", "swing 0.5")]
    assert real == sorted(real)
