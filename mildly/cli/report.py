"""`mildly report`: many runs on one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from mildly.cli.marks import Arg, Mark
from mildly.cli.output import console, parse, table
from mildly.terminal import SafeConsole

if TYPE_CHECKING:
    from mildly.report.summary import Report


@dataclass
class ReportOptions:
    """Options of `mildly report`."""

    folders: Annotated[tuple[str, ...], Mark.POSITIONAL, Arg(metavar="DIR [DIR ...]")]
    """Run folders, or folders with runs anywhere below."""
    output: Annotated[str, Arg(aliases=("-o",), metavar="FILE")] = "report.html"
    """The page to write."""
    csv: Annotated[str | None, Arg(metavar="DIR|FILE")] = None
    """Also write the summary and the curves as CSV: into a folder, or to FILE.csv and FILE-curves.csv."""
    latex: Annotated[str | None, Arg(metavar="FILE")] = None
    """Also write the summary as a LaTeX table."""
    figures: Annotated[str | None, Arg(metavar="DIR")] = None
    """Also write the charts as PNG and SVG files into a folder (needs the extra 'plot')."""


def main(args: Sequence[str]) -> int:
    """Parse, read, write, print."""
    options = parse(
        ReportOptions,
        args,
        prog="mildly report",
        description="Compare runs on one page: scores, curves, value estimates, intervals, cost, settings.",
    )
    from mildly.files import writable
    from mildly.report.charts import chart_specs
    from mildly.report.comparison import compare
    from mildly.report.export import write_csv, write_latex
    from mildly.report.page import make_report, write_page

    writable(options.output)  # before a thousand runs are read
    report = make_report(options.folders)
    comparison = compare(report)
    written = [write_page(report, options.output, comparison)]
    if options.csv is not None:
        written += write_csv(report, options.csv)
    if options.latex is not None:
        written.append(write_latex(report, options.latex))
    out = console()
    _print_summary(out, report)
    for path in written:
        out.print(f"written: {path}")
    if options.figures is not None:
        from mildly.report.chart_files import write_figures

        count = len(write_figures(chart_specs(report, comparison), options.figures))
        out.print(f"written: {count} figures in {options.figures}")
    return 0


def _print_summary(out: SafeConsole, report: Report) -> None:
    from mildly.report.summary import SCORE_NOTE, UNSCORED_NOTE, on_data_texts, score_text, sentences, steps_text

    on_data = ("value", "distance") if report.unscored else ()
    rows = table("data set", "algorithm", "score", "", *on_data, "seeds", "steps")
    rows.columns[1].justify = "left"
    for group in report.groups:
        best = "*" if report.is_best(group) else ""
        more = on_data_texts(group) if on_data else ()
        rows.add_row(group.dataset, group.label, score_text(group), best, *more, str(group.seeds), steps_text(group))
    out.print(" ".join(sentences(report)))
    out.print()
    out.print(rows)
    out.print(f"\n{SCORE_NOTE}" + (" *: highest on its data set." if report.best else ""))
    if on_data:
        out.print(UNSCORED_NOTE)
    for unreadable in report.unreadable:
        out.print(f"cannot be read: {unreadable.path}: {unreadable.problem}")
    for record in report.records:
        for problem in record.problems:
            out.print(f"damaged in part: {record.path}: {problem}")
    out.print()
