"""`mildly train`: train an algorithm on a data set, or resume a run."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any

from mildly.cli.flags import Flag, flags_of, read
from mildly.cli.help import Page, Section, asks_for_help, flag_rows, group_sections, usage_of
from mildly.cli.marks import Arg
from mildly.cli.output import console, parse
from mildly.data.memory import set_default
from mildly.data.options import ImportOptions
from mildly.errors import MildlyError
from mildly.words import counted

if TYPE_CHECKING:
    from mildly.algorithms.base import Algorithm
    from mildly.run import Run

_ABOUT = """Train a policy on logged data, or resume a training.

'mildly train ALGO --help' shows every option and hyperparameter with its meaning and default."""

_NETWORKS = (
    "hidden_dims",
    "_lr",
    "batch_size",
    "layer_norm",
    "tau",
    "log_std_min",
    "log_std_max",
    "dropout",
    "normalize_observations",
    "weight_decay",
)
"""How the names of fields end that are about networks and their optimization, and not about the method."""


@dataclass
class Options:
    """Options of a training run that are not the algorithm's."""

    dataset: Annotated[str, Arg(metavar="SET")]
    """A data set's name, file or folder; 'mildly data list' shows the names."""
    preset: Annotated[str, Arg(metavar="NAME")] = "default"
    """A named set of hyperparameters, one of those above."""
    steps: int | None = None
    """Gradient steps; phases before them, such as a warm-up, have steps of their own."""
    seed: int = 0
    """Decides all random numbers: the same seed gives the same run, to the bit."""
    out: Annotated[str | None, Arg(metavar="DIR")] = None
    """The run's folder; by default a new one under runs/."""
    eval_every: int = 5_000
    """Gradient steps between evaluations; 0 for none."""
    episodes: int = 10
    """Episodes of an evaluation."""
    env: Annotated[str | None, Arg(metavar="NAME")] = None
    """Environment to evaluate in, if not the data set's own; MODULE:ID imports the module that registers it. A raw
    log's action bounds are its, unless given."""
    holdout: float = 0.0
    """Share of the episodes to keep out of the training, so that 'mildly choose' can judge by them; 0.2 is usual."""
    log_every: int = 200
    """Gradient steps between lines of metrics."""
    checkpoint_every: int = 1_000
    """Gradient steps between checkpoints."""
    device: Annotated[str, Arg(metavar="NAME")] = "auto"
    """auto, cpu, cuda, cuda:1, ..."""
    threads: int | None = None
    """CPU threads; all cores by default. With several trainings at a time, give each 1: threads that
    wait for each other's cores are many times slower."""
    data_dir: Annotated[str | None, Arg(metavar="DIR")] = None
    """Folder in which data set names are looked for first."""
    check: bool = True
    """Look at the data first, and refuse what training would go wrong on."""
    tensorboard: bool = False
    """Also write event files for TensorBoard, into the run's folder."""
    watch_values: bool = True
    """End a training whose values leave what the rewards allow, as SAC's do on logged data. Numbers that are not finite
    end it in any case."""


@dataclass
class ResumeOptions:
    """Options of `mildly train --resume`."""

    resume: Annotated[str, Arg(metavar="DIR")]
    """The folder of the run to go on with."""
    steps: int | None = None
    """A new total of gradient steps, to prolong the run."""
    device: Annotated[str | None, Arg(metavar="NAME")] = None
    """Another device than the run was started on; the bits may then differ."""
    threads: int | None = None
    """Another number of CPU threads; the bits may then differ."""
    watch_values: bool | None = None
    """End the training when its values leave what the rewards allow, or from now on do not."""
    max_memory: float | None = None
    """Megabytes that the data of a file may take in memory; half of the machine's by default."""


def main(args: Sequence[str]) -> int:
    """Parse and train."""
    from mildly.algorithms import ALGORITHMS, algorithm_named

    if any(arg == "--resume" or arg.startswith("--resume=") for arg in args):
        about = "Go on with a run from its last checkpoint. It keeps its options; only those below can change."
        options = parse(ResumeOptions, args, prog="mildly train", description=about)
        set_default(options.max_memory)
        changes = {name: getattr(options, name) for name in ("steps", "device", "threads", "watch_values")}
        return tell_of(_offline().resume(options.resume, **changes))
    if not args or args[0] in ("-h", "--help"):
        _overview(ALGORITHMS).show()
        return 0 if args else 2
    if args[0].startswith("-"):
        raise MildlyError(
            f"name an algorithm first: mildly train ALGO --dataset ...; there are {', '.join(sorted(ALGORITHMS))}."
        )
    name, rest = args[0], args[1:]
    kind = algorithm_named(name)
    if asks_for_help(rest):
        help_page(name, kind, rest).show()
        return 0
    given = read_with_log(rest, [*flags_of(Options), *flags_of(kind.Config)], f"mildly train {name}")
    return tell_of(_offline().train(name, **given))


