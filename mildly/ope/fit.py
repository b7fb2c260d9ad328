"""Fitting what an estimate needs, a critic or a density, with the one trainer: in a folder, resumable to the bit."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mildly.algorithms.base import Algorithm, Phase
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError, Stopped
from mildly.evaluation.rollout import Evaluation
from mildly.files import read_own_json, write_json
from mildly.run import Run
from mildly.training.progress import clock
from mildly.training.signals import stop_requests
from mildly.training.trainer import SampledSource, Schedule, Trainer

_FACTS = "fit.json"
_LINES = 100  # of the log of a fit
_CHECKPOINTS = 10
_SECONDS = 15.0  # between two words on progress

Say = Callable[[str], None]
"""Tells a person where the work stands."""


def fit(
    algorithm: Algorithm, data: Dataset, folder: Path, facts: Mapping[str, Any], *, steps: int, seed: int, say: Say
) -> list[dict[str, Any]]:
    """Train for a number of steps, or go on with what stands in the folder; the lines of its log.

    Args:
        algorithm: what learns.
        data: what from.
        folder: where it is written down.
        facts: what must be the same in a fit that is gone on with.
        steps: gradient steps.
        seed: of the batches.
        say: hears of progress.
    """
    run = Run(folder)
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, {**facts, "steps": steps, "seed": seed, "data": data.meta.fingerprint})
    sampler = algorithm.batches(data)
    source = SampledSource(sampler, algorithm.random_stream(seed, "batches"))
    schedule = Schedule(steps, max(1, steps // _LINES), 0, max(1, steps // _CHECKPOINTS))
    trainer = Trainer(run, algorithm, source, schedule)
    with run.locked(), stop_requests() as stop:
        run.check_own()
        trainer.restore()
        if not trainer.complete:  # a fit may end before its steps
            trainer.train(_Progress(folder.name, steps, say), stop)
    if stop:
        raise Stopped(f"stopped at step {trainer.step:,} of {steps:,} of {folder}; a checkpoint is written.", stop[0])
    return run.metrics()


def _claim(folder: Path, facts: dict[str, Any]) -> None:
    """Write down what is fitted here, or refuse a folder in which something else is."""
    path = folder / _FACTS
    if not path.exists():
        write_json(path, facts)
        return
    known = read_own_json(path)
    other = sorted(name for name in known | facts if known.get(name) != facts.get(name))
    if other:
        raise MildlyError(
            f"{folder}: was begun with other settings ({', '.join(other)}). Choose another --out, or remove the folder."
        )


class _Progress:
    """A line now and then."""

    def __init__(self, name: str, steps: int, say: Say) -> None:
        self.name, self.steps, self.say, self.said = name, steps, say, time.monotonic()
        self.first, self.began = 0, self.said

    def begin(self, phase: Phase, step: int) -> None:
        self.first, self.began = step, time.monotonic()
        if step < phase.steps:
            self.say(f"{self.name}: {phase.steps:,} steps" + (f", from step {step:,}" if step else ""))

    def tick(self, step: int) -> None:
        now = time.monotonic()
        if now - self.said > _SECONDS:
            self.said = now
            left = (self.steps - step) * (now - self.began) / max(step - self.first, 1)
            self.say(f"{self.name}: step {step:,} of {self.steps:,}, {clock(left)} left")

    def metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        pass

    def evaluated(self, step: int, result: Evaluation) -> None:
        pass
