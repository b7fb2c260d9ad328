"""`mildly data list`: every data set with a name."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from mildly.cli.output import console, parse, table
from mildly.data.official import cache_folder
from mildly.data.registry import DATA_VARIABLE, Listing, data_folder, list_datasets
from mildly.data.tasks import PAPER_DATASETS
from mildly.terminal import SafeConsole


@dataclass
class ListOptions:
    """Options of `mildly data list`."""

    data_dir: str | None = None
    """Folder with your data sets; the environment variable MILDLY_DATA names it, too."""
    all: bool = False
    """Show every official name with its size, not only those of the paper."""


def main(args: Sequence[str]) -> int:
    """Print the names, by where the data are."""
    options = parse(ListOptions, args, prog="mildly data list", description="List every data set with a name.")
    folder, out = data_folder(options.data_dir), console()
    rows: dict[str, list[Listing]] = defaultdict(list)
    for row in list_datasets(options.data_dir):
        rows[row.where].append(row)
    _print_here(out, "Built in:", rows["built in"])
    if folder:
        by = DATA_VARIABLE if options.data_dir is None else "--data-dir"
        _print_here(out, f"In {folder} ({by}):", rows["data folder"], folder)
    if rows["cache"]:
        _print_here(out, f"Downloaded to {cache_folder()}:", rows["cache"], cache_folder())
    missing = rows["to download"]
    (_print_all if options.all else _print_paper)(out, missing)
    if not options.all:
        out.print(f"--all lists all {len(missing)} official sets that can be downloaded.")
    if folder is None:
        out.print(
            f"Names of your own: set {DATA_VARIABLE}, or give --data-dir, the folder in which your data sets are."
        )
    return 0


def _print_here(out: SafeConsole, title: str, rows: Sequence[Listing], folder: Path | None = None) -> None:
    """Sets that can be loaded at once, with the files that they are in."""
    out.print(title)
    lines = table("", "", "")
    lines.columns[2].justify = "left"
    for row in rows:
        extent = f"{row.transitions:,} transitions" if row.transitions is not None else ""
        kept = str(row.path.relative_to(folder)) if row.path and folder else ""
        lines.add_row(f"  {row.name}", decimal(row.size) if row.size else extent, "" if kept == row.name else kept)
    out.print(lines if rows else "  no data sets")
    out.print()


def _print_all(out: SafeConsole, rows: Sequence[Listing]) -> None:
    out.print("Official D4RL sets, downloaded when first used:")
    lines = table("", "")
    for row in rows:
        lines.add_row(f"  {row.name}", decimal(row.size) if row.size else "unknown")
    out.print(lines)
    out.print()


def _print_paper(out: SafeConsole, rows: Sequence[Listing]) -> None:
    """The paper's sets, a line for each family: `hopper-*-v2  random medium ...`, and the sum of their sizes."""
    sizes = {row.name: row.size for row in rows}
    families: dict[str, list[str]] = defaultdict(list)
    for name in (name for name in PAPER_DATASETS if name in sizes):
        task, rest = name.split("-", 1)
        kind, version = rest.rsplit("-", 1)
        families[f"{task}-*-{version}"].append(kind)
    if not families:
        return
    family, kinds = next(iter(families.items()))
    example = family.replace("*", kinds[0])
    out.print(f"The paper's D4RL sets, downloaded when first used, such as {example}:")
    lines = table("", "", "")
    lines.columns[1].justify = "left"
    for family, kinds in families.items():
        known = [sizes[family.replace("*", kind)] for kind in kinds]
        total = decimal(sum(size or 0 for size in known)) if all(known) else "unknown"
        lines.add_row(f"  {family}", " ".join(kinds), total)
    out.print(lines)
    out.print()
