"""What every behavior model must do, and the losses and draws of CGAN and flow against slow versions of them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, make_dataset, replay, tiny, weights
from torch import Tensor

from mildly.behavior import BEHAVIOR_MODELS, cgan
from mildly.behavior.base import BehaviorModel
from mildly.behavior.cache import ActionCache
from mildly.behavior.cgan import CGAN
from mildly.behavior.flow import Flow
from mildly.optimizer import minimize

every_model = pytest.mark.parametrize("name", sorted(BEHAVIOR_MODELS))
every_pair = pytest.mark.parametrize(
    ("algorithm", "name"), [(a, m) for a in ("mcq", "mcq-td3") for m in sorted(BEHAVIOR_MODELS)]
)


def made(name: str, observations: int = OBSERVATIONS, actions: int = ACTIONS, **options) -> BehaviorModel:
    torch.manual_seed(2)
    return BEHAVIOR_MODELS[name](observations, actions, hidden_dims=(9, 6), **options)


def stream(seed: int = 4) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# Every model


@every_model
@pytest.mark.parametrize(("observations", "actions"), [(1, 1), (1, 3), (5, 1), (30, 7)])
def test_losses_are_numbers_and_draws_have_a_row_for_each_state(name, observations, actions):
    model = made(name, observations, actions)
    states = torch.randn(6, observations, generator=stream())
    for step in range(2):
        loss = model.loss(states, torch.ones(6, actions), stream(), step).detach()
        assert loss.shape == ()
        assert math.isfinite(loss)
    assert model.sample(states, 4, stream()).shape == (6, 4, actions)


@every_model
def test_draws_stay_within_the_bounds_carry_no_gradient_and_leave_the_states_alone(name):
    model = made(name)
    for parameter in model.parameters():
        parameter.data *= 20
    states = make_batch(50).observations.requires_grad_()
    before = states.detach().clone()
    sample = model.sample(states, 4, stream())
    assert not sample.requires_grad
    assert 0.99 < sample.abs().max() <= 1
    assert torch.equal(states, before)


@every_model
def test_equal_generators_give_equal_numbers_and_torchs_own_is_left_alone(name):
    model, batch = made(name), make_batch()
    own = torch.get_rng_state()
    for compute in (
        lambda generator: model.loss(batch.observations, batch.actions, generator),
        lambda generator: model.sample(batch.observations, 3, generator),
    ):
        assert torch.equal(compute(stream(1)), compute(stream(1)))
        assert not torch.equal(compute(stream(1)), compute(stream(2)))
    assert torch.equal(torch.get_rng_state(), own)


@every_model
def test_draws_follow_their_own_state(name):
    """Equal noise in other rows: a state's actions do not depend on its neighbors, and do on itself."""
    model, states = made(name), make_batch(5).observations
    changed = states.clone()
    changed[1:] += 1
    before, after = model.sample(states, 3, stream()), model.sample(changed, 3, stream())
    torch.testing.assert_close(before[0], after[0])
    assert (before[1:] - after[1:]).abs().amax(dim=(1, 2)).min() > 0


@every_model
def test_kept_actions_are_the_models_own_draws(name):
    model, dataset = made(name), make_dataset(30)
    caches = [ActionCache(dataset, 4, torch.device("cpu")) for _ in range(2)]
    for cache in caches:
        cache.fill(model.sample, edition=0, seed=3)
    rows = torch.tensor([5, 0, 17])
    kept = caches[0].gather(rows)
    assert kept.shape == (6, 4, ACTIONS)
    assert torch.equal(kept, caches[1].gather(rows))
    states = np.concatenate([dataset.observations, dataset.next_observations[caches[0].apart]])
    drawn = model.sample(torch.from_numpy(states), 4, stream(3 + 1))
    torch.testing.assert_close(kept[:3], drawn[rows], atol=1e-3, rtol=0)
    torch.testing.assert_close(kept[3:], drawn[caches[0].successors[rows]], atol=1e-3, rtol=0)


# Within MCQ


@every_pair
def test_three_steps_of_mcq_change_every_weight_with_any_model(algorithm, name):
    learner = tiny(algorithm, **{"behavior.model": name})
    assert type(learner.behavior.model) is BEHAVIOR_MODELS[name]
    before = weights(learner.behavior.model, learner.critics, learner.actor)
    for step in range(3):
        metrics = learner.update(make_batch(seed=step))
        assert all(math.isfinite(value) for value in metrics.values())
        assert {"loss_behavior", "behavior_spread", "pseudo_target"} <= metrics.keys()
    after = weights(learner.behavior.model, learner.critics, learner.actor)
    assert not any(torch.equal(a, b) for a, b in zip(before, after, strict=True))


