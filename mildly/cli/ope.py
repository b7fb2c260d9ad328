"""`mildly ope`: what a policy would earn, told from logged data alone; and whether that can be believed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

from mildly.cli.marks import Arg, Mark
from mildly.cli.output import Running, console, parse, table
from mildly.data.options import ImportOptions
from mildly.errors import tell
from mildly.ope.settings import QUICK, Settings

if TYPE_CHECKING:
    from mildly.ope.estimators import Estimate
    from mildly.ope.evaluate import Judgment
    from mildly.ope.grade import Grading

_ABOUT = """Estimate what a policy would earn, from logged data alone.

'mildly ope grade SET' tells how far the estimators can be believed on a log of yours."""
_ABOUT_GRADE = """Grade the estimators on a log whose answers are known.

Each group of episodes is held out in turn, and its return predicted from the others: which estimator was right?"""


@dataclass
class Options:
    """Options of `mildly ope`."""

    run: Annotated[str, Mark.POSITIONAL]
    """A run's folder, or a policy's."""
    dataset: Annotated[str, Arg(metavar="SET")]
    """The log that it was trained on, whose episodes held out by 'train --holdout' are judged by; or another one."""
    estimators: Annotated[tuple[str, ...], Arg(metavar="NAME [NAME ...]")] = ("fqe", "dr", "wis", "model")
    """Which: fqe (fitted Q evaluation), wis (weighted importance sampling), dr (doubly robust, both together), model
    (rollouts in a model that is learned from the log)."""
    gamma: float | None = None
    """Discount factor; by default the run's own, or 0.99."""
    stochastic: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Judge draws from the policy instead of its deterministic actions."""
    clone: bool = True
    """Also judge a clone of the data, whose return is known to be near theirs."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print one JSON object instead of tables."""
    work: Annotated[Settings, Mark.NO_PREFIX] = Settings()
    running: Annotated[Running, Mark.NO_PREFIX] = Running()
    reading: Annotated[ImportOptions, Mark.NO_PREFIX] = field(default_factory=ImportOptions)


@dataclass
class GradeOptions:
    """Options of `mildly ope grade`."""

    dataset: Annotated[str, Mark.POSITIONAL, Arg(metavar="SET")]
    """The log: a name, file or folder."""
    by: Annotated[str, Arg(metavar="time|cluster|COLUMN")] = "time"
    """How it falls into groups: by time, by what episodes do, or by a column of the log, of numbers or names."""
    groups: int = 5
    """How many groups of time, or clusters."""
    estimators: Annotated[tuple[str, ...], Arg(metavar="NAME [NAME ...]")] = ("fqe", "dr", "wis", "model")
    """Which estimators to grade."""
    gamma: float = 0.99
    """Discount factor."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print one JSON object instead of tables."""
    work: Annotated[Settings, Mark.NO_PREFIX] = QUICK
    running: Annotated[Running, Mark.NO_PREFIX] = Running()
    reading: Annotated[ImportOptions, Mark.NO_PREFIX] = field(default_factory=ImportOptions)


def main(args: Sequence[str]) -> int:
    """Parse, estimate, print."""
    return _grade(args[1:]) if args[:1] == ["grade"] else _judge(args)


def _judge(args: Sequence[str]) -> int:
    options = parse(Options, args, prog="mildly ope", description=_ABOUT)
    from mildly.ope.evaluate import judge

    data = options.running.log(options.dataset, options.reading)
    with options.running.resumable("ope", *args):
        found = judge(
            options.run,
            data,
            estimators=options.estimators,
            gamma=options.gamma,
            stochastic=options.stochastic,
            clone=options.clone,
            settings=options.work,
            out=options.running.out,
            say=tell,
        )
    if options.json:
        print(json.dumps(found.to_json()))
    else:
        _print_judgment(found)
    return 0


def _print_judgment(found: Judgment) -> None:
    out = console()
    actions = "draws from it" if found.stochastic else "its deterministic actions"
    out.print(f"{found.policy} ({actions}) on {found.dataset}, {found.episodes:,} episodes")
    out.print(f"Values are discounted returns (gamma {found.gamma:g}) from the starts of these episodes.\n")
    rows = table("", "value", "95 % interval")
    for name, one in {**found.anchors, **found.estimates}.items():
        rows.add_row(name, *_cells(one))
    out.print(rows)
    log = found.anchors["the log"].value
    out.print(f"\nThe log's mean return without a discount is {found.data_return:.4g} ({log:.4g} with it).")
    out.print(f"Coverage: in {100 * found.coverage:.0f} % of states its action is like logged ones (the log: 95 %).")
    if {"wis", "dr"} & found.estimates.keys():
        out.print(f"Weights use a flow's density of the logged actions and, of the policy, {found.density}.")
    for name, one in found.estimates.items():
        facts = ", ".join(f"{fact} {value:.3g}" for fact, value in one.facts.items())
        out.print(f"{name}: {facts}" if facts else name)
        for doubt in one.doubts:
            out.print(f"  doubt: {doubt}")
    for doubt in found.doubts:
        out.print(f"doubt: {doubt}")
    for note in found.notes:
        out.print(f"note: {note}")


def _cells(one: Estimate) -> tuple[str, str]:
    return (f"{one.value:.4g}", f"{one.low:.4g} to {one.high:.4g}") if math.isfinite(one.value) else ("-", "")


def _grade(args: Sequence[str]) -> int:
    options = parse(GradeOptions, args, prog="mildly ope grade", description=_ABOUT_GRADE)
    from mildly.ope.grade import grade
    from mildly.ope.groups import labels_of

    data = options.running.log(options.dataset, options.reading)
    labels = labels_of(options.dataset, options.reading, options.by, data, options.running.data_dir)
    with options.running.resumable("ope", "grade", *args):
        found = grade(
            data,
            by=options.by,
            groups=options.groups,
            labels=labels,
            estimators=options.estimators,
            gamma=options.gamma,
            settings=options.work,
            out=options.running.out,
            say=tell,
        )
    if options.json:
        print(json.dumps(found.to_json()))
    else:
        _print_grading(found)
    return 0


def _print_grading(found: Grading) -> None:
    out = console()
    out.print(f"{found.dataset}, groups by {found.by}: discounted returns (gamma {found.gamma:g})\n")
    names = list(found.grades)
    rows = table("held out", "episodes", "earned", "the rest", *names, "covered")
    for each in found.held:
        cells = [_cells(each.estimates[name])[0] for name in names]
        share = f"{100 * each.coverage:.0f} %"
        rows.add_row(each.group, f"{each.episodes:,}", f"{each.truth.value:.4g}", f"{each.guess:.4g}", *cells, share)
    out.print(rows)
    out.print()
    grades = table("estimator", "bias", "error", "rank correlation", "intervals that held", "weight")
    for name, one in found.grades.items():
        share = "-" if math.isnan(one.interval_coverage) else f"{100 * one.interval_coverage:.0f} %"
        grades.add_row(
            name, f"{one.bias:.3g}", f"{one.error:.3g}", f"{one.rank_correlation:.2f}", share, f"{one.weight:.2f}"
        )
    grades.add_row("guessing", "", f"{found.guess_error:.3g}", "", "", "")
    out.print(grades)
    out.print()
    for name, one in found.grades.items():
        if one.failure and not found.alike:
            out.print(f"{name} fails on this log: {one.failure}")
    out.print(found.verdict())
