"""lam = "auto": how MCQ's weight finds itself, by hand, and that it is part of the state."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import ACTIONS, make_batch, tiny
from learners import changed_mcq, with_gradient

from mildly import mcb
from mildly.algorithms.auto_lam import AutoLam
from mildly.algorithms.mcq import MCQ

ROWS, N = 5, 4


def learner_of(steep: bool) -> MCQ:
    """With `steep`, the policy's actions, here those at the upper bound, seem much better than all others."""
    mcq = changed_mcq(lam="auto", num_actions=N)
    if steep:
        mcq.policy_actions = lambda states, n: torch.ones(len(states), n, ACTIONS)
        for critics in (mcq.critics, mcq.target_critics):
            critics.weights[0].data[:, -ACTIONS:] = 0.3
            for weight in critics.weights[1:]:
                weight.data.abs_()
            critics.biases[0].data.fill_(3.0)
    return mcq


@pytest.mark.parametrize("steep", [False, True])
def test_it_gives_way_where_ood_values_differ_more_from_their_targets_than_the_datas(steep):
    """By hand, in units of the data's own differences; the loss is weighed with the new lam."""
    mcq, twin, batch = learner_of(steep), learner_of(steep), make_batch(ROWS)
    assert mcq.auto_lam.lam.item() == pytest.approx(0.7)
    metrics = mcq.update_critics(batch)
    states = torch.cat([batch.observations, batch.next_observations])
    drawn = twin.behavior.actions(states, batch.rows, N)
    target = mcb.pseudo_target(twin.critics, batch.observations, drawn[:ROWS])
    pairs = zip(twin.critics(batch.observations, batch.actions).flatten().tolist(), [*target, *target], strict=True)
    data_gap = math.sqrt(np.mean([(value - best.item()) ** 2 for value, best in pairs]))
    assert metrics["data_gap"].item() == pytest.approx(data_gap, rel=1e-4)
    ood_gap = math.sqrt(metrics["loss_ood"].item() / 2)  # the loss is a sum over two critics
    assert metrics["ood_gap"].item() == pytest.approx(ood_gap, rel=1e-4)
    expected = 0.7 + 2e-4 * min(1, max(-1, 1 - (ood_gap / data_gap) ** 2))
    assert metrics["lam"].item() == pytest.approx(expected, rel=1e-6)
    assert (metrics["lam"].item() < 0.7) == steep
    weighed = metrics["lam"] * metrics["loss_td"] + (1 - metrics["lam"]) * metrics["loss_ood"]
    assert metrics["loss_critic"].item() == pytest.approx(weighed.item(), rel=1e-5)
    assert torch.equal(metrics["lam"], mcq.auto_lam.lam)


@pytest.mark.parametrize(("steep", "start", "bound"), [(True, 0.3000001, 0.3), (False, 0.9899999, 0.99)])
def test_it_stays_within_its_range(steep, start, bound):
    mcq = learner_of(steep)
    mcq.auto_lam.lam.fill_(start)
    assert mcq.update_critics(make_batch(ROWS))["lam"].item() == pytest.approx(bound, rel=1e-7)


def test_what_a_one_sided_term_does_not_count_does_not_move_it_either():
    mcq, batch = changed_mcq(lam="auto", one_sided=True, pseudo_critics="target"), make_batch(ROWS)
    mcq.target_critics.biases[-1].data.add_(100.0)  # all values lie below their targets
    metrics = mcq.update_critics(batch)
    assert metrics["ood_gap"].item() == 0
    assert metrics["lam"].item() == pytest.approx(0.7 + 2e-4, rel=1e-6)


def test_values_of_the_data_that_do_not_differ_are_no_division_by_zero():
    mcq, batch = changed_mcq(lam="auto"), make_batch(ROWS)
    for parameter in mcq.critics.parameters():
        parameter.data.zero_()
    target, none = torch.zeros(2 * ROWS), torch.zeros(())
    metrics = mcq.auto_lam.update(mcq.critics, batch, target, none)
    assert metrics["lam"].item() == pytest.approx(0.7 + 2e-4, rel=1e-6)
    metrics = mcq.auto_lam.update(mcq.critics, batch, target, none + 1)
    assert metrics["lam"].item() == pytest.approx(0.7, rel=1e-6)


@pytest.mark.parametrize("name", ["mcq", "mcq-td3"])
def test_both_forms_have_it_only_where_lam_is_to_find_itself(name):
    assert isinstance(tiny(name, lam="auto").auto_lam, AutoLam)
    assert tiny(name, lam=0.7).auto_lam is None
    assert tiny(name, lam="auto", ood_weight=0.5).auto_lam is None  # which takes the place of lam
    assert "lam" in tiny(name, lam="auto").step(make_batch())
    assert "lam" not in tiny(name, lam=0.7).step(make_batch())
    assert "lam" not in tiny(name, lam="auto", ood_weight=0.5).step(make_batch())


def test_it_is_part_of_the_state_and_no_gradient_reaches_it():
    mcq, other = (tiny("mcq", seed=seed, lam="auto") for seed in (0, 1))
    for step in range(3):
        mcq.step(make_batch(seed=step))
    assert "auto_lam.lam" not in with_gradient(mcq)
    assert mcq.auto_lam.lam.item() != pytest.approx(0.7, abs=1e-7)
    other.load_state_dict(mcq.state_dict())
    assert torch.equal(other.auto_lam.lam, mcq.auto_lam.lam)
    before = mcq.auto_lam.lam.item()
    other.step(make_batch(seed=3))
    assert other.auto_lam.lam.item() != before == mcq.auto_lam.lam.item()
