"""A job as a process of its own: how it is started, its log, and how far its run has come."""

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

from safetensors import SafetensorError, safe_open

_TAIL = 1 << 16  # bytes at the end of a file in which its last lines are looked for
_TOLD = 8  # lines of a failed job's log that are shown
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


@dataclass(frozen=True)
class Task:
    """All that a process needs to know of its job; travels as JSON."""

    name: str
    folder: str
    """The run's folder."""
    algorithm: str
    dataset: str
    """Where the data are read."""
    reference: str
    """What `run.json` calls them, so that they are found again from elsewhere."""
    seed: int
    steps: int
    threads: int
    options: dict[str, Any]

    @property
    def log(self) -> Path:
        """What the process says, beside the run's folder."""
        return Path(f"{self.folder}.log")


def start(task: Task) -> subprocess.Popen[bytes]:
    """Start a job, or go on with it where its run stands.

    The process learns its task from a pipe, which it keeps watching: when we are gone, however we ended, the pipe
    closes, and it writes a checkpoint and ends as well. It has a session of its own, so that Ctrl-C is ours alone.
    """
    task.log.parent.mkdir(parents=True, exist_ok=True)
    with task.log.open("ab") as log:
        log.write(f"--- {time.strftime('%Y-%m-%d %H:%M:%S')} on {platform.node()}\n".encode())
        log.flush()
        process = subprocess.Popen(
            [sys.executable, "-m", "mildly.experiments.worker"],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=log,
            env={**os.environ, **dict.fromkeys(_THREADS, str(task.threads))},
            start_new_session=True,
            bufsize=0,  # nothing is kept back, to be written when the pipe is closed
        )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has died already, which its exit code tells
        process.stdin.write(json.dumps(dataclasses.asdict(task)).encode() + b"\n")
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a job to stop, and wait until it has written its checkpoint; a second Ctrl-C here ends it at once."""
    try:
        process.terminate()
        process.wait()
    finally:
        process.kill()
        process.wait()


def reached(folder: Path) -> int:
    """The step of a run's checkpoint, 0 without one. A run's last step is always saved, evaluated before."""
    try:
        with safe_open(folder / "checkpoint.safetensors", framework="numpy") as file:
            return int(json.loads(file.metadata()["facts"])["step"])
    except (OSError, SafetensorError, ValueError, KeyError, TypeError):  # what is wrong is told when it is resumed
        return 0


def last_line(path: Path) -> dict[str, Any]:
    """The last whole line of a file of JSON lines; empty where there is none."""
    try:
        lines = _end_of(path).split(b"\n")
        found = json.loads(lines[-2]) if len(lines) > 1 else {}
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def last_words(log: Path) -> str:
    """The end of a job's log."""
    try:
        lines = _end_of(log).decode(errors="replace").rstrip().split("\n")
    except OSError:
        return ""
    return "\n".join(lines[-_TOLD:])


def _end_of(path: Path) -> bytes:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _TAIL))
        return file.read()
