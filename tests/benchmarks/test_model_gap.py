"""A policy in a model and in the environment: what the comparison measures."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from conftest import train_tiny

import mildly
from mildly.policy import load_policy

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
model_gap = importlib.import_module("model_gap")


@pytest.mark.filterwarnings("ignore")
def test_a_policy_is_compared_in_its_model_and_in_the_environment(tmp_path: Path) -> None:
    run = train_tiny("mopo", tmp_path / "run", steps=20, eval_every=0)
    policy, data = load_policy(run.path), mildly.load_dataset("pendulum-mixed")
    found = model_gap.gap(policy, mildly.load_dynamics(run.path), data, episodes=2, steps=60)
    assert [row["step"] for row in found["rewards"]] == [1, 5, 10, 20, 50]
    assert set(found["uncertainty_of_actions"]) == {"logged", "policy", "uniform"}
    assert all(value > 0 for value in found["uncertainty_of_actions"].values())
    starts, rewards = model_gap.in_environment(policy, "Pendulum-v1", 2, 60)
    assert starts.shape == (2, 3)
    assert rewards.shape == (2, 60)
    assert found["rewards"][0]["environment"] == pytest.approx(rewards[:, 0].mean(), abs=1e-3)
    assert found["rewards"][-1]["environment"] == pytest.approx(rewards[:, 40:50].mean(), abs=1e-3)
    whole = mildly.evaluate(run, episodes=2)
    all_steps = model_gap.in_environment(policy, "Pendulum-v1", 2, 200)[1]
    assert all_steps.sum(axis=1) == pytest.approx(whole.returns, rel=1e-5)
