"""A report's tables for other tools: CSV for any, LaTeX for papers."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from mildly.files import atomic_write, writable
from mildly.report.curves import mean_curve
from mildly.report.grouping import Group
from mildly.report.summary import SCORE_NOTE, Report, score_text

_MOST_COLUMNS = 8
_SPECIAL = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$"}
_FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n")
_SPECIAL |= {character: f"\\{character}" for character in "&%$#_{}"}


def write_csv(report: Report, place: str | os.PathLike[str]) -> list[Path]:
    """The summary and the learning curves as CSV.

    Args:
        report: what to write.
        place: a folder, which gets `summary.csv` and `curves.csv`; or a file `NAME.csv` for the summary, and the curves
            go to `NAME-curves.csv` beside it.
    """
    place = Path(place).expanduser()
    if place.suffix.lower() == ".csv" and not place.is_dir():
        summary, curves = place, place.with_name(f"{place.stem}-curves.csv")
    else:
        place.mkdir(parents=True, exist_ok=True)
        summary, curves = place / "summary.csv", place / "curves.csv"
    _write_rows(summary, _SUMMARY_HEAD, map(_summary_row, report.groups))
    _write_rows(curves, _CURVES_HEAD, (row for group in report.groups for row in _curve_rows(group)))
    return [summary, curves]


_SUMMARY_HEAD = [
    "algorithm",
    "group",
    "dataset",
    "unit",
    "mean",
    "std",
    "runs",
    "value on the data",
    "squared distance from the data",
    "seeds",
    "steps",
    "planned",
    "complete",
]
_CURVES_HEAD = ["algorithm", "group", "dataset", "unit", "step", "mean", "std", "min", "max", "runs"]


def _beginning(group: Group) -> list[str]:
    return [group.algorithm, group.label, group.dataset, "normalized score" if group.normalized else "return"]


def _summary_row(group: Group) -> list[Any]:
    step = min(record.step for record in group.records)
    planned = group.records[0].plan.steps
    on_data = [group.last("q_data"), group.last("policy_distance")]
    numbers = [group.mean, group.std, len(group.evaluated()), *on_data, group.seeds, step, planned, group.complete]
    return [*_beginning(group), *numbers]


def _curve_rows(group: Group) -> Iterable[list[Any]]:
    curve = mean_curve(group.evaluated())
    if curve is None:
        return
    columns = (curve.steps, curve.mean, curve.std, curve.low, curve.high, curve.runs)
    for numbers in zip(*(column.tolist() for column in columns), strict=True):
        yield [*_beginning(group), *numbers]


def _write_rows(path: Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with atomic_write(writable(path)) as unfinished, unfinished.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(head)
        writer.writerows([_cell(value) for value in row] for row in rows)


def _cell(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula gets an apostrophe, which makes it text."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULAS) else value


def write_latex(report: Report, path: str | os.PathLike[str]) -> Path:
    """The summary as a LaTeX table (it needs the package booktabs): data sets by algorithms, the best in bold."""
    path = writable(path)
    lines = _matrix(report) if len(report.labels) <= _MOST_COLUMNS else _long(report)
    columns = "l" + "r" * (len(lines[0]) - 1) if len(report.labels) <= _MOST_COLUMNS else "llrr"
    head, *rows = [" & ".join(line) + r" \\" for line in lines]
    text = [f"% {SCORE_NOTE}".replace("±", "+-"), rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
    text += [*rows, r"\bottomrule", r"\end{tabular}", ""]
    with atomic_write(path) as unfinished:
        unfinished.write_text("\n".join(text), encoding="utf-8")
    return path


def _matrix(report: Report) -> list[list[str]]:
    by_place = {(group.dataset, group.label): group for group in report.groups}
    lines = [["data set", *map(_latex, report.labels)]]
    for dataset in report.datasets:
        found = [by_place.get((dataset, label)) for label in report.labels]
        lines.append([_latex(dataset), *(_latex_score(report, group) if group else "--" for group in found)])
    return lines


def _long(report: Report) -> list[list[str]]:
    lines = [["data set", "algorithm", "score", "seeds"]]
    for group in report.groups:
        lines.append([_latex(group.dataset), _latex(group.label), _latex_score(report, group), str(group.seeds)])
    return lines


def _latex_score(report: Report, group: Group) -> str:
    text = _latex(score_text(group)) if group.mean is not None else "--"
    text = re.sub(r"(?<![\w.])-(?=\d)", "$-$", text)
    return rf"\textbf{{{text}}}" if report.is_best(group) else text


def _latex(text: str) -> str:
    return "".join(_SPECIAL.get(character, character) for character in text)
