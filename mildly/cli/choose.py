"""`mildly choose`: rank policies by logged data, against what the log did."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

from mildly.cli.marks import Arg, Mark
from mildly.cli.output import Running, console, parse, table
from mildly.data.options import ImportOptions
from mildly.errors import tell
from mildly.ope.settings import QUICK, Settings

if TYPE_CHECKING:
    from mildly.ope.choose import Choice

_ABOUT = """Rank policies by what they would earn, from logged data alone, against what the log did.

Ends in a verdict: deploy one, not distinguishable from the log, or do not deploy, and why."""


@dataclass
class Options:
    """Options of `mildly choose`."""

    runs: Annotated[tuple[str, ...], Mark.POSITIONAL, Arg(metavar="RUN [RUN ...]")]
    """The candidates: folders of runs, or of policies."""
    dataset: Annotated[str, Arg(metavar="SET")]
    """The log that they were trained on; episodes that 'train --holdout' kept out are judged by. Or another log."""
    gamma: float | None = None
    """Discount factor; by default the runs' own."""
    grade: bool = True
    """Grade the estimators on the log first; otherwise fqe alone is believed."""
    by: Literal["time", "cluster"] = "time"
    """How the grading groups episodes: by time, or by what they do."""
    groups: int = 5
    """Groups of the grading."""
    page: Annotated[str | None, Arg(aliases=("-o",), metavar="FILE")] = None
    """Also write a page: intervals, a map of what the data cover, diagnostics."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print one JSON object instead of tables."""
    work: Annotated[Settings, Mark.NO_PREFIX] = QUICK
    running: Annotated[Running, Mark.NO_PREFIX] = Running()
    reading: Annotated[ImportOptions, Mark.NO_PREFIX] = field(default_factory=ImportOptions)


def main(args: Sequence[str]) -> int:
    """Parse, choose, print."""
    options = parse(Options, args, prog="mildly choose", description=_ABOUT)
    from mildly.files import writable
    from mildly.ope.choose import choose
    from mildly.report.choice import write_choice

    if options.page is not None:
        writable(options.page)  # before an hour of work
    data = options.running.log(options.dataset, options.reading)
    with options.running.resumable("choose", *args):
        found = choose(
            options.runs,
            data,
            gamma=options.gamma,
            grade=options.grade,
            groups=options.groups,
            by=options.by,
            settings=options.work,
            out=options.running.out,
            say=tell,
        )
    if options.json:
        print(json.dumps(found.to_json()))
    else:
        print_choice(found)
    if options.page is not None:
        tell(f"written: {write_choice(found, options.page)}")
    return 0


def print_choice(found: Choice) -> None:
    """The ranking, the grades in a sentence, and the verdict."""
    out = console()
    out.print(f"{found.dataset}: discounted returns (gamma {found.gamma:g}) from {found.episodes:,} episodes' starts\n")
    rows = table("", "value", "95 % interval", "gain over the log", "covered")
    rows.add_row("the log", f"{found.log.value:.4g}", f"{found.log.low:.4g} to {found.log.high:.4g}", "", "95 %")
    for each in found.candidates:
        value, gain = each.value, each.gain
        interval = f"{value.low:.4g} to {value.high:.4g}"
        over = f"{gain.value:+.3g} ({gain.low:+.3g} to {gain.high:+.3g})"
        rows.add_row(each.run, f"{value.value:.4g}", interval, over, f"{100 * each.covered.share:.0f} %")
    out.print(rows)
    out.print()
    out.print(found.basis)
    if found.grading is not None:
        out.print(found.grading.verdict())
    for note in found.notes:
        out.print(f"note: {note}")
    for each in found.candidates:
        for doubt in each.value.doubts:
            out.print(f"doubt: {each.run}: {doubt}")
    out.print(f"\n{found.verdict}", style="bold")
