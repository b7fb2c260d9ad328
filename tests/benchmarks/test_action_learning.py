"""What actions add: critics that see them learn it, one that does not cannot, and held-out episodes are the judge."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_dataset

from mildly.dynamics.split import Split

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
benchmark = importlib.import_module("action_learning")


@pytest.fixture
def data(monkeypatch):
    """The reward is a tenth of the first observation, whose scale is large, and three times the first action."""
    monkeypatch.setattr(benchmark, "HIDDEN", (32,))
    monkeypatch.setattr(benchmark, "RATE", 3e-3)
    plain = make_dataset(2000)
    rewards = plain.observations[:, 0] + 3 * plain.actions[:, 0]
    wide = (10 * plain.observations).astype(np.float32)
    return dataclasses.replace(plain, observations=wide, rewards=rewards.astype(np.float32))


def test_what_actions_add_is_learned_by_critics_that_see_them_and_sooner_from_normalized_observations(data):
    found = benchmark.learned(data, (200, 1500))
    assert 0.8 < found["state_explains"] < 0.95  # 25 of the variance's 28
    early, late = found["shares"]["normalized"]
    assert early < late
    assert late > 0.8
    assert found["shares"]["raw"][0] < early


def test_errors_are_those_of_held_out_episodes(data):
    split, rows = Split.of(data, 0.1), benchmark.rows_of(data, normalized=False)
    (error,) = benchmark.errors(rows, split, (50,))
    assert rows.rewards.std().item() == pytest.approx(1, rel=1e-5)
    test = np.concatenate([np.arange(part.start, part.stop) for part in split.test])
    assert not set(test) & set(split.train)
    spoiled = rows._replace(rewards=rows.rewards.clone())
    spoiled.rewards[torch.from_numpy(test)] += 100  # seen by no training
    (worse,) = benchmark.errors(spoiled, split, (50,))
    assert worse == pytest.approx(error + 100**2, rel=0.1)


def test_hidden_actions_are_zero(data):
    assert not benchmark.rows_of(data, normalized=True, blind=True).actions.any()
    assert benchmark.rows_of(data, normalized=True).actions.any()


def test_in_the_record_normalized_observations_show_what_actions_add_several_times_sooner():
    record = json.loads((ROOT / "benchmarks/results/action_learning.json").read_text())
    for name, row in record["sets"].items():
        first = {
            kind: next((i for i, share in enumerate(shares) if share > 0), 99) for kind, shares in row["shares"].items()
        }
        assert first["normalized"] + 2 <= first["raw"], name  # steps double from one to the next
