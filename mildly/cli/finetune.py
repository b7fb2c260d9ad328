"""`mildly finetune`: go on with a trained run, online or with further logs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from mildly.cli.flags import flags_of
from mildly.cli.help import Page, asks_for_help, group_sections, sections_of, usage_of
from mildly.cli.marks import Arg, Mark
from mildly.cli.train import read_with_log, reading_flags, tell_of

_ABOUT = """Go on with a trained run in its own folder: online in its environment, or with further logs (--dataset).

Networks, optimizers and normalization are those of the last checkpoint; hyperparameters stay as they are. Steps are
those of the environment, and are counted on from the offline ones: the report shows one curve. The same command goes on
with what was interrupted, exactly and at any step: transitions are on disk, and episodes that were under way are played
again from their seed with the actions that were taken. An environment that does not repeat itself begins a new
episode."""


@dataclass
class FinetuneOptions:
    """Options of `mildly finetune`."""

    run: Annotated[str, Mark.POSITIONAL]
    """The folder of a run that is complete."""
    steps: int | None = None
    """Steps of the environment, or gradient steps on further logs; 100,000 unless given. More than before prolong a
    part that is complete."""
    env: Annotated[str | None, Arg(metavar="NAME")] = None
    """Environment to act in, if not the run's own; MODULE:ID imports the module that registers it. Another one of its
    kind is evaluated in."""
    dataset: Annotated[str | None, Arg(metavar="SET")] = None
    """Further logs to learn from instead, read as the first were unless options of reading are given."""
    share: float | None = None
    """Share of new transitions in every batch, such as 0.5; not given, all transitions are drawn alike, old and new."""
    share_end: float | None = None
    """The share at the end, where it is to change on a straight line; online only."""
    updates_per_step: float | None = None
    """Gradient steps for each step of an environment, 1 unless given; 0.25 is one for four."""
    environments: int | None = None
    """Environments side by side, 1 unless given."""
    noise: float | None = None
    """Standard deviation of the noise on the actions of deterministic policies (TD3, TD3+BC, MCQ-TD3), 0.1 unless
    given. All others act with their own draws."""
    stop_below: float | None = None
    """Stop where an evaluation's score, or return where there is no score, is less than this, and make the best policy
    the run's policy again."""
    eval_every: int | None = None
    """Steps between evaluations; the run's own unless given."""
    episodes: int | None = None
    """Episodes of an evaluation; the run's own unless given."""
    device: Annotated[str | None, Arg(metavar="NAME")] = None
    """Another device than the run's; the bits may then differ."""
    threads: int | None = None
    """Another number of CPU threads; the bits may then differ."""
    data_dir: Annotated[str | None, Arg(metavar="DIR")] = None
    """Folder in which data set names are looked for first."""


def main(args: Sequence[str]) -> int:
    """Parse, fine-tune, print."""
    own, prog = flags_of(FinetuneOptions), "mildly finetune"
    if asks_for_help(args):
        sections = [*sections_of(own), *group_sections(reading_flags())]
        Page(_ABOUT, usage_of(prog, own), sections).show()
        return 0
    given = read_with_log(args, own, prog)
    from mildly.training.finetune import finetune

    return tell_of(finetune(given.pop("run"), **given))
