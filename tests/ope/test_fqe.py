"""Fitted Q evaluation against tabular truth, and as a training like any other."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from conftest import make_dataset
from tabular import GAMMA, PI, PROCESS, TabularPolicy, exact_v, logged

from mildly.algorithms.base import Phase
from mildly.data.batches import Batch
from mildly.errors import MildlyError
from mildly.networks import Critics
from mildly.ope import fit as fitting
from mildly.ope.fit import fit
from mildly.ope.fqe import FQE, FQEConfig, possible_values

SMALL = {"hidden_dims": (32,), "gamma": GAMMA, "batch_size": 64}


class Still:
    """A policy of one action, or of several draws of it, for the tiny problem."""

    density = "none"

    def __init__(self, *actions: tuple[float, ...]) -> None:
        self.given = np.array(actions, np.float32)

    def actions(self, observations, seed):
        return np.broadcast_to(self.given, (len(observations), *self.given.shape)).copy()

    def log_prob(self, observations, actions):
        raise NotImplementedError


def learner(data, judged, **fields):
    fqe = FQE(FQEConfig(**SMALL | fields), judged, data.observation_size, data.action_size, seed=0)
    return fqe, fqe.batches(data)


def quiet(text):
    pass


def test_it_finds_the_exact_value_of_a_small_process(tmp_path):
    data = logged(150, length=20)
    fqe = FQE(FQEConfig(**SMALL, critic_lr=3e-3, tau=0.1), TabularPolicy(), 2, 1, seed=0)
    fit(fqe, data, tmp_path / "fqe", {}, steps=1200, seed=0, say=quiet)
    truth = exact_v(PI, steps=200)[PROCESS.start]
    assert fqe.estimates().mean() == pytest.approx(truth, abs=0.08)
    of_data = exact_v(np.array([[0.5, 0.5], [0.7, 0.3]]), steps=200)[PROCESS.start]
    assert abs(of_data - truth) > 0.5  # another policy's value would not pass


def test_the_target_by_hand_bootstraps_through_time_limits_and_ends_at_terminals():
    data = make_dataset()
    fqe, _ = learner(data, Still((0.5, -0.5), (0.1, 0.2)), ensemble=3)
    fqe.bounds = (-100.0, 100.0)
    batch = fqe.batches(data).sample(torch.Generator().manual_seed(0), 60)
    fqe.bounds = (-100.0, 100.0)
    target = fqe.td_target(batch)
    for j in range(3):
        for row in range(60):
            draws = [
                critic_value(fqe.target_critics, j, batch.next_observations[row], action)
                for action in ((0.5, -0.5), (0.1, 0.2))
            ]
            ends = bool(data.terminated[batch.rows[row]])
            expected = float(data.rewards[batch.rows[row]]) * fqe.scale + (0 if ends else GAMMA * np.mean(draws))
            assert target[j, row].item() == pytest.approx(expected, abs=1e-4)
    assert data.truncated[batch.rows.numpy()].any()


def critic_value(critics: Critics, j: int, state: torch.Tensor, action: tuple[float, ...]) -> float:
    """One critic, layer by layer, in double precision."""
    x = np.concatenate([state.numpy().astype(np.float64), action])
    layers = list(zip(critics.weights, critics.biases, strict=True))
    for i, (weight, bias) in enumerate(layers):
        x = x @ weight[j].detach().double().numpy() + bias[j, 0].detach().double().numpy()
        x = np.maximum(x, 0) if i < len(layers) - 1 else x
    return float(x[0])


def test_each_critic_learns_from_its_own_draw_of_episodes_alone():
    data = make_dataset()
    fqe, sampler = learner(data, Still((0.0, 0.0)), ensemble=4)
    draws = fqe.prepared["draws_of_episode"]
    assert draws.shape == (60, 4)
    assert torch.equal(draws[0::10], draws[9::10])  # one number for all rows of an episode
    assert draws[::10].sum(0).tolist() == [6.0] * 4
    some = (draws == 0).any(dim=1) & (draws > 0).any(dim=1)
    row = int(torch.nonzero(some)[0])  # drawn by some critics and not by others
    batch = next(
        drawn
        for seed in range(100)
        if row in (drawn := sampler.sample(torch.Generator().manual_seed(seed), 60)).rows.tolist()
    )
    alone = Batch(*(column[batch.rows == row] for column in batch))
    loss, _ = fqe.critic_loss(alone, fqe.td_target(alone))
    loss.backward()
    reached = torch.stack([weight.grad.flatten(1).any(dim=1) for weight in fqe.critics.weights]).any(dim=0)
    assert torch.equal(reached, draws[row] > 0)


def test_no_gradient_reaches_the_targets():
    data = make_dataset()
    fqe, sampler = learner(data, Still((0.0, 0.0)))
    batch = sampler.sample(torch.Generator().manual_seed(0))
    target = fqe.td_target(batch)
    assert not target.requires_grad
    before = [parameter.clone() for parameter in fqe.target_critics.parameters()]
    fqe.update(batch)
    moved = zip(before, fqe.target_critics.parameters(), fqe.critics.parameters(), strict=True)
    for was, now, online in moved:
        assert torch.allclose(now, torch.lerp(was, online, fqe.config.tau), atol=1e-7)
        assert now.grad is None


def test_values_are_held_within_what_rewards_allow():
    data = make_dataset()
    fqe, sampler = learner(data, Still((0.0, 0.0)))
    fqe.target_critics.biases[-1].data.fill_(1e6)
    low, high = possible_values(data, GAMMA, fqe.scale)
    assert fqe.td_target(sampler.sample(torch.Generator().manual_seed(0))).max().item() == pytest.approx(high)
    assert high == pytest.approx(fqe.scale * data.rewards.max() / (1 - GAMMA))
    assert low == pytest.approx(fqe.scale * data.rewards.min() / (1 - GAMMA))


def test_a_resumed_fit_equals_an_uninterrupted_one_to_the_bit(tmp_path):
    data = logged(20)
    whole, half, rest = (FQE(FQEConfig(**SMALL), TabularPolicy(), 2, 1, seed=0) for _ in range(3))
    lines = fit(whole, data, tmp_path / "whole", {}, steps=60, seed=0, say=quiet)
    with pytest.raises(Crash):
        fit(Crashing(half, 37), data, tmp_path / "parts", {}, steps=60, seed=0, say=quiet)
    again = fit(rest, data, tmp_path / "parts", {}, steps=60, seed=0, say=quiet)
    assert again == lines
    assert np.array_equal(rest.estimates(), whole.estimates())


class Crash(Exception):
    pass


class Crashing:
    """A learner that fails at a step."""

    def __init__(self, fqe, step):
        self.__dict__.update(fqe=fqe, left=step)

    def __getattr__(self, name):
        return getattr(self.fqe, name)

    def step(self, batch):
        self.__dict__["left"] -= 1
        if not self.left:
            raise Crash
        return self.fqe.step(batch)


def test_progress_tells_the_time_that_is_left_at_the_speed_since_the_fit_went_on(monkeypatch):
    now, said = 100.0, []
    monkeypatch.setattr(fitting.time, "monotonic", lambda: now)
    shown = fitting._Progress("fqe", 1200, said.append)
    shown.begin(Phase("", 1200, lambda batch: {}), 200)
    for step in (300, 400):
        now += 20
        shown.tick(step)
    assert said == [
        "fqe: 1,200 steps, from step 200",
        "fqe: step 300 of 1,200, 0:03:00 left",
        "fqe: step 400 of 1,200, 0:02:40 left",
    ]


def test_a_folder_with_another_fit_is_refused(tmp_path, refused):
    data = logged(5)
    fqe = FQE(FQEConfig(**SMALL), TabularPolicy(), 2, 1, seed=0)
    fit(fqe, data, tmp_path / "fqe", {"policy": "a"}, steps=2, seed=0, say=quiet)
    refused(
        lambda: fit(fqe, data, tmp_path / "fqe", {"policy": "b"}, steps=2, seed=0, say=quiet),
        "other settings (policy)",
        "--out",
    )
    assert json.loads((tmp_path / "fqe" / "fit.json").read_text())["policy"] == "a"


@pytest.mark.parametrize("fields", [{"ensemble": 1}, {"gamma": 1.0}, {"tau": 0.0}, {"critic_lr": 0.0}])
def test_settings_that_make_no_sense_are_refused_by_name(fields):
    with pytest.raises(MildlyError, match=next(iter(fields))):
        FQEConfig(**fields)
