"""BCQ and BEAR with kept draws: their targets and losses by slow computations, what a step leaves out, whole runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, content, make_batch, replay, same, tiny, train_tiny, weights
from kept import chained_dataset, interrupted

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import flatten, make_config
from mildly.algorithms.mmd import mmd
from mildly.behavior.cache import ActionCache
from mildly.behavior.cvae import CVAE
from mildly.data.batches import Batch, Transitions

CPU = torch.device("cpu")
N = 5
KEPT: dict[str, Any] = {"num_actions": N, "gamma": 0.9, "behavior.steps": 2, "behavior.cache": True}
NAMES = ("bcq", "bear", "uwac")
every_name = pytest.mark.parametrize("name", NAMES)
DATA = chained_dataset((30, 30))
SUCCESSOR = [row + 1 if row not in (29, 59) else {29: 60, 59: 61}[row] for row in range(60)]
"""Where the draws of each row's successor are, by hand: behind the rows where an episode ends."""


def batches(count: int, rows: int = 12) -> list[Batch]:
    random, source = torch.Generator().manual_seed(0), Transitions(DATA, rows, CPU)
    return [source.sample(random) for _ in range(count)]


def keeping(name: str, seed: int = 3, **fields: Any) -> Any:
    """A learner whose CVAE has been trained, with targets and a CVAE that are not as they were built."""
    learner, random = tiny(name, seed=seed, **{**KEPT, **fields}), torch.Generator().manual_seed(5)
    learner.batches(DATA)
    phase = learner.phases()[0]
    assert (phase.name, phase.steps) == ("behavior model", 2)
    for batch in batches(2):
        phase.update(batch)
    targets = [learner.target_critics, learner.cvae, *([learner.target_actor] if name == "bcq" else [])]
    for part in targets:
        for parameter in part.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return learner


# Which draws


def test_n_of_the_kept_actions_follow_one_another_from_a_random_one_on():
    cache = ActionCache(DATA, N, CPU)
    cache.fill(CVAE(OBSERVATIONS, ACTIONS, (8, 8)).sample, 0, 1)
    rows = torch.tensor([3, 29, 59, 3])
    for successors in (False, True):
        places = [SUCCESSOR[row] if successors else row for row in rows.tolist()]
        for n in (1, 3, N):
            random = torch.Generator().manual_seed(n)
            first = [0] * 4 if n == N else torch.randint(N, (4, 1), generator=replay(random)).flatten().tolist()
            got = cache.pick(rows, successors, n, random)
            expected = [
                [cache.actions[place][(start + k) % N].tolist() for k in range(n)]
                for place, start in zip(places, first, strict=True)
            ]
            assert got.shape == (4, n, ACTIONS)
            assert got.dtype == torch.float32
            assert got.tolist() == expected


def test_each_of_the_kept_actions_is_taken_as_often_as_the_others():
    cache = ActionCache(DATA, N, CPU)
    cache.fill(lambda states, n, _: torch.arange(n).float().view(1, n, 1).expand(len(states), n, ACTIONS) / 8, 0, 1)
    picked = cache.pick(torch.zeros(5000, dtype=torch.int64), False, 2, torch.Generator().manual_seed(0))[..., 0] * 8
    assert torch.bincount(picked.long().flatten(), minlength=N).tolist() == pytest.approx([2000] * N, abs=150)
    assert (picked[:, 0] != picked[:, 1]).all()


@every_name
def test_draws_belong_to_the_states_of_the_batch(name):
    """With a decoder that ignores its latents, a draw tells which state it was drawn in."""
    learner = keeping(name, normalize_observations=True)
    with torch.no_grad():
        learner.cvae.decoder[0].weight[:, OBSERVATIONS:] = 0
    batch = learner.batches(DATA).sample(torch.Generator().manual_seed(2), 100)
    for successors, states in ((False, batch.observations), (True, batch.next_observations)):
        got = learner.behavior.actions_in(states, batch.rows, 2, successors)
        expected = learner.behavior.draw(states, 2, learner.generator)
        assert expected.std(dim=0).min() > 0.01
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)


