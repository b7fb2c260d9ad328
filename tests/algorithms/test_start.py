"""What is learned from returns and by cloning, what it leaves alone, and that the method's own steps follow."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, make_dataset, same, tiny, train_tiny, weights

from mildly.data.replay import Batch, Replay
from mildly.errors import MildlyError
from mildly.networks import Critics, polyak_update
from mildly.training.loop import resume

CPU = torch.device("cpu")
DATA = make_dataset()
METHODS = ("mcq", "mcq-td3", "sac", "td3")
every_method = pytest.mark.parametrize("name", METHODS)
every_algorithm = pytest.mark.parametrize("name", [*METHODS, "td3-bc", "cql", "iql", "awac"])


def starting(name: str, **fields: Any) -> Any:
    """A learner that has seen the data."""
    learner = tiny(name, **{"gamma": 0.9, **fields})
    learner.prepare(DATA)
    return learner


def batch_of(seed: int = 0, rows: int = 12) -> Batch:
    return Replay.of(DATA, CPU).sample(rows, torch.Generator().manual_seed(seed))


def slow_return(row: int, gamma: float) -> tuple[float, float]:
    """What followed from a row on, and the share of it that the log shows."""
    total, k = 0.0, 0
    while True:
        total += gamma**k * float(DATA.rewards[row + k])
        k += 1
        if DATA.terminated[row + k - 1]:
            return total, 1.0
        if DATA.truncated[row + k - 1]:
            return total / (1 - gamma**k), 1 - gamma**k


# The critics


@every_method
@pytest.mark.parametrize("mix", [0.3, 1.0])
def test_the_critics_target_mixes_the_datas_returns_in_as_far_as_they_are_shown(name, mix):
    """By hand, from the method's own target with the same draws."""
    learner, twin, batch = starting(name, return_mix=mix), starting(name), batch_of()
    returns = [slow_return(row, 0.9) for row in batch.rows.tolist()]
    assert len({shown for _, shown in returns}) > 2
    own = twin.td_target(batch).double().tolist()
    assert torch.equal(starting(name).mixed_target(batch), starting(name).td_target(batch))
    expected = [
        (1 - mix * shown) * y + mix * shown * value for y, (value, shown) in zip(own, returns, strict=True)
    ]  # a return of which the log shows half counts half
    target = learner.mixed_target(batch)
    assert not target.requires_grad
    np.testing.assert_allclose(target.numpy(), expected, rtol=1e-4, atol=1e-5)


@every_algorithm
def test_every_method_s_critics_learn_from_the_mixed_target(name):
    learner, twin, batch = starting(name, return_mix=0.3), starting(name), batch_of()
    metrics = learner.update(batch)
    assert metrics["q_target"].item() != pytest.approx(twin.update(batch)["q_target"].item(), rel=1e-3)
    assert {key for key in metrics if key.startswith("loss_")} >= {"loss_td", "loss_critic"}


def test_with_returns_alone_the_values_are_the_data_s_own():
    """Mixed in with weight 1, of episodes that end: the policy no longer matters, and TD errors are return errors."""
    learner, batch = starting("td3", return_mix=1.0), batch_of()
    ended = torch.tensor([slow_return(row, 0.9)[1] == 1 for row in batch.rows.tolist()])
    assert ended.any()
    assert not ended.all()
    with torch.no_grad():
        learner.target_critics.biases[-1].add_(100.0)
    values = torch.tensor([slow_return(row, 0.9)[0] for row in batch.rows.tolist()])
    torch.testing.assert_close(learner.mixed_target(batch)[ended], values[ended], rtol=1e-5, atol=1e-5)
    assert (learner.mixed_target(batch)[~ended] - values[~ended]).abs().min() > 1


@every_method
def test_the_mixed_target_gives_gradients_to_the_critics_alone(name):
    learner = starting(name, return_mix=0.5)
    learner.td_loss(batch_of())[0].backward()
    parts = {key: value for key, value in vars(learner).items() if isinstance(value, torch.nn.Module)}
    assert {key for key, part in parts.items() if any(p.grad is not None for p in part.parameters())} == {"critics"}


