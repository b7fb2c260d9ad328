"""What every algorithm of the registry must do. A new algorithm inherits all of this by its line in the registry."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import math
import re
import textwrap
from itertools import pairwise

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, make_batch, make_dataset, tiny, tiny_fields
from torch import Tensor

import mildly
from mildly.algorithms import ALGORITHMS, algorithm_named
from mildly.algorithms.base import Algorithm, make_config
from mildly.data.dataset import Dataset, Meta
from mildly.data.replay import Batch, Replay
from mildly.errors import MildlyError
from mildly.policy import load_policy
from mildly.training import checkpoint

every_algorithm = pytest.mark.parametrize("name", sorted(mildly.ALGORITHMS))
every_preset = pytest.mark.parametrize(
    ("name", "preset"), [(name, preset) for name, kind in sorted(ALGORITHMS.items()) for preset in kind.PRESETS]
)


def trained(name: str, steps: int, seed: int = 0, first: int = 0) -> Algorithm:
    """A tiny learner after some steps, each on a batch of its own."""
    learner = tiny(name, seed)
    go_on(learner, steps, first)
    return learner


def go_on(learner: Algorithm, steps: int, first: int) -> None:
    for step in range(first, first + steps):
        learner.update(make_batch(seed=step))


def snapshot(learner: Algorithm) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in learner.state_dict().items()}


def differing(one: dict[str, Tensor], other: dict[str, Tensor]) -> set[str]:
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


# Learning


@every_algorithm
def test_losses_stay_finite_and_the_loss_falls_on_data_without_a_future(name):
    """Where all states are terminal the targets stand still, so that the loss must fall on a batch seen often."""
    learner = tiny(name)
    batch = make_batch(seed=1)._replace(terminated=torch.ones(12))
    history = [learner.update(batch) for _ in range(150)]
    assert all(math.isfinite(value) for metrics in history for value in metrics.values())
    loss = "loss_critic" if "loss_critic" in history[0] else "loss_actor"
    losses = [metrics[loss].item() for metrics in history]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.02


@every_algorithm
def test_training_changes_every_trainable_weight(name):
    learner = tiny(name)
    modules = [value for value in vars(learner).values() if isinstance(value, torch.nn.Module)]
    before = [[parameter.detach().clone() for parameter in module.parameters()] for module in modules]
    assert before
    go_on(learner, 3, first=0)
    for module, old in zip(modules, before, strict=True):
        for parameter, was in zip(module.parameters(), old, strict=True):
            assert not torch.equal(parameter, was)


@every_algorithm
def test_an_update_leaves_the_batch_as_it_is(name):
    batch, untouched = make_batch(), make_batch()
    tiny(name).update(batch)
    assert all(torch.equal(a, b) for a, b in zip(batch, untouched, strict=True))


# Metrics


@every_algorithm
def test_metrics_are_single_numbers_on_the_device_with_the_same_names_every_step(name):
    learner = tiny(name)
    names = []
    for step in range(3):
        metrics = learner.update(make_batch(seed=step))
        names.append(list(metrics))
        for value in metrics.values():
            assert isinstance(value, Tensor)
            assert value.shape == ()
            assert value.dtype == torch.float32
            assert value.device == learner.device
            assert not value.requires_grad
    assert names[0]
    assert names[0] == names[1] == names[2]


@every_algorithm
def test_metrics_of_a_step_do_not_change_with_later_steps(name):
    learner = tiny(name)
    metrics = learner.update(make_batch())
    kept = {key: value.clone() for key, value in metrics.items()}
    go_on(learner, 2, first=1)
    assert not differing(metrics, kept)


AVERAGED = {"policy_ema": 0.1}
OPTIONS = {"mcq": {"lam": "auto", **AVERAGED}, "cql": {"gradient_actions": 4}, "td3": AVERAGED}


@pytest.mark.parametrize(
    ("name", "fields"), [*((name, {}) for name in ALGORITHMS), *OPTIONS.items()], ids=lambda value: str(value)
)
def test_an_update_never_waits_for_the_device(name, fields, monkeypatch):
    learner = tiny(name, **fields)
    learner.update(make_batch())

    def waits(*_args, **_kwargs):
        raise AssertionError("the update asked for a number on the host")

    for method in ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__array__", "nonzero"):
        monkeypatch.setattr(Tensor, method, waits)
    with pytest.raises(AssertionError, match="on the host"):
        float(torch.zeros(()))
    learner.update(make_batch())


# Sizes and devices

ODD_SIZES = [(1, 1, 1), (1, 1, 7), (5, 1, 2), (1, 3, 1)]


@every_preset
@pytest.mark.parametrize(("observations", "actions", "rows"), ODD_SIZES)
def test_one_of_a_kind_and_data_in_which_no_episode_ends_are_data_too(name, preset, observations, actions, rows):
    """One observation, one action, a batch of one; the log stops in the middle of its only episode."""
    kind, random = ALGORITHMS[name], np.random.default_rng(0)
    data = Dataset.from_arrays(
        observations=random.normal(size=(9, observations)),
        actions=random.uniform(-1, 1, (9, actions)),
        rewards=-random.random(9),
        next_observations=random.normal(size=(9, observations)),
        terminated=np.zeros(9, bool),
        truncated=np.zeros(9, bool),
        meta=Meta("odd"),
    )
    config = make_config(kind, preset, "odd", {**tiny_fields(kind), "batch_size": rows})
    learner = kind(config, observations, actions, seed=0)
    chosen = learner.select(data)
    learner.prepare(chosen)
    replay, stream = Replay.of(chosen, learner.device, learner.scaling), torch.Generator().manual_seed(0)
    for step in range(6):
        if step == 3:
            learner.skip_start()
        metrics = learner.update(replay.sample(rows, stream))
        assert all(math.isfinite(value) for value in metrics.values())
    assert learner.policy().act(data.observations[0]).shape == (actions,)
    assert np.isfinite(learner.policy().act(data.observations)).all()


@pytest.mark.parametrize(
    ("name", "fields"), [*((name, {}) for name in ALGORITHMS), *OPTIONS.items()], ids=lambda value: str(value)
)
def test_nothing_is_made_on_another_device_than_the_learners(name, fields, monkeypatch):
    """`meta` has shapes but no numbers: a device that every machine has, and whose tensors mix with no others."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.zeros(3) + torch.zeros(3, device="meta")
    monkeypatch.setattr(Algorithm, "random_stream", lambda *_: None)  # meta has no random numbers of its own
    kind = ALGORITHMS[name]
    config = kind.Config(**{**tiny_fields(kind), **fields})
    learner = kind(config, OBSERVATIONS, ACTIONS, device="meta")
    for _ in range(3):
        metrics = learner.update(Batch(*(column.to("meta") for column in make_batch())))
        assert {value.device.type for value in metrics.values()} == {"meta"}
    assert {value.device.type for value in learner.state_dict().values() if value.ndim} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@every_algorithm
