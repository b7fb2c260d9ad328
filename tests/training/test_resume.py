"""A run that was killed, interrupted or prolonged ends with the bits of one that was left alone."""

from __future__ import annotations

import errno
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import (
    COMMAND,
    SCHEDULE,
    content,
    left_by,
    make_dataset,
    mildly,
    run_fields,
    train_args,
    train_tiny,
    unsealed,
)

from mildly.algorithms import ALGORITHMS
from mildly.cli import main
from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.training import checkpoint
from mildly.training.offline import resume
from mildly.training.signals import stop_requests


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The content of an uninterrupted MCQ run."""
    return content(train_tiny("mcq", tmp_path_factory.mktemp("whole") / "run").path)


def lines(run: Path) -> int:
    path = run / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0


def end_at(args: list[str], run: Path, number: int, signal_number: int, cwd: Path) -> tuple[int, str]:
    """Start the command and send it a signal once the log has so many lines; its exit code and messages."""
    heed = None  # tests under nohup, or in the background, inherit that signals are ignored
    if signal_number != signal.SIGKILL:
        heed = functools.partial(signal.signal, signal_number, signal.SIG_DFL)
    command = [*COMMAND, *args]
    with subprocess.Popen(command, cwd=cwd, stderr=subprocess.PIPE, text=True, preexec_fn=heed) as process:
        deadline = time.monotonic() + 60
        while lines(run) < number:
            assert process.poll() is None, "the run ended before it could be killed"
            assert time.monotonic() < deadline
            time.sleep(0.001)
        process.send_signal(signal_number)
        message = process.communicate(timeout=60)[1]
    return process.returncode, message


def step_of(run: Path) -> int:
    return int(checkpoint.load(run / "checkpoint.safetensors")[1]["step"])


@pytest.mark.parametrize("killed_at_line", [7, 22])
def test_killed_and_resumed_run_equals_uninterrupted_run(tmp_path: Path, whole: Any, killed_at_line: int) -> None:
    run = tmp_path / "run"
    assert end_at(train_args("mcq", run), run, killed_at_line, signal.SIGKILL, tmp_path)[0] == -signal.SIGKILL
    assert 0 < step_of(run) < SCHEDULE["steps"]
    resume(run)
    assert content(run) == whole
    assert not list(run.rglob(".tmp-*"))


def test_run_killed_again_and_again_and_resumed_by_the_command_equals_uninterrupted_run(
    tmp_path: Path, whole: Any
) -> None:
    run = tmp_path / "run"
    end_at(train_args("mcq", run), run, 6, signal.SIGKILL, tmp_path)
    code, _ = end_at(["train", "--resume", str(run)], run, 15, signal.SIGKILL, tmp_path)
    assert code == -signal.SIGKILL
    ended = mildly("train", "--resume", str(run), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert content(run) == whole


def test_run_killed_before_its_first_checkpoint_starts_over_and_equals_uninterrupted_run(
    tmp_path: Path, whole: Any
) -> None:
    run = tmp_path / "run"
    end_at(train_args("mcq", run, checkpoint_every=1000), run, 9, signal.SIGKILL, tmp_path)
    assert not (run / "checkpoint.safetensors").exists()
    assert lines(run) >= 9
    resume(run)
    assert content(run) == whole


@pytest.mark.parametrize("moment", ["writing", "atomic_write"])
def test_run_killed_in_the_middle_of_saving_a_checkpoint_keeps_the_one_before(
    tmp_path: Path, whole: Any, moment: str
) -> None:
    """The third checkpoint's file is half written, or written whole but not yet in its place."""
    run = tmp_path / "run"
    driver = f"""
import os, signal, sys
from pathlib import Path
from mildly.cli import main

write, replace, count = Path.write_bytes, os.replace, 0

def write_half_of_the_third(path, content):
    global count
    if path.name.endswith("checkpoint.safetensors"):
        count += 1
        if count == 3:
            write(path, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
    return write(path, content)

def replace_but_the_third(source, target):
    global count
    if os.fspath(target).endswith("checkpoint.safetensors"):
        count += 1
        if count == 3:
            os.kill(os.getpid(), signal.SIGKILL)
    replace(source, target)

if {moment == "writing"}:
    Path.write_bytes = write_half_of_the_third
else:
    os.replace = replace_but_the_third
main(sys.argv[1:])
"""
    killed = subprocess.run([sys.executable, "-c", driver, *train_args("mcq", run)], cwd=tmp_path, timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert list(run.glob(".tmp-*-checkpoint.safetensors"))
    assert step_of(run) == 2 * SCHEDULE["checkpoint_every"]
    resume(run)
    assert content(run) == whole
    assert not list(run.rglob(".tmp-*"))


def test_resume_forgets_lines_after_the_checkpoint_and_a_line_cut_short(tmp_path: Path, whole: Any) -> None:
    """What a crash may leave, put together by hand from a run that stopped at step 100."""
    run = train_tiny("mcq", tmp_path / "run", steps=100).path
    kept = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(f'{kept}{{"step": 105, "loss_td": 1.0}}\n{{"step": 110, "loss_')
    with (run / "evaluations.jsonl").open("a") as file:
        file.write('{"step": 150, "returns": [0.0]}\n{"st')
    half = (run / "checkpoint.safetensors").read_bytes()[:1000]
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for path in (run / "checkpoint.safetensors", run / "policy" / "weights.safetensors"):
        left_by(dead.pid, path).write_bytes(half)
    resume(run, steps=300)
    assert content(run) == whole
    assert not list(run.rglob(".tmp-*"))


@pytest.mark.parametrize(
    ("algorithm", "fields"),
    [
        *((name, {}) for name in sorted(ALGORITHMS)),
        ("cql", {"gradient_actions": 2}),
        ("iql", {"extras.level_start": True}),
    ],
)
def test_every_algorithm_resumed_equals_uninterrupted_run(
    tmp_path: Path, algorithm: str, fields: dict[str, Any]
) -> None:
    """Stopped at step 100, with scaled observations."""
    alone = train_tiny(algorithm, tmp_path / "alone", normalize_observations=True, **fields).path
    run = train_tiny(algorithm, tmp_path / "run", normalize_observations=True, steps=100, **fields).path
    assert content(run) != content(alone)
    resume(run, steps=300)
    assert content(run) == content(alone)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR1, 138)]
)
def test_interrupted_run_says_how_to_resume_and_resumed_equals_uninterrupted_run(
    tmp_path: Path, number: int, code: int
) -> None:
    """A log line takes 37 steps, so that the stop falls between two lines and the sums are part of the state."""
    schedule = {"log_every": 37, "checkpoint_every": 1000}
    alone = train_tiny("mcq", tmp_path / "alone", **schedule).path
    run = tmp_path / "my run"
    got, message = end_at(train_args("mcq", run, **schedule), run, 1, number, tmp_path)
    assert got == code
    assert f"mildly train --resume '{run}'" in message
    assert "Traceback" not in message
    tensors, facts = checkpoint.load(run / "checkpoint.safetensors")
    assert f"stopped at step {facts['step']} of 300" in message
    assert any(name.startswith("sums.") for name in tensors) == (facts["step"] % 37 > 0)
    resume(run)
    assert content(run) == content(alone)


