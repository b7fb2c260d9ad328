"""What is different in further logs."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from conftest import make_dataset

from mildly.data.check.shift import shift
from mildly.data.dataset import Dataset

OLD = make_dataset(2000)


def changed(**columns: Any) -> Dataset:
    return dataclasses.replace(make_dataset(2000, seed=1), **columns)


def codes(new: Dataset) -> dict[str, str]:
    return {found.code: f"{found.severity} {found.what} {found.evidence}" for found in shift(OLD, new)}


def test_data_alike_have_nothing_to_tell_but_their_returns() -> None:
    found = codes(changed())
    assert set(found) == {"shift-returns"}
    old, new = OLD.episode_returns().mean(), changed().episode_returns().mean()
    assert f"Mean return of an episode {old:.4g} in the old data, {new:.4g} in the new." in found["shift-returns"]


def test_a_column_that_moved_is_named_with_its_numbers() -> None:
    observations = make_dataset(2000, seed=1).observations.copy()
    observations[:, 1] += 4.0
    found = codes(changed(observations=observations))
    assert "1 of 3 columns of the observations are distributed otherwise" in found["shift-observations"]
    assert f"mean {OLD.observations[:, 1].mean():.4g} to {observations[:, 1].mean():.4g}" in found["shift-observations"]
    assert found["shift-observations"].startswith("info")
    assert "shift-actions" not in found


def test_a_narrower_action_is_told_though_its_mean_is_the_same() -> None:
    found = codes(changed(actions=make_dataset(2000, seed=1).actions * 0.2))
    assert "2 of 2 columns of the actions are distributed otherwise" in found["shift-actions"]


def test_rows_beyond_the_old_range_are_counted_and_a_warning() -> None:
    observations = make_dataset(2000, seed=1).observations.copy()
    observations = np.clip(observations, OLD.observations.min(axis=0), OLD.observations.max(axis=0))
    observations[:100, 2] = 500.0
    found = codes(changed(observations=observations))
    assert found["shift-beyond"].startswith("warning 5 % of the new observations lie outside the range of the old.")
    assert "100 of 2,000 rows: column 2 in 100" in found["shift-beyond"]


def test_a_column_that_was_constant_and_moves_is_told() -> None:
    old = dataclasses.replace(OLD, observations=np.full_like(OLD.observations, 3.0))
    found = {each.code for each in shift(old, changed())}
    assert found >= {"shift-beyond", "shift-observations"}
