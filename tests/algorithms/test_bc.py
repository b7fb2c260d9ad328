"""Behavior cloning: every objective against slow computations, its actors, and training on the best episodes alone."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, content, make_batch, make_dataset, tiny, train_tiny

from mildly.actors import DeterministicActor, SoftGaussianActor, TanhGaussianActor
from mildly.algorithms.bc import BC
from mildly.algorithms.config import make_config
from mildly.data.dataset import FIELDS, Dataset
from mildly.data.registry import load_dataset
from mildly.data.select import best_episodes
from mildly.errors import MildlyError
from mildly.policy import load_policy
from mildly.training.offline import resume

OBJECTIVES = {"likelihood": TanhGaussianActor, "mse": DeterministicActor, "normal": SoftGaussianActor}


# The objectives


def test_likelihood_is_the_tanh_gaussians_of_actions_held_away_from_their_bounds():
    learner, batch = tiny("bc"), make_batch(6)
    batch.actions[0], batch.actions[1, 0] = 1.0, -1.0  # as an environment clips them
    distribution = learner.actor(batch.observations)
    actions = batch.actions.double().numpy()
    z = np.log(np.maximum(1 + actions, 0.05) / np.maximum(1 - actions, 0.05)) / 2
    mean, std = distribution.mean.detach().double().numpy(), distribution.log_std.exp().detach().double().numpy()
    density = np.exp(-0.5 * ((z - mean) / std) ** 2) / (std * np.sqrt(2 * np.pi)) / (1 - np.tanh(z) ** 2)
    distance = np.sum((np.tanh(mean) - batch.actions.numpy()) ** 2) / 6
    metrics = learner.update(batch)
    assert metrics["loss_actor"].item() == pytest.approx(-np.log(density).sum() / 6, abs=1e-4)
    assert metrics["policy_distance"].item() == pytest.approx(distance, rel=1e-5)


def test_mse_is_the_squared_distance_of_a_deterministic_action():
    learner, batch = tiny("bc", objective="mse"), make_batch(6)
    actions = learner.policy().act(batch.observations.numpy())
    expected = sum((actions[i, k] - batch.actions[i, k].item()) ** 2 for i in range(6) for k in range(ACTIONS)) / 6
    metrics = learner.update(batch)
    assert metrics["loss_actor"].item() == pytest.approx(expected, rel=1e-5)
    assert torch.equal(metrics["policy_distance"], metrics["loss_actor"])


def soft_gaussian(learner: BC, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and log standard deviation of the actor with soft bounds, layer by layer."""
    x = state.astype(np.float64)
    linear = [layer for layer in learner.actor.net if isinstance(layer, torch.nn.Linear)]
    for i, layer in enumerate(linear):
        x = layer.weight.detach().double().numpy() @ x + layer.bias.detach().double().numpy()
        if i < len(linear) - 1:
            x = np.where(x > 0, x, 0.1 * x)
    low, high = (getattr(learner.actor, name).detach().double().numpy() for name in ("log_std_min", "log_std_max"))
    log_std = high - np.log1p(np.exp(high - x[ACTIONS:]))
    return x[:ACTIONS], low + np.log1p(np.exp(log_std - low))


def test_normal_is_the_mean_over_dimensions_of_a_gaussian_with_soft_bounds():
    learner, batch = tiny("bc", objective="normal", log_std_min=-0.5, log_std_max=0.4), make_batch(6)
    total, distance = 0.0, 0.0
    for state, action in zip(batch.observations.numpy(), batch.actions.numpy(), strict=True):
        mean, log_std = soft_gaussian(learner, state)
        for k in range(ACTIONS):
            std = np.exp(log_std[k])
            total += np.log(np.exp(-0.5 * ((action[k] - mean[k]) / std) ** 2) / (std * np.sqrt(2 * np.pi)))
            distance += (np.clip(mean[k], -1, 1) - action[k]) ** 2
    metrics = learner.update(batch)
    assert metrics["loss_actor"].item() == pytest.approx(-total / (6 * ACTIONS), abs=1e-5)
    assert metrics["policy_distance"].item() == pytest.approx(distance / 6, rel=1e-5)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_cloning_learns_the_datas_actions_with_all_of_its_actors_weights(objective):
    learner = tiny("bc", objective=objective, actor_lr=0.01, hidden_dims=(16,))
    assert type(learner.actor) is OBJECTIVES[objective]
    before = [p.detach().clone() for p in learner.actor.parameters()]
    states = torch.linspace(-1, 1, 12)[:, None].expand(12, OBSERVATIONS)
    actions = torch.stack([0.8 * states[:, 0], -0.5 * states[:, 0]], dim=-1)
    batch = make_batch(12)._replace(observations=states, actions=actions)
    for _ in range(300):
        metrics = learner.update(batch)
    assert metrics["policy_distance"].item() < 0.01
    assert all(not torch.equal(new, old) for new, old in zip(learner.actor.parameters(), before, strict=True))


