"""Stretches of trajectories, against a slow loop that walks from row to row."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import replay
from hypothesis import given, strategies as st

from mildly.data.batches import Preprocessing, WindowBatch, Windows
from mildly.data.dataset import Dataset, Meta
from mildly.data.normalize import Normalizer

CPU = torch.device("cpu")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def dataset(episodes: list[tuple[int, str]], seed: int = 0) -> Dataset:
    """Episodes of given lengths, each with the way it ends; no number of a row is 0."""
    random, rows = np.random.default_rng(seed), sum(length for length, _ in episodes)
    flags: dict[str, list[bool]] = {"terminated": [], "truncated": []}
    for length, end in episodes:
        for name, column in flags.items():
            column += [False] * (length - 1) + [end in (name, "both")]
    return Dataset.from_arrays(
        observations=np.stack([np.arange(1, rows + 1), random.normal(5.0, 1.0, rows)], axis=1),
        actions=random.uniform(0.1, 1, (rows, 2)) * random.choice([-1, 1], (rows, 2)),
        rewards=random.uniform(0.5, 2.0, rows),
        next_observations=random.normal(size=(rows, 2)),
        **{name: np.array(column) for name, column in flags.items()},
        meta=Meta("some"),
    )


ends = st.sampled_from(["terminated", "truncated", "both"])
logs = st.lists(st.tuples(st.integers(1, 7), ends), min_size=1, max_size=6)


def slow_window(data: Dataset, begin: int, length: int, preprocessing: Preprocessing) -> dict[str, list[Any]]:
    """One stretch, row by row."""
    first = begin
    while first > 0 and not (data.terminated[first - 1] or data.truncated[first - 1]):
        first -= 1
    window: dict[str, list[Any]] = {name: [] for name in WindowBatch._fields}
    row, over = begin, False
    for _ in range(length):
        if over:
            padding = {"observations": [0.0] * 2, "actions": [0.0] * 2, "timesteps": 0}
            for name, column in window.items():
                column.append(padding.get(name, 0.0))
            continue
        observation = data.observations[row].astype(np.float64)
        if preprocessing.normalizer is not None:
            observation = (observation - preprocessing.normalizer.mean.numpy()) / preprocessing.normalizer.std.numpy()
        limit = preprocessing.action_limit
        action = [float(a) if limit is None else min(max(float(a), -limit), limit) for a in data.actions[row]]
        total, later = 0.0, row
        while True:
            total += preprocessing.reward_scale * float(data.rewards[later])
            if data.terminated[later] or data.truncated[later]:
                break
            later += 1
        window["observations"].append(observation.tolist())
        window["actions"].append(action)
        window["rewards"].append(preprocessing.reward_scale * float(data.rewards[row]))
        window["returns_to_go"].append(total)
        window["timesteps"].append(row - first)
        window["mask"].append(1.0)
        over = bool(data.terminated[row] or data.truncated[row])
        row += 1
    return window


@given(
    logs,
    st.integers(1, 9),
    st.booleans(),
    st.sampled_from([1.0, 0.1, -4.0]),
    st.sampled_from([None, 0.5]),
    st.integers(0, 99),
)
def test_every_window_equals_a_slow_walk(
    episodes: list[tuple[int, str]], length: int, normalize: bool, scale: float, limit: float | None, seed: int
) -> None:
    data = dataset(episodes, seed)
    preprocessing = Preprocessing(Normalizer.of(data, CPU) if normalize else None, scale, limit)
    random = generator(seed)
    first_rows = torch.randint(len(data), (20, 1), generator=replay(random))[:, 0].tolist()
    batch = Windows(data, 20, length, CPU, preprocessing).sample(random)
    expected = [slow_window(data, row, length, preprocessing) for row in first_rows]
    for name in WindowBatch._fields:
        right = np.array([window[name] for window in expected])
        got = getattr(batch, name)
        assert tuple(got.shape) == right.shape == ((20, length, 2) if right.ndim == 3 else (20, length))
        np.testing.assert_allclose(got, right, rtol=1e-5, atol=1e-5, err_msg=name)
        assert (got.numpy()[batch.mask.numpy() == 0] == 0).all(), name


def test_by_hand() -> None:
    """Two episodes, of three rows and of two; the windows that begin in rows 1 and 3, of three rows."""
    data = Dataset.from_arrays(
        observations=np.array([[1.0], [2.0], [3.0], [4.0], [5.0]]),
        actions=np.array([[0.1], [0.2], [0.3], [0.4], [0.5]]),
        rewards=np.array([1.0, 2.0, 4.0, 8.0, 16.0]),
        next_observations=np.zeros((5, 1)),
        terminated=np.array([False, False, True, False, False]),
        truncated=np.array([False, False, False, False, True]),
        meta=Meta("five"),
    )
    batch = Windows(data, 50, 3, CPU).sample(generator())
    windows = {int(batch.observations[i, 0, 0]): i for i in range(50)}
    one, other = windows[2], windows[4]
    assert batch.observations[one, :, 0].tolist() == [2.0, 3.0, 0.0]
    assert batch.actions[one, :, 0].tolist() == pytest.approx([0.2, 0.3, 0.0])
    assert batch.rewards[one].tolist() == [2.0, 4.0, 0.0]
    assert batch.returns_to_go[one].tolist() == [6.0, 4.0, 0.0]
    assert batch.timesteps[one].tolist() == [1, 2, 0]
    assert batch.mask[one].tolist() == [1.0, 1.0, 0.0]
    assert batch.observations[other, :, 0].tolist() == [4.0, 5.0, 0.0]
    assert batch.returns_to_go[other].tolist() == [24.0, 16.0, 0.0]
    assert batch.timesteps[other].tolist() == [0, 1, 0]


@given(logs, st.integers(1, 9))
def test_no_window_crosses_the_end_of_an_episode(episodes: list[tuple[int, str]], length: int) -> None:
    data = dataset(episodes)
    episode_of = np.repeat(np.arange(len(episodes)), [size for size, _ in episodes])
    batch = Windows(data, 40, length, CPU).sample(generator())
    rows = batch.observations[..., 0].long() - 1  # -1 where there is none
    for window, mask in zip(rows.tolist(), batch.mask.tolist(), strict=True):
        there = [row for row in window if row >= 0]
        assert mask == [1.0] * len(there) + [0.0] * (length - len(there))
        assert there == list(range(there[0], there[0] + len(there)))
        assert len({int(episode_of[row]) for row in there}) == 1
        last = len(data) == there[-1] + 1 or episode_of[there[-1] + 1] != episode_of[there[-1]]
        assert len(there) == length or last  # and none ends before its time


def test_every_row_is_as_likely_a_first_one_as_any_other() -> None:
    data = dataset([(1, "terminated"), (30, "truncated"), (9, "terminated")])
    batch = Windows(data, 40_000, 5, CPU).sample(generator())
    counts = np.bincount(batch.observations[:, 0, 0].long().numpy() - 1, minlength=40)
    assert counts.sum() == 40_000
    assert np.abs(counts - 1000).max() < 160  # five standard deviations of a count


def test_observations_are_normalized_before_they_are_padded() -> None:
    data = dataset([(2, "terminated"), (4, "truncated")])
    normalizer = Normalizer(torch.tensor([1.0, 5.0]), torch.tensor([2.0, 0.5]))
    plain = Windows(data, 50, 3, CPU).sample(generator())
    normalized = Windows(data, 50, 3, CPU, Preprocessing(normalizer)).sample(generator())
    there = plain.mask.bool()
    assert not there.all()
    assert torch.equal(normalized.observations[there], normalizer.apply(plain.observations[there]))
    assert torch.equal(normalized.observations[~there], torch.zeros_like(normalized.observations[~there]))
    for name in ("actions", "rewards", "returns_to_go", "timesteps", "mask"):
        assert torch.equal(getattr(normalized, name), getattr(plain, name))


def test_batches_have_their_types_and_sizes() -> None:
    data = dataset([(6, "terminated"), (4, "truncated")])
    windows = Windows(data, 7, 3, CPU)
    batch = windows.sample(generator())
    assert [column.dtype for column in batch] == [torch.float32] * 4 + [torch.int64, torch.float32]
    assert [tuple(column.shape) for column in batch] == [(7, 3, 2), (7, 3, 2), *[(7, 3)] * 4]
    assert len(windows.sample(generator(), 2).mask) == 2
    assert len(windows) == 10


def test_the_same_generator_state_gives_the_same_windows_and_no_other_numbers_are_used() -> None:
    data, own = dataset([(6, "terminated"), (4, "truncated")]), torch.get_rng_state()
    windows, random = Windows(data, 7, 3, CPU), generator(5)
    windows.sample(random)
    again = replay(random)
    for _ in range(2):
        one, other = windows.sample(random), Windows(data, 7, 3, CPU).sample(again)
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert torch.equal(torch.get_rng_state(), own)


def test_a_mapped_set_gives_the_same_windows_without_a_copy_and_the_data_stay_as_they_are(tmp_path: Path) -> None:
    data = dataset([(6, "terminated"), (4, "truncated"), (5, "both")])
    mapped = Dataset.load(data.save(tmp_path / "set"))
    assert isinstance(mapped.observations, np.memmap)
    windows = Windows(mapped, 30, 4, CPU)
    for name, column in windows.columns.items():
        assert np.shares_memory(column.numpy(), getattr(mapped, name))
    batch, expected = windows.sample(generator()), Windows(data, 30, 4, CPU).sample(generator())
    assert all(torch.equal(a, b) for a, b in zip(batch, expected, strict=True))
    for column in batch:
        column.zero_()
    again = windows.sample(generator())
    assert all(torch.equal(a, b) for a, b in zip(again, expected, strict=True))


def test_there_is_no_state_to_keep() -> None:
    windows = Windows(dataset([(6, "terminated")]), 7, 3, CPU, Preprocessing(reward_scale=2.0))
    windows.sample(generator())
    assert windows.state_dict() == {}
    windows.load_state_dict({})
