"""Run the jobs of a sweep: those that are complete never again, those that have begun from where they stand."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, NoReturn

from mildly.data.registry import builtin_names
from mildly.errors import MildlyError
from mildly.experiments import sweep_data
from mildly.experiments.local import run_here
from mildly.experiments.on_ray import connected, run_on_ray
from mildly.experiments.process import Task, reached
from mildly.experiments.progress import Counts, SweepProgress
from mildly.experiments.spec import Job
from mildly.run import Plan, Run
from mildly.training.signals import stop_requests

_COST = {"bc": 1, "cql": 15, "mcq": 25}
"""What a gradient step costs, roughly; other algorithms are taken for actor and critics."""
_COST_OF_OTHERS = 3
_OF_THE_MACHINE = ("dataset", "data", "device", "threads", "config")


def run_sweep(
    jobs: Sequence[Job],
    out: str | os.PathLike[str],
    *,
    workers: int | None = None,
    threads: int = 1,
    retries: int = 2,
    ray: str | None = None,
) -> dict[str, str]:
    """Run jobs, each in a process and a run folder of its own below `out`. May be called again and again.

    Args:
        jobs: what `expand` made of a spec.
        out: the sweep's folder; with `ray`, on storage that all nodes share.
        workers: jobs at a time; as many as the cores have room for, by default.
        threads: CPU threads of a job. Results depend on it to the bit; a run that has begun keeps its own.
        retries: how often a job that failed is tried again, from its last checkpoint.
        ray: address of a Ray cluster that shall do the work, `auto` for the one that runs here.

    Returns:
        The jobs that failed, each with the last lines of its log.

    Raises:
        Stopped: after Ctrl-C or SIGTERM, when all jobs have written a checkpoint; the same call goes on.
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
            tasks = _open_tasks(jobs, root, threads, progress.say)
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
                at_once = workers or max(1, _cores() // threads)
                failed = run_here(tasks, workers=at_once, retries=retries, progress=progress, stop=stop)
            else:
                failed = run_on_ray(tasks, cluster, threads=threads, retries=retries, progress=progress, stop=stop)
        if stop:
            _stopped(jobs, root, stop[0])
    return failed


def _open_tasks(jobs: Sequence[Job], root: Path, threads: int, say: Callable[[str], None]) -> list[Task]:
    """What is left to do, once all that could be wrong with it has been looked at."""
    one_of_each = {job.dataset: job for job in jobs}
    folders = {dataset: sweep_data.native(job, root, say) for dataset, job in one_of_each.items()}
    for job in jobs:
        _check_begun(job, root / job.name, sweep_data.fingerprint(folders[job.dataset]))
    open_jobs = [job for job in jobs if reached(root / job.name) < job.plan.steps]
    for dataset in dict.fromkeys(job.dataset for job in open_jobs):
        for line in sweep_data.look_at(folders[dataset], [job for job in open_jobs if job.dataset == dataset]):
            say(f"{dataset}: {line}")
    return [_task(job, root, folders[job.dataset], threads) for job in _longest_first(open_jobs)]


def _stopped(jobs: Sequence[Job], root: Path, signal_number: int) -> NoReturn:
    from mildly.training.loop import Stopped

    done = sum(reached(root / job.name) >= job.plan.steps for job in jobs)
    raise Stopped(
        f"stopped; {done} of {len(jobs)} jobs are complete, those under way have checkpoints. "
        "The same command goes on.",
        signal_number,
    )


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _longest_first(jobs: Sequence[Job]) -> list[Job]:
    """A long job that starts last keeps one core busy while the others idle."""
    return sorted(jobs, key=lambda job: -job.plan.steps * _COST.get(job.algorithm, _COST_OF_OTHERS))


def _task(job: Job, root: Path, folder: Path, threads: int) -> Task:
    return Task(
        name=job.name,
        folder=str((root / job.name).resolve()),
        algorithm=job.algorithm,
        dataset=str(folder),
        reference=job.dataset if job.dataset in builtin_names() else str(folder),
        seed=job.seed,
        steps=job.plan.steps,
        threads=threads,
        options=job.options,
    )


def _check_begun(job: Job, folder: Path, fingerprint: str) -> None:
    """A run that has begun must be the one that is asked for; only its steps may grow."""
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
    """What a run was begun with that is asked for otherwise now."""
    from mildly.algorithms import algorithm_named
    from mildly.algorithms.base import build_config

    # Fields that came into being after the run was begun have their defaults, as they have when it is resumed.
    config = dataclasses.asdict(build_config(algorithm_named(begun.algorithm), begun.config))
    names = [f.name for f in dataclasses.fields(Plan) if f.name not in _OF_THE_MACHINE]
    pairs: dict[str, tuple[Any, Any]] = {name: (getattr(begun, name), getattr(asked, name)) for name in names}
    if asked.steps >= begun.steps:
        del pairs["steps"]
    if asked.env is None:  # the data set's own
        pairs["env"] = (begun.env, begun.data.env_id)
    pairs |= {name: (config.get(name), value) for name, value in asked.config.items()}
    return [f"{name} {new}, not {old}" for name, (old, new) in pairs.items() if old != new]