def test_a_learner_moves_to_a_gpu_and_back(name):
    learner = trained(name, 3)
    kind = ALGORITHMS[name]
    there, back = (kind(learner.config, OBSERVATIONS, ACTIONS, device=device) for device in ("cuda", "cpu"))
    generators = {key for key, value in vars(learner).items() if isinstance(value, torch.Generator)}
    weights = {key: value for key, value in learner.state_dict().items() if key not in generators}
    there.load_state_dict({**there.state_dict(), **weights})  # each device has random numbers of its own
    observations = make_dataset().observations
    np.testing.assert_allclose(
        there.policy().act(observations), learner.policy().act(observations), rtol=1e-4, atol=1e-4
    )
    metrics = there.update(Batch(*(column.cuda() for column in make_batch())))
    assert all(math.isfinite(value) for value in metrics.values())
    moved = {key: value.cpu() for key, value in there.state_dict().items() if key not in generators}
    back.load_state_dict({**back.state_dict(), **moved})
    assert not differing({key: value for key, value in back.state_dict().items() if key not in generators}, moved)


# State


@every_algorithm
def test_state_holds_all_weights_all_optimizer_slots_and_all_generators(name):
    learner = trained(name, 2)
    state = learner.state_dict()
    assert all(isinstance(tensor, Tensor) for tensor in state.values())
    for attribute, value in vars(learner).items():
        if isinstance(value, torch.nn.Module):
            assert {f"{attribute}.{key}" for key, _ in value.named_parameters()} <= state.keys()
        elif isinstance(value, torch.optim.Optimizer):
            count = sum(len(group["params"]) for group in value.param_groups)
            slots = {f"{attribute}.{i}.{slot}" for i in range(count) for slot in ("step", "exp_avg", "exp_avg_sq")}
            assert slots <= state.keys()
        elif isinstance(value, torch.Generator | Tensor):
            assert attribute in state


