"""PBRL: targets and losses against slow computations, the penalty's schedule, priors, and the authors' own updates."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from authors import differences, recorded
from conftest import ACTIONS, Layers, make_batch, make_dataset, replay, same, slow_draw, tiny, weights
from learners import differing, go_on, snapshot, with_gradient

from mildly.algorithms.config import make_config
from mildly.algorithms.pbrl import PBRL, CriticsWithPrior
from mildly.errors import MildlyError
from mildly.networks import Critics


def changed_pbrl(**fields: Any) -> PBRL:
    """Four critics, with targets that differ from them, and a temperature that is not as it was built."""
    pbrl: PBRL = tiny("pbrl", seed=3, **{"gamma": 0.9, "ensemble": 4, "num_actions": 3, **fields})
    random = torch.Generator().manual_seed(9)
    for part in (pbrl.actor, pbrl.critics, pbrl.target_critics):
        for parameter in part.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    pbrl.log_alpha.data.fill_(-0.4)
    return pbrl


def slow_values(critics: Critics, states: Any, actions: Any) -> np.ndarray:
    """(critics, rows), one row and one critic at a time."""
    members = [Layers.of_critic(critics, k) for k in range(critics.ensemble)]
    return np.array([[q(s, a)[0] for s, a in zip(states, actions, strict=True)] for q in members])


def slow_spread(values: Any) -> float:
    """The standard deviation of some values, with n - 1."""
    mean = sum(values) / len(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1))


def slow_draws(pbrl: PBRL, states: Any, noise: Any) -> list[np.ndarray]:
    actor = Layers.of(pbrl.actor.net)
    return [slow_draw(actor, s, e, -5.0, 2.0)[0] for s, e in zip(states, noise, strict=True)]


# Targets and losses


def test_each_critic_follows_its_own_target_less_the_targets_disagreement():
    pbrl, batch = changed_pbrl(td_penalty=0.3), make_batch(20)
    noise = torch.randn(20, ACTIONS, generator=replay(pbrl.generator)).numpy()
    actions = slow_draws(pbrl, batch.next_observations, noise)
    values = slow_values(pbrl.target_critics, batch.next_observations, actions)
    expected = np.array(
        [
            [
                batch.rewards[i] + 0.9 * (1 - batch.terminated[i]) * (values[k, i] - 0.3 * slow_spread(values[:, i]))
                for i in range(20)
            ]
            for k in range(4)
        ]
    )
    target = pbrl.td_target(batch)
    np.testing.assert_allclose(target.numpy(), expected, atol=2e-5)
    assert not target.requires_grad
    assert 0 < batch.terminated.sum() < 20


def test_the_target_of_policy_actions_by_hand():
    """Two states, s and s', with one action each: the critics disagree by the root of 7/3, and by 2."""
    pbrl = changed_pbrl(next_ood_penalty=0.5)
    values = torch.tensor([[[1.0], [3.0]], [[2.0], [1.0]], [[4.0], [-1.0]]])  # (critics, states, actions)
    target, uncertainty = pbrl.ood_target(values, torch.tensor(2.0))
    spread = math.sqrt(7 / 3)
    below = [max(value - 2 * spread, 0.0) for value in (1, 2, 4)]
    assert target[:, 0, 0].tolist() == pytest.approx(below)
    assert 0 in below
    assert max(below) > 0
    assert target[:, 1, 0].tolist() == pytest.approx([2.0, 0.0, 0.0])  # at the floor, even from below it
    assert uncertainty.item() == pytest.approx((spread + 2) / 2)


def test_the_floor_can_be_moved_or_left_out():
    values = torch.tensor([[[1.0], [3.0]], [[2.0], [1.0]], [[4.0], [-1.0]]])
    for floor, least in ((None, -2.0), (-1.5, -1.5)):
        target, _ = changed_pbrl(next_ood_penalty=0.5, ood_floor=floor).ood_target(values, torch.tensor(0.0))
        assert target.min().item() == least


