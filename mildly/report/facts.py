"""Facts about groups of runs for the tables of a report: time, settings, data sets, versions."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.dataset import Meta
from mildly.data.registry import list_datasets
from mildly.errors import MildlyError
from mildly.experiments.process import checkpoint_step
from mildly.files import read_object
from mildly.report.grouping import Group, differing, format_value, settings
from mildly.report.reading import Record
from mildly.report.summary import Report
from mildly.run import training_seconds

PARTS = ("update", "data", "bookkeeping", "evaluation", "checkpoint")
"""The parts in `timing.json`, the largest first. Some runs have `phases` too: all that was before main steps."""


@dataclass(frozen=True)
class GroupCost:
    """Time and memory of a group's runs."""

    group: Group
    seconds: dict[str, float]
    """By part, the mean over runs."""
    steps_per_second: float | None
    """Of the main steps alone, without phases before them, evaluations and checkpoints."""
    megabytes: float | None
    """The most memory that any of the runs has used."""

    @property
    def total(self) -> float:
        """All parts together."""
        return sum(self.seconds.values())


def group_costs(report: Report) -> list[GroupCost]:
    """The time of each group that has been timed."""
    found = []
    for group in report.groups:
        timed = [record for record in group.records if sum(record.seconds.values()) > 0]
        if not timed:
            continue
        parts = [*PARTS, *sorted({part for record in timed for part in record.seconds} - set(PARTS))]
        seconds = {part: float(np.mean([record.seconds.get(part, 0.0) for record in timed])) for part in parts}
        speeds = [_timed_step(record) / spent for record in timed if (spent := training_seconds(record.seconds)) > 0]
        peaks = (record.megabytes for record in timed if record.megabytes is not None)
        found.append(GroupCost(group, seconds, float(np.mean(speeds)) if speeds else None, max(peaks, default=None)))
    return found


def _timed_step(record: Record) -> int:
    """The step that the seconds belong to: that of the checkpoint, which the lines of a run are ahead of."""
    return checkpoint_step(record.result.path) or record.step


@dataclass(frozen=True)
class Differences:
    """The settings of an algorithm's groups: those that differ, and those that all share."""

    algorithm: str
    fields: list[str]
    rows: list[tuple[Group, list[str]]]
    """For each group the values of those fields; several where its own runs differ."""
    shared: dict[str, str]


def differences(report: Report) -> list[Differences]:
    """What was set differently, algorithm by algorithm."""
    found = []
    for algorithm in dict.fromkeys(group.algorithm for group in report.groups):
        groups = [group for group in report.groups if group.algorithm == algorithm]
        every = [settings(record) for group in groups for record in group.records]
        fields = differing(every)
        rows = [(group, [_values(group, field) for field in fields]) for group in groups]
        shared = {name: format_value(value) for name, value in every[0].items() if name not in fields}
        found.append(Differences(algorithm, fields, rows, shared))
    return found


def _values(group: Group, field: str) -> str:
    values = (settings(record) for record in group.records)
    return ", ".join(dict.fromkeys(format_value(own[field]) for own in values if field in own))


@dataclass(frozen=True)
class DatasetFacts:
    """A data set that runs were trained on."""

    name: str
    meta: Meta
    environments: list[str]
    """In which its policies were evaluated."""
    transitions: int | None
    """None where the data are not found from here."""


def dataset_facts(report: Report) -> list[DatasetFacts]:
    """Every data set of the report."""
    found = []
    for name in report.datasets:
        records = [record for group in report.on(name) for record in group.records]
        environments = sorted({record.plan.env for record in records if record.plan.env})
        places = dict.fromkeys(record.plan.dataset for record in records if record.plan.dataset)
        counts = (_transitions(place) for place in places)
        transitions = next((count for count in counts if count is not None), None)
        found.append(DatasetFacts(name, records[0].data, environments, transitions))
    return found


def _transitions(place: str) -> int | None:
    """The number of transitions, where it is written down; nothing is downloaded or read through for it."""
    try:
        return int(read_object(Path(place).expanduser() / "dataset.json")["transitions"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    try:
        return next((entry.transitions for entry in list_datasets() if entry.name == place), None)
    except MildlyError:  # a wrong data folder, which is of no concern here
        return None


def version_counts(records: Iterable[Record]) -> dict[str, Counter[str]]:
    """By package, how many runs were begun with which version."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        for package, version in record.versions.items():
            found[package][version] += 1
    return dict(found)


def duration(seconds: float) -> str:
    """`42 s`, `4 min 12 s`, `3 h 05 min`."""
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def reference_returns(meta: Meta) -> str:
    """The returns with scores 0 and 100, as text."""
    ends: tuple[Any, Any] = (meta.reference_min, meta.reference_max)
    return "none" if None in ends else f"{ends[0]:g}, {ends[1]:g}"