def test_a_hang_up_asks_a_run_to_stop_but_not_under_nohup() -> None:
    before = signal.getsignal(signal.SIGHUP)
    try:
        for handler, expected in ((signal.SIG_DFL, [signal.SIGHUP]), (signal.SIG_IGN, [])):  # nohup ignores it
            signal.signal(signal.SIGHUP, handler)
            with stop_requests() as stop:
                signal.raise_signal(signal.SIGHUP)
            assert stop == expected
            assert signal.getsignal(signal.SIGHUP) == handler
    finally:
        signal.signal(signal.SIGHUP, before)


def test_run_prolonged_between_log_lines_has_means_over_the_right_number_of_steps(tmp_path: Path) -> None:
    """Step 12 is no multiple of 5: the line at 12 means 2 steps, the one at 15 means 3."""
    short = {"eval_every": 0, "log_every": 5}
    every = train_tiny("bc", tmp_path / "every", steps=15, **{**short, "log_every": 1}).metrics()
    run = train_tiny("bc", tmp_path / "run", steps=12, **short)
    resume(run.path, steps=15)
    by_step = {line["step"]: line["loss_actor"] for line in run.metrics()}
    assert sorted(by_step) == [5, 10, 12, 15]
    losses = [line["loss_actor"] for line in every]
    assert by_step[12] == pytest.approx(sum(losses[10:12]) / 2, rel=1e-5)
    assert by_step[15] == pytest.approx(sum(losses[12:15]) / 3, rel=1e-5)


