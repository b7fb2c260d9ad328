"""Our Adam is torch's, to the bit: steps, learning rates that change, weight decay, checkpoints."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mildly.networks import Critics, mlp
from mildly.optimizer import Adam, minimize, minimize_clipped

SETTINGS = [{"lr": 1e-2}, {"lr": 3e-4, "weight_decay": 0.1, "betas": (0.5, 0.9), "eps": 1e-4}]


def loss_of(network: nn.Module, step: int) -> torch.Tensor:
    stream = torch.Generator().manual_seed(step)
    states, actions = torch.randn(8, 3, generator=stream), torch.randn(8, 2, generator=stream)
    out = network(states, actions) if isinstance(network, Critics) else network(states)
    return (out - torch.randn(out.shape, generator=stream)).square().mean()


def networks() -> list[nn.Module]:
    torch.manual_seed(0)
    return [Critics(3, 2, (5, 4)), mlp((3, 7, 2))]


def equal(a: nn.Module, b: nn.Module) -> bool:
    return all(torch.equal(p, q) for p, q in zip(a.parameters(), b.parameters(), strict=True))


@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("network", networks())
def test_steps_are_those_of_torch_to_the_bit(network, settings):
    ours, theirs = copy.deepcopy(network), copy.deepcopy(network)
    our_adam = Adam(ours.parameters(), **settings)
    their_adam = torch.optim.Adam(theirs.parameters(), **settings, fused=True)
    for step in range(20):
        for adam in (our_adam, their_adam):
            adam.param_groups[0]["lr"] = settings["lr"] * (1 + step % 3)
        minimize(loss_of(ours, step), our_adam)
        minimize(loss_of(theirs, step), their_adam)
        assert equal(ours, theirs)
    assert not equal(ours, network)


def test_decoupled_steps_are_those_of_torch_s_adamw_to_the_bit():
    network = networks()[1]
    ours, theirs = copy.deepcopy(network), copy.deepcopy(network)
    our_adam = Adam(ours.parameters(), lr=1e-2, weight_decay=0.1, decoupled=True)
    their_adam = torch.optim.AdamW(theirs.parameters(), lr=1e-2, weight_decay=0.1, fused=True)
    coupled = copy.deepcopy(network)
    coupled_adam = Adam(coupled.parameters(), lr=1e-2, weight_decay=0.1)
    for step in range(5):
        for net, adam in ((ours, our_adam), (theirs, their_adam), (coupled, coupled_adam)):
            minimize(loss_of(net, step), adam)
        assert equal(ours, theirs)
    assert not equal(ours, coupled)


@pytest.mark.parametrize("limit", [1e-3, 1e3])
def test_a_clipped_step_has_a_gradient_no_longer_than_the_limit_and_the_same_direction(limit):
    torch.manual_seed(0)
    network = mlp((3, 7, 2))
    parameters = list(network.parameters())
    whole = torch.cat([g.flatten() for g in torch.autograd.grad(loss_of(network, 0), parameters)])
    norm = minimize_clipped(loss_of(network, 0), torch.optim.SGD(parameters, lr=0.0), limit)
    clipped = torch.cat([parameter.grad.flatten() for parameter in parameters])
    assert norm.item() == pytest.approx(whole.norm().item(), rel=1e-5)
    expected = whole * min(limit / whole.norm().item(), 1.0)
    torch.testing.assert_close(clipped, expected, rtol=1e-4, atol=1e-9)


@pytest.mark.parametrize("turns", [[[0], [1]], [[0, 1], [1]], [[1], [1], [0, 1, 2]], [[0, 1], [1, 2], [0, 2]]])
def test_parts_that_step_by_turns_are_those_of_torch_and_survive_a_checkpoint(turns):
    torch.manual_seed(0)
    ours = [mlp((3, 7, 2)), mlp((3, 5, 2)), mlp((3, 2))]
    theirs = copy.deepcopy(ours)
    our_adam = Adam([p for net in ours for p in net.parameters()], lr=1e-2)
    their_adam = torch.optim.Adam([p for net in theirs for p in net.parameters()], lr=1e-2, fused=True)
    for step in range(12):
        turn = turns[step % len(turns)]
        minimize(sum(loss_of(ours[i], step) for i in turn), our_adam)
        minimize(sum(loss_of(theirs[i], step) for i in turn), their_adam)
        assert all(map(equal, ours, theirs))
        if step == 6:
            state = copy.deepcopy(our_adam.state_dict())
            our_adam = Adam([p for net in ours for p in net.parameters()], lr=1e-2)
            our_adam.load_state_dict(state)
    kept, expected = (adam.state_dict()["state"] for adam in (our_adam, their_adam))
    assert {i: slots["step"].item() for i, slots in kept.items()} == {
        i: slots["step"].item() for i, slots in expected.items()
    }
    opened = len(our_adam._parts)
    for step in range(12, 12 + len(turns)):
        minimize(sum(loss_of(ours[i], step) for i in turns[step % len(turns)]), our_adam)
    assert len(our_adam._parts) == opened == len({tuple(turn) for turn in turns})  # no list is made anew for ever
    before = copy.deepcopy(ours)
    our_adam.zero_grad()
    our_adam.step()  # nothing to do
    assert all(map(equal, ours, before))


def test_the_first_steps_by_hand():
    x = torch.tensor([1.0], requires_grad=True)
    adam = Adam([x], lr=0.1)
    minimize((3 * x).sum(), adam)  # the first step has the size of the learning rate, whatever the slope
    assert x.item() == pytest.approx(0.9)
    minimize((-1 * x).sum(), adam)
    mean, square = (0.9 * 0.3 - 0.1) / (1 - 0.9**2), (0.999 * 0.009 + 0.001) / (1 - 0.999**2)
    assert x.item() == pytest.approx(0.9 - 0.1 * mean / square**0.5, rel=1e-5)


@pytest.mark.parametrize("from_torch", [False, True])
def test_a_checkpoint_of_either_goes_on_in_ours(from_torch):
    torch.manual_seed(0)
    whole, half = mlp((3, 7, 2)), None
    kind = torch.optim.Adam if from_torch else Adam
    adam = kind(whole.parameters(), lr=1e-2)
    for step in range(12):
        if step == 5:
            half, state = copy.deepcopy(whole), copy.deepcopy(adam.state_dict())
        minimize(loss_of(whole, step), adam)
    assert half is not None
    resumed = Adam(half.parameters(), lr=1e-2)
    resumed.load_state_dict(state)
    for step in range(5, 12):
        minimize(loss_of(half, step), resumed)
    assert all(torch.allclose(p, q, atol=1e-6) for p, q in zip(half.parameters(), whole.parameters(), strict=True))
    if not from_torch:
        assert equal(half, whole)


def test_a_state_that_is_loaded_after_steps_replaces_theirs():
    torch.manual_seed(0)
    network = mlp((3, 7, 2))
    adam = Adam(network.parameters(), lr=1e-2)
    minimize(loss_of(network, 0), adam)
    weights, state = copy.deepcopy(network.state_dict()), copy.deepcopy(adam.state_dict())
    minimize(loss_of(network, 1), adam)
    after = copy.deepcopy(network)
    network.load_state_dict(weights)
    adam.load_state_dict(state)
    minimize(loss_of(network, 1), adam)
    assert equal(network, after)


def test_a_state_holds_a_count_for_every_parameter_that_no_other_shares():
    torch.manual_seed(0)
    network = mlp((3, 7, 2))
    adam = Adam(network.parameters())
    for step in range(3):
        minimize(loss_of(network, step), adam)
    counts = [kept["step"] for kept in adam.state_dict()["state"].values()]
    assert [count.item() for count in counts] == [3.0] * 4
    assert len({count.data_ptr() for count in counts}) == 4


def test_what_it_is_not_made_for_is_refused():
    first, second = (torch.zeros(1, requires_grad=True) for _ in range(2))
    with pytest.raises(NotImplementedError, match="one group"):
        Adam([{"params": [first]}, {"params": [second]}]).step()
    with pytest.raises(NotImplementedError, match="closure"):
        Adam([first]).step(lambda: 0.0)
    with pytest.raises(TypeError, match="amsgrad"):
        Adam([first], amsgrad=True)
