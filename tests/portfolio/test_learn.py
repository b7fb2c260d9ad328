"""How a candidate's training is asked for."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from conftest import make_dataset

from mildly.algorithms.config import check_fields, field_types
from mildly.algorithms.mcq import MCQ
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError
from mildly.experiments import local
from mildly.portfolio import learn
from mildly.portfolio.folder import Request
from mildly.portfolio.learn import task_of, train_all

REQUEST = Request("log", {}, "log", "", False, 10.0, 3, 0.2, 0.9, "episode", 5, None, [])


@pytest.mark.parametrize(("warm_up", "steps"), [(100, (400, 800, 100)), (0, (1, 1, 1))])
def test_the_phases_of_mcq_are_as_short_as_its_plan(warm_up: int, steps: tuple[int, ...]) -> None:
    options = task_of("mcq", Path("run"), REQUEST, "log", 1_000, warm_up).options
    phases = ("behavior.steps", "extras.bc_steps", "extras.bc_warmup_steps")
    assert tuple(options[phase] for phase in phases) == steps
    fields = {name: value for name, value in options.items() if name in field_types(MCQ.Config)}
    assert set(phases) | {"gamma"} == set(fields)
    check_fields(MCQ, "default", fields)


@pytest.mark.parametrize(("name", "discounts"), [("clone", False), ("iql", True)])
def test_other_candidates_have_no_phases(name: str, discounts: bool) -> None:
    options = task_of(name, Path("run"), REQUEST, "log", 1_000, 100).options
    assert options == {"holdout": 0.2, "eval_every": 0} | ({"gamma": 0.9} if discounts else {})


class Killed:
    """Stands for a process that the system has killed, such as for want of memory."""

    stdin = None

    def poll(self) -> int:
        return -9


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    """Rewards on which critics diverge; and every process of a training is killed."""
    monkeypatch.setattr(local, "start", lambda task: Killed())
    data = make_dataset(rows=200)
    return dataclasses.replace(data, rewards=np.asarray(data.rewards) * np.float32(1e25))


def test_a_process_that_was_killed_drops_no_candidate_and_one_that_diverged_is_dropped(
    log: Dataset, tmp_path: Path
) -> None:
    told = {}
    for workers in (1, 2):
        place = tmp_path / str(workers)
        tasks = [task_of(name, place / name, REQUEST, "log", 4, 1) for name in ("clone", "td3-bc")]
        told[workers] = {name: why.replace(str(place), "") for name, why in train_all(tasks, log, workers).items()}
    assert told[2] == told[1]
    assert set(told[1]) == {"td3-bc"}
    assert told[1]["td3-bc"].startswith("training diverged: ")
    first, second = (tmp_path / place / "clone/policy/weights.safetensors" for place in ("1", "2"))
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("workers", [1, 2])
def test_what_fails_otherwise_is_an_error_and_no_divergence(
    log: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    def full(*args: object, **options: object) -> None:
        raise MildlyError("no space left")

    monkeypatch.setattr(learn, "train_task", full)
    tasks = [task_of(name, tmp_path / name, REQUEST, "log", 4, 1) for name in ("clone", "td3-bc")]
    with pytest.raises(MildlyError, match="no space left"):
        train_all(tasks, log, workers)
