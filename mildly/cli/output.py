"""What the commands share: parsing with helpful messages, a console, aligned tables."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

from rich.table import Table

from mildly.cli import flags
from mildly.cli.help import Page, asks_for_help, sections_of, usage_of
from mildly.cli.marks import Arg
from mildly.errors import MildlyError, Stopped
from mildly.terminal import SafeConsole
from mildly.words import counted

if TYPE_CHECKING:
    from mildly.data.dataset import Dataset
    from mildly.data.options import ImportOptions
    from mildly.experiments.spec import Job

T = TypeVar("T")


@dataclass(frozen=True)
class Running:
    """Running: the cores that work, where fits are kept, and data looked for."""

    threads: int | None = None
    """CPU threads; all cores by default. With several trainings at a time, give each 1: threads that
    wait for each other's cores are many times slower."""
    out: Annotated[str | None, Arg(metavar="DIR")] = None
    """Folder to keep fits in: the same command then goes on where it was interrupted."""
    data_dir: Annotated[str | None, Arg(metavar="DIR")] = None
    """Folder in which data set names are looked for first."""

    def log(self, name: str, reading: ImportOptions) -> Dataset:
        """The log that a command is about, read within the memory that is allowed."""
        from mildly.data.memory import set_default
        from mildly.data.registry import load_dataset

        use_threads(self.threads)
        set_default(reading.max_memory)
        return load_dataset(name, reading, data_dir=self.data_dir)

    @contextmanager
    def resumable(self, *command: str) -> Iterator[None]:
        """Who stops the work is told the command that goes on with it, if fits are kept."""
        try:
            yield
        except Stopped as why:
            if self.out is None:
                raise
            raise Stopped.retold(why, f"{why} Go on with: {shlex.join(('mildly', *command))}") from why


def parse(kind: type[T], args: Sequence[str], *, prog: str, description: str) -> T:
    """Typed options from arguments. `--help` shows the page and ends the program."""
    known = flags.flags_of(kind)
    if asks_for_help(args):
        Page(description, usage_of(prog, known), sections_of(known)).show()
        raise SystemExit(0)
    return flags.build(kind, flags.read(args, known, prog))


def use_threads(threads: int | None) -> None:
    """Let torch work with so many CPU threads, if a number is given."""
    if threads is None:
        return
    if threads < 1:
        raise MildlyError(f"--threads must be at least 1, got {threads}.")
    import torch

    torch.set_num_threads(threads)


def console() -> SafeConsole:
    """Standard output; where it is not a terminal, lines are never folded."""
    out = SafeConsole(soft_wrap=True)
    return out if out.is_terminal else SafeConsole(soft_wrap=True, width=160)


def with_reading(words: str, reading: ImportOptions, data_dir: str | None = None) -> str:
    """A command, with the options that make it read the same data in the same way."""
    folder = "" if data_dir is None else f"--data-dir {shlex.quote(data_dir)}"
    return " ".join(part for part in (words, reading.words(), folder) if part)


def print_jobs(jobs: Sequence[Job]) -> None:
    """What a sweep would run."""
    out = console()
    for job in jobs:
        out.print(f"{job.name}  {job.steps:,} steps")
    out.print(counted(len(jobs), "job"))


def table(*columns: str, title: str | None = None) -> Table:
    """A plain table: the first column is text, the others are numbers, aligned to the right."""
    made = Table(
        title=title, box=None, pad_edge=False, title_justify="left", header_style="bold", show_header=any(columns)
    )
    for i, column in enumerate(columns):
        made.add_column(column, justify="right" if i else "left", no_wrap=True)
    return made
