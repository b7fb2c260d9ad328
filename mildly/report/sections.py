"""The parts of the page, in their order. Tables are plain HTML; charts are places that the script fills."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

from mildly.report.charts import VALUE_LIGHT, Spec, style
from mildly.report.comparison import Comparison
from mildly.report.facts import (
    Cost,
    costs,
    dataset_facts,
    differences,
    duration,
    reference,
    versions,
)
from mildly.report.grouping import Group
from mildly.report.markup import Cell, Column, Html, Row, chart, join, paragraph, safe, section, table, tag
from mildly.report.reading import Record
from mildly.report.summary import HOW, Report, score_text, sentences, steps_text

_MOST_COLUMNS = 8  # of the small table; with more labels the long one alone is readable
_MOST_OPEN = 8  # charts of values shown at once; of more, a part for each data set to open


def page_sections(
    report: Report, comparison: Comparison | str, specs: Mapping[str, Spec], folder: Path
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
    content = [paragraph(" ".join(sentences(report)), "lead"), paragraph(HOW, "note")]
    if len(report.datasets) > 1 and 1 < len(report.labels) <= _MOST_COLUMNS:
        content.append(_matrix(report))
    columns = [
        Column("algorithm"),
        Column("data set"),
        Column("score", number=True),
        Column("seeds", number=True),
        Column("steps", number=True),
    ]
    rows: list[Row] = [
        [
            _name(report, group),
            group.dataset,
            _score(report, group),
            Cell(str(group.seeds), group.seeds),
            Cell(steps_text(group), min(record.step for record in group.records)),
        ]
        for group in report.groups
    ]
    content.append(table("summary-table", columns, rows, "Scores of all groups of runs"))
    if not all(group.normalized for group in report.groups):
        content.append(paragraph("Where a data set has no reference returns, the score is the return itself.", "note"))
    return content


def _matrix(report: Report) -> Html:
    """Data sets by algorithms, as papers have it."""
    by_place = {(group.dataset, group.label): group for group in report.groups}
    columns = [Column("data set"), *(Column(label, number=True) for label in report.labels)]
    rows: list[Row] = []
    for dataset in report.datasets:
        found = [by_place.get((dataset, label)) for label in report.labels]
        rows.append([dataset, *(_score(report, group) if group else Cell("") for group in found)])
    return table("score-table", columns, rows, "Scores by data set and algorithm")


def _score(report: Report, group: Group) -> Cell:
    return Cell(score_text(group), group.mean, strong=report.is_best(group))


def _name(report: Report, group: Group) -> Html:
    """A label with its color."""
    return join([_chip(style(report, group.label)["color"]), group.label])


def _chip(color: str) -> Html:
    return tag("span", class_="chip", style=f"background: var(--{color})")


def _learning(report: Report, specs: Mapping[str, Spec]) -> list[Html]:
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
    """A choice that changes all charts of a part; the first is chosen."""
    first = next(iter(choices))
    buttons = [
        tag("label", Html(f'<input type="radio" name="{name}" value="{value}"{" checked" * (value == first)}>'), said)
        for value, said in choices.items()
    ]
    return tag("fieldset", tag("legend", title), *buttons)


def _values(report: Report, specs: Mapping[str, Spec]) -> list[Html]:
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
        f"Over {len(sets)} data set{'' if len(sets) == 1 else 's'} ({', '.join(sets[:6])}{', ...' * (len(sets) > 6)}) "
        "on which all algorithms compared have two runs or more. Bars are 95 % intervals of a bootstrap that draws "
        "runs anew within each data set."
    )
    if comparison.fewest < 10:
        about += f" With as few as {comparison.fewest} runs such intervals are too narrow: they are wider in truth."
    if comparison.left_out:
        about += f" The {len(comparison.labels)} with the highest means are shown; {comparison.left_out} are left out."
    told = "IQM: mean of the middle half of all runs. Optimality gap: how far runs fall short of a score of 100."
    profile = "How many runs score more than the value on the axis. The higher curve is better."
    content = [paragraph(about, "note"), chart("aggregates", told)]
    beside = [chart("profiles", profile)]
    if comparison.improvements:
        chances = "How probably a run of the first scores more than a run of the second on the same data set."
        beside.append(chart("improvements", chances))
    return [*content, tag("div", *beside, class_="charts")]


def _cost(report: Report) -> list[Html]:
    found = costs(report)
    if not found:
        return [paragraph("No run has been timed yet; timing.json is written with the first checkpoint.")]
    measured = any(cost.megabytes is not None for cost in found)
    parts = list(dict.fromkeys(part for cost in found for part in cost.seconds))
    columns = [
        Column("algorithm"),
        Column("data set"),
        Column("a run takes", number=True),
        Column("of which"),
        Column("steps/s", number=True),
        *([Column("peak MB", number=True)] if measured else []),
        *(Column(part, number=True) for part in parts),
    ]
    rows: list[Row] = [
        [
            _name(report, cost.group),
            cost.group.dataset,
            Cell(duration(cost.total), cost.total),
            _bar(cost, parts),
            Cell("" if cost.steps_per_second is None else f"{cost.steps_per_second:,.0f}", cost.steps_per_second),
            *([Cell("" if cost.megabytes is None else f"{cost.megabytes:,.0f}", cost.megabytes)] if measured else []),
            *(Cell(f"{cost.seconds.get(part, 0.0):,.1f}", cost.seconds.get(part, 0.0)) for part in parts),
        ]
        for cost in found
    ]
    key = join(tag("span", _chip(_part_color(i)), part) for i, part in enumerate(parts))
    about = (
        "Mean over a group's runs up to the last checkpoint, the parts in seconds. "
        "Steps/s leave evaluations and checkpoints out."
    )
    return [paragraph(about, "note"), tag("p", key, class_="key"), table("cost-table", columns, rows, "Time of a run")]


def _bar(cost: Cost, parts: list[str]) -> Html:
    share = {part: 100 * cost.seconds.get(part, 0.0) / cost.total for part in parts}
    pieces = [
        tag("span", style=f"width: {share[part]:.2f}%; background: var(--{_part_color(i)})")
        for i, part in enumerate(parts)
    ]
    told = ", ".join(f"{part} {share[part]:.0f} %" for part in parts)
    return tag("span", *pieces, class_="bar", role="img", aria_label=told, title=told)


def _part_color(place: int) -> str:
    """A color that does not stand for an algorithm."""
    return f"v{place}" if place < len(VALUE_LIGHT) else "faint"


def _settings(report: Report) -> list[Html]:
    content: list[Html] = []
    for found in differences(report):
        content.append(tag("h3", found.algorithm))
        if found.fields:
            columns = [Column("group"), Column("data set"), *map(Column, found.fields)]
            rows = [[_name(report, group), group.dataset, *values] for group, values in found.rows]
            about = f"Settings in which runs of {found.algorithm} differ"
            content.append(table(f"settings-{found.algorithm}", columns, rows, about))
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
            "reference returns (score 0, 100)": reference(meta),
            "source": meta.source or "not said",
            "fingerprint": meta.fingerprint[:16] or "none",
        }
        pairs = [join([tag("dt", name), tag("dd", value)]) for name, value in facts.items()]
        notes = [tag("ul", *(tag("li", note) for note in meta.notes), class_="notes")] if meta.notes else []
        content.append(tag("article", tag("h3", found.name), tag("dl", *pairs), *notes, class_="data-set"))
    return [tag("div", *content, class_="cards")]


def _versions(report: Report) -> list[Html]:
    total = len(report.records)
    rows = []
    for package, counted in versions(report.records).items():
        only = len(counted) == 1 and counted.total() == total
        said = [version[:12] + ("" if only else f" ({runs} runs)") for version, runs in counted.most_common()]
        rows.append([package, ", ".join(said)])
    return [table("versions-table", [Column("package"), Column("version")], rows, "Versions that runs were begun with")]


def _runs(report: Report, folder: Path) -> list[Html]:
    columns = [
        Column("run"),
        Column("algorithm"),
        Column("data set"),
        Column("seed", number=True),
        Column("score", number=True),
        Column("step", number=True),
        Column("status"),
    ]
    every = [*(record.path for record in report.records), *(lost.path for lost in report.unreadable)]
    links = _links(every, folder)
    rows: list[Row] = [
        [links[record.path], *_run_cells(report, group, record)] for group in report.groups for record in group.records
    ]
    for lost in report.unreadable:
        status = tag("span", f"cannot be read: {lost.problem}", class_="bad")
        rows.append([links[lost.path], "", "", Cell(""), Cell(""), Cell(""), status])
    field = Html('<input type="search" data-filter="runs-table" placeholder="e.g. mcq hopper unfinished">')
    return [tag("p", tag("label", "Filter: ", field), class_="filter"), table("runs-table", columns, rows, "All runs")]


def _run_cells(report: Report, group: Group, record: Record) -> Row:
    score = group.score_of(record)
    digits = 0 if score is not None and abs(score) >= 1_000 else 1
    status = [safe("complete")] if record.complete else [tag("span", f"unfinished, {_share(record)}", class_="open")]
    status += [tag("span", f"; {problem}", class_="bad") for problem in record.problems]
    return [
        _name(report, group),
        group.dataset,
        Cell(str(record.plan.seed), record.plan.seed),
        Cell("" if score is None else f"{score:.{digits}f}", score),
        Cell(f"{record.step:,} of {record.plan.steps:,}", record.step),
        join(status),
    ]


def _share(record: Record) -> str:
    return f"{100 * record.step / record.plan.steps:.0f} %"


def _links(paths: Sequence[Path], folder: Path) -> dict[Path, Html]:
    """For each run a link that stays right when page and runs move together, named by what tells the runs apart."""
    try:
        root = os.path.commonpath([path.absolute().parent for path in paths])
        return {path: _link(path, os.path.relpath(path.absolute(), root), folder) for path in paths}
    except ValueError:  # folders on several drives
        return {path: tag("a", str(path), href=path.absolute().as_uri()) for path in paths}


def _link(path: Path, name: str, folder: Path) -> Html:
    return tag("a", name, href=f"./{quote(Path(os.path.relpath(path.absolute(), folder)).as_posix())}/")
