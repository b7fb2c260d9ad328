"""Minibatches: rows of the data, whole and aligned, drawn the same way again from the same generator state."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from mildly.data import replay as replay_module
from mildly.data.dataset import Dataset, Meta
from mildly.data.normalize import Scaling
from mildly.data.replay import Batch, Replay

CPU = torch.device("cpu")
COLUMNS = ("observations", "actions", "rewards", "next_observations", "terminated")
ROWS = 40


@pytest.fixture
def dataset() -> Dataset:
    """Every row carries its own number in every column; the last episode ends by a time-out."""
    row = np.arange(ROWS, dtype=np.float32)
    return Dataset.from_arrays(
        observations=np.stack([row, -3 * row, np.full(ROWS, 7.0)], axis=1),
        actions=np.stack([row / ROWS, -row / ROWS], axis=1),
        rewards=100 + row,
        next_observations=np.stack([row + 0.5, -3 * row, np.full(ROWS, 7.0)], axis=1),
        terminated=row % 5 == 4,
        truncated=row % 7 == 6,
        meta=Meta(name="numbered"),
    )


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_drawn_transitions_are_rows_of_the_data_with_all_columns_of_the_same_row(dataset: Dataset) -> None:
    batch = Replay.of(dataset, CPU).sample(500, generator())
    rows = batch.observations[:, 0].long().numpy()
    np.testing.assert_array_equal(batch.observations, dataset.observations[rows])
    np.testing.assert_array_equal(batch.actions, dataset.actions[rows])
    np.testing.assert_array_equal(batch.rewards, dataset.rewards[rows])
    np.testing.assert_array_equal(batch.next_observations, dataset.next_observations[rows])
    np.testing.assert_array_equal(batch.terminated, dataset.terminated[rows].astype(np.float32))
    np.testing.assert_array_equal(batch.rows, rows)
    assert set(rows.tolist()) == set(range(ROWS))  # 500 draws miss one of 40 rows with probability 1e-4


def test_draws_are_uniform(dataset: Dataset) -> None:
    batch = Replay.of(dataset, CPU).sample(40_000, generator())
    counts = np.bincount(batch.observations[:, 0].long().numpy(), minlength=ROWS)
    assert counts.sum() == 40_000
    assert np.abs(counts - 1000).max() < 160  # five standard deviations of a count


def test_batches_are_float32_tensors_with_a_mask_for_the_ends_of_values(dataset: Dataset) -> None:
    batch = Replay.of(dataset, CPU).sample(64, generator())
    assert all(getattr(batch, name).dtype == torch.float32 for name in COLUMNS)
    assert [tuple(column.shape) for column in batch] == [(64, 3), (64, 2), (64,), (64, 3), (64,), (64,)]
    assert set(batch.terminated.tolist()) == {0.0, 1.0}


def test_a_time_out_is_not_an_end_of_the_value(dataset: Dataset) -> None:
    batch = Replay.of(dataset, CPU).sample(500, generator())
    rows = batch.observations[:, 0].long().numpy()
    timed_out = dataset.truncated[rows] & ~dataset.terminated[rows]
    assert timed_out.any()
    assert not batch.terminated[torch.from_numpy(timed_out)].any()


def test_the_same_generator_state_gives_the_same_draws_and_advances(dataset: Dataset) -> None:
    replay, random = Replay.of(dataset, CPU), generator(5)
    replay.sample(16, random)
    state = random.get_state()
    first, second = replay.sample(16, random), replay.sample(16, random)
    assert not torch.equal(first.rewards, second.rewards)
    restored = torch.Generator()
    restored.set_state(state)
    for expected in (first, second):
        again = Replay.of(dataset, CPU).sample(16, restored)
        assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))


def test_draws_use_no_random_numbers_but_the_generator_s(dataset: Dataset) -> None:
    state = torch.get_rng_state()
    Replay.of(dataset, CPU).sample(16, generator())
    assert torch.equal(torch.get_rng_state(), state)


# Scaling


def test_scaling_is_the_data_s_mean_and_deviation_with_a_little_added(dataset: Dataset) -> None:
    scaling = Scaling.of(dataset, CPU)
    assert scaling.mean.dtype == scaling.std.dtype == torch.float32
    # Of 0, 1, ..., 39: the mean is 19.5 and the variance (40^2 - 1) / 12.
    deviation = ((ROWS**2 - 1) / 12) ** 0.5
    np.testing.assert_allclose(scaling.mean, [19.5, -58.5, 7.0], rtol=1e-6)
    np.testing.assert_allclose(scaling.std, [deviation + 1e-3, 3 * deviation + 1e-3, 1e-3], rtol=1e-6)


def test_scaling_is_applied_to_both_observations_and_to_nothing_else(dataset: Dataset) -> None:
    scaling = Scaling(torch.tensor([1.0, 2.0, 7.0]), torch.tensor([2.0, 4.0, 0.5]))
    plain = Replay.of(dataset, CPU).sample(64, generator())
    scaled = Replay.of(dataset, CPU, scaling).sample(64, generator())
    mean, std = np.array([1.0, 2.0, 7.0]), np.array([2.0, 4.0, 0.5])
    np.testing.assert_allclose(scaled.observations, (plain.observations.numpy() - mean) / std, rtol=1e-6)
    np.testing.assert_allclose(scaled.next_observations, (plain.next_observations.numpy() - mean) / std, rtol=1e-6)
    for name in ("actions", "rewards", "terminated"):
        assert torch.equal(getattr(scaled, name), getattr(plain, name))


def test_sampling_leaves_the_data_as_they_were(dataset: Dataset) -> None:
    before = {name: getattr(dataset, name).copy() for name in COLUMNS}
    replay = Replay.of(dataset, CPU, Scaling.of(dataset, CPU))
    batch = replay.sample(64, generator())
    for column in batch:
        column.zero_()
    for name, kept in before.items():
        np.testing.assert_array_equal(getattr(dataset, name), kept)


# Memory


def test_data_in_memory_are_not_copied(dataset: Dataset) -> None:
    replay = Replay.of(dataset, CPU)
    for name in COLUMNS:
        assert np.shares_memory(replay.columns[name].numpy(), getattr(dataset, name))


def test_a_mapped_set_is_drawn_from_without_a_copy_or_a_warning(dataset: Dataset, tmp_path: Path) -> None:
    mapped = Dataset.load(dataset.save(tmp_path / "numbered"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay = Replay.of(mapped, CPU, Scaling.of(mapped, CPU))
        batch = replay.sample(64, generator())
    for name in COLUMNS:
        assert isinstance(getattr(mapped, name), np.memmap)
        assert np.shares_memory(replay.columns[name].numpy(), getattr(mapped, name))
    in_memory = Replay.of(dataset, CPU, Scaling.of(dataset, CPU)).sample(64, generator())
    assert all(torch.equal(one, other) for one, other in zip(batch, in_memory, strict=True))


# Transitions still to come


def transition(number: float, terminated: bool) -> dict[str, object]:
    return {
        "observations": np.array([number, 2 * number]),
        "actions": np.array([number / 10], dtype=np.float32),
        "rewards": number,
        "next_observations": np.array([number + 1, 2 * number + 2], dtype=np.float32),
        "terminated": terminated,
    }


def test_an_empty_replay_draws_only_from_what_was_added() -> None:
    replay = Replay.empty(10, observation_size=2, action_size=1, device=CPU)
    assert replay.size == 0
    for number in (1, 2, 3):
        replay.add(transition(number, terminated=number == 2))
    assert replay.size == 3
    batch = replay.sample(200, generator())
    assert all(getattr(batch, name).dtype == torch.float32 for name in COLUMNS)
    number = batch.rewards
    assert torch.equal(batch.rows, number.long() - 1)
    assert set(number.tolist()) == {1.0, 2.0, 3.0}
    assert torch.equal(batch.observations, torch.stack([number, 2 * number], dim=1))
    assert torch.equal(batch.next_observations, torch.stack([number + 1, 2 * number + 2], dim=1))
    torch.testing.assert_close(batch.actions, number[:, None] / 10)
    assert torch.equal(batch.terminated, (number == 2).float())


def test_a_full_replay_takes_no_more() -> None:
    replay = Replay.empty(1, observation_size=2, action_size=1, device=CPU)
    replay.add(transition(1, terminated=False))
    with pytest.raises(IndexError):
        replay.add(transition(2, terminated=False))
    assert replay.size == 1


def mapped(dataset: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Replay:
    """A replay that reads ahead, as for a set larger than memory."""
    monkeypatch.setattr(replay_module, "_LARGE", 0)
    made = Replay.of(Dataset.load(dataset.save(folder)), CPU)
    assert made.ahead is not None
    return made


def equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_batches_read_ahead_are_those_that_would_have_been_drawn(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead, plain = mapped(dataset, tmp_path / "set", monkeypatch), Replay.of(dataset, CPU)
    one, other = generator(), generator()
    for size in (8, 8, 8, 3, 8):  # the guess of the fourth is wrong
        assert equal(ahead.sample(size, one), plain.sample(size, other))
        assert torch.equal(one.get_state(), other.get_state())


def test_reading_ahead_takes_nothing_from_the_generator_so_a_resumed_run_draws_the_same(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = mapped(dataset, tmp_path / "set", monkeypatch)
    random = generator(5)
    ahead.sample(16, random)
    kept = random.get_state()
    expected = ahead.sample(16, random)
    resumed = Replay.of(Dataset.load(tmp_path / "set"), CPU)
    assert equal(resumed.sample(16, torch.Generator().set_state(kept)), expected)


def test_the_next_batch_is_read_while_this_one_is_used(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = mapped(dataset, tmp_path / "set", monkeypatch)
    assert ahead.ahead is not None
    random = generator()
    ahead.sample(8, random)
    rows, reading = ahead.ahead.guess or pytest.fail("nothing is read ahead")
    reading.result(timeout=10)
    monkeypatch.setattr(ahead.ahead, "_read", lambda rows: pytest.fail("read again"))
    monkeypatch.setattr(ahead.ahead.worker, "submit", lambda *args: reading)
    following = ahead.sample(8, random)
    assert following.rewards.tolist() == dataset.rewards[rows.numpy()].tolist()


def test_small_or_unmapped_sets_are_not_read_ahead(dataset: Dataset, tmp_path: Path) -> None:
    assert Replay.of(dataset, CPU).ahead is None
    assert Replay.of(Dataset.load(dataset.save(tmp_path / "set")), CPU).ahead is None
