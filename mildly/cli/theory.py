"""`mildly theory`: the paper's five propositions checked on random processes, and their figures."""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from mildly.cli.marks import Mark
from mildly.cli.output import console, parse, table
from mildly.terminal import SafeConsole

if TYPE_CHECKING:
    from mildly.theory.verdict import Claim, Verdict

_PLAIN_SECONDS = 10.0
_WIDTH = 110


@dataclass
class Options:
    """Options of `mildly theory`."""

    mdps: int = 300
    """Random Markov decision processes to check every statement on."""
    states: int = 20
    """States of each."""
    actions: int = 10
    """Actions of each."""
    seed: int = 0
    """The same seed, the same processes."""
    out: Path | None = None
    """A folder to draw the figures into."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print JSON instead of tables."""


def main(args: Sequence[str]) -> int:
    """Parse, check, print, draw; the code is 1 if a corrected statement is violated."""
    options = parse(
        Options,
        args,
        prog="mildly theory",
        description="Check the MCB operator's five propositions, as printed and as corrected, on random processes.",
    )
    from mildly.theory.figures import draw_all, need_matplotlib
    from mildly.theory.problems import check_random

    if options.out is not None:
        need_matplotlib()
    with _progress(options.mdps) as shown:
        verdicts = check_random(
            options.mdps, states=options.states, actions=options.actions, seed=options.seed, progress=shown
        )
    files = [] if options.out is None else draw_all(options.out, seed=options.seed)
    if options.json:
        print(json.dumps([verdict.to_json() for verdict in verdicts], indent=2, allow_nan=False))
    else:
        _print(options, verdicts, files)
    return 0 if all(verdict.as_corrected for verdict in verdicts) else 1


def _print(options: Options, verdicts: Sequence[Verdict], files: Sequence[Path]) -> None:
    out = console()
    rows = table("proposition", "as printed", "worst margin", "as corrected", "worst margin", "MDPs")
    for verdict in verdicts:
        rows.add_row(f"{verdict.number} {verdict.title}", style="bold")
        for part in dict.fromkeys(claim.part for claim in verdict.claims):
            found = {claim.kind: claim for claim in verdict.claims if claim.part == part}
            cells = [cell for kind in ("printed", "corrected") for cell in _cells(found.get(kind))]
            rows.add_row(f"    {part}", *cells, str(max(claim.tried for claim in found.values())))
    out.print(rows)
    width = min(out.width, _WIDTH)

    def say(text: str, indent: int = 0) -> None:
        out.print(textwrap.fill(text, width, initial_indent=" " * indent, subsequent_indent=" " * indent))

    out.print()
    say(
        f"{options.mdps} random processes of {options.states} states and {options.actions} actions, seed "
        f"{options.seed}. A margin is how far a statement is from being violated, in units of "
        "r_max / (1 - gamma), or of ||Q1 - Q2|| for contractions; below zero it is violated, or rounding (1e-10)."
    )
    out.print("\nWhere a sentence needs care, in numbers:")
    for verdict in verdicts:
        out.print()
        say(f"{verdict.number}  {verdict.note}")
        for example in verdict.counterexamples:
            say(f"{example.kind}: {example.sentence}", indent=3)
            numbers = f"at {example.at} {example.demanded:.4g} demanded, {example.actual:.4g} found"
            say(f"{example.setting}: {numbers}", indent=5)
    for file in files:
        out.print(f"{'' if file != files[0] else chr(10)}wrote {file}")


def _cells(claim: Claim | None) -> tuple[str, str]:
    if claim is None:
        return "", ""
    if not claim.tried:
        return "not tried", ""
    return ("holds" if claim.holds else f"fails on {claim.failures}"), f"{claim.worst:.1e}"


@contextmanager
def _progress(total: int) -> Iterator[Callable[[int], None]]:
    """A bar on a terminal that vanishes at the end; elsewhere a line now and then, if it takes long."""
    errors = SafeConsole(stderr=True)
    if errors.is_terminal:
        text = TextColumn("checking")
        with Progress(text, BarColumn(bar_width=24), MofNCompleteColumn(), console=errors, transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    said = time.monotonic()

    def say(done: int) -> None:
        nonlocal said
        if time.monotonic() - said > _PLAIN_SECONDS:
            said = time.monotonic()
            errors.print(f"checked {done}/{total} processes")

    yield say