@every_method
def test_batches_that_are_no_rows_of_the_data_are_learnt_from_by_the_methods_own_target(name):
    """As in online training, where there are no returns yet."""
    unprepared, prepared = (lambda: tiny(name, return_mix=0.5, gamma=0.9)), (lambda: starting(name, return_mix=0.5))
    for make, batch in ((unprepared, batch_of()), (prepared, make_batch())):
        assert torch.equal(make().mixed_target(batch), make().td_target(batch))


# The actor


@pytest.mark.parametrize("name", ["td3", "mcq-td3"])
def test_a_deterministic_actor_clones_by_squared_distance(name):
    learner, batch = starting(name, cloning_steps=3), batch_of()
    actor, expected = Layers.of(learner.pi.net), 0.0
    for state, action in zip(batch.observations, batch.actions.tolist(), strict=True):
        expected += sum((np.tanh(actor(state)[k]) - action[k]) ** 2 for k in range(ACTIONS)) / 12
    assert learner.update(batch)["loss_cloning"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ["sac", "mcq"])
def test_a_random_actor_clones_by_likelihood(name):
    learner, batch = starting(name, cloning_steps=3), batch_of()
    actor, expected = Layers.of(learner.pi.net), 0.0
    for state, action in zip(batch.observations, batch.actions.tolist(), strict=True):
        out = actor(state)
        for k in range(ACTIONS):
            z, std = np.arctanh(action[k]), np.exp(out[ACTIONS + k])
            density = np.exp(-0.5 * ((z - out[k]) / std) ** 2) / (std * np.sqrt(2 * np.pi)) / (1 - action[k] ** 2)
            expected -= np.log(density) / 12
    assert learner.update(batch)["loss_cloning"].item() == pytest.approx(expected, rel=1e-3)


@every_method
def test_the_cloning_loss_reaches_the_actor_alone(name):
    learner = starting(name)
    learner.cloning_loss(batch_of()).backward()
    parts = {key: value for key, value in vars(learner).items() if isinstance(value, torch.nn.Module)}
    assert {key for key, part in parts.items() if any(p.grad is not None for p in part.parameters())} == {"pi"}


@every_method
def test_an_actor_that_clones_leaves_the_critics_to_the_method(name):
    """In such a step the critics take the method's step, the actor the cloning one, and the temperature none."""
    fields = {"gamma": 0.9, "actor_lr": 0.01, "critic_lr": 0.003}
    learner, twin = starting(name, cloning_steps=4, **fields), tiny(name, **fields)
    for step in range(4):
        twin.load_state_dict(learner.state_dict())
        batch, before = batch_of(step), weights(learner.target_critics)
        metrics = learner.update(batch)
        if hasattr(twin, "behavior"):
            twin.update_behavior(batch)
        twin.updates += 1
        expected = twin.update_critics(batch) | twin.clone(batch)
        for key in ("loss_critic", "loss_cloning", "q_target"):
            assert torch.equal(metrics[key], expected[key])
        assert same(weights(learner.critics, learner.pi), weights(twin.critics, twin.pi))
        if "policy_delay" not in {field.name for field in dataclasses.fields(learner.config)}:
            assert not {"loss_actor", "alpha"} & metrics.keys()
            for old, new, target in zip(before, weights(learner.critics), weights(learner.target_critics), strict=True):
                torch.testing.assert_close(target, 0.005 * new + 0.995 * old)
            assert learner.log_alpha.item() == 0.0
            assert "alpha_optimizer.0.step" not in learner.state_dict()
    moved = learner.update(batch_of(9))
    assert "loss_cloning" not in moved
    assert "loss_actor" in moved


