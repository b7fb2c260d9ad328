"""The parts of the page, in their order. Tables are plain HTML; charts are places that the script fills."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from mildly.report.charts import ChartSpec, style
from mildly.report.comparison import Comparison
from mildly.report.facts import (
    PARTS,
    GroupCost,
    dataset_facts,
    differences,
    duration,
    group_costs,
    reference_returns,
    version_counts,
)
from mildly.report.grouping import Group
from mildly.report.markup import (
    Html,
    Row,
    TableCell,
    TableColumn,
    chart,
    escaped,
    html_table,
    join,
    paragraph,
    section,
    tag,
)
from mildly.report.reading import Record
from mildly.report.summary import SCORE_NOTE, UNSCORED_NOTE, Report, on_data_texts, score_text, sentences, steps_text
from mildly.words import counted

_MOST_COLUMNS = 8  # of the small table; with more labels the long one alone is readable
_PART_COLORS = dict(zip((*PARTS, "phases"), ("v0", "v1", "v2", "v3", "faint", "text"), strict=True))
"""Colors for the parts of a run's time; none of them stands for an algorithm."""
_MOST_OPEN = 8  # charts of values shown at once; of more, a part for each data set to open


def page_sections(
    report: Report, comparison: Comparison | str, specs: Mapping[str, ChartSpec], folder: Path
) -> list[tuple[str, str, Html]]:
    """Name, title and content of each part; links to runs are relative to the page's folder."""
    parts: dict[str, tuple[str, Callable[[], list[Html]]]] = {
        "summary": ("Summary", lambda: _summary(report)),
        "learning": ("Learning curves", lambda: _learning(report, specs)),
        "values": ("Value estimates", lambda: _values(report, specs)),
        "aggregates": ("Aggregates", lambda: _aggregates(comparison)),
        "cost": ("Cost", lambda: _cost(report)),
        "settings": ("Settings", lambda: _settings(report)),
        "data": ("Data sets", lambda: _data(report)),
        "versions": ("Versions", lambda: _versions(report)),
        "runs": ("Runs", lambda: _runs(report, folder)),
    }
    return [(name, title, section(name, title, *content())) for name, (title, content) in parts.items()]


def _summary(report: Report) -> list[Html]:
    content = [paragraph(" ".join(sentences(report)), "lead"), paragraph(SCORE_NOTE, "note")]
    if len(report.datasets) > 1 and 1 < len(report.labels) <= _MOST_COLUMNS:
        content.append(_matrix(report))
    columns = [
        TableColumn("algorithm"),
        TableColumn("data set"),
        TableColumn("score", number=True),
        *([TableColumn("value", number=True), TableColumn("distance", number=True)] if report.unscored else []),
        TableColumn("seeds", number=True),
        TableColumn("steps", number=True),
    ]
    rows: list[Row] = [
        [
            _name(report, group),
            group.dataset,
            _score(report, group),
            *(map(TableCell, on_data_texts(group)) if report.unscored else ()),
            TableCell(str(group.seeds), group.seeds),
            TableCell(steps_text(group), min(record.step for record in group.records)),
        ]
        for group in report.groups
    ]
    content.append(html_table("summary-table", columns, rows, "Scores of all groups of runs"))
    if not all(group.normalized for group in report.groups):
        content.append(paragraph("Where a data set has no reference returns, the score is the return itself.", "note"))
    if report.unscored:
        content.append(paragraph(UNSCORED_NOTE, "note"))
    return content


def _matrix(report: Report) -> Html:
    """Data sets by algorithms, as papers have it."""
    by_place = {(group.dataset, group.label): group for group in report.groups}
    columns = [TableColumn("data set"), *(TableColumn(label, number=True) for label in report.labels)]
    rows: list[Row] = []
    for dataset in report.datasets:
        found = [by_place.get((dataset, label)) for label in report.labels]
        rows.append([dataset, *(_score(report, group) if group else TableCell("") for group in found)])
    return html_table("score-table", columns, rows, "Scores by data set and algorithm")


