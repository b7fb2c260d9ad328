"""The behavior model: its loss by hand, its bounds, and that it learns the data's actions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, replay

from mildly.behavior.cvae import CVAE


@pytest.fixture
def model() -> CVAE:
    torch.manual_seed(2)
    return CVAE(OBSERVATIONS, ACTIONS, hidden_dims=(9, 6))


def constant(net: torch.nn.Sequential, output: list[float]) -> None:
    """Make a network give the same output everywhere."""
    for parameter in net.parameters():
        parameter.data.zero_()
    net[-1].bias.data = torch.tensor(output)


def test_loss_of_a_constant_model_is_the_sum_worked_out_by_hand():
    model = CVAE(OBSERVATIONS, ACTIONS, hidden_dims=(4,), latent_size=2)
    constant(model.encoder, [0.5, -1.0, math.log(2.0), 0.0])  # means 0.5, -1; standard deviations 2, 1
    constant(model.decoder, [0.0, math.atanh(0.5)])
    actions = torch.tensor([[0.5, 0.0], [-1.0, 0.5]])
    # |a - D|^2, summed over dimensions: 0.25 + 0.25 and 1 + 0; on average 0.75.
    # KL, summed over latents: (0.25 + 4 - 1 - 2 log 2) / 2 + (1 + 1 - 1 - 0) / 2.
    expected = 0.75 + (3.25 - 2 * math.log(2)) / 2 + 0.5
    assert model.loss(torch.zeros(2, OBSERVATIONS), actions).item() == pytest.approx(expected, rel=1e-6)


def test_loss_equals_a_loop_over_the_batch(model):
    batch, generator = make_batch(7), torch.Generator().manual_seed(4)
    noise = torch.randn(7, 4, generator=replay(generator)).numpy()
    encoder, decoder, total = Layers.of(model.encoder), Layers.of(model.decoder), 0.0
    for i in range(7):
        out = encoder(batch.observations[i], batch.actions[i])
        mean, std = out[:4], np.exp(np.clip(out[4:], -4, 15))
        made = np.tanh(decoder(batch.observations[i], mean + std * noise[i]))
        for k in range(ACTIONS):
            total += (float(batch.actions[i, k]) - made[k]) ** 2
        for k in range(4):
            total += 0.5 * (mean[k] ** 2 + std[k] ** 2 - 1 - np.log(std[k] ** 2))
    assert model.loss(batch.observations, batch.actions, generator).item() == pytest.approx(total / 7, rel=1e-5)


@pytest.mark.parametrize(
    ("bounds", "raw", "clamped"),
    [
        ({}, -50.0, -4.0),
        ({}, 50.0, 15.0),
        ({}, 1.0, 1.0),
        ({"log_std_min": -1.5}, -50.0, -1.5),
        ({"log_std_max": 0.5}, 50.0, 0.5),
    ],
)
def test_encoder_spread_is_clamped(bounds, raw, clamped):
    model = CVAE(OBSERVATIONS, ACTIONS, hidden_dims=(4,), latent_size=1, **bounds)
    constant(model.encoder, [0.0, raw])
    constant(model.decoder, [0.0, 0.0])
    expected = 0.5 * (math.exp(2 * clamped) - 1 - 2 * clamped)
    loss = model.loss(torch.zeros(3, OBSERVATIONS), torch.zeros(3, ACTIONS))
    assert loss.item() == pytest.approx(expected, rel=1e-5)


def test_latents_are_twice_the_actions_unless_told():
    assert CVAE(3, 5, hidden_dims=(4,)).latent_size == 10
    assert CVAE(3, 5, hidden_dims=(4,), latent_size=3).decoder[0].in_features == 6


@pytest.mark.parametrize("clip", [0.5, 0.1, None])
def test_samples_decode_clipped_draws_of_the_prior(model, clip):
    model.latent_clip = clip
    states, generator = make_batch(5).observations, torch.Generator().manual_seed(6)
    latents = torch.randn(5, 8, 4, generator=replay(generator)).numpy()
    assert np.abs(latents).max() > 1  # so that the clip matters
    sample, decoder = model.sample(states, 8, generator), Layers.of(model.decoder)
    assert sample.shape == (5, 8, ACTIONS)
    bound = np.inf if clip is None else clip
    for s in range(5):
        for n in range(8):
            expected = np.tanh(decoder(states[s], np.clip(latents[s, n], -bound, bound)))
            np.testing.assert_allclose(sample[s, n].numpy(), expected, atol=1e-6)


def test_samples_carry_no_gradient_and_stay_within_the_bounds(model):
    model.decoder[-1].weight.data *= 100
    sample = model.sample(make_batch(50).observations.requires_grad_(), 4)
    assert not sample.requires_grad
    assert sample.abs().max() <= 1
    assert sample.abs().max() > 0.99


def test_loss_trains_encoder_and_decoder(model):
    batch = make_batch(6)
    model.loss(batch.observations, batch.actions).backward()
    assert all(parameter.grad.abs().sum() > 0 for parameter in model.parameters())


def test_trained_samples_are_the_datas_actions_in_each_state():
    torch.manual_seed(0)
    model = CVAE(1, 1, hidden_dims=(32,))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(0)
    for _ in range(400):
        states = torch.randint(2, (64, 1), generator=generator) * 2.0 - 1  # action 0.7 in state 1, -0.7 in state -1
        optimizer.zero_grad()
        model.loss(states, 0.7 * states, generator).backward()
        optimizer.step()
    sample = model.sample(torch.tensor([[1.0], [-1.0]]), 200, generator)
    assert (sample[0] - 0.7).abs().max() < 0.15
    assert (sample[1] + 0.7).abs().max() < 0.15
