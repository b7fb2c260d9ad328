"""A report's charts as picture files (needs matplotlib: the extra `plot`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mildly.errors import MildlyError, printable
from mildly.files import atomic_write
from mildly.report.charts import LIGHT, VALUE_LIGHT, ChartSpec

_FORMATS = ("png", "svg")
_MOST_IN_LEGEND = 12
_STYLE: dict[Any, Any] = {
    "font.size": 9.5,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.edgecolor": "#999999",
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.hashsalt": "mildly",  # equal figures are equal files
}
_AT_TOP: dict[str, Any] = {"xycoords": ("data", "axes fraction"), "textcoords": "offset points", "fontsize": 8}
_COLORS = {f"s{i}": color for i, color in enumerate(LIGHT)} | {f"v{i}": c for i, c in enumerate(VALUE_LIGHT)}


def write_figures(specs: Mapping[str, ChartSpec], folder: str | os.PathLike[str]) -> list[Path]:
    """Draw every chart into a folder, as PNG and SVG."""
    try:
        import matplotlib
    except ImportError as error:
        raise MildlyError("figures need matplotlib: pip install 'mildly[plot]'.") from error
    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    with matplotlib.rc_context(_STYLE):
        for name, spec in _file_names(specs).items():
            figure = (_intervals if spec["kind"] == "interval" else _lines)(spec)
            for ending in _FORMATS:
                path = folder / f"{name}.{ending}"
                with atomic_write(path) as unfinished:
                    metadata = {"Date": None} if ending == "svg" else {}
                    figure.savefig(unfinished, dpi=150, format=ending, metadata=metadata)
                written.append(path)
    return written


def _file_names(specs: Mapping[str, ChartSpec]) -> dict[str, ChartSpec]:
    """Charts by the name of their file, with a number where two would share one."""
    named: dict[str, ChartSpec] = {}
    for spec in specs.values():
        name, number = spec["file"], 2
        while name in named:
            name, number = f"{spec['file']}-{number}", number + 1
        named[name] = spec
    return named


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _lines(spec: ChartSpec) -> Any:
    """Means with their bands."""
    figure = _figure(6.4, 4)
    axes = figure.subplots()
    for series in spec["series"]:
        x, y = np.array(series["x"]), np.array(series["y"])
        look = {"color": _COLORS[series["color"]], "linestyle": _dash(series["dash"]), "linewidth": 1.8}
        axes.plot(x, y, label=plain_text(series["label"]), marker="o" if len(x) == 1 else None, **look)
        if spec.get("band") == "range":
            axes.fill_between(x, series["low"], series["high"], color=look["color"], alpha=0.15, linewidth=0)
        elif "std" in series:
            spread = np.array(series["std"])
            axes.fill_between(x, y - spread, y + spread, color=look["color"], alpha=0.15, linewidth=0)
    for mark in spec.get("marks", ()):
        axes.axvline(mark["x"], color="#777777", linestyle="--", linewidth=1)
        axes.annotate(mark["label"], (mark["x"], 1), (3, -9), **_AT_TOP)
    axes.set(title=plain_text(spec["title"]), xlabel=spec["xLabel"], ylabel=spec["yLabel"])
    if len(spec["series"]) <= _MOST_IN_LEGEND:
        axes.legend(frameon=False)
    return figure


def _intervals(spec: ChartSpec) -> Any:
    """Points with intervals, a panel for each statistic."""
    panels = spec["panels"]
    rows = len(panels[0]["rows"])
    figure = _figure(max(5.5, 3.1 * len(panels)), 1.1 + 0.3 * rows)
    for i, (axes, panel) in enumerate(zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True)):
        for place, row in enumerate(panel["rows"]):
            color = _COLORS[row["color"]]
            axes.barh(place, row["high"] - row["low"], left=row["low"], height=0.5, color=color, alpha=0.4)
            axes.vlines(row["point"], place - 0.33, place + 0.33, color=color, linewidth=2.5)
        if "reference" in panel:
            axes.axvline(panel["reference"], color="#777777", linestyle="--", linewidth=1)
            axes.set_xlim(*panel["range"])
        axes.set_yticks(range(rows), [plain_text(row["label"]) for row in panel["rows"]] if i == 0 else [""] * rows)
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.set_title(plain_text(panel["title"]), fontsize=10)
    figure.suptitle(plain_text(spec["title"]), x=0.01, ha="left")
    return figure


def _dash(pattern: str) -> Any:
    return (0, tuple(map(float, pattern.split()))) if pattern else "-"


def plain_text(text: str) -> str:
    """Text that matplotlib does not take for mathematics, and whose characters a font can have."""
    return printable(text).replace("$", r"\$")
