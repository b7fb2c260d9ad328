"""The process that runs one job of a sweep, `python -m mildly.experiments.worker`, with its task on standard input."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from mildly.errors import MildlyError, Stopped, tell
from mildly.experiments.process import DIVERGED, WorkerTask
from mildly.run import Run

if TYPE_CHECKING:
    from mildly.data.dataset import Dataset

_WAIT_SECONDS = 120.0  # for an earlier process of the job to write its checkpoint


def main() -> int:
    """Read the task and train; returns an exit code as `mildly train` does, but one of its own if it diverged."""
    task = WorkerTask(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_watch_pipe, args=(sys.stdin.fileno(),), daemon=True).start()

    try:
        run_task(task)
    except Stopped as stopped:
        tell(stopped)
        return stopped.exit_code
    except MildlyError as error:
        tell(f"error: {error}")
        return exit_code(error)
    return 0


def exit_code(error: MildlyError) -> int:
    """What the process of the sweep is told of an error."""
    from mildly.training.trainer import Diverged

    return DIVERGED if isinstance(error, Diverged) else 2


def _watch_pipe(pipe: int) -> None:
    """Stop with a checkpoint when the process of the sweep has ended."""
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def run_task(task: WorkerTask) -> None:
    """Train, or resume from the run's last checkpoint; then fine-tune, if that is asked for."""
    from mildly.data.registry import load_dataset
    from mildly.training.finetune import finetune

    run = Run(Path(task.folder))
    if (run.path / "run.json").exists():
        _wait_for_predecessor(run)
    if not (run.path / "run.json").exists() or not run.plan().finetune:
        train_task(task)
    if task.finetune:
        finetune(run, logged=load_dataset(task.dataset), **task.finetune)


def train_task(task: WorkerTask, data: Dataset | None = None, *, quiet: bool = False) -> None:
    """Train to the task's steps, or go on with what its folder holds; `data` are its data, if they are loaded."""
    from mildly.data.registry import load_dataset
    from mildly.training.offline import resume, train

    folder = Path(task.folder)
    if (folder / "run.json").exists():
        resume(folder, steps=task.steps, dataset=load_dataset(task.dataset) if data is None else data, quiet=quiet)
        return
    train(
        task.algorithm,
        task.dataset if data is None else data,
        seed=task.seed,
        out=folder,
        threads=task.threads,
        variant=task.variant,
        source=task.source,
        quiet=quiet,
        **{**task.options, "steps": task.steps, "check": False},  # whoever made the task has checked the data
    )


def _wait_for_predecessor(run: Run) -> None:
    """Wait for the job's process of an earlier sweep, which may still be writing its checkpoint."""
    deadline = time.monotonic() + _WAIT_SECONDS
    while True:
        try:
            with run.locked():
                return
        except MildlyError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


if __name__ == "__main__":
    raise SystemExit(main())
