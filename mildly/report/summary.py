"""The summary of a report: its groups, their scores as text, and sentences."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from mildly.evaluation.results import SCORE_RULE
from mildly.report.grouping import Group, group_runs
from mildly.report.reading import Record, Unreadable
from mildly.words import counted

SCORE_NOTE = f"A score is {SCORE_RULE}; ± is the standard deviation over seeds (n - 1)."
UNSCORED_NOTE = (
    "Without an environment there is no score. Value: what the critics give the data's actions at the end. Distance: "
    "that of the policy's draws from the data's actions, root mean square, where actions go from -1 to 1. Neither is a "
    "score."
)


@dataclass(frozen=True)
class Report:
    """The runs that a page, a table or a figure shows."""

    records: list[Record]
    unreadable: list[Unreadable]

    @cached_property
    def groups(self) -> list[Group]:
        """Runs by what they share."""
        return group_runs(self.records)

    @cached_property
    def labels(self) -> list[str]:
        """The names of groups, once each; a name's place decides its color everywhere."""
        order = sorted(self.groups, key=lambda group: group.algorithm)
        return list(dict.fromkeys(group.label for group in order))

    @cached_property
    def datasets(self) -> list[str]:
        """The names of data sets."""
        return list(dict.fromkeys(group.dataset for group in self.groups))

    @cached_property
    def best(self) -> dict[str, Group]:
        """The group with the highest mean score on each data set that has more than one to compare."""
        found = {}
        for dataset in self.datasets:
            scored = [group for group in self.on(dataset) if group.mean is not None]
            if len(scored) > 1:
                found[dataset] = max(scored, key=mean_of)
        return found

    def on(self, dataset: str) -> list[Group]:
        """The groups on a data set."""
        return self._by_dataset[dataset]

    @cached_property
    def _by_dataset(self) -> dict[str, list[Group]]:
        found: dict[str, list[Group]] = {}
        for group in self.groups:
            found.setdefault(group.dataset, []).append(group)
        return found

    @property
    def unscored(self) -> bool:
        """Whether some runs were never evaluated, so that more must be said of them."""
        return any(group.mean is None for group in self.groups)

    def is_best(self, group: Group) -> bool:
        """Whether it is first on its data set."""
        return self.best.get(group.dataset) is group


def mean_of(group: Group) -> float:
    """The mean score, for an order; unknown ones come last."""
    return float("-inf") if group.mean is None else group.mean


def score_text(group: Group) -> str:
    """`53.2 ± 1.4`, with the digits that the spread leaves meaningful."""
    if group.mean is None:
        return "-"
    digits = 0 if max(abs(group.mean), group.std or 0) >= 1_000 else 1
    spread = f" ± {group.std:.{digits}f}" if group.std is not None else ""
    return f"{group.mean:.{digits}f}{spread}"


def on_data_texts(group: Group) -> tuple[str, str]:
    """The value of the data's actions and the policy's distance from them, at the end."""
    value, distance = group.last("q_data"), group.last("policy_distance")
    return "-" if value is None else f"{value:.4g}", "-" if distance is None else f"{math.sqrt(max(distance, 0.0)):.3f}"


def steps_text(group: Group) -> str:
    """`6,000 of 6,000`, or from the slowest run's steps to the quickest's."""
    steps = sorted(record.step for record in group.records)
    made = f"{steps[0]:,}" + (f" to {steps[-1]:,}" if steps[0] != steps[-1] else "")
    return f"{made} of {group.records[0].plan.steps:,}"


def title(report: Report) -> str:
    """What the page is about, in a line."""
    algorithms = dict.fromkeys(group.algorithm for group in report.groups)
    sets = report.datasets
    return f"{_listed(algorithms)} on {sets[0] if len(sets) == 1 else f'{len(sets)} data sets'}"


def sentences(report: Report) -> list[str]:
    """The summary as sentences."""
    return [*_extent(report), *_winners(report), *_cautions(report)]


def _extent(report: Report) -> list[str]:
    runs, sets = len(report.records), report.datasets
    algorithms = list(dict.fromkeys(group.algorithm for group in report.groups))
    seeds = sorted({group.seeds for group in report.groups})
    each = " each" if len(report.groups) > 1 else ""
    many = counted(seeds[0], "seed") if len(seeds) == 1 else f"{seeds[0]} to {counted(seeds[-1], 'seed')}"
    where = f"the data set {sets[0]}" if len(sets) == 1 else f"{len(sets)} data sets"
    configurations = ""
    if len(report.labels) > len(algorithms):
        configurations = f" in {counted(len(report.labels), 'configuration')}"
    return [f"{counted(runs, 'run')} of {_listed(algorithms)}{configurations} on {where}, {many}{each}."]


def _winners(report: Report) -> list[str]:
    found = []
    if len(report.datasets) <= 3:
        found = [_winner(report, dataset) for dataset in report.best]
    elif report.best:
        wins: dict[str, int] = {}
        for group in report.best.values():
            wins[group.label] = wins.get(group.label, 0) + 1
        order = sorted(wins.items(), key=lambda item: -item[1])[:4]
        text = _listed(f"{label} on {count}" for label, count in order)
        found = [f"Of the {len(report.best)} data sets with something to compare, the highest mean is that of {text}."]
    if not report.best:
        found = [
            f"{group.label} reaches {score_text(group)} on {group.dataset}."
            for group in report.groups[:3]
            if group.mean is not None
        ]
    return found


def _winner(report: Report, dataset: str) -> str:
    first = report.best[dataset]
    second = max((group for group in report.on(dataset) if group is not first), key=mean_of)
    text = f"On {dataset}, {first.label} is highest with {score_text(first)}"
    text += f", against {score_text(second)} of {second.label}"
    spread = max(first.std or 0.0, second.std or 0.0)
    if spread and mean_of(first) - mean_of(second) < spread:
        return f"{text}: less than one standard deviation apart, so more seeds may turn the order."
    if first.std is None or second.std is None:
        return f"{text}; with a single seed, that may be luck."
    return f"{text}."


def _cautions(report: Report) -> list[str]:
    unfinished = sum(not record.complete for record in report.records)
    unscored = sum(not record.result.evaluations for record in report.records)
    repeated = sum(len(group.records) - group.seeds for group in report.groups)
    damaged = sum(bool(record.problems) for record in report.records)
    found = []
    if unfinished:
        found.append(f"{counted(unfinished, 'run')} {_are(unfinished)} unfinished, and counted as far as made.")
    else:
        found.append("All runs are complete.")
    if unscored:
        found.append(f"{counted(unscored, 'run')} {_are(unscored)} without an evaluation, and so without a score.")
    if repeated:
        found.append(f"{counted(repeated, 'run')} repeat{'s' * (repeated == 1)} a seed of the same group.")
    if damaged:
        found.append(f"{counted(damaged, 'run')} {_are(damaged)} damaged in part.")
    if report.unreadable:
        count = len(report.unreadable)
        found.append(f"{counted(count, 'folder')} could not be read and {_are(count)} listed below.")
    return found


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _listed(items: Iterable[str]) -> str:
    """`a, b and c`; of many, the first few and their number."""
    names: Sequence[str] = list(items)
    if len(names) > 5:
        return f"{', '.join(names[:4])} and {len(names) - 4} more"
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]
