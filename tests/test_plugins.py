"""What others add: registries that ask installed packages, `mildly.register`, and what an algorithm prepares."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import make_dataset, tiny_fields
from torch import Tensor

import mildly
from mildly.actors import DeterministicActor
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Metrics
from mildly.algorithms.bc import BC
from mildly.behavior import BEHAVIOR_MODELS
from mildly.behavior.flow import Flow
from mildly.data.batches import Batch, Sampler
from mildly.data.dataset import Array, Dataset
from mildly.data.formats import FORMATS
from mildly.errors import MildlyError
from mildly.plugins import Registry
from mildly.policy import ACTORS
from mildly.testing import check_algorithm
from mildly.training import checkpoint
from mildly.training.trainer import Diverged


@pytest.fixture(autouse=True)
def own_registries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten after it."""
    for registry in (ALGORITHMS, BEHAVIOR_MODELS, ACTORS, FORMATS):
        monkeypatch.setattr(registry, "_known", dict(registry._known))


def numbers(own: dict[str, int]) -> Registry[int]:
    return Registry("number", "mildly.no-such-group", own, lambda thing: "" if type(thing) is int else "it is none")


def test_packages_are_asked_only_for_names_that_are_not_known() -> None:
    registry = numbers({"one": 1})
    assert registry["one"] == 1
    assert "one" in registry
    assert not registry.complete
    assert "two" not in registry
    assert registry.complete


def test_an_unknown_name_is_told_with_those_there_are() -> None:
    with pytest.raises(MildlyError, match=r"unknown number 'on'\. Did you mean 'one'\? Known: one, two"):
        numbers({"one": 1, "two": 2}).named("on")


def test_a_name_is_given_once_and_only_to_what_fits() -> None:
    registry = numbers({"one": 1})
    registry.add("one", 1)
    with pytest.raises(MildlyError, match="number 'one': there is one of this name already"):
        registry.add("one", 2)
    with pytest.raises(MildlyError, match="number 'two': it is none"):
        registry.add("two", "zwei")


class Cloning(BC):
    pass


class Current(Flow):
    pass


class Rudder(DeterministicActor):
    kind = "rudder"


def test_register_tells_algorithms_behavior_models_actors_and_formats_apart() -> None:
    recorder = SimpleNamespace(read=lambda path, options: None)
    for name, thing in {"cloning": Cloning, "current": Current, "rudder": Rudder, "REC": recorder}.items():
        mildly.register(name, thing)
    assert ALGORITHMS["cloning"] is Cloning
    assert BEHAVIOR_MODELS["current"] is Current
    assert ACTORS["rudder"] is Rudder
    assert FORMATS[".rec"] is recorder
    with pytest.raises(MildlyError, match=r"format '.thing': it has no function read\(path, options\)"):
        mildly.register("thing", 3)
    with pytest.raises(MildlyError, match=r"format '.csv': such files are read already"):
        mildly.register(".csv", recorder)


# What an algorithm prepares


class Knowing(BC):
    """Clones, and weighs each row by a number that it knows of it."""

    unknown = 3

    def prepare(self, data: Dataset) -> Mapping[str, Array]:
        weights = np.arange(len(data), dtype=np.float64)
        weights[: self.unknown] = np.nan
        return {"weights": weights}

    def update(self, batch: Batch) -> Metrics:
        metrics = super().update(batch)
        return metrics | {"weight": self.weigh(self.prepared["weights"][batch.rows]).mean()}

    def weigh(self, weights: Tensor) -> Tensor:
        return weights.nan_to_num(0.0)


class Careless(Knowing):
    def weigh(self, weights: Tensor) -> Tensor:
        return weights


class Hoarding(BC):
    def batches(self, dataset: Dataset) -> Sampler:
        sampler = super().batches(dataset)
        self.hoard = torch.full((len(dataset),), torch.nan)
        return sampler


def train(kind: type[BC], out: Path, **given: Any) -> Any:
    mildly.register(kind.__name__.lower(), kind)
    options = {"steps": 4, "log_every": 2, "checkpoint_every": 2, "check": False, "quiet": True, **tiny_fields(kind)}
    return mildly.train(kind.__name__.lower(), make_dataset(), out=out, **{**options, **given})


def test_what_an_algorithm_prepares_of_each_row_may_be_unknown_and_is_in_no_checkpoint(tmp_path: Path) -> None:
    run = train(Knowing, tmp_path / "run")
    assert not [name for name in checkpoint.load(run.checkpoint)[0] if "weights" in name and "actor" not in name]
    assert all(line["weight"] > 0 for line in run.metrics())


def test_a_row_is_found_by_its_number() -> None:
    learner = Knowing(Knowing.Config(**tiny_fields(Knowing)), 3, 2)
    batch = learner.batches(make_dataset()).sample(torch.Generator().manual_seed(0))
    expected = [0.0 if row < 3 else float(row) for row in batch.rows.tolist()]
    assert learner.weigh(learner.prepared["weights"][batch.rows]).tolist() == expected
    assert learner.prepared["weights"].dtype == torch.float32


def test_a_loss_that_takes_unknown_rows_as_they_are_is_told_by_its_cause(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"1\. what the algorithm prepares: 'weights' is not finite in 3 of 60 rows"):
        train(Careless, tmp_path / "run", batch_size=60)


def test_rows_that_would_pass_for_something_learned_are_refused_before_the_first_step(tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match=r"Hoarding\.hoard has a row for each of the data.*Return it from 'prepare'"):
        train(Hoarding, tmp_path / "run")
    assert not (tmp_path / "run").exists()


# The checks for authors


def test_a_sound_algorithm_passes_the_checks_for_authors(tmp_path: Path) -> None:
    mildly.register("knowing", Knowing)
    check_algorithm("knowing", tmp_path)


class Forgetful(BC):
    DERIVED = BC.DERIVED | {"bias"}

    def build(self, seed: int) -> None:
        super().build(seed)
        self.bias = torch.zeros(())

    def update(self, batch: Batch) -> Metrics:
        metrics = super().update(batch)
        self.bias = self.bias + 1
        with torch.no_grad():
            next(self.actor.parameters()).add_(1e-3 * self.bias)
        return metrics


class Leaky(BC):
    def update(self, batch: Batch) -> Metrics:
        return super().update(batch) | {"extra": next(self.actor.parameters()).sum()}


@pytest.mark.parametrize(
    ("kind", "fault"),
    [(Forgetful, "a learner with the state of another goes on otherwise"), (Leaky, "'extra' .* carries gradients")],
)
def test_the_checks_for_authors_find_what_is_wrong(kind: type[BC], fault: str, tmp_path: Path) -> None:
    mildly.register("faulty", kind)
    with pytest.raises(AssertionError, match=fault):
        check_algorithm("faulty", tmp_path)
