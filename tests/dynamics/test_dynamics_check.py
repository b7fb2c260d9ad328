"""The check of a model, on models whose errors are known."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import Refused
from systems import NOISE, fit, pushed, tiny_learner

from mildly.dynamics import DynamicsEnsemble
from mildly.dynamics.check import LEVELS, check_model, unseen_episodes

DATA = pushed(1000)


def standstill(std: float) -> DynamicsEnsemble:
    """A model for which nothing changes, with the same doubt about every number."""
    model = fit(tiny_learner(DATA, test_episodes=0.2), 1)
    net = model.networks.gaussians
    for parameter in net.parameters():
        parameter.data.zero_()
    net.max_log_var.data.fill_(50.0)
    net.min_log_var.data.fill_(-50.0)
    net.biases[-1].data[..., 3:] = 2 * np.log(std)
    return model


def test_a_model_of_no_change_has_the_errors_of_no_change() -> None:
    found = check_model(standstill(0.5), DATA, horizon=20)
    for column in found.columns[:2]:
        assert column.error == pytest.approx(column.no_change, rel=1e-4)
    assert [row.steps for row in found.growth] == [1, 2, 5, 10, 20]
    for row in found.growth:
        assert row.error == pytest.approx(row.no_change, rel=1e-4)
    assert found.growth[-1].error > 2 * found.growth[0].error
    assert (found.episodes, found.transitions) == (8, 200)


def test_coverage_is_the_share_inside_the_interval_by_hand() -> None:
    model = standstill(0.3)
    found = check_model(model, DATA)
    rows = np.concatenate([np.arange(1000)[episode] for episode in unseen_episodes(model, DATA)])
    change = np.abs(DATA.next_observations[rows] - DATA.observations[rows])
    for column, moved in zip(found.columns, change.T, strict=False):
        assert column.coverage[LEVELS.index(0.5)] == pytest.approx((moved <= 0.3 * 0.67449).mean())
        assert column.coverage[LEVELS.index(0.9)] == pytest.approx((moved <= 0.3 * 1.64485).mean())


def test_a_good_model_is_calibrated_and_better_than_no_change() -> None:
    data = pushed(2000)
    fields = {"hidden_dims": (32,), "batch_size": 64, "lr": 3e-3, "scale_targets": True, "test_episodes": 0.1}
    found = check_model(fit(tiny_learner(data, **fields, max_steps=300), 300), data, horizon=10)
    position, speed, reward = found.columns
    assert speed.error == pytest.approx(NOISE, rel=0.2)
    assert speed.no_change > 4 * NOISE
    assert 0.35 < speed.coverage[LEVELS.index(0.5)] < 0.65
    assert 0.8 < position.coverage[LEVELS.index(0.9)] <= 1
    assert reward.error < 0.3 * reward.no_change
    assert found.growth[-1].error < 0.5 * found.growth[-1].no_change


def test_ends_are_compared_with_the_log() -> None:
    data = pushed(1000, ends=True)
    model = fit(tiny_learner(data, test_episodes=0.2), 1)
    for always, told in ((50.0, True), (-50.0, False)):
        for parameter in model.networks.ends.parameters():
            parameter.data.zero_()
        list(model.networks.ends.parameters())[-1].data.fill_(always)
        found = check_model(model, data)
        assert found.ends > 0
        assert (found.ends_told, found.false_ends) == ((found.ends, found.transitions - found.ends) if told else (0, 0))


def test_other_data_are_compared_as_a_whole_and_a_model_that_has_seen_all_is_told(refused: Refused) -> None:
    model = fit(tiny_learner(DATA), 1)
    refused(check_model, "has seen all episodes of 'pushed'", "--test-episodes 0.05", model=model, data=DATA)
    assert check_model(model, pushed(100, seed=9)).transitions == 100
    assert check_model(model, pushed(100, seed=9), generator=torch.Generator().manual_seed(1)).episodes == 4


def test_data_of_other_sizes_are_refused(refused: Refused) -> None:
    from conftest import make_dataset

    words = ("3 observations and 2 actions", "2 and 1")
    refused(check_model, *words, model=fit(tiny_learner(DATA), 1), data=make_dataset())
