"""The cost of MOPO's rollouts: what is measured, and what the record says."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
rollout_cost = importlib.import_module("rollout_cost")


def test_the_arithmetic_of_a_rollout_is_that_of_all_members_and_the_actor() -> None:
    fields = {"dynamics.hidden_dims": (8,), "dynamics.members": 3, "dynamics.elites": 2, "hidden_dims": (4,)}
    row = rollout_cost.cost("paper", 1, **fields, rollout_batch=2000, rollout_length=2)
    model, actor = 3 * (23 * 8 + 8 * 36), 17 * 4 + 4 * 12
    assert row["gflop"] == pytest.approx(2 * 2 * 2000 * (model + actor) / 1e9, abs=0.05)
    assert row["seconds"] > 0


def test_in_the_record_two_cores_take_at_most_ten_seconds() -> None:
    """Measured as seconds of one processor on a busy machine: two need no more than that."""
    record = json.loads((ROOT / "benchmarks/results/bench_mopo.json").read_text())
    (paper,) = (row for row in record["rows"] if row["preset"] == "paper")
    assert (paper["states"], paper["length"]) == (50_000, 5)
    assert paper["processor_seconds"] <= 10
