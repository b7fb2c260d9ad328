"""The paper's figures, drawn from the runs so far (matplotlib, extra `plot`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mildly.errors import MildlyError
from mildly.evaluation.results import Result
from mildly.files import atomic_write
from mildly.paper.matching import changes, closest_to_paper, is_recollected, official_name
from mildly.paper.reproductions import METHODS, Reproduction
from mildly.report.chart_files import plain_text
from mildly.report.curves import MeanCurve, mean_curve
from mildly.run import Run, is_number

_VALUES = {"q_data": "in the data", "q_ood": "of the policy's actions", "q_target": "target"}


def parameter_study(reproduction: Reproduction, results: Sequence[Result], path: Path) -> Path:
    """Scores and values of the data's actions against lambda (above) and N (below), for each data set."""
    usual = Counter(_setting(result, "num_actions") for result in results if result.plan.algorithm == "mcq")
    number = 10 if 10 in usual or not usual else usual.most_common(1)[0][0]
    rows: list[tuple[str, Callable[[Result], bool]]] = [
        ("lam", lambda result: _setting(result, "num_actions") == number),
        ("num_actions", lambda result: _setting(result, "lam") == 0.95),
    ]
    datasets = [name for name in reproduction.datasets if _runs_on(name, reproduction, results)]
    if not datasets:
        raise MildlyError(f"{reproduction.name}: no run has been evaluated or logged yet, so there is nothing to draw.")
    figure, axes = _axes(len(rows), 2 * len(datasets))
    for row, (parameter, belongs) in enumerate(rows):
        for i, name in enumerate(datasets):
            groups: dict[Any, list[Result]] = {}
            for result in _runs_on(name, reproduction, results):
                if belongs(result):
                    groups.setdefault(_setting(result, parameter), []).append(result)
            score, value = axes[row][2 * i], axes[row][2 * i + 1]
            for setting in sorted(groups, key=lambda value: (isinstance(value, str), value)):  # "auto" last
                label = f"{'λ' if parameter == 'lam' else 'N'} = {setting}"
                alike = closest_to_paper(groups[setting])
                _draw(score, _curve(alike, _scores), label)
                _draw(value, _curve(alike, _metric("q_data")), label)
            title = _title(name, closest_to_paper(_runs_on(name, reproduction, results)))
            score.set_title(f"score, {title}", fontsize=9, loc="left")
            value.set_title(f"Q of the data's actions, {title}", fontsize=9, loc="left")
            if groups:
                score.legend(fontsize=7, frameon=False)
    return _save(figure, path)


def value_estimates(reproduction: Reproduction, results: Sequence[Result], path: Path) -> Path:
    """Value estimates against time, a panel for each data set."""
    datasets = [name for name in reproduction.datasets if _runs_on(name, reproduction, results)]
    if not datasets:
        raise MildlyError(f"{reproduction.name}: no run has been evaluated or logged yet, so there is nothing to draw.")
    figure, axes = _axes(1, len(datasets))
    for axis, name in zip(axes[0], datasets, strict=True):
        alike = closest_to_paper(_runs_on(name, reproduction, results))
        for metric, label in _VALUES.items():
            _draw(axis, _curve(alike, _metric(metric)), f"Q {label}")
        changed = "".join(f", {change}" for change in changes(alike[0].plan))
        axis.set_title(plain_text(_title(name, alike) + changed), fontsize=9, loc="left")
    axes[0][0].legend(fontsize=7, frameon=False)
    return _save(figure, path)


def offline_to_online(reproduction: Reproduction, results: Sequence[Result], path: Path) -> Path:
    """Scores on the data and then in the environment, a panel for each data set and a line for each method."""
    tuned = [result for result in results if result.plan.finetune]
    by_set = {name: _runs_on(name, reproduction, tuned, *METHODS.values()) for name in reproduction.datasets}
    there = {name: runs for name, runs in by_set.items() if any(map(_scores, runs))}
    if not there:
        raise MildlyError(
            f"{reproduction.name}: no run has been fine-tuned and evaluated yet. There is nothing to draw."
        )
    columns = min(3, len(there))
    figure, axes = _axes(-(-len(there) // columns), columns)
    for axis in axes.flat[len(there) :]:
        axis.set_axis_off()
    for axis, (name, runs) in zip(axes.flat, there.items(), strict=False):
        shown = []
        for method in reproduction.methods:
            alike = closest_to_paper([result for result in runs if result.plan.algorithm == METHODS[method]])
            _draw(axis, _curve(alike, _scores), f"{method} ({len(alike)} seeds)" if len(alike) > 1 else method)
            shown += alike
        for start in {result.plan.offline_steps for result in shown}:
            axis.axvline(start, color="#777777", linestyle="--", linewidth=1)
        axis.set_title(f"score, {_title(name, shown)}", fontsize=9, loc="left")
        axis.set_xlabel("gradient steps, then online steps (dashed line)", fontsize=8)
        axis.legend(fontsize=7, frameon=False)
    return _save(figure, path)


def _setting(result: Result, name: str) -> float | str:
    """A number, or a text such as "auto"; anything else that a damaged `run.json` may hold is told as text, too."""
    value: Any = result.plan.flat_config.get(name)
    return float(value) if is_number(value) else str(value)


def _title(name: str, results: Sequence[Result]) -> str:
    return f"{name} (re-collected)" if any(map(is_recollected, results)) else name


def _runs_on(name: str, reproduction: Reproduction, results: Sequence[Result], *algorithms: str) -> list[Result]:
    """The runs of algorithms, of MCQ if none is named, on a data set, official or re-collected."""
    known, asked = reproduction.datasets, algorithms or ("mcq",)
    return [r for r in results if r.plan.algorithm in asked and official_name(r.plan.data.name, known) == name]


def _scores(result: Result) -> dict[int, float]:
    return {line["step"]: line["score"] for line in result.evaluations if line["score"] is not None}


def _metric(name: str) -> Callable[[Result], dict[int, float]]:
    return lambda result: {line["step"]: line[name] for line in Run(result.path).metrics() if name in line}


def _curve(results: Sequence[Result], values: Callable[[Result], dict[int, float]]) -> MeanCurve | None:
    """Mean and deviation over runs, as far as all of them have come."""
    lines = [found for result in results if (found := values(result))]
    curve = mean_curve([(np.array(list(line)), np.array(list(line.values()))) for line in lines])
    return None if curve is None else curve.at(curve.runs == len(lines))


def _axes(rows: int, columns: int) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MildlyError("figures need matplotlib: pip install 'mildly[plot]'.") from error
    figure = Figure(figsize=(3.6 * columns, 2.7 * rows), layout="constrained", dpi=150)
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
        axis.set_xlabel("gradient steps", fontsize=8)
        axis.tick_params(labelsize=7)
    return figure, axes


def _draw(axis: Any, curve: MeanCurve | None, label: str) -> None:
    if curve is None:
        return
    (line,) = axis.plot(curve.steps, curve.mean, linewidth=1.3, label=plain_text(label))
    band = curve.mean - curve.std, curve.mean + curve.std
    axis.fill_between(curve.steps, *band, color=line.get_color(), alpha=0.2, linewidth=0)


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished, format=path.suffix.removeprefix(".") or "png")
    return path
