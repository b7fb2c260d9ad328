"""Networks: the ensemble of critics, Polyak averaging, and the tanh-Gaussian where its arithmetic is hardest."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import Layers, make_batch, replay, same, weights
from torch import nn
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from mildly import networks
from mildly.actors import TanhGaussian, TanhGaussianActor
from mildly.errors import MildlyError
from mildly.networks import Critics, mlp, polyak_update
from mildly.policy import ACTORS


@pytest.fixture
def critics() -> Critics:
    torch.manual_seed(3)
    return Critics(3, 2, (7, 5), ensemble=3)


# MLP


def test_mlp_has_relu_between_layers_and_none_at_the_end():
    net = mlp((3, 4, 5, 2))
    assert [type(layer) for layer in net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [(layer.in_features, layer.out_features) for layer in net[::2]] == [(3, 4), (4, 5), (5, 2)]


# Critics


def as_separate_mlps(critics: Critics) -> list[nn.Sequential]:
    nets = []
    for j in range(critics.ensemble):
        net = mlp((5, 7, 5, 1))
        for layer, weight, bias in zip(net[::2], critics.weights, critics.biases, strict=True):
            layer.weight.data.copy_(weight[j].T)
            layer.bias.data.copy_(bias[j, 0])
        nets.append(net)
    return nets


def test_an_ensemble_equals_its_critics_evaluated_one_by_one(critics):
    batch = make_batch(6)
    values = critics(batch.observations, batch.actions)
    assert values.shape == (3, 6)
    for j, net in enumerate(as_separate_mlps(critics)):
        expected = net(torch.cat([batch.observations, batch.actions], dim=-1))[:, 0]
        torch.testing.assert_close(values[j], expected)
    assert not torch.allclose(values[0], values[1])


def test_many_actions_a_state_equal_one_at_a_time(critics):
    states, actions = make_batch(6).observations, torch.rand(6, 4, 2)
    values = critics(states, actions)
    assert values.shape == (3, 6, 4)
    for j in range(3):
        slow = Layers.of_critic(critics, j)
        expected = [[slow(states[s], actions[s, n])[0] for n in range(4)] for s in range(6)]
        np.testing.assert_allclose(values[j].detach().numpy(), expected, atol=1e-5)


@pytest.mark.parametrize("at_once", [1, 5, 24, 25])
def test_blocks_of_rows_give_the_values_and_gradients_of_all_at_once(critics, at_once, monkeypatch):
    states, actions = make_batch(6).observations, torch.rand(6, 4, 2, requires_grad=True)
    found = []
    for rows in (10**6, at_once):
        monkeypatch.setattr(networks, "ROWS_AT_ONCE", rows)
        values = critics(states, actions)
        found.append([values, *torch.autograd.grad(values.exp().sum(), [actions, *critics.parameters()])])
    for whole, in_blocks in zip(*found, strict=True):
        torch.testing.assert_close(in_blocks, whole)


def test_actions_by_critic_are_judged_by_that_critic(critics):
    states, actions = make_batch(6).observations, torch.rand(3, 6, 4, 2)
    values = critics(states, actions)
    assert values.shape == (3, 6, 4)
    for j in range(3):
        torch.testing.assert_close(values[j], critics(states, actions[j])[j])


def test_critics_start_with_the_distribution_of_linear_layers():
    torch.manual_seed(0)
    critics = Critics(60, 4, (100,))
    for weight, bound in zip(critics.weights, (1 / 8, 1 / 10), strict=True):
        assert weight.abs().max() <= bound
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)
    assert not torch.equal(critics.weights[0][0], critics.weights[0][1])


def test_frozen_critics_pass_gradients_to_actions_but_not_to_weights(critics):
    batch = make_batch(6)
    free, frozen = (batch.actions.clone().requires_grad_() for _ in range(2))
    critics(batch.observations, frozen, freeze=True).sum().backward()
    assert all(parameter.grad is None for parameter in critics.parameters())
    critics(batch.observations, free).sum().backward()
    assert all(parameter.grad is not None for parameter in critics.parameters())
    assert frozen.grad.abs().sum() > 0
    assert torch.equal(free.grad, frozen.grad)


def test_critics_share_no_gradient(critics):
    batch = make_batch(6)
    critics(batch.observations, batch.actions)[1].sum().backward()
    for parameter in critics.parameters():
        assert parameter.grad[0].abs().sum() == 0
        assert parameter.grad[2].abs().sum() == 0
    assert critics.weights[0].grad[1].abs().sum() > 0


# Polyak


def test_polyak_moves_targets_by_tau_of_the_way():
    target, online = nn.Linear(2, 1), nn.Linear(2, 1)
    with torch.no_grad():
        target.weight.copy_(torch.tensor([[1.0, -2.0]]))
        target.bias.fill_(4.0)
        online.weight.copy_(torch.tensor([[3.0, 2.0]]))
        online.bias.fill_(0.0)
    before = weights(online)
    polyak_update(target, online, 0.25)
    assert target.weight.tolist() == [[1.5, -1.0]]
    assert target.bias.tolist() == [3.0]
    assert same(before, weights(online))
    polyak_update(target, online, 1.0)
    assert same(weights(target), weights(online))


# The tanh-Gaussian


def at(z: list[float], log_std: float, dtype: torch.dtype = torch.float32) -> tuple[TanhGaussian, torch.Generator]:
    """A distribution whose next draw, from the generator given, lands at z before the tanh."""
    generator = torch.Generator().manual_seed(5)
    noise = torch.randn(len(z), 1, generator=replay(generator), dtype=dtype)
    spread = torch.full((len(z), 1), log_std, dtype=dtype)
    mean = torch.tensor(z, dtype=dtype)[:, None] - spread.exp() * noise
    return TanhGaussian(mean.requires_grad_(), spread.requires_grad_()), generator


def test_log_prob_agrees_with_torch_distributions_away_from_the_bounds():
    generator = torch.Generator().manual_seed(0)
    mean = torch.linspace(-0.8, 0.8, 12, dtype=torch.float64).reshape(6, 2)
    log_std = torch.linspace(-2.0, -0.7, 12, dtype=torch.float64).reshape(6, 2)
    reference = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform(cache_size=1)])
    drawn = TanhGaussian(mean, log_std).rsample(generator)
    expected = reference.log_prob(drawn.actions).sum(-1)
    torch.testing.assert_close(drawn.log_prob, expected, atol=5e-5, rtol=0)
    torch.testing.assert_close(TanhGaussian(mean, log_std).log_prob(drawn.actions), expected, atol=5e-5, rtol=0)


@pytest.mark.parametrize("log_std", [-3.0, 0.0, 1.0])
def test_log_prob_keeps_its_digits_where_tanh_rounds_to_one(log_std):
    z = [0.0, 5.0, 8.0, 12.0, -9.0]
    distribution, generator = at(z, log_std)
    noise = torch.randn(len(z), 1, generator=replay(generator))
    drawn = distribution.rsample(generator)
    exact = (distribution.mean + distribution.log_std.exp() * noise).detach().double().numpy()[:, 0]
    np.testing.assert_allclose(exact, z, atol=1e-5)
    sech = 1 / np.cosh(exact) ** 2
    expected = -0.5 * noise.double().numpy()[:, 0] ** 2 - log_std - 0.5 * np.log(2 * np.pi) - np.log(sech + 1e-6)
    np.testing.assert_allclose(drawn.log_prob.detach().numpy(), expected, atol=2e-4)
    # With the noise held fixed, the gradient in the mean is that of -log(1 - tanh(z)^2 + 1e-6) alone.
    drawn.log_prob.sum().backward()
    slope = 2 * np.tanh(exact) * sech / (sech + 1e-6)
    np.testing.assert_allclose(distribution.mean.grad.numpy()[:, 0], slope, atol=1e-4)
    assert torch.isfinite(distribution.log_std.grad).all()


def test_actions_exactly_at_the_bounds_have_a_finite_log_prob_and_gradient():
    mean, log_std = torch.zeros(2, 1, requires_grad=True), torch.zeros(2, 1, requires_grad=True)
    log_prob = TanhGaussian(mean, log_std).log_prob(torch.tensor([[1.0], [-1.0]]))
    z = 0.5 * math.log(2 / 1e-6)  # 1 - |a| is floored at 1e-6
    expected = -0.5 * z**2 - 0.5 * math.log(2 * math.pi) - math.log(1 / math.cosh(z) ** 2 + 1e-6)
    assert log_prob.tolist() == pytest.approx([expected, expected], abs=1e-3)
    log_prob.sum().backward()
    # d/dmean of log N(z; mean, 1) is z - mean; d/dlog_std is (z - mean)^2 - 1.
    assert mean.grad[:, 0].tolist() == pytest.approx([z, -z], abs=1e-4)
    assert log_std.grad[:, 0].tolist() == pytest.approx([z**2 - 1] * 2, abs=1e-3)


@pytest.mark.parametrize("log_std", [-20.0, 2.0])
def test_bounds_stay_finite_at_the_extremes_of_the_spread(log_std):
    mean = torch.tensor([[30.0], [-30.0]], requires_grad=True)
    log_prob = TanhGaussian(mean, torch.full((2, 1), log_std)).log_prob(torch.tensor([[-1.0], [1.0]]))
    log_prob.sum().backward()
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(mean.grad).all()


def test_rsample_and_log_prob_agree():
    generator = torch.Generator().manual_seed(1)
    distribution = TanhGaussian(torch.randn(50, 3, generator=generator) * 0.5, torch.full((50, 3), -1.0))
    drawn = distribution.rsample(generator)
    assert drawn.log_prob.shape == (50,)
    torch.testing.assert_close(drawn.log_prob, distribution.log_prob(drawn.actions), atol=1e-3, rtol=0)


def test_density_integrates_to_one():
    grid = torch.linspace(-1, 1, 20_001, dtype=torch.float64)[1:-1, None]
    many = grid.expand(-1, 1)
    distribution = TanhGaussian(torch.full_like(many, 0.3), torch.full_like(many, -0.5))
    assert float(distribution.log_prob(many).exp().sum() * 1e-4) == pytest.approx(1, abs=1e-3)


def test_a_draw_is_differentiable_in_mean_and_spread():
    mean, log_std = torch.zeros(4, 2, requires_grad=True), torch.zeros(4, 2, requires_grad=True)
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(4, 2, generator=replay(generator))
    TanhGaussian(mean, log_std).rsample(generator).actions.sum().backward()
    torch.testing.assert_close(mean.grad, 1 - noise.tanh() ** 2)
    torch.testing.assert_close(log_std.grad, (1 - noise.tanh() ** 2) * noise)


def test_samples_are_those_of_the_distribution_and_carry_no_gradient():
    mean = torch.tensor([[0.2, -1.0], [0.0, 3.0]], requires_grad=True)
    log_std = torch.tensor([[-1.0, 0.0], [0.5, -2.0]])
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(2, 5, 2, generator=replay(generator))
    sample = TanhGaussian(mean, log_std).sample(5, generator)
    assert not sample.requires_grad
    for s in range(2):
        for n in range(5):
            expected = torch.tanh(mean[s] + log_std[s].exp() * noise[s, n])
            torch.testing.assert_close(sample[s, n], expected.detach())


# The actor


def test_actor_splits_its_output_into_mean_and_clamped_spread():
    torch.manual_seed(0)
    actor = TanhGaussianActor(3, 2, (6,), log_std_min=-1.0, log_std_max=0.5)
    actor.net[-1].bias.data = torch.tensor([0.1, 0.2, -30.0, 30.0])
    states = make_batch(5).observations
    distribution, slow = actor(states), Layers.of(actor.net)
    expected = np.stack([slow(state)[:2] for state in states])
    np.testing.assert_allclose(distribution.mean.detach().numpy(), expected, atol=1e-6)
    assert distribution.log_std.tolist() == [[-1.0, 0.5]] * 5


def test_actor_acts_with_the_mean_or_with_a_draw():
    torch.manual_seed(0)
    actor, states = TanhGaussianActor(3, 2, (6,)), make_batch(5).observations
    assert torch.equal(actor.act(states, deterministic=True), torch.tanh(actor(states).mean))
    drawn = [actor.act(states, False, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])


def test_an_actors_spec_builds_an_actor_of_the_same_shape():
    actor = TanhGaussianActor(3, 2, (6, 4), log_std_min=-7.0, log_std_max=1.0)
    twin = TanhGaussianActor(**actor.spec)
    twin.load_state_dict(actor.state_dict())
    assert (twin.log_std_min, twin.log_std_max) == (-7.0, 1.0)
    assert twin.spec == actor.spec


@pytest.mark.parametrize("kind", sorted(set(ACTORS) - {"decision-transformer"}))  # see test_transformer.py
def test_actors_of_every_kind_are_built_again_from_kind_and_spec(kind):
    torch.manual_seed(0)
    actor = ACTORS[kind](3, 2, (6, 4))
    assert actor.kind == kind
    assert {name: actor.spec[name] for name in ("observation_size", "action_size", "hidden_dims")} == {
        "observation_size": 3,
        "action_size": 2,
        "hidden_dims": [6, 4],
    }
    twin = ACTORS[kind](**actor.spec)
    twin.load_state_dict(actor.state_dict())
    states = 100 * make_batch(50).observations
    for deterministic in (True, False):
        actions = [each.act(states, deterministic, torch.Generator().manual_seed(1)) for each in (actor, twin)]
        assert torch.equal(*actions)
        assert actions[0].shape == (50, 2)
        assert actions[0].abs().max() <= 1
    assert actor.start(3) is None  # none of them remembers anything
    with pytest.raises(MildlyError, match=r"^this policy knows no target_return\.$"):
        actor.start(3, target_return=1.0)
