"""The recipe of the built-in sets can be run again and gives what it says."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import make_dataset

from mildly.action_space import ActionSpace
from mildly.algorithms.sac import SAC, SACConfig
from mildly.collect.rollouts import describe
from mildly.data.registry import builtin_names, load_dataset

PATH = Path(__file__).parents[2] / "recipes" / "builtin_sets.py"
spec = importlib.util.spec_from_file_location("builtin_sets", PATH)
recipes = importlib.util.module_from_spec(spec)
sys.modules["builtin_sets"] = recipes
spec.loader.exec_module(recipes)

TINY = recipes.Recipe(
    env_id="Pendulum-v1",
    sac=SACConfig(hidden_dims=(16, 16), batch_size=16),
    random_steps=200,
    medium_return=-1e9,
    max_steps=400,
    expert_steps=400,
    eval_every=400,
    part=300,
)


def test_a_recipe_makes_three_parts_and_equal_bits_again(monkeypatch):
    monkeypatch.setitem(recipes.RECIPES, "tiny", TINY)
    made = recipes.make("tiny")
    assert len(made) == 900
    assert made.meta.action_space == ActionSpace((-2.0,), (2.0,))
    assert made.meta.reference_min < 0
    assert "from the first 400 of a SAC agent's learning" in made.meta.source
    assert recipes.make("tiny").meta.fingerprint == made.meta.fingerprint


def test_a_recipe_whose_agent_does_not_get_there_stops(monkeypatch):
    monkeypatch.setitem(recipes.RECIPES, "tiny", replace(TINY, medium_return=0.0))
    with pytest.raises(SystemExit, match=r"did not reach 0.0 within 400 steps"):
        recipes.make("tiny")


def test_a_recipes_agent_learns_after_its_random_steps_and_stops_at_a_return():
    meta, brief = describe("tiny", "Pendulum-v1"), replace(TINY, eval_every=30)
    learned = recipes.learn(replace(brief, random_steps=60), meta, 60, float("inf"))
    before = SAC(TINY.sac, 3, 1).log_alpha.item()
    assert learned.algorithm.log_alpha.item() == before
    assert [step for step, _ in learned.evaluations] == [30, 60]
    assert len(learned.dataset(meta)) == 60
    learned = recipes.learn(replace(brief, random_steps=20), meta, 60, -1e9)
    assert learned.algorithm.log_alpha.item() != before
    assert len(learned.experience) == 30


def test_thinning_keeps_whole_episodes_in_order():
    data = make_dataset(rows=200)
    thin = recipes.thinned(data, 50, seed=3)
    assert len(thin) == 50
    rows = [int(np.flatnonzero((data.observations == row).all(axis=1))[0]) for row in thin.observations]
    assert rows == sorted(rows)
    assert all(rows[i + 1] == rows[i] + 1 for i in range(50) if i % 10 != 9)


def test_every_recipe_has_its_set_and_every_set_its_recipe():
    assert sorted(recipes.RECIPES) == builtin_names()
    for name, recipe in recipes.RECIPES.items():
        data = load_dataset(name)
        assert data.meta.env_id == recipe.env_id
        assert len(data) <= 3 * recipe.part
