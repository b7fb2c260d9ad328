"""Cal-QL's calibration: values of the policy's actions count in the gap as at least the data's own return."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from conftest import Layers, make_dataset, replay, tiny
from learners import choosing_anew, slow_return

from mildly.algorithms.cql import CQL
from mildly.data.batches import Batch

DATA = make_dataset()
N = 3


def learner_of(**fields: Any) -> tuple[CQL, Batch]:
    """A calibrated learner whose values lie on both sides of the data's returns, and rows of the data."""
    learner: CQL = tiny("cql", seed=3, gamma=0.9, num_actions=N, **{"calibrated": True, **fields})
    learner.critics.weights[-1].data.mul_(4)
    return learner, learner.batches(DATA).sample(torch.Generator().manual_seed(1), 8)


def test_the_gap_is_that_of_values_raised_to_the_return_by_a_slow_implementation() -> None:
    learner, batch = learner_of()
    critics, again = [Layers.of_critic(learner.critics, j) for j in range(2)], replay(learner.generator)
    _, metrics = learner.critic_loss(batch)
    learner.generator.set_state(again.get_state())
    learner.td_target(batch)  # draws first, as in the loss
    actions, log_density = learner.other_actions(batch)
    gaps, raised = [], 0
    for critic in critics:
        for i in range(8):
            floor, values = slow_return(int(batch.rows[i]), 0.9)[0], []
            for k in range(3 * N):
                value = float(critic(batch.observations[i], actions[i, k])[0])
                raised += k >= N and value < floor
                values.append((value if k < N else max(value, floor)) - float(log_density[i, k]))
            gaps.append(
                math.log(sum(map(math.exp, values))) - float(critic(batch.observations[i], batch.actions[i])[0])
            )
    assert 10 < raised < 8 * 2 * 2 * N - 10  # some are raised and some are not
    assert float(metrics["gap"]) == pytest.approx(np.mean(gaps), rel=1e-4)


def test_a_value_below_the_return_is_pressed_no_further() -> None:
    learner, batch = learner_of()
    learner.prepared["returns"].fill_(1e6)
    _, of_others, soft_maximum = learner.values(batch)
    soft_maximum.sum().backward()
    assert of_others.shape == (2, 8, 3 * N)
    assert all(
        float(weight.grad.abs().sum()) == 0.0 for weight in learner.critics.parameters() if weight.grad is not None
    )


@pytest.mark.parametrize("through", [None, 2])
def test_where_no_return_is_known_nothing_is_calibrated(through: int | None) -> None:
    """As of transitions that were made online, whose row is -1."""
    (learner, batch), (plain, _) = (
        learner_of(gradient_actions=through),
        learner_of(calibrated=False, gradient_actions=through),
    )
    learner.begin_finetuning()
    online = batch._replace(rows=torch.full_like(batch.rows, -1))
    (loss, metrics), (expected, others) = learner.critic_loss(online), plain.critic_loss(batch)
    assert torch.equal(loss, expected)
    assert torch.equal(metrics["gap"], others["gap"])


def test_through_a_few_actions_the_gap_is_the_same() -> None:
    (whole, batch), (few, _) = learner_of(), learner_of(gradient_actions=2)
    (expected, metrics), (got, got_metrics) = whole.critic_loss(batch), few.critic_loss(batch)
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    assert got_metrics["gap"].item() == pytest.approx(metrics["gap"].item(), rel=1e-5)


def test_through_a_few_actions_the_slope_is_the_same_on_average() -> None:
    (whole, batch), (few, _) = learner_of(), learner_of(gradient_actions=2)

    def slope(learner: CQL) -> torch.Tensor:
        soft_maximum = learner.values(batch)[2].sum()
        return torch.cat([g.flatten() for g in torch.autograd.grad(soft_maximum, list(learner.critics.parameters()))])

    whole.generator.set_state(few.generator.get_state())
    expected, found = slope(whole), choosing_anew(few, lambda: slope(few))
    error = found.std(dim=0) / len(found) ** 0.5
    assert ((found.mean(dim=0) - expected).abs() <= 5 * error + 1e-4 * expected.abs().max()).all()
