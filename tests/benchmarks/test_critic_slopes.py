"""Where critics push a policy: the slope is that of finite differences, and every row is in one part of its episode."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import mildly
from mildly.run import Run

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
benchmark = importlib.import_module("critic_slopes")


def test_slopes_by_finite_differences(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "ROWS", 400)
    monkeypatch.setattr(benchmark, "PARTS", ((0, 100), (100, 1000)))
    fields = {"hidden_dims": (8,), "batch_size": 16, "eval_every": 0, "preset": "small"}
    mildly.train("mcq", dataset="pendulum-mixed", steps=3, out=tmp_path / "run", check=False, **fields)
    run = Run.open(tmp_path / "run")
    step, parts = benchmark.slopes(run)
    assert step == 3
    assert [part["rows"] for part in parts] == [200, 200]  # two episodes of 200 steps
    learner, data, _ = benchmark.learner_of(run)
    states = benchmark.seen_by(learner, data.observations[:100])
    actions = torch.from_numpy(np.array(data.actions[:100]))
    with torch.no_grad():
        up, down = (learner.critics(states, actions + off) for off in (1e-2, -1e-2))
    slopes = ((up - down) / 2e-2).mean(dim=0).abs().numpy()  # one action: the length is the absolute value
    monkeypatch.setattr(benchmark, "ROWS", 100)
    (first,) = benchmark.slopes(run)[1]
    assert first["slope"] == pytest.approx(slopes.mean(), rel=0.02)
    assert -1 <= first["agreement"] <= 1
