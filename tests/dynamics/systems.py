"""A small system whose truth is known, logged: a point that is pushed, with noise; and models of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from mildly.data.dataset import Dataset, Meta
from mildly.dynamics import DynamicsConfig, DynamicsEnsemble, DynamicsLearner

NOISE = 0.05
EPISODE = 25


def pushed(rows: int = 2000, seed: int = 0, ends: bool = False, **meta: Any) -> Dataset:
    """x' = x + 0.1 v + noise, v' = 0.9 v + 0.5 a + noise, r = -x^2; with `ends` an episode ends where |x| > 1."""
    random = np.random.default_rng(seed)
    columns: dict[str, list[Any]] = {name: [] for name in ("s", "a", "r", "n", "t", "c")}
    state, age = 0.5 * random.normal(size=2), 0
    for _ in range(rows):
        action = random.uniform(-1, 1, 1)
        following = np.array([state[0] + 0.1 * state[1], 0.9 * state[1] + 0.5 * action[0]])
        following += NOISE * random.normal(size=2)
        age += 1
        over = ends and abs(following[0]) > 1
        row = (state, action, -(state[0] ** 2), following, over, not over and age == EPISODE)
        for name, value in zip(columns, row, strict=True):
            columns[name].append(value)
        state, age = (0.5 * random.normal(size=2), 0) if over or age == EPISODE else (following, age)
    return Dataset.from_arrays(*(np.array(column) for column in columns.values()), meta=Meta("pushed", **meta))


def tiny_learner(data: Dataset | None = None, seed: int = 0, **fields: Any) -> DynamicsLearner:
    """A learner of small networks that has seen the data."""
    config = dataclasses.replace(DynamicsConfig(hidden_dims=(8, 6), members=4, elites=2, batch_size=16), **fields)
    torch.manual_seed(seed)
    learner = DynamicsLearner(config, 2, 1, torch.device("cpu"))
    if data is not None:
        learner.start(data, torch.device("cpu"))
    return learner


def fit(learner: DynamicsLearner, steps: int, seed: int = 0) -> DynamicsEnsemble:
    """The model after some steps."""
    random = torch.Generator().manual_seed(seed)
    assert learner.sampler is not None
    for _ in range(steps):
        learner.update(learner.sampler.sample(random))
    return learner.ensemble()
