"""Phases before the main steps: what they leave, and that a run stopped in any of them goes on to the same bits."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import content, make_dataset, run_fields, train_args, train_tiny

import mildly
from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import field_types
from mildly.cli import main
from mildly.data.dataset import FIELDS as FIELDS_OF_DATA, Dataset, Meta
from mildly.errors import MildlyError, Stopped
from mildly.run import Run
from mildly.training import checkpoint
from mildly.training.offline import resume
from mildly.training.trainer import Diverged, Trainer

BEHAVIOR, WARM_UP = "behavior model", "bc warm-up"
FIELDS: dict[str, Any] = {
    "behavior.steps": 40,
    "extras.bc_warmup_steps": 45,
    "extras.level_start": True,
    "extras.return_mix": 0.1,
    "extras.policy_ema": 0.05,
    "normalize_observations": True,
    "steps": 100,
}
"""Of both phases and the main steps; with a line of metrics every 5 steps these are lines 1-8, 9-17 and 18-37."""


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_tiny("mcq", tmp_path_factory.mktemp("whole") / "run", **FIELDS)


@pytest.fixture(scope="module")
def whole(finished: Run) -> dict[str, Any]:
    """The content of an uninterrupted run with both phases."""
    return content(finished.path)


def facts_of(run: Path) -> dict[str, Any]:
    return checkpoint.load(run / "checkpoint.safetensors")[1]


def place_of(run: Path) -> tuple[str, int]:
    facts = facts_of(run)
    return facts["phase"], facts["phase_step"]


@pytest.fixture
def interrupt(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sends this process a signal after a step of a phase, or with an empty name of the main ones; but only once."""
    one_step, sent = Trainer._one_step, list[int]()

    def at(phase: str, step: int, number: int = signal.SIGINT) -> None:
        def signaled(self: Trainer) -> None:
            one_step(self)
            if (self.phase.name, self.step) == (phase, step) and not sent:
                sent.append(number)
                os.kill(os.getpid(), number)

        monkeypatch.setattr(Trainer, "_one_step", signaled)

    return at


# What phases leave


@pytest.mark.parametrize(("steps", "told"), [(50, True), (20_000, False)])
def test_a_phase_longer_than_the_main_steps_is_told_only_where_these_are_fewer_than_the_preset_s(
    tmp_path: Path, interrupt: Callable[..., None], capsys: pytest.CaptureFixture[str], steps: int, told: bool
) -> None:
    interrupt(BEHAVIOR, 1)
    phase = {"behavior.steps": 30_000}
    assert main(train_args("mcq", tmp_path / "run", preset="small", steps=steps, **phase)) == 130
    words = f"the phase '{BEHAVIOR}' has 30,000 steps, more than the {steps:,} that follow (--behavior.steps)"
    assert (words in capsys.readouterr().err.splitlines()) == told


def test_phases_have_lines_and_steps_of_their_own(finished: Run) -> None:
    assert [line["step"] for line in finished.metrics(BEHAVIOR)] == list(range(5, 41, 5))
    assert [line["step"] for line in finished.metrics(WARM_UP)] == list(range(5, 46, 5))
    assert [line["step"] for line in finished.metrics()] == list(range(5, 101, 5))
    assert all(line.keys() == {"phase", "step", "loss_behavior"} for line in finished.metrics(BEHAVIOR))
    assert all("loss_bc" in line and "loss_td" in line for line in finished.metrics(WARM_UP))
    assert all("loss_actor" in line and not line.keys() & {"phase", "loss_bc"} for line in finished.metrics())
    assert all("loss_behavior" not in line for line in [*finished.metrics(WARM_UP), *finished.metrics()])


def test_lines_of_phases_are_means_over_their_own_steps(tmp_path: Path) -> None:
    """A phase's last line is written although it is not due, so that nothing of it reaches the next one's first."""
    short = {"behavior.steps": 12, "extras.bc_warmup_steps": 8, "steps": 7, "eval_every": 0}
    every = train_tiny("mcq", tmp_path / "every", log_every=1, **short)
    run = train_tiny("mcq", tmp_path / "run", log_every=5, **short)
    for phase, ends in ((BEHAVIOR, (5, 10, 12)), (WARM_UP, (5, 8)), (None, (5, 7))):
        lines, begin = run.metrics(phase), 0
        assert [line["step"] for line in lines] == list(ends)
        for line, end in zip(lines, ends, strict=True):
            single = every.metrics(phase)[begin:end]
            for name in line.keys() - {"step", "phase"}:
                mean = np.mean([step[name] for step in single])
                assert line[name] == pytest.approx(mean, rel=1e-5, abs=1e-6), (phase, end, name)
            begin = end


