"""A job as a process of its own: its task, start and end, log and checkpoint."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mildly.files import parse_json
from mildly.training import checkpoint

DIVERGED = 3
"""The exit code of a job that diverged: it would diverge again, so it is not run again."""
_TAIL_BYTES = 1 << 16  # the last lines of a file are searched in these
_TAIL_LINES = 8  # of a failed job's log
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class WorkerTask:
    """What the process of a job is given, as JSON."""

    name: str
    folder: str
    """The run's folder."""
    algorithm: str
    dataset: str
    """The folder that the data are read from."""
    source: str
    """Where `run.json` says that the data are found, so that a run can be resumed from elsewhere."""
    variant: str
    seed: int
    steps: int
    threads: int
    options: dict[str, Any]
    finetune: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What `mildly.finetune` is told afterwards; nothing is done where it is empty."""

    @property
    def all_steps(self) -> int:
        """Those of fine-tuning included."""
        return self.steps + int(self.finetune.get("steps", 0))

    @property
    def log(self) -> Path:
        """The output of the process, beside the run's folder."""
        return Path(f"{self.folder}.log")


def start(task: WorkerTask) -> subprocess.Popen[bytes]:
    """Start a job, or resume it from its last checkpoint.

    The job's process reads its task from a pipe and keeps watching it: when this process ends in any way, the pipe
    closes, and the job writes a checkpoint and ends as well. It has a session of its own, so that Ctrl-C does not
    reach it.
    """
    task.log.parent.mkdir(parents=True, exist_ok=True)
    with task.log.open("ab") as log:
        log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} on {platform.node()}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "mildly.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **dict.fromkeys(_THREADS, str(task.threads))},
            start_new_session=True,
            bufsize=0,  # so that closing the pipe writes nothing
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already, as its exit code shows
        process.stdin.write(json.dumps(dataclasses.asdict(task)).encode() + b"\n")
    return process


def terminate(process: subprocess.Popen[bytes]) -> None:
    """Stop a job and wait until it has written its checkpoint; a second Ctrl-C here kills it."""
    try:
        process.terminate()
        process.wait()
    finally:
        process.kill()
        process.wait()


def checkpoint_step(folder: Path) -> int:
    """The step of a run's checkpoint; 0 without one."""
    return checkpoint.step_of(folder / "checkpoint.safetensors")


def last_line(path: Path) -> dict[str, Any]:
    """The last complete line of a file of JSON lines; empty where there is none."""
    try:
        lines = _tail(path).split(b"\n")
        found = parse_json(lines[-2]) if len(lines) > 1 else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def log_tail(log: Path) -> str:
    """The last lines of a job's log."""
    try:
        lines = _tail(log).decode(errors="replace").rstrip().split("\n")
    except OSError:
        return ""
    return "\n".join(lines[-_TAIL_LINES:])


def _tail(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL_BYTES))
        return file.read()
