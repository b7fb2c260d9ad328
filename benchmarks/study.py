"""A study of a sweep: a table of the final scores, settings by data sets, and a picture.

Usage:

    python benchmarks/study.py runs/lambda --of lam --picture docs/images/lambda.png -o benchmarks/results/lambda.json

A setting is the variant of the sweep (`lam=0.3`, or a name), the algorithm, or both where both differ.
The picture shows final scores against the hyperparameter of `--of`, without one scores against steps, or with `--final`
the final score of every run, the mean of its last ten evaluations. The record holds every episode's return.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from record import record, write

from mildly.data.tasks import base_name
from mildly.evaluation.results import Result, load_results, std_over_seeds
from mildly.run import Run

Groups = dict[str, dict[str, list[Result]]]
"""By setting, then by data set: the runs of all seeds."""


def grouped(results: Sequence[Result]) -> Groups:
    """Runs by setting and data set, in the order in which settings are found."""
    groups: Groups = {}
    several = len({result.plan.algorithm for result in results}) > 1
    for result in results:
        if result.evaluations:
            algorithm, variant = result.plan.algorithm, result.plan.variant
            label = algorithm if not variant else f"{algorithm}, {variant}" if several else variant
            groups.setdefault(label, {}).setdefault(result.plan.data.name, []).append(result)
    return groups


def beside(groups: Groups, baseline: str) -> Groups:
    """A setting first, and behind it the others, the best on average first."""
    if baseline not in groups:
        raise SystemExit(f"no such setting: {baseline}; there are {', '.join(groups)}")
    others = sorted(groups, key=lambda setting: -statistics.mean(map(_mean, groups[setting].values())))
    return {setting: groups[setting] for setting in (baseline, *others)}


def table(groups: Groups) -> str:
    """Markdown: mean and deviation over seeds, the mean over data sets, and the mean rank among the settings."""
    datasets = _datasets(groups)
    means = {name: {setting: _mean(row[name]) for setting, row in groups.items() if name in row} for name in datasets}
    best = {name: max(values.values()) for name, values in means.items()}
    lines = [f"| | {' | '.join(datasets)} | mean | mean rank |", "|" + "---|" * (len(datasets) + 3)]
    for setting, row in groups.items():
        cells = [_cell(row.get(name, []), best[name]) for name in datasets]
        there = [name for name in datasets if name in row]
        ranks = [1 + sum(other > means[name][setting] for other in means[name].values()) for name in there]
        overall = statistics.mean(means[name][setting] for name in there)
        lines.append(f"| {setting} | {' | '.join(cells)} | {overall:.1f} | {statistics.mean(ranks):.1f} |")
    return "\n".join(lines)


def _mean(results: Sequence[Result]) -> float:
    return statistics.mean(result.score for result in results if result.score is not None)


def _cell(results: Sequence[Result], best: float) -> str:
    if not results:
        return "-"
    deviation = std_over_seeds([result.score for result in results if result.score is not None])
    text = f"{_mean(results):.1f}" + ("" if deviation is None else f" ± {deviation:.1f}")
    return f"**{text}**" if _mean(results) == best else text


_COLORS = ("#2a6f97", "#e09f3e", "#6a994e", "#7b2d8b", "#d1495b", "#577590")


def curves(groups: Groups, field: str, name: str) -> dict[str, dict[Any, list[Result]]]:
    """A data set's runs by the rest of their setting, then by the field's value."""
    found: dict[str, dict[Any, list[Result]]] = {}
    for setting, row in groups.items():
        label = ",".join(part for part in setting.split(",") if not part.startswith(f"{field}="))
        if name in row:
            found.setdefault(label, {})[row[name][0].plan.flat_config[field]] = row[name]
    return found


def draw(groups: Groups, field: str, path: Path) -> None:
    """Above the final score, below the value of the data's actions at the end, against a hyperparameter."""
    from matplotlib.figure import Figure

    datasets = _datasets(groups)
    figure = Figure(figsize=(2.9 * len(datasets), 4.6), layout="constrained", dpi=110)
    axes = figure.subplots(2, len(datasets), squeeze=False)
    for column, name in enumerate(datasets):
        for axis, measure in zip(axes[:, column], (_scores, _values), strict=True):
            for color, (label, by_value) in zip(_COLORS, curves(groups, field, name).items(), strict=False):
                numbers = sorted(value for value in by_value if not isinstance(value, str))
                means, deviations = zip(*(measure(by_value[value]) for value in numbers), strict=True)
                axis.errorbar(range(len(numbers)), means, deviations, marker="o", capsize=3, color=color, label=label)
                axis.set_xticks(range(len(numbers)), [str(value) for value in numbers], fontsize=7)
                for value in by_value.keys() - set(numbers):
                    mean, deviation = measure(by_value[value])
                    axis.axhline(mean, color="#d1495b", label=str(value))
                    axis.axhspan(mean - deviation, mean + deviation, color="#d1495b", alpha=0.12)
            if axis.get_legend_handles_labels()[1]:
                axis.legend(fontsize=7, frameon=False)
            _style(axis, name if axis is axes[0, column] else "")
        axes[1, column].set_xlabel({"lam": "λ", "num_actions": "N"}.get(field, field), fontsize=9)
    axes[0, 0].set_ylabel("final score", fontsize=9)
    axes[1, 0].set_ylabel("Q of the data's actions", fontsize=9)
    figure.savefig(path)