def _score(report: Report, group: Group) -> TableCell:
    return TableCell(score_text(group), group.mean, strong=report.is_best(group))


def _name(report: Report, group: Group) -> Html:
    """A label with its color."""
    return join([_chip(style(report, group.label)["color"]), group.label])


def _chip(color: str) -> Html:
    return tag("span", class_="chip", style=f"background: var(--{color})")


def _learning(report: Report, specs: Mapping[str, ChartSpec]) -> list[Html]:
    names = [name for name in specs if name.startswith("learning-")]
    if not names:
        return [paragraph("No run has been evaluated yet: give 'mildly train' an environment and --eval-every.")]
    choices = {"std": "± standard deviation", "range": "lowest to highest", "runs": "each run", "none": "mean alone"}
    about = (
        "Each line is the mean over seeds of the evaluations' mean scores, the band one standard deviation (n - 1) to "
        "either side unless chosen otherwise. Dotted: some seeds have not come that far."
    )
    return [
        paragraph(about, "note"),
        _radios("Band", "band", choices),
        tag("div", *(chart(name) for name in names), class_="charts" if len(names) > 1 else "charts single"),
    ]


def _radios(title: str, name: str, choices: Mapping[str, str]) -> Html:
    """Radio buttons that change all charts of a section; the first is chosen."""
    first = next(iter(choices))
    buttons = [
        tag("label", Html(f'<input type="radio" name="{name}" value="{value}"{" checked" * (value == first)}>'), label)
        for value, label in choices.items()
    ]
    return tag("fieldset", tag("legend", title), *buttons)


def _values(report: Report, specs: Mapping[str, ChartSpec]) -> list[Html]:
    about = (
        "What the critics believe, against time: the mean over seeds with one standard deviation. The policy's actions "
        "may lie outside the data: where their value leaves that of the data's actions and rises without end, it is "
        "overestimated. The pseudo target is what MCQ trains such actions towards."
    )
    head = [
        paragraph(about, "note"),
        _radios("Show", "values", {"absolute": "values", "difference": "difference from the data's actions"}),
    ]
    names: dict[str, list[str]] = {dataset: [] for dataset in report.datasets}
    for i, group in enumerate(report.groups):
        if f"values-{i}" in specs:
            names[group.dataset].append(f"values-{i}")
    total = sum(map(len, names.values()))
    if not total:
        return [paragraph("No run here has critics, or none has logged their values.")]
    if total <= _MOST_OPEN:
        every = [chart(name) for some in names.values() for name in some]
        return [*head, tag("div", *every, class_="charts" if total > 1 else "charts single")]
    parts = [
        tag(
            "details",
            tag("summary", f"{dataset} ({len(some)})"),
            tag("div", *(chart(name) for name in some), class_="charts"),
        )
        for dataset, some in names.items()
        if some
    ]
    return [*head, *parts]


def _aggregates(comparison: Comparison | str) -> list[Html]:
    if isinstance(comparison, str):
        return [paragraph(comparison)]
    sets = comparison.datasets
    about = (
        f"Over {counted(len(sets), 'data set')} ({', '.join(sets[:6])}{', ...' * (len(sets) > 6)}) "
        "on which all algorithms compared have two runs or more. Bars are 95 % intervals of a bootstrap that draws "
        "runs anew within each data set."
    )
    if comparison.fewest < 10:
        about += f" With as few as {comparison.fewest} runs such intervals are too narrow: they are wider in truth."
    if comparison.left_out:
        about += f" The {len(comparison.labels)} with the highest means are shown; {comparison.left_out} are left out."
    text = "IQM: mean of the middle half of all runs. Optimality gap: how far runs fall short of a score of 100."
    profile = "How many runs score more than the value on the axis. The higher curve is better."
    content = [paragraph(about, "note"), chart("aggregates", text)]
    beside = [chart("profiles", profile)]
    if comparison.improvements:
        chances = "How probably a run of the first scores more than a run of the second on the same data set."
        beside.append(chart("improvements", chances))
    return [*content, tag("div", *beside, class_="charts")]


