"""`mildly sweep`: many trainings, on all cores or on a Ray cluster."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mildly.cli.marks import Mark
from mildly.cli.output import console, parse, print_jobs, table
from mildly.errors import tell

if TYPE_CHECKING:
    from mildly.experiments.spec import Job

_DESCRIPTION = """Train every combination of algorithms, data sets, fields and seeds that a TOML file lists.

  algorithms = ["bc", "mcq"]
  datasets = ["pendulum-mixed", "hopper-mixed"]
  seeds = 3                 # 0, 1, 2; or a list
  preset = "small"          # this and other options of 'mildly train'
  steps = 6000

  [fields]                  # any hyperparameters of 'mildly train ALGO'
  lam = [0.5, 0.7]          # a list of values: each is crossed with all else
  behavior.model = "flow"   # a field inside a group: with a dot

  [mcq]                     # for one algorithm alone
  steps = 8000

  [mcq.variants.careful]    # named variants, each of them run
  lam = 0.3
  [mcq.variants.printed]
  preset = "paper"

The same command resumes a sweep that was stopped or killed.
"""


@dataclass
class SweepOptions:
    """Options of `mildly sweep`."""

    spec: Annotated[Path, Mark.POSITIONAL]
    """The TOML file."""
    out: Path
    """The sweep's folder; each job is a run folder below it."""
    workers: int | None = None
    """Jobs at a time; by default the number of cores divided by --threads."""
    threads: int = 1
    """CPU threads per job."""
    retries: int = 2
    """How often a failed job is run again, from its last checkpoint; not if its training diverged."""
    ray: str | None = None
    """Address of a Ray cluster to run on: HOST:PORT, or auto for the one that runs here."""
    dry_run: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Only list the jobs."""


def main(args: Sequence[str]) -> int:
    """Parse, run, print the scores."""
    options = parse(SweepOptions, args, prog="mildly sweep", description=_DESCRIPTION)
    from mildly.experiments.spec import expand, read_spec
    from mildly.experiments.sweep import run_sweep

    jobs = expand(read_spec(options.spec))
    out = console()
    if options.dry_run:
        print_jobs(jobs)
        return 0
    failed = run_sweep(
        jobs,
        options.out,
        workers=options.workers,
        threads=options.threads,
        retries=options.retries,
        ray=options.ray,
    )
    _print_scores(jobs, options.out)
    for name, log_tail in failed.items():
        tell(f"failed: {name}; the last lines of {options.out / name}.log:\n{log_tail}\n")
    out.print(f"{len(jobs) - len(failed)} of {len(jobs)} jobs complete in {options.out}")
    out.print(f"next: mildly report {shlex.quote(str(options.out))} -o report.html")
    return 1 if failed else 0


def _print_scores(jobs: Sequence[Job], folder: Path) -> None:
    from mildly.evaluation.results import SCORE_RULE
    from mildly.experiments.final_scores import final_scores

    rows = final_scores(jobs, folder)
    datasets = list(dict.fromkeys(name for row in rows.values() for name in row))
    shown = table("final score", *datasets)
    for (algorithm, variant), row in rows.items():
        shown.add_row(f"{algorithm} {variant}".strip(), *(str(row.get(name, "-")) for name in datasets))
    out = console()
    out.print(shown)
    out.print(f"Mean ± standard deviation over seeds. A score is {SCORE_RULE}.\n")