# The actor with soft bounds


def test_the_soft_bounds_are_kept_and_let_gradients_pass():
    learner = tiny("bc", objective="normal", log_std_min=-10, log_std_max=1)  # whole numbers pass as floats
    states = make_batch(50).observations * 1000
    log_std = learner.actor(states).log_std
    assert log_std.max() <= 1.0 + 1e-4  # the lower bound's softness adds log(1 + exp(-11)) at most
    assert log_std.min() >= -10.0
    assert log_std.max() - log_std.min() > 9
    with torch.no_grad():
        learner.actor.net[-1].bias[ACTIONS:] = 8.0  # hard bounds would give no slope here
    learner.actor.zero_grad()
    learner.actor(make_batch().observations).log_std.sum().backward()
    assert (learner.actor.net[-1].bias.grad[ACTIONS:] > 0).all()


def test_the_gaussian_acts_with_its_mean_and_draws_with_its_deviation_within_the_bounds(tmp_path):
    learner = tiny("bc", objective="normal")
    with torch.no_grad():
        learner.actor.net[-1].weight.zero_()
        learner.actor.net[-1].bias.copy_(torch.tensor([0.3, 1.7, -2.0, -2.0]))
    policy = learner.policy()
    policy.save(tmp_path)
    states = np.zeros((4000, OBSERVATIONS), np.float32)
    for given in (policy, load_policy(tmp_path)):
        np.testing.assert_allclose(given.act(states[:2]), [[0.3, 1.0]] * 2, atol=1e-6)
        draws = given.act(states, False, torch.Generator().manual_seed(0))
        assert np.abs(draws).max() <= 1
        assert draws[:, 0].mean() == pytest.approx(0.3, abs=0.02)
        assert draws[:, 0].std() == pytest.approx(np.exp(soft_gaussian(learner, states[0])[1][0]), rel=0.05)


# The best episodes


def with_returns(returns: list[float], lengths: list[int]) -> Dataset:
    """Episodes of given lengths and returns; each row's observation is its number."""
    rows = sum(lengths)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(lengths) - 1] = True
    numbers = np.arange(rows, dtype=np.float32)
    data = make_dataset(rows)
    return Dataset.from_arrays(
        np.repeat(numbers[:, None], OBSERVATIONS, 1),
        data.actions,
        np.concatenate([[0.0] * (n - 1) + [r] for r, n in zip(returns, lengths, strict=True)]),
        np.repeat(numbers[:, None] + 0.5, OBSERVATIONS, 1),
        ends & (numbers < rows / 2),
        ends & (numbers >= rows / 2),
        data.meta,
    )


RETURNS, LENGTHS = [5.0, -1.0, 9.0, 5.0, 7.0], [3, 2, 4, 1, 2]
ROWS = {0: [0, 1, 2], 1: [3, 4], 2: [5, 6, 7, 8], 3: [9], 4: [10, 11]}


