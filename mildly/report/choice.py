"""A choice among policies as one HTML page: the verdict, intervals, a map of what the data cover, diagnostics."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path

import numpy as np

from mildly.files import atomic_write, writable
from mildly.ope.choose import Candidate, Choice
from mildly.ope.estimators import Estimate
from mildly.report.markup import Html, escaped, join, paragraph, section, tag

_WIDTH, _ROW, _LEFT, _MAP = 760, 30, 240, 320  # of the pictures, in pixels
_POINTS = 600  # of a map


def write_choice(choice: Choice, path: str | os.PathLike[str]) -> Path:
    """Write the page, which needs nothing else."""
    path = writable(path)
    with atomic_write(path) as unfinished:
        unfinished.write_text(render(choice), encoding="utf-8")
    return path


def render(choice: Choice) -> str:
    """The page's text."""
    about = (
        f"Discounted returns (gamma {choice.gamma:g}) from the starts of {choice.episodes:,} episodes of "
        f"{choice.dataset}. Bars are 95 % intervals."
    )
    parts = [
        section("verdict", "Verdict", paragraph(choice.verdict), *(paragraph(note, "faint") for note in choice.notes)),
        section("intervals", "What each would earn", _intervals(choice), paragraph(about, "faint")),
        section("coverage", "What the data know of their actions", *_maps(choice)),
        section("grades", "How far the estimators can be believed on this log", *_grades(choice)),
        section("diagnostics", "Diagnostics", *(_diagnostics(each) for each in choice.candidates)),
    ]
    style = (files("mildly.report") / "page.css").read_text(encoding="utf-8")
    title = f"Choice on {choice.dataset}"
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escaped(title)}</title>'
        f"<style>{style}</style></head><body><header>{tag('h1', title)}</header>{tag('main', *parts)}</body></html>\n"
    )


def _intervals(choice: Choice) -> Html:
    """A row for the log and each candidate: the interval as a line, the value as a dot."""
    rows = [("the log", choice.log), *((each.run, each.value) for each in choice.candidates)]
    known = [(name, one) for name, one in rows if np.isfinite(one.value)]
    low, high = min(one.low for _, one in known), max(one.high for _, one in known)
    scale = (_WIDTH - _LEFT - 20) / ((high - low) or 1.0)
    drawn = [mark for i, (name, one) in enumerate(known) for mark in _interval(name, one, i, low, scale)]
    at = f"{_LEFT + (choice.log.value - low) * scale:.1f}"
    line = tag("line", x1=at, x2=at, y1="0", y2=f"{_ROW * len(known)}", stroke="currentColor", stroke_dasharray="3 4")
    return _picture(_WIDTH, _ROW * len(known), "Intervals of the log and all candidates", line, *drawn)


def _interval(name: str, one: Estimate, row: int, low: float, scale: float) -> Iterator[Html]:
    middle = f"{_ROW * (row + 0.5):.1f}"
    ends = [f"{_LEFT + (x - low) * scale:.1f}" for x in (one.low, one.value, one.high)]
    shown = name if len(name) <= 32 else f"…{name[-31:]}"
    yield tag("text", shown, x="0", y=middle, dominant_baseline="middle", fill="currentColor", font_size="13")
    yield tag("line", x1=ends[0], x2=ends[2], y1=middle, y2=middle, stroke="var(--accent)", stroke_width="3")
    yield tag("circle", tag("title", f"{one.value:.4g}"), cx=ends[1], cy=middle, r="5", fill="var(--accent)")


def _maps(choice: Choice) -> Iterator[Html]:
    yield paragraph(
        "Each dot is a state of the data, along the two directions in which states differ most. Red: the policy does "
        "there what the data hardly show. The log itself has 5 % of such states.",
        "faint",
    )
    points = choice.projection[:_POINTS]
    low, size = points.min(axis=0), np.maximum(np.ptp(points, axis=0), 1e-9)
    places = 8 + (points - low) / size * (_MAP - 16)
    for each in choice.candidates:
        colors = ["var(--accent)" if known else "var(--bad)" for known in each.covered.covered[:_POINTS]]
        dots = [
            tag("circle", cx=f"{x:.0f}", cy=f"{y:.0f}", r="2", fill=color, fill_opacity="0.7")
            for (x, y), color in zip(places, colors, strict=True)
        ]
        yield tag("h3", f"{each.run}: {100 * each.covered.share:.0f} % covered")
        yield _picture(_MAP, _MAP, f"States in which the data cover {each.run}", *dots)


def _grades(choice: Choice) -> Iterator[Html]:
    yield paragraph(choice.basis)
    if choice.grading is None:
        return
    yield paragraph(choice.grading.verdict())
    head = ("estimator", "bias", "error", "rank correlation", "intervals that held", "weight", "")
    rows = [
        (
            name,
            f"{one.bias:.3g}",
            f"{one.error:.3g}",
            f"{one.rank_correlation:.2f}",
            f"{100 * one.interval_coverage:.0f} %",
            f"{choice.weights.get(name, 0.0):.2f}",
            one.failure,
        )
        for name, one in choice.grading.grades.items()
    ]
    yield _table(head, rows)


def _diagnostics(each: Candidate) -> Html:
    rows = [
        (
            name,
            f"{one.value:.4g}",
            f"{one.low:.4g} to {one.high:.4g}",
            ", ".join(f"{fact} {value:.3g}" for fact, value in one.facts.items()),
            "; ".join(one.doubts),
        )
        for name, one in each.estimates.items()
    ]
    return join([tag("h3", each.run), _table(("estimator", "value", "95 % interval", "facts", "doubts"), rows)])


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Html:
    body = join(tag("tr", *(tag("td", cell) for cell in row)) for row in rows)
    made = tag("table", tag("thead", tag("tr", *(tag("th", title, scope="col") for title in head))), tag("tbody", body))
    return tag("div", made, class_="scroll")


def _picture(width: int, height: int, words: str, *marks: Html) -> Html:
    return tag("svg", *marks, viewBox=f"0 0 {width} {height}", width=str(width), role="img", aria_label=words)
