"""Kept behavior actions: those the model would draw, found for the right states, and the same after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, content, make_batch, make_dataset, same, tiny, train_tiny, weights
from kept import chained_dataset, interrupted

from mildly.behavior import cache as cache_module
from mildly.behavior.cache import ActionCache
from mildly.behavior.cvae import CVAE
from mildly.data.batches import Batch, Preprocessing, Transitions
from mildly.data.dataset import Dataset
from mildly.data.normalize import Normalizer

CPU = torch.device("cpu")
N = 3
HALF = 2.0**-12
"""The largest rounding error of half precision for numbers up to 1."""


def model(seed: int = 0) -> CVAE:
    torch.manual_seed(seed)
    return CVAE(OBSERVATIONS, ACTIONS, (8, 8))


def filled(data: Dataset, edition: int = 0, seed: int = 5, normalizer: Normalizer | None = None) -> ActionCache:
    cache = ActionCache(data, N, CPU, normalizer)
    cache.fill(model().sample, edition, seed)
    return cache


def drawn(states: np.ndarray, edition: int = 0, seed: int = 5) -> torch.Tensor:
    """What the model draws for these states in one go, from the edition's own random numbers."""
    random = torch.Generator().manual_seed(seed + 1 + edition)
    return model().sample(torch.from_numpy(np.ascontiguousarray(states)), N, random)


# Which actions


def test_each_row_has_n_actions_in_its_state_and_n_in_its_successor():
    data = chained_dataset()
    ends = [3, 4, 9]
    states = np.concatenate([data.observations, data.next_observations[ends]])
    expected = drawn(states)
    where = {0: 1, 1: 2, 2: 3, 3: 10, 4: 11, 5: 6, 6: 7, 7: 8, 8: 9, 9: 12}  # of each row's successor, by hand
    rows = torch.tensor([7, 0, 3, 9, 4, 3])
    got = filled(data).gather(rows)
    assert got.shape == (12, N, ACTIONS)
    assert got.dtype == torch.float32
    places = [*rows.tolist(), *(where[row] for row in rows.tolist())]
    assert (got - expected[places]).abs().max() <= HALF
    assert (got - expected[places]).abs().max() > 0


def test_kept_actions_belong_to_the_states_that_a_batch_holds():
    """With a decoder that ignores its latents, an action tells which state it was drawn in."""
    for data in (chained_dataset((30, 20, 1, 9)), make_dataset()):  # in the second no successor is the next row's
        telling = model()
        with torch.no_grad():
            telling.decoder[0].weight[:, OBSERVATIONS:] = 0
        for normalizer in (None, Normalizer.of(data, CPU)):
            cache = ActionCache(data, N, CPU, normalizer)
            cache.fill(telling.sample, 0, 1)
            sampler = Transitions(data, 200, CPU, Preprocessing(normalizer))
            batch = sampler.sample(torch.Generator().manual_seed(2))
            states = torch.cat([batch.observations, batch.next_observations])
            expected = telling.sample(states, N)
            assert expected.std(dim=0).min() > 0.01
            assert (cache.gather(batch.rows) - expected).abs().max() <= HALF


def test_a_successor_shares_the_actions_of_the_next_row_unless_it_is_another_state():
    data = chained_dataset()
    cache = filled(data)
    assert cache.apart.tolist() == [3, 4, 9]
    assert cache.actions.shape == (13, N, ACTIONS)
    rows = torch.arange(10)
    here, there = cache.gather(rows).chunk(2)
    shared = [torch.equal(there[row], here[row + 1]) for row in range(9)]
    assert shared == [row not in (3, 4) for row in range(9)]
    assert len(ActionCache(make_dataset(), N, CPU).apart) == 60
    nearly = chained_dataset()
    nearly.next_observations[6, 1] += 1e-6  # in one number only, and by little
    assert ActionCache(nearly, N, CPU).apart.tolist() == [3, 4, 6, 9]


def test_blocks_change_neither_the_ends_nor_where_actions_are_found(monkeypatch):
    data = chained_dataset((4, 1, 5, 3, 1, 6))
    whole = ActionCache(data, N, CPU)
    monkeypatch.setattr("mildly.data.content.BLOCK", 3)
    monkeypatch.setattr(cache_module, "_BLOCK", 4)
    pieces = ActionCache(data, N, CPU)
    assert pieces.apart.tolist() == whole.apart.tolist() == [3, 4, 9, 12, 13, 19]
    assert torch.equal(pieces.successors, whole.successors)
    telling = model()
    with torch.no_grad():
        telling.decoder[0].weight[:, OBSERVATIONS:] = 0
    for cache in (pieces, whole):
        cache.fill(telling.sample, 0, 1)
    assert (pieces.gather(torch.arange(20)) - whole.gather(torch.arange(20))).abs().max() <= 2 * HALF


