"""Jobs as processes: whatever ends a sweep, the same command finishes it, to the bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import COMMAND, content, mildly, train_tiny
from sweeps import EIGHTEEN, jobs_of, write_spec

from mildly.errors import MildlyError, Stopped
from mildly.experiments import local, process
from mildly.experiments.process import WorkerTask, checkpoint_step
from mildly.experiments.progress import Counts, SweepProgress
from mildly.experiments.spec import expand, read_spec
from mildly.experiments.sweep import available_cores, run_sweep
from mildly.run import Run


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.005)


def is_free(run: Path) -> bool:
    """Whether no process trains in a run folder any more."""
    try:
        with Run(run).locked():
            return True
    except MildlyError:
        return False


LONG = {"steps": 800, "eval_every": 400, "log_every": 50, "checkpoint_every": 100}


def begin(spec: Path, out: Path, runs: list[Path]) -> subprocess.Popen[str]:
    """Start a sweep and wait until every one of these runs has a checkpoint."""
    command = [*COMMAND, "sweep", str(spec), "--out", str(out)]
    sweep = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until(lambda: all(checkpoint_step(run) > 0 for run in runs), "no run has begun")
    assert sweep.poll() is None
    return sweep


def test_jobs_of_a_killed_sweep_end_and_the_same_command_finishes_to_the_bits_of_an_uninterrupted_training(
    tmp_path: Path,
) -> None:
    out, spec = tmp_path / "out", write_spec(tmp_path / "spec.toml", algorithms=("bc", "sac"), **LONG)
    runs = [out / algorithm / "pendulum-mixed" / "seed-0" for algorithm in ("sac", "bc")]
    sweep = begin(spec, out, runs[: min(2, available_cores())])
    os.kill(sweep.pid, signal.SIGKILL)
    sweep.communicate()
    until(lambda: all(is_free(run) for run in runs if run.exists()), "a job outlives its sweep")
    assert 0 < checkpoint_step(runs[0]) < LONG["steps"], "the job went on to its end"
    ended = mildly("sweep", str(spec), "--out", str(out), cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    assert "2 of 2 jobs complete" in ended.stdout
    for algorithm, run in zip(("sac", "bc"), runs, strict=True):
        assert content(run) == content(train_tiny(algorithm, tmp_path / algorithm, **LONG).path)
        assert Run(run).plan().dataset == "pendulum-mixed"
        assert Run(run).plan().threads == 1
        assert not list(run.rglob("*.tmp"))


def test_a_sweep_that_is_asked_to_stop_leaves_checkpoints_and_says_how_to_go_on(tmp_path: Path) -> None:
    out, spec = tmp_path / "out", write_spec(tmp_path / "spec.toml", algorithms=("sac",), **LONG)
    run = out / "sac" / "pendulum-mixed" / "seed-0"
    sweep = begin(spec, out, [run])
    sweep.send_signal(signal.SIGTERM)
    _, message = sweep.communicate(timeout=60)
    assert sweep.returncode == 128 + signal.SIGTERM
    assert (
        "stopped; 0 of 1 jobs are complete, those under way have checkpoints. The same command resumes them." in message
    )
    assert is_free(run)
    assert "stopped at step" in (out / "sac" / "pendulum-mixed" / "seed-0.log").read_text()


def test_a_job_that_was_killed_is_resumed_and_a_signal_stops_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With stand-ins for workers: the first one dies, the second succeeds, the third runs until it is asked to end."""
    endings = iter(["import os; os.kill(os.getpid(), 9)", "", "import time; time.sleep(600)"])
    stop: list[int] = []
    begun: list[str] = []

    def start(task: WorkerTask) -> subprocess.Popen[bytes]:
        begun.append(task.name)
        if task.name == "third":
            stop.append(signal.SIGTERM)
        return subprocess.Popen([sys.executable, "-c", next(endings)], stdin=subprocess.PIPE)

    monkeypatch.setattr(local, "start", start)
    tasks = [
        WorkerTask(name, str(tmp_path / name), "bc", "", "", "", 0, 1, 1, {}) for name in ("first", "third", "fourth")
    ]
    progress = SweepProgress(Counts(3))
    assert local.run_locally(tasks, workers=1, retries=1, progress=progress, stop=stop) == {}
    assert begun == ["first", "first", "third"]
    assert progress.counts == Counts(3, 1, 0)