def test_prolonging_is_recorded_and_shortening_is_refused(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=40)
    assert resume(run.path, steps=60).plan().steps == 60
    assert step_of(run.path) == 60
    for steps, message in ((20, "stands at step 60, beyond the 20"), (0, "steps must be at least 1")):
        with pytest.raises(MildlyError, match=message):
            resume(run.path, steps=steps)
    assert run.plan().steps == 60


def test_resuming_a_finished_run_changes_nothing_and_shows_the_result(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train_tiny("bc", tmp_path / "run").path
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert main(["train", "--resume", str(run)]) == 0
    assert "step 300: mean return" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_resume_refuses_data_that_have_changed(tmp_path: Path) -> None:
    folder = make_dataset(seed=0).save(tmp_path / "data")
    run = train_tiny("bc", tmp_path / "run", dataset=folder, steps=10)
    before = files_of(run.path)
    shutil.rmtree(folder)
    make_dataset(seed=1).save(folder)
    with pytest.raises(MildlyError, match=r"not the one this run was started on"):
        resume(run.path, steps=20)
    assert files_of(run.path) == before
    shutil.rmtree(folder)
    with pytest.raises(MildlyError, match="no such file or folder"):
        resume(run.path, steps=20)


def test_resume_refuses_data_changed_in_place(tmp_path: Path) -> None:
    folder = make_dataset(seed=0).save(tmp_path / "data")
    run = train_tiny("bc", tmp_path / "run", dataset=folder, steps=10)
    actions = np.load(folder / "actions.npy")
    np.save(folder / "actions.npy", -actions)
    with pytest.raises(MildlyError, match="its content is not what was saved"):
        resume(run.path, steps=20)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("device", "nonsense", "device 'nonsense' cannot be used here"),
        ("threads", -1, "threads must be at least 1"),
        ("log_every", 0, "log_every must be at least 1"),
        ("env", "Hopper-v4", "environment 'Hopper-v4' has observations"),
        ("algorithm", "mqc", "Did you mean 'mcq'"),
    ],
)
def test_resume_of_a_plan_that_cannot_be_carried_out_says_why(
    tmp_path: Path, field: str, value: object, message: str
) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=10).path
    plan = unsealed(run / "run.json")
    (run / "run.json").write_text(json.dumps({**plan, field: value}))
    with pytest.raises(MildlyError, match=message):
        resume(run, steps=20)


def test_resume_can_change_the_number_of_threads_and_keeps_the_versions_it_began_with(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=10).path
    plan = unsealed(run / "run.json")
    (run / "run.json").write_text(json.dumps({**plan, "versions": {"torch": "1.0"}}))
    resume(run, steps=20, threads=2)
    said = json.loads((run / "run.json").read_text())
    assert (said["threads"], said["steps"], said["versions"]) == (2, 20, {"torch": "1.0"})


def test_lines_that_the_checkpoint_knows_must_be_there(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=10).path
    (run / "metrics.jsonl").write_text("")
    with pytest.raises(MildlyError, match=r"metrics.jsonl: lines that the checkpoint knows are missing"):
        resume(run, steps=20)


