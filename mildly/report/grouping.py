"""Groups of runs that differ only in their seed, labeled by the settings in which groups differ."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from mildly.data.dataset import Array
from mildly.evaluation.results import std_over_seeds
from mildly.report.reading import Record

_MOST_FIELDS = 4  # in a label; groups that differ in more fields are numbered
_SHARED_FIELDS = ("preset", "steps", "env", "holdout", "further")
"""Fields of the plan that, besides the config, are the same for all runs of a group."""


@dataclass(frozen=True)
class Group:
    """Runs of one algorithm with one configuration on one data set, by seed."""

    algorithm: str
    dataset: str
    """The data set's name, with a piece of the fingerprint where two sets have one name."""
    label: str
    """The algorithm and the settings in which its groups differ, e.g. `mcq lam=0.5`."""
    normalized: bool
    """Whether scores are normalized scores (all runs on the data set have them) or else returns."""
    records: list[Record]

    @cached_property
    def scores(self) -> Array:
        """Each evaluated seed's score, the mean of its last evaluations; the mean of its runs if it has several."""
        by_seed: dict[int, list[float]] = defaultdict(list)
        for record in self.records:
            score = self.score_of(record)
            if score is not None:
                by_seed[record.plan.seed].append(score)
        return np.array([np.mean(scores) for scores in by_seed.values()])

    def score_of(self, record: Record) -> float | None:
        """A run's score; None before its first evaluation."""
        return record.result.score if self.normalized else record.result.mean_return

    @property
    def mean(self) -> float | None:
        """Mean score over seeds; None before the first evaluation."""
        return float(self.scores.mean()) if len(self.scores) else None

    @property
    def std(self) -> float | None:
        """Standard deviation over seeds (of a sample: n - 1); None for a single one."""
        return std_over_seeds(self.scores)

    def last(self, metric: str) -> float | None:
        """The mean over runs of a metric's last value; None where no run has it."""
        values = [line[metric] for record in self.records for line in record.metrics[-1:] if metric in line]
        return float(np.mean(values)) if values else None

    @property
    def seeds(self) -> int:
        """Different seeds among the runs."""
        return len({record.plan.seed for record in self.records})

    @property
    def complete(self) -> bool:
        """Whether every run has made all its steps."""
        return all(record.complete for record in self.records)

    @property
    def key(self) -> str:
        """The settings of the group, as text."""
        return _key(self.records[0])

    def evaluated(self) -> list[tuple[Array, Array]]:
        """Steps and scores of each run's evaluations."""
        name = "score" if self.normalized else "mean_return"
        runs = [record.result.evaluations for record in self.records]
        return [
            (np.array([line["step"] for line in lines]), np.array([line[name] for line in lines], dtype=np.float64))
            for lines in runs
            if lines
        ]


def group_runs(records: Iterable[Record]) -> list[Group]:
    """All groups, by data set and then by name."""
    sets = _dataset_names(records)
    by_set: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        by_set[sets[_identity(record)]].append(record)
    labels = _labels(by_set)
    groups = []
    for dataset, members in by_set.items():
        normalized = all(line["score"] is not None for record in members for line in record.result.evaluations)
        by_key: dict[str, list[Record]] = defaultdict(list)
        for record in sorted(members, key=lambda record: (record.plan.seed, str(record.path))):
            by_key[_key(record)].append(record)
        for key, alike in by_key.items():
            groups.append(Group(alike[0].plan.algorithm, dataset, labels[key], normalized, alike))
    return sorted(groups, key=lambda group: (group.dataset, _natural(group.label)))


def settings(record: Record) -> dict[str, Any]:
    """All settings of a run by name, the config's first; fields inside groups have dotted names."""
    plan = record.plan
    besides = ("preset", "steps", "env", "holdout", "eval_every", "episodes", "log_every", "checkpoint_every")
    return {**plan.flat_config, **{name: getattr(plan, name) for name in (*besides, "device", "threads")}}


def differing(many: Iterable[Mapping[str, Any]]) -> list[str]:
    """Names with more than one value, in order of appearance."""
    seen: dict[str, set[str]] = defaultdict(set)
    for values in many:
        for name, value in values.items():
            seen[name].add(json.dumps(value))
    return [name for name, values in seen.items() if len(values) > 1]


