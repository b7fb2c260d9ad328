"""Batches of several sources at given shares."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_dataset, replay
from hypothesis import assume, given, strategies as st

from mildly.data.batches import COLUMNS, Batch, Buffer, Mixture, Preprocessing, Sampler, Transitions
from mildly.data.normalize import Normalizer
from mildly.training import checkpoint

CPU = torch.device("cpu")
LOGGED = make_dataset()


class Stub(Sampler):
    """So many rows, of which none is ever drawn."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return self.rows

    def sample(self, generator: torch.Generator, size: int | None = None) -> Batch:
        raise AssertionError("drawn from")


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def equal(one: Batch, other: Batch) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def online(rows: int, seed: int = 1) -> Buffer:
    """A buffer of the logged data's sizes with some rows in it."""
    buffer, data = Buffer(3, 2, 16, CPU), make_dataset(40, seed)
    buffer.add({name: getattr(data, name)[:rows] for name in COLUMNS})
    return buffer


def mixture(rows: int, share: float = 0.5, batch_size: int = 16) -> Mixture:
    sources = {"logged": Transitions(LOGGED, 16, CPU), "online": online(rows)}
    return Mixture(sources, {"logged": 1 - share, "online": share}, batch_size)


# How many of each

names = st.sampled_from(["a", "b", "c", "d", "e"])
share_of = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0]) | st.floats(0, 1e6, allow_subnormal=False)


@given(st.dictionaries(names, st.tuples(share_of, st.integers(0, 2)), min_size=1), st.integers(1, 5000))
def test_counts_are_the_shares_of_those_that_have_rows_and_add_up(
    sources: Mapping[str, tuple[float, int]], size: int
) -> None:
    shares = {name: share for name, (share, _) in sources.items()}
    there = {name: share for name, (share, rows) in sources.items() if rows}
    assume(sum(shares.values()) > 0)
    mixed = Mixture({name: Stub(rows) for name, (_, rows) in sources.items()}, shares, size)
    assert len(mixed) == sum(rows for _, rows in sources.values())
    if not sum(there.values()):
        with pytest.raises(ValueError, match="nothing to draw from yet"):
            mixed.counts(size)
        return
    counts = mixed.counts(size)
    assert sum(counts.values()) == size
    assert counts.keys() == there.keys()
    for name, count in counts.items():
        exact = there[name] / sum(there.values()) * size
        assert abs(count - exact) <= 1 + 1e-6
        assert count >= 0
        assert count == 0 or there[name] > 0


@pytest.mark.parametrize(
    ("shares", "size", "expected"),
    [
        ({"a": 0.5, "b": 0.5}, 256, {"a": 128, "b": 128}),
        ({"a": 1, "b": 3}, 8, {"a": 2, "b": 6}),
        ({"a": 0.25, "b": 0.75}, 10, {"a": 2, "b": 8}),  # 2.5 is rounded to an even number, as everywhere in numpy
        ({"a": 1, "b": 1, "c": 1}, 10, {"a": 3, "b": 4, "c": 3}),
        ({"a": 0, "b": 2}, 7, {"a": 0, "b": 7}),
    ],
)
def test_counts_by_hand(shares: dict[str, float], size: int, expected: dict[str, int]) -> None:
    assert Mixture({name: Stub(1) for name in shares}, shares, size).counts(size) == expected


def test_an_empty_source_gives_its_share_to_the_others_as_theirs_are() -> None:
    sources = {"a": Stub(1), "b": Stub(0), "c": Stub(5)}
    mixed = Mixture(sources, {"a": 1.0, "b": 2.0, "c": 3.0}, 8)
    assert mixed.counts(8) == {"a": 2, "c": 6}
    sources["b"].rows = 1
    assert mixed.counts(12) == {"a": 2, "b": 4, "c": 6}


# All alike