def files_of(run: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_run_on_data_in_memory_resumes_when_given_the_data_again(tmp_path: Path) -> None:
    data = make_dataset()
    run = train_tiny("bc", tmp_path / "run", dataset=data, steps=10)
    assert step_of(resume(run.path, steps=20, dataset=data).path) == 20
    with pytest.raises(MildlyError, match="was trained on a Dataset in memory"):
        resume(run.path, steps=30)


def test_relative_paths_are_found_again_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a folder that happens to be called like a built-in set does not come between."""
    (tmp_path / "elsewhere").mkdir()
    make_dataset().save(tmp_path / "data")
    make_dataset().save(tmp_path / "pendulum-mixed")
    monkeypatch.chdir(tmp_path)
    mine = train_tiny("bc", tmp_path / "mine", dataset="data", steps=5)
    builtin = train_tiny("bc", tmp_path / "builtin", steps=5, eval_every=0)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert step_of(resume(mine.path, steps=10).path) == 10
    assert step_of(resume(builtin.path, steps=10).path) == 10


@pytest.mark.parametrize(
    "change",
    [
        {"data": None},
        {"config": {"unheard_of": 1}},
        {"config": {"batch_size": "many"}},
        {"steps": "all"},
        {"algorithm": "alchemy"},
        {"format": 99},
    ],
)
def test_damaged_plan_is_told_and_nothing_is_touched(tmp_path: Path, change: dict[str, Any]) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=10, eval_every=0).path
    plan = unsealed(run / "run.json")
    (run / "run.json").write_text(json.dumps(plan | change))
    before = files_of(run)
    with pytest.raises(MildlyError, match=r"run\.json|alchemy"):
        resume(run)
    assert files_of(run) == before


def test_checkpoint_of_another_architecture_is_refused(tmp_path: Path) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=10, eval_every=0).path
    other = train_tiny("bc", tmp_path / "other", steps=10, eval_every=0, hidden_dims=(8, 8)).path
    shutil.copy(other / "checkpoint.safetensors", run)
    with pytest.raises(MildlyError, match=r"checkpoint\.safetensors: does not fit the run's config"):
        resume(run, steps=20)


def test_full_disk_ends_the_run_with_a_message_and_it_resumes_when_there_is_room(tmp_path: Path, whole: Any) -> None:
    """A limit on the size of files stands in for the disk: the log outgrows it, in the middle of a line."""
    import resource

    run = tmp_path / "run"
    limit = len(whole["metrics.jsonl"]) // 2
    assert limit < 30_000, "the checkpoint must not fit either"

    def small_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    args = train_args("mcq", run, checkpoint_every=1000)
    ended = subprocess.run(
        [*COMMAND, *args], cwd=tmp_path, preexec_fn=small_disk, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "File too large" in ended.stderr
    assert str(run / "metrics.jsonl") in ended.stderr
    resume(run)
    assert content(run) == whole
    assert not list(run.rglob(".tmp-*"))


def test_checkpoint_that_cannot_be_written_is_told_and_leaves_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=20, eval_every=0).path
    before = (run / "checkpoint.safetensors").read_bytes()

    def full_disk(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "as_bytes", full_disk)
        with pytest.raises(MildlyError, match=r"step 40 cannot be saved"):
            resume(run, steps=40)
    assert (run / "checkpoint.safetensors").read_bytes() == before
    assert step_of(resume(run, steps=40).path) == 40


def test_fields_of_the_data_set_survive_in_the_plan(tmp_path: Path) -> None:
    data: Dataset = load_dataset("pendulum-mixed")
    run = train_tiny("mcq", tmp_path / "run", steps=5, eval_every=0)
    plan = run.plan()
    assert plan.data == data.meta
    assert {name: tuple(plan.flat_config[name]) for name in ("hidden_dims", "behavior.hidden_dims")} == {
        name: run_fields("mcq")[name] for name in ("hidden_dims", "behavior.hidden_dims")
    }