def test_bear_keeps_draws_before_tanh_and_the_others_after_it():
    for name, beyond in (("bcq", False), ("bear", True), ("uwac", True)):
        learner = keeping(name)
        learner.cvae.decoder[-1].bias.data.fill_(3.0)
        learner.update(batches(1)[0])
        assert bool(learner.behavior.cache.actions.abs().max() > 1) == beyond


def test_draws_that_half_precision_cannot_hold_are_kept_at_its_bounds():
    cache = ActionCache(DATA, N, CPU)
    cache.fill(lambda states, n, _: torch.full((len(states), n, ACTIONS), -1e6), 0, 1)
    assert cache.gather(torch.tensor([0])).unique().tolist() == [-65504.0]


# Targets and losses


def test_bcqs_target_is_of_the_best_of_the_kept_draws_in_the_next_state():
    learner, batch = keeping("bcq", reach=0.4), batches(1)[0]
    state = learner.generator.get_state()
    got = learner.td_target(batch)
    assert torch.equal(learner.generator.get_state(), state)  # all are taken: nothing is drawn
    kept, shift = learner.behavior.cache.actions.double().numpy(), Layers.of(learner.target_actor.net)
    critics, expected = [Layers.of_critic(learner.target_critics, j) for j in range(2)], []
    for i, row in enumerate(batch.rows.tolist()):
        s = batch.next_observations[i]
        moved = [np.clip(a + 0.4 * np.tanh(shift(s, a)), -1, 1) for a in kept[SUCCESSOR[row]]]
        values = [[critic(s, a)[0] for critic in critics] for a in moved]
        best = max(0.75 * min(pair) + 0.25 * max(pair) for pair in values)
        expected.append(float(batch.rewards[i] + 0.9 * (1 - batch.terminated[i]) * best))
    assert got.tolist() == pytest.approx(expected, abs=1e-4)


def test_bcqs_actor_shifts_one_of_the_kept_draws_in_the_state():
    learner, batch = keeping("bcq", reach=0.4), batches(1)[0]
    learner.behavior.fill()
    first = torch.randint(N, (12, 1), generator=replay(learner.generator)).flatten().tolist()
    kept = learner.behavior.cache.actions.double().numpy()
    shift, critic = Layers.of(learner.actor.net), Layers.of_critic(learner.critics, 0)
    gains = []
    for s, row, k in zip(batch.observations, batch.rows.tolist(), first, strict=True):
        gains.append(critic(s, np.clip(kept[row][k] + 0.4 * np.tanh(shift(s, kept[row][k])), -1, 1))[0])
    assert learner.update_actor(batch)["loss_actor"].item() == pytest.approx(-np.mean(gains), abs=1e-4)


@pytest.mark.parametrize("name", ["bear", "uwac"])
def test_bears_distance_is_of_some_of_the_kept_draws_before_tanh(name):
    learner, batch = keeping(name, mmd_actions=3, kernel_width=0.8), batches(1)[0]
    learner.behavior.fill()
    random = replay(learner.generator)
    first = torch.randint(N, (12, 1), generator=random).flatten().tolist()
    noise, actor = torch.randn(12, 3, ACTIONS, generator=random), Layers.of(learner.actor.net)
    kept, expected = learner.behavior.cache.actions.double().numpy(), []
    for s, row, k, e in zip(batch.observations, batch.rows.tolist(), first, noise, strict=True):
        of_data = np.array([kept[row][(k + i) % N] for i in range(3)])
        out = actor(s)
        own = np.array([out[:2] + np.exp(out[2:].clip(-5, 2)) * one.numpy() for one in e])
        expected.append(mmd(torch.tensor(of_data)[None], torch.tensor(own)[None], "gaussian", 0.8).item())
    _, distance, _ = learner.actor_loss(batch, climb=True)
    assert distance.tolist() == pytest.approx(expected, abs=1e-4)
    assert np.std(expected) > 0.01


def test_bear_keeps_as_many_draws_as_it_compares_where_these_are_more():
    for compared, kept in ((3, N), (8, 8)):
        learner = keeping("bear", mmd_actions=compared)
        learner.update(batches(1)[0])
        assert learner.behavior.cache.actions.shape == (62, kept, ACTIONS)