@every_pair
@pytest.mark.parametrize("first", [1, 2])
def test_mcq_resumes_to_the_bit_with_any_model(algorithm, name, first):
    straight, restored = (tiny(algorithm, seed=seed, **{"behavior.model": name}) for seed in (0, 9))
    for step in range(first):
        straight.update(make_batch(seed=step))
    for step in range(3):
        restored.update(make_batch(seed=50 + step))
    restored.load_state_dict({key: tensor.clone() for key, tensor in straight.state_dict().items()})
    for step in range(first, first + 3):
        for learner in (straight, restored):
            learner.update(make_batch(seed=step))
    one, other = straight.state_dict(), restored.state_dict()
    assert one.keys() == other.keys()
    assert not [key for key in one if not torch.equal(one[key], other[key])]


@every_model
def test_a_models_own_widths_and_rates_hold_unless_others_are_given(name):
    kind = BEHAVIOR_MODELS[name]
    own = tiny("mcq", **{"behavior.model": name, "behavior.hidden_dims": None}).behavior
    group = own.optimizer.param_groups[0]
    assert {key: group[key] for key in kind.ADAM} == kind.ADAM
    assert {p.shape[0] for p in own.model.parameters() if p.ndim == 2} >= set(kind.HIDDEN_DIMS)
    other = tiny("mcq", **{"behavior.model": name, "behavior.lr": 0.5}).behavior
    assert other.optimizer.param_groups[0]["lr"] == 0.5
    assert {p.shape[1] for p in other.model.parameters() if p.ndim == 2} >= {8}


# CGAN


class Leaky(Layers):
    """The slow reference of a network with leaky ReLUs."""

    def __call__(self, *inputs) -> np.ndarray:
        x = np.concatenate([np.asarray(given, dtype=np.float64).reshape(-1) for given in inputs])
        for i, (matrix, offset) in enumerate(self):
            x = matrix @ x + offset
            if i < len(self) - 1:
                x = np.where(x > 0, x, 0.01 * x)
        return x


def entropy(logit: float, label: float) -> float:
    """Binary cross-entropy of one prediction."""
    chance = 1 / (1 + math.exp(-logit))
    return -label * math.log(chance) - (1 - label) * math.log(1 - chance)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
@pytest.mark.parametrize("scale", [3e-4, 0.1])  # its own, and one with which noise and clip show
def test_the_cgans_loss_equals_a_loop_over_the_batch(step, scale, monkeypatch):
    model, batch, random = made("cgan"), make_batch(7), stream()
    again = replay(random)
    if scale == 0.1:
        monkeypatch.setattr(cgan, "_STATE_NOISE", scale)
    state_noise = np.clip(scale * torch.randn(7, OBSERVATIONS, generator=again).numpy(), -0.05, 0.05)
    noise = np.clip(torch.randn(7, 1, generator=again).numpy(), -3, 3)  # three observations: one dimension of noise
    labels = 0.8 + 0.2 * torch.rand(7, 1, generator=again).numpy()
    generator, discriminator = Leaky.of(model.generator_net), Leaky.of(model.discriminator)
    told = fooled = 0.0
    for i in range(7):
        state, action = batch.observations[i].numpy(), batch.actions[i].double().numpy()
        nearby = state + state_noise[i]
        fake = discriminator(nearby, generator(nearby, noise[i]))[0]
        told += entropy(discriminator(state, np.arctanh(action))[0], labels[i, 0]) / 2 + entropy(fake, 0) / 2
        fooled += entropy(fake, 1)
    expected = (told + (fooled if step % 2 == 0 else 0)) / 7
    assert model.loss(batch.observations, batch.actions, random, step).item() == pytest.approx(expected, rel=1e-5)


def test_the_cgans_draws_equal_a_loop_over_states_and_clipped_noise():
    model, states = made("cgan", observations=9), torch.randn(40, 9, generator=stream(1))
    noise = torch.randn(40, 50, 4, generator=stream()).numpy()
    assert np.abs(noise).max() > 3.5  # so that the clip matters
    sample, generator = model.sample(states, 50, stream()).numpy(), Leaky.of(model.generator_net)
    for s, n in np.argwhere(np.abs(noise).max(axis=-1) > 2.5)[:50]:
        expected = np.tanh(generator(states[s], np.clip(noise[s, n], -3, 3)))
        np.testing.assert_allclose(sample[s, n], expected, atol=1e-6)


