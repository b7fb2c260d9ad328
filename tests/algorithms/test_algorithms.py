"""What every algorithm of the registry must do. A new algorithm inherits all of this by its line in the registry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, batch_for, make_dataset, tiny, tiny_fields
from learners import (
    DATA,
    WITH_EXTRAS,
    all_finite,
    bare_and_full,
    differing,
    every_algorithm,
    every_preset,
    everything,
    go_on,
    parts,
    snapshot,
    trained,
    walk,
)
from torch import Tensor, nn

import mildly
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm
from mildly.algorithms.config import build_config, make_config
from mildly.data.batches import Batch
from mildly.data.dataset import Dataset, Meta
from mildly.policy import Policy, load_policy


def test_the_package_shows_the_registry():
    assert mildly.ALGORITHMS is ALGORITHMS
    assert all(issubclass(kind, Algorithm) for kind in ALGORITHMS.values())


# Learning


@every_algorithm
def test_losses_stay_finite_and_the_loss_falls_on_data_without_a_future(name):
    """Where all states are terminal the targets stand still, so that the loss must fall on a batch seen often."""
    learner = tiny(name)
    batch = batch_for(learner, 1)
    if isinstance(batch, Batch):
        batch = batch._replace(terminated=torch.ones(12))
    history = [learner.step(batch) for _ in range(150)]
    assert all(all_finite(metrics) for metrics in history)
    loss = "loss_critic" if "loss_critic" in history[0] else "loss_actor"
    losses = [metrics[loss].item() for metrics in history]
    assert np.mean(losses[-10:]) < np.mean(losses[:10]) - 0.02


@every_algorithm
@bare_and_full
def test_training_changes_every_weight(name, options):
    learner = tiny(name, **options(name))
    before = {key: [p.detach().clone() for p in part.parameters()] for key, part in parts(learner, nn.Module).items()}
    assert "actor" in before
    assert ("extras.average" in before) == (options is everything and name in WITH_EXTRAS)
    for step, (_, update) in enumerate(walk(learner, 3)):
        update(batch_for(learner, step))
    for key, part in parts(learner, nn.Module).items():
        for parameter, was in zip(part.parameters(), before[key], strict=True):
            assert not torch.equal(parameter, was), key


@every_algorithm
def test_a_step_of_any_phase_leaves_the_batch_as_it_is(name):
    learner = tiny(name, **everything(name))
    for _, update in walk(learner, 1):
        batch, untouched = batch_for(learner), batch_for(learner)
        update(batch)
        assert all(torch.equal(a, b) for a, b in zip(batch, untouched, strict=True))


@every_algorithm
def test_a_main_step_is_the_update_and_what_follows_it(name):
    """Without extras that follow, the two are the same to the bit."""
    one, other = tiny(name), tiny(name)
    for step in range(3):
        batch = batch_for(one, step)
        assert not differing(one.step(batch), other.update(batch))
    assert differing(one.state_dict(), other.state_dict()) <= {"extras.steps"}


# Metrics


@every_algorithm
@bare_and_full
def test_metrics_are_single_numbers_on_the_device_with_the_same_names_in_every_step_of_a_phase(name, options):
    learner = tiny(name, **options(name))
    names: dict[str, list[list[str]]] = {}
    for step, (phase, update) in enumerate(walk(learner, 3)):
        metrics = update(batch_for(learner, step))
        names.setdefault(phase, []).append(list(metrics))
        for value in metrics.values():
            assert isinstance(value, Tensor)
            assert value.shape == ()
            assert value.dtype == torch.float32
            assert value.device == learner.device
            assert not value.requires_grad
    for first, *others in names.values():
        assert first
        assert others
        assert all(other == first for other in others)


@every_algorithm
def test_metrics_of_a_step_do_not_change_with_later_steps(name):
    learner = tiny(name, **everything(name))
    seen = []
    for step, (_, update) in enumerate(walk(learner, 3)):
        metrics = update(batch_for(learner, step))
        seen.append((metrics, {key: value.clone() for key, value in metrics.items()}))
    assert not any(differing(metrics, kept) for metrics, kept in seen)


def forbid_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, asking a tensor for its numbers is an error."""

    def waits(*_args: Any, **_kwargs: Any) -> None:
        raise AssertionError("the update asked for a number on the host")

    for method in ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__array__", "nonzero"):
        monkeypatch.setattr(Tensor, method, waits)
    with pytest.raises(AssertionError, match="on the host"):
        float(torch.zeros(()))


@every_algorithm
@bare_and_full
def test_a_step_never_waits_for_the_device(name, options, monkeypatch):
    learner = tiny(name, **options(name))
    sampler, random = learner.batches(DATA), torch.Generator().manual_seed(0)
    calls = [(update, sampler.sample(random)) for _, update in walk(learner, 3)]
    learner.step(sampler.sample(random))
    forbid_the_host(monkeypatch)
    for update, batch in calls:
        update(batch)


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
    sampler, stream = learner.batches(data), torch.Generator().manual_seed(0)
    updates = [phase.update for phase in learner.phases() for _ in range(min(phase.steps, 2))]
    for update in [*updates, learner.step, learner.step, learner.step]:
        assert all_finite(update(sampler.sample(stream)))
    assert acts(learner.policy(), data.observations[:1]).shape == (1, actions)
    assert np.isfinite(acts(learner.policy(), data.observations)).all()