def reading_flags() -> list[Flag]:
    """How to read a raw log, as `mildly data convert` has it; --env is the training's own, and means the log's too."""
    return [flag for flag in flags_of(ImportOptions, group=ImportOptions) if flag.name != "env"]


def read_with_log(args: Sequence[str], flags: Sequence[Flag], prog: str) -> dict[str, Any]:
    """What is given of some flags, and of those that say how to read a raw log, which are the option `reading`."""
    given = read(args, [*flags, *reading_flags()], prog)
    set_default(given.pop("max_memory", None))
    reading = {flag.name: given.pop(flag.name) for flag in reading_flags() if flag.name in given}
    return {**given, "reading": ImportOptions(**reading)} if reading else given


def _overview(algorithms: Mapping[str, type[Algorithm]]) -> Page:
    rows = [(name, _first_line(kind)) for name, kind in sorted(algorithms.items())]
    usage = "mildly train ALGO --dataset SET [options]\nmildly train --resume DIR [options]"
    return Page(_ABOUT, usage, [Section("Algorithms", rows)])


def help_page(name: str, kind: type[Algorithm], args: Sequence[str]) -> Page:
    """The help of an algorithm. The preset and the data set among the arguments decide the defaults that it shows."""
    from mildly.algorithms.config import make_config

    preset, dataset = _value_of("--preset", args) or "default", _value_of("--dataset", args)
    data = _name_in_tables(dataset, _value_of("--data-dir", args)) if dataset else ""
    fields = flags_of(kind.Config, make_config(kind, preset, data, {}))
    own_steps = {"steps": kind.steps_of(preset)}
    run = [replace(flag, default=own_steps.get(flag.name, flag.default)) for flag in flags_of(Options)]
    key_fields = kind.KEY_FIELDS
    key = sorted((flag for flag in fields if flag.name in key_fields), key=lambda flag: key_fields.index(flag.name))
    others = [flag for flag in fields if flag.name not in key_fields]
    others = sorted(others, key=lambda flag: _depth(kind.Config, flag.name.split(".")[0]))
    own = [flag for flag in others if flag.group is None]
    titled = {
        "Run": run,
        "First to change": key,
        "Method": [flag for flag in own if not flag.name.endswith(_NETWORKS)],
        "Networks and optimization": [flag for flag in own if flag.name.endswith(_NETWORKS)],
    }
    sections = [Section(title, flag_rows(flags)) for title, flags in titled.items() if flags]
    shown = f"The defaults below are those of {preset}{f' on {data}' if data else ''}."
    usage = usage_of(f"mildly train {name}", run)
    groups = [*group_sections(others), *group_sections(reading_flags())]
    return Page(_first_line(kind), usage, [_presets(kind, shown), *sections, *groups])


def _depth(config: type, name: str) -> int:
    """How far up a field or a group was last said anew: a method's own comes first, what all have in common last."""
    return next(i for i, base in enumerate(config.__mro__) if name in vars(base).get("__annotations__", ()))


def _presets(kind: type[Algorithm], shown: str) -> Section:
    """The presets with a few words each."""
    presets = ["default", *(preset for preset in kind.PRESETS if preset != "default")]
    return Section("Presets", [(preset, kind.PRESET_NOTES.get(preset, "")) for preset in presets], shown)


def _name_in_tables(dataset: str, data_dir: str | None) -> str:
    """The name by which tables of hyperparameters know a data set, as far as it is told without opening a file."""
    from mildly.data.dataset import Dataset
    from mildly.data.official import name_of_file
    from mildly.data.registry import MINARI, find_local

    path = find_local(dataset, data_dir)
    if path is None:
        return dataset.removeprefix(MINARI)
    if (path / "dataset.json").is_file():
        return Dataset.describe(path).name
    return name_of_file(path.name) or path.name.split(".")[0].replace("_", "-")


def _value_of(flag: str, args: Sequence[str]) -> str | None:
    """The last value given to a flag, as `--flag value` or `--flag=value`."""
    found = None
    for i, arg in enumerate(args):
        if arg == flag and i + 1 < len(args) and not args[i + 1].startswith("--"):
            found = args[i + 1]
        elif arg.startswith(f"{flag}="):
            found = arg.split("=", 1)[1]
    return found


def _offline() -> Any:
    from mildly.training import offline

    return offline


def tell_of(run: Run) -> int:
    """Say what came of a training."""
    out = console()
    evaluations = run.evaluations()
    if evaluations:
        last = evaluations[-1]
        score = "" if last["score"] is None else f", normalized score {last['score']:.1f}"
        episodes = len(last["returns"])
        out.print(
            f"step {last['step']:,}: mean return {last['mean_return']:.1f} over {counted(episodes, 'episode')}{score}"
        )
    out.print(f"run: {run.path}")
    if evaluations:
        out.print(f"next: mildly evaluate {run.path}")
    return 0


def _first_line(kind: Any) -> str:
    """The first sentence of the algorithm's module, which says what it is."""
    module = sys.modules[kind.__module__].__doc__ or ""
    return module.split("\n", 1)[0]
