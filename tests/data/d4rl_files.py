"""D4RL's files for tests: where the real ones are, how to write others, and D4RL's own loop over their rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np

from mildly.data.dataset import Dataset

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"

Row = tuple[np.ndarray, np.ndarray, float, np.ndarray, bool]


def slow_rows(path: Path, horizon: int | None = None, terminates: bool = True) -> list[Row]:
    """D4RL's loop, a row at a time: (observation, action, reward, next observation, terminated).

    With one exception: the rows at a way-point that are no transitions.
    """
    with h5py.File(path, "r") as file:
        columns = {key: file[key][()] for key in file if isinstance(file[key], h5py.Dataset)}
    rows: list[Row] = []
    step = 0
    count = len(columns["observations"])
    way_points = not terminates and "timeouts" not in columns
    for i in range(count):
        terminal = bool(np.ravel(columns["terminals"])[i])
        step += 1
        timeout = bool(np.ravel(columns["timeouts"])[i]) if "timeouts" in columns else step == horizon
        if terminal or timeout:
            step = 0
        if "next_observations" in columns:
            following = columns["next_observations"][i]
        elif timeout or i == count - 1 or (way_points and (repeated(columns, i) or repeated(columns, i - 1))):
            continue
        else:
            following = columns["observations"][i + 1]
        reward = float(np.float32(np.ravel(columns["rewards"])[i]))
        observation, action = columns["observations"][i], columns["actions"][i]
        rows.append((observation, action, reward, following, terminal and terminates))
    return rows


def repeated(columns: dict[str, np.ndarray], i: int) -> bool:
    """Whether a row is a way-point whose observation comes again in the next row."""
    observations = columns["observations"]
    return i >= 0 and bool(columns["terminals"][i]) and observations[i].tolist() == observations[i + 1].tolist()


def assert_rows_equal(dataset: Dataset, rows: list[Row]) -> None:
    assert len(dataset) == len(rows)
    observations, actions, rewards, following, terminated = zip(*rows, strict=True)
    np.testing.assert_array_equal(dataset.observations, np.stack(observations).astype(np.float32))
    np.testing.assert_array_equal(dataset.actions, np.stack(actions).astype(np.float32))
    np.testing.assert_array_equal(dataset.next_observations, np.stack(following).astype(np.float32))
    assert dataset.rewards.tolist() == list(rewards)
    assert dataset.terminated.tolist() == list(terminated)


def assert_schema(dataset: Dataset) -> None:
    for name in ("observations", "actions", "rewards", "next_observations"):
        assert getattr(dataset, name).dtype == np.float32
    assert dataset.terminated.dtype == dataset.truncated.dtype == np.bool_
    assert dataset.rewards.ndim == dataset.terminated.ndim == dataset.truncated.ndim == 1


def ends(flags: np.ndarray) -> tuple[int, ...]:
    return tuple(np.flatnonzero(flags).tolist())


def columns_of(
    rows: int, terminals: tuple[int, ...] = (), timeouts: tuple[int, ...] | None = (), dtype: Any = np.float32
) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(rows)
    columns = {
        "observations": rng.normal(size=(rows, 3)).astype(dtype),
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(dtype),
        "rewards": rng.normal(size=rows).astype(dtype),
        "terminals": np.isin(np.arange(rows), terminals),
    }
    if timeouts is not None:
        columns["timeouts"] = np.isin(np.arange(rows), timeouts)
    return columns


def with_next(columns: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Next observations that differ from the following row wherever an episode ends, as in D4RL's v1 and v2."""
    following = np.roll(columns["observations"], -1, axis=0)
    ended = columns["terminals"].astype(bool) | columns["timeouts"].astype(bool)
    following[ended] += 10.0
    return columns | {"next_observations": following}


def write(path: Path, columns: dict[str, Any]) -> Path:
    with h5py.File(path, "w") as file:
        for key, value in columns.items():
            file[key] = value
        file.create_group("infos")["qpos"] = np.zeros((2, 2))
        file.create_group("metadata")["algorithm"] = "SAC"
    return path
