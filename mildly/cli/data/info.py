"""`mildly data info`: what is in a data set."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from rich.table import Table

from mildly.action_space import ActionSpace
from mildly.cli.marks import Arg, Mark
from mildly.cli.output import console, parse, table, with_reading
from mildly.data.dataset import Dataset, Meta
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.observation_space import QUANTILES, ObservationSpace


@dataclass
class InfoOptions:
    """Options of `mildly data info`."""

    dataset: Annotated[str, Mark.POSITIONAL, Arg(metavar="SET")]
    """A data set's name, file or folder."""
    plot: Annotated[str | None, Arg(metavar="FILE")] = None
    """Also draw the set: a picture with six panels, written to FILE (.png, .svg or .pdf)."""
    data_dir: str | None = None
    """Folder in which data set names are looked for first."""
    reading: Annotated[ImportOptions, Mark.NO_PREFIX] = field(default_factory=ImportOptions)


def main(args: Sequence[str]) -> int:
    """Print the facts."""
    options = parse(InfoOptions, args, prog="mildly data info", description="What is in a data set.")
    if options.plot:
        from mildly.report.dataset import draw, picture_path

        picture_path(options.plot)  # an error before a large set is read
    data = load_dataset(options.dataset, options.reading, data_dir=options.data_dir)
    meta, returns = data.meta, data.known_returns()
    lengths = data.episode_lengths()
    rows = table("", "")
    facts = {
        "name": meta.name,
        "environment": meta.env_id or "unknown",
        "transitions": f"{len(data):,}",
        "episodes": f"{len(lengths):,}{_gaps(data)}",
        "observation size": str(data.observation_size),
        "action size": str(data.action_size),
        "action bounds in the environment": _bounds(meta),
        "ends: terminated / truncated": f"{data.terminated.sum():,} / {data.truncated.sum():,}",
        "episode return: mean (min, max)": f"{returns.mean():.1f} ({returns.min():.1f}, {returns.max():.1f})",
        "episode length: mean (min, max)": f"{lengths.mean():.1f} ({lengths.min()}, {lengths.max()})",
        "reward: mean (min, max)": f"{data.rewards.mean():.3g} ({data.rewards.min():.3g}, {data.rewards.max():.3g})",
        "reference returns: score 0, 100": f"{meta.reference_min}, {meta.reference_max}",
        "fingerprint": meta.fingerprint[:16],
    }
    score = data.score(returns)
    if score is None:
        facts["reference returns: score 0, 100"] = "none"
    else:
        facts["normalized score of its episodes"] = f"{score.mean():.1f} (best {score.max():.1f})"
    for name, value in facts.items():
        rows.add_row(name, value)
    out = console()
    out.print(rows)
    if meta.observation_names or meta.action_names:
        out.print(_columns(data))
    if meta.source:
        out.print(f"\nsource: {meta.source}")
    if meta.notes:
        out.print("\nnotes:")
    for note in meta.notes:
        out.print(f"- {note}")
    if options.plot:
        out.print(f"\npicture: {draw(data, options.plot)}")
    look = f"mildly data check {shlex.quote(options.dataset)}"
    out.print(f"\nnext: {with_reading(look, options.reading, options.data_dir)}")
    return 0


def _columns(data: Dataset) -> Table:
    """The range of every column that has a name, in the log's own units."""
    meta, rows = data.meta, table("column", "unit", "min", "median", "max")
    space = meta.action_space or ActionSpace.unit(data.action_size)
    fields = (
        (meta.observation_names, meta.observation_units, ObservationSpace.of(data.observations), lambda x: x),
        (meta.action_names, meta.action_units, ObservationSpace.of(data.actions), space.from_unit),
    )
    for names, units, seen, own in fields:
        levels = [own(np.array(level)) for level in (seen.low, seen.quantiles[len(QUANTILES) // 2], seen.high)]
        for i, name in enumerate(names):
            rows.add_row(name, units[i] if units else "", *(f"{level[i]:.4g}" for level in levels))
    return rows


def _gaps(data: Dataset) -> str:
    """How many episodes have gaps, and how many returns are not known for it."""
    if data.gaps is None:
        return ""
    unknown = int(np.isnan(data.gaps.rewards).sum())
    return f" ({(data.gaps.rows > 0).sum():,} with gaps, {unknown:,} of unknown return)"


def _bounds(meta: Meta) -> str:
    return "-1 to 1, or the environment's" if meta.action_space is None else str(meta.action_space)
