"""Run jobs as tasks of a Ray cluster. Ray decides where they run, and runs those of a lost node again elsewhere.

A task starts the same process as on a single machine, so that results are the same to the bit. Only the data are sent
differently: through Ray's object store, once to each node, into a folder there that all its jobs map into memory. The
sweep removes the folders at its end; those of a sweep that was killed are removed by the next one, after a day.
"""

from __future__ import annotations

import contextlib
import dataclasses
import getpass
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.dataset import FIELDS, Dataset, Meta
from mildly.errors import MildlyError
from mildly.experiments.process import DIVERGED, WorkerTask, log_tail, start, terminate
from mildly.experiments.progress import SweepProgress

_POLL_SECONDS = 0.2
_CLEAN_SECONDS = 30.0  # that the removal of the copies may take
_RELEASE_SECONDS = 5.0  # that a task which was stopped may take to let go of its copy
_KEPT_SECONDS = 24 * 3600.0  # that a copy which nobody uses is kept, if its sweep could not remove it


class _JobFailed(Exception):
    """A job's process ended with an error; Ray runs it again."""


class _JobDiverged(Exception):
    """A job's training diverged, and would again."""


@contextmanager
def connected(address: str, threads: int, log: Path) -> Iterator[Any]:
    """Ray, connected to a cluster; its own messages go to a log."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"  # no usage statistics are sent
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise MildlyError(f"--ray needs the package ray: pip install 'mildly[ray]' ({error}).") from error
    own = {"include_dashboard": False} if address == "local" else {}
    before = signal.getsignal(signal.SIGTERM)  # which Ray replaces
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise MildlyError(f"no Ray cluster answers at '{address}' ({error}). Start one with 'ray start'.") from error
    try:
        largest = max((node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]), default=0)
        if largest < threads:
            raise MildlyError(
                f"no node of the cluster has {threads} CPUs (the largest has {largest:.0f}). Lower --threads."
            )
        with log.open("a") as file, contextlib.redirect_stdout(file):
            yield ray
    finally:
        ray.shutdown()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def run_on_ray(
    tasks: Sequence[WorkerTask], ray: Any, *, threads: int, retries: int, progress: SweepProgress, stop: Sequence[int]
) -> dict[str, str]:
    """Run all tasks on a cluster, or until `stop` holds a signal. Returns failed ones with the ends of their logs."""
    job = ray.remote(num_cpus=threads, max_retries=retries, retry_exceptions=[_JobFailed, OSError])(_run_on_node)
    shared = {folder: _share(ray, folder) for folder in dict.fromkeys(task.dataset for task in tasks)}
    before = {task.name: _size(task.log) for task in tasks}
    open_tasks = {job.remote(dataclasses.asdict(task), shared[task.dataset]): task for task in tasks}
    failed: dict[str, str] = {}
    try:
        while open_tasks and not stop:
            ended, _ = ray.wait(list(open_tasks), timeout=_POLL_SECONDS)
            for reference in ended:
                task = open_tasks.pop(reference)
                try:
                    ray.get(reference)
                    progress.counts.done += 1
                except ray.exceptions.RayError as error:
                    failed[task.name] = log_tail(task.log) or str(error)
                    progress.counts.failed += 1
                    progress.say(f"{task.name}: failed, see {task.log}")
            # A task that has written to its log has started on a node.
            progress.refresh(task for task in open_tasks.values() if _size(task.log) > before[task.name])
        _cancel(ray, list(open_tasks))
    finally:  # a second Ctrl-C, too, leaves no copies
        _clean_nodes(ray, [dataset.key for dataset in shared.values()])
    return failed


def _cancel(ray: Any, references: Sequence[Any]) -> None:
    """Stop tasks and wait until their jobs have written checkpoints; after a second Ctrl-C they do so on their own."""
    try:
        for reference in references:
            ray.cancel(reference)
        if references:
            ray.wait(references, num_returns=len(references))
    except KeyboardInterrupt:
        for reference in references:
            ray.cancel(reference, force=True)
        raise


def _clean_nodes(ray: Any, keys: Sequence[str]) -> None:
    """Remove the copies from every node that is still there; a sweep's results do not depend on it."""
    with contextlib.suppress(Exception):  # a node may go away at any moment
        strategy = import_module("ray.util.scheduling_strategies").NodeAffinitySchedulingStrategy
        nodes = [node["NodeID"] for node in ray.nodes() if node["Alive"]]
        task = ray.remote(num_cpus=0, max_retries=0)(_forget)
        cleaning = [task.options(scheduling_strategy=strategy(node, soft=False)).remote(list(keys)) for node in nodes]
        ray.wait(cleaning, num_returns=len(cleaning), timeout=_CLEAN_SECONDS)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@dataclass(frozen=True)