def test_phases_are_not_main_steps(finished: Run) -> None:
    facts = facts_of(finished.path)
    assert (facts["step"], facts["phase"], facts["phase_step"]) == (100, "", 100)
    tensors, _ = checkpoint.load(finished.path / "checkpoint.safetensors")
    assert tensors["algorithm.behavior.updates"].item() == 40
    assert tensors["algorithm.extras.steps"].item() == 100
    assert [line["step"] for line in finished.evaluations()] == [50, 100]


def test_the_cost_of_phases_is_counted_apart(finished: Run) -> None:
    seconds = finished.timing()
    assert seconds.keys() == {"phases", "data", "update", "bookkeeping", "evaluation", "checkpoint"}
    assert all(spent > 0 for spent in seconds.values())


def test_a_run_without_phases_has_none(tmp_path: Path) -> None:
    run = train_tiny("mcq", tmp_path / "run", steps=10, eval_every=0)
    assert run.metrics(BEHAVIOR) == run.metrics(WARM_UP) == []
    assert all("loss_behavior" in line for line in run.metrics())
    assert "phases" not in run.timing()
    assert place_of(run.path) == ("", 10)


@pytest.mark.parametrize(("phase", "step"), [(BEHAVIOR, 40), (WARM_UP, 45)])
def test_a_run_stopped_in_a_phase_has_no_policy_yet(
    tmp_path: Path, interrupt: Callable[..., None], phase: str, step: int
) -> None:
    interrupt(phase, step)
    with pytest.raises(Stopped):
        train_tiny("mcq", tmp_path / "run", **FIELDS)
    assert place_of(tmp_path / "run") == (phase, step)
    assert facts_of(tmp_path / "run")["step"] == 0
    assert not (tmp_path / "run" / "policy").exists()
    with pytest.raises(MildlyError, match="no policy yet: its main steps have not begun"):
        mildly.evaluate(tmp_path / "run")
    resume(tmp_path / "run")
    assert mildly.load_policy(tmp_path / "run").normalizer is not None


def test_progress_names_the_phases(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_tiny("mcq", tmp_path / "run", **FIELDS)
    *lines, last = capsys.readouterr().err.splitlines()
    if lines[-1].startswith("the log's own episodes"):
        lines.pop()
    said = [line.split("  ")[:2] for line in lines[1:]]
    name = "mcq on pendulum-mixed"
    assert said == [
        [f"steps: 40 of {BEHAVIOR}, 45 of {WARM_UP}, then 100 of mcq itself"],
        [f"{name}, {BEHAVIOR}: 40 steps first"],
        [f"{name}, {BEHAVIOR}", "40/40"],
        [f"{name}, {WARM_UP}: 45 steps first"],
        [f"{name}, {WARM_UP}", "45/45"],
        [name, "50/100"],
        [name, "100/100"],
    ]
    assert last.startswith(("the log's own episodes", "this policy earns less than the log did"))


# Killed, interrupted, prolonged


def killed_at_line(args: list[str], number: int, cwd: Path) -> int:
    """The exit code of a command that kills itself as soon as it has written so many lines of metrics."""
    driver = f"""
import os, signal, sys
from mildly.cli import main
from mildly.data.dataset import FIELDS as FIELDS_OF_DATA, Dataset, Meta
from mildly.run import Run

append, lines = Run.append, 0

def append_or_die(run, name, line):
    global lines
    append(run, name, line)
    lines += name == "metrics.jsonl"
    if lines == {number}:
        os.kill(os.getpid(), signal.SIGKILL)

Run.append = append_or_die
raise SystemExit(main(sys.argv[1:]))
"""
    return subprocess.run([sys.executable, "-c", driver, *args], cwd=cwd, timeout=120).returncode


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        (8, (BEHAVIOR, 20)),  # its last line, but the phase's end is not saved yet
        (9, (BEHAVIOR, 40)),
        (14, (WARM_UP, 20)),
        (19, (WARM_UP, 45)),
        (23, ("", 20)),
    ],
)
def test_killed_in_a_phase_and_resumed_equals_uninterrupted_run(
    tmp_path: Path, whole: Any, line: int, kept: tuple[str, int]
) -> None:
    run = tmp_path / "run"
    assert killed_at_line(train_args("mcq", run, **FIELDS), line, tmp_path) == -signal.SIGKILL
    assert (run / "metrics.jsonl").read_bytes().count(b"\n") == line
    assert place_of(run) == kept
    assert (run / "policy").exists() == (kept[0] == "")
    resume(run)
    assert content(run) == whole
    assert not list(run.rglob("*.tmp"))


def test_killed_once_in_every_phase_and_resumed_by_the_command_equals_uninterrupted_run(
    tmp_path: Path, whole: Any
) -> None:
    run = tmp_path / "run"
    again = ["train", "--resume", str(run)]
    assert killed_at_line(train_args("mcq", run, **FIELDS), 6, tmp_path) == -signal.SIGKILL
    assert killed_at_line(again, 8, tmp_path) == -signal.SIGKILL  # after the four lines left of the first phase
    assert place_of(run) == (BEHAVIOR, 40)
    assert killed_at_line(again, 16, tmp_path) == -signal.SIGKILL  # after the nine of the second
    assert place_of(run) == ("", 20)
    assert main(again) == 0
    assert content(run) == whole