def test_a_worker_has_the_threads_of_its_task(tmp_path: Path, monkeypatch: Any) -> None:
    """The variables that BLAS reads when it is loaded are set for the new process."""
    monkeypatch.setattr(process.sys, "executable", str(tmp_path / "python"))
    (tmp_path / "python").write_text(
        "#!/bin/sh\necho threads $OMP_NUM_THREADS $MKL_NUM_THREADS $OPENBLAS_NUM_THREADS\n"
    )
    (tmp_path / "python").chmod(0o755)
    task = WorkerTask("a/b", str(tmp_path / "a" / "b"), "bc", "", "", "", 0, 1, threads=3, options={})
    started = process.start(task)
    assert started.wait() == 0
    started.stdin.close()
    assert "threads 3 3 3" in (tmp_path / "a" / "b.log").read_text()


def test_stopping_is_an_exception_for_those_who_call_from_python(tmp_path: Path, monkeypatch: Any) -> None:
    def start(task: WorkerTask) -> subprocess.Popen[bytes]:
        signal.raise_signal(signal.SIGINT)
        return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], stdin=subprocess.PIPE)

    monkeypatch.setattr(local, "start", start)
    with pytest.raises(Stopped, match="0 of 1 jobs are complete") as stopped:
        run_sweep(jobs_of(tmp_path), tmp_path / "out")
    assert stopped.value.exit_code == 130


def test_a_worker_that_dies_at_once_is_a_failed_job_and_no_more(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(process.sys, "executable", "/bin/false")
    tasks = [
        WorkerTask(f"a/{i}", str(tmp_path / f"a{i}"), "bc", "", "", "", 0, 1, 1, {"x": "y" * 1000}) for i in range(5)
    ]
    failed = local.run_locally(tasks, workers=2, retries=2, progress=SweepProgress(Counts(5)), stop=[])
    assert list(failed) == [f"a/{i}" for i in range(5)]
    assert tasks[0].log.read_text().count("--- ") == 3


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_eighteen_jobs_killed_again_and_again_equal_those_left_alone(tmp_path: Path) -> None:
    spec = tmp_path / "spec.toml"
    spec.write_text(EIGHTEEN)
    jobs = expand(read_spec(spec))
    assert run_sweep(jobs, tmp_path / "whole") == {}
    command = [*COMMAND, "sweep", str(spec), "--out", str(tmp_path / "killed")]
    for complete in (2, 7, 12):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as sweep:
            until(
                lambda complete=complete: (
                    sum(checkpoint_step(tmp_path / "killed" / job.name) >= job.plan.steps for job in jobs) >= complete
                ),
                "too slow",
                seconds=600,
            )
            sweep.kill()
    subprocess.run(command, check=True)
    for job in jobs:
        assert content(tmp_path / "killed" / job.name) == content(tmp_path / "whole" / job.name), job.name


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(available_cores() < 2, reason="needs two cores")
def test_two_cores_do_at_least_1_7_times_the_work_of_one(tmp_path: Path) -> None:
    """Rounds alternate, so that what else the machine does troubles both alike; the best round of each counts."""
    spec = tmp_path / "spec.toml"
    spec.write_text(EIGHTEEN.replace("seeds = 3", "seeds = 1"))
    jobs = expand(read_spec(spec))
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(2):
        for workers, spent in seconds.items():
            began = time.monotonic()
            assert run_sweep(jobs, tmp_path / f"{turn}-{workers}", workers=workers) == {}
            spent.append(time.monotonic() - began)
    assert min(seconds[1]) / min(seconds[2]) >= 1.7, seconds