class _SharedDataset:
    """A data set in Ray's object store."""

    key: str
    """A hash of its description and content."""
    content: list[Any]
    """A reference to the arrays. Ray does not resolve it inside a list, so that a node fetches them only if needed."""


def _share(ray: Any, folder: str) -> _SharedDataset:
    data = Dataset.load(folder)
    described = data.meta.to_json()
    arrays = {name: np.asarray(getattr(data, name)) for name in FIELDS}
    key = hashlib.sha256(json.dumps(described, sort_keys=True).encode()).hexdigest()[:32]
    return _SharedDataset(key, [ray.put({"meta": described, "gaps": data.gaps, **arrays})])


def _run_on_node(described: dict[str, Any], shared: _SharedDataset) -> None:
    """The Ray task: start the job's process on this node and wait for it."""
    task = WorkerTask(**described)
    with _local_copy(shared) as folder:
        _run_to_end(dataclasses.replace(task, dataset=str(folder)))


def _run_to_end(task: WorkerTask) -> None:
    process = start(task)
    try:
        while process.poll() is None:
            time.sleep(_POLL_SECONDS)  # Ray interrupts a task that is cancelled, but cannot wake it from process.wait()
    except BaseException:
        terminate(process)
        raise
    if process.returncode == DIVERGED:
        raise _JobDiverged(task.name)
    if process.returncode != 0:
        raise _JobFailed(f"{task.name}: ended with code {process.returncode}")


@contextmanager
def _local_copy(shared: _SharedDataset) -> Iterator[Path]:
    """The data as a folder on this node; the first task writes it, and the others wait. While in use it is locked."""
    import fcntl

    import ray

    cache = _cache_folder()
    cache.mkdir(mode=0o700, exist_ok=True)
    status = cache.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
        raise MildlyError(f"{cache}: is not a folder of this user's alone. Remove it, or set TMPDIR to another place.")
    _remove_copies(cache, lambda folder: time.time() - folder.stat().st_mtime > _KEPT_SECONDS)
    folder = cache / shared.key
    with (cache / f"{shared.key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)  # all tasks that use the copy hold this lock
        while not folder.exists():
            fcntl.flock(lock, fcntl.LOCK_EX)  # lets go of the other one first, so that two tasks cannot wait forever
            if not folder.exists():
                (content,) = ray.get(shared.content)
                Dataset(**{**content, "meta": Meta.from_json(content["meta"])}).save(folder)
            fcntl.flock(lock, fcntl.LOCK_SH)
        os.utime(folder)
        yield folder


def _cache_folder() -> Path:
    return Path(tempfile.gettempdir()) / f"mildly-{getpass.getuser()}"


def _forget(keys: Sequence[str]) -> None:
    """The Ray task that removes a sweep's copies from a node, those that no other sweep is using."""
    deadline = time.monotonic() + _RELEASE_SECONDS
    while not _remove_copies(_cache_folder(), lambda folder: folder.name in keys) and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _remove_copies(cache: Path, unwanted: Callable[[Path], bool]) -> bool:
    """Remove copies that no task is using; whether those were all. Lock files stay, empty: removing one is a race."""
    import fcntl

    all_free = True
    for folder in sorted(cache.iterdir()) if cache.is_dir() else ():
        if not re.fullmatch("[0-9a-f]{32}", folder.name) or folder.is_symlink() or not unwanted(folder):
            continue
        with (cache / f"{folder.name}.lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                all_free = False
                continue
            shutil.rmtree(folder, ignore_errors=True)
    return all_free