def test_a_set_of_one_row_has_one_end():
    cache = filled(chained_dataset((1,)))
    assert cache.apart.tolist() == [0]
    assert cache.gather(torch.tensor([0])).shape == (2, N, ACTIONS)


def test_actions_are_drawn_in_the_normalized_states():
    data = chained_dataset()
    normalizer = Normalizer(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0, 0.5]))
    states = np.concatenate([data.observations, data.next_observations[[3, 4, 9]]])
    expected = drawn(((states - [1.0, 2.0, 3.0]) / [2.0, 4.0, 0.5]).astype(np.float32))
    kept = filled(data, normalizer=normalizer).actions.float()
    assert (kept - expected).abs().max() <= 2 * HALF
    assert (kept - drawn(states)).abs().max() > 0.01


def test_a_mapped_set_gives_the_same_actions(tmp_path: Path) -> None:
    data = chained_dataset()
    mapped = Dataset.load(data.save(tmp_path / "set"))
    assert isinstance(mapped.observations, np.memmap)
    assert torch.equal(filled(mapped).actions, filled(data).actions)


def test_an_edition_is_drawn_once_and_the_next_one_is_another():
    cache = filled(chained_dataset())
    first = cache.actions.clone()
    cache.fill(model(1).sample, 0, 5)  # another model, but this edition is there
    assert torch.equal(cache.actions, first)
    cache.fill(model().sample, 1, 5)
    assert not torch.isclose(cache.actions, first).all(dim=-1).any()
    states = np.concatenate([cache.dataset.observations, cache.dataset.next_observations[[3, 4, 9]]])
    assert (cache.actions.float() - drawn(states, 1)).abs().max() <= HALF
    assert not torch.equal(filled(chained_dataset(), seed=6).actions, first)


# In a learner


def learner_with(data: Dataset, name: str = "mcq", phase: int = 2, **fields: Any) -> Any:
    """A learner with the data before it, its behavior model trained in the phase before the main steps."""
    kept = {"num_actions": N, "behavior.steps": 2, "behavior.cache": True}
    learner = tiny(name, **{**kept, **fields})
    learner.batches(data)
    (model_phase,) = learner.phases()
    assert (model_phase.name, model_phase.steps) == ("behavior model", 2)
    for batch in batches(data, phase):
        model_phase.update(batch)
    return learner


def batches(data: Dataset, count: int) -> list[Batch]:
    random, source = torch.Generator().manual_seed(0), Transitions(data, 12, CPU)
    return [source.sample(random) for _ in range(count)]


def actions_seen(learner: Any, batch: Batch) -> torch.Tensor:
    """The behavior actions that one step takes."""
    seen, draw = [], learner.behavior.actions
    learner.behavior.actions = lambda *args: seen.append(draw(*args)) or seen[-1]
    try:
        learner.update(batch)
    finally:
        del learner.behavior.actions
    (one,) = seen
    return one


@pytest.mark.parametrize("name", ["mcq", "mcq-td3"])
def test_once_the_behavior_model_is_trained_a_step_takes_kept_actions(name):
    data = chained_dataset((30, 30))
    learner = learner_with(data, name)
    trained = weights(learner.behavior.model)
    cache = learner.behavior.cache
    assert cache.actions is None
    for batch in batches(data, 5):
        assert torch.equal(actions_seen(learner, batch), cache.gather(batch.rows))
    assert len(cache.actions) == 62
    assert same(weights(learner.behavior.model), trained)


def test_a_step_with_kept_actions_draws_only_the_policys_own():
    data = chained_dataset((30, 30))
    learner = learner_with(data)
    for batch in batches(data, 4):
        random = torch.Generator().set_state(learner.ood_generator.get_state())
        torch.randn(24, N, ACTIONS, generator=random)
        learner.update(batch)
        assert torch.equal(learner.ood_generator.get_state(), random.get_state())


def test_kept_actions_are_drawn_anew_every_so_many_steps():
    data = chained_dataset((30, 30))
    learner = learner_with(data, **{"behavior.refresh_every": 3})
    kept = {}
    for number, batch in enumerate(batches(data, 10), start=1):
        learner.update(batch)
        kept[number] = learner.behavior.cache.actions.clone()
        assert learner.behavior.cache.edition == number // 3
    changes = [number for number in range(2, 11) if not torch.equal(kept[number], kept[number - 1])]
    assert changes == [3, 6, 9]
    never = learner_with(data)
    for batch in batches(data, 10):
        never.update(batch)
    assert torch.equal(never.behavior.cache.actions, kept[1])


