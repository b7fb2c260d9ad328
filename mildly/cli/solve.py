"""`mildly solve`: from a log to a verdict in one command."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from mildly.cli.choose import print_choice
from mildly.cli.marks import Arg, Mark
from mildly.cli.output import console, parse, table
from mildly.data.memory import set_default
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError, tell

if TYPE_CHECKING:
    from mildly.portfolio.solve import Solution

_ABOUT = """From a log to a verdict: check the data, train a portfolio, choose by held-out episodes.

The portfolio is a clone, a clone of the best tenth, IQL, TD3+BC and MCQ. All train for some steps; those that fitted Q
evaluation on held-out episodes puts first go on, down to two finalists. Then the estimators are graded on the log
itself, and the finalists judged against what the log did: deploy one, or not, and why. The folder holds the policy, a
model card, the pages, and all that is needed to go on: 'mildly solve --resume DIR' continues after Ctrl-C or a crash
by the same plan, and ends in the same result."""
_AGAIN = (
    "Go on with a folder of 'mildly solve', by the plan that it holds; the result is that of one that was left alone."
)


@dataclass
class Options:
    """Options of `mildly solve`."""

    dataset: Annotated[str, Mark.POSITIONAL, Arg(metavar="SET")]
    """The log: a name, file or folder."""
    minutes: float | None = None
    """About how long all of it may take, 30 unless given: steps are planned by what is measured first."""
    steps: int | None = None
    """Instead of minutes: gradient steps of the last rung. Same steps and seed, same bits."""
    out: Annotated[str | None, Arg(metavar="DIR")] = None
    """The folder to make; by default a new one under runs/."""
    holdout: float = 0.2
    """Share of the episodes that nobody is trained on, and all are judged by."""
    gamma: float = 0.99
    """Discount factor, of learning and of judging."""
    by: Annotated[str, Arg(metavar="time|cluster|COLUMN")] = "time"
    """How the grading of the estimators groups episodes: by time, by what they do, or by a column of the log."""
    groups: int = 5
    """How many groups of time, or clusters."""
    seed: int = 0
    """Decides all random numbers."""
    workers: int | None = None
    """Trainings at a time; by default one for each core. Results do not depend on it."""
    check: bool = True
    """Look at the data first, and refuse what training would go wrong on."""
    evaluate: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Afterwards run all candidates in the data's environment, which the choice never sees, and tell the regret."""
    episodes: int = 10
    """Episodes of that."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print one JSON object instead of tables."""
    data_dir: Annotated[str | None, Arg(metavar="DIR")] = None
    """Folder in which data set names are looked for first."""
    reading: Annotated[ImportOptions, Mark.NO_PREFIX] = field(default_factory=ImportOptions)


@dataclass
class ResumeOptions:
    """Options of `mildly solve --resume`."""

    resume: Annotated[str, Arg(metavar="DIR")]
    """The folder to go on with."""
    workers: int | None = None
    """Trainings at a time; by default one for each core. Results do not depend on it."""
    evaluate: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Afterwards run all candidates in the data's environment, which the choice never sees, and tell the regret."""
    episodes: int = 10
    """Episodes of that."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print one JSON object instead of tables."""
    max_memory: float | None = None
    """Megabytes that the data of a file may take in memory; half of the machine's by default."""


def main(args: Sequence[str]) -> int:
    """Parse, solve, print."""
    again = any(arg == "--resume" or arg.startswith("--resume=") for arg in args)
    solution, as_json = _go_on(args) if again else _begin(args)
    if as_json:
        print(json.dumps(_plain(solution)))
    else:
        _print(solution)
    return 0


def _begin(args: Sequence[str]) -> tuple[Solution, bool]:
    options = parse(Options, args, prog="mildly solve", description=_ABOUT)
    given: dict[str, Any] = {
        name: value for name, value in vars(options).items() if name not in ("dataset", "json", "minutes")
    }
    if options.minutes is not None and options.steps is not None:
        raise MildlyError("--minutes and --steps exclude each other: one budget is enough.")
    set_default(options.reading.max_memory)
    from mildly.portfolio.solve import solve

    if options.minutes is not None:
        given["minutes"] = options.minutes
    return solve(options.dataset, **given, say=tell), options.json


def _go_on(args: Sequence[str]) -> tuple[Solution, bool]:
    options = parse(ResumeOptions, args, prog="mildly solve", description=_AGAIN)
    set_default(options.max_memory)
    from mildly.portfolio.solve import resume_solve

    how: dict[str, Any] = {"workers": options.workers, "evaluate": options.evaluate, "episodes": options.episodes}
    return resume_solve(options.resume, **how, say=tell), options.json


def _plain(solution: Solution) -> dict[str, object]:
    told = [vars(each) for each in solution.rungs]
    found = {"plan": solution.plan.to_json(), "rungs": told, "choice": solution.choice.to_json()}
    after = {"returns": solution.returns, "regret": solution.regret}
    return {"path": str(solution.path), "best": solution.best, **found, **after}


def _print(solution: Solution) -> None:
    out = console()
    if solution.returns:
        means = {name: float(np.mean(found)) for name, found in solution.returns.items()}
        rows = table("after the choice, in the environment", "mean return", "")
        for name in sorted(means, key=lambda each: -means[each]):
            rows.add_row(name, f"{means[name]:.4g}", "chosen" if name == solution.best else "")
        out.print(rows)
        out.print(f"Regret against the best in hindsight: {solution.regret:.4g}.\n")
    print_choice(solution.choice)
    out.print(f"\nfolder: {solution.path}")
    out.print(f"  policy/      the policy of {solution.best}: mildly.load_policy({str(solution.path)!r})")
    out.print("  card.md      the model card: read this first")
    out.print("  choice.html  the verdict, intervals and diagnostics; report.html how the candidates learned")
