"""The cost of PBRL's ten critics: what is measured, and what the record says."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
ensemble_cost = importlib.import_module("ensemble_cost")


def test_ten_critics_are_measured_beside_two_of_the_same_size(monkeypatch):
    times = iter([0.0, 0.5, 1.0, 4.0, 5.0, 5.5, 6.0, 8.0])  # of two turns: half a second each, and three and two
    monkeypatch.setattr(ensemble_cost.time, "process_time", lambda: next(times))
    row = ensemble_cost.cost("small", 2, hidden_dims=(8, 8), batch_size=4)
    assert (row["cpu_ms_2_critics"], row["cpu_ms_10_critics"]) == (500, 2500)
    assert (row["ratio"], row["ratio_of_best"]) == (5.0, 4.0)
    assert 1 < row["ratio_of_arithmetic"] < 5


@pytest.mark.parametrize("preset", ["default", "small"])
def test_in_the_record_ten_critics_cost_at_most_four_times_two(preset):
    """As published they cost more, since their arithmetic alone is 4.8 times as much."""
    record = json.loads((ROOT / "benchmarks/results/bench_pbrl.json").read_text())
    rows = {row["preset"]: row for row in record["rows"]}
    assert rows[preset]["ratio"] <= 4
    assert rows["paper"]["ratio_of_arithmetic"] > 4.8