@pytest.mark.parametrize("floor", [0.0, None, -0.4])
def test_the_critics_loss_equals_a_slow_computation_with_the_same_draws(floor):
    pbrl, batch = changed_pbrl(ood_penalty_start=0.8, next_ood_penalty=0.3, ood_floor=floor), make_batch(6)
    random = replay(pbrl.generator)
    torch.randn(6, ACTIONS, generator=random)  # for a'
    noise = torch.randn(12, 3, ACTIONS, generator=random).numpy()
    target = changed_pbrl(ood_floor=floor).td_target(batch).numpy()
    expected = ((slow_values(pbrl.critics, batch.observations, batch.actions) - target) ** 2).mean(axis=1).sum()
    states, squares, floored = torch.cat([batch.observations, batch.next_observations]), [], 0
    for i in range(3):
        values = slow_values(pbrl.critics, states, slow_draws(pbrl, states, noise[:, i]))
        for row in range(12):
            beta = (0.8 + (1.0 - 0.8) / 50_000) if row < 6 else 0.3
            for k in range(4):
                lower = values[k, row] - beta * slow_spread(values[:, row])
                floored += floor is not None and lower < floor
                squares.append((values[k, row] - (lower if floor is None else max(lower, floor))) ** 2)
    loss, metrics = pbrl.critic_loss(batch)
    assert loss.item() == pytest.approx(expected + 4 * np.mean(squares), rel=1e-4)
    assert metrics["loss_ood"].item() == pytest.approx(4 * np.mean(squares), rel=1e-4)
    assert (floored > 0) == (floor is not None)


def test_many_actions_have_the_mean_loss_of_one_action_each(monkeypatch):
    """So that fewer estimate the same loss: the uncertainty of each action is exact, however many there are."""
    pbrl, batch = changed_pbrl(num_actions=5), make_batch()
    draws = torch.randn(24, 5, ACTIONS)
    pbrl.updates = 30

    def losses(noise: torch.Tensor) -> float:
        monkeypatch.setattr("mildly.actors.normal", lambda *_: noise)
        return pbrl.ood_loss(batch)[0].item()

    assert losses(draws) == pytest.approx(np.mean([losses(draws[:, i : i + 1]) for i in range(5)]), rel=1e-5)


# The schedule of the penalty


def penalty_at(step: int, **fields: Any) -> float:
    pbrl = changed_pbrl(**fields)
    pbrl.updates = step
    return pbrl.ood_penalty().item()


def test_the_penalty_falls_linearly_and_then_stays():
    steps = {0: 5.0, 1: 5 - 4 / 50_000, 12_500: 4.0, 49_999: 1 + 4 / 50_000, 50_000: 1.0, 700_000: 1.0}
    assert {step: penalty_at(step) for step in steps} == pytest.approx(steps)
    assert penalty_at(1, ood_penalty_steps=0, ood_penalty=2.0) == 2.0


def record(pbrl: PBRL, step: int, value: float) -> float:
    """What the penalty is after a step in which the values of OOD actions were so high."""
    pbrl.updates = step
    pbrl.relax(torch.tensor(value), pbrl.ood_penalty())
    return pbrl.ood_penalty().item()


def test_the_penalty_is_lowered_every_thousand_steps_while_values_fall():
    pbrl = changed_pbrl()
    for epoch in range(50):  # while the schedule runs, falling values change nothing
        assert record(pbrl, 1000 * epoch + 1, 100.0 - epoch) == pytest.approx(5 - 4 * (1000 * epoch + 1) / 50_000)
    assert record(pbrl, 50_001, 50.0) == pytest.approx(1 / 1.01)
    assert record(pbrl, 50_002, 49.0) == pytest.approx(1 / 1.01)
    assert record(pbrl, 51_000, 49.0) == pytest.approx(1 / 1.01)
    assert record(pbrl, 51_001, 49.0) == pytest.approx(1 / 1.01**2)
    assert pbrl.ood_values.tolist() == [*(100.0 - epoch for epoch in range(32, 50)), 50.0, 49.0]
    # The mean of the last 5 records is still below that of the 15 before, and with 500 among them no longer.
    assert record(pbrl, 52_001, 500.0) == pytest.approx(1 / 1.01**3)
    assert record(pbrl, 53_001, 500.0) == pytest.approx(1 / 1.01**3)


def test_the_penalty_ends_just_below_its_floor_and_is_not_lowered_where_the_decay_is_off():
    pbrl, constant = changed_pbrl(ood_penalty_decay=2.0), changed_pbrl(ood_penalty_decay=1.0)
    falling = [(1000 * epoch + 1, -float(epoch)) for epoch in range(60)]
    assert [record(pbrl, *at) for at in falling][-10:] == pytest.approx([0.5, 0.25] + 8 * [0.125])
    assert [record(constant, *at) for at in falling][-10:] == 10 * [1.0]


