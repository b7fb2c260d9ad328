"""`mildly bench`: the speed and memory of a gradient step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, get_type_hints

from mildly.cli.marks import Mark
from mildly.cli.output import console, parse, table
from mildly.errors import MildlyError, tell, unknown_name
from mildly.words import counted

if TYPE_CHECKING:
    from mildly.bench import Row

DEFAULT_PRESETS = ("paper", "official", "default")


@dataclass
class Options:
    """Options of `mildly bench`."""

    algorithm: tuple[str, ...] = ("mcq",)
    """Algorithms to measure."""
    preset: tuple[str, ...] = DEFAULT_PRESETS
    """Presets to measure; an algorithm is measured with those it has."""
    observation_size: int = 17
    """Numbers in an observation (17: halfcheetah)."""
    action_size: int = 6
    """Numbers in an action."""
    batch_size: int | None = None
    """Transitions in a minibatch, if not the preset's own (256)."""
    num_actions: int | None = None
    """N of MCQ, if not the preset's own (10)."""
    repeats: int = 30
    """Steps to time."""
    device: str = "cpu"
    """cpu, cuda, ..."""
    threads: int | None = None
    """CPU threads; all cores by default."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print a list of JSON rows instead of a table."""


def main(args: Sequence[str]) -> int:
    """Parse, measure, print."""
    options = parse(
        Options,
        args,
        prog="mildly bench",
        description="Measure the speed and memory of a gradient step.",
    )
    for name in ("observation_size", "action_size", "repeats", "threads"):
        value = getattr(options, name)
        if value is not None and value < 1:
            raise MildlyError(f"{name} must be at least 1, got {value}.")
    import torch

    from mildly.algorithms import algorithm_named
    from mildly.bench import Candidate, measure
    from mildly.device import resolve_device

    if options.threads is not None:
        torch.set_num_threads(options.threads)
    presets = {name: algorithm_named(name).PRESETS for name in options.algorithm}
    known = {preset for there in presets.values() for preset in there}
    for preset in options.preset if options.preset != DEFAULT_PRESETS else ():
        if preset not in known:
            raise unknown_name("preset", preset, known)
    pairs = [(name, preset) for name in options.algorithm for preset in options.preset if preset in presets[name]]
    tell(f"measuring {', '.join(f'{name} ({preset})' for name, preset in pairs)} by turns ...")
    device = resolve_device(options.device)
    candidates = []
    for name, preset in pairs:
        many = "num_actions" in get_type_hints(algorithm_named(name).Config)
        fields = {"batch_size": options.batch_size, "num_actions": options.num_actions if many else None}
        given = {field: value for field, value in fields.items() if value is not None}
        candidates.append(Candidate(name, preset, options.observation_size, options.action_size, device, given))
    rows = measure(candidates, options.repeats)
    if options.json:
        print(json.dumps([row.to_json() for row in rows], indent=2))
        return 0
    _show(rows)
    return 0


def _show(rows: Sequence[Row]) -> None:
    import torch

    shown = table(
        "algorithm",
        "preset",
        "ms median",
        "ms best",
        "speed",
        "GFLOP",
        "GFLOP/s",
        "machine GFLOP/s",
        "ratio",
        "peak MB",
    )
    for row in rows:
        times, work = (row.ms_median, row.ms_best), (row.gflop, row.gflops, row.machine_gflops)
        speed = "-" if row.speed is None else f"{row.speed:.2f}"
        cells = [*(f"{x:.1f}" for x in times), speed, *(f"{x:.1f}" for x in work), f"{row.ratio:.2f}"]
        shown.add_row(row.algorithm, row.preset, *cells, f"{row.peak_memory_mb:.0f}")
    out = console()
    out.print(shown)
    products = ", ".join(dict.fromkeys(f"{row.largest_product} ({row.preset})" for row in rows))
    compared = dict.fromkeys(f"{row.algorithm} ({row.compared_with})" for row in rows if row.speed is not None)
    if compared:
        out.print(
            f"\nspeed: steps per second, as a multiple of those of {', '.join(compared)}, taken by turns in this run."
        )
    out.print(
        f"{counted(torch.get_num_threads(), 'thread')}. The machine's own speed: one matrix product of {products}."
    )
