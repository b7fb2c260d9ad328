"""Run the jobs of a sweep: complete ones are skipped, and those that have begun are resumed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from mildly.data.registry import builtin_names
from mildly.errors import MildlyError, Stopped
from mildly.experiments import sweep_data
from mildly.experiments.local import run_locally
from mildly.experiments.on_ray import connected, run_on_ray
from mildly.experiments.process import WorkerTask, checkpoint_step
from mildly.experiments.progress import Counts, SweepProgress
from mildly.experiments.spec import Job
from mildly.run import Plan, Run, flatten
from mildly.training.signals import stop_requests

_STEP_COST = {"bc": 1, "cql": 15, "mcq": 25}
"""What a gradient step costs, roughly, relative to BC; `_OTHER_STEP_COST` for all other algorithms."""
_OTHER_STEP_COST = 3
_NOT_COMPARED = ("dataset", "data", "device", "threads", "config", "variant", "held_out", "finetune")
"""Fields of the plan that depend on the machine, or are compared otherwise; the folder holds the variant."""


def run_sweep(
    jobs: Sequence[Job],
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    threads: int = 1,
    retries: int = 2,
    ray: str | None = None,
) -> dict[str, str]:
    """Run jobs, each in a process and a run folder of its own below `out`. The same call resumes a sweep.

    Args:
        jobs: from `expand`.
        out: the sweep's folder; with `ray`, on storage that all nodes share.
        workers: jobs at a time; by default the number of cores divided by `threads`.
        threads: CPU threads per job. Results depend on it to the bit; a run that has begun keeps its own.
        retries: how often a failed job is run again, from its last checkpoint.
        ray: address of a Ray cluster to run on; `auto` for the one that runs here.

    Returns:
        The jobs that failed, each with the last lines of its log.

    Raises:
        Stopped: after Ctrl-C or SIGTERM, when all jobs have written a checkpoint.
    """
    least = {"workers": (workers, 1), "threads": (threads, 1), "retries": (retries, 0)}
    for name, (value, smallest) in least.items():
        if value is not None and value < smallest:
            raise MildlyError(f"{name} must be at least {smallest}, got {value}.")
    if ray is not None and workers is not None:
        raise MildlyError("--workers is for this machine; on Ray the cluster's CPUs and --threads decide.")
    root = Path(out)
    try:
        root.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MildlyError(f"{root}: cannot be made ({error.strerror}). Choose another --out.") from error
    with Run(root).locked():
        progress = SweepProgress(Counts(len(jobs)))
        try:
            tasks = _remaining_tasks(jobs, root, threads, progress.say)
        except MildlyError:
            with suppress(OSError):
                root.rmdir()  # unless something is in it
            raise
        progress.counts.done = len(jobs) - len(tasks)
        if not tasks:
            return {}
        with ExitStack() as around:
            cluster = around.enter_context(connected(ray, threads, root / "ray.log")) if ray is not None else None
            stop = around.enter_context(stop_requests())
            around.enter_context(progress)
            if cluster is None:
                workers_here = workers or max(1, available_cores() // threads)
                failed = run_locally(tasks, workers=workers_here, retries=retries, progress=progress, stop=stop)
            else:
                failed = run_on_ray(tasks, cluster, threads=threads, retries=retries, progress=progress, stop=stop)
        if stop:
            _stopped(jobs, root, stop[0])
    return failed


def _remaining_tasks(jobs: Sequence[Job], root: Path, threads: int, say: Callable[[str], None]) -> list[WorkerTask]:
    """The tasks of all incomplete jobs, after their data, environments and earlier runs have been checked."""
    one_of_each = {job.dataset: job for job in jobs}
    folders = {dataset: sweep_data.native_folder(job, root, say) for dataset, job in one_of_each.items()}
    jobs = sweep_data.with_held_out(jobs, folders)
    for job in jobs:
        _check_begun(job, root / job.name, sweep_data.fingerprint(folders[job.dataset]))
    open_jobs = [job for job in jobs if checkpoint_step(root / job.name) < job.steps]
    for dataset in dict.fromkeys(job.dataset for job in open_jobs):
        for line in sweep_data.check_data(folders[dataset], [job for job in open_jobs if job.dataset == dataset]):
            say(f"{dataset}: {line}")
    return [_task(job, root, folders[job.dataset], threads) for job in _longest_first(open_jobs)]


def _stopped(jobs: Sequence[Job], root: Path, signal_number: int) -> NoReturn:
    done = sum(checkpoint_step(root / job.name) >= job.steps for job in jobs)
    raise Stopped(
        f"stopped; {done} of {len(jobs)} jobs are complete, those under way have checkpoints. "
        "The same command resumes them.",
        signal_number,
    )


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _longest_first(jobs: Sequence[Job]) -> list[Job]:
    """The longest jobs start first, so that none is left to run alone at the end."""
    return sorted(jobs, key=lambda job: -job.steps * _STEP_COST.get(job.algorithm, _OTHER_STEP_COST))


def _task(job: Job, root: Path, folder: Path, threads: int) -> WorkerTask:
    return WorkerTask(
        name=job.name,
        folder=str((root / job.name).resolve()),
        algorithm=job.algorithm,
        dataset=str(folder),
        source=job.dataset if job.dataset in builtin_names() else str(folder),
        variant=job.variant,
        seed=job.seed,
        steps=job.plan.steps,
        threads=threads,
        options=job.options,
        finetune=job.finetune,
    )


def _check_begun(job: Job, folder: Path, fingerprint: str) -> None:
    """A run that has begun must have the settings of its job; only the steps may increase."""
    if not (folder / "run.json").exists():
        return
    begun = Run.open(folder).plan()
    differences = _differences(job.plan, begun)
    if fingerprint and begun.data.fingerprint != fingerprint:
        differences.append("the data (their content has changed)")
    if differences:
        raise MildlyError(
            f"{folder}: this run was begun with another spec. Different now: {'; '.join(differences)}. "
            "Choose another --out, or remove that run's folder to begin it anew."
        )


def _differences(asked: Plan, begun: Plan) -> list[str]:
    """Settings of a run that are different in its job."""
    from mildly.algorithms import algorithm_named
    from mildly.algorithms.config import build_config

    # Fields that are newer than the run have their defaults, as when it is resumed.
    config = flatten(build_config(algorithm_named(begun.algorithm), begun.config))
    names = [f.name for f in dataclasses.fields(Plan) if f.name not in _NOT_COMPARED]
    pairs: dict[str, tuple[Any, Any]] = {name: (getattr(begun, name), getattr(asked, name)) for name in names}
    if asked.steps == begun.offline_steps or (asked.steps >= begun.steps and not begun.finetune):
        del pairs["steps"]
    if asked.env is None:  # the data set's own
        pairs["env"] = (begun.env, begun.data.env_id)
    # Which they are follows from their number, the seed and the data; the last two are compared, too.
    pairs["held-out episodes"] = (len(begun.held_out), len(asked.held_out))
    pairs |= {name: (config.get(name), value) for name, value in asked.flat_config.items()}
    return [f"{name} {new}, not {old}" for name, (old, new) in pairs.items() if old != new]
