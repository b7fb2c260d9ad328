"""Every algorithm's state: complete, restored to the bit in any phase, and a matter of the seed alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, batch_for, make_dataset, tiny, tiny_fields
from learners import (
    WITH_BEHAVIOR,
    WITH_EXTRAS,
    WITH_MMD,
    WITH_MODEL,
    bare_and_full,
    differing,
    every_algorithm,
    everything,
    go_on,
    parts,
    snapshot,
    trained,
    walk,
)
from torch import Tensor, nn

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm
from mildly.algorithms.config import build_config
from mildly.data.batches import Sampler
from mildly.training import checkpoint


@every_algorithm
@bare_and_full
def test_state_holds_all_weights_all_optimizer_slots_and_all_generators(name, options):
    learner = tiny(name, **options(name))
    for step, (_, update) in enumerate(walk(learner, 2)):
        update(batch_for(learner, step))
    state = learner.state_dict()
    assert all(isinstance(tensor, Tensor) for tensor in state.values())
    modules, optimizers = parts(learner, nn.Module), parts(learner, torch.optim.Optimizer)
    assert "actor" in modules
    assert "actor_optimizer" in optimizers
    assert ("behavior.optimizer" in optimizers) == (name in WITH_BEHAVIOR)
    for attribute, module in modules.items():
        assert {f"{attribute}.{key}" for key, _ in module.named_parameters()} <= state.keys()
    for attribute, optimizer in optimizers.items():
        count = sum(len(group["params"]) for group in optimizer.param_groups)
        slots = {f"{attribute}.{i}.{slot}" for i in range(count) for slot in ("step", "exp_avg", "exp_avg_sq")}
        assert slots <= state.keys()
    others = parts(learner, torch.Generator | Tensor | int | float).keys()
    assert others <= state.keys()
    assert "generator" in others


@every_algorithm
def test_state_leaves_out_what_follows_from_config_and_data(name):
    """The same config and data give the same of it, so that no other must be loaded over it."""
    learner = tiny(name, **everything(name))
    learner.batches(make_dataset())
    roots = {key.split(".")[0] for key in learner.state_dict()}
    assert not roots & {"config", "observation_size", "action_size", "device", "preprocessing", "notes"}
    assert not roots & {attribute for attribute, value in vars(learner).items() if isinstance(value, bool)}


# Restored


@every_algorithm
def test_a_restored_learner_goes_on_to_the_bit_while_the_other_goes_on_too(name):
    straight = trained(name, 3)
    restored = trained(name, 5, seed=9, first=50)
    restored.load_state_dict(straight.state_dict())
    assert not differing(straight.state_dict(), restored.state_dict())
    for step in range(3, 6):  # in turns: shared memory would show
        metrics = [learner.step(batch_for(learner, step)) for learner in (straight, restored)]
        assert not differing(*metrics)
    assert not differing(straight.state_dict(), restored.state_dict())
    assert not differing(straight.state_dict(), trained(name, 6).state_dict())


@every_algorithm
def test_a_learner_restored_from_a_file_goes_on_to_the_bit(name, tmp_path):
    interrupted = trained(name, 3)
    checkpoint.save(tmp_path / "file", interrupted.state_dict(), {"step": 0})
    del interrupted
    restored = tiny(name, seed=7)
    restored.load_state_dict(checkpoint.load(tmp_path / "file")[0])
    go_on(restored, 3, first=3)
    assert not differing(restored.state_dict(), trained(name, 6).state_dict())


@every_algorithm
def test_a_learner_that_took_no_step_can_be_restored(name):
    """Also into one that took some, which must forget them."""
    fresh = tiny(name, seed=3)
    restored = [tiny(name, seed=4), trained(name, 2, seed=5)]
    for learner in restored:
        learner.load_state_dict(fresh.state_dict())
    go_on(fresh, 2, first=0)
    for learner in restored:
        go_on(learner, 2, first=0)
        assert not differing(fresh.state_dict(), learner.state_dict())


@every_algorithm
@bare_and_full
def test_a_learner_restored_at_any_step_of_any_phase_goes_on_to_the_bit(name, options):
    """Into a fresh learner of another seed that has only looked at the data: it must end with the same bits."""
    data, main_steps = make_dataset(), 5

    def fresh(seed: int) -> tuple[Algorithm, Sampler, torch.Generator]:
        learner = tiny(name, seed, **options(name))
        return learner, learner.batches(data), torch.Generator().manual_seed(seed)

    straight, sampler, random = fresh(0)
    states, history = [], []
    for phase, update in walk(straight, main_steps):
        states.append((snapshot(straight), snapshot(sampler), random.get_state()))
        history.append((phase, update(sampler.sample(random))))
    phases = list(dict.fromkeys(phase for phase, _ in history))
    cloned = {"cloning": WITH_EXTRAS, "bc warm-up": WITH_EXTRAS}
    there = {"behavior model": WITH_BEHAVIOR, "mmd warm-up": WITH_MMD, **cloned}
    before = [phase for phase, names in there.items() if name in names] if options is everything else []
    expected = [*(["dynamics model"] if name in WITH_MODEL else []), *before, ""]
    assert phases == expected
    for done, (state, of_sampler, of_random) in enumerate(states):
        restored, sampler, random = fresh(7 + done)
        assert not torch.equal(restored.generator.get_state(), state["generator"])
        restored.load_state_dict(state)
        sampler.load_state_dict(of_sampler)
        random.set_state(of_random)
        for (_, update), (_, metrics) in zip(walk(restored, main_steps)[done:], history[done:], strict=True):
            assert not differing(update(sampler.sample(random)), metrics)
        assert not differing(restored.state_dict(), straight.state_dict())


@every_algorithm
def test_a_state_of_another_shape_is_refused(name):
    kind = ALGORITHMS[name]
    other = kind(build_config(kind, tiny_fields(kind)), OBSERVATIONS + 1, ACTIONS)
    with pytest.raises((KeyError, RuntimeError, ValueError)):
        tiny(name).load_state_dict(other.state_dict())


def test_a_counter_is_part_of_the_state_and_what_cannot_be_kept_is_refused():
    counting, other = tiny("bc"), tiny("bc")
    counting.updates, other.updates = 7, 0
    other.load_state_dict(counting.state_dict())
    assert other.updates == 7
    counting.history = [1, 2]
    with pytest.raises(TypeError, match=r"BC.history is a list"):
        counting.state_dict()


# Seeds


@every_algorithm
def test_same_seed_same_bits(name):
    assert not differing(trained(name, 4, seed=2).state_dict(), trained(name, 4, seed=2).state_dict())


@every_algorithm
def test_different_seeds_different_bits(name):
    one, other = tiny(name, seed=2), tiny(name, seed=3)
    # what begins at 0, or at one number everywhere, has no seed
    begun = {key for key, tensor in one.state_dict().items() if tensor.any() and (tensor != tensor.flatten()[0]).any()}
    modules = parts(one, nn.Module)
    weights = {f"{attribute}.{key}" for attribute, module in modules.items() for key, _ in module.named_parameters()}
    expected = parts(one, torch.Generator).keys() | (weights & begun)
    assert differing(one.state_dict(), other.state_dict()) >= expected


@every_algorithm
def test_torchs_own_random_numbers_neither_matter_nor_change(name):
    def whole() -> Any:
        learner = tiny(name, **everything(name))
        sampler, random = learner.batches(make_dataset()), torch.Generator().manual_seed(0)
        for _, update in walk(learner, 3):
            update(sampler.sample(random))
        return learner.state_dict()

    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = whole()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert not differing(first, whole())
