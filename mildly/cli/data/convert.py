"""`mildly data convert`: from any format to any other."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from mildly.cli.help import asks_for_help
from mildly.cli.marks import Arg, Mark
from mildly.cli.output import console, parse
from mildly.data.convert import convert
from mildly.data.formats import FORMATS
from mildly.data.options import ImportOptions
from mildly.words import counted

_ABOUT = """Read logs in any format and write them in another.

SRC: a CSV or Parquet table with one row per step (.csv .tsv .csv.gz .parquet), a folder of them, one file per run, a
D4RL or similar HDF5 file (.hdf5 .h5), arrays (.npz, or a folder of .npy files), a Minari set (minari:NAME or its
folder), or a data set's name.
DST: a folder to be made (Mildly's own form, which trains without being read into memory), or a file with one of those
endings, or minari:NAME.

What a file does not say itself is guessed, and the guess is explained; say it with the options below if it is wrong."""


@dataclass
class ConvertOptions:
    """Options of `mildly data convert`."""

    src: Annotated[str, Mark.POSITIONAL, Arg(metavar="SRC")]
    """What to read."""
    dst: Annotated[str, Mark.POSITIONAL, Arg(metavar="DST")]
    """What to write; it must not exist yet, unless --overwrite is given."""
    overwrite: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Replace DST if it is a data set or a file of one of those endings."""
    data_dir: str | None = None
    """Folder in which data set names are looked for first."""
    reading: Annotated[ImportOptions, Mark.NO_PREFIX] = field(default_factory=ImportOptions)


def main(args: Sequence[str]) -> int:
    """Convert, and say what was done on the way."""
    others = ", ".join(FORMATS) if asks_for_help(args) else ""
    about = f"{_ABOUT}\nPackages that are installed here read {others} files, too." if others else _ABOUT
    given = parse(ConvertOptions, args, prog="mildly data convert", description=about)
    out = console()
    notes: list[str] = []
    with out.status(f"reading {given.src}"):
        data = convert(
            given.src,
            given.dst,
            given.reading,
            data_dir=given.data_dir,
            overwrite=given.overwrite,
            tell=notes.append,
        )
    for note in notes:
        out.print(f"- {note}")
    returns = data.episode_returns()
    known = data.known_returns()
    out.print(
        f"{given.dst}: {counted(len(data), 'transition')}, {counted(len(returns), 'episode')}, "
        f"{data.observation_size} observation and {counted(data.action_size, 'action column')}, "
        f"mean return {known.mean():.4g}"
    )
    out.print(f"next: mildly data check {shlex.quote(given.dst)}")
    return 0
