"""Critics with dropout and spectral normalization: by hand, against exact moments, and in blocks."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, make_batch

from mildly import dropout
from mildly.dropout import DropoutCritics, Passes


def critics_of(hidden: tuple[int, ...] = (3, 2), rate: float = 0.3, spectral_norm: bool = True) -> DropoutCritics:
    torch.manual_seed(3)
    made = DropoutCritics(OBSERVATIONS, ACTIONS, hidden, dropout=rate, spectral_norm=spectral_norm)
    for _ in range(50):
        made.power_iteration()
    return made


def exact_moments(critics: DropoutCritics, j: int, state: np.ndarray, action: np.ndarray) -> tuple[float, float]:
    """Mean and variance of a value over all masks there are, each with its probability."""
    keep, values, chances = 1 - critics.dropout, [], []
    matrices = [w[j].detach().double().numpy() for w in critics.weights]
    if critics.spectral_norm:
        matrices = [matrix / np.linalg.svd(matrix, compute_uv=False)[0] for matrix in matrices]
    offsets = [b[j, 0].detach().double().numpy() for b in critics.biases]
    units = [len(offset) for offset in offsets[:-1]]
    for bits in product((0, 1), repeat=sum(units)):
        x, rest = np.concatenate([state, action]).astype(np.float64), np.array(bits, float)
        for matrix, offset, n in zip(matrices, offsets, units, strict=False):
            x = np.maximum(x @ matrix + offset, 0) * rest[:n] / keep
            rest = rest[n:]
        values.append((x @ matrices[-1] + offsets[-1]).item())
        chances.append(np.prod([keep if bit else 1 - keep for bit in bits]))
    mean = float(np.dot(values, chances))
    return mean, float(np.dot((np.array(values) - mean) ** 2, chances))


@pytest.mark.parametrize("spectral_norm", [True, False])
@pytest.mark.parametrize("passes", [Passes(4000), Passes(4000, shared=True), Passes(2000, exact_last=True)])
def test_the_moments_are_those_over_all_masks(passes, spectral_norm):
    critics, batch = critics_of(spectral_norm=spectral_norm), make_batch(3)
    with torch.no_grad():
        mean, variance = critics.moments(batch.observations, batch.actions, passes, torch.Generator().manual_seed(0))
    for j in range(2):
        for i in range(3):
            exact, spread = exact_moments(critics, j, batch.observations[i].numpy(), batch.actions[i].numpy())
            assert mean[j, i].item() == pytest.approx(exact, abs=5 * (spread / passes.number) ** 0.5 + 1e-5)
            assert variance[j, i].item() == pytest.approx(spread, rel=0.15, abs=1e-6)


def test_with_one_hidden_layer_the_exact_form_has_no_noise_at_all():
    critics, batch = critics_of(hidden=(5,)), make_batch(2)
    mean, variance = critics.moments(batch.observations, batch.actions, Passes(2, exact_last=True), None)
    for j in range(2):
        expected = exact_moments(critics, j, batch.observations[1].numpy(), batch.actions[1].numpy())
        assert (mean[j, 1].item(), variance[j, 1].item()) == pytest.approx(expected, rel=1e-4)


def test_the_exact_form_has_less_noise():
    critics, batch = critics_of(hidden=(16, 16)), make_batch(4)
    found = {}
    for exact in (False, True):
        random = torch.Generator().manual_seed(0)
        drawn = [critics.moments(*batch[:2], Passes(5, exact), random) for _ in range(200)]
        found[exact] = [torch.stack(part).detach().std(dim=0) for part in zip(*drawn, strict=True)]
    assert all((a > b).all() for a, b in zip(found[False], found[True], strict=True))


def test_shared_masks_make_equal_pairs_equal_and_own_masks_do_not():
    critics, batch = critics_of(hidden=(8, 8)), make_batch(1)
    states, actions = batch.observations.expand(5, -1), batch.actions.expand(5, -1)
    for shared in (True, False):
        mean = critics.moments(states, actions, Passes(4, shared=shared), torch.Generator().manual_seed(0)).mean
        assert (len(mean[0].unique()) == 1) == shared


def test_blocks_change_only_the_order_of_draws(monkeypatch):
    critics, batch = critics_of(hidden=(8, 8)), make_batch(6)
    whole = critics.moments(*batch[:2], Passes(4, shared=True), torch.Generator().manual_seed(0))
    monkeypatch.setattr(dropout, "ROWS_AT_ONCE", 8)
    blocks = critics.moments(*batch[:2], Passes(4, shared=True), torch.Generator().manual_seed(0))
    torch.testing.assert_close(whole, blocks)
    actions = batch.actions.unsqueeze(1).expand(-1, 3, -1)
    assert critics.moments(batch.observations, actions, Passes(4), None).variance.shape == (2, 6, 3)
    assert critics(batch.observations, actions).shape == (2, 6, 3)


def test_spectral_normalization_divides_by_the_largest_singular_value_and_lets_a_gradient_through_it():
    critics = critics_of(hidden=(6, 5), rate=0.0)
    for (normalized, _), weight in zip(critics.layers(freeze=False), critics.weights, strict=True):
        for j in range(2):
            largest = torch.linalg.svdvals(weight[j])[0]
            torch.testing.assert_close(normalized[j], weight[j] / largest, rtol=1e-4, atol=1e-5)
    # scaling a weight changes nothing, so that its gradient is orthogonal to it
    critics(*make_batch(4)[:2]).sum().backward()
    for weight in list(critics.weights):
        assert (weight.grad * weight).sum().item() == pytest.approx(0, abs=1e-4)


def test_a_power_iteration_is_one_step_and_nothing_else_moves_the_vectors():
    torch.manual_seed(0)
    critics = DropoutCritics(OBSERVATIONS, ACTIONS, (6, 5))
    left, right = critics.left_0.clone(), critics.right_0.clone()
    critics(*make_batch(4)[:2])
    critics.moments(*make_batch(4)[:2], Passes(3), None)
    assert torch.equal(critics.left_0, left)
    critics.power_iteration()
    for j in range(2):
        v = critics.weights[0][j].detach() @ right[j]
        u = critics.weights[0][j].detach().T @ (v / v.norm())
        torch.testing.assert_close(critics.left_0[j], v / v.norm())
        torch.testing.assert_close(critics.right_0[j], u / u.norm())


def test_frozen_weights_receive_no_gradient_but_the_actions_do():
    critics, batch = critics_of(hidden=(8, 8)), make_batch(4)
    actions = batch.actions.clone().requires_grad_()
    critics.moments(batch.observations, actions, Passes(4), None, freeze=True).mean.sum().backward()
    assert actions.grad.abs().sum() > 0
    assert all(parameter.grad is None for parameter in critics.parameters())


def test_the_first_critic_alone_values_as_in_company_and_goes_on_learning():
    critics, batch = critics_of(hidden=(8, 8), rate=0.0), make_batch(4)
    alone = critics.first()
    for _ in range(2):
        assert alone.ensemble == 1
        torch.testing.assert_close(alone(*batch[:2])[0], critics(*batch[:2])[0])
        for parameter in critics.parameters():
            parameter.data.mul_(1.5).add_(0.1)
        critics.power_iteration()