@pytest.mark.parametrize(
    ("phase", "step", "steps", "number", "code"),
    [
        (BEHAVIOR, 23, 40, signal.SIGINT, 130),
        (BEHAVIOR, 40, 40, signal.SIGINT, 130),
        (WARM_UP, 1, 45, signal.SIGINT, 130),
        (WARM_UP, 33, 45, signal.SIGTERM, 143),
        ("", 1, 100, signal.SIGINT, 130),
    ],
)
def test_interrupted_in_a_phase_says_where_and_resumed_equals_uninterrupted_run(
    tmp_path: Path,
    whole: Any,
    interrupt: Callable[..., None],
    capsys: pytest.CaptureFixture[str],
    phase: str,
    step: int,
    steps: int,
    number: int,
    code: int,
) -> None:
    """Steps 23, 1 and 33 lie between two lines, where sums are part of the state."""
    run = tmp_path / "my run"
    interrupt(phase, step, number)
    assert main(train_args("mcq", run, **FIELDS)) == code
    *_, last = capsys.readouterr().err.splitlines()
    where = f" of the phase '{phase}'" if phase else ""
    told = f"stopped at step {step} of {steps}{where}; a checkpoint is written."
    assert last == f"{told} Resume with: mildly train --resume {shlex.quote(str(run))}"
    assert place_of(run) == (phase, step)
    tensors, _ = checkpoint.load(run / "checkpoint.safetensors")
    assert any(name.startswith("sums.") for name in tensors) == (step % 5 > 0)
    assert main(["train", "--resume", str(run)]) == 0
    begun = f"mcq on pendulum-mixed, {phase}: {steps} steps first"
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith(begun)]
    assert said == ([f"{begun}, from step {step}"] if phase and step < steps else [])
    assert content(run) == whole


WITH_WARM_UP = [name for name, kind in ALGORITHMS.items() if "extras.bc_warmup_steps" in field_types(kind.Config)]


@pytest.mark.parametrize("algorithm", sorted(WITH_WARM_UP))
def test_every_warm_up_resumed_equals_uninterrupted_run(
    tmp_path: Path, interrupt: Callable[..., None], algorithm: str
) -> None:
    """Stopped between two lines of the log, before any checkpoint of the phase."""
    fields = {**run_fields(algorithm), "extras.bc_warmup_steps": 30, "extras.policy_ema": 0.05, "steps": 30}
    alone = train_tiny(algorithm, tmp_path / "alone", **fields)
    assert [line["step"] for line in alone.metrics(WARM_UP)] == [5, 10, 15, 20, 25, 30]
    interrupt(WARM_UP, 13)
    with pytest.raises(Stopped, match=f"step 13 of 30 of the phase '{WARM_UP}'"):
        train_tiny(algorithm, tmp_path / "run", **fields)
    resume(tmp_path / "run")
    assert content(tmp_path / "run") == content(alone.path)


def test_prolonging_a_complete_run_repeats_no_phase(tmp_path: Path, whole: Any) -> None:
    run = train_tiny("mcq", tmp_path / "run", **{**FIELDS, "steps": 50})
    phases = [run.metrics(BEHAVIOR), run.metrics(WARM_UP)]
    before = (run.path / "metrics.jsonl").read_bytes()
    seconds = run.timing()["phases"]
    assert main(["train", "--resume", str(run.path), "--steps", "100"]) == 0
    assert [run.metrics(BEHAVIOR), run.metrics(WARM_UP)] == phases
    assert (run.path / "metrics.jsonl").read_bytes().startswith(before)
    assert run.timing()["phases"] == seconds
    assert content(run.path) == whole


def test_a_run_stopped_in_a_phase_can_be_prolonged(tmp_path: Path, whole: Any, interrupt: Callable[..., None]) -> None:
    interrupt(WARM_UP, 7)
    with pytest.raises(Stopped):
        train_tiny("mcq", tmp_path / "run", **{**FIELDS, "steps": 50})
    resume(tmp_path / "run", steps=100)
    assert content(tmp_path / "run") == whole


