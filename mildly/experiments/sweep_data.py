"""The data of a sweep: every set once, in a form that all jobs map, looked at before any job runs."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import MINARI, find, load_dataset, reference
from mildly.errors import MildlyError
from mildly.experiments.spec import Job, safe
from mildly.files import atomic_write


def native(job: Job, out: Path, say: Callable[[str], None]) -> Path:
    """The folder of a job's data set. What is in another format is converted, once, to `OUT/data/NAME`.

    Mapped files are shared by all jobs of a machine: they are in memory once.
    """
    source = None
    if not job.dataset.startswith(MINARI):
        source = find(job.dataset)
        if (source / "dataset.json").is_file():
            return source.resolve()
    name = job.plan.data.name
    folder = (out / "data" / safe(name)).resolve()
    origin = {"source": reference(job.dataset), "modified": _stamp(source) if source else None}
    note = folder.with_name(f"{folder.name}.json")
    if folder.exists():
        if json.loads(note.read_text()) != origin:
            raise MildlyError(f"{folder}: was made of other data than {job.dataset} holds now. Choose another --out.")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    for left in folder.parent.glob(f".{folder.name}-*"):  # by a sweep that was killed while it converted
        shutil.rmtree(left)
    with atomic_write(note) as unfinished:  # first, since the folder appears only when it is complete
        unfinished.write_text(json.dumps(origin) + "\n")
    for line in convert(job.dataset, folder, ImportOptions(name=name)).meta.notes:  # what was guessed must be told
        say(f"{job.dataset}: {line}")
    return folder


def _stamp(source: Path) -> list[list[object]]:
    """Name, size and time of every file of a source: a folder's own time does not change with its files'."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def look_at(folder: Path, jobs: Sequence[Job]) -> list[str]:
    """Refuse data that would spoil these jobs, and environments that do not fit them; otherwise what to warn of."""
    from mildly.environments import check_fit, stored_bounds
    from mildly.training.preflight import preflight

    data = load_dataset(folder)
    meta = data.meta
    for env in {job.plan.env or meta.env_id for job in jobs} - {None}:
        bounds = (meta.action_low, meta.action_high) if meta.action_low is not None else stored_bounds(str(env))
        check_fit(str(env), data.observation_size, data.action_size, f"the data set '{meta.name}'", bounds)
    try:
        return preflight(data, jobs[0].dataset, check=any(job.options.get("check", True) for job in jobs))
    except MildlyError as error:
        raise MildlyError(f"{error} In a sweep's file that is check = false.") from error


def fingerprint(folder: Path) -> str:
    """What `dataset.json` says of the content, without reading it."""
    return Dataset.describe(folder).fingerprint