def test_without_shares_every_transition_is_as_likely_as_any_other() -> None:
    sources = {"logged": Transitions(LOGGED, 16, CPU), "online": online(3), "empty": online(0)}
    mixed, random = Mixture(sources, None, 20_000, keep_rows=True), generator(2)
    batch = mixed.sample(random)
    counts = torch.bincount(batch.rows + 1, minlength=61)
    assert len(batch.rows) == 20_000
    expected = 20_000 / 63
    assert ((counts[1:] - expected).abs() < 5 * expected**0.5).all()
    assert abs(int(counts[0]) - 3 * expected) < 5 * (3 * expected) ** 0.5
    assert set(batch.rewards[batch.rows < 0].tolist()) == set(make_dataset(40, 1).rewards[:3].tolist())
    assert torch.equal(batch.rewards[batch.rows >= 0], torch.from_numpy(LOGGED.rewards)[batch.rows[batch.rows >= 0]])


def test_a_small_source_is_not_rounded_away() -> None:
    """One row beside sixty: in batches of four it comes up in about one of fifteen."""
    sources = {"logged": Transitions(LOGGED, 4, CPU), "online": online(1)}
    mixed, random = Mixture(sources, None, 4, keep_rows=True), generator(0)
    found = sum(int((mixed.sample(random).rows < 0).sum()) for _ in range(3000))
    assert abs(found - 12_000 / 61) < 5 * (12_000 / 61) ** 0.5


@pytest.mark.parametrize(("rows", "share", "known"), [(20, 0.5, 8), (20, 1.0, 0), (0, 0.5, 16)])
def test_rows_are_kept_if_asked_for_and_are_minus_one_where_there_are_none(rows: int, share: float, known: int) -> None:
    plain = mixture(rows, share)
    batch = Mixture(plain.sources, plain.shares, 16, keep_rows=True).sample(generator())
    assert (batch.rows >= 0).tolist() == [True] * known + [False] * (16 - known)


def test_data_behind_others_have_rows_behind_theirs() -> None:
    first, behind = (Transitions(LOGGED, 16, CPU, first_row=start).sample(generator()) for start in (0, 100))
    assert torch.equal(behind.rows, first.rows + 100)
    assert torch.equal(behind.rewards, first.rewards)


# What is drawn


@pytest.mark.parametrize(("share", "split"), [(0.5, 8), (0.25, 12), (0.75, 4)])
def test_rows_are_what_each_source_would_give_one_behind_the_other(share: float, split: int) -> None:
    mixed, random = mixture(20, share), generator(3)
    again = replay(random)
    batch = mixed.sample(random)
    parts = mixed.sources["logged"].sample(again, split), mixed.sources["online"].sample(again, 16 - split)
    for name in COLUMNS:
        assert torch.equal(getattr(batch, name), torch.cat([getattr(part, name) for part in parts])), name
    assert len(batch.rewards) == 16
    assert torch.equal(random.get_state(), again.get_state())


def test_a_mixed_batch_is_of_no_rows_of_one_data_set() -> None:
    """Else an algorithm would take the online part, too, for rows of the logged data."""
    assert len(mixture(20).sample(generator()).rows) == 0


@pytest.mark.parametrize(("rows", "share"), [(0, 0.5), (20, 0.0)])
def test_while_there_is_one_source_only_batches_are_its_own_with_their_rows(rows: int, share: float) -> None:
    batch = mixture(rows, share).sample(generator())
    assert equal(batch, Transitions(LOGGED, 16, CPU).sample(generator()))
    assert len(batch.rows) == 16


def test_a_source_joins_as_soon_as_it_has_rows() -> None:
    mixed = mixture(0)
    alone = mixed.sample(generator())
    assert set(alone.rewards.tolist()) <= set(LOGGED.rewards.tolist())
    mixed.sources["online"].add({name: getattr(make_dataset(40, 1), name)[:1] for name in COLUMNS})
    batch = mixed.sample(generator())
    assert set(batch.rewards[8:].tolist()) == {float(make_dataset(40, 1).rewards[0])}
    assert set(batch.rewards[:8].tolist()) <= set(LOGGED.rewards.tolist())


def test_a_batch_may_have_another_size_than_usual() -> None:
    mixed = mixture(20)
    assert len(mixed.sample(generator()).rewards) == 16
    assert len(mixed.sample(generator(), 5).rewards) == 5
    assert mixed.counts(5) == {"logged": 2, "online": 3}
    assert len(mixed) == len(LOGGED) + 20


