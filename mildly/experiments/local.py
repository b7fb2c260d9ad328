"""Run jobs as processes on this machine, a fixed number at a time."""

from __future__ import annotations

import subprocess
import time
from collections import Counter, deque
from collections.abc import Sequence

from mildly.experiments.process import DIVERGED, WorkerTask, log_tail, start, terminate
from mildly.experiments.progress import SweepProgress
from mildly.words import counted

_POLL_SECONDS = 0.05


def run_locally(
    tasks: Sequence[WorkerTask], *, workers: int, retries: int, progress: SweepProgress, stop: Sequence[int]
) -> dict[str, str]:
    """Run all tasks, or until `stop` holds a signal. Returns the failed ones with the last lines of their logs."""
    waiting = deque(tasks)
    running: dict[str, tuple[WorkerTask, subprocess.Popen[bytes]]] = {}
    attempts: Counter[str] = Counter()
    failed: dict[str, str] = {}
    try:
        while (waiting or running) and not stop:
            while waiting and len(running) < workers:
                task = waiting.popleft()
                attempts[task.name] += 1
                running[task.name] = task, start(task)
            time.sleep(_POLL_SECONDS)
            for task, process in list(running.values()):
                code = process.poll()
                if code is None:
                    continue
                _close_stdin(process)
                del running[task.name]
                if code == 0:
                    progress.counts.done += 1
                elif attempts[task.name] <= retries and code != DIVERGED:
                    progress.say(f"{task.name}: ended with code {code}, is run again")
                    waiting.appendleft(task)
                else:
                    failed[task.name] = log_tail(task.log)
                    progress.counts.failed += 1
                    how = "diverged" if code == DIVERGED else f"failed {counted(attempts[task.name], 'time')}"
                    progress.say(f"{task.name}: {how}, see {task.log}")
            progress.refresh(task for task, _ in running.values())
        for _, process in running.values():
            process.terminate()  # all at once, so that they write their checkpoints side by side
    finally:
        for _, process in running.values():
            terminate(process)
            _close_stdin(process)
    return failed


def _close_stdin(process: subprocess.Popen[bytes]) -> None:
    if process.stdin:
        process.stdin.close()
