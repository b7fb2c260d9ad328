"""A buffer of transitions that come while training goes on: what it holds, and that it survives a checkpoint."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from mildly.data.batches import COLUMNS, Batch, Buffer, Preprocessing, Transitions
from mildly.data.dataset import Dataset, Meta
from mildly.data.normalize import Normalizer
from mildly.training import checkpoint

CPU = torch.device("cpu")
ROOM = 1024
"""Rows for which there is room before the first growth."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def empty(capacity: int | None = None, batch_size: int = 16, preprocessing: Preprocessing | None = None) -> Buffer:
    return Buffer(2, 1, batch_size, CPU, preprocessing, capacity)


def transitions(start: int, stop: int) -> dict[str, Any]:
    """Rows that carry their own number in every column; each third one ends its episode."""
    number = np.arange(start, stop, dtype=np.float64)
    return {
        "observations": np.stack([number, 2 * number], axis=1),
        "actions": (number[:, None] / 8).astype(np.float32),
        "rewards": number,
        "next_observations": np.stack([number + 1, 2 * number + 2], axis=1),
        "terminated": number % 3 == 2,
    }


def equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def held(buffer: Buffer) -> set[int]:
    """The numbers of the rows there are, from so many draws that all are seen; whole rows, as they were added."""
    batch = buffer.sample(generator(), 60 * len(buffer))
    number = batch.rewards
    assert torch.equal(batch.observations, torch.stack([number, 2 * number], dim=1))
    assert torch.equal(batch.next_observations, torch.stack([number + 1, 2 * number + 2], dim=1))
    assert torch.equal(batch.actions, number[:, None] / 8)
    assert torch.equal(batch.terminated, (number % 3 == 2).float())
    return set(number.int().tolist())


def test_an_empty_buffer_draws_only_from_what_was_added() -> None:
    buffer = empty()
    assert len(buffer) == 0
    buffer.add(transitions(1, 4))
    assert len(buffer) == 3
    batch = buffer.sample(generator(), 200)
    assert all(getattr(batch, name).dtype == torch.float32 for name in COLUMNS)
    assert [tuple(column.shape) for column in batch] == [(200, 2), (200, 1), (200,), (200, 2), (200,), (0,)]
    assert held(buffer) == {1, 2, 3}


def test_its_transitions_are_no_rows_of_any_data() -> None:
    """Else an algorithm would look up what it knows of a row of the logged data."""
    buffer = empty()
    buffer.add(transitions(0, 5))
    assert len(buffer.sample(generator()).rows) == 0


def test_nothing_can_be_drawn_from_an_empty_one() -> None:
    with pytest.raises(RuntimeError):
        empty().sample(generator())


def test_draws_are_uniform_over_those_there_are() -> None:
    buffer = empty(capacity=40)
    buffer.add(transitions(0, 65))
    counts = np.bincount(buffer.sample(generator(), 40_000).rewards.long().numpy(), minlength=65)
    assert (counts[:25] == 0).all()
    assert np.abs(counts[25:] - 1000).max() < 160  # five standard deviations of a count


def test_a_batch_has_the_buffers_size_unless_another_is_asked_for() -> None:
    buffer = empty(batch_size=7)
    buffer.add(transitions(0, 5))
    assert len(buffer.sample(generator()).rewards) == 7
    assert len(buffer.sample(generator(), 3).rewards) == 3


def test_draws_use_no_random_numbers_but_the_generators() -> None:
    buffer, state = empty(), torch.get_rng_state()
    buffer.add(transitions(0, 5))
    one, other = generator(3), generator(3)
    assert equal(buffer.sample(one), buffer.sample(other))
    assert torch.equal(one.get_state(), other.get_state())
    assert not torch.equal(one.get_state(), generator(3).get_state())
    assert torch.equal(torch.get_rng_state(), state)


# What it holds

pieces = st.lists(st.integers(0, 9), min_size=1, max_size=8).filter(any)


@given(pieces, st.none() | st.integers(1, 12))
def test_it_holds_the_newest_up_to_its_capacity_as_a_deque_does(sizes: list[int], capacity: int | None) -> None:
    buffer, expected = empty(capacity), deque[int](maxlen=capacity)
    added = 0
    for size in sizes:
        buffer.add(transitions(added, added + size))
        expected.extend(range(added, added + size))
        added += size
        assert len(buffer) == len(expected)
        if expected:
            assert held(buffer) == set(expected)