def test_checkpoint_of_a_phase_that_the_config_does_not_have_is_refused(
    tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    plain = train_tiny("mcq", tmp_path / "plain", steps=10, eval_every=0).path
    interrupt(BEHAVIOR, 7)
    with pytest.raises(Stopped):
        train_tiny("mcq", tmp_path / "run", **{"behavior.steps": 20, "eval_every": 0})
    (tmp_path / "run" / "checkpoint.safetensors").rename(plain / "checkpoint.safetensors")
    with pytest.raises(MildlyError, match=rf"checkpoint\.safetensors: does not fit the run's config .*{BEHAVIOR}"):
        resume(plain)


# Divergence


def test_divergence_of_the_behavior_model_is_told_with_its_phase(tmp_path: Path) -> None:
    """The first step's loss is finite, but not the weights it leads to."""
    every = {"log_every": 1, "checkpoint_every": 1}
    words = rf"behavior\.model\..* not finite after step 1 of the phase '{BEHAVIOR}'\. No checkpoint was written yet"
    with pytest.raises(Diverged, match=words):
        train_tiny("mcq", tmp_path / "run", **{**FIELDS, **every, "behavior.lr": 1e39})
    assert [line["step"] for line in Run(tmp_path / "run").metrics(BEHAVIOR)] == [1]
    assert not (tmp_path / "run" / "checkpoint.safetensors").exists()


def test_divergence_in_the_warm_up_is_told_with_its_phase_and_keeps_the_checkpoint_before(tmp_path: Path) -> None:
    words = rf"loss_bc.* not finite for the first time at step 2 of the phase '{WARM_UP}'\. The last good checkpoint"
    with pytest.raises(Diverged, match=words):
        train_tiny("mcq", tmp_path / "run", **{**FIELDS, "actor_lr": 1e38})
    assert place_of(tmp_path / "run") == (BEHAVIOR, 40)
    assert Run(tmp_path / "run").metrics(WARM_UP) == []


def test_divergence_in_the_main_steps_names_no_phase(tmp_path: Path) -> None:
    with pytest.raises(Diverged, match=r"not finite for the first time at step \d\. ") as caught:
        train_tiny("mcq", tmp_path / "run", **{"behavior.steps": 20, "critic_lr": 1e38, "eval_every": 0})
    assert "phase" not in str(caught.value)


# A phase that ends when nothing improves

MODEL = "dynamics model"
MOPO: dict[str, Any] = {
    "dynamics.max_steps": 400,
    "dynamics.patience": 1,
    "dynamics.batch_size": 64,
    "rollout_every": 20,
    "steps": 40,
    "eval_every": 40,
    "normalize_observations": True,
}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Data in which nothing follows from anything, so that a model soon gets no better."""
    data = make_dataset(600, env_id="Pendulum-v1")
    arrays = {name: getattr(data, name) for name in FIELDS_OF_DATA} | {"actions": data.actions[:, :1]}
    made = Dataset.from_arrays(**arrays, meta=Meta("noise", env_id="Pendulum-v1"))
    return str(made.save(tmp_path_factory.mktemp("noise") / "set"))


@pytest.fixture(scope="module")
def modeled(noise: str, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_tiny("mopo", tmp_path_factory.mktemp("modeled") / "run", dataset=noise, check=False, **MOPO)


def test_a_phase_may_end_before_its_steps_and_logs_and_saves_its_last(modeled: Run) -> None:
    ended = modeled.metrics(MODEL)[-1]["step"]
    assert 0 < ended < 400
    assert ended % 8 == 0  # epochs: 480 rows are learned from, 64 in a step
    assert checkpoint.load(modeled.checkpoint)[0]["algorithm.dynamics.updates"].item() == ended
    assert [line["step"] for line in modeled.metrics()][-1] == 40
    assert (modeled.path / "dynamics" / "weights.safetensors").is_file()


@pytest.mark.parametrize(("phase", "step"), [(MODEL, 5), (MODEL, 8), (MODEL, 13), ("", 1), ("", 33)])
def test_a_run_stopped_while_the_model_is_fitted_or_used_goes_on_to_the_same_bits(
    phase: str, step: int, modeled: Run, noise: str, tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    interrupt(phase, step)
    with pytest.raises(Stopped, match=f"stopped at step {step} of"):
        train_tiny("mopo", tmp_path / "run", dataset=noise, check=False, **MOPO)
    assert place_of(tmp_path / "run") == (phase, step)
    resume(tmp_path / "run")
    assert content(tmp_path / "run") == content(modeled.path)
    for name in ("weights.safetensors", "dynamics.json"):
        assert (tmp_path / "run/dynamics" / name).read_bytes() == (modeled.path / "dynamics" / name).read_bytes()


def test_a_run_killed_just_when_the_phase_had_ended_goes_on_with_the_main_steps(
    modeled: Run, noise: str, tmp_path: Path, interrupt: Callable[..., None]
) -> None:
    ended = modeled.metrics(MODEL)[-1]["step"]
    interrupt(MODEL, ended)
    with pytest.raises(Stopped):
        train_tiny("mopo", tmp_path / "run", dataset=noise, check=False, **MOPO)
    resume(tmp_path / "run")
    assert content(tmp_path / "run") == content(modeled.path)
