"""`mildly model fit`: learn a dynamics model from a data set."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mildly.cli.flags import flags_of
from mildly.cli.help import Page, Section, asks_for_help, flag_rows, group_sections, usage_of
from mildly.cli.marks import Arg, Mark
from mildly.cli.output import console
from mildly.cli.train import read_with_log, reading_flags

_ABOUT = """Learn a model of the environment from logged data: an ensemble that predicts next state and reward.

Its run can be stopped with Ctrl-C and resumed with 'mildly train --resume DIR'. 'mildly model check DIR' tells how good
the model is, 'mildly train mopo --model DIR' learns a policy in it."""


@dataclass
class Options:
    """Options of a fit that are not the model's."""

    dataset: Annotated[str, Mark.POSITIONAL, Arg(metavar="SET")]
    """A data set's name, file or folder."""
    preset: Annotated[str, Arg(metavar="NAME")] = "default"
    """A named set of the fields below: default, paper or small."""
    seed: int = 0
    """Decides all random numbers: the same seed gives the same model, to the bit."""
    out: Annotated[str | None, Arg(metavar="DIR")] = None
    """The run's folder; by default a new one under runs/."""
    log_every: int = 200
    """Gradient steps between lines of metrics."""
    checkpoint_every: int = 1_000
    """Gradient steps between checkpoints."""
    device: Annotated[str, Arg(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """CPU threads; all cores by default."""
    data_dir: Annotated[str | None, Arg(metavar="DIR")] = None
    """Folder in which data set names are looked for first."""
    check: bool = True
    """Look at the data first, and refuse what training would go wrong on."""


def main(args: Sequence[str]) -> int:
    """Parse and fit."""
    from mildly.dynamics import DynamicsConfig

    own, fields, prog = flags_of(Options), flags_of(DynamicsConfig), "mildly model fit"
    if asks_for_help(args):
        sections = [Section("Run", flag_rows(own)), Section("Model (defaults of the preset paper)", flag_rows(fields))]
        Page(_ABOUT, usage_of(prog, own), [*sections, *group_sections(reading_flags())]).show()
        return 0
    given = read_with_log(args, [*own, *fields], prog)
    from mildly.training import offline

    run = offline.train("dynamics", steps=given.get("max_steps"), **given)
    out = console()
    last = run.metrics()[-1]
    out.print(f"step {last['step']:,}: mean squared error of the elites on held-out rows {last['held_out_error']:.4g}")
    out.print(f"run: {run.path}")
    out.print(f"next: mildly model check {run.path}")
    return 0
