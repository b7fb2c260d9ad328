"""The best of n candidates: by hand, as a policy that is a function of its observation, and what it carries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Layers, make_batch, unsealed, weights

from mildly.actors import TanhGaussianActor
from mildly.behavior.cvae import CVAE
from mildly.candidates import BestOf, BestOfBehavior, BestOfPolicy, Perturbation, best_of_target, mixture
from mildly.errors import MildlyError
from mildly.files import write_json
from mildly.networks import Critics
from mildly.policy import Policy, load_policy

SIZES = OBSERVATIONS, ACTIONS


def of_policy(min_weight: float | None = None) -> BestOfPolicy:
    torch.manual_seed(1)
    policy, critics = TanhGaussianActor(*SIZES, (8, 8), -4.0, 1.0), Critics(*SIZES, (7, 6, 5), ensemble=3)
    return BestOfPolicy.holding(policy, critics, 9, min_weight)


def of_behavior() -> BestOfBehavior:
    torch.manual_seed(2)
    model = CVAE(*SIZES, (8, 6), latent_size=5, latent_clip=0.4)
    return BestOfBehavior.holding(model, Perturbation(*SIZES, (7, 5), 0.3), Critics(*SIZES, (6, 4)), 9)


every_kind = pytest.mark.parametrize("make", [of_policy, lambda: of_policy(0.75), of_behavior])


def test_a_mixture_weighs_the_lowest_and_the_highest_critic():
    values = torch.tensor([[1.0, -2.0], [3.0, 5.0], [2.0, 0.0]])
    assert mixture(values, 0.75).tolist() == [0.75 * 1 + 0.25 * 3, 0.75 * -2 + 0.25 * 5]
    assert torch.equal(mixture(values, 1.0), values.amin(0))


def test_the_target_takes_the_candidate_whose_mixture_is_best_and_nothing_after_the_end():
    batch = make_batch(2)._replace(rewards=torch.tensor([1.0, 2.0]), terminated=torch.tensor([0.0, 1.0]))
    values = torch.tensor([[[0.0, 4.0, 9.0], [1.0, 1.0, 1.0]], [[8.0, 6.0, -9.0], [1.0, 1.0, 1.0]]])
    # the mixtures of the first state are 0.75 * 0 + 0.25 * 8 = 2, 0.75 * 4 + 0.25 * 6 = 4.5 and -4.5
    assert best_of_target(batch, values, 0.5, 0.75).tolist() == [1 + 0.5 * 4.5, 2.0]


def test_a_perturbation_reaches_so_far_and_stays_in_bounds():
    torch.manual_seed(0)
    network = Perturbation(*SIZES, (8, 8), 0.3)
    layers, batch = Layers.of(network.net), make_batch()
    actions = batch.actions * 1.5
    for state, action, got in zip(batch.observations, actions, network(batch.observations, actions), strict=True):
        expected = np.clip(action.numpy() + 0.3 * np.tanh(layers(state, action)), -1, 1)
        np.testing.assert_allclose(got.detach(), expected, atol=1e-6)


@every_kind
def test_the_action_is_the_candidate_with_the_highest_value_by_a_slow_search(make):
    actor: BestOf = make()
    states = make_batch(5).observations
    for deterministic in (True, False):
        chosen = actor.act(states, deterministic, torch.Generator().manual_seed(4))
        noise = torch.Generator().manual_seed(0 if deterministic else 4)
        rows = 1 if deterministic else 5
        numbers = torch.randn(rows, 9, actor.noise_size(), generator=noise).expand(5, -1, -1)
        critics = [Layers.of_critic(actor.critics, j) for j in range(actor.critics.ensemble)]
        for state, own, action in zip(states, numbers, chosen, strict=True):
            best, best_value = None, -np.inf
            for number in own:
                candidate = slow_candidate(actor, state, number.numpy().astype(np.float64))
                values = [critic(state, candidate)[0] for critic in critics]
                lam = actor.spec.get("min_weight")
                value = values[0] if lam is None else lam * min(values) + (1 - lam) * max(values)
                if value > best_value:
                    best, best_value = candidate, value
            np.testing.assert_allclose(action.detach(), best, atol=1e-5)


def slow_candidate(actor: BestOf, state: torch.Tensor, noise: np.ndarray) -> np.ndarray:
    if isinstance(actor, BestOfPolicy):
        out = Layers.of(actor.policy.net)(state)
        return np.tanh(out[:ACTIONS] + np.exp(np.clip(out[ACTIONS:], -4, 1)) * noise)
    assert isinstance(actor, BestOfBehavior)
    decoded = np.tanh(Layers.of(actor.decoder)(state, np.clip(noise, -0.4, 0.4)))
    return np.clip(decoded + 0.3 * np.tanh(Layers.of(actor.perturbation.net)(state, decoded)), -1, 1)


@every_kind
def test_the_deterministic_action_is_a_function_of_the_observation(make):
    """Whatever else is in the batch, and however often and by whatever generator it is asked."""
    policy, states = Policy(make()), make_batch(5).observations.numpy()
    everyone, generator = torch.get_rng_state(), torch.Generator().manual_seed(1)
    before = generator.get_state()
    actions = policy.act(states, True, generator)
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), everyone)
    assert np.array_equal(policy.act(states), actions)
    for i in range(5):
        np.testing.assert_allclose(policy.act(states[i]), actions[i], atol=1e-6)
    np.testing.assert_allclose(policy.act(states[::-1]), actions[::-1], atol=1e-6)


@every_kind
def test_draws_repeat_with_their_generator_and_differ_between_equal_states(make):
    policy, states = Policy(make()), np.tile(make_batch(1).observations.numpy(), (6, 1))
    drawn = [policy.act(states, False, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    assert np.array_equal(drawn[0], drawn[1])
    assert not np.array_equal(drawn[0], drawn[2])
    assert len(np.unique(drawn[0], axis=0)) > 1
    assert len(np.unique(policy.act(states), axis=0)) == 1


@every_kind
def test_the_networks_are_those_of_the_learner_and_a_loaded_policy_carries_its_own(make, tmp_path):
    actor, states = make(), make_batch().observations.numpy()
    loaded = load_policy(Policy(actor).save(tmp_path))
    assert loaded.actor.spec == actor.spec
    before = Policy(actor).act(states)
    assert np.array_equal(loaded.act(states), before)
    for weight in actor.parameters():
        weight.data.mul_(-2)
    assert not np.array_equal(Policy(actor).act(states), before)
    assert np.array_equal(loaded.act(states), before)
    assert not any(weight.is_meta for weight in weights(actor))


@pytest.mark.parametrize("candidates", [0, -1, 10**9, 2.5, "many", None])
def test_a_policy_with_an_absurd_number_of_candidates_is_damaged(tmp_path, candidates):
    folder = Policy(of_policy()).save(tmp_path)
    description = unsealed(folder / "policy.json")
    description["spec"]["candidates"] = candidates
    write_json(folder / "policy.json", description)
    with pytest.raises(MildlyError, match="damaged"):
        load_policy(folder)
