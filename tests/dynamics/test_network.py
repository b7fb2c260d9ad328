"""The Gaussian networks: likelihood and bounds by hand, members apart."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from mildly.dynamics.config import DynamicsConfig
from mildly.dynamics.network import GaussianEnsemble
from mildly.errors import MildlyError

MEMBERS, DECAYS = 3, (0.01, 0.02, 0.05)


def network(seed: int = 0) -> GaussianEnsemble:
    """Two observations, one action, two hidden layers, and bounds that matter."""
    torch.manual_seed(seed)
    net = GaussianEnsemble(2, 1, (5, 4), MEMBERS)
    for parameter in net.parameters():
        parameter.data.add_(0.5 * torch.randn(parameter.shape))
    net.max_log_var.data.copy_(torch.tensor([0.4, 0.1, -0.3]))
    net.min_log_var.data.copy_(torch.tensor([-1.0, -0.7, -0.9]))
    return net


def softplus(x: float) -> float:
    return float(np.log1p(np.exp(x)))


def slow_member(net: GaussianEnsemble, k: int, inputs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and log-variance of one input by one member, number by number."""
    x = inputs
    for i, (weight, bias) in enumerate(zip(net.weights, net.biases, strict=True)):
        x = x @ weight[k].detach().double().numpy() + bias[k, 0].detach().double().numpy()
        if i < len(net.weights) - 1:
            x = x / (1 + np.exp(-x))
    mean, raw = np.split(x, 2)
    log_var = np.empty_like(raw)
    for d, (value, high, low) in enumerate(zip(raw, net.max_log_var.tolist(), net.min_log_var.tolist(), strict=True)):
        value = high - softplus(high - value)
        log_var[d] = low + softplus(value - low)
    return mean, log_var


def test_the_loss_is_the_gaussian_likelihood_within_soft_bounds_by_hand() -> None:
    net, random = network(), np.random.default_rng(0)
    inputs, targets = random.normal(size=(MEMBERS, 6, 3)), random.normal(size=(MEMBERS, 6, 3))
    expected, errors = 0.0, []
    for k in range(MEMBERS):
        for row in range(6):
            mean, log_var = slow_member(net, k, inputs[k, row])
            for m, v, y in zip(mean, log_var, targets[k, row], strict=True):
                expected += ((m - y) ** 2 / np.exp(v) + v) / (6 * 3)
                errors.append((m - y) ** 2)
    expected += 0.01 * (0.4 + 0.1 - 0.3) - 0.01 * (-1.0 - 0.7 - 0.9)
    for decay, weight in zip(DECAYS, net.weights, strict=True):
        expected += 0.5 * decay * float((weight.detach().double() ** 2).sum())
    loss, error = net.loss(torch.tensor(inputs).float(), torch.tensor(targets).float(), DECAYS)
    assert loss.item() == pytest.approx(expected, rel=1e-5)
    assert error.item() == pytest.approx(np.mean(errors), rel=1e-5)
    assert not error.requires_grad


def test_a_log_variance_stays_near_its_bounds_and_still_passes_gradients() -> None:
    net = network()
    raw = torch.tensor([[-50.0] * 3, [0.0] * 3, [50.0] * 3], requires_grad=True)
    bounded = net.bounded(raw)
    assert (bounded >= net.min_log_var).all()
    beyond = torch.tensor(
        [softplus(-1.4), softplus(-0.8), softplus(-0.6)]
    )  # as far as the lower bound softens the upper
    assert (bounded <= net.max_log_var + beyond + 1e-6).all()
    assert (bounded[0] <= bounded[1]).all()
    assert (bounded[1] <= bounded[2]).all()
    bounded.sum().backward()
    assert raw.grad is not None
    assert (raw.grad[1] > 0.05).all()
    assert net.max_log_var.grad is not None
    assert (net.max_log_var.grad != 0).all()


def test_shared_rows_are_the_same_rows_for_every_member() -> None:
    net, rows = network(), torch.randn(7, 3)
    for shared, own in zip(net(rows), net(rows.expand(MEMBERS, 7, 3)), strict=True):
        assert torch.equal(shared, own)


def test_a_members_loss_reaches_only_its_own_weights() -> None:
    net = network()
    mean, log_var = net(torch.randn(5, 3))
    (mean[1].sum() + log_var[1].sum()).backward()
    for parameter in (*net.weights, *net.biases):
        assert parameter.grad is not None
        assert (parameter.grad[1] != 0).any()
        assert not parameter.grad[[0, 2]].any()


def test_only_chosen_members_are_taken_over_but_bounds_and_scales_are() -> None:
    one, other = network(0), network(1)
    other.input_std.fill_(3.0)
    before = [weight.detach().clone() for weight in one.weights]
    one.take_over(other, torch.tensor([True, False, True]))
    for was, ours, theirs in zip(before, one.weights, other.weights, strict=True):
        assert torch.equal(ours[[0, 2]], theirs[[0, 2]])
        assert torch.equal(ours[1], was[1])
    assert torch.equal(one.max_log_var, other.max_log_var)
    assert (one.input_std == 3).all()


def test_every_layer_has_its_own_decay_whatever_the_depth() -> None:
    paper = DynamicsConfig()
    assert paper.layer_decays() == (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 1e-4)
    assert DynamicsConfig(hidden_dims=(8, 8)).layer_decays() == (2.5e-5, 5e-5, 1e-4)
    assert DynamicsConfig(hidden_dims=(8,) * 5).layer_decays() == (2.5e-5, 5e-5, 7.5e-5, 7.5e-5, 7.5e-5, 1e-4)
    assert DynamicsConfig(hidden_dims=(8, 8), weight_decay=(0.1,)).layer_decays() == (0.1, 0.1, 0.1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"elites": 8}, "elites of the dynamics model must be at most the 7 members, got 8"),
        ({"lr": 0.0}, "lr of the dynamics model must be positive"),
        ({"test_episodes": 1.0}, r"test_episodes of the dynamics model must be in \[0, 1\)"),
        ({"hidden_dims": ()}, "hidden_dims of the dynamics model must be positive widths"),
        ({"weight_decay": (-1.0,)}, "weight_decay of the dynamics model must be numbers of at least 0"),
    ],
)
def test_a_wrong_field_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(MildlyError, match=message):
        DynamicsConfig(**fields)  # type: ignore[arg-type]
