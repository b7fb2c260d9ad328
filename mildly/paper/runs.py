"""The paper's tables and figures as sweeps: its settings, cut down as one can afford, on the data there are."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mildly.data.official import cached
from mildly.data.registry import local
from mildly.errors import MildlyError, unknown_name
from mildly.experiments.spec import Job, Spec, expand
from mildly.paper.exhibits import EVAL_EVERY, METHODS, SEEDS, STEPS, Exhibit, Study


def jobs_of(
    exhibit: Exhibit,
    *,
    steps: int = STEPS,
    seeds: int = SEEDS,
    datasets: Sequence[str] = (),
    methods: Sequence[str] = (),
    eval_every: int = EVAL_EVERY,
    fields: Mapping[str, Any] | None = None,
    data_dir: str | os.PathLike[str] | None = None,
) -> list[Job]:
    """The runs behind a table or figure, of those algorithms that exist here.

    Args:
        exhibit: which.
        steps: gradient steps; the paper's million by default.
        seeds: how many.
        datasets: only these of the exhibit's.
        methods: only these, by the paper's names.
        eval_every: gradient steps between evaluations.
        fields: hyperparameters that are to differ from the paper's.
        data_dir: folder in which the data are looked for.
    """
    jobs: dict[str, Job] = {}  # by name: with fields of the user's, two studies may ask for the same run
    for study in exhibit.studies:
        here = runnable(study, methods)
        rows = [name for name in study.datasets if not datasets or name in datasets]
        if not here or not rows:
            continue
        _check_fields(fields or {}, here)
        spec = Spec(
            algorithms=tuple(METHODS[method] for method in here),
            datasets=tuple(source_of(name, data_dir) for name in rows),
            seeds=tuple(range(seeds)),
            options={"preset": "paper", "steps": steps, "eval_every": eval_every},
            fields={**{name: list(values) for name, values in study.fields.items()}, **(fields or {})},
            own={},
        )
        jobs |= {job.name: job for job in expand(spec)}
    return list(jobs.values())


def _check_fields(fields: Mapping[str, Any], methods: Sequence[str]) -> None:
    from mildly.algorithms import ALGORITHMS

    known = {field.name for name in methods for field in dataclasses.fields(ALGORITHMS[METHODS[name]].Config)}
    for name in fields:
        if name not in known:
            raise unknown_name("field", name, known)


def runnable(study: Study, methods: Sequence[str] = ()) -> list[str]:
    """The methods of a study that exist here (and are asked for)."""
    from mildly.algorithms import ALGORITHMS

    return [name for name in study.methods if METHODS[name] in ALGORITHMS and (not methods or name in methods)]


def source_of(name: str, data_dir: str | os.PathLike[str] | None = None) -> str:
    """Where a set of the benchmark is taken from.

    The official file, if it is here; a re-collected set of the same task and kind in the data folder, if there is one;
    else the name itself, which is then downloaded.
    """
    found = local(name, data_dir) or cached(name)
    if found is None:
        found = local(re.sub(r"-v\d+$", "-recollected", name), data_dir)
    return name if found is None else str(found)


def chosen(exhibit: Exhibit, datasets: Sequence[str], methods: Sequence[str]) -> tuple[list[str], list[str]]:
    """Data sets and methods as the user names them, checked: `hopper-medium` and `mcq` will do."""
    full = {re.sub(r"-v\d+$", "", name): name for name in exhibit.datasets} | {name: name for name in exhibit.datasets}
    known = {algorithm: method for method, algorithm in METHODS.items() if method in exhibit.methods}
    known |= {method: method for method in exhibit.methods} | {method.lower(): method for method in exhibit.methods}
    for name in datasets:
        if name not in full:
            raise unknown_name(f"data set of {exhibit.name}", name, exhibit.datasets)
    for name in methods:
        if name not in known:
            raise unknown_name(f"algorithm of {exhibit.name}", name, exhibit.methods)
    return [full[name] for name in datasets], [known[name] for name in methods]


def parse_fields(given: Sequence[str]) -> dict[str, Any]:
    """`num_actions=1` and the like, each value as TOML has it."""
    import tomllib

    try:
        return tomllib.loads("\n".join(given))
    except tomllib.TOMLDecodeError as error:
        raise MildlyError(f"fields must look like num_actions=1, got {' '.join(given)} ({error}).") from error
