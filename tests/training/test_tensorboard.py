"""Event files: the same numbers as the plain lines, and none twice after a resume."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from conftest import train_tiny

from mildly.errors import MildlyError
from mildly.training.loop import resume

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(run: Path, tag: str) -> list[tuple[int, float]]:
    events = accumulator.EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def test_event_files_hold_the_metrics_and_the_returns(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=100, tensorboard=True)
    loss = [(line["step"], pytest.approx(line["loss_actor"], rel=1e-5)) for line in run.metrics()]
    assert scalars(run.path, "train/loss_actor") == loss
    returns = [(line["step"], pytest.approx(line["mean_return"], rel=1e-5)) for line in run.evaluations()]
    assert scalars(run.path, "evaluation/return") == returns


def test_a_prolonged_run_has_each_step_once(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=40, tensorboard=True)
    resume(run.path, steps=80)
    steps = [step for step, _ in scalars(run.path, "train/loss_actor")]
    assert steps == [line["step"] for line in run.metrics()]


def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    assert not (train_tiny("bc", tmp_path / "run", steps=20).path / "tensorboard").exists()


def test_without_the_package_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MildlyError, match=r"mildly\[tensorboard\]"):
        train_tiny("bc", tmp_path / "run", steps=20, tensorboard=True)
    assert not (tmp_path / "run").exists()
