"""`mildly paper`: reproduce the paper's tables and figures and show them beside the published numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.text import Text

from mildly.cli.marks import Mark
from mildly.cli.output import console, parse, print_jobs, table
from mildly.errors import MildlyError, tell
from mildly.files import atomic_write, writable
from mildly.paper.reproductions import (
    EVAL_EVERY,
    METHODS,
    REPRODUCTIONS,
    SEEDS,
    Reproduction,
    published_scores,
    reproduction_named,
)

if TYPE_CHECKING:
    from mildly.evaluation.results import Result
    from mildly.experiments.spec import Job
    from mildly.paper.score_table import ScoreTable

_USAGE = f"""usage: mildly paper NAME [--datasets ...] [--algorithms ...] [--steps N] [--seeds N] [--out DIR] ...

{chr(10).join(f"  {name:<20} {reproduction.title}" for name, reproduction in REPRODUCTIONS.items())}
  settings             lambda and N for each of the 27 data sets, and the returns that score 0 and 100

Runs what is missing (with the paper's settings: a million steps, four seeds, its hyperparameters), then shows the
scores beside the published ones. The options reduce the work; --render-only runs nothing.
'mildly paper NAME --help' explains all options.
"""


@dataclass
class PaperOptions:
    """Options of `mildly paper`."""

    datasets: tuple[str, ...] = ()
    """Only these data sets, e.g. hopper-medium halfcheetah-medium."""
    algorithms: tuple[str, ...] = ()
    """Only these algorithms, e.g. bc mcq."""
    steps: int | None = None
    """Gradient steps of each run; by default the preset's own, a million with the paper's settings (DT: 100,000). A
    warm-up, such as CQL's, has steps of its own before them."""
    seeds: int = SEEDS
    """Seeds, from 0."""
    online_steps: int | None = None
    """Of fig-online, steps in the environment after those on the data; 100,000 unless given."""
    preset: str = "paper"
    """Another set of hyperparameters than the paper's; the table or figure says what is different."""
    eval_every: int = EVAL_EVERY
    """Gradient steps between evaluations; a run's score is the mean of its last ten, of those in the second half."""
    fields: tuple[str, ...] = ()
    """Hyperparameters that replace the paper's, e.g. num_actions=1; the table says so."""
    out: str | None = None
    """Folder of the runs; runs/paper/NAME by default."""
    runs: tuple[str, ...] = ()
    """Folders with further runs to show."""
    data_dir: str | None = None
    """Folder in which the data are looked for. Where the official file is not there (nor downloaded before), a set
    called e.g. hopper-medium-recollected is used instead of hopper-medium-v2."""
    workers: int | None = None
    """Jobs at a time; by default the number of cores divided by --threads."""
    threads: int = 1
    """CPU threads per job."""
    ray: str | None = None
    """Address of a Ray cluster to run on."""
    render_only: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Run nothing; show the runs so far."""
    dry_run: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Only list the jobs."""
    markdown: str | None = None
    """Also write the table as Markdown to this file."""
    latex: str | None = None
    """Also write the table as LaTeX to this file."""
    csv: str | None = None
    """Also write the table as CSV to this file."""
    plot: str | None = None
    """Where a figure goes; a PNG in the runs' folder by default."""


@dataclass
class _SettingsOptions:
    """`mildly paper settings` has none."""


def main(args: Sequence[str]) -> int:
    """Run what is missing, show all runs so far."""
    if not args or args[0] in ("-h", "--help"):
        print(_USAGE, end="")
        return 0 if args else 2
    if args[0] == "settings":
        parse(_SettingsOptions, args[1:], prog="mildly paper settings", description="The paper's settings by data set.")
        return _show_settings()
    reproduction = reproduction_named(args[0])
    options = parse(PaperOptions, args[1:], prog=f"mildly paper {reproduction.name}", description=reproduction.title)
    from mildly.evaluation.results import load_results
    from mildly.paper.jobs import resolve_names

    datasets, methods = resolve_names(reproduction, options.datasets, options.algorithms)
    if options.dry_run:
        print_jobs(_jobs(reproduction, options, datasets, methods))
        return 0
    out = Path(options.out or f"runs/paper/{reproduction.name}")
    code = 0 if options.render_only else _run(reproduction, options, out, datasets, methods)
    results = load_results([*([out] if out.is_dir() else []), *options.runs])
    if reproduction.label:
        _show_table(reproduction, options, results, datasets, methods)
    elif reproduction.name == "table-cost":
        _show_costs(reproduction, results)
    else:
        _draw(reproduction, results, Path(options.plot) if options.plot else out / f"{reproduction.name}.png")
    return code


def _jobs(reproduction: Reproduction, options: PaperOptions, datasets: list[str], methods: list[str]) -> list[Job]:
    from mildly.paper.jobs import jobs_of, parse_fields

    jobs = jobs_of(
        reproduction,
        steps=options.steps,
        seeds=options.seeds,
        datasets=datasets,
        methods=methods,
        eval_every=options.eval_every,
        fields=parse_fields(options.fields),
        data_dir=options.data_dir,
        preset=options.preset,
        online_steps=options.online_steps,
    )
    if not jobs:
        absent = ", ".join(methods or reproduction.methods)
        raise MildlyError(
            f"{reproduction.name}: none of its algorithms exists here yet ({absent}). --render-only shows it."
        )
    return jobs


def _run(reproduction: Reproduction, options: PaperOptions, out: Path, datasets: list[str], methods: list[str]) -> int:
    from mildly.experiments.sweep import run_sweep

    jobs = _jobs(reproduction, options, datasets, methods)
    failed = run_sweep(jobs, out, workers=options.workers, threads=options.threads, ray=options.ray)
    for name, log_tail in failed.items():
        tell(f"failed: {name}; the last lines of {out / name}.log:\n{log_tail}\n")
    return 1 if failed else 0


def _show_table(
    reproduction: Reproduction,
    options: PaperOptions,
    results: Sequence[Result],
    datasets: list[str],
    methods: list[str],
) -> None:
    from mildly.algorithms import ALGORITHMS
    from mildly.paper import score_table as rendering

    filled = rendering.score_table(
        reproduction, results, datasets=datasets, methods=methods, implemented=list(ALGORITHMS)
    )
    out = console()
    out.print(reproduction.title, style="bold")
    out.print("above our score, below the published one\n", style="dim")
    out.print(_text_table(filled))
    for note in filled.footnotes():
        out.print(f"- {note}")
    for target, render in (
        (options.markdown, rendering.to_markdown),
        (options.latex, rendering.to_latex),
        (options.csv, rendering.to_csv),
    ):
        if target:
            with atomic_write(writable(target)) as unfinished:
                unfinished.write_text(render(filled), encoding="utf-8")
            out.print(f"written: {target}")
    if not filled.cells:
        folders = [options.out or f"runs/paper/{reproduction.name}", *options.runs]
        few = f"--datasets {reproduction.datasets[0]} --steps 20000 --seeds 1"
        some = f"mildly paper {reproduction.name} --algorithms {METHODS[reproduction.methods[0]]} {few}"
        out.print(f"no runs in {', '.join(folders)} (more folders: --runs). For a first cell: {some}")


def _text_table(filled: ScoreTable) -> object:
    from mildly.paper.score_table import MISSING, format_mean, format_published

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
                    (format_published(published_scores().get((dataset, method))), "dim"),
                )
            )
        rows.add_row(filled.label(dataset), *cells)
    for words, means in filled.averages().items():
        pairs = [(format_mean(ours), format_mean(paper)) for ours, paper in means.values()]
        rows.add_row(words, *(Text.assemble(ours, "\n", (paper, "dim")) for ours, paper in pairs))
    return rows