def _cost(report: Report) -> list[Html]:
    found = group_costs(report)
    if not found:
        return [paragraph("No run has been timed yet; timing.json is written with the first checkpoint.")]
    measured = any(cost.megabytes is not None for cost in found)
    parts = list(dict.fromkeys(part for cost in found for part in cost.seconds))
    columns = [
        TableColumn("algorithm"),
        TableColumn("data set"),
        TableColumn("time per run", number=True),
        TableColumn("by part"),
        TableColumn("steps/s", number=True),
        *([TableColumn("peak MB", number=True)] if measured else []),
    ]
    rows: list[Row] = [
        [
            _name(report, cost.group),
            cost.group.dataset,
            TableCell(duration(cost.total), cost.total),
            _bar(cost, parts),
            TableCell("" if cost.steps_per_second is None else f"{cost.steps_per_second:,.0f}", cost.steps_per_second),
            *(
                [TableCell("" if cost.megabytes is None else f"{cost.megabytes:,.0f}", cost.megabytes)]
                if measured
                else []
            ),
        ]
        for cost in found
    ]
    key = join(tag("span", _chip(_part_color(part)), part) for part in parts)
    about = (
        "Mean over a group's runs up to the last checkpoint; the second table has the parts in seconds. "
        "Steps/s are of the main steps, without phases before them, evaluations and checkpoints."
    )
    return [
        paragraph(about, "note"),
        tag("p", key, class_="key"),
        html_table("cost-table", columns, rows, "Time of a run"),
        _seconds(report, found, parts),
    ]


def _seconds(report: Report, costs: Sequence[GroupCost], parts: Sequence[str]) -> Html:
    """The parts of the time in a table of their own: beside the other columns they would not fit a laptop's screen."""
    columns = [TableColumn("algorithm"), TableColumn("data set"), *(TableColumn(part, number=True) for part in parts)]
    rows: list[Row] = [
        [
            _name(report, cost.group),
            cost.group.dataset,
            *(TableCell(f"{cost.seconds.get(part, 0.0):,.1f}", cost.seconds.get(part, 0.0)) for part in parts),
        ]
        for cost in costs
    ]
    return html_table("seconds-table", columns, rows, "Seconds of a run by part")


def _bar(cost: GroupCost, parts: list[str]) -> Html:
    share = {part: 100 * cost.seconds.get(part, 0.0) / cost.total for part in parts}
    pieces = [tag("span", style=f"width: {share[part]:.2f}%; background: var(--{_part_color(part)})") for part in parts]
    text = ", ".join(f"{part} {share[part]:.0f} %" for part in parts)
    return tag("span", *pieces, class_="bar", role="img", aria_label=text, title=text)


def _part_color(part: str) -> str:
    return _PART_COLORS.get(part, "faint")


def _settings(report: Report) -> list[Html]:
    content: list[Html] = []
    for found in differences(report):
        content.append(tag("h3", found.algorithm))
        if found.fields:
            columns = [TableColumn("group"), TableColumn("data set"), *map(TableColumn, found.fields)]
            rows = [[_name(report, group), group.dataset, *values] for group, values in found.rows]
            about = f"Settings in which runs of {found.algorithm} differ"
            content.append(html_table(f"settings-{found.algorithm}", columns, rows, about))
        else:
            content.append(paragraph(f"All runs of {found.algorithm} have the same settings, but for the seed."))
        pairs = [join([tag("dt", name), tag("dd", value)]) for name, value in found.shared.items()]
        shared = tag("dl", *pairs, class_="settings")
        content.append(tag("details", tag("summary", f"{len(found.shared)} settings that they share"), shared))
    return content