@given(pieces, st.none() | st.integers(1, 12), st.integers(0, 99))
def test_adding_in_pieces_is_adding_at_once(sizes: list[int], capacity: int | None, seed: int) -> None:
    """To the draw, also where rows gave way."""
    piecewise, whole, added = empty(capacity), empty(capacity), sum(sizes)
    start = 0
    for size in sizes:
        piecewise.add(transitions(start, start + size))
        start += size
    whole.add(transitions(0, added))
    assert len(piecewise) == len(whole)
    assert held(piecewise) == held(whole)
    assert equal(piecewise.sample(generator(seed)), whole.sample(generator(seed)))


@pytest.mark.parametrize("first", [1, ROOM - 1, ROOM, ROOM + 1])
@pytest.mark.parametrize("second", [1, ROOM, 5 * ROOM])
def test_rows_stay_where_they_are_when_room_is_made(first: int, second: int) -> None:
    buffer = empty()
    buffer.add(transitions(0, first))
    before = buffer.sample(generator(), 500)
    buffer.add(transitions(first, first + second))
    assert len(buffer) == first + second
    assert len(buffer.columns["rewards"]) < 4 * max(ROOM, first + second)  # room is doubled, not more
    assert torch.equal(buffer.columns["rewards"][: len(buffer)], torch.arange(first + second).float())
    after = buffer.sample(generator(), 60 * (first + second))
    assert set(after.rewards.int().tolist()) == set(range(first + second))
    assert torch.equal(after.observations[:, 1], 2 * after.rewards)
    assert before.rewards.max() < first


@pytest.mark.parametrize("capacity", [ROOM - 24, ROOM, ROOM + 1, 3 * ROOM])
def test_room_grows_to_the_capacity_and_not_beyond(capacity: int) -> None:
    buffer = empty(capacity)
    for start in range(0, 4 * ROOM, 512):
        buffer.add(transitions(start, start + 512))
        assert len(buffer.columns["rewards"]) <= capacity
        newest = range(max(0, start + 512 - capacity), start + 512)
        assert sorted(buffer.columns["rewards"][: len(buffer)].int().tolist()) == list(newest)


@pytest.mark.parametrize("count", [5, 6, 7, 23, 100_000])
def test_more_than_the_capacity_at_once_leaves_the_last_of_them(count: int) -> None:
    torch.set_num_threads(2)  # a row that was written twice would hold either
    buffer = empty(capacity=5)
    buffer.add(transitions(0, 3))
    buffer.add(transitions(3, 3 + count))
    assert held(buffer) == set(range(count - 2, count + 3))
    buffer.add(transitions(count + 3, count + 4))  # and the oldest of those gives way next
    assert held(buffer) == set(range(count - 1, count + 4))


def test_what_is_added_is_copied() -> None:
    buffer, given_rows = empty(), {name: torch.as_tensor(column) for name, column in transitions(0, 4).items()}
    buffer.add(given_rows)
    for column in given_rows.values():
        column.fill_(0)
    assert held(buffer) == {0, 1, 2, 3}


# Preprocessing