# Steps


@every_name
def test_a_step_neither_trains_the_cvae_nor_decodes(name):
    learner = keeping(name)
    learner.behavior.fill()
    trained, decoded = weights(learner.cvae), []
    learner.cvae.decoder.register_forward_hook(lambda *_: decoded.append(1))
    for batch in batches(4):
        metrics = learner.update(batch)
        assert "loss_behavior" not in metrics
    assert not decoded
    assert same(weights(learner.cvae), trained)
    plain = keeping(name, **{"behavior.cache": False})
    plain.cvae.decoder.register_forward_hook(lambda *_: decoded.append(1))
    plain.update(batches(1)[0])
    assert decoded


@every_name
def test_no_gradient_reaches_the_cvae(name):
    learner = keeping(name)
    learner.behavior.optimizer.zero_grad()
    for batch in batches(2):
        learner.update(batch)
    assert all(parameter.grad is None for parameter in learner.cvae.parameters())
    assert all(parameter.grad is not None for parameter in learner.actor.parameters())


@every_name
def test_kept_draws_are_drawn_anew_after_steps_and_not_after_calls(name):
    learner = keeping(name, **{"behavior.refresh_every": 3})
    for number, batch in enumerate(batches(7), start=1):
        learner.update(batch)
        assert learner.behavior.cache.edition == number // 3


@every_name
def test_draws_are_fresh_where_memory_or_rows_are_missing(name):
    """Then the step is to the bit that of a learner that keeps nothing."""
    plain = keeping(name, **{"behavior.cache": False})
    short = keeping(name, **{"behavior.cache_megabytes": 0.99 * 62 * N * ACTIONS * 2 / 1e6})
    assert short.behavior.cache is None
    for batch in batches(3):
        plain.update(batch)
        short.update(batch)
    assert same(weights(plain.critics, plain.actor), weights(short.critics, short.actor))
    plain, stranger = keeping(name, **{"behavior.cache": False}), keeping(name)
    for seed in range(3):
        plain.update(make_batch(seed=seed))
        stranger.update(make_batch(seed=seed))
    assert same(weights(plain.critics, plain.actor), weights(stranger.critics, stranger.actor))


# The preset, and whole runs


@pytest.mark.parametrize("name", ["bcq", "bear"])
def test_fast_is_default_but_for_the_cvae(name):
    kind = ALGORITHMS[name]
    default, fast = (flatten(make_config(kind, preset, "", {})) for preset in ("default", "fast"))
    changed = {field for field in default if default[field] != fast[field]}
    assert changed == {"behavior.steps", "behavior.cache"}
    assert kind.steps_of("fast") == kind.steps_of("default") == 100_000
    paper = flatten(make_config(kind, "paper", "", {}))
    assert (paper["behavior.steps"], paper["behavior.cache"]) == (None, False)


RUN: dict[str, Any] = {"preset": "fast", "behavior.steps": 12, "steps": 20, "log_every": 7, "eval_every": 10}
POINTS = (5, 12, 13, 19, 20, 21, 31)
"""While the CVAE trains and at its end, before and after the first filling, around BEAR's warm-up's end, later."""


@pytest.mark.parametrize(("name", "more"), [("bcq", {"behavior.refresh_every": 8}), ("bear", {"warmup_steps": 8})])
def test_a_run_killed_in_any_phase_and_resumed_equals_an_uninterrupted_one(
    tmp_path: Path, name: str, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**RUN, **more, "behavior.hidden_dims": (16, 16)}
    alone = content(train_tiny(name, tmp_path / "alone", **fields).path)
    interrupted(name, tmp_path / "run", POINTS, monkeypatch, **fields, checkpoint_every=1)
    assert content(tmp_path / "run") == alone
    other = train_tiny(name, tmp_path / "other", **{**fields, "behavior.steps": 13}).path
    assert content(other)["algorithm.critics.weights.0"] != alone["algorithm.critics.weights.0"]
