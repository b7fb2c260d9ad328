"""Whether a log confirms critics: sums by hand, an effect found in spite of a confounder, and a run judged by parts."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest

import mildly
from mildly.data.registry import load_dataset
from mildly.run import Run

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
benchmark = importlib.import_module("confirmed_slopes")


def test_what_followed_is_summed_within_each_segment():
    data = load_dataset("pendulum-mixed")
    differences = np.random.default_rng(0).normal(size=len(data))
    total = benchmark.followed(differences, data, 0.5)
    segment = data.segments()[1]
    by_hand = sum(0.5**step * difference for step, difference in enumerate(differences[segment.start : segment.stop]))
    assert total[segment.start] == pytest.approx(by_hand)
    assert total[segment.stop - 1] == differences[segment.stop - 1]


def test_a_deviation_that_follows_from_the_state_does_not_count_as_a_confirmation():
    """Outcomes are half of what noise promises, and twice what a slow error of the policy promises."""
    rng = np.random.default_rng(0)
    noise, error = rng.normal(size=100_000), np.repeat(rng.normal(size=1_000), 100)
    promise, outcome = noise + error, 0.5 * noise + 2 * error + rng.normal(size=100_000)
    instrument = promise - np.roll(promise, 1)
    found, wide = benchmark.coefficient(outcome, promise, instrument)
    assert found == pytest.approx(0.5, abs=4 * wide)
    assert wide < 0.05
    assert benchmark.coefficient(outcome, promise, promise)[0] > 1


def test_a_run_is_judged_in_each_part_of_an_episode(tmp_path):
    fields = {"hidden_dims": (8,), "batch_size": 16, "eval_every": 0, "preset": "small"}
    mildly.train("mcq", dataset="pendulum-mixed", steps=3, out=tmp_path / "run", check=False, **fields)
    learner, data, _ = benchmark.learner_of(Run.open(tmp_path / "run"))
    parts = benchmark.confirmed(learner, data)
    assert [part["steps"] for part in parts][:2] == [[0, 3], [3, 10]]
    assert sum(part["rows"] for part in parts[:-1]) == parts[-1]["rows"] == len(data) - len(data.segments())
    assert all(np.isfinite(part["confirmed"]) and part["error"] > 0 for part in parts)