def test_a_step_counts_and_records_the_values_of_the_policys_actions_in_s():
    pbrl, batch = changed_pbrl(), make_batch()
    metrics = pbrl.update(batch)
    assert pbrl.updates == 1
    assert pbrl.ood_values[-1] == metrics["q_ood"]
    assert metrics["ood_penalty"].item() == pytest.approx(5 - 4 / 50_000)
    pbrl.update(batch)
    assert pbrl.updates == 2
    assert pbrl.ood_values[-1] == metrics["q_ood"]


# Where gradients go, and when


def test_each_loss_reaches_its_own_networks_alone():
    for fields in ({}, {"prior_scale": 1.0}):
        pbrl, batch = changed_pbrl(**fields), make_batch()
        pbrl.critic_loss(batch)[0].backward()
        assert with_gradient(pbrl) == {"critics"}
        pbrl = changed_pbrl(**fields)
        drawn = pbrl.distribution(batch.observations).rsample(pbrl.generator)
        pbrl.actor_loss(batch, drawn)[0].backward()
        assert with_gradient(pbrl) == {"actor"}


def test_no_gradient_goes_through_the_target_of_policy_actions():
    """Where the floor does not bind, a gradient through the target would leave nothing: it is 2 beta U dQ_k instead."""
    pbrl, batch = changed_pbrl(ood_floor=None), make_batch()
    twin = copy.deepcopy(pbrl.critics)
    random = replay(pbrl.generator)
    pbrl.ood_loss(batch)[0].backward()
    states = torch.cat([batch.observations, batch.next_observations])
    values = twin(states, pbrl.actor(states).sample(3, random))
    beta = torch.tensor([5 * 1.0] * 12 + [0.1] * 12).unsqueeze(1)
    (2 * beta * values.std(dim=0).detach() * values).mean(dim=(1, 2)).sum().backward()
    for own, other in zip(pbrl.critics.parameters(), twin.parameters(), strict=True):
        assert torch.allclose(own.grad, other.grad, rtol=1e-3, atol=1e-6)


def test_the_actor_climbs_the_lowest_critic_as_it_is_after_the_critics_step():
    pbrl, twin, batch = changed_pbrl(), changed_pbrl(), make_batch()
    pbrl.update(batch)
    drawn = twin.distribution(batch.observations).rsample(twin.generator)
    twin.update_temperature(drawn)
    before = weights(twin.critics)
    twin.update_critics(batch)
    assert not same(before, weights(twin.critics))
    lowest = twin.critics(batch.observations, drawn.actions).amin(dim=0)
    (twin.log_alpha.exp().detach() * drawn.log_prob - lowest).mean().backward()
    twin.actor_optimizer.step()
    assert same(weights(pbrl.actor), weights(twin.actor))


# Priors


def test_a_critic_with_a_prior_is_the_sum_of_two_networks_of_which_one_never_learns():
    pbrl, batch = changed_pbrl(prior_scale=0.5), make_batch()
    critics = pbrl.critics
    assert isinstance(critics, CriticsWithPrior)
    values = critics(batch.observations, batch.actions).detach().numpy()
    plain = Critics(3, 2, (8, 8), 4)
    plain.load_state_dict({key: value for key, value in critics.state_dict().items() if "prior" not in key})
    both = [slow_values(part, batch.observations, batch.actions) for part in (plain, critics.prior)]
    np.testing.assert_allclose(values, both[0] + 0.5 * both[1], atol=1e-5)
    assert len(list(critics.parameters())) == len(list(plain.parameters()))
    prior = [buffer.clone() for buffer in critics.prior.buffers()]
    assert len(prior) == 6
    go_on(pbrl, 3, first=0)
    for network in (pbrl.critics, pbrl.target_critics):
        assert isinstance(network, CriticsWithPrior)
        assert same(prior, list(network.prior.buffers()))


def test_the_actor_does_not_see_the_slope_of_the_prior():
    """The authors detach it; so the slope of Q is that of the network that learns."""
    critics = CriticsWithPrior(3, 2, (8, 8), 4, False, prior_scale=100.0)
    plain = Critics(3, 2, (8, 8), 4)
    plain.load_state_dict({key: value for key, value in critics.state_dict().items() if "prior" not in key})
    batch, slopes = make_batch(), []
    for network in (critics, plain):
        actions = batch.actions.clone().requires_grad_()
        network(batch.observations, actions, freeze=True).sum().backward()
        slopes.append(actions.grad)
    assert torch.equal(*slopes)


