"""The process that runs one job of a sweep, `python -m mildly.experiments.worker`, with its task on standard input."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

from mildly.errors import MildlyError
from mildly.experiments.process import Task
from mildly.run import Run

_PATIENCE = 120.0  # seconds for which a predecessor may take to write its checkpoint


def main() -> int:
    """Read the task, train, and give an exit code as `mildly train` does."""
    task = Task(**json.loads(sys.stdin.readline()))
    threading.Thread(target=_watch, args=(sys.stdin.fileno(),), daemon=True).start()
    from mildly.training.loop import Stopped

    try:
        _train(task)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    except MildlyError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def _watch(pipe: int) -> None:
    """Stop as if asked to when whoever started us has gone: nobody would know of what we do."""
    while os.read(pipe, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def _train(task: Task) -> None:
    from mildly.data.registry import load_dataset
    from mildly.training.loop import resume, train

    run = Run(Path(task.folder))
    begun = (run.path / "run.json").exists()
    if begun:
        _wait_for_predecessor(run)
    else:
        (run.path / "run.json.tmp").unlink(missing_ok=True)  # left where a predecessor died in its first moment
    try:
        if begun:
            resume(run.path, steps=task.steps, dataset=load_dataset(task.dataset))
        else:
            # The sweep has looked at the data already, once for all its jobs.
            options = {**task.options, "steps": task.steps, "check": False}
            train(task.algorithm, task.dataset, seed=task.seed, out=run.path, threads=task.threads, **options)
    finally:
        _name_data(run, task.reference)


def _wait_for_predecessor(run: Run) -> None:
    """A job that lost its sweep is still writing its checkpoint when the sweep is started again at once."""
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            with run.locked():
                return
        except MildlyError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


def _name_data(run: Run, reference: str) -> None:
    """Let `run.json` say where the data are found from anywhere, though they were read from a copy."""
    if (run.path / "run.json").exists() and run.plan().dataset != reference:
        run.write_plan(dataclasses.replace(run.plan(), dataset=reference))


if __name__ == "__main__":
    raise SystemExit(main())