@every_algorithm
def test_a_restored_learner_goes_on_to_the_bit_while_the_other_goes_on_too(name):
    straight = trained(name, 3)
    restored = trained(name, 5, seed=9, first=50)
    restored.load_state_dict(straight.state_dict())
    assert not differing(straight.state_dict(), restored.state_dict())
    for step in range(3, 6):  # in turns: shared memory would show
        metrics = [learner.update(make_batch(seed=step)) for learner in (straight, restored)]
        assert not differing(*metrics)
    assert not differing(straight.state_dict(), restored.state_dict())
    assert not differing(straight.state_dict(), trained(name, 6).state_dict())


@every_algorithm
def test_a_learner_restored_from_a_file_goes_on_to_the_bit(name, tmp_path):
    interrupted = trained(name, 3)
    checkpoint.save(tmp_path / "file", interrupted.state_dict(), {})
    del interrupted
    restored = tiny(name, seed=7)
    restored.load_state_dict(checkpoint.load(tmp_path / "file")[0])
    go_on(restored, 3, first=3)
    assert not differing(restored.state_dict(), trained(name, 6).state_dict())


@every_algorithm
def test_a_learner_that_took_no_step_can_be_restored(name):
    fresh = tiny(name, seed=3)
    restored = tiny(name, seed=4)
    restored.load_state_dict(fresh.state_dict())
    for learner in (fresh, restored):
        go_on(learner, 2, first=0)
    assert not differing(fresh.state_dict(), restored.state_dict())


@every_algorithm
def test_a_state_of_another_shape_is_refused(name):
    kind = ALGORITHMS[name]
    other = kind(kind.Config(**tiny_fields(kind)), OBSERVATIONS + 1, ACTIONS)
    with pytest.raises((KeyError, RuntimeError, ValueError)):
        tiny(name).load_state_dict(other.state_dict())


# Seeds


@every_algorithm
def test_same_seed_same_bits(name):
    assert not differing(trained(name, 4, seed=2).state_dict(), trained(name, 4, seed=2).state_dict())


@every_algorithm
def test_different_seeds_different_bits(name):
    one, other = tiny(name, seed=2), tiny(name, seed=3)
    generators = {key for key, value in vars(one).items() if isinstance(value, torch.Generator)}
    modules = {key for key, value in vars(one).items() if isinstance(value, torch.nn.Module)}
    begun = {key for key, tensor in one.state_dict().items() if tensor.any()}  # what begins at 0 has no seed
    expected = generators | {key for key in begun if key.split(".")[0] in modules}
    assert differing(one.state_dict(), other.state_dict()) >= expected


