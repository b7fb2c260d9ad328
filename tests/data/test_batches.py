"""Minibatches: rows of the data, whole and aligned, drawn the same way again from the same generator state.

What happens to rows on their way into a batch, here of transitions of a data set. Others are in
`test_buffer.py`, `test_mixture.py` and `test_windows.py`.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from mildly.data import batches as batches_module
from mildly.data.batches import COLUMNS, Batch, Preprocessing, Transitions
from mildly.data.dataset import Dataset, Meta
from mildly.data.normalize import Normalizer

CPU = torch.device("cpu")
ROWS = 40


def numbered() -> Dataset:
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


@pytest.fixture
def dataset() -> Dataset:
    return numbered()


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_drawn_transitions_are_rows_of_the_data_with_all_columns_of_the_same_row(dataset: Dataset) -> None:
    batch = Transitions(dataset, 500, CPU).sample(generator())
    rows = batch.observations[:, 0].long().numpy()
    np.testing.assert_array_equal(batch.observations, dataset.observations[rows])
    np.testing.assert_array_equal(batch.actions, dataset.actions[rows])
    np.testing.assert_array_equal(batch.rewards, dataset.rewards[rows])
    np.testing.assert_array_equal(batch.next_observations, dataset.next_observations[rows])
    np.testing.assert_array_equal(batch.terminated, dataset.terminated[rows].astype(np.float32))
    np.testing.assert_array_equal(batch.rows, rows)
    assert set(rows.tolist()) == set(range(ROWS))  # 500 draws miss one of 40 rows with probability 1e-4


def test_draws_are_uniform(dataset: Dataset) -> None:
    batch = Transitions(dataset, 40_000, CPU).sample(generator())
    counts = np.bincount(batch.observations[:, 0].long().numpy(), minlength=ROWS)
    assert counts.sum() == 40_000
    assert np.abs(counts - 1000).max() < 160  # five standard deviations of a count


def test_batches_are_float32_tensors_with_a_mask_for_the_ends_of_values(dataset: Dataset) -> None:
    batch = Transitions(dataset, 64, CPU).sample(generator())
    assert all(getattr(batch, name).dtype == torch.float32 for name in COLUMNS)
    assert [tuple(column.shape) for column in batch] == [(64, 3), (64, 2), (64,), (64, 3), (64,), (64,)]
    assert set(batch.terminated.tolist()) == {0.0, 1.0}


def test_a_time_out_is_not_an_end_of_the_value(dataset: Dataset) -> None:
    batch = Transitions(dataset, 500, CPU).sample(generator())
    rows = batch.observations[:, 0].long().numpy()
    timed_out = dataset.truncated[rows] & ~dataset.terminated[rows]
    assert timed_out.any()
    assert not batch.terminated[torch.from_numpy(timed_out)].any()


def test_the_same_generator_state_gives_the_same_draws_and_advances(dataset: Dataset) -> None:
    sampler, random = Transitions(dataset, 16, CPU), generator(5)
    sampler.sample(random)
    state = random.get_state()
    first, second = sampler.sample(random), sampler.sample(random)
    assert not torch.equal(first.rewards, second.rewards)
    restored = torch.Generator()
    restored.set_state(state)
    for expected in (first, second):
        again = Transitions(dataset, 16, CPU).sample(restored)
        assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))


def test_draws_use_no_random_numbers_but_the_generator_s(dataset: Dataset) -> None:
    state = torch.get_rng_state()
    Transitions(dataset, 16, CPU).sample(generator())
    assert torch.equal(torch.get_rng_state(), state)


def test_a_batch_may_have_another_size_than_usual(dataset: Dataset) -> None:
    sampler = Transitions(dataset, 16, CPU)
    assert len(sampler.sample(generator()).rewards) == 16
    assert equal(sampler.sample(generator(), 5), Transitions(dataset, 5, CPU).sample(generator()))
    assert len(sampler) == ROWS


# Preprocessing


def test_the_normalizer_is_the_data_s_mean_and_deviation_with_a_little_added(dataset: Dataset) -> None:
    normalizer = Normalizer.of(dataset, CPU)
    assert normalizer.mean.dtype == normalizer.std.dtype == torch.float32
    # Of 0, 1, ..., 39: the mean is 19.5 and the variance (40^2 - 1) / 12.
    deviation = ((ROWS**2 - 1) / 12) ** 0.5
    np.testing.assert_allclose(normalizer.mean, [19.5, -58.5, 7.0], rtol=1e-6)
    np.testing.assert_allclose(normalizer.std, [deviation + 1e-3, 3 * deviation + 1e-3, np.inf], rtol=1e-6)


@pytest.mark.parametrize("constant", [0.0, 21.3, -1e8, 1e-20])
def test_a_constant_column_is_0_to_the_networks_whatever_it_becomes(dataset: Dataset, constant: float) -> None:
    observations = np.array(dataset.observations)
    observations[:, 1] = constant
    changed = Dataset(**{**vars(dataset), "observations": observations})
    seen = torch.tensor([[3.0, constant, 7.0], [3.0, constant + 1000.0, 7.0]])
    assert Normalizer.of(changed, CPU).apply(seen)[:, 1].tolist() == [0.0, 0.0]


def test_a_column_that_hardly_varies_but_does_is_not_constant(dataset: Dataset) -> None:
    observations = np.array(dataset.observations)
    observations[:, 1] = 21.0
    observations[0, 1] = 21.5
    changed = Dataset(**{**vars(dataset), "observations": observations})
    assert torch.isfinite(Normalizer.of(changed, CPU).std[1])


def test_the_normalizer_is_applied_once_to_both_observations_and_to_nothing_else(dataset: Dataset) -> None:
    normalizer = Normalizer(torch.tensor([1.0, 2.0, 7.0]), torch.tensor([2.0, 4.0, 0.5]))
    plain = Transitions(dataset, 64, CPU).sample(generator())
    sampler = Transitions(dataset, 64, CPU, Preprocessing(normalizer))
    sampler.sample(generator(1))  # a batch before leaves no trace in the data
    normalized = sampler.sample(generator())
    mean, std = np.array([1.0, 2.0, 7.0]), np.array([2.0, 4.0, 0.5])
    for name in ("observations", "next_observations"):
        expected = (getattr(plain, name).numpy() - mean) / std
        np.testing.assert_allclose(getattr(normalized, name), expected, rtol=1e-6)
    for name in ("actions", "rewards", "terminated", "rows"):
        assert torch.equal(getattr(normalized, name), getattr(plain, name))


def test_scaled_rewards_are_those_of_a_set_scaled_by_hand(dataset: Dataset) -> None:
    scale = 0.3
    by_hand = dataclasses.replace(dataset, rewards=dataset.rewards * np.float32(scale))
    sampler = Transitions(dataset, 64, CPU, Preprocessing(reward_scale=scale))
    for seed in range(3):
        assert equal(sampler.sample(generator(seed)), Transitions(by_hand, 64, CPU).sample(generator(seed)))
    batch = sampler.sample(generator())
    np.testing.assert_allclose(batch.rewards, 0.3 * (100 + batch.rows.double()), rtol=1e-6)
    assert dataset.rewards[5] == 105  # the data are as they were


def test_actions_are_clipped_to_the_limit_and_to_nothing_else(dataset: Dataset) -> None:
    plain = Transitions(dataset, 500, CPU).sample(generator())
    limited = Transitions(dataset, 500, CPU, Preprocessing(action_limit=0.25)).sample(generator())
    assert torch.equal(limited.actions, plain.actions.clamp(-0.25, 0.25))
    assert limited.actions.min() == -0.25
    assert limited.actions.max() == 0.25
    assert (limited.actions.abs() < 0.2).any()
    for name in ("observations", "rewards", "next_observations", "terminated", "rows"):
        assert torch.equal(getattr(limited, name), getattr(plain, name))


def test_ignored_terminals_are_zeros_in_batches_alone(dataset: Dataset) -> None:
    plain = Transitions(dataset, 500, CPU).sample(generator())
    ignoring = Transitions(dataset, 500, CPU, Preprocessing(ignore_terminals=True)).sample(generator())
    assert plain.terminated.any()
    assert torch.equal(ignoring.terminated, torch.zeros(500))
    assert ignoring.terminated.dtype == torch.float32
    for name in ("observations", "actions", "rewards", "next_observations", "rows"):
        assert torch.equal(getattr(ignoring, name), getattr(plain, name))
    assert dataset.terminated.sum() == ROWS // 5


@given(
    st.booleans(),
    st.sampled_from([1.0, 0.1, -2.5]),
    st.sampled_from([None, 0.5, 0.99]),
    st.booleans(),
    st.integers(0, 9),
)
def test_what_happens_to_rows_does_not_depend_on_what_else_happens(
    normalize: bool, scale: float, limit: float | None, ignore: bool, seed: int
) -> None:
    data = numbered()
    preprocessing = Preprocessing(Normalizer.of(data, CPU) if normalize else None, scale, limit, ignore)
    batch = Transitions(data, 30, CPU, preprocessing).sample(generator(seed))
    rows = batch.rows.numpy()
    observations, following = data.observations[rows].astype(np.float64), data.next_observations[rows]
    if normalize:
        mean, std = data.observations.mean(axis=0, dtype=np.float64), data.observations.std(axis=0, dtype=np.float64)
        observations, following = (observations - mean) / (std + 1e-3), (following - mean) / (std + 1e-3)
    actions = data.actions[rows] if limit is None else data.actions[rows].clip(-limit, limit)
    np.testing.assert_allclose(batch.observations, observations, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(batch.next_observations, following, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(batch.actions, actions)
    np.testing.assert_array_equal(batch.rewards, data.rewards[rows] * np.float32(scale))
    np.testing.assert_array_equal(batch.terminated, np.zeros(30) if ignore else data.terminated[rows])


def test_relabeled_columns_take_the_place_of_the_data_s_and_are_not_scaled_again(dataset: Dataset) -> None:
    rewards, ends = torch.arange(ROWS) / 8, torch.linspace(0, 1, ROWS)
    preprocessing = Preprocessing(reward_scale=10.0, ignore_terminals=True)
    sampler = Transitions(dataset, 64, CPU, preprocessing, {"rewards": rewards, "terminated": ends})
    batch = sampler.sample(generator())
    assert torch.equal(batch.rewards, rewards[batch.rows])
    assert torch.equal(batch.terminated, ends[batch.rows])
    plain = Transitions(dataset, 64, CPU).sample(generator())
    for name in ("observations", "actions", "next_observations", "rows"):
        assert torch.equal(getattr(batch, name), getattr(plain, name))
    one = Transitions(dataset, 64, CPU, preprocessing, {"terminated": ends}).sample(generator())
    assert torch.equal(one.rewards, plain.rewards * 10)


def test_relabeled_observations_are_normalized_as_the_data_s(dataset: Dataset) -> None:
    other = torch.randn(ROWS, 3, generator=generator())
    preprocessing = Preprocessing(Normalizer.of(dataset, CPU))
    batch = Transitions(dataset, 64, CPU, preprocessing, {"observations": other}).sample(generator())
    assert torch.equal(batch.observations, preprocessing.normalizer.apply(other)[batch.rows])


def test_sampling_leaves_the_data_as_they_were(dataset: Dataset) -> None:
    before = {name: getattr(dataset, name).copy() for name in COLUMNS}
    preprocessing = Preprocessing(Normalizer.of(dataset, CPU), 2.0, 0.5, True)
    batch = Transitions(dataset, 64, CPU, preprocessing).sample(generator())
    for column in batch:
        column.zero_()
    for name, kept in before.items():
        np.testing.assert_array_equal(getattr(dataset, name), kept)


def test_there_is_no_state_to_keep(dataset: Dataset) -> None:
    """What a batch holds follows from the data, the config and the generator alone."""
    sampler = Transitions(dataset, 8, CPU, Preprocessing(Normalizer.of(dataset, CPU)), {"rewards": torch.zeros(ROWS)})
    sampler.sample(generator())
    assert sampler.state_dict() == {}
    sampler.load_state_dict({})


# Memory


def test_data_in_memory_are_not_copied(dataset: Dataset) -> None:
    sampler = Transitions(dataset, 8, CPU, Preprocessing(Normalizer.of(dataset, CPU), action_limit=0.5))
    for name in COLUMNS:
        assert np.shares_memory(sampler.columns[name].numpy(), getattr(dataset, name))


def test_a_mapped_set_is_drawn_from_without_a_copy_or_a_warning(dataset: Dataset, tmp_path: Path) -> None:
    mapped = Dataset.load(dataset.save(tmp_path / "numbered"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sampler = Transitions(mapped, 64, CPU, Preprocessing(Normalizer.of(mapped, CPU)))
        batch = sampler.sample(generator())
    for name in COLUMNS:
        assert isinstance(getattr(mapped, name), np.memmap)
        assert np.shares_memory(sampler.columns[name].numpy(), getattr(mapped, name))
    in_memory = Transitions(dataset, 64, CPU, Preprocessing(Normalizer.of(dataset, CPU))).sample(generator())
    assert equal(batch, in_memory)


@pytest.mark.parametrize(
    ("preprocessing", "copied"),
    [
        (Preprocessing(reward_scale=3.0), {"rewards"}),
        (Preprocessing(ignore_terminals=True), {"terminated"}),
        (Preprocessing(Normalizer(torch.ones(3), torch.full((3,), 2.0)), action_limit=0.5), set()),
    ],
    ids=["reward_scale", "ignore_terminals", "in each batch"],
)
def test_preprocessing_of_a_mapped_set_copies_only_what_it_changes_for_good(
    dataset: Dataset, tmp_path: Path, preprocessing: Preprocessing, copied: set[str]
) -> None:
    mapped = Dataset.load(dataset.save(tmp_path / "numbered"))
    sampler = Transitions(mapped, 64, CPU, preprocessing)
    shared = {name for name in COLUMNS if np.shares_memory(sampler.columns[name].numpy(), getattr(mapped, name))}
    assert shared == set(COLUMNS) - copied
    in_memory = Transitions(dataset, 64, CPU, preprocessing)
    assert equal(sampler.sample(generator()), in_memory.sample(generator()))


# Reading ahead


def mapped(
    dataset: Dataset, folder: Path, monkeypatch: pytest.MonkeyPatch, preprocessing: Preprocessing | None = None
) -> Transitions:
    """A sampler that reads ahead, as for a set larger than memory."""
    monkeypatch.setattr(batches_module, "_LARGE", 0)
    made = Transitions(Dataset.load(dataset.save(folder)), 16, CPU, preprocessing)
    assert made.ahead is not None
    return made


@pytest.mark.parametrize("preprocess", [False, True])
def test_batches_read_ahead_are_those_that_would_have_been_drawn(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preprocess: bool
) -> None:
    preprocessing = Preprocessing(Normalizer.of(dataset, CPU), 0.1, 0.5, True) if preprocess else None
    ahead = mapped(dataset, tmp_path / "set", monkeypatch, preprocessing)
    plain = Transitions(dataset, 8, CPU, preprocessing)
    one, other = generator(), generator()
    for size in (8, 8, 8, 3, 8):  # the guess of the fourth is wrong
        assert equal(ahead.sample(one, size), plain.sample(other, size))
        assert torch.equal(one.get_state(), other.get_state())


def test_reading_ahead_takes_nothing_from_the_generator_so_a_resumed_run_draws_the_same(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = mapped(dataset, tmp_path / "set", monkeypatch)
    random = generator(5)
    ahead.sample(random)
    kept = random.get_state()
    expected = ahead.sample(random)
    resumed = Transitions(Dataset.load(tmp_path / "set"), 16, CPU)
    assert equal(resumed.sample(torch.Generator().set_state(kept)), expected)


def test_the_next_batch_is_read_while_this_one_is_used(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = mapped(dataset, tmp_path / "set", monkeypatch)
    assert ahead.ahead is not None
    random = generator()
    ahead.sample(random, 8)
    rows, reading = ahead.ahead.guess or pytest.fail("nothing is read ahead")
    reading.result(timeout=10)
    monkeypatch.setattr(ahead.ahead, "_read", lambda rows: pytest.fail("read again"))
    monkeypatch.setattr(ahead.ahead.worker, "submit", lambda *args: reading)
    following = ahead.sample(random, 8)
    assert following.rewards.tolist() == dataset.rewards[rows.numpy()].tolist()


def test_small_or_unmapped_sets_are_not_read_ahead(dataset: Dataset, tmp_path: Path) -> None:
    assert Transitions(dataset, 8, CPU).ahead is None
    assert Transitions(Dataset.load(dataset.save(tmp_path / "set")), 8, CPU).ahead is None