def test_each_source_preprocesses_its_own_rows() -> None:
    normalizer, data = Normalizer.of(LOGGED, CPU), make_dataset(40, 1)
    buffer = Buffer(3, 2, 16, CPU, Preprocessing(normalizer, reward_scale=10.0))
    buffer.add({name: getattr(data, name) for name in COLUMNS})
    mixed = Mixture({"logged": Transitions(LOGGED, 16, CPU), "online": buffer}, {"logged": 0.5, "online": 0.5}, 16)
    batch = mixed.sample(generator())
    assert set(batch.rewards[:8].tolist()) <= set(LOGGED.rewards.tolist())
    assert set(batch.rewards[8:].tolist()) <= set((data.rewards * np.float32(10)).tolist())
    normalized = normalizer.apply(torch.from_numpy(data.observations)).tolist()
    assert all(row in normalized for row in batch.observations[8:].tolist())


def test_a_mixture_may_be_a_source_of_another() -> None:
    inner = mixture(20, 0.5)
    outer = Mixture({"old": Transitions(LOGGED, 16, CPU), "new": inner}, {"old": 1.0, "new": 1.0}, 12)
    batch, again = outer.sample(generator()), generator()
    parts = outer.sources["old"].sample(again, 6), inner.sample(again, 6)
    for name in COLUMNS:
        assert torch.equal(getattr(batch, name), torch.cat([getattr(part, name) for part in parts]))


# Refusals


@pytest.mark.parametrize(
    "shares",
    [
        {"logged": 1.0},
        {"logged": 0.5, "online": 0.25, "model": 0.25},
        {"logged": 0.5, "other": 0.5},
        {"logged": -0.1, "online": 1.1},
        {"logged": 0.0, "online": 0.0},
        {"logged": math.nan, "online": 1.0},
        {"logged": 1.0, "online": math.nan},
        {"logged": math.inf, "online": 1.0},
        {},
    ],
    ids=str,
)
def test_shares_that_do_not_fit_the_sources_are_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"every source needs a share of at least 0, got .* for logged, online"):
        Mixture({"logged": Stub(1), "online": Stub(1)}, shares, 8)


def test_a_mixture_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="every source needs a share"):
        Mixture({}, {}, 8)


@pytest.mark.parametrize("rows", [0, 3])
def test_there_is_nothing_to_draw_where_all_sources_with_a_share_are_empty(rows: int) -> None:
    mixed = Mixture({"logged": Stub(rows), "online": Stub(0)}, {"logged": 0.0, "online": 1.0}, 8)
    with pytest.raises(ValueError, match="nothing to draw from yet"):
        mixed.sample(generator())


# State


def test_the_state_is_that_of_its_sources_and_the_shares() -> None:
    assert set(mixture(5).state_dict()) == {
        *(f"sources.online.columns.{name}" for name in COLUMNS),
        "sources.online.added",
        "shares.logged",
        "shares.online",
    }


def test_a_restored_mixture_goes_on_to_the_bit(tmp_path: Path) -> None:
    straight, restored = mixture(7, 0.25), mixture(0, 0.25)
    more: dict[str, Any] = {name: getattr(make_dataset(2000, 5), name) for name in COLUMNS}
    straight.sources["online"].add(more)  # so that it has grown
    checkpoint.save(tmp_path / "checkpoint.safetensors", straight.state_dict(), {"step": 0})
    sources = dict(restored.sources)
    restored.load_state_dict(checkpoint.load(tmp_path / "checkpoint.safetensors")[0])
    assert restored.sources == sources  # the very objects, since others hold them too
    for seed in range(3):
        assert equal(straight.sample(generator(seed)), restored.sample(generator(seed)))
        for mixed in (straight, restored):
            mixed.sources["online"].add({name: column[seed : seed + 1] for name, column in more.items()})
    assert len(restored) == len(straight) == len(LOGGED) + 7 + 2000 + 3
