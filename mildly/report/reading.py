"""Run folders as a report needs them; files that cannot be read are listed as problems."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mildly.data.dataset import Meta
from mildly.errors import MildlyError
from mildly.evaluation.results import Result, find_runs
from mildly.files import parse_json, read_object
from mildly.run import Plan, Run, is_number, is_step

VALUES = ("q_data", "q_ood", "pseudo_target", "q_target")
"""The value estimates in `metrics.jsonl` that a report shows."""
_KEPT = (*VALUES, "policy_distance")
_MOST_LINES = 300  # of a longer log of metrics every n-th line is read; a line is a mean over many steps already


@dataclass(frozen=True)
class Record:
    """One run: its plan, evaluations, metrics, timing and versions."""

    result: Result
    step: int
    """The last step that a log knows of."""
    metrics: list[dict[str, Any]]
    seconds: dict[str, float]
    megabytes: float | None
    """The most memory used, where it was recorded."""
    versions: dict[str, str]
    problems: list[str]
    """Files of the folder that could not be read, a sentence each."""

    @property
    def plan(self) -> Plan:
        """What was asked for."""
        return self.result.plan

    @property
    def data(self) -> Meta:
        """What is known of the data."""
        return self.result.plan.data

    @property
    def path(self) -> Path:
        """The run's folder."""
        return self.result.path

    @property
    def complete(self) -> bool:
        """Whether all steps that were planned are made."""
        return self.step >= self.plan.steps


@dataclass(frozen=True)
class Unreadable:
    """A folder that was a run, or is about to be one."""

    path: Path
    problem: str


def read_runs(paths: Iterable[str | os.PathLike[str]]) -> tuple[list[Record], list[Unreadable]]:
    """Every run at or below the given folders, and those folders that look like a run but cannot be read."""
    given = [Path(path) for path in paths]
    records: list[Record] = []
    unreadable = [Unreadable(path, "no run.json") for path in _without_plan(given)]
    for path in find_runs(given):
        try:
            records.append(_read(Run(path)))
        except (MildlyError, OSError, ValueError) as error:
            unreadable.append(Unreadable(path, _short_message(error, path)))
    if not records:
        found = "".join(f"\n  {entry.path}: {entry.problem}" for entry in unreadable[:5])
        where = ", ".join(map(str, given)) or "no folder given"
        raise MildlyError(
            f"{where}: no run to report on. Give folders that 'mildly train' has written, or folders of such."
            + (f" These could not be read:{found}" if found else "")
        )
    return records, unreadable


def _read(run: Run) -> Record:
    """A run whose plan is sound; its other files may be damaged or missing."""
    plan, problems = run.plan(), []
    evaluations: list[dict[str, Any]] = []
    metrics: list[dict[str, Any]] = []
    seconds: dict[str, float] = {}
    megabytes: float | None = None
    try:
        evaluations = run.evaluations()
    except (MildlyError, OSError) as error:
        problems.append(_short_message(error, run.path))
    try:
        metrics = _some_lines(run.path / "metrics.jsonl")
    except (MildlyError, OSError) as error:
        problems.append(_short_message(error, run.path))
    try:
        seconds = {part: spent for part, spent in run.timing().items() if math.isfinite(spent)}
        megabytes = run.peak_megabytes()
    except (MildlyError, OSError) as error:
        problems.append(_short_message(error, run.path))
    result = Result(run.path, plan, evaluations)
    step = max(result.step, int(metrics[-1]["step"]) if metrics else 0)
    return Record(result, step, metrics, seconds, megabytes, _versions(run.path), problems)


def _some_lines(path: Path) -> list[dict[str, Any]]:
    """Main steps and value estimates: of at most 300 lines spread evenly over the log, the last included."""
    if not path.exists():
        return []
    whole = path.read_bytes().split(b"\n")[:-1]  # what a crash left after the last line's end is no line
    lines = [line for line in whole if not line.startswith(b'{"phase"')]
    every = -(-len(lines) // _MOST_LINES)
    kept = []
    for text in lines[::-1][:: max(every, 1)][::-1]:
        try:
            line = parse_json(text)
            if not is_step(line["step"]):
                raise ValueError("a line without a step")
            kept.append({"step": line["step"]} | {name: line[name] for name in _KEPT if is_number(line.get(name))})
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise MildlyError(f"{path}: damaged ({error}).") from error
    return kept


def _versions(path: Path) -> dict[str, str]:
    versions = read_object(path / "run.json").get("versions")
    return {str(name): str(value) for name, value in versions.items()} if isinstance(versions, dict) else {}


def _without_plan(roots: Iterable[Path]) -> list[Path]:
    """Folders with a run's logs but no `run.json`."""
    found: dict[Path, None] = {}
    for root in roots:
        for folder, below, files in os.walk(root):
            below[:] = [] if "run.json" in files else sorted(name for name in below if not name.startswith("."))
            if "run.json" not in files and {"metrics.jsonl", "checkpoint.safetensors"} & set(files):
                found[Path(folder)] = None
    return list(found)


def _short_message(error: Exception, folder: Path) -> str:
    """A message without the run's folder, which is shown beside it."""
    return str(error).replace(f"{folder}{os.sep}", "")
