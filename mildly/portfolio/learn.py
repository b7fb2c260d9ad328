"""Train candidates to a step, each from where it stands: in this process, or in several of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mildly.data.dataset import Dataset
from mildly.errors import Stopped
from mildly.experiments.local import run_locally
from mildly.experiments.process import WorkerTask
from mildly.experiments.progress import Counts, SweepProgress
from mildly.experiments.worker import train_task
from mildly.portfolio.folder import Request
from mildly.portfolio.plan import LEARNERS, PHASES
from mildly.training.signals import stop_requests
from mildly.training.trainer import Diverged


def task_of(name: str, folder: Path, request: Request, source: str, steps: int, warm_up: int) -> WorkerTask:
    """A candidate's training, to a step."""
    learner = LEARNERS[name]
    fields = {**learner.fields, **({"gamma": request.gamma} if learner.discounts else {})}
    if learner.warms_up:
        fields |= {phase: max(1, times * warm_up) for phase, (times, _) in PHASES.items()}
    return WorkerTask(
        name=name,
        folder=str(folder.resolve()),
        algorithm=learner.algorithm,
        dataset=source,
        source=source,
        variant=name if learner.algorithm != name else "",
        seed=request.seed,
        steps=steps,
        threads=1,  # so that bits depend neither on the machine's cores nor on how many trainings run at once
        options={"holdout": request.holdout, "eval_every": 0, **fields},
    )


def train_all(tasks: Sequence[WorkerTask], data: Dataset, workers: int) -> dict[str, str]:
    """Train all, or go on with them; those that diverged, and why."""
    if workers == 1 or len(tasks) == 1:
        return {task.name: why for task in tasks if (why := train_here(task, data))}
    with stop_requests() as stop, SweepProgress(Counts(len(tasks))) as progress:
        failed = run_locally(tasks, workers=workers, retries=0, progress=progress, stop=stop)
    if stop:
        raise Stopped("stopped; checkpoints are written.", stop[0])
    # A process may have been killed. Gone on with here, its training either ends well or says itself what is wrong.
    return {task.name: why for task in tasks if task.name in failed and (why := train_here(task, data))}


def train_here(task: WorkerTask, data: Dataset) -> str:
    """Train in this process; why it diverged, or nothing."""
    try:
        train_task(task, data, quiet=True)
    except Diverged as error:
        return str(error)
    return ""