@every_algorithm
@bare_and_full
def test_nothing_is_made_on_another_device_than_the_learners(name, options, monkeypatch):
    """`meta` has shapes but no numbers: a device that every machine has, and whose tensors mix with no others."""
    with pytest.raises((RuntimeError, NotImplementedError)):
        torch.zeros(3) + torch.zeros(3, device="meta")
    monkeypatch.setattr(Algorithm, "random_stream", lambda *_: None)  # meta has no random numbers of its own
    kind = ALGORITHMS[name]
    config = build_config(kind, {**tiny_fields(kind), **options(name)})
    learner = kind(config, OBSERVATIONS, ACTIONS, device="meta")
    for _, update in walk(learner, 3):
        batch = batch_for(learner)
        metrics = update(type(batch)(*(column.to("meta") for column in batch)))
        assert {value.device.type for value in metrics.values()} == {"meta"}
    assert {value.device.type for value in learner.state_dict().values() if value.ndim} == {"meta"}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@every_algorithm
def test_a_learner_moves_to_a_gpu_and_back(name):
    learner = trained(name, 3)
    kind = ALGORITHMS[name]
    there, back = (kind(learner.config, OBSERVATIONS, ACTIONS, device=device) for device in ("cuda", "cpu"))
    generators = parts(learner, torch.Generator).keys()
    weights = {key: value for key, value in learner.state_dict().items() if key not in generators}
    there.load_state_dict({**there.state_dict(), **weights})  # each device has random numbers of its own
    observations = make_dataset().observations
    acted = [acts(one.policy(), observations) for one in (there, learner)]
    np.testing.assert_allclose(*acted, rtol=1e-4, atol=1e-4)
    batch = batch_for(learner)
    assert all_finite(there.step(type(batch)(*(column.cuda() for column in batch))))
    moved = {key: value.cpu() for key, value in there.state_dict().items() if key not in generators}
    back.load_state_dict({**back.state_dict(), **moved})
    assert not differing({key: value for key, value in back.state_dict().items() if key not in generators}, moved)


# Batches


@every_algorithm
def test_batches_are_prepared_without_a_step_and_leave_the_data_alone(name):
    """Only the level of the values may move before the first step."""
    data, untouched = make_dataset(), make_dataset()
    fields = {field: value for field, value in everything(name).items() if field != "extras.level_start"}
    learner = tiny(name, **fields)
    before = snapshot(learner)
    batch = learner.batches(data).sample(torch.Generator().manual_seed(0))
    assert not differing(before, learner.state_dict())
    assert len(batch.rewards) == learner.config.batch_size == 12
    for column in ("observations", "actions", "rewards", "next_observations", "terminated", "truncated"):
        assert np.array_equal(getattr(data, column), getattr(untouched, column))
    assert data.meta == untouched.meta


@pytest.mark.parametrize("name", [name for name in sorted(ALGORITHMS) if name != "decision-transformer"])
def test_a_batch_holds_rows_of_the_data_with_normalized_observations(name):
    """Windows have tests of their own."""
    learner = tiny(name, normalize_observations=True)
    batch = learner.batches(DATA).sample(torch.Generator().manual_seed(0), 40)
    rows = batch.rows.numpy()
    mean, std = DATA.observations.mean(0), DATA.observations.std(0) + 1e-3
    np.testing.assert_allclose(batch.observations, (DATA.observations[rows] - mean) / std, atol=1e-4)
    np.testing.assert_allclose(batch.next_observations, (DATA.next_observations[rows] - mean) / std, atol=1e-4)
    np.testing.assert_allclose(batch.actions, DATA.actions[rows], atol=2e-5)
    assert np.array_equal(batch.rewards, DATA.rewards[rows])
    assert np.array_equal(batch.terminated, DATA.terminated[rows].astype(np.float32))


# The policy


def acts(policy: Policy, observations: Any, deterministic: bool = True) -> Any:
    """What a policy does at the start of as many episodes; for one without memory this is `act`."""
    started = policy.start(len(observations), deterministic=deterministic, unseen="ignore")
    return started.act(observations, generator=torch.Generator().manual_seed(0))


@every_algorithm
def test_a_saved_policy_acts_as_the_learner_does_in_the_environments_units(name, tmp_path):
    data = make_dataset()
    learner = tiny(name, normalize_observations=True)
    learner.batches(data)
    go_on(learner, 3, first=0)
    policy = learner.policy(data.meta)
    loaded = load_policy(policy.save(tmp_path))
    actions = acts(policy, data.observations)
    assert actions.shape == (60, ACTIONS)
    assert np.array_equal(actions, acts(loaded, data.observations))
    draws = [acts(p, data.observations, False) for p in (policy, loaded)]
    assert np.array_equal(*draws)
    assert (actions >= np.array([-2.0, 0.0])).all()
    assert (actions <= np.array([1.0, 0.5])).all()
    # By hand: normalize the observation, ask the actor, bring the action into the environment's units.
    normalized = (data.observations - data.observations.mean(0)) / (data.observations.std(0) + 1e-3)
    unit = acts(Policy(learner.policy().actor), normalized)
    np.testing.assert_allclose(actions, [-2.0, 0.0] + (unit + 1) / 2 * [3.0, 0.5], atol=1e-4)


@every_algorithm
def test_observations_are_normalized_only_when_asked(name):
    learner = tiny(name, normalize_observations=False)
    learner.batches(make_dataset())
    assert learner.policy().normalizer is None
    assert learner.preprocessing.normalizer is None