def format_value(value: Any) -> str:
    """A setting's value as short text."""
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, (list, tuple)):
        return "x".join(map(format_value, value))
    return "none" if value is None else str(value)


def _key(record: Record) -> str:
    plan = record.plan
    return json.dumps([plan.algorithm, plan.config, *(getattr(plan, name) for name in _SHARED_FIELDS)], sort_keys=True)


def _identity(record: Record) -> tuple[str, str]:
    return record.data.name, record.data.fingerprint


def _dataset_names(records: Iterable[Record]) -> dict[tuple[str, str], str]:
    """A name for each data set; of two different sets with one name, with their fingerprints."""
    known = dict.fromkeys(map(_identity, records))
    names = [name for name, _ in known]
    return {
        (name, fingerprint): name if names.count(name) == 1 else f"{name} ({fingerprint[:6] or 'no fingerprint'})"
        for name, fingerprint in known
    }


def _labels(by_set: Mapping[str, list[Record]]) -> dict[str, str]:
    """A name for each key: the algorithm, and the fields in which its groups on any one data set differ.

    Presets stand for the many fields that they set: only runs of one preset are compared field by field. What
    differs between data sets alone (such as the paper's `lam` for each) is not part of the name.
    """
    fields: dict[str, dict[str, None]] = defaultdict(dict)  # by algorithm, ordered
    examples: dict[str, dict[str, Any]] = {}
    algorithms: dict[str, str] = {}
    for members in by_set.values():
        for algorithm in dict.fromkeys(record.plan.algorithm for record in members):
            own = {_key(record): record for record in members if record.plan.algorithm == algorithm}
            examples |= {key: {**record.plan.flat_config, **_shared_fields(record)} for key, record in own.items()}
            algorithms |= dict.fromkeys(own, algorithm)
            presets = list(dict.fromkeys(record.plan.preset for record in own.values()))
            if len(presets) > 1:
                fields[algorithm]["preset"] = None
            for preset in presets:
                same = (examples[key] for key, record in own.items() if record.plan.preset == preset)
                fields[algorithm] |= dict.fromkeys(differing(same))
    labels = _labels_of_sweeps(by_set)
    numbers: dict[str, int] = defaultdict(int)
    for key, algorithm in algorithms.items():
        if key in labels:
            continue
        names = list(fields[algorithm])
        if len(names) > _MOST_FIELDS:
            numbers[algorithm] += 1
            labels[key] = f"{algorithm} #{numbers[algorithm]}"
            continue
        parts = [
            f"{name}={format_value(examples[key][name])}"
            for name in names
            if name != "preset" and name in examples[key]
        ]
        if "preset" in names:
            parts.insert(0, examples[key]["preset"])
        labels[key] = " ".join([algorithm, *parts])
    return labels


def _labels_of_sweeps(by_set: Mapping[str, list[Record]]) -> dict[str, str]:
    """Labels made of the sweep's variants, for algorithms where variants and settings are one to one.

    On a data set where some runs of the algorithm have a variant and others have none, labels name fields instead.
    """
    found: dict[str, dict[tuple[str, str], set[str]]] = defaultdict(lambda: defaultdict(set))
    for dataset, members in by_set.items():
        for record in members:
            found[record.plan.algorithm][dataset, record.plan.variant].add(_key(record))
    labels: dict[str, str] = {}
    for algorithm, by_variant in found.items():
        mixed = any(variant and (dataset, "") in by_variant for dataset, variant in by_variant)
        pairs = {(key, variant) for (_, variant), keys in by_variant.items() for key in keys}
        one_to_one = all(len(keys) == 1 for keys in by_variant.values()) and len(pairs) == len(dict(pairs))
        if one_to_one and not mixed:
            labels |= {key: " ".join([algorithm, *variant.split(",")]).strip() for key, variant in pairs}
    return labels


def _shared_fields(record: Record) -> dict[str, Any]:
    return {name: getattr(record.plan, name) for name in _SHARED_FIELDS}


def _natural(text: str) -> tuple[tuple[float, str], ...]:
    """An order in which `#2` comes before `#10` and `lam=0.5` before `lam=0.55`."""
    words = text.replace("=", " ").replace("#", "").split()
    return tuple((float(word), "") if word.replace(".", "", 1).isdigit() else (-1.0, word) for word in words)
