"""Critics with normalized layers: against a slow computation, and what they are for."""

from __future__ import annotations

import math

import numpy as np
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, same, tiny, weights

from mildly.networks import Critics, polyak_update


def slow_normalized(critics: Critics, j: int, state: torch.Tensor, action: torch.Tensor) -> float:
    """One value of one critic: after each product but the last, mean 0, variance 1, then ReLU."""
    x, layers = np.concatenate([state.numpy(), action.numpy()]).astype(np.float64), Layers.of_critic(critics, j)
    for matrix, offset in layers[:-1]:
        x = matrix @ x + offset
        mean = sum(x) / len(x)
        variance = sum((value - mean) ** 2 for value in x) / len(x)
        x = np.maximum((x - mean) / math.sqrt(variance + 1e-5), 0)
    matrix, offset = layers[-1]
    return float((matrix @ x + offset)[0])


def test_normalized_layers_equal_a_slow_computation():
    critics = tiny("mcq", layer_norm=True).critics
    states = make_batch(4).observations
    actions = torch.rand(4, 3, ACTIONS, generator=torch.Generator().manual_seed(0)) * 2 - 1
    pairs = list(zip(states, actions, strict=True))
    expected = [[[slow_normalized(critics, j, s, a) for a in own] for s, own in pairs] for j in range(2)]
    np.testing.assert_allclose(critics(states, actions).detach(), expected, atol=1e-5)
    np.testing.assert_allclose(critics(states, actions[:, 0]).detach(), np.array(expected)[:, :, 0], atol=1e-5)
    np.testing.assert_allclose(critics(states, actions, freeze=True).detach(), expected, atol=1e-5)
    plain = tiny("mcq").critics
    assert same(weights(plain), weights(critics))
    assert not np.allclose(plain(states, actions).detach(), expected, atol=1e-2)


def test_values_of_normalized_critics_do_not_grow_with_the_distance_of_an_action():
    states = make_batch(4).observations
    torch.manual_seed(0)
    for layer_norm, bounded in ((True, True), (False, False)):
        critics = Critics(OBSERVATIONS, ACTIONS, (8, 8), layer_norm=layer_norm)
        near, far = (critics(states, torch.full((4, ACTIONS), x)).abs().max().item() for x in (1.0, 1e4))
        assert (far < 10 * near) == bounded


def test_normalized_critics_keep_what_they_are_in_their_targets():
    learner = tiny("td3", layer_norm=True)
    assert learner.target_critics.layer_norm
    polyak_update(learner.target_critics, learner.critics, 1.0)
    batch = make_batch()
    values = [critics(batch.observations, batch.actions) for critics in (learner.critics, learner.target_critics)]
    assert torch.equal(*values)
