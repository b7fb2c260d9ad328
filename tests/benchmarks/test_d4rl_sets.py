"""The recipe of the fifteen MuJoCo sets: kept actions are played again, and other bits than recorded are told."""

import importlib.util
import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("d4rl_sets", ROOT / "recipes" / "d4rl_sets.py")
recipe = importlib.util.module_from_spec(spec)
sys.modules["d4rl_sets"] = recipe
spec.loader.exec_module(recipe)

RECORDED = {row["name"]: row for row in json.loads((ROOT / "benchmarks/results/d4rl_sets.json").read_text())["sets"]}


def test_kept_actions_are_played_instead_of_an_agents_training(tmp_path):
    actions = np.random.default_rng(0).uniform(-1, 1, (200, 3)).astype(np.float32)
    np.savez_compressed(tmp_path / "hopper.npz", actions=actions, reached=1234.56)
    data = recipe.make("hopper", "medium-replay", tmp_path / "sets", tmp_path, tmp_path)
    assert np.array_equal(data.actions, actions)
    assert "200 steps of a SAC agent while it learned (until its return reached 1234.6)" in data.meta.source
    starts = np.flatnonzero(data.terminated | data.truncated)[:-1] + 1
    assert len(starts) > 0
    inner = np.setdiff1d(np.arange(1, 200), starts)
    assert np.array_equal(data.observations[inner], data.next_observations[inner - 1])


def test_every_agent_is_kept_with_as_many_actions_as_its_set_has_rows():
    for task in recipe.ENVIRONMENTS:
        with np.load(recipe.AGENTS / f"{task}.npz") as arrays:
            row = RECORDED[recipe.set_name(task, "medium-replay")]
            assert len(arrays["actions"]) == row["transitions"]
            assert f"reached {float(arrays['reached']):.1f})" in row["source"]


def test_other_bits_than_recorded_are_told(tmp_path):
    row = {"name": "hopper-random", "transitions": 1, "mean_return": 1.0, "score": 1.0, "fingerprint": "a"}
    told = []
    for fingerprint in ("a", "a", "b"):
        recipe.recorded(tmp_path / "sets.json", iter([row | {"fingerprint": fingerprint}]), told.append)
    assert [line.split()[0] for line in told] == ["hopper-random", "hopper-random", "hopper-random", "not"]


@pytest.mark.slow
@pytest.mark.parametrize("task", sorted(recipe.ENVIRONMENTS))
def test_kept_actions_give_the_recorded_returns(task, tmp_path):
    found = recipe.facts(recipe.make(task, "medium-replay", tmp_path / "sets", tmp_path))
    assert found["transitions"] == RECORDED[found["name"]]["transitions"]
    assert found["mean_return"] == pytest.approx(RECORDED[found["name"]]["mean_return"], rel=0.05)
