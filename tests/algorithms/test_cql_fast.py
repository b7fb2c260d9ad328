"""CQL's gap through a few of its actions: the same value, the same slope on average, and the draws behind it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import make_batch, tiny
from hypothesis import given, settings, strategies as st
from learners import choosing_anew
from torch import Tensor

from mildly.algorithms.config import make_config
from mildly.algorithms.cql import CQL, systematic_draws
from mildly.errors import MildlyError


def learner_of(**fields: Any) -> CQL:
    """A learner with values that differ enough for the weights to differ, too."""
    learner: CQL = tiny("cql", seed=3, gamma=0.9, num_actions=3, **fields)
    learner.critics.weights[-1].data.mul_(8)
    return learner


def slope(learner: CQL, batch: Any) -> Tensor:
    """The critics' gradient of their loss, as one vector."""
    loss, _ = learner.critic_loss(batch)
    return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(learner.critics.parameters()))])


def test_the_loss_is_that_of_all_actions():
    batch, whole, few = make_batch(12), learner_of(), learner_of(gradient_actions=2)
    (expected, metrics), (got, got_metrics) = whole.critic_loss(batch), few.critic_loss(batch)
    assert got.item() == pytest.approx(expected.item(), rel=1e-5)
    for key, value in metrics.items():
        assert got_metrics[key].item() == pytest.approx(value.item(), rel=1e-5)


def test_the_slope_is_on_average_that_of_all_actions():
    """The others stay the same throughout; what changes is which of them are taken."""
    batch, whole, few = make_batch(8), learner_of(), learner_of(gradient_actions=2)
    expected = slope(whole, batch)
    found = choosing_anew(few, lambda: slope(few, batch))
    error = found.std(dim=0) / len(found) ** 0.5
    assert found.std(dim=0).max() > 0.05 * expected.abs().max()  # they do differ
    assert ((found.mean(dim=0) - expected).abs() <= 5 * error + 1e-4).all()


def test_an_action_that_outweighs_all_others_gives_the_whole_slope():
    batch, whole, few = make_batch(8), learner_of(), learner_of(gradient_actions=1)
    for learner in (whole, few):
        learner.critics.weights[-1].data.mul_(1000)
    expected = slope(whole, batch)
    torch.testing.assert_close(slope(few, batch), expected, rtol=0.0, atol=1e-4 * expected.abs().max().item())


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12).filter(lambda w: sum(w) > 0.01),
    k=st.integers(1, 9),
    seed=st.integers(0, 1000),
)
def test_no_index_is_drawn_once_too_often_or_too_rarely(weights, k, seed):
    share = torch.tensor(weights).div(sum(weights)).expand(5, -1)
    drawn = systematic_draws(share, k, torch.Generator().manual_seed(seed))
    assert drawn.shape == (5, k)
    for row in drawn:
        counts = torch.bincount(row, minlength=len(weights))
        assert ((counts - k * share[0]).abs() < 1 + 1e-4).all()


def test_indices_are_drawn_as_often_as_their_weights_say():
    share = torch.tensor([0.5, 0.0, 0.3, 0.2]).expand(20_000, -1)
    drawn = systematic_draws(share, 3, torch.Generator().manual_seed(0))
    found = torch.bincount(drawn.flatten(), minlength=4) / 60_000
    torch.testing.assert_close(found, share[0], atol=0.01, rtol=0.0)


def test_as_many_as_there_are_or_more_are_all_of_them():
    batch = make_batch(8)
    assert torch.equal(slope(learner_of(gradient_actions=9), batch), slope(learner_of(), batch))


def test_a_count_of_none_is_an_error():
    with pytest.raises(MildlyError, match="gradient_actions must be at least 1"):
        learner_of(gradient_actions=0)


def test_the_preset_default_takes_four():
    assert make_config(CQL, "default", "", {}).gradient_actions == 4
    assert make_config(CQL, "paper", "", {}).gradient_actions is None
