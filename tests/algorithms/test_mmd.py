"""The maximum mean discrepancy of both kernels, by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mildly.algorithms.mmd import KERNELS, mmd


def slow_mmd(x: list[list[float]], y: list[list[float]], kernel: str, sigma: float) -> float:
    """Pair by pair, with three means."""

    def k(a: list[float], b: list[float]) -> float:
        steps = [abs(p - q) for p, q in zip(a, b, strict=True)]
        distance = sum(step**2 for step in steps) if kernel == "gaussian" else sum(steps)
        return math.exp(-distance / (2 * sigma))

    def mean(one: list[list[float]], other: list[list[float]]) -> float:
        return sum(k(a, b) for a in one for b in other) / (len(one) * len(other))

    return math.sqrt(mean(x, x) + mean(y, y) - 2 * mean(x, y) + 1e-6)


@pytest.mark.parametrize(("kernel", "distance"), [("gaussian", 0.5**2 + 2.0**2), ("laplacian", 0.5 + 2.0)])
def test_one_draw_each_is_a_matter_of_their_distance(kernel, distance):
    x, y = torch.tensor([[[1.0, 2.0]]]), torch.tensor([[[0.5, 4.0]]])
    expected = math.sqrt(2 - 2 * math.exp(-distance / (2 * 0.7)) + 1e-6)
    assert mmd(x, y, kernel, 0.7).tolist() == pytest.approx([expected], rel=1e-5)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("sigma", [0.3, 20.0])
def test_several_draws_equal_a_sum_over_pairs_in_each_state(kernel, sigma):
    random = torch.Generator().manual_seed(0)
    x, y = torch.randn(5, 4, 3, generator=random), 2 + torch.randn(5, 2, 3, generator=random)
    expected = [slow_mmd(a, b, kernel, sigma) for a, b in zip(x.tolist(), y.tolist(), strict=True)]
    assert mmd(x, y, kernel, sigma).tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_equal_sets_have_next_to_none_and_a_finite_slope(kernel):
    x = torch.randn(6, 4, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    values = mmd(x, x.detach().flip(1), kernel, 20.0)
    assert values.tolist() == pytest.approx([1e-3] * 6, rel=0.2)
    values.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_slope_pulls_draws_towards_the_other_set(kernel):
    x = torch.full((1, 4, 2), 3.0).requires_grad_()
    mmd(torch.zeros(1, 4, 2), x, kernel, 20.0).sum().backward()
    assert (x.grad > 0).all()