@every_algorithm
def test_torchs_own_random_numbers_neither_matter_nor_change(name):
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = trained(name, 3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert not differing(first.state_dict(), trained(name, 3).state_dict())


# The policy


@every_algorithm
def test_a_saved_policy_acts_as_the_learner_does_in_the_environments_units(name, tmp_path):
    data = make_dataset()
    learner = tiny(name, normalize_observations=True)
    learner.prepare(data)
    go_on(learner, 3, first=0)
    policy = learner.policy(data.meta)
    loaded = load_policy(policy.save(tmp_path))
    actions = policy.act(data.observations)
    assert actions.shape == (60, ACTIONS)
    assert np.array_equal(actions, loaded.act(data.observations))
    draws = [p.act(data.observations, False, torch.Generator().manual_seed(0)) for p in (policy, loaded)]
    assert np.array_equal(*draws)
    assert (actions >= np.array([-2.0, 0.0])).all()
    assert (actions <= np.array([1.0, 0.5])).all()
    # By hand: scale the observation, ask the actor, unscale the action.
    scaled = (data.observations - data.observations.mean(0)) / (data.observations.std(0) + 1e-3)
    unit = learner.policy().actor.act(torch.tensor(scaled), True).detach().numpy()
    np.testing.assert_allclose(actions, [-2.0, 0.0] + (unit + 1) / 2 * [3.0, 0.5], atol=1e-4)


@every_algorithm
def test_observations_are_scaled_only_when_asked(name):
    learner = tiny(name, normalize_observations=False)
    learner.prepare(make_dataset())
    assert learner.policy().scaling is None


# Configuration


@every_preset
def test_every_preset_builds_and_takes_a_step(name, preset):
    kind = ALGORITHMS[name]
    config = make_config(kind, preset, "hopper-medium-v2", {})
    assert make_config(kind, preset, "some set of mine", {}) == kind.Config(**kind.PRESETS[preset])
    metrics = kind(config, OBSERVATIONS, ACTIONS, seed=0).update(make_batch(4))
    assert all(math.isfinite(value) for value in metrics.values())


@every_algorithm
def test_the_papers_preset_is_the_default(name):
    kind = ALGORITHMS[name]
    assert make_config(kind, "paper", "some set of mine", {}) == kind.Config()


@every_algorithm
def test_every_config_field_has_a_docstring(name):
    config = ALGORITHMS[name].Config
    documented = set()
    for kind in config.__mro__:
        if not dataclasses.is_dataclass(kind):
            continue
        body = ast.parse(textwrap.dedent(inspect.getsource(kind))).body[0].body
        for field, after in pairwise(body):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            if isinstance(field, ast.AnnAssign) and isinstance(text, str) and len(text.split()) > 1:
                documented.add(field.target.id)
    assert {field.name for field in dataclasses.fields(config)} - documented == set()
    assert config.__doc__


@every_algorithm
def test_a_config_is_frozen_and_survives_json(name):
    config = ALGORITHMS[name].Config(**tiny_fields(ALGORITHMS[name]))
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.batch_size = 1
    stored = json.loads(json.dumps(dataclasses.asdict(config)))
    restored = {key: tuple(value) if isinstance(value, list) else value for key, value in stored.items()}
    assert ALGORITHMS[name].Config(**restored) == config


@every_algorithm
def test_the_users_fields_win_over_a_preset(name):
    for preset in ALGORITHMS[name].PRESETS:
        assert make_config(ALGORITHMS[name], preset, "hopper-medium-v2", {"batch_size": 77}).batch_size == 77


@every_algorithm
def test_a_wrong_name_is_an_error_that_shows_the_nearest(name):
    with pytest.raises(MildlyError, match=r"unknown preset 'papr'. Did you mean 'paper'\?"):
        make_config(ALGORITHMS[name], "papr", "", {})
    with pytest.raises(MildlyError, match=r"unknown hyperparameter 'bach_size'. Did you mean 'batch_size'\?"):
        make_config(ALGORITHMS[name], "paper", "", {"bach_size": 3})
    with pytest.raises(MildlyError, match=rf"unknown algorithm '{name}x'. Did you mean '{name}'\?"):
        algorithm_named(f"{name}x")
    assert algorithm_named(name) is ALGORITHMS[name]


@every_algorithm
def test_a_batch_of_no_transitions_is_refused(name):
    with pytest.raises(MildlyError, match="batch_size must be at least 1"):
        ALGORITHMS[name].Config(batch_size=0)


def test_a_counter_is_part_of_the_state_and_what_cannot_be_kept_is_refused():
    counting, other = tiny("bc"), tiny("bc")
    counting.updates, other.updates = 7, 0
    other.load_state_dict(counting.state_dict())
    assert other.updates == 7
    counting.history = [1, 2]
    with pytest.raises(TypeError, match=r"BC.history is a list"):
        counting.state_dict()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lam": "0.5"}, "lam must be a number or 'auto', got '0.5'"),
        ({"hidden": 256}, "hidden must be whole numbers, got 256"),
        ({"num_actions": 2.5}, "num_actions must be a whole number, got 2.5"),
        ({"one_sided": 1}, "one_sided must be True or False, got 1"),
        ({"batch_size": True}, "batch_size must be a whole number, got True"),
        ({"lamb": 0.5}, "unknown hyperparameter 'lamb'. Did you mean 'lam'"),
    ],
)
def test_a_field_of_the_wrong_type_or_name_is_named(fields, message):
    with pytest.raises(MildlyError, match=re.escape(message)):
        make_config(ALGORITHMS["mcq"], "paper", "", fields)


def test_lists_and_whole_numbers_pass_where_tuples_and_floats_are_meant():
    config = make_config(ALGORITHMS["mcq"], "paper", "", {"hidden": [8, 8], "lam": 1, "latent_clip": None})
    assert (config.hidden, config.lam, config.latent_clip) == ((8, 8), 1, None)
