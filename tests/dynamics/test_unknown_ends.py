"""Logs without next observations: of a terminal row nobody knows what followed, and no model learns that it does."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from systems import NOISE, fit, pushed, tiny_learner
from test_network import DECAYS, network

from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset
from mildly.dynamics.check import check_model
from mildly.dynamics.split import Bootstraps, moments, unknown_ends
from mildly.dynamics.termination import LEARNED, rule_for

KNOWN = pushed(3000, ends=True)
ENDS = np.flatnonzero(KNOWN.terminated)


def as_a_table(data: Dataset = KNOWN) -> Dataset:
    """The data as a table of rows has them: what follows is the next row."""
    after = np.concatenate([data.observations[1:], data.observations[-1:]])
    after[data.truncated] = data.next_observations[data.truncated]
    return Dataset(**{**vars(data), "next_observations": after})


def test_ends_that_have_only_the_next_episodes_start_are_unknown() -> None:
    assert len(ENDS) > 50
    assert unknown_ends(KNOWN).tolist() == []
    assert unknown_ends(as_a_table()).tolist() == ENDS.tolist()
    own = np.array(KNOWN.next_observations)
    own[ENDS[:3]] = KNOWN.observations[ENDS[:3]]
    assert unknown_ends(Dataset(**{**vars(KNOWN), "next_observations": own})).tolist() == ENDS[:3].tolist()


def test_a_table_that_is_read_has_them_and_its_last_row_too(tmp_path: Path) -> None:
    rows = ["episode,x,action,reward,terminated", "0,0.1,0.5,1,0", "0,0.3,0.5,1,1", "1,5.0,-0.5,1,0", "1,5.2,0.1,1,1"]
    (tmp_path / "log.csv").write_text("\n".join(rows))
    data = load_dataset(tmp_path / "log.csv")
    assert data.terminated.tolist() == [False, True, False, True]
    assert unknown_ends(data).tolist() == [1, 3]


def test_their_next_observations_are_unknown_in_batches_and_in_moments() -> None:
    table, rows = as_a_table(), np.arange(2000)
    sampler = Bootstraps(table, rows, 8, torch.device("cpu"), lambda: torch.tensor([[1], [2]]))
    batch = sampler.gather(torch.from_numpy(rows))
    assert batch.next_observations.isnan().all(dim=1).nonzero().flatten().tolist() == ENDS[ENDS < 2000].tolist()
    known = np.setdiff1d(rows, ENDS)
    np.testing.assert_array_equal(batch.next_observations[known], table.next_observations[known])
    found, change = moments(table, rows), (table.next_observations - table.observations)[known].astype(float)
    np.testing.assert_allclose(found["target_mean"], [*change.mean(0), table.rewards[rows].mean()], rtol=1e-4)
    np.testing.assert_allclose(found["target_std"], [*change.std(0), table.rewards[rows].std()], rtol=1e-4)


def test_unknown_targets_add_nothing_to_the_loss_and_have_no_gradient() -> None:
    net, random = network(), torch.Generator().manual_seed(0)
    inputs, targets = (torch.randn(5, 3, generator=random) for _ in range(2))
    targets[1, :2] = torch.nan
    loss, error = net.loss(inputs, targets, DECAYS)
    mean, log_var = net(inputs)
    known = ~targets.isnan()
    squares = (mean - targets).square()[:, known]
    rest = net.loss(inputs, mean.mean(0).detach(), DECAYS)[0] - _likelihood(net, inputs, mean.mean(0).detach())
    assert loss.item() == pytest.approx(
        (squares * torch.exp(-log_var[:, known]) + log_var[:, known]).sum().item() / 15 + rest.item(), rel=1e-5
    )
    assert error.item() == pytest.approx(squares.sum().item() / 45, rel=1e-5)
    torch.testing.assert_close(net.errors(inputs, targets), squares.detach().sum(dim=1) / 15)
    row = inputs[1:2].requires_grad_()
    (gradient,) = torch.autograd.grad(net.loss(row, torch.full((1, 3), torch.nan), (0, 0, 0))[0], row)
    assert (gradient == 0).all()


def _likelihood(net: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    mean, log_var = net(inputs)
    return ((mean - targets).square() * torch.exp(-log_var) + log_var).sum() / 15


def test_a_model_of_a_table_does_not_learn_that_ends_lead_to_starts() -> None:
    fields = {"hidden_dims": (32,), "batch_size": 64, "lr": 3e-3, "scale_targets": True, "test_episodes": 0.1}
    model = fit(tiny_learner(as_a_table(), **fields, max_steps=600), 600)
    states, actions = (torch.from_numpy(column[ENDS]) for column in (KNOWN.observations, KNOWN.actions))
    error = (model.predict(states, actions).means.mean(dim=0)[:, :2].numpy() - KNOWN.next_observations[ENDS]).std(
        axis=0
    )
    jump = (as_a_table().next_observations[ENDS] - KNOWN.next_observations[ENDS]).std(axis=0)
    assert (error < 2 * NOISE).all()
    assert (jump > 4 * NOISE).all()
    found = check_model(model, as_a_table(), horizon=10)
    assert all(column.error < 2 * NOISE for column in found.columns[:2])
    assert all(np.isfinite(row.error) for row in found.growth)
    assert found.ends > 0


def test_the_environments_rule_needs_the_states_that_episodes_end_in() -> None:
    random = np.random.default_rng(0)
    states, ends = random.normal(size=(40, 11)), np.arange(40) % 10 == 9
    columns = (states, random.uniform(-1, 1, (40, 3)), np.zeros(40), random.normal(size=(40, 11)), ends, ~ends & False)
    known = Dataset.from_arrays(*columns, meta=dataclasses.replace(KNOWN.meta, env_id="Hopper-v4"))
    assert rule_for(known) == "hopper"
    assert rule_for(as_a_table(known)) == LEARNED
    endless = Dataset(**{**vars(as_a_table(known)), "terminated": np.zeros(40, bool), "truncated": ends})
    assert rule_for(endless) == "hopper"


def test_episodes_of_one_row_can_be_checked() -> None:
    states = np.random.default_rng(0).normal(size=(60, 2))
    always = np.ones(60, dtype=bool)
    columns = (states, np.clip(states[:, :1], -1, 1), states[:, 0], np.roll(states, -1, axis=0), always, ~always)
    data = Dataset.from_arrays(*columns, meta=KNOWN.meta)
    found = check_model(fit(tiny_learner(data, test_episodes=0.2), 20), data)
    assert found.growth == ()
    assert np.isfinite(found.columns[-1].error)
