"""Algorithms compared over data sets: aggregates, performance profiles and probabilities of improvement."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from mildly.data.dataset import Array
from mildly.evaluation import statistics
from mildly.evaluation.statistics import Estimate, EstimatedCurve
from mildly.report.summary import Report

AGGREGATES = {
    "Mean": statistics.mean,
    "Median": statistics.median,
    "IQM": statistics.interquartile_mean,
    "Optimality gap (less is better)": statistics.optimality_gap(100.0),
}
_MOST_COMPARED = 10  # labels
_THRESHOLDS = 101
_REPLICATIONS = 10_000  # the ends of an interval are then steady to a fiftieth of its width


@dataclass(frozen=True)
class Comparison:
    """Statistics of some labels over the data sets that all of them were run on."""

    labels: list[str]
    datasets: list[str]
    left_out: int
    """Labels with lower means that were not compared, since there are so many."""
    fewest: int
    """Runs of the label and data set with the fewest."""
    aggregates: dict[str, dict[str, Estimate]]
    """By aggregate, then by label."""
    profiles: dict[str, EstimatedCurve]
    improvements: dict[tuple[str, str], Estimate]
    """How probably a run of the first scores more than a run of the second."""


def compare(report: Report) -> Comparison | str:
    """The comparison, or the reason why there is none."""
    scored = [group for group in report.groups if group.normalized and len(group.scores)]
    if not scored:
        return "Aggregates need normalized scores, which need evaluations and a data set with reference returns."
    scores: dict[str, dict[str, Array]] = defaultdict(dict)  # data set, label
    for group in scored:
        if len(group.scores) > 1:  # a single run shows no spread, and an interval without it would mislead
            scores[group.dataset][group.label] = group.scores
    if not scores:
        return "Aggregates with intervals need at least two seeds of an algorithm on a data set; here each has one."
    labels, datasets = _shared(scores)
    tables = {label: {dataset: scores[dataset][label] for dataset in datasets} for label in labels}
    ranked = sorted(labels, key=lambda label: -statistics.mean(tables[label]))[:_MOST_COMPARED]
    compared = [label for label in report.labels if label in ranked]
    everything = np.concatenate([runs for label in compared for runs in tables[label].values()])
    low, high = float(everything.min()), float(everything.max())
    margin = (high - low) * 0.05 or 1.0
    thresholds = np.linspace(low - margin, high + margin, _THRESHOLDS)
    return Comparison(
        labels=compared,
        datasets=datasets,
        left_out=len(labels) - len(compared),
        fewest=min(len(runs) for label in compared for runs in tables[label].values()),
        aggregates={
            name: {
                label: statistics.estimate(tables[label], aggregate, replications=_REPLICATIONS) for label in compared
            }
            for name, aggregate in AGGREGATES.items()
        },
        profiles={label: statistics.performance_profile(tables[label], thresholds) for label in compared},
        improvements={
            (better, worse): statistics.probability_of_improvement(
                tables[better], tables[worse], replications=_REPLICATIONS
            )
            for better, worse in combinations(ranked, 2)
        },
    )


def _shared(scores: dict[str, dict[str, Array]]) -> tuple[list[str], list[str]]:
    """Labels and the data sets that all of them have scores on: two labels at least if it can be, then most of both."""
    best: tuple[bool, int] = (False, 0)
    chosen: tuple[list[str], list[str]] = ([], [])
    for own in scores.values():
        labels = list(own)
        datasets = [dataset for dataset, others in scores.items() if set(labels) <= others.keys()]
        worth = (len(labels) > 1, len(labels) * len(datasets))
        if worth > best:
            best, chosen = worth, (labels, datasets)
    return chosen