def logged(rows: int, seed: int) -> tuple[dict[str, Any], Dataset]:
    """The same transitions, as an environment gives them in double precision and as logged data."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {
        "observations": random.normal(3.0, 5.0, (rows, 2)),
        "actions": random.uniform(-1, 1, (rows, 1)),
        "rewards": random.normal(size=rows) * 10.0 ** random.integers(-6, 6, rows),
        "next_observations": random.normal(3.0, 5.0, (rows, 2)),
        "terminated": random.random(rows) < 0.3,
    }
    return columns, Dataset.from_arrays(**columns, truncated=np.zeros(rows, bool), meta=Meta("logged"))


@given(
    seed=st.integers(0, 99),
    normalize=st.booleans(),
    scale=st.sampled_from([1.0, 0.1, 10.0, -3.0]) | st.floats(-1e3, 1e3),
    limit=st.none() | st.floats(0.1, 1.0),
    ignore=st.booleans(),
    capacity=st.sampled_from([None, 40, 100]),
)
def test_online_rows_are_preprocessed_as_the_same_rows_of_logged_data_to_the_bit(
    seed: int, normalize: bool, scale: float, limit: float | None, ignore: bool, capacity: int | None
) -> None:
    columns, data = logged(40, seed)
    preprocessing = Preprocessing(Normalizer.of(data, CPU) if normalize else None, scale, limit, ignore)
    buffer = empty(capacity, 64, preprocessing)
    for start in (0, 15):
        stop = 15 if start == 0 else 40
        buffer.add({name: column[start:stop] for name, column in columns.items()})
    online, offline = buffer.sample(generator(seed)), Transitions(data, 64, CPU, preprocessing).sample(generator(seed))
    for name in COLUMNS:
        assert torch.equal(getattr(online, name), getattr(offline, name)), name


def test_preprocessing_shows() -> None:
    """Not only is it the same for both: it is applied, and once."""
    normalizer = Normalizer(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0]))
    buffer = empty(preprocessing=Preprocessing(normalizer, reward_scale=10.0, action_limit=0.5, ignore_terminals=True))
    buffer.add(transitions(0, 9))
    buffer.sample(generator(1))
    batch = buffer.sample(generator(), 200)
    number = batch.rewards / 10
    assert set(number.tolist()) == set(range(9))
    assert torch.equal(batch.observations, torch.stack([(number - 1) / 2, (2 * number - 2) / 4], dim=1))
    assert torch.equal(batch.next_observations, torch.stack([number / 2, 2 * number / 4], dim=1))
    assert torch.equal(batch.actions, (number[:, None] / 8).clamp(-0.5, 0.5))
    assert not batch.terminated.any()


# State


def through_a_checkpoint(buffer: Buffer, path: Path) -> dict[str, torch.Tensor]:
    checkpoint.save(path, buffer.state_dict(), {"step": 0})
    return checkpoint.load(path)[0]


@pytest.mark.parametrize("capacity", [None, 7, 2000])
@pytest.mark.parametrize("rows", [0, 3, 3000])
def test_a_restored_buffer_goes_on_to_the_bit_also_where_the_saved_one_had_grown(
    capacity: int | None, rows: int, tmp_path: Path
) -> None:
    preprocessing = Preprocessing(Normalizer(torch.tensor([1.0, 2.0]), torch.tensor([2.0, 4.0])), 0.1, 0.5)
    straight, restored = (empty(capacity, 32, preprocessing) for _ in range(2))
    straight.add(transitions(0, rows))
    restored.load_state_dict(through_a_checkpoint(straight, tmp_path / "checkpoint.safetensors"))
    assert len(restored) == len(straight)
    for start in (rows, rows + 5, rows + 6):
        for buffer in (straight, restored):
            buffer.add(transitions(start, start + 5 if start == rows else start + 1))
        for seed in range(3):
            assert equal(straight.sample(generator(seed)), restored.sample(generator(seed)))


def test_a_buffer_with_rows_of_its_own_forgets_them_when_it_is_restored(tmp_path: Path) -> None:
    small, large = empty(), empty()
    small.add(transitions(0, 4))
    large.add(transitions(100, 3000))
    large.load_state_dict(through_a_checkpoint(small, tmp_path / "checkpoint.safetensors"))
    assert held(large) == {0, 1, 2, 3}


def test_a_restored_buffer_shares_no_memory_with_the_saved_one() -> None:
    straight, restored = empty(), empty()
    straight.add(transitions(0, 4))
    restored.load_state_dict(straight.state_dict())
    straight.columns["rewards"].fill_(9)
    restored.add(transitions(4, 5))
    assert held(restored) == {0, 1, 2, 3, 4}
    assert len(straight) == 4


def test_the_state_is_the_rows_and_their_number() -> None:
    buffer = empty(capacity=3)
    buffer.add(transitions(0, 5))
    state = buffer.state_dict()
    assert set(state) == {*(f"columns.{name}" for name in COLUMNS), "added"}
    assert state["added"].item() == 5  # which of them is the oldest follows from it


def test_a_state_of_other_observations_or_actions_is_refused() -> None:
    state = empty().state_dict()
    with pytest.raises(ValueError, match=r"observations of shape \(2,\) where \(3,\) is expected"):
        Buffer(3, 1, 16, CPU).load_state_dict(state)
    with pytest.raises(ValueError, match=r"actions of shape \(1,\) where \(4,\) is expected"):
        Buffer(2, 4, 16, CPU).load_state_dict(state)