def test_what_would_take_too_much_memory_is_drawn_in_each_step_after_all():
    data = chained_dataset((30, 30))
    size = 62 * N * ACTIONS * 2 / 1e6
    assert ActionCache(data, N, CPU).megabytes == pytest.approx(size)
    assert filled(data).actions.nbytes / 1e6 == pytest.approx(size)
    assert learner_with(data, **{"behavior.cache_megabytes": 1.01 * size}).behavior.cache is not None
    without = learner_with(data, **{"behavior.cache_megabytes": 0.99 * size})
    assert without.behavior.cache is None
    plain = learner_with(data, **{"behavior.cache": False})
    for batch in batches(data, 3):
        without.update(batch)
        plain.update(batch)
    assert same(weights(without.critics, without.actor), weights(plain.critics, plain.actor))


def test_batches_that_are_no_rows_of_the_data_have_fresh_actions():
    data = chained_dataset((30, 30))
    learner = learner_with(data)
    for batch in batches(data, 2):
        learner.update(batch)
    one, other = (actions_seen(learner, make_batch()) for _ in range(2))
    assert one.shape == (24, N, ACTIONS)
    assert not torch.isclose(one, other).all(dim=-1).any()


def restored(data: Dataset, phase: int, steps: int) -> tuple[Any, Any]:
    """A learner with kept actions, and another with its state that took some steps of its own before."""
    straight, other = learner_with(data), learner_with(data, seed=9, phase=phase)
    for batch in batches(data, 3):
        straight.update(batch)
    for batch in batches(data, steps):
        other.update(batch)
    other.load_state_dict(straight.state_dict())
    return straight, other


def test_kept_actions_are_no_part_of_the_state_and_come_back_after_a_restore():
    data = chained_dataset((30, 30))
    straight, other = restored(data, phase=0, steps=0)
    assert not any("cache" in name for name in straight.state_dict())
    last = batches(data, 4)[-1]
    assert torch.equal(actions_seen(other, last), actions_seen(straight, last))
    assert same(weights(other.critics), weights(straight.critics))


def test_a_learner_restored_to_other_weights_forgets_the_actions_it_kept():
    data = chained_dataset((30, 30))
    straight, other = restored(data, phase=2, steps=2)
    last = batches(data, 4)[-1]
    assert torch.equal(actions_seen(other, last), actions_seen(straight, last))


# Whole runs

PHASES: dict[str, Any] = {
    "extras.return_mix": 0.2,
    "extras.bc_warmup_steps": 8,
    "extras.bc_weight": 0.1,
    "extras.policy_ema": 0.1,
    "behavior.steps": 12,
    "behavior.cache": True,
    "behavior.refresh_every": 8,
    "behavior.hidden_dims": (16, 16),
    "lam": "auto",
    "ood_actions": 1,
    "num_actions": N,
    "steps": 20,
    "log_every": 7,
    "eval_every": 10,
}
"""12 steps of the behavior model, 8 of the warm-up, whose first one fills the cache, and 20 main ones."""
POINTS = (3, 6, 11, 12, 13, 19, 20, 21, 27, 28, 29, 37)
"""While the behavior model trains and at its end; at the first filling; at the end of the warm-up; around a refresh."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return content(train_tiny("mcq", tmp_path_factory.mktemp("whole") / "run", **PHASES).path)


@pytest.mark.parametrize(("point", "within"), [(5, 5), (11, 11), (12, 12), (13, 1), (19, 7), (20, 8), (21, 1), (28, 8)])
def test_a_run_killed_in_any_phase_and_resumed_equals_an_uninterrupted_one(
    tmp_path: Path, whole: Any, point: int, within: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`within` is the step of its phase, so that a checkpoint stands there."""
    interrupted("mcq", tmp_path / "run", (point,), monkeypatch, **PHASES, checkpoint_every=within)
    assert content(tmp_path / "run") == whole


def test_a_run_resumed_from_older_checkpoints_again_and_again_equals_an_uninterrupted_one(
    tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted("mcq", tmp_path / "run", POINTS, monkeypatch, **PHASES, checkpoint_every=4)
    assert content(tmp_path / "run") == whole


@pytest.mark.parametrize("fields", [{}, {"normalize_observations": True, "policy_delay": 2}], ids=str)
def test_deterministic_mcq_killed_in_every_phase_equals_an_uninterrupted_run(
    tmp_path: Path, fields: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = train_tiny("mcq-td3", tmp_path / "alone", **PHASES, **fields).path
    interrupted("mcq-td3", tmp_path / "run", POINTS, monkeypatch, **PHASES, checkpoint_every=1, **fields)
    assert content(tmp_path / "run") == content(alone)


def test_each_of_the_phases_shows_in_the_result(tmp_path: Path, whole: Any) -> None:
    changes = (
        {"extras.return_mix": 0.0},
        {"extras.bc_warmup_steps": 0},
        {"behavior.steps": 13},
        {"behavior.refresh_every": None},
    )
    for number, change in enumerate(changes):
        other = train_tiny("mcq", tmp_path / str(number), **{**PHASES, **change, "eval_every": 20}).path
        assert content(other)["algorithm.critics.weights.0"] != whole["algorithm.critics.weights.0"]
