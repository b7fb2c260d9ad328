"""A picture of a dynamics model's check (needs matplotlib: the extra `plot`)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np

from mildly.dynamics.check import LEVELS, ModelCheck
from mildly.errors import MildlyError
from mildly.files import atomic_write
from mildly.report.chart_files import plain_text
from mildly.report.dataset import picture_path

_BLUE, _ORANGE, _GREY = "#0072b2", "#d55e00", "#5a5a5a"


def draw(found: ModelCheck, path: str | os.PathLike[str]) -> Path:
    """Two panels: how errors grow with the steps, and how often the truth lies in intervals of each level."""
    path = picture_path(path)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MildlyError("plots need matplotlib: pip install 'mildly[plot]'.") from error
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    growth, calibration = figure.subplots(1, 2)
    _growth(growth, found)
    _calibration(calibration, found)
    for axes in (growth, calibration):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(alpha=0.25)
        axes.legend(frameon=False)
    title = f"{found.data}: {found.transitions:,} unseen transitions"
    figure.suptitle(plain_text(title), x=0.012, ha="left", fontweight="bold")
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished, dpi=150, format=path.suffix[1:].lower())
    return path


def _growth(axes: Any, found: ModelCheck) -> None:
    steps = [row.steps for row in found.growth]
    axes.plot(steps, [row.error for row in found.growth], color=_BLUE, marker="o", markersize=3, label="model")
    axes.plot(steps, [row.median for row in found.growth], color=_BLUE, linestyle=":", label="model, median start")
    axes.plot(steps, [row.no_change for row in found.growth], color=_ORANGE, linestyle="--", label="no change")
    axes.set(title="Error after many steps", xlabel="steps", ylabel="standard deviations of the data")
    axes.set(xscale="log", yscale="log")


def _calibration(axes: Any, found: ModelCheck) -> None:
    coverage = np.array([column.coverage for column in found.columns])
    axes.plot((0, 1), (0, 1), color=_GREY, linewidth=1, label="calibrated")
    axes.plot(LEVELS, coverage.T, color=_BLUE, alpha=0.25, linewidth=1)
    axes.plot(LEVELS, coverage.mean(axis=0), color=_BLUE, marker="o", markersize=3, label="mean of all columns")
    axes.set(title="Calibration of one step", xlabel="interval", ylabel="share of what happened inside it")
