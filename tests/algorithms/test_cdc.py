"""CDC: its penalties, target and losses against slow computations, the order of steps, and the authors' own updates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from authors import differences, recorded
from conftest import ACTIONS, Layers, make_batch, make_dataset, replay, same, slow_draw, tiny, weights
from learners import go_on, with_gradient

from mildly.algorithms.cdc import CDC
from mildly.algorithms.config import make_config
from mildly.candidates import BestOfPolicy
from mildly.data.tasks import PAPER_DATASETS
from mildly.errors import MildlyError
from mildly.networks import Critics
from mildly.policy import load_policy


def changed_cdc(**fields: Any) -> CDC:
    """Three critics, with targets that differ from them."""
    cdc: CDC = tiny("cdc", seed=3, **{"gamma": 0.9, "ensemble": 3, "num_actions": 4, **fields})
    random = torch.Generator().manual_seed(9)
    for part in (cdc.actor, cdc.critics, cdc.target_critics):
        for parameter in part.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return cdc


def slow_values(critics: Critics, state: Any, action: Any) -> list[float]:
    return [float(Layers.of_critic(critics, j)(state, action)[0]) for j in range(critics.ensemble)]


def slow_mixture(values: list[float], nu: float = 0.75) -> float:
    return nu * min(values) + (1 - nu) * max(values)


def slow_draws(cdc: CDC, state: Any, noise: Any) -> list[np.ndarray]:
    actor = Layers.of(cdc.actor.net)
    return [slow_draw(actor, state, own, -5.0, 2.0)[0] for own in noise]


# Targets and losses


def test_the_target_equals_a_slow_search_for_the_best_draw():
    cdc, batch = changed_cdc(min_weight=0.6), make_batch(15)
    noise = torch.randn(15, 4, ACTIONS, generator=replay(cdc.generator)).numpy()
    expected = []
    for i, state in enumerate(batch.next_observations):
        draws = slow_draws(cdc, state, noise[i])
        best = max(slow_mixture(slow_values(cdc.target_critics, state, action), 0.6) for action in draws)
        expected.append(batch.rewards[i].item() + 0.9 * (1 - batch.terminated[i].item()) * best)
    target = cdc.td_target(batch)
    np.testing.assert_allclose(target.numpy(), expected, atol=2e-5)
    assert not target.requires_grad
    assert 0 < batch.terminated.sum() < 15


@pytest.mark.parametrize("eta", [0.0, 20.0])
def test_the_critics_loss_equals_a_slow_computation_with_the_same_draws(eta):
    cdc, batch = changed_cdc(critic_penalty=eta), make_batch(8)
    target = changed_cdc().td_target(batch)
    random = replay(cdc.generator)
    torch.randn(8, 4, ACTIONS, generator=random)  # for the target
    noise = torch.randn(8, 4, ACTIONS, generator=random).numpy()
    td_error, penalties = 0.0, []
    for row, state in enumerate(batch.observations):
        of_data = slow_values(cdc.critics, state, batch.actions[row])
        of_draws = [slow_values(cdc.critics, state, action) for action in slow_draws(cdc, state, noise[row])]
        td_error += sum((value - target[row].item()) ** 2 for value in of_data) / 8
        for i in range(3):
            best = max(values[i] for values in of_draws)
            penalties += [max(best - value, 0.0) ** 2 for value in of_data]
    assert 0 in penalties
    loss, metrics = cdc.critic_loss(batch)
    assert metrics["loss_td"].item() == pytest.approx(td_error, rel=1e-4)
    assert metrics["loss_penalty"].item() == pytest.approx(np.mean(penalties), rel=1e-4)
    assert loss.item() == pytest.approx(td_error + eta * np.mean(penalties), rel=1e-4)


def test_the_gradient_through_the_best_draw_alone_is_that_through_all_draws():
    """The plain way keeps the graph of all draws, pair by pair of critics; the maximum passes on to one of them."""
    cdc, plain, batch = changed_cdc(critic_penalty=3.0), changed_cdc(), make_batch()
    cdc.critic_loss(batch)[0].backward()
    target = plain.td_target(batch)
    draws = plain.actor(batch.observations).sample(4, plain.generator)
    of_data = plain.critics(batch.observations, batch.actions)
    of_best = plain.critics(batch.observations, draws).max(dim=-1).values
    pairs = [torch.relu(of_best[i] - of_data[j]).square().mean() for i in range(3) for j in range(3)]
    (sum((own - target).square().mean() for own in of_data) + 3.0 * sum(pairs) / 9).backward()
    for own, other in zip(cdc.critics.parameters(), plain.critics.parameters(), strict=True):
        assert own.grad.abs().max() > 0
        torch.testing.assert_close(own.grad, other.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_the_actors_loss_equals_a_slow_computation(lam):
    cdc, batch = changed_cdc(likelihood_weight=lam), make_batch(10)
    batch.actions[0, 0], batch.actions[1, 1] = 1.0, -1.0  # at the bounds, where the density has none
    noise = torch.randn(10, ACTIONS, generator=replay(cdc.generator)).numpy()
    actor, values, log_probs = Layers.of(cdc.actor.net), [], []
    for i, state in enumerate(batch.observations):
        action, _ = slow_draw(actor, state, noise[i], -5.0, 2.0)
        values.append(slow_mixture(slow_values(cdc.critics, state, action)))
        out, log_prob = actor(state), 0.0
        for k in range(ACTIONS):
            a, log_std = batch.actions[i, k].item(), min(max(out[ACTIONS + k], -5.0), 2.0)
            z = 0.5 * (math.log(max(1 + a, 1e-6)) - math.log(max(1 - a, 1e-6)))
            log_prob += -0.5 * ((z - out[k]) / math.exp(log_std)) ** 2 - log_std - 0.5 * math.log(2 * math.pi)
            log_prob -= math.log(1 - math.tanh(z) ** 2 + 1e-6)
        log_probs.append(log_prob)
    loss, metrics = cdc.actor_loss(batch)
    assert metrics["log_prob"].item() == pytest.approx(np.mean(log_probs), rel=1e-4)
    assert loss.item() == pytest.approx(-np.mean(values) - lam * np.mean(log_probs), rel=1e-4)


# Where gradients go, and when


def test_each_loss_reaches_its_own_network_alone():
    for loss, reached in ((CDC.actor_loss, "actor"), (CDC.critic_loss, "critics")):
        cdc = changed_cdc()
        loss(cdc, make_batch())[0].backward()
        assert with_gradient(cdc) == {reached}


def test_the_penalty_lowers_the_best_draw_and_raises_the_datas_action():
    """Steps down the penalty alone: its gradient goes to both of its values."""
    cdc, batch = changed_cdc(ensemble=1), make_batch()
    draws = cdc.best_actions(batch)[0]
    excess = (cdc.critics(batch.observations, draws) - cdc.critics(batch.observations, batch.actions))[0] > 0
    assert 0 < excess.sum() < 12
    cdc.critics.requires_grad_(False)
    of_best, of_data = (torch.nn.Parameter(torch.tensor([[2.0]])), torch.nn.Parameter(torch.tensor([[1.5]])))
    cdc.critics.forward = lambda *_: torch.stack([of_data, of_best], dim=-1)  # type: ignore[method-assign]
    cdc.best_actions = lambda batch: batch.actions[None]  # type: ignore[method-assign]
    cdc.td_target = lambda _: of_data[0].detach()  # type: ignore[method-assign]
    cdc.critic_loss(make_batch(1))[0].backward()
    assert of_best.grad.item() == pytest.approx(2 * 0.5)
    assert of_data.grad.item() == pytest.approx(-2 * 0.5)


def test_the_actor_steps_first_and_the_critics_learn_from_the_new_one():
    cdc, twin, batch = changed_cdc(), changed_cdc(), make_batch()
    cdc.update(batch)
    pi = twin.actor(batch.observations)
    drawn = pi.rsample(twin.generator).actions
    values = twin.critics(batch.observations, drawn)  # as they are before their step
    mixed = 0.75 * values.amin(dim=0) + 0.25 * values.amax(dim=0)
    (-mixed - pi.log_prob(batch.actions)).mean().backward()
    twin.actor_optimizer.step()
    assert same(weights(cdc.actor), weights(twin.actor))
    before = weights(twin.critics)
    twin.update_critics(batch)
    assert same(weights(cdc.critics), weights(twin.critics))
    for target, old, new in zip(
        weights(cdc.target_critics), weights(changed_cdc().target_critics), weights(cdc.critics), strict=True
    ):
        torch.testing.assert_close(target, 0.005 * new + 0.995 * old)
    assert not same(before, weights(twin.critics))


# Acting


def test_it_acts_by_the_best_of_its_draws_and_a_saved_policy_carries_the_critics(tmp_path):
    data = make_dataset()
    cdc = changed_cdc(candidates=7, min_weight=0.6)
    cdc.batches(data)
    go_on(cdc, 2, first=0)
    actor = cdc.policy().actor
    assert isinstance(actor, BestOfPolicy)
    assert (actor.candidates, actor.min_weight, actor.critics, actor.policy) == (7, 0.6, cdc.critics, cdc.actor)
    policy = cdc.policy(data.meta)
    loaded = load_policy(policy.save(tmp_path))
    before = policy.act(data.observations)
    assert np.array_equal(loaded.act(data.observations), before)
    with torch.no_grad():
        cdc.critics.weights[-1].mul_(-1)  # the worst are now the best
    assert not np.array_equal(policy.act(data.observations), before)
    assert np.array_equal(loaded.act(data.observations), before)


# Data sets and presets


def test_the_authors_weights_by_data_set():
    def of(name: str, preset: str = "paper") -> tuple[float, float]:
        config = make_config(CDC, preset, name, {})
        return config.critic_penalty, config.likelihood_weight

    assert of("hopper-medium-v2") == of("hopper-medium-recollected") == of("hopper-medium-v0", "default") == (1.0, 0.5)
    assert of("halfcheetah-expert-v2") == (200.0, 1.0)
    assert of("walker2d-medium-replay-v2") == (0.68, 1.0)
    assert of("hammer-cloned-v0") == (100.0, 2.0)
    assert of("some set of mine") == of("maze2d-umaze-v1") == (1.0, 1.0)
    known = [name for name in PAPER_DATASETS if CDC.for_dataset(name, "paper")]
    assert len(known) == 15 + 8


def test_paper_is_the_authors_script():
    c = make_config(CDC, "paper", "some set of mine", {})
    assert (c.ensemble, c.num_actions, c.candidates, c.min_weight) == (4, 15, 15, 0.75)
    assert (c.hidden_dims, c.batch_size, c.actor_lr, c.critic_lr) == ((256, 256, 256), 256, 3e-4, 7e-4)
    assert (c.tau, c.gamma, c.log_std_min, c.log_std_max) == (0.005, 0.99, -5, 2)


@pytest.mark.parametrize(
    "fields", [{"min_weight": 1.5}, {"candidates": 0}, {"candidates": 10**9}, {"critic_penalty": -1.0}]
)
def test_fields_that_make_no_sense_are_refused_by_name(fields):
    with pytest.raises(MildlyError, match=next(iter(fields))):
        changed_cdc(**fields)


# The authors' own code


@pytest.mark.parametrize(("case", "eta", "lam"), [("medium", 1.0, 0.5), ("medium-expert", 50.0, 1.0)])
def test_weights_after_updates_are_those_of_the_authors_code(case, eta, lam, monkeypatch):
    """Four critics, four updates with the weights of two data sets; one action lies at its bound."""
    sizes = {"hidden_dims": (6, 6, 6), "num_actions": 5, "batch_size": 8}
    cdc = tiny("cdc", **sizes, critic_penalty=eta, likelihood_weight=lam)
    largest = differences(cdc, recorded(f"cdc-{case}"), monkeypatch)
    assert set(largest) == {"actor", "critics", "target_critics"}
    assert all(difference < 1e-6 for difference in largest.values()), largest