def _data(report: Report) -> list[Html]:
    content = []
    for found in dataset_facts(report):
        meta = found.meta
        count = f"{found.transitions:,}" if found.transitions is not None else "data not found here"
        facts = {
            "transitions": count,
            "environment": meta.env_id or "unknown",
            "evaluated in": ", ".join(found.environments) or "none",
            "reference returns (score 0, 100)": reference_returns(meta),
            "source": meta.source or "unknown",
            "fingerprint": meta.fingerprint[:16] or "none",
        }
        pairs = [join([tag("dt", name), tag("dd", value)]) for name, value in facts.items()]
        notes = [tag("ul", *(tag("li", note) for note in meta.notes), class_="notes")] if meta.notes else []
        content.append(tag("article", tag("h3", found.name), tag("dl", *pairs), *notes, class_="data-set"))
    return [tag("div", *content, class_="cards")]


def _versions(report: Report) -> list[Html]:
    total = len(report.records)
    rows = []
    for package, versions in version_counts(report.records).items():
        only = len(versions) == 1 and versions.total() == total
        texts = [
            version[:12] + ("" if only else f" ({counted(runs, 'run')})") for version, runs in versions.most_common()
        ]
        rows.append([package, ", ".join(texts)])
    return [
        html_table(
            "versions-table",
            [TableColumn("package"), TableColumn("version")],
            rows,
            "Versions that runs were begun with",
        )
    ]


def _runs(report: Report, folder: Path) -> list[Html]:
    columns = [
        TableColumn("run"),
        TableColumn("algorithm"),
        TableColumn("data set"),
        TableColumn("seed", number=True),
        TableColumn("score", number=True),
        TableColumn("step", number=True),
        TableColumn("status"),
    ]
    every = [*(record.path for record in report.records), *(unreadable.path for unreadable in report.unreadable)]
    links = _links(every, folder)
    rows: list[Row] = [
        [links[record.path], *_run_cells(report, group, record)] for group in report.groups for record in group.records
    ]
    for unreadable in report.unreadable:
        status = tag("span", f"cannot be read: {unreadable.problem}", class_="bad")
        rows.append([links[unreadable.path], "", "", TableCell(""), TableCell(""), TableCell(""), status])
    field = Html('<input type="search" data-filter="runs-table" placeholder="e.g. mcq hopper unfinished">')
    return [
        tag("p", tag("label", "Filter: ", field), class_="filter"),
        html_table("runs-table", columns, rows, "All runs"),
    ]


def _run_cells(report: Report, group: Group, record: Record) -> Row:
    score = group.score_of(record)
    digits = 0 if score is not None and abs(score) >= 1_000 else 1
    status = [escaped("complete")] if record.complete else [tag("span", f"unfinished, {_share(record)}", class_="open")]
    status += [tag("span", f"; {problem}", class_="bad") for problem in record.problems]
    return [
        _name(report, group),
        group.dataset,
        TableCell(str(record.plan.seed), record.plan.seed),
        TableCell("" if score is None else f"{score:.{digits}f}", score),
        TableCell(f"{record.step:,} of {record.plan.steps:,}", record.step),
        join(status),
    ]


def _share(record: Record) -> str:
    return f"{100 * record.step / record.plan.steps:.0f} %"


def _links(paths: Sequence[Path], folder: Path) -> dict[Path, Html]:
    """A relative link to each run, so that page and runs can be moved together."""
    try:
        root = os.path.commonpath([path.absolute().parent for path in paths])
        return {path: _link(path, os.path.relpath(path.absolute(), root), folder) for path in paths}
    except ValueError:  # folders on several drives
        return {path: tag("a", str(path), href=path.absolute().as_uri()) for path in paths}


def _link(path: Path, name: str, folder: Path) -> Html:
    return tag("a", name, href=f"./{quote(Path(os.path.relpath(path.absolute(), folder)).as_posix())}/")
