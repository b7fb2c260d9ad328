"""The jobs behind a table or figure of the paper: its settings, with fewer steps, seeds or data sets if asked for."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from mildly.data.official import cached
from mildly.data.registry import find_local
from mildly.data.tasks import base_name
from mildly.errors import MildlyError, unknown_name
from mildly.experiments.spec import Job, Spec, expand, finetune_of, seeds_of
from mildly.paper.reproductions import EVAL_EVERY, METHODS, SEEDS, Grid, Reproduction
from mildly.run import flatten


def jobs_of(
    reproduction: Reproduction,
    *,
    steps: int | None = None,
    seeds: int = SEEDS,
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
    eval_every: int = EVAL_EVERY,
    fields: Mapping[str, Any] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    preset: str = "paper",
    online_steps: int | None = None,
) -> list[Job]:
    """The runs behind a table or figure, of those algorithms that exist here.

    Args:
        reproduction: the table or figure.
        steps: gradient steps; by default the preset's own, of `paper` a million (of DT 100,000).
        seeds: number of seeds.
        datasets: only these.
        methods: only these, by the paper's names.
        eval_every: gradient steps between evaluations.
        fields: hyperparameters that replace the paper's.
        data_dir: folder in which the data are looked for.
        preset: another preset than the paper's.
        online_steps: steps in the environment afterwards, where there are any; the paper's by default.
    """
    further = reproduction.online_steps if online_steps is None else online_steps
    finetune = finetune_of({"steps": further}) if reproduction.online_steps else {}
    jobs: dict[str, Job] = {}  # by name: with fields of the user's, two grids may ask for the same run
    for grid in reproduction.grids:
        here = runnable(grid, methods)
        rows = [name for name in grid.datasets if not datasets or name in datasets]
        if not here or not rows:
            continue
        _check_fields(fields or {}, here)
        spec = Spec(
            algorithms=tuple(METHODS[method] for method in here),
            datasets=tuple(source_of(name, data_dir) for name in rows),
            seeds=seeds_of(seeds),
            options={
                "preset": preset,
                "eval_every": eval_every,
                "watch_values": False,  # SAC's part of the paper's table is that of values without a bound
                **({} if steps is None else {"steps": steps}),
            },
            fields={**{name: list(values) for name, values in grid.fields.items()}, **(fields or {})},
            own={},
            finetune=finetune,
        )
        jobs |= {job.name: job for job in expand(spec)}
    return list(jobs.values())


def _check_fields(fields: Mapping[str, Any], methods: Sequence[str]) -> None:
    from mildly.algorithms import ALGORITHMS
    from mildly.algorithms.config import field_types

    known = {field for name in methods for field in field_types(ALGORITHMS[METHODS[name]].Config)}
    for name in fields:
        if name not in known:
            raise unknown_name("field", name, known)


def runnable(grid: Grid, methods: Sequence[str] = ()) -> list[str]:
    """The methods of a grid that exist here (and are asked for)."""
    from mildly.algorithms import ALGORITHMS

    return [name for name in grid.methods if METHODS[name] in ALGORITHMS and (not methods or name in methods)]


def source_of(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Where a data set of the benchmark is read from.

    The official file, if it is here; a re-collected set of the same name in the data folder, if there is one;
    else the name itself, which is then downloaded.
    """
    found = find_local(name, data_dir) or cached(name)
    if found is None:
        found = find_local(f"{base_name(name)}-recollected", data_dir)
    return name if found is None else str(found)


def resolve_names(
    reproduction: Reproduction, datasets: Sequence[str], methods: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Full names of the data sets and methods that a user asks for by short ones: `hopper-medium`, `mcq`."""
    full = {base_name(name): name for name in reproduction.datasets} | {name: name for name in reproduction.datasets}
    known = {algorithm: method for method, algorithm in METHODS.items() if method in reproduction.methods}
    known |= {name: method for method in reproduction.methods for name in (method, method.lower())}
    for name in datasets:
        if name not in full:
            raise unknown_name(f"data set of {reproduction.name}", name, reproduction.datasets)
    for name in methods:
        if name not in known:
            raise unknown_name(f"algorithm of {reproduction.name}", name, reproduction.methods)
    return [full[name] for name in datasets], [known[name] for name in methods]


def parse_fields(given: Sequence[str]) -> dict[str, Any]:
    """Fields given as `num_actions=1`, with values in TOML; fields inside groups by dotted names."""
    import tomllib

    try:
        return flatten(tomllib.loads("\n".join(given)))
    except tomllib.TOMLDecodeError as error:
        raise MildlyError(f"fields must look like num_actions=1, got {' '.join(given)} ({error}).") from error