@every_method
def test_an_anchor_adds_the_cloning_loss_in_units_of_the_critics_error(name):
    """By hand; no gradient runs through the error."""
    free, anchored = tiny(name), starting(name, cloning_weight=0.3)
    batch = batch_of()
    anchored.error.fill_(1.7)

    def loss_of(learner: Any) -> torch.Tensor:
        if name in ("td3", "mcq-td3"):
            return learner.actor_loss(batch)[0]
        drawn = learner.pi(batch.observations).draw(torch.Generator().manual_seed(0))
        return learner.actor_loss(batch, drawn)[0]

    plain, got = loss_of(free), loss_of(anchored)
    cloning = free.cloning_loss(batch)
    assert got.item() == pytest.approx(plain.item() + 0.3 * 1.7 * cloning.item(), rel=1e-4)
    parts = [torch.autograd.grad(loss, list(free.pi.parameters()), retain_graph=True) for loss in (plain, cloning)]
    for whole, own, pull in zip(torch.autograd.grad(got, list(anchored.pi.parameters())), *parts, strict=True):
        torch.testing.assert_close(whole, own + 0.3 * 1.7 * pull, atol=1e-5, rtol=1e-4)


@every_method
def test_the_critics_error_is_the_root_of_the_mean_square_that_they_last_minimized(name):
    learner, batch = starting(name, return_mix=0.3, cloning_weight=0.1), batch_of()
    twin = starting(name, return_mix=0.3)
    target = twin.mixed_target(batch).double()
    errors = twin.critics(batch.observations, batch.actions).detach().double() - target
    learner.update_critics(batch)
    assert learner.error.item() == pytest.approx(float(errors.square().mean().sqrt()), rel=1e-4)
    assert not learner.error.requires_grad
    assert torch.equal(learner.state_dict()["error"], learner.error)


# Then the method


@every_method
def test_the_step_after_the_cloning_is_the_methods_own(name):
    learner, plain = starting(name, cloning_steps=3), tiny(name, gamma=0.9)
    for step in range(3):
        learner.update(batch_of(step))
    plain.load_state_dict(tiny(name, gamma=0.9).state_dict() | learner.state_dict())
    for step in range(3, 7):
        expected, got = plain.update(batch_of(step)), learner.update(batch_of(step))
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[key], expected[key]) for key in got)
    state = plain.state_dict()
    assert all(torch.equal(tensor, state[key]) for key, tensor in learner.state_dict().items())


@every_method
def test_the_cloning_can_be_skipped(name):
    learner = tiny(name, cloning_steps=1000)
    learner.skip_start()
    metrics = learner.update(batch_of())
    assert "loss_actor" in metrics
    assert "loss_cloning" not in metrics


def test_the_behavior_model_learns_during_the_cloning_too_and_is_skipped_with_it():
    learner = starting("mcq", cloning_steps=4, behavior_steps=2)
    assert ["loss_behavior" in learner.update(batch_of(step)) for step in range(6)] == 2 * [True] + 4 * [False]
    learner = starting("mcq", cloning_steps=4, behavior_steps=9)
    learner.skip_start()
    metrics = learner.update(batch_of())
    assert "loss_behavior" not in metrics
    assert "loss_ood" in metrics


def test_alpha_begins_where_it_is_told():
    learner = tiny("sac", initial_alpha=0.2)
    assert learner.log_alpha.item() == pytest.approx(math.log(0.2), rel=1e-6)
    assert tiny("mcq").log_alpha.item() == 0.0
    metrics = learner.update(make_batch())
    assert metrics["alpha"].item() == pytest.approx(0.2, rel=1e-3)
    with pytest.raises(MildlyError, match="initial_alpha must be positive"):
        dataclasses.replace(learner.config, initial_alpha=0.0)


# Critics with normalized layers


def slow_normalized(critics: Critics, j: int, state: torch.Tensor, action: torch.Tensor) -> float:
    """One value of one critic: after each product but the last, mean 0, variance 1, then ReLU."""
    x, layers = np.concatenate([state.numpy(), action.numpy()]).astype(np.float64), Layers.of_critic(critics, j)
    for matrix, offset in layers[:-1]:
        x = matrix @ x + offset
        mean = sum(x) / len(x)
        variance = sum((value - mean) ** 2 for value in x) / len(x)
        x = np.maximum((x - mean) / math.sqrt(variance + 1e-5), 0)
    matrix, offset = layers[-1]
    return float((matrix @ x + offset)[0])


