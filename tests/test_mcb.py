"""The pseudo target and the OOD term, against numbers worked out by hand and against properties of the equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import make_batch
from hypothesis import given, strategies as st
from hypothesis.extra.numpy import arrays

from mildly.mcb import far_from_behavior, ood_loss, pseudo_target
from mildly.networks import Critics

# Two critics, two states, three behavior actions.
# Best by critic: state 0 has 3 and 4, state 1 has -1 and -2.
TABLE = torch.tensor([[[1.0, 3.0, 2.0], [-5.0, -1.0, -3.0]], [[4.0, 0.0, -2.0], [-2.0, -6.0, -4.0]]])
STATES, BEHAVIOR = torch.zeros(2, 1), torch.zeros(2, 3, 1)


def table(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    return TABLE


def linear(states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    """Three critics: 2a + s, -a, a / 2 - 3s, of one-dimensional states and actions."""
    a, s = actions[..., 0], states
    return torch.stack([2 * a + s, -a, a / 2 - 3 * s])


whole = st.integers(-50, 50).map(float)
stack = arrays(np.float64, (3, 4, 5), elements=whole)
rows = arrays(np.float64, (4,), elements=whole)
actions_and_states = st.tuples(
    arrays(np.float64, (4, 5, 1), elements=st.floats(-1, 1)),
    arrays(np.float64, (4, 1), elements=st.floats(-9, 9)),
)


# The pseudo target


def test_pseudo_target_is_the_lowest_critics_best_value():
    assert pseudo_target(table, STATES, BEHAVIOR).tolist() == [3.0, -2.0]


def test_pseudo_target_takes_the_maximum_before_the_minimum():
    # The other order (max over actions of the lowest critic) would give 1 and -4 here.
    lowest_first = TABLE.amin(dim=0).amax(dim=-1)
    assert lowest_first.tolist() == [1.0, -4.0]
    assert pseudo_target(table, STATES, BEHAVIOR).tolist() != lowest_first.tolist()


def test_mean_reduction_averages_the_critics_best_values():
    assert pseudo_target(table, STATES, BEHAVIOR, reduction="mean").tolist() == [3.5, -1.5]


def test_floor_bounds_each_critics_best_value_before_they_are_combined():
    assert pseudo_target(table, STATES, BEHAVIOR, floor=0.0).tolist() == [3.0, 0.0]
    # -1 and -2 become -1.5 and -1 under a floor of -1.5; their mean is -1.25, not max(-1.5, -1.5).
    floored = pseudo_target(table, STATES, BEHAVIOR, floor=-1.5, reduction="mean")
    assert floored.tolist() == [3.5, -1.25]


def test_each_critic_may_judge_its_own_set_of_actions():
    torch.manual_seed(0)
    critics = Critics(3, 2, (8,))
    states = make_batch(4).observations
    own = torch.rand(2, 4, 5, 2) * 2 - 1
    lowest, mean = (pseudo_target(critics, states, own, reduction=reduction) for reduction in ("min", "mean"))
    for s in range(4):
        best = [max(critics(states[s : s + 1], own[j, s, i : i + 1])[j].item() for i in range(5)) for j in range(2)]
        assert lowest[s].item() == pytest.approx(min(best), abs=1e-6)
        assert mean[s].item() == pytest.approx(sum(best) / 2, abs=1e-6)


def test_pseudo_target_carries_no_gradient():
    torch.manual_seed(0)
    target = pseudo_target(Critics(3, 2, (8,)), make_batch(4).observations, torch.rand(4, 5, 2, requires_grad=True))
    assert target.shape == (4,)
    assert not target.requires_grad


@given(actions_and_states)
def test_pseudo_target_never_exceeds_any_critics_best_value(drawn):
    actions, states = map(torch.from_numpy, drawn)
    target = pseudo_target(linear, states, actions)
    best = linear(states, actions).amax(dim=-1)
    assert (target <= best).all()
    assert (target == best).any(dim=0).all()


@given(actions_and_states, st.permutations(range(5)))
def test_pseudo_target_does_not_depend_on_the_order_of_the_actions(drawn, order):
    actions, states = map(torch.from_numpy, drawn)
    assert torch.equal(pseudo_target(linear, states, actions), pseudo_target(linear, states, actions[:, order]))


@given(actions_and_states)
def test_more_behavior_actions_never_lower_the_pseudo_target(drawn):
    actions, states = map(torch.from_numpy, drawn)
    assert (pseudo_target(linear, states, actions) >= pseudo_target(linear, states, actions[:, :3])).all()


@given(actions_and_states, whole)
def test_a_floor_gives_the_higher_of_floor_and_unfloored_target(drawn, floor):
    actions, states = map(torch.from_numpy, drawn)
    floored = pseudo_target(linear, states, actions, floor=floor)
    assert torch.equal(floored, pseudo_target(linear, states, actions).clamp_min(floor))


# The OOD term. One critic, two states, two actions; targets 1 and -1:
# deviations are (1, -2) in the first state and (0, 4) in the second.

VALUES, TARGET = torch.tensor([[[2.0, -1.0], [-1.0, 3.0]]]), torch.tensor([1.0, -1.0])


def test_two_sided_loss_is_the_mean_squared_deviation():
    assert ood_loss(VALUES, TARGET).tolist() == [(1 + 4 + 0 + 16) / 4]


def test_one_sided_loss_counts_only_values_above_the_target():
    assert ood_loss(VALUES, TARGET, one_sided=True).tolist() == [(1 + 0 + 0 + 16) / 4]


def test_delta_moves_the_target_down():
    # Targets 0.5 and -1.5: deviations (1.5, -1.5) and (0.5, 4.5).
    assert ood_loss(VALUES, TARGET, delta=0.5).tolist() == [(2.25 + 2.25 + 0.25 + 20.25) / 4]
    assert ood_loss(VALUES, TARGET, delta=0.5, one_sided=True).tolist() == [(2.25 + 0.25 + 20.25) / 4]


def test_masked_actions_count_as_zero_but_stay_in_the_mean():
    assert ood_loss(VALUES, TARGET, mask=torch.tensor([[1.0, 0.0], [1.0, 1.0]])).tolist() == [(1 + 0 + 16) / 4]
    assert ood_loss(VALUES, TARGET, mask=torch.zeros(2, 2)).tolist() == [0.0]


def test_a_mask_may_differ_by_critic():
    values = VALUES.repeat(2, 1, 1)
    mask = torch.tensor([[[1.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 1.0]]])
    assert ood_loss(values, TARGET, mask=mask).tolist() == [5 / 4, 4.0]


def test_each_critic_gets_a_loss_of_its_own():
    assert ood_loss(torch.cat([VALUES, VALUES + 1]), TARGET).tolist() == [21 / 4, (4 + 1 + 1 + 25) / 4]


def test_the_target_of_the_loss_receives_no_gradient():
    values, target = VALUES.clone().requires_grad_(), TARGET.clone().requires_grad_()
    ood_loss(values, target).sum().backward()
    assert target.grad is None
    # d/dQ of mean (Q - y)^2 over four numbers is (Q - y) / 2.
    assert values.grad.tolist() == [[[0.5, -1.0], [0.0, 2.0]]]


def test_values_below_the_target_receive_no_gradient_when_one_sided():
    values = VALUES.clone().requires_grad_()
    ood_loss(values, TARGET, one_sided=True).sum().backward()
    assert values.grad.tolist() == [[[0.5, 0.0], [0.0, 2.0]]]


@given(stack, rows, st.integers(0, 9).map(float))
def test_loss_equals_a_loop_over_all_values(values, target, delta):
    for one_sided in (False, True):
        expected = np.zeros(3)
        for j in range(3):
            for s in range(4):
                for k in range(5):
                    deviation = values[j, s, k] - (target[s] - delta)
                    expected[j] += 0.0 if one_sided and deviation < 0 else deviation**2
        got = ood_loss(torch.from_numpy(values), torch.from_numpy(target), delta=delta, one_sided=one_sided)
        np.testing.assert_allclose(got.numpy(), expected / 20, rtol=1e-12)


@given(stack, rows, st.integers(0, 9).map(float), arrays(np.float64, (4, 5), elements=st.sampled_from([0.0, 1.0])))
def test_one_sided_and_masked_losses_never_exceed_the_plain_one(values, target, delta, mask):
    v, y = torch.from_numpy(values), torch.from_numpy(target)
    plain = ood_loss(v, y, delta=delta)
    assert (ood_loss(v, y, delta=delta, one_sided=True) <= plain).all()
    assert (ood_loss(v, y, delta=delta, mask=torch.from_numpy(mask)) <= plain).all()


@given(stack, rows, st.integers(0, 9).map(float))
def test_loss_is_zero_only_where_all_values_lie_delta_below_the_target(values, target, delta):
    v, y = torch.from_numpy(values), torch.from_numpy(target)
    exact = (y - delta)[None, :, None].expand(3, 4, 5)
    assert ood_loss(exact, y, delta=delta).tolist() == [0.0, 0.0, 0.0]
    reached = [bool(torch.equal(v[j], exact[j])) for j in range(3)]
    assert [loss == 0 for loss in ood_loss(v, y, delta=delta).tolist()] == reached
    nudged = exact.clone()
    nudged[1, 2, 3] += 1
    assert ood_loss(nudged, y, delta=delta).tolist() == [0.0, 1 / 20, 0.0]


@given(stack, rows, st.permutations(range(5)))
def test_loss_does_not_depend_on_the_order_of_the_actions(values, target, order):
    v, y = torch.from_numpy(values), torch.from_numpy(target)
    assert torch.equal(ood_loss(v, y), ood_loss(v[:, :, order], y))


# Far from the behavior


def test_far_means_a_squared_distance_of_at_least_the_bound():
    ood = torch.tensor([[[0.5, 0.0], [0.25, 0.25]], [[0.0, 0.0], [1.0, -1.0]]])
    behavior = torch.tensor([[[0.0, 0.0], [0.0, 0.0]], [[0.0, 0.0], [-1.0, 1.0]]])
    # Squared distances: 0.25, 0.125, 0 and 8.
    assert far_from_behavior(ood, behavior, 0.25).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    assert far_from_behavior(ood, behavior, 0.2501).tolist() == [[0.0, 0.0], [0.0, 1.0]]
    assert far_from_behavior(ood, behavior, 0.0).tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_far_compares_the_kth_action_with_the_kth_only():
    behavior = torch.tensor([[[-0.9], [0.9]]])
    assert far_from_behavior(behavior, behavior, 0.1).tolist() == [[0.0, 0.0]]
    assert far_from_behavior(behavior.flip(1), behavior, 0.1).tolist() == [[1.0, 1.0]]


def test_far_keeps_the_critics_dimension():
    assert far_from_behavior(torch.ones(2, 4, 5, 3), torch.zeros(2, 4, 5, 3), 0.1).shape == (2, 4, 5)