def _show_settings() -> int:
    from mildly.paper.settings import settings

    rows = table("", "lambda", "on TD3", "N", "return that scores 0", "100", "steps of an episode")
    for each in settings():
        scores = f"{each.reference_min:.2f}", f"{each.reference_max:.2f}"
        on_td3 = "" if each.lam_td3 == each.lam else f"{each.lam_td3:g}"
        rows.add_row(each.dataset, f"{each.lam:g}", on_td3, str(each.num_actions), *scores, f"{each.horizon:,}")
    out = console()
    out.print(rows)
    out.print("The preset paper has these by a set's name. Its other values: mildly train mcq --preset paper --help")
    return 0


def _show_costs(reproduction: Reproduction, results: Sequence[Result]) -> None:
    from mildly.paper.cost_table import cost_table

    rows = table("", "seconds per 1,000 steps", "peak MB", "runs", "the paper's seconds", "MB (RTX 3090)")
    for cost in cost_table(reproduction, results):
        ours = "no run yet" if cost.seconds is None else f"{cost.seconds:.1f}"
        peak = "" if cost.megabytes is None else f"{cost.megabytes:.0f}"
        theirs = (f"{cost.paper[0]:.1f}", f"{1000 * cost.paper[1]:.0f}") if cost.paper else ("", "")
        rows.add_row(cost.method, ours, peak, str(cost.runs), *theirs)
    out = console()
    out.print(reproduction.title, style="bold")
    out.print(rows)
    out.print("Main gradient steps alone: phases before them, evaluations and checkpoints do not count.")
    out.print("Memory is the process's, or the GPU's.")


def _draw(reproduction: Reproduction, results: Sequence[Result], path: Path) -> None:
    from mildly.paper import figures

    drawings = {
        "fig-parameters": figures.parameter_study,
        "fig-values": figures.value_estimates,
        "fig-online": figures.offline_to_online,
    }
    console().print(f"{reproduction.title}: {drawings[reproduction.name](reproduction, results, path)}")