def test_neither_of_the_cgans_networks_learns_from_the_others_loss():
    model, batch = made("cgan"), make_batch()
    made_actions = model.generate(batch.observations, torch.zeros(12, 1))
    model.generator_loss(batch.observations, made_actions).backward()
    assert all(parameter.grad is None for parameter in model.discriminator.parameters())
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.generator_net.parameters())

    model = made("cgan")
    model.loss(batch.observations, batch.actions, stream(), step=1).backward()  # the discriminator's turn alone
    assert all(parameter.grad is None for parameter in model.generator_net.parameters())
    alone = [parameter.grad.clone() for parameter in model.discriminator.parameters()]
    assert all(gradient.abs().sum() > 0 for gradient in alone)

    model.zero_grad()
    model.loss(batch.observations, batch.actions, stream(), step=0).backward()  # both
    assert all(torch.equal(p.grad, g) for p, g in zip(model.discriminator.parameters(), alone, strict=True))
    both = [parameter.grad.clone() for parameter in model.generator_net.parameters()]
    model.zero_grad()
    again = stream()
    nearby = batch.observations + 3e-4 * torch.randn(12, OBSERVATIONS, generator=again)
    noise = torch.randn(12, 1, generator=again).clamp(-3, 3)
    model.generator_loss(nearby, model.generate(nearby, noise)).backward()  # the generator's alone
    for parameter, gradient in zip(model.generator_net.parameters(), both, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_the_generator_rests_in_every_second_step():
    model, batch = made("cgan"), make_batch()
    optimizer = torch.optim.Adam(model.parameters(), **model.ADAM, fused=True)
    for step in range(4):
        before = weights(model.generator_net), weights(model.discriminator)
        minimize(model.loss(batch.observations, batch.actions, stream(), step), optimizer)
        after = weights(model.generator_net), weights(model.discriminator)
        moved = [
            any(not torch.equal(a, b) for a, b in zip(*pair, strict=True)) for pair in zip(before, after, strict=True)
        ]
        assert moved == [step % 2 == 0, True]


def test_actions_at_their_bounds_are_finite_for_the_cgan():
    model = made("cgan")
    loss = model.loss(torch.zeros(2, OBSERVATIONS), torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), stream())
    loss.backward()
    assert math.isfinite(loss.item())
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize(("observations", "size"), [(1, 1), (2, 1), (3, 1), (8, 4), (21, 10), (100, 10)])
def test_the_cgans_noise_has_half_the_states_size_between_one_and_ten(observations, size):
    assert CGAN(observations, 2, hidden_dims=(4,)).noise_size == size


# Flow


def test_the_flows_loss_equals_a_loop_over_batch_and_draws():
    model, batch, random = made("flow"), make_batch(7), stream()
    again = replay(random)
    noise = torch.randn(4 * 7, ACTIONS, generator=again).double().numpy()
    time = torch.rand(4 * 7, 1, generator=again).double().numpy()
    velocity, total = Layers.of(model.velocity), 0.0
    for i in range(4 * 7):
        state, action = batch.observations[i % 7].numpy(), batch.actions[i % 7].double().numpy()
        between = (1 - time[i]) * noise[i] + time[i] * action
        for got, wanted in zip(velocity(state, between, time[i]), action - noise[i], strict=True):
            total += (got - wanted) ** 2
    expected = total / (4 * 7)
    assert model.loss(batch.observations, batch.actions, random).item() == pytest.approx(expected, rel=1e-5)


def test_the_flows_draws_follow_its_velocity_in_four_midpoint_steps():
    model, states = made("flow"), make_batch(5).observations
    noise = torch.randn(5, 6, ACTIONS, generator=stream()).double().numpy()
    sample, velocity = model.sample(states, 6, stream()).numpy(), Layers.of(model.velocity)
    assert np.abs(sample).max() == 1  # so that the clip matters
    for s in range(5):
        for n in range(6):
            x = noise[s, n]
            for k in range(4):
                middle = x + velocity(states[s], x, k / 4) / 8
                x = x + velocity(states[s], middle, k / 4 + 1 / 8) / 4
            np.testing.assert_allclose(sample[s, n], np.clip(x, -1, 1), atol=1e-5)