def test_normalized_layers_equal_a_slow_computation():
    critics = tiny("mcq", layer_norm=True).critics
    states = make_batch(4).observations
    actions = torch.rand(4, 3, ACTIONS, generator=torch.Generator().manual_seed(0)) * 2 - 1
    expected = [[[slow_normalized(critics, j, s, a) for a in own] for s, own in zip(states, actions, strict=True)]
                for j in range(2)]  # fmt: skip
    np.testing.assert_allclose(critics(states, actions).detach(), expected, atol=1e-5)
    np.testing.assert_allclose(critics(states, actions[:, 0]).detach(), np.array(expected)[:, :, 0], atol=1e-5)
    np.testing.assert_allclose(critics(states, actions, freeze=True).detach(), expected, atol=1e-5)
    plain = tiny("mcq").critics
    assert same(weights(plain), weights(critics))
    assert not np.allclose(plain(states, actions).detach(), expected, atol=1e-2)


def test_values_of_normalized_critics_do_not_grow_with_the_distance_of_an_action():
    states = make_batch(4).observations
    for layer_norm, bounded in ((True, True), (False, False)):
        critics = Critics(OBSERVATIONS, ACTIONS, (8, 8), layer_norm=layer_norm)
        near, far = (critics(states, torch.full((4, ACTIONS), x)).abs().max().item() for x in (1.0, 1e4))
        assert (far < 10 * near) == bounded


def test_normalized_critics_keep_what_they_are_in_their_targets():
    learner = tiny("td3", layer_norm=True)
    assert learner.target_critics.layer_norm
    polyak_update(learner.target_critics, learner.critics, 1.0)
    batch = make_batch()
    values = [critics(batch.observations, batch.actions) for critics in (learner.critics, learner.target_critics)]
    assert torch.equal(*values)


# Lines of the log while the metrics change


START = {"behavior_steps": 12, "cloning_steps": 9, "eval_every": 0, "steps": 23}


def test_a_line_holds_the_mean_of_each_metric_over_the_steps_that_had_it(tmp_path: Path) -> None:
    every = train_tiny("mcq", tmp_path / "every", **START, log_every=1).metrics()
    lines = train_tiny("mcq", tmp_path / "lines", **START, log_every=5).metrics()
    assert [line["step"] for line in lines] == [5, 10, 15, 20, 23]
    for line, first in zip(lines, range(0, 25, 5), strict=True):
        rows = every[first : line["step"]]
        assert set(line) == {name for row in rows for name in row}
        for name in set(line) - {"step"}:
            values = [row[name] for row in rows if name in row]
            assert line[name] == pytest.approx(sum(values) / len(values), rel=1e-4, abs=1e-6), (line["step"], name)
    counts = {name: sum(name in row for row in every[5:10]) for name in ("loss_cloning", "loss_actor", "loss_critic")}
    assert counts == {"loss_cloning": 4, "loss_actor": 1, "loss_critic": 5}
    assert sum("loss_behavior" in row for row in every) == 12


@pytest.mark.parametrize("stop", [8, 13])
def test_means_are_right_when_a_run_is_prolonged_between_two_lines(tmp_path: Path, stop: int) -> None:
    """The line at the stop and the one after it together hold the steps of one line, each its own."""
    every = train_tiny("mcq", tmp_path / "every", **START, log_every=1).metrics()
    run = train_tiny("mcq", tmp_path / "run", **{**START, "steps": stop}, log_every=5)
    resume(run.path, steps=23)
    last = 0
    for line in run.metrics():
        rows = every[last : line["step"]]
        for name in set(line) - {"step"}:
            values = [row[name] for row in rows if name in row]
            assert line[name] == pytest.approx(sum(values) / len(values), rel=1e-4, abs=1e-6)
        last = line["step"]
    assert last == 23