def test_with_priors_a_resumed_learner_goes_on_as_one_that_was_not_interrupted():
    one, other = (tiny("pbrl", seed=seed, prior_scale=1.0) for seed in (0, 1))
    go_on(one, 3, first=0)
    assert any(name.startswith("critics.prior.") for name in one.state_dict())
    other.load_state_dict(snapshot(one))
    for learner in (one, other):
        go_on(learner, 3, first=3)
    assert not differing(one.state_dict(), other.state_dict())


# Data sets and presets


def test_the_authors_values_by_data_set():
    def values(name: str, preset: str = "paper") -> tuple[float, ...]:
        c = make_config(PBRL, preset, name, {})
        start = c.ood_penalty_start if c.ood_penalty_steps else c.ood_penalty
        return start, c.ood_penalty, c.ood_penalty_decay, c.next_ood_penalty, c.td_penalty

    for kind in ("random", "medium", "medium-replay"):
        assert values(f"hopper-{kind}-v2") == (5, 1, 1.01, 0.1, 0.01)
    assert values("walker2d-medium-expert-v2") == (5, 1, 1, 0.1, 0.01)
    assert values("halfcheetah-expert-v2") == values("halfcheetah-expert-recollected") == (2, 2, 1, 0.1, 0.01)
    assert values("pen-human-v0") == (0.001, 0.001, 1, 0.001, 1e-4)
    assert values("pen-cloned-v0") == values("door-human-v0") == (0.01, 0.01, 1, 0.01, 1e-4)
    assert values("hammer-expert-v0") == (0.4, 0.4, 1, 0.1, 1e-4)
    assert values("door-expert-v0") == (0.2, 0.2, 1, 0.1, 1e-4)
    assert values("relocate-expert-v0") == (0.4, 0.4, 1, 0.2, 1e-4)
    assert values("some set of mine") == (5, 1, 1.01, 0.1, 0.01)
    assert make_config(PBRL, "default", "pen-human-v0", {}).ood_penalty_steps == 5_000


def test_paper_is_the_authors_script():
    c = make_config(PBRL, "paper", "hopper-medium-v2", {})
    assert (c.ensemble, c.num_actions, c.hidden_dims, c.batch_size) == (10, 10, (256, 256, 256), 256)
    assert (c.actor_lr, c.alpha_lr, c.critic_lr, c.tau, c.gamma) == (1e-4, 1e-4, 3e-4, 0.005, 0.99)
    assert (c.log_std_min, c.log_std_max, c.ood_floor, c.prior_scale, c.ood_penalty_min) == (-5, 2, 0, 0, 0.2)
    assert make_config(PBRL, "prior", "hopper-medium-v2", {}).prior_scale == 1


def test_the_lowest_return_of_the_data_can_be_the_floor():
    data = make_dataset()
    pbrl = changed_pbrl(ood_floor="returns")
    assert pbrl.floor is None
    pbrl.batches(data)
    returns = []
    for first in range(0, 60, 10):  # episodes of ten steps; those that are cut off show no more than this
        returns += [
            sum(0.9**k * data.rewards[row + k] for k in range(first + 10 - row)) for row in range(first, first + 10)
        ]
    assert pbrl.floor == pytest.approx(min(returns), rel=1e-5)


@pytest.mark.parametrize(
    "fields", [{"ensemble": 1}, {"ood_penalty_decay": 0.9}, {"ood_floor": "lowest"}, {"td_penalty": -1.0}]
)
def test_fields_that_make_no_sense_are_refused_by_name(fields):
    with pytest.raises(MildlyError, match=next(iter(fields))):
        changed_pbrl(**fields)


# The authors' own code


@pytest.mark.parametrize("case", ["medium", "prior", "decay"])
def test_weights_after_updates_are_those_of_the_authors_code(case, monkeypatch):
    """PBRL, PBRL-Prior, and PBRL at the step where the penalty is lowered; four critics, four updates."""
    pbrl = tiny(
        "pbrl",
        hidden_dims=(6, 6, 6),
        ensemble=4,
        num_actions=3,
        batch_size=8,
        prior_scale=1.0 if case == "prior" else 0.0,
    )
    largest = differences(pbrl, recorded(f"pbrl-{case}"), monkeypatch)
    assert set(largest) == {"actor", "critics", "target_critics", "log_alpha"}
    assert all(difference < 1e-6 for difference in largest.values()), largest
    assert pbrl.relief.item() == pytest.approx(1 / 1.01 if case == "decay" else 1.0)