def test_the_flows_loss_trains_every_weight():
    model, batch = made("flow"), make_batch()
    model.loss(batch.observations, batch.actions, stream()).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_a_straight_current_carries_the_noise_to_one_action():
    """With v = (a - x) / (1 - t), the velocity of data with the one action a, the path ends there."""
    model, action = Flow(1, 1, hidden_dims=(4,)), 0.3

    class Exact(torch.nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return (action - inputs[..., 1:2]) / (1 - inputs[..., 2:3])

    model.velocity = Exact()
    sample = model.sample(torch.zeros(3, 1), 20, stream())
    torch.testing.assert_close(sample, torch.full_like(sample, action), atol=1e-5, rtol=0)


# What they learn


def two_modes(states: Tensor, random: torch.Generator) -> Tensor:
    """Actions near m(s) and -m(s), where m(s) goes from 0.4 to 0.8."""
    side = 2.0 * torch.randint(2, (len(states), 1), generator=random) - 1
    return side * (0.6 + 0.2 * states) + 0.05 * torch.randn(len(states), 1, generator=random)


def out_of_support(model: BehaviorModel, steps: int, lr: float) -> float:
    """The share of draws that lie three standard deviations from both modes, after training."""
    optimizer, random = torch.optim.Adam(model.parameters(), lr=lr, fused=True), stream(0)
    for step in range(steps):
        states = 2 * torch.rand(128, 1, generator=random) - 1
        minimize(model.loss(states, two_modes(states, random), random, step), optimizer)
    states = torch.linspace(-1, 1, 50).unsqueeze(1)
    gap = (model.sample(states, 40, random).abs() - (0.6 + 0.2 * states).unsqueeze(1)).abs()
    return (gap > 0.15).float().mean().item()


def test_draws_of_every_model_come_closer_to_the_data_with_training():
    """One mode, which every model can learn."""
    for name, lr in {"cvae": 3e-3, "flow": 3e-3, "cgan": 1e-3}.items():
        torch.manual_seed(0)
        model = BEHAVIOR_MODELS[name](1, 1, hidden_dims=(32, 32))
        optimizer, random = torch.optim.Adam(model.parameters(), **{**model.ADAM, "lr": lr}, fused=True), stream(0)
        states = torch.linspace(-1, 1, 64).unsqueeze(1)

        def distance(model=model, states=states) -> float:
            return (model.sample(states, 20, stream()) - 0.6 * states.unsqueeze(1)).abs().mean().item()

        before = distance()
        for step in range(300):
            minimize(model.loss(states, 0.6 * states, random, step), optimizer)
        assert distance() < before / 2, name


@pytest.mark.slow
@pytest.mark.parametrize("kl_weight", [1.0, 0.1])
def test_the_flow_leaves_fewer_draws_between_two_modes_than_the_cvae(kl_weight):
    torch.manual_seed(0)
    flow = out_of_support(Flow(1, 1, hidden_dims=(64, 64)), 3000, 2e-3)
    torch.manual_seed(0)
    cvae = BEHAVIOR_MODELS["cvae"](1, 1, hidden_dims=(64, 64), kl_weight=kl_weight)
    assert flow < 0.15
    assert flow < out_of_support(cvae, 3000, 1e-3) - 0.05


# The flow's density


def test_the_density_of_a_flow_that_carries_nothing_is_that_of_its_noise():
    flow = Flow(2, 3, (4,))
    for parameter in flow.parameters():
        parameter.data.zero_()
    actions = torch.tensor([[0.1, -0.5, 0.9], [0.0, 0.0, 0.0]])
    expected = torch.distributions.Normal(0.0, 1.0).log_prob(actions).sum(-1)
    assert torch.allclose(flow.log_prob(torch.zeros(2, 2), actions), expected, atol=1e-5)


def test_the_density_of_a_linear_flow_by_hand():
    """v = c x carries N(0, 1) to N(0, exp(c)^2); the way back is followed in small steps."""
    flow = Flow(1, 2, ())
    flow.velocity[0].weight.data = torch.tensor([[0.0, -0.7, 0.0, 0.0], [0.0, 0.0, 0.3, 0.0]])
    flow.velocity[0].bias.data.zero_()
    actions = torch.tensor([[0.2, -0.4], [0.5, 0.8]])
    scales = torch.tensor([-0.7, 0.3]).exp()
    expected = torch.distributions.Normal(0.0, scales).log_prob(actions).sum(-1)
    assert torch.allclose(flow.log_prob(torch.zeros(2, 1), actions), expected, atol=5e-3)


def test_the_density_of_any_flow_integrates_to_one():
    torch.manual_seed(0)
    flow = Flow(2, 1, (16, 16))
    at = torch.linspace(-12, 12, 2401)[:, None]
    density = flow.log_prob(torch.ones(2401, 2), at).exp()
    assert (density.sum() * 0.01).item() == pytest.approx(1.0, abs=0.01)
    assert not density.requires_grad
