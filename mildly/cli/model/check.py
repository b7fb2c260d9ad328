"""`mildly model check`: how good a dynamics model is."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np

from mildly.cli.marks import Arg, Mark
from mildly.cli.output import console, parse, table
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

if TYPE_CHECKING:
    from mildly.data.dataset import Dataset
    from mildly.dynamics.check import ModelCheck

_ABOUT = """Compare a model's predictions with what happened in episodes that it has not seen.

One step: errors beside those of predicting no change, and how often the truth lies in the model's 50 % and 90 %
intervals.
Many steps: how errors grow when the model goes on from its own predictions."""


@dataclass
class Options:
    """Options of `mildly model check`."""

    run: Annotated[str, Mark.POSITIONAL, Arg(metavar="RUN")]
    """The folder of 'mildly model fit', of a run of mopo, or of a model."""
    dataset: Annotated[str | None, Arg(metavar="SET")] = None
    """Other data than the run's, all of which is compared."""
    horizon: int = 50
    """The longest rollouts, in steps."""
    plot: Annotated[str | None, Arg(metavar="FILE")] = None
    """Also draw it: growth of errors, and calibration (.png, .svg or .pdf)."""
    data_dir: Annotated[str | None, Arg(metavar="DIR")] = None
    """Folder in which data set names are looked for first."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print one JSON object instead of tables."""
    reading: Annotated[ImportOptions, Mark.NO_PREFIX] = field(default_factory=ImportOptions)


def main(args: Sequence[str]) -> int:
    """Parse, compare, print, draw."""
    options = parse(Options, args, prog="mildly model check", description=_ABOUT)
    if options.horizon < 1:
        raise MildlyError(f"horizon must be at least 1, got {options.horizon}.")
    from mildly.dynamics import load_dynamics
    from mildly.dynamics.check import check_model
    from mildly.report.dataset import picture_path
    from mildly.report.dynamics import draw

    if options.plot:
        picture_path(options.plot)  # an error before the work is done
    model = load_dynamics(options.run)
    found = check_model(model, _data(options), horizon=options.horizon)
    if options.json:
        print(json.dumps(found.to_json(), indent=2))
    else:
        _print(found)
    if options.plot:
        draw(found, options.plot)
    return 0


def _data(options: Options) -> Dataset:
    """The data that are named, or those of the run; of these, the episodes that were held out, if any were."""
    from mildly.data.select import pick_episodes
    from mildly.run import Run
    from mildly.training.reading import reread

    if options.dataset is not None:
        return load_dataset(options.dataset, options.reading, data_dir=options.data_dir)
    if not (Path(options.run) / "run.json").is_file():
        raise MildlyError(f"{options.run}: a model without its run; name the data: --dataset SET.")
    run = Run.open(options.run)
    plan = run.plan()
    data = reread(run, plan)
    return pick_episodes(data, np.array(plan.held_out)) if plan.held_out else data


def _print(found: ModelCheck) -> None:
    from mildly.dynamics.check import LEVELS

    out = console()
    out.print(f"{found.data}: {found.transitions:,} transitions of {found.episodes:,} episodes", style="bold")
    shown = (0.5, 0.9)
    steps = table("one step", "error", "no change", "ratio", *(f"in {100 * level:.0f} %" for level in shown))
    for column in found.columns:
        ratio = column.error / column.no_change if column.no_change else float("nan")
        inside = [f"{100 * column.coverage[LEVELS.index(level)]:.0f} %" for level in shown]
        steps.add_row(column.name, f"{column.error:.3g}", f"{column.no_change:.3g}", f"{ratio:.3f}", *inside)
    out.print(steps)
    out.print("error: root mean square, in the column's unit; of the reward 'no change' is its mean")
    out.print()
    growth = table("steps", "error", "median", "no change")
    for row in found.growth:
        growth.add_row(str(row.steps), f"{row.error:.3f}", f"{row.median:.3f}", f"{row.no_change:.3f}")
    out.print(growth)
    out.print("in standard deviations of the data, with the logged actions")
    out.print()
    out.print(f"ends: {found.ends_told} of {found.ends} logged ends told, {found.false_ends} others")
