"""What every algorithm must do, for the tests of those who write one outside this package.

    def test_td3_near(tmp_path):
        check_algorithm("td3-near", tmp_path)

An `AssertionError` says what does not hold. Losses and targets need tests of their own, with numbers by hand.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mildly.action_space import ActionSpace
from mildly.algorithms import algorithm_named
from mildly.algorithms.base import Algorithm, Metrics
from mildly.algorithms.config import field_types, flatten, make_config
from mildly.data.batches import Sampler
from mildly.data.dataset import Dataset, Meta
from mildly.policy import load_policy
from mildly.training import checkpoint
from mildly.training.offline import resume, train

_ROWS, _EPISODE = 60, 10
_BATCH, _PHASE_STEPS, _STEPS = 12, 2, 8


def check_algorithm(name: str, folder: str | os.PathLike[str], **fields: Any) -> None:
    """Raise where a registered algorithm breaks what training, checkpoints, resuming and policies rely on.

    Args:
        name: as `mildly train` takes it.
        folder: an empty place for runs.
        fields: of its config, to be checked with; networks are small in any case.
    """
    kind = algorithm_named(name)
    unknown = set(kind.KEY_FIELDS) - set(field_types(kind.Config))
    assert not unknown, f"KEY_FIELDS names fields that the config has not: {', '.join(sorted(unknown))}"
    for preset in dict.fromkeys(("default", *kind.PRESETS)):
        given = _small(kind, preset, fields)
        check_steps(kind, preset, given)
        check_state(kind, preset, given)
    check_runs(name, Path(folder), _small(kind, "default", fields))


def check_steps(kind: type[Algorithm], preset: str, fields: Mapping[str, Any]) -> None:
    """Every step gives finite scalars of the same names, and `batches` leaves data and learner as they are."""
    data, untouched = _data(), _data()
    learner = _learner(kind, preset, fields)
    sampler = learner.batches(data)
    assert all(np.array_equal(getattr(data, c), getattr(untouched, c)) for c in ("observations", "actions", "rewards"))
    names: dict[str, list[str]] = {}
    for phase, metrics in _walk(learner, sampler, _STEPS):
        for metric, value in metrics.items():
            where = f"the metric '{metric}' of the preset {preset}"
            assert isinstance(value, Tensor), f"{where} is a {type(value).__name__}, no tensor"
            assert value.shape == (), f"{where} is no single number"
            assert not value.requires_grad, f"{where} carries gradients: detach it"
            assert bool(value.isfinite()), f"{where} is {value.item()}"
        assert names.setdefault(phase, list(metrics)) == list(metrics), f"metrics of {preset} differ between steps"
    actions = learner.policy(data.meta).start(len(data)).act(data.observations)
    assert actions.shape == data.actions.shape, f"the policy's actions have shape {actions.shape}"
    assert np.isfinite(actions).all(), "the policy's actions are not finite"


def check_state(kind: type[Algorithm], preset: str, fields: Mapping[str, Any]) -> None:
    """Equal seeds give equal bits, and a learner with another's state goes on as that one does."""
    one, other = (_learner(kind, preset, fields) for _ in range(2))
    samplers = [learner.batches(_data()) for learner in (one, other)]
    for learner, sampler in zip((one, other), samplers, strict=True):
        for _ in _walk(learner, sampler, 3):
            pass
    _compare(one.state_dict(), other.state_dict(), "two learners of one seed differ")
    late = _learner(kind, preset, fields, seed=1)
    late_sampler = late.batches(_data())
    late.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    for learner, sampler in ((one, samplers[0]), (late, late_sampler)):
        stream = torch.Generator().manual_seed(5)
        for _ in range(3):
            learner.step(sampler.sample(stream))
    _compare(one.state_dict(), late.state_dict(), "a learner with the state of another goes on otherwise")


def check_runs(name: str, folder: Path, fields: Mapping[str, Any]) -> None:
    """A run that was stopped and resumed equals one that was not, and its policy can be loaded and acts."""
    data = _data().save(folder / "data")
    given: dict[str, Any] = {"log_every": 2, "checkpoint_every": 2, "threads": 1, "quiet": True, "check": False}
    given = {**given, **fields}
    whole = train(name, data, out=folder / "whole", steps=_STEPS, **given)
    part = train(name, data, out=folder / "part", steps=_STEPS // 2, **given)
    resume(part.path, steps=_STEPS, quiet=True)
    saved = [checkpoint.load(run.checkpoint)[0] for run in (whole, part)]
    _compare(saved[0], saved[1], "a resumed run differs from an uninterrupted one")
    rows = [key for key, tensor in saved[0].items() if tensor.ndim and len(tensor) == _ROWS]
    assert not rows, f"the checkpoint holds a row for each of the data: {', '.join(rows)}"
    policies = [load_policy(run.path).start(_ROWS).act(_data().observations) for run in (whole, part)]
    assert np.array_equal(policies[0], policies[1]), "the policies of equal runs act differently"


def _small(kind: type[Algorithm], preset: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that make networks and phases small."""
    small: dict[str, Any] = {name: (8, 8) for name in field_types(kind.Config) if name.endswith("hidden_dims")}
    usual = flatten(make_config(kind, preset, "", fields))
    phases = {name: value for name, value in usual.items() if re.search(r"(^|[._])steps$", name) and type(value) is int}
    small |= {name: min(value, _PHASE_STEPS) for name, value in phases.items()}
    return {**small, "batch_size": _BATCH, **fields}


def _learner(kind: type[Algorithm], preset: str, fields: Mapping[str, Any], seed: int = 0) -> Algorithm:
    data = _data()
    config = make_config(kind, preset, data.meta.name, fields)
    return kind(config, data.observation_size, data.action_size, seed=seed)


def _walk(learner: Algorithm, sampler: Sampler, main_steps: int) -> Iterator[tuple[str, Metrics]]:
    """The steps of all phases, then main steps."""
    stream = torch.Generator().manual_seed(0)
    for phase in learner.phases():
        for _ in range(phase.steps):
            yield phase.name, phase.update(sampler.sample(stream))
    for _ in range(main_steps):
        yield "", learner.step(sampler.sample(stream))


def _compare(one: Mapping[str, Tensor], other: Mapping[str, Tensor], what: str) -> None:
    assert one.keys() == other.keys(), f"{what}: {', '.join(sorted(one.keys() ^ other.keys()))}"
    unequal = [name for name in one if not torch.equal(one[name], other[name])]
    assert not unequal, f"{what}: {', '.join(unequal[:5])}"


def _data() -> Dataset:
    """Logged transitions of a made-up task: episodes of ten steps that terminate or are cut off by turns."""
    random = np.random.default_rng(0)
    ends, kind = np.arange(1, _ROWS + 1) % _EPISODE == 0, np.arange(_ROWS) % (2 * _EPISODE) < _EPISODE
    return Dataset.from_arrays(
        observations=random.normal(size=(_ROWS, 3)),
        actions=random.uniform(-1, 1, (_ROWS, 2)),
        rewards=-random.random(_ROWS),
        next_observations=random.normal(size=(_ROWS, 3)),
        terminated=ends & kind,
        truncated=ends & ~kind,
        meta=Meta("made-up", action_space=ActionSpace((-2.0, 0.0), (1.0, 0.5))),
    )
