"""Plots of runs as files (needs matplotlib: the extra `plot`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from mildly.errors import MildlyError
from mildly.files import atomic_write, writable
from mildly.run import Run

_COLORS = ("#0f6cbd", "#d1661c", "#2e8b57", "#8a4fbf", "#b0303a", "#6b6b6b")


def learning_curves(
    runs: Mapping[str, Run],
    path: str | os.PathLike[str],
    *,
    levels: Mapping[str, float] | None = None,
    title: str = "",
) -> Path:
    """Score against gradient steps, and horizontal lines to compare with.

    A point is the mean of an evaluation, the band around it the middle half of its episodes.

    Args:
        runs: what to draw, by label.
        path: the file to write; its ending decides the format (.png, .svg, .pdf).
        levels: scores to mark across the picture, by label.
        title: above the picture.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MildlyError("plots need matplotlib: pip install 'mildly[plot]'.") from error
    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    normalized = True
    for (label, run), color in zip(runs.items(), _COLORS, strict=False):
        lines = run.evaluations()
        normalized &= all(line["scores"] is not None for line in lines)
        steps = [line["step"] for line in lines]
        episodes = [np.asarray(line["scores"] or line["returns"]) for line in lines]
        axes.plot(steps, [e.mean() for e in episodes], color=color, linewidth=2, marker="o", markersize=3, label=label)
        low, high = (np.array([np.quantile(e, share) for e in episodes]) for share in (0.25, 0.75))
        axes.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
    axes.fill_between(
        [], [], [], color="#555555", alpha=0.25, linewidth=0, label="bands: the middle half of the episodes"
    )
    for (label, level), style in zip((levels or {}).items(), ("--", ":", "-."), strict=False):
        axes.axhline(level, color="#555555", linestyle=style, linewidth=1.3, label=label)
    axes.set_xlabel("gradient steps")
    axes.set_ylabel("normalized score (0 random, 100 expert)" if normalized else "return")
    axes.set_title(title, loc="left")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(-0.02, -0.13), ncols=4)  # below the curves
    path = writable(path)
    with atomic_write(path) as unfinished:
        figure.savefig(unfinished, dpi=150)
    return path
