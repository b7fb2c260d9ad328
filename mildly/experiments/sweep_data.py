"""The data sets of a sweep: converted once to folders that all jobs map into memory, checked before any job runs."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from mildly.data.convert import convert
from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import MINARI, find, load_dataset, stable_source
from mildly.data.select import held_out
from mildly.errors import MildlyError
from mildly.experiments.spec import Job, folder_name
from mildly.files import atomic_write, read_json


def native_folder(job: Job, out: Path, say: Callable[[str], None]) -> Path:
    """The folder of a job's data set. Other formats are converted once, to `OUT/data/NAME`.

    All jobs of a machine share the mapped files, so that they are in memory once.
    """
    source = None
    if not job.dataset.startswith(MINARI):
        source = find(job.dataset)
        if (source / "dataset.json").is_file():
            return source.resolve()
    name = job.plan.data.name
    folder = (out / "data" / folder_name(name)).resolve()
    origin = {"source": stable_source(job.dataset), "modified": _file_states(source) if source else None}
    note = folder.with_name(f"{folder.name}.json")
    if folder.exists():
        if _noted(note) != origin:
            raise MildlyError(f"{folder}: was made of other data than {job.dataset} holds now. Choose another --out.")
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(note) as unfinished:  # first, since the folder appears only when it is complete
        unfinished.write_text(json.dumps(origin) + "\n")
    for line in convert(job.dataset, folder, ImportOptions(name=name)).meta.notes:  # such as what was guessed
        say(f"{job.dataset}: {line}")
    return folder


def _noted(note: Path) -> object:
    """What a set was made of; nothing that equals anything where it cannot be read."""
    try:
        return read_json(note)
    except (OSError, ValueError):
        return None


def _file_states(source: Path) -> list[list[object]]:
    """Name, size and modification time of every file; a folder's own time does not change with its files."""
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    return [[path.name, path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def check_data(folder: Path, jobs: Sequence[Job]) -> list[str]:
    """Raise an error for data or environments that these jobs cannot use. Returns warnings."""
    from mildly.training.preflight import environment_of, evaluation_of, preflight

    data = load_dataset(folder)
    said: list[str] = []
    for job in {job.plan.env: job for job in jobs}.values():
        env, meta = environment_of(data.meta, job.plan.env)
        said += evaluation_of(dataclasses.replace(job.plan, env=env, data=meta), data)[1]
    try:
        return said + preflight(data, jobs[0].dataset, check=any(job.options.get("check", True) for job in jobs))
    except MildlyError as error:
        raise MildlyError(f"{error} In a sweep's file that is check = false.") from error


def with_held_out(jobs: Sequence[Job], folders: Mapping[str, Path]) -> list[Job]:
    """The jobs, their plans with the episodes that nobody is trained on; a share that makes no sense is refused."""
    sets = {dataset: load_dataset(folder, verify=False) for dataset, folder in folders.items()}
    kept_out = (held_out(sets[job.dataset], job.options.get("holdout", 0.0), job.seed) for job in jobs)
    plans = (dataclasses.replace(job.plan, held_out=those) for job, those in zip(jobs, kept_out, strict=True))
    return [dataclasses.replace(job, plan=plan) for job, plan in zip(jobs, plans, strict=True)]


def fingerprint(folder: Path) -> str:
    """The hash of the content that `dataset.json` states."""
    return Dataset.describe(folder).fingerprint
