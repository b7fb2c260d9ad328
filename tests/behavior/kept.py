"""What the tests of kept actions share: data as they are logged, and runs that are killed and resumed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import ACTIONS, OBSERVATIONS, train_tiny

from mildly.data.dataset import Dataset, Meta
from mildly.training.offline import resume
from mildly.training.trainer import Trainer


def chained_dataset(lengths: tuple[int, ...] = (4, 1, 5), seed: int = 0) -> Dataset:
    """Episodes as they are logged: a successor is the next row's observation, but for the last of each episode."""
    random = np.random.default_rng(seed)
    rows, ends = sum(lengths), np.cumsum(lengths) - 1
    observations = random.normal(1.0, 2.0, (rows, OBSERVATIONS)).astype(np.float32)
    following = np.roll(observations, -1, axis=0)
    following[ends] = random.normal(1.0, 2.0, (len(ends), OBSERVATIONS))
    truncated = np.isin(np.arange(rows), ends)
    actions, rewards = random.uniform(-1, 1, (rows, ACTIONS)), random.normal(size=rows)
    flags = np.zeros(rows, bool), truncated
    return Dataset.from_arrays(observations, actions, rewards, following, *flags, meta=Meta("chained"))


class Killed(Exception):
    """The run ends here."""


def interrupted(algorithm: str, run: Path, points: tuple[int, ...], monkeypatch: Any, **fields: Any) -> None:
    """A run that is killed in the step after each of these, and resumed each time from its last checkpoint.

    Steps are counted over all phases.
    """
    monkeypatch.setattr(os, "fsync", lambda file: None)  # which takes most of the time of so many checkpoints
    one_step = Trainer._one_step
    for number, point in enumerate(points):

        def until(trainer: Trainer, point: int = point) -> None:
            if sum(phase.steps for phase in trainer.phases[: trainer.current]) + trainer.step == point:
                raise Killed
            one_step(trainer)

        monkeypatch.setattr(Trainer, "_one_step", until)
        with pytest.raises(Killed):
            resume(run) if number else train_tiny(algorithm, run, **fields)
    monkeypatch.setattr(Trainer, "_one_step", one_step)
    resume(run)
