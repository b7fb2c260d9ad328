"""The charts of a report as plain data, which the page's script and matplotlib both draw from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from mildly.data.dataset import Array
from mildly.report.comparison import Comparison
from mildly.report.curves import MOST_POINTS, MeanCurve, mean_curve, thin
from mildly.report.grouping import Group
from mildly.report.reading import VALUES
from mildly.report.summary import Report

ChartSpec = dict[str, Any]

LIGHT = ("#0072b2", "#d55e00", "#009e73", "#b3559a", "#c98a00", "#3d9ddb", "#5a5a5a", "#7a5c12")
DARK = ("#5ab4f0", "#ff9254", "#35cfa4", "#e79bd0", "#f2bd42", "#a5d8ff", "#c9c9c9", "#d0a850")
"""Colors that differ for people with any color vision, on white and on black."""
VALUE_LIGHT = ("#332288", "#aa3377", "#117733", "#8a8420")
VALUE_DARK = ("#a79cf5", "#f08cc4", "#62cc83", "#d3cd6a")
DASHES = ("", "7 4", "2 3", "9 3 2 3")
"""Colors that come again have another dash."""
_VALUE_NAMES = {
    "q_data": "data's actions (q_data)",
    "q_ood": "policy's actions (q_ood)",
    "pseudo_target": "pseudo target",
    "q_target": "TD target (q_target)",
}
_RUN_POINTS = 120
_VALUE_POINTS, _LEAST_VALUE_POINTS = 160, 60
_ALL_VALUE_POINTS = 16_000  # of the charts of all groups together; with hundreds of groups each chart gets fewer


def chart_specs(report: Report, comparison: Comparison | str) -> dict[str, ChartSpec]:
    """Every chart by the name under which the page asks for it."""
    specs = {f"learning-{i}": learning(report, dataset) for i, dataset in enumerate(report.datasets)}
    specs |= {f"values-{i}": values(report, group) for i, group in enumerate(report.groups)}
    if isinstance(comparison, Comparison):
        specs["aggregates"] = _aggregates(report, comparison)
        specs["profiles"] = _profiles(report, comparison)
        if comparison.improvements:
            specs["improvements"] = _improvements(report, comparison)
    return {name: spec for name, spec in specs.items() if spec.get("series") or spec.get("panels")}


def style(report: Report, label: str) -> ChartSpec:
    """The color and dash of a label, the same in every chart."""
    place = report.labels.index(label)
    return {"color": f"s{place % len(LIGHT)}", "dash": DASHES[place // len(LIGHT) % len(DASHES)]}


def learning(report: Report, dataset: str) -> ChartSpec:
    """Scores against steps, a line for each group."""
    groups = report.on(dataset)
    return {
        "kind": "line",
        "title": dataset,
        "file": f"learning-{slug(dataset)}",
        "xLabel": "gradient steps",
        "xName": "step",
        "yLabel": "normalized score" if groups[0].normalized else "return",
        "choice": True,
        "marks": _marks(groups),
        "series": [_learning_series(report, group) for group in groups if any(len(x) for x, _ in group.evaluated())],
    }


def _marks(groups: Iterable[Group]) -> list[ChartSpec]:
    """Where fine-tuning begins: upright lines with a word."""
    stages = (stage for group in groups for stage in group.records[0].plan.finetune)
    words = {stage.start: "online" if stage.online else "further logs" for stage in stages}
    return [{"x": start, "label": f"{word} from here"} for start, word in sorted(words.items())]


def _learning_series(report: Report, group: Group) -> ChartSpec:
    runs = group.evaluated()
    curve = mean_curve(runs)
    assert curve is not None
    series = _series(curve, MOST_POINTS) | {"label": group.label, **style(report, group.label)}
    if len(runs) > 1:
        chosen = [(steps, scores, thin(steps, scores, _RUN_POINTS)) for steps, scores in runs]
        series["runs"] = [{"x": _whole(steps[at]), "y": _rounded(scores[at])} for steps, scores, at in chosen]
    return series


def values(report: Report, group: Group) -> ChartSpec:
    """Value estimates against steps: of the data's actions, of the policy's actions, and the targets."""
    points = max(_LEAST_VALUE_POINTS, min(_VALUE_POINTS, _ALL_VALUE_POINTS // len(report.groups)))
    series = []
    for place, name in enumerate(VALUES):
        curve = mean_curve([_column(record.metrics, name) for record in group.records])
        if curve is not None:
            look = {"color": f"v{place}", "dash": DASHES[place]}
            series.append(_series(curve, points, ends=False) | {"label": _VALUE_NAMES[name], **look})
    return {
        "kind": "line",
        "title": f"{group.label}, {group.dataset}" if len(report.datasets) > 1 else group.label,
        "color": style(report, group.label)["color"],
        "file": f"values-{slug(group.dataset)}-{slug(group.label)}",
        "xLabel": "gradient steps",
        "xName": "step",
        "yLabel": "value",
        "band": "std",
        "relative": "value less that of the data's actions" if any(s["color"] == "v0" for s in series) else "",
        "series": series,
    }


def _column(lines: Iterable[Mapping[str, Any]], name: str) -> tuple[Array, Array]:
    found = [(line["step"], line[name]) for line in lines if name in line]
    return np.array([step for step, _ in found]), np.array([value for _, value in found], dtype=np.float64)


def _series(curve: MeanCurve, most: int, *, ends: bool = True) -> ChartSpec:
    """A curve in few points and few digits; the deviation of a single run is left out."""
    curve = curve.at(thin(curve.steps, curve.mean, most))
    series: ChartSpec = {"x": _whole(curve.steps), "y": _rounded(curve.mean)}
    if curve.runs.max() > 1:
        series["std"] = _rounded(curve.std)
        if ends:
            series |= {"low": _rounded(curve.low), "high": _rounded(curve.high)}
    if curve.runs.min() != curve.runs.max():
        series["n"] = _whole(curve.runs)
    return series


def _aggregates(report: Report, comparison: Comparison) -> ChartSpec:
    panels = [
        {
            "title": name,
            "rows": [_row(label, style(report, label)["color"], found[label]) for label in comparison.labels],
        }
        for name, found in comparison.aggregates.items()
    ]
    return {"kind": "interval", "title": "Aggregate scores", "file": "aggregates", "panels": panels}


def _improvements(report: Report, comparison: Comparison) -> ChartSpec:
    rows = [
        _row(f"{better} > {worse}", style(report, better)["color"], found)
        for (better, worse), found in comparison.improvements.items()
    ]
    panel = {"title": "probability", "rows": rows, "range": [0, 1], "reference": 0.5}
    return {"kind": "interval", "title": "Probability of improvement", "file": "improvement", "panels": [panel]}


def _row(label: str, color: str, found: Any) -> ChartSpec:
    point, low, high = _rounded([found.value, found.low, found.high])
    return {"label": label, "color": color, "point": point, "low": low, "high": high}


def _profiles(report: Report, comparison: Comparison) -> ChartSpec:
    series = [
        {
            "label": label,
            **style(report, label),
            "x": _rounded(curve.at),
            "y": _rounded(curve.value),
            "low": _rounded(curve.low),
            "high": _rounded(curve.high),
        }
        for label, curve in comparison.profiles.items()
    ]
    across = next(iter(comparison.profiles.values())).at
    return {
        "kind": "line",
        "title": "Performance profiles",
        "file": "profiles",
        "xLabel": "normalized score",
        "xName": "score above",
        "yLabel": "fraction of runs with a higher score",
        "band": "range",
        "range": [0, 1],
        "across": _rounded([across[0], across[-1]]),
        "series": series,
    }


def slug(text: str) -> str:
    """A name for a file."""
    return re.sub(r"[^\w.=+-]+", "-", text).strip("-.").encode()[:80].decode(errors="ignore") or "chart"


def _rounded(values: Iterable[float]) -> list[float]:
    """Five digits are more than a screen shows."""
    short = (float(f"{value:.5g}") for value in values)
    return [int(value) if value.is_integer() else value for value in short]


def _whole(values: Iterable[float]) -> list[int]:
    return [int(value) for value in values]
