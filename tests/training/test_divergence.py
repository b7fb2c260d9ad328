"""A training that diverges says what was not finite first, and what the data and settings have to do with it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset, train_tiny

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import make_config
from mildly.data.batches import Preprocessing
from mildly.data.dataset import Dataset
from mildly.training.divergence import likely_causes
from mildly.training.trainer import Diverged


def causes(algorithm: str, data: Dataset, **fields: Any) -> str:
    return likely_causes(data, Preprocessing(), make_config(ALGORITHMS[algorithm], "paper", "tiny", fields))


def with_column(data: Dataset, column: int, values: Any) -> Dataset:
    observations = np.array(data.observations)
    observations[:, column] = values
    return dataclasses.replace(data, observations=observations)


def test_the_first_step_and_the_first_metric_that_is_not_finite_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From step 33 on one loss is infinite, from step 34 on another one as well; lines come every 50 steps."""
    kind, steps = ALGORITHMS["td3-bc"], 0
    sound = kind.update

    def breaking(learner: Any, batch: Any) -> Any:
        nonlocal steps
        steps += 1
        metrics = sound(learner, batch)
        broken = [name for name, since in (("loss_td", 34), ("loss_actor", 33)) if steps >= since]
        return metrics | {name: metrics[name] * np.inf for name in broken}

    monkeypatch.setattr(kind, "update", breaking)
    with pytest.raises(Diverged, match="diverged: loss_actor not finite for the first time at step 33"):
        train_tiny("td3-bc", tmp_path / "run", eval_every=0, log_every=50, checkpoint_every=50)


def test_behavior_cloning_in_large_units_blames_the_column_and_never_the_rewards(tmp_path: Path) -> None:
    data = make_dataset(rows=600)
    data = with_column(data, 1, 1e30 * (1 + data.observations[:, 1]))
    rewards = np.array(data.rewards)
    rewards[7] = 1e30
    data = dataclasses.replace(data, rewards=rewards)
    with pytest.raises(Diverged) as caught:
        train_tiny("bc", tmp_path / "run", dataset=data, preset="paper", check=False, eval_every=0)
    message = str(caught.value)
    assert "diverged: loss_actor" in message
    assert "1. scale of inputs: column 1 of the observation has mean" in message
    assert "--normalize-observations" in message
    assert "reward" not in message


def test_causes_come_in_the_order_of_evidence() -> None:
    data = with_column(make_dataset(rows=600), 2, np.where(np.arange(600) % 100 == 3, 65535.0, np.arange(600) / 10))
    rewards = np.array(data.rewards)
    rewards[40] = 2e5
    told = causes("td3-bc", dataclasses.replace(data, rewards=rewards), actor_lr=0.5)
    places = [told.index(word) for word in ("1. scale of inputs", "2. outliers in inputs", "3. rewards", "4. learning")]
    assert places == sorted(places)
    assert "column 2: 6 values of 65535 in rows 3, 103" in told
    assert "they reach 2e+05" in told
    assert "lower actor_lr (0.5)" in told


def test_where_nothing_stands_out_learning_rates_are_what_is_left() -> None:
    told = causes("iql", make_dataset(rows=600))
    assert "evidence: 1. learning rates: lower actor_lr" in told
    assert "no input stands out" in told
    assert "reward" not in told
