"""`mildly train`: train an algorithm on a data set, or resume a run."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import tyro

from mildly.cli.output import console, parse
from mildly.errors import MildlyError

_USAGE = """usage: mildly train ALGO --dataset NAME_OR_PATH [--preset paper] [--steps N] [--seed 0] [--out DIR] ...
       mildly train --resume DIR [--steps N] [--device NAME] [--threads N]

algorithms:
{algorithms}

'mildly train ALGO --help' shows every option and hyperparameter with its meaning and default.
"""


@dataclass
class Options:
    """Options of a training run that are not the algorithm's."""

    dataset: str
    """A data set's name, file or folder (see 'mildly data --help')."""
    preset: str = "paper"
    """Named set of hyperparameters."""
    steps: int = 1_000_000
    """Gradient steps."""
    seed: int = 0
    """Same seed, same bits."""
    out: str | None = None
    """The run's folder; by default a new one under runs/."""
    eval_every: int = 5_000
    """Gradient steps between evaluations; 0 for none."""
    episodes: int = 10
    """Episodes of an evaluation."""
    env: str | None = None
    """Environment to evaluate in, if not the data set's own."""
    log_every: int = 200
    """Gradient steps between lines of metrics."""
    checkpoint_every: int = 1_000
    """Gradient steps between checkpoints."""
    device: str = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """CPU threads; all cores by default."""
    data_dir: str | None = None
    """Folder in which data set names are looked for first."""
    check: bool = True
    """Look at the data first, and refuse what training would go wrong on."""
    tensorboard: bool = False
    """Also write event files for TensorBoard, into the run's folder."""


@dataclass
class ResumeOptions:
    """Options of `mildly train --resume`."""

    resume: str
    """The folder of the run to go on with."""
    steps: int | None = None
    """A new total of gradient steps, to prolong the run."""
    device: str | None = None
    """Another device than the run was started on; the bits may then differ."""
    threads: int | None = None
    """Another number of CPU threads; the bits may then differ."""


def main(args: Sequence[str]) -> int:
    """Parse and train."""
    from mildly.algorithms import ALGORITHMS, algorithm_named

    if any(arg == "--resume" or arg.startswith("--resume=") for arg in args):
        about = "Go on with a run from its last checkpoint. It keeps its options; only those below can change."
        options = parse(ResumeOptions, args, prog="mildly train", description=about)
        changes = {name: getattr(options, name) for name in ("steps", "device", "threads")}
        return _train(lambda loop: loop.resume(options.resume, **changes))
    if not args or args[0] in ("-h", "--help"):
        width = max(map(len, ALGORITHMS))
        listed = "\n".join(f"  {name:<{width}}  {_first_line(kind)}" for name, kind in sorted(ALGORITHMS.items()))
        print(_USAGE.format(algorithms=listed), end="")
        return 0 if args else 2
    if args[0].startswith("-"):
        raise MildlyError(
            f"name an algorithm first: mildly train ALGO --dataset ...; there are {', '.join(sorted(ALGORITHMS))}."
        )
    name, rest = args[0], list(args[1:])
    kind = algorithm_named(name)
    options, config = _parse_options(name, kind, rest)
    common = {f.name: getattr(options, f.name) for f in dataclasses.fields(Options)}
    return _train(lambda loop: loop.train(name, **common, **dataclasses.asdict(config)))


def _parse_options(name: str, kind: Any, rest: list[str]) -> tuple[Any, Any]:
    """Flags win over the paper's values for the data set, which win over the preset.

    The preset and the data set are read first, because they decide the defaults that the help shows.
    """
    from mildly.algorithms.base import make_config
    from mildly.data.registry import name_of

    preset = _value_of("--preset", rest) or "paper"
    dataset = _value_of("--dataset", rest)
    name_in_tables = name_of(dataset, _value_of("--data-dir", rest)) if dataset else ""
    defaults = make_config(kind, preset, name_in_tables, {})
    combined = dataclasses.make_dataclass(
        "TrainOptions",
        [
            ("run", Annotated[Options, tyro.conf.OmitArgPrefixes]),
            ("hyperparameters", Annotated[kind.Config, tyro.conf.OmitArgPrefixes], field(default=defaults)),
        ],
    )
    description = f"{_first_line(kind)}\n\nPresets: {', '.join(kind.PRESETS)}."
    parsed: Any = parse(combined, rest, prog=f"mildly train {name}", description=description)
    return parsed.run, parsed.hyperparameters


def _value_of(flag: str, args: Sequence[str]) -> str | None:
    """The last value given to a flag, as `--flag value` or `--flag=value`."""
    found = None
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args):
            found = args[i + 1]
        elif arg.startswith(f"{flag}="):
            found = arg.split("=", 1)[1]
    return found


def _train(go: Any) -> int:
    from mildly.training import loop

    try:
        run = go(loop)
    except loop.Stopped as stopped:
        print(stopped, file=sys.stderr)
        return stopped.exit_code
    out = console()
    evaluations = run.evaluations()
    if evaluations:
        last = evaluations[-1]
        score = "" if last["score"] is None else f", normalized score {last['score']:.1f}"
        episodes = len(last["returns"])
        out.print(f"step {last['step']}: mean return {last['mean_return']:.1f} over {episodes} episodes{score}")
    out.print(f"run: {run.path}")
    if evaluations:
        out.print(f"next: mildly evaluate {run.path}")
    return 0


def _first_line(kind: Any) -> str:
    """The first sentence of the algorithm's module, which says what it is."""
    module = sys.modules[kind.__module__].__doc__ or ""
    return module.split("\n", 1)[0]
