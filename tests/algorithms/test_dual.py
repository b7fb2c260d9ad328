"""The dual variable: its step, its direction and its bounds."""

from __future__ import annotations

import math

import pytest
import torch
from conftest import make_batch
from learners import CPU

from mildly.algorithms.dual import DualVariable


def test_a_step_is_adams_up_the_weighted_excess():
    dual = DualVariable(0.1, -5.0, 10.0, CPU)
    log, mean, square = 0.0, 0.0, 0.0
    for step, excess in enumerate([0.5, -2.0, 0.25], start=1):
        assert dual.value.item() == pytest.approx(math.exp(log), rel=1e-5)
        slope = -math.exp(log) * excess  # of -exp(v) * excess, which Adam descends
        mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope**2
        log -= 0.1 * (mean / (1 - 0.9**step)) / (math.sqrt(square / (1 - 0.999**step)) + 1e-8)
        dual.update(torch.tensor([excess - 1, excess + 1]))  # of several numbers the mean counts
        assert dual.log.item() == pytest.approx(log, rel=1e-4)


@pytest.mark.parametrize(("excess", "bound"), [(1.0, 1.5), (-1.0, -0.7)])
def test_it_grows_while_the_constraint_is_broken_and_stops_at_its_bounds(excess, bound):
    dual = DualVariable(0.5, -0.7, 1.5, CPU)
    seen = []
    for _ in range(8):
        dual.update(torch.tensor(excess))
        seen.append(dual.log.item())
    assert (seen[0] > 0) == (excess > 0)
    assert seen[-1] == pytest.approx(bound)
    assert all(-0.7 - 1e-6 <= log <= 1.5 + 1e-6 for log in seen)


def test_no_gradient_leaves_it():
    dual, excess = DualVariable(0.1, -5.0, 10.0, CPU), make_batch().rewards.clone().requires_grad_()
    dual.update(2 * excess)
    assert excess.grad is None
    assert not dual.value.requires_grad


def test_its_state_goes_on_to_the_bit():
    dual, other = (DualVariable(0.1, -5.0, 10.0, CPU) for _ in range(2))
    for _ in range(3):
        dual.update(torch.tensor(0.3))
    other.load_state_dict(dual.state_dict())
    for each in (dual, other):
        each.update(torch.tensor(-0.2))
    assert torch.equal(dual.log, other.log)
    assert dual.log.item() != 0
