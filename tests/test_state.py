"""State that a checkpoint keeps: whatever an object has as attributes, found by itself and restored to the bit."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch import nn

from mildly.errors import MildlyError
from mildly.networks import mlp
from mildly.optimizer import Adam, minimize
from mildly.state import Stateful, stream_seed
from mildly.training import checkpoint


class Holder(Stateful):
    """Holds what it is given."""

    DERIVED: ClassVar = frozenset({"config", "cache"})

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def through_a_file(state: dict[str, torch.Tensor], path: Path) -> dict[str, torch.Tensor]:
    checkpoint.save(path, state, {"step": 0})
    return checkpoint.load(path)[0]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# Every kind of attribute


def learner(seed: int) -> Holder:
    """One of each kind, some of them in others."""
    torch.manual_seed(seed)
    network = mlp((3, 4, 2))
    return Holder(
        network=network,
        optimizer=Adam(network.parameters(), lr=0.01),
        generator=torch.Generator().manual_seed(seed),
        value=torch.full((2, 3), float(seed)),
        parameter=torch.full((2,), float(seed), requires_grad=True),
        count=seed,
        rate=seed / 7,
        flag=bool(seed % 2),
        nothing=None,
        inner=Holder(deeper=Holder(mean=torch.tensor(1.5 * seed)), steps=10 * seed, config="not kept"),
        parts={"one": torch.arange(3) + seed, "two": Holder(x=seed), "three": {"y": 0.5 * seed}, "none": {}},
        config=object(),
        cache=[seed],
    )


def work(holder: Holder, step: int) -> None:
    """Change every piece, in a way that depends on all that it should keep."""
    states = torch.randn(8, 3, generator=holder.generator)
    minimize((holder.network(states) - step).square().mean(), holder.optimizer)
    holder.value = holder.value + torch.randn(2, 3, generator=holder.generator)
    with torch.no_grad():
        holder.parameter.add_(holder.rate)
    holder.count += step
    holder.rate *= 1.1
    holder.flag = not holder.flag
    holder.inner.steps += holder.count
    holder.inner.deeper.mean = holder.inner.deeper.mean + holder.value.sum()
    holder.parts["one"] = holder.parts["one"] + holder.count
    holder.parts["two"].x += 3
    holder.parts["three"]["y"] += holder.rate


NAMES = {
    *(f"network.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")),
    *(f"optimizer.{i}.{slot}" for i in range(4) for slot in ("step", "exp_avg", "exp_avg_sq")),
    *("generator", "value", "parameter", "count", "rate", "flag"),
    *("inner.deeper.mean", "inner.steps", "parts.one", "parts.two.x", "parts.three.y"),
}


def test_the_state_is_flat_tensors_named_by_the_way_to_them() -> None:
    holder = learner(3)
    work(holder, 1)
    state = holder.state_dict()
    assert set(state) == NAMES
    assert all(isinstance(tensor, torch.Tensor) and not tensor.requires_grad for tensor in state.values())
    assert state["count"].dtype == torch.int64
    assert state["count"].item() == 4
    assert state["rate"].dtype == torch.float64  # so that a number comes back as it was
    assert state["rate"].item() == 3 / 7 * 1.1


@pytest.mark.parametrize("steps_before", [0, 3])
def test_a_restored_object_goes_on_to_the_bit(steps_before: int, tmp_path: Path) -> None:
    straight, restored = learner(1), learner(8)
    for step in range(3):
        work(straight, step)
    for step in range(steps_before):
        work(restored, 10 + step)
    restored.load_state_dict(through_a_file(straight.state_dict(), tmp_path / "checkpoint.safetensors"))
    assert equal(straight.state_dict(), restored.state_dict())
    for step in range(3, 6):
        work(straight, step)
        work(restored, step)
    assert equal(straight.state_dict(), restored.state_dict())


def test_values_keep_their_types_and_objects_stay_the_same_ones() -> None:
    """Others may hold a network or a generator; a value is only a value."""
    straight, restored = learner(1), learner(8)
    kept = {name: getattr(restored, name) for name in ("network", "optimizer", "generator", "parameter", "inner")}
    deeper, two = restored.inner.deeper, restored.parts["two"]
    restored.load_state_dict(straight.state_dict())
    for name, thing in kept.items():
        assert getattr(restored, name) is thing, name
    assert restored.inner.deeper is deeper
    assert restored.parts["two"] is two
    assert (restored.count, type(restored.count)) == (1, int)
    assert (restored.rate, type(restored.rate)) == (1 / 7, float)
    assert restored.flag is True
    assert restored.nothing is None
    assert (two.x, restored.parts["three"]["y"], restored.inner.steps) == (1, 0.5, 10)


def test_the_parameters_that_an_optimizer_steps_are_those_that_were_restored() -> None:
    straight, restored = learner(1), learner(8)
    restored.load_state_dict(straight.state_dict())
    before = restored.parameter.detach().clone()
    optimizer = Adam([restored.parameter], lr=0.1)
    minimize(restored.parameter.sum(), optimizer)
    assert restored.parameter.requires_grad
    assert not torch.equal(restored.parameter.detach(), before)


def test_an_optimizer_that_has_not_stepped_restores_one_that_has() -> None:
    network: nn.Module = mlp((3, 4, 2))
    fresh = Holder(optimizer=Adam(network.parameters(), lr=0.01))
    stepped = Holder(optimizer=Adam(copy.deepcopy(network).parameters(), lr=0.01))
    minimize(sum(p.sum() for p in stepped.optimizer.param_groups[0]["params"]), stepped.optimizer)
    assert stepped.state_dict()
    stepped.load_state_dict(fresh.state_dict())
    assert stepped.state_dict() == {}


@pytest.mark.parametrize("number", [1, 99])
def test_a_checkpoint_of_another_format_is_refused_in_one_line_that_says_so(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    with monkeypatch.context() as other:
        other.setattr(checkpoint, "FORMAT", number)
        checkpoint.save(path, learner(1).state_dict(), {"step": 0})
    with pytest.raises(MildlyError) as caught:
        checkpoint.load(path)
    advice = "Train it again, or use that version."
    assert str(caught.value) == f"{path}: of another version of mildly (format {number}; this one reads 2). {advice}"


# What is derived


def test_what_is_derived_is_neither_saved_nor_restored() -> None:
    straight, restored = learner(1), learner(8)
    assert not any(name.startswith(("config", "cache", "inner.config")) for name in straight.state_dict())
    config, cache = restored.config, restored.cache
    restored.load_state_dict(straight.state_dict())
    assert restored.config is config
    assert restored.cache is cache
    assert cache == [8]


def test_what_a_class_derives_is_its_own_affair() -> None:
    class Other(Stateful):
        def __init__(self) -> None:
            self.config = 3

    assert set(Holder(config=3, other=Other()).state_dict()) == {"other.config"}


# What is refused


@pytest.mark.parametrize(
    ("thing", "kind"),
    [
        ([torch.zeros(1)], "list"),
        ((1, 2), "tuple"),
        ("text", "str"),
        (np.zeros(2), "ndarray"),
        ({1}, "set"),
        (np.random.default_rng(0), "Generator"),
        (lambda: 0, "function"),
        (object(), "object"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_kept_is_refused_by_its_name(thing: Any, kind: str) -> None:
    advice = "which a checkpoint cannot keep: make it a module, .* or name it in DERIVED"
    for holder, where in (
        (Holder(fine=1, thing=thing), "Holder.thing"),
        (Holder(inner=Holder(thing=thing)), "Holder.thing"),
        (Holder(parts={"a": 1, "thing": thing}), r"Holder.parts\['thing'\]"),
        (Holder(parts={"a": {"b": thing}}), r"Holder.parts\['a'\]\['b'\]"),
    ):
        with pytest.raises(TypeError, match=rf"^{where} is a {kind}, {advice}"):
            holder.state_dict()
    assert Holder(cache=thing).state_dict() == {}


@pytest.mark.parametrize("given_shape", [(3,), (2, 2), (1,), ()])
def test_a_tensor_of_another_shape_is_refused(given_shape: tuple[int, ...]) -> None:
    state = Holder(mean=torch.ones(given_shape)).state_dict()
    for gradient in (False, True):
        holder = Holder(mean=torch.zeros(2, requires_grad=gradient))
        with pytest.raises(ValueError, match=r"mean has shape \(.*\) where \(2,\) is expected"):
            holder.load_state_dict(state)
        assert torch.equal(holder.mean, torch.zeros(2))


def test_networks_of_another_shape_are_refused() -> None:
    state = Holder(network=mlp((3, 4, 2))).state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        Holder(network=mlp((3, 5, 2))).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing key"):
        Holder(network=mlp((3, 4, 4, 2))).load_state_dict(state)


@pytest.mark.parametrize(
    "value", [1, 0.5, torch.zeros(2), torch.Generator(), Holder(x=1), {"x": 1}], ids=lambda value: type(value).__name__
)
def test_a_state_that_lacks_something_is_refused(value: Any) -> None:
    state = Holder(other=1).state_dict()
    with pytest.raises(KeyError):
        Holder(other=2, thing=value).load_state_dict(state)


# Memory


def test_what_is_restored_shares_no_memory_with_the_state() -> None:
    straight, restored = learner(1), learner(8)
    work(straight, 1)
    state = straight.state_dict()
    before = {name: tensor.clone() for name, tensor in state.items()}
    restored.load_state_dict(state)
    pointers = {tensor.data_ptr() for tensor in state.values() if tensor.numel()}
    assert not pointers & {tensor.data_ptr() for tensor in restored.state_dict().values() if tensor.numel()}
    for step in range(3):
        work(restored, 20 + step)
    assert equal(state, before)


def test_a_value_that_others_hold_is_not_changed_by_restoring() -> None:
    """A metric may be the very tensor that the learner keeps."""
    holder = Holder(lam=torch.tensor(0.5))
    metric = holder.lam
    holder.load_state_dict({"lam": torch.tensor(0.75)})
    assert metric.item() == 0.5
    assert holder.lam.item() == 0.75


def test_a_value_comes_back_in_its_own_precision() -> None:
    holder = Holder(half=torch.zeros(2, dtype=torch.float16), double=torch.zeros(2, dtype=torch.float64))
    holder.load_state_dict({"half": torch.ones(2), "double": torch.ones(2)})
    assert (holder.half.dtype, holder.double.dtype) == (torch.float16, torch.float64)
    assert holder.half.tolist() == holder.double.tolist() == [1.0, 1.0]


# The round trip, of anything

key = st.text("abcde_", min_size=1, max_size=6)
leaf = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False)
    | st.booleans()
    | st.lists(st.floats(-9, 9, width=32), max_size=4).map(torch.tensor)
    | st.integers(0, 99).map(lambda seed: torch.Generator().manual_seed(seed))
)
parts = st.recursive(
    st.dictionaries(key, leaf, max_size=4),
    lambda inner: st.dictionaries(key, leaf | inner | inner.map(lambda given: Holder(**given)), max_size=4),
    max_leaves=12,
)
attributes = st.dictionaries(key, st.none() | leaf | parts | parts.map(lambda given: Holder(**given)), max_size=5)


def blank(value: Any) -> Any:
    """As the value, but with nothing in it of what a state keeps."""
    if isinstance(value, Stateful):
        return Holder(**{name: blank(part) for name, part in vars(value).items()})
    if isinstance(value, dict):
        return {name: blank(part) for name, part in value.items()}
    if isinstance(value, torch.Tensor):
        return torch.full_like(value, 77)
    if isinstance(value, torch.Generator):
        return torch.Generator().manual_seed(12345)
    return value if value is None else type(value)(1)


def alike(one: Any, other: Any) -> bool:
    if isinstance(one, Stateful | dict):
        left, right = (vars(each) if isinstance(each, Stateful) else each for each in (one, other))
        return left.keys() == right.keys() and all(alike(left[name], right[name]) for name in left)
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, torch.Generator):
        return torch.equal(one.get_state(), other.get_state())
    return type(one) is type(other) and one == other


@given(attributes)
def test_any_state_comes_back_as_it_was(given_attributes: dict[str, Any]) -> None:
    holder = Holder(**given_attributes)
    twin = blank(holder)
    twin.load_state_dict({name: tensor.clone() for name, tensor in holder.state_dict().items()})
    assert alike(holder, twin)


# An algorithm's seeds


def test_streams_of_a_seed_are_independent_of_each_other_and_always_the_same() -> None:
    seeds = {stream_seed(seed, stream) for seed in range(20) for stream in ("weights", "batches", "policy")}
    assert len(seeds) == 60
    assert all(0 <= seed < 2**56 for seed in seeds)
    assert (
        stream_seed(0, "weights") == stream_seed(0, "weights") == 1042513217767021
    )  # changing it would change every run