def draw_learning(groups: Groups, path: Path) -> None:
    """The score on the way, a panel per data set, a line per setting: the mean over seeds."""
    from matplotlib.figure import Figure

    datasets = _datasets(groups)
    figure = Figure(figsize=(2.9 * len(datasets), 2.6), layout="constrained", dpi=110)
    for axis, name in zip(figure.subplots(1, len(datasets), squeeze=False)[0], datasets, strict=True):
        for color, (setting, row) in zip(_COLORS, groups.items(), strict=False):
            lines = [result.evaluations for result in row.get(name, [])]
            steps = [line["step"] for line in min(lines, key=len, default=[])]
            scores = [[line["score"] for line in own[: len(steps)]] for own in lines]
            axis.plot(np.array(steps) / 1000, np.mean(scores, axis=0), color=color, label=setting)
        axis.set_xlabel("thousand steps", fontsize=8)
        _style(axis, name)
    figure.axes[0].set_ylabel("score", fontsize=9)
    figure.axes[0].legend(fontsize=8, frameon=False)
    figure.savefig(path)


def draw_final(groups: Groups, path: Path, baseline: str = "") -> None:
    """A panel per data set, a row per setting: a dot for every run's final score, a bar for their mean.

    A line stands at the mean of the baseline, if there is one.
    """
    from matplotlib.figure import Figure

    datasets, settings = _datasets(groups), list(groups)[::-1]
    figure = Figure(figsize=(1.2 + 2.6 * len(datasets), 0.8 + 0.24 * len(settings)), layout="constrained", dpi=110)
    for axis, name in zip(figure.subplots(1, len(datasets), sharey=True, squeeze=False)[0], datasets, strict=True):
        for place, setting in enumerate(settings):
            results = groups[setting].get(name, [])
            scores = [result.score for result in results if result.score is not None]
            axis.barh(place, statistics.mean(scores) if scores else 0.0, color=_COLORS[0], alpha=0.35)
            axis.scatter(scores, [place] * len(scores), s=12, color=_COLORS[0], zorder=3)
        if name in groups.get(baseline, {}):
            axis.axvline(_mean(groups[baseline][name]), color=_COLORS[4], linewidth=1, zorder=2)
        axis.set_yticks(range(len(settings)), settings, fontsize=8)
        axis.set_xlabel("final score", fontsize=8)
        _style(axis, name)
    figure.savefig(path)


def _datasets(groups: Groups) -> list[str]:
    return list(dict.fromkeys(name for row in groups.values() for name in row))


def _style(axis: Any, name: str) -> None:
    """A light grid, no frame, and the data set's name above."""
    axis.set_title(base_name(name), fontsize=9, loc="left")
    axis.spines[["top", "right"]].set_visible(False)
    axis.grid(alpha=0.25)


def _scores(results: Sequence[Result]) -> tuple[float, float]:
    scores = [result.score for result in results if result.score is not None]
    return statistics.mean(scores), std_over_seeds(scores) or 0.0


def _values(results: Sequence[Result]) -> tuple[float, float]:
    values = [float(np.mean([line["q_data"] for line in Run(r.path).metrics()[-5:]])) for r in results]
    return statistics.mean(values), std_over_seeds(values) or 0.0


def main() -> None:
    """Read the sweep, print the table, draw and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweep", type=Path, nargs="+", help="folders of sweeps")
    parser.add_argument("--of", default="", help="the hyperparameter for the picture, such as lam")
    parser.add_argument("--final", action="store_true", help="the picture is of final scores alone")
    parser.add_argument("--baseline", default="", help="the setting that the others are compared with")
    parser.add_argument("--picture", type=Path, help="PNG file to write")
    parser.add_argument("-o", "--out", type=Path, help="record to write")
    parser.add_argument("--note", default="", help="what a reader of the record should know")
    args = parser.parse_args()
    results = load_results(args.sweep)
    groups = grouped(results)
    groups = beside(groups, args.baseline) if args.baseline else groups
    print(table(groups))
    incomplete = [str(result.path) for result in results if not result.complete]
    if incomplete:
        print(f"\n{len(incomplete)} of {len(results)} runs are not complete, first {incomplete[0]}.")
    if args.picture and args.of:
        draw(groups, args.of, args.picture)
    elif args.picture and args.final:
        draw_final(groups, args.picture, args.baseline)
    elif args.picture:
        draw_learning(groups, args.picture)
    if args.out:
        records: list[dict[str, Any]] = [record(Run.open(result.path), lines=20) for result in results]
        write(args.out, args.note, records)


if __name__ == "__main__":
    main()
