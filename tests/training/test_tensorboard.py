"""Event files: the same numbers as the plain lines, and none twice after a resume."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from conftest import train_tiny

from mildly.errors import MildlyError
from mildly.run import Run
from mildly.training import checkpoint
from mildly.training.offline import resume
from mildly.training.trainer import Trainer

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def scalars(run: Path, tag: str, folder: str = ".") -> list[tuple[int, float]]:
    events = accumulator.EventAccumulator(str(run / "tensorboard" / folder), size_guidance={"scalars": 0})
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


PHASES = {"behavior.steps": 60, "extras.bc_warmup_steps": 30, "eval_every": 0, "tensorboard": True}


def check_phases(run: Run) -> None:
    """Every line of the log is there once, those of phases in folders of their own."""
    for phase, folder, name in (
        ("behavior model", "behavior-model", "loss_behavior"),
        ("bc warm-up", "bc-warm-up", "loss_bc"),
        (None, ".", "loss_actor"),
    ):
        lines = [(line["step"], pytest.approx(line[name], rel=1e-5)) for line in run.metrics(phase)]
        assert scalars(run.path, f"train/{name}", folder) == lines
        assert len(lines) > 3


def test_phases_have_event_files_of_their_own_and_keep_them_when_the_run_is_prolonged(tmp_path: Path) -> None:
    """The step 25, from which the run goes on, is below the phases' last ones."""
    run = train_tiny("mcq", tmp_path / "run", steps=25, **PHASES)
    check_phases(run)
    resume(run.path, steps=50)
    check_phases(run)


@pytest.mark.parametrize(
    ("phase", "step", "kept"),
    [("behavior model", 45, 40), ("bc warm-up", 15, 60), ("bc warm-up", 25, 20), ("", 15, 30), ("", 25, 20)],
)
def test_what_a_run_wrote_after_its_checkpoint_is_hidden_in_every_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, phase: str, step: int, kept: int
) -> None:
    """It dies when the line of a step is written, and goes on from the checkpoint before."""

    class Died(Exception):
        pass

    def dies(self: Trainer, *args: object) -> None:
        log(self, *args)  # type: ignore[arg-type]
        if (self.phase.name, self.step) == (phase, step):
            raise Died

    log = Trainer._log
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "_log", dies)
        with pytest.raises(Died):
            train_tiny("mcq", tmp_path / "run", steps=40, **PHASES)
    time.sleep(1 - time.time() % 1)  # event files of one process are in order from second to second only
    assert checkpoint.load(tmp_path / "run" / "checkpoint.safetensors")[1]["phase_step"] == kept
    check_phases(resume(tmp_path / "run"))


def test_without_the_option_there_are_none(tmp_path: Path) -> None:
    assert not (train_tiny("bc", tmp_path / "run", steps=20).path / "tensorboard").exists()


def test_without_the_package_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MildlyError, match=r"mildly\[tensorboard\]"):
        train_tiny("bc", tmp_path / "run", steps=20, tensorboard=True)
    assert not (tmp_path / "run").exists()