@pytest.mark.parametrize(
    ("share", "chosen"),
    [
        (0.01, [2]),
        (0.2, [2]),
        (0.39, [2]),
        (0.4, [2, 4]),
        (0.6, [0, 2, 4]),
        (0.8, [0, 2, 3, 4]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
@pytest.mark.parametrize("mapped", [False, True])
def test_the_best_episodes_are_whole_and_in_their_order_and_of_equals_the_earlier(share, chosen, mapped, tmp_path):
    data = with_returns(RETURNS, LENGTHS)
    if mapped:
        data = Dataset.load(data.save(tmp_path / "set"))
    picked = best_episodes(data, share)
    rows = [row for episode in chosen for row in ROWS[episode]]
    for name in FIELDS:
        assert np.array_equal(getattr(picked, name), getattr(data, name)[rows])
        assert getattr(picked, name).dtype == getattr(data, name).dtype
        assert isinstance(getattr(picked, name), np.memmap) == mapped
    assert [e.stop - e.start for e in picked.episodes()] == [LENGTHS[i] for i in chosen]
    if len(chosen) == 5:
        assert picked is data
    else:
        columns = [getattr(picked, name) for name in FIELDS]
        assert picked.meta.fingerprint == Dataset.from_arrays(*columns, meta=picked.meta).meta.fingerprint != ""
        words = f"Only the {len(chosen)} best of 5 episodes by return, {len(rows)} of 12 transitions."
        assert picked.meta.notes == (words,)


def test_a_share_is_not_rounded_down_by_an_error_of_floating_point():
    data = with_returns(list(range(100)), [1] * 100)
    assert 0.29 * 100 < 29
    assert len(best_episodes(data, 0.29)) == 29


def test_a_mapped_selection_needs_no_memory_of_its_own_and_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    (tmp_path / "scratch").mkdir()
    data = Dataset.load(with_returns(RETURNS, LENGTHS).save(tmp_path / "set"))
    picked = best_episodes(data, 0.4)
    assert list((tmp_path / "scratch").iterdir()) == []
    assert picked.observations[:, 0].tolist() == [5, 6, 7, 8, 10, 11]


def test_a_selection_that_cannot_be_copied_is_an_error_and_leaves_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(MildlyError, match=r"pendulum-mixed: its episodes cannot be copied to .*gone"):
        train_tiny("bc", tmp_path / "run", best_episodes=0.5, steps=5)
    assert not (tmp_path / "run").exists()


def test_select_gives_all_of_the_data_unless_asked():
    data = with_returns(RETURNS, LENGTHS)
    assert tiny("bc").select(data) is data
    assert tiny("sac").select(data) is data
    assert len(tiny("bc", best_episodes=0.4).select(data)) == 6


def test_batches_are_of_the_selected_rows_and_a_note_says_so():
    learner, data = tiny("bc", best_episodes=0.4), with_returns(RETURNS, LENGTHS)
    sampler = learner.batches(data)
    assert len(sampler) == 6
    batch = sampler.sample(torch.Generator().manual_seed(0), 200)
    assert set(batch.observations[:, 0].tolist()) == {5, 6, 7, 8, 10, 11}
    assert learner.notes == ("Only the 2 best of 5 episodes by return, 6 of 12 transitions.",)
    plain = tiny("bc")
    assert len(plain.batches(data)) == 12
    assert plain.notes == ()


def test_training_sees_the_best_episodes_alone_and_normalizes_by_these(tmp_path, capsys):
    data = load_dataset("pendulum-mixed")
    chosen = best_episodes(data, 0.1)
    assert len(chosen) < len(data) / 5
    assert chosen.episode_returns().min() >= np.sort(data.episode_returns())[-len(chosen.episodes())]
    run = train_tiny("bc", tmp_path / "run", best_episodes=0.1, steps=20, eval_every=0, normalize_observations=True)
    assert f"Only the 9 best of 97 episodes by return, {len(chosen):,} of {len(data):,}" in capsys.readouterr().err
    normalizer = load_policy(run.path).normalizer
    np.testing.assert_allclose(normalizer.mean, chosen.observations.mean(0), atol=1e-4)
    same = train_tiny("bc", tmp_path / "same", dataset=chosen, steps=20, eval_every=0, normalize_observations=True)
    assert content_of(run.path) == content_of(same.path)
    assert run.plan().data.fingerprint == data.meta.fingerprint


def content_of(run: Path) -> dict[str, Any]:
    (run / "evaluations.jsonl").touch()
    return content(run)


def test_a_resumed_run_on_the_best_episodes_equals_an_uninterrupted_one(tmp_path):
    fields = {"best_episodes": 0.3, "eval_every": 20}
    whole = train_tiny("bc", tmp_path / "whole", steps=60, **fields)
    part = train_tiny("bc", tmp_path / "part", steps=30, **fields)
    resume(part.path, steps=60)
    one, other = content(whole.path), content(part.path)
    # The shorter run was also evaluated at its own end.
    assert {k: v for k, v in one.items() if k != "evaluations.jsonl"} == {
        k: v for k, v in other.items() if k != "evaluations.jsonl"
    }


# Configuration


def test_presets():
    assert make_config(BC, "paper", "hopper-medium-v2", {}) == BC.Config()
    c = BC.Config()
    assert (c.hidden_dims, c.actor_lr, c.objective, c.batch_size) == ((400, 400), 3e-4, "likelihood", 256)
    assert (c.log_std_min, c.log_std_max, c.normalize_observations, c.best_episodes) == (-20.0, 2.0, False, None)
    mse = make_config(BC, "mse", "", {})
    assert (mse.hidden_dims, mse.actor_lr, mse.objective, mse.normalize_observations) == ((256, 256), 3e-4, "mse", True)
    polixir = make_config(BC, "polixir", "", {})
    assert (polixir.hidden_dims, polixir.actor_lr, polixir.objective) == ((256, 256), 1e-3, "normal")
    actor = BC(polixir, OBSERVATIONS, ACTIONS).actor
    assert actor.log_std_min.tolist() == [-10.0, -10.0]
    assert actor.log_std_max.tolist() == [1.0, 1.0]
    assert [layer.negative_slope for layer in actor.net[1::2]] == [0.1, 0.1]


@pytest.mark.parametrize(
    "fields",
    [
        {"objective": "likelyhood"},
        {"best_episodes": 0.0},
        {"best_episodes": 1.1},
        {"actor_lr": 0.0},
        {"hidden_dims": (8, 0)},
        {"log_std_min": 3.0},
    ],
    ids=str,
)
def test_a_field_out_of_range_is_an_error_that_names_it(fields):
    (name,) = fields
    with pytest.raises(MildlyError, match=rf"^{name} must be"):
        BC.Config(**fields)
