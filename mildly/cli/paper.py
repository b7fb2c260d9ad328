"""`mildly paper`: the paper's tables and figures, run and shown beside its own numbers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro
from rich.text import Text

from mildly.cli.output import console, parse, table
from mildly.errors import MildlyError
from mildly.paper.exhibits import EVAL_EVERY, EXHIBITS, SEEDS, STEPS, Exhibit, exhibit_named, paper_scores

if TYPE_CHECKING:
    from mildly.evaluation.results import Result
    from mildly.paper.tables import ScoreTable

_USAGE = f"""usage: mildly paper NAME [--datasets ...] [--algorithms ...] [--steps N] [--seeds N] [--out DIR] ...

{chr(10).join(f"  {name:<20} {exhibit.title}" for name, exhibit in EXHIBITS.items())}

Runs what is missing (with the paper's settings: a million steps, four seeds, its hyperparameters), then shows what
there is beside the paper's numbers. Cut it down with the options; --render-only shows without running.
'mildly paper NAME --help' explains all options.
"""


@dataclass
class PaperOptions:
    """Options of `mildly paper`."""

    datasets: tuple[str, ...] = ()
    """Only these data sets, e.g. hopper-medium halfcheetah-medium."""
    algorithms: tuple[str, ...] = ()
    """Only these algorithms, e.g. bc mcq."""
    steps: int = STEPS
    """Gradient steps of each run."""
    seeds: int = SEEDS
    """Seeds, from 0."""
    eval_every: int = EVAL_EVERY
    """Gradient steps between evaluations; a run's score is the mean of its last ten."""
    fields: tuple[str, ...] = ()
    """Hyperparameters that shall differ from the paper's, e.g. num_actions=1; the table says so."""
    out: str | None = None
    """Folder of the runs; runs/paper/NAME by default."""
    runs: tuple[str, ...] = ()
    """Folders with further runs to show."""
    data_dir: str | None = None
    """Folder in which the data are looked for. Where the official file is not there (nor downloaded before), a set
    called e.g. hopper-medium-recollected stands in for hopper-medium-v2."""
    workers: int | None = None
    """Jobs at a time; as many as the cores have room for by default."""
    threads: int = 1
    """CPU threads of a job."""
    ray: str | None = None
    """Address of a Ray cluster that does the work."""
    render_only: Annotated[bool, tyro.conf.FlagCreatePairsOff] = False
    """Run nothing; show what there is."""
    markdown: str | None = None
    """Also write the table as Markdown to this file."""
    latex: str | None = None
    """Also write the table as LaTeX to this file."""
    csv: str | None = None
    """Also write the table as CSV to this file."""
    plot: str | None = None
    """Where a figure goes; a PNG in the runs' folder by default."""


def main(args: Sequence[str]) -> int:
    """Run what is missing, show what there is."""
    if not args or args[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if args else 2
    exhibit = exhibit_named(args[0])
    options = parse(PaperOptions, args[1:], prog=f"mildly paper {exhibit.name}", description=exhibit.title)
    from mildly.evaluation.results import load_results
    from mildly.paper.runs import chosen

    datasets, methods = chosen(exhibit, options.datasets, options.algorithms)
    out = Path(options.out or f"runs/paper/{exhibit.name}")
    code = 0 if options.render_only else _run(exhibit, options, out, datasets, methods)
    results = load_results([*([out] if out.is_dir() else []), *options.runs])
    if exhibit.label:
        _show_table(exhibit, options, results, datasets, methods)
    elif exhibit.name == "table-cost":
        _show_costs(exhibit, results)
    else:
        _draw(exhibit, results, Path(options.plot) if options.plot else out / f"{exhibit.name}.png")
    return code


def _run(exhibit: Exhibit, options: PaperOptions, out: Path, datasets: list[str], methods: list[str]) -> int:
    from mildly.experiments.sweep import run_sweep
    from mildly.paper.runs import jobs_of, parse_fields
    from mildly.training.loop import Stopped

    jobs = jobs_of(
        exhibit,
        steps=options.steps,
        seeds=options.seeds,
        datasets=datasets,
        methods=methods,
        eval_every=options.eval_every,
        fields=parse_fields(options.fields),
        data_dir=options.data_dir,
    )
    if not jobs:
        absent = ", ".join(methods or exhibit.methods)
        raise MildlyError(f"{exhibit.name}: none of its algorithms exists here yet ({absent}). --render-only shows it.")
    try:
        failed = run_sweep(jobs, out, workers=options.workers, threads=options.threads, ray=options.ray)
    except Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    for name, words in failed.items():
        print(f"failed: {name}; the last lines of {out / name}.log:\n{words}\n", file=sys.stderr)
    return 1 if failed else 0


def _show_table(
    exhibit: Exhibit, options: PaperOptions, results: Sequence[Result], datasets: list[str], methods: list[str]
) -> None:
    from mildly.algorithms import ALGORITHMS
    from mildly.paper import tables as rendering

    filled = rendering.score_table(exhibit, results, datasets=datasets, methods=methods, implemented=list(ALGORITHMS))
    out = console()
    out.print(exhibit.title, style="bold")
    out.print("above ours, below the paper's\n", style="dim")
    out.print(_shown(filled))
    for note in filled.footnotes():
        out.print(f"- {note}")
    for target, render in (
        (options.markdown, rendering.markdown),
        (options.latex, rendering.latex),
        (options.csv, rendering.comma_separated),
    ):
        if target:
            Path(target).write_text(render(filled))
            out.print(f"written: {target}")


def _shown(filled: ScoreTable) -> object:
    from mildly.paper.tables import MISSING, number, printed

    rows = table("", *filled.methods)
    for dataset in filled.datasets:
        cells = []
        for method in filled.methods:
            ours = filled.cell(dataset, method)
            best = filled.best(dataset) == method
            cells.append(
                Text.assemble(
                    (str(ours) if ours else MISSING, "bold" if best else ""),
                    "\n",
                    (printed(paper_scores().get((dataset, method))), "dim"),
                )
            )
        rows.add_row(filled.label(dataset), *cells)
    averages = (Text.assemble(number(ours), "\n", (number(paper), "dim")) for ours, paper in filled.averages().values())
    rows.add_row("average", *averages)
    return rows


def _show_costs(exhibit: Exhibit, results: Sequence[Result]) -> None:
    from mildly.paper.cost import costs

    rows = table("", "seconds for 1,000 steps", "peak MB", "runs", "the paper's seconds", "MB (RTX 3090)")
    for cost in costs(exhibit, results):
        ours = "no run yet" if cost.seconds is None else f"{cost.seconds:.1f}"
        peak = "" if cost.megabytes is None else f"{cost.megabytes:.0f}"
        theirs = (f"{cost.paper[0]:.1f}", f"{1000 * cost.paper[1]:.0f}") if cost.paper else ("", "")
        rows.add_row(cost.method, ours, peak, str(cost.runs), *theirs)
    out = console()
    out.print(exhibit.title, style="bold")
    out.print(rows)
    out.print("Gradient steps alone: evaluations and checkpoints do not count. Memory is the process's, or the GPU's.")


def _draw(exhibit: Exhibit, results: Sequence[Result], path: Path) -> None:
    from mildly.paper.figures import parameter_study, value_estimates

    draw = parameter_study if exhibit.name == "fig-parameters" else value_estimates
    console().print(f"{exhibit.title}: {draw(exhibit, results, path)}")
