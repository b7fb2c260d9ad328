"""What a sweep compares: a TOML file written by hand, and the jobs that it means.

algorithms = ["bc", "mcq"]
datasets = ["pendulum-mixed", "hopper-mixed"]
seeds = 3               # 0, 1, 2; or a list
preset = "small"        # this and the like: what `mildly.train` takes
steps = 6000
[fields]                # fields of the algorithms' configs; a list of values is crossed with all else
lam = [0.5, 0.7]
[mcq]                   # either of the above, for one algorithm
steps = 8000
[variants.floor]        # named settings that are compared with one another; each may hold either of the above
pseudo_floor = 0.0
[variants.plain]
[bc.variants.best]      # the same for one algorithm, in the place of the shared ones
best_episodes = 0.1
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import os
import re
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from mildly.data.dataset import Meta
from mildly.data.registry import name_of
from mildly.errors import MildlyError, unknown_name
from mildly.run import Plan

_NOT_OF_A_SPEC = {"algorithm", "dataset", "seed", "out", "threads", "data_dir", "variant", "source", "fields"}
"""Arguments of `train` that the sweep itself fills in."""
_KINDS = {str: "text in quotes", int: "a whole number", bool: "true or false"}
_LISTS = ("algorithms", "datasets", "seeds")


@dataclass(frozen=True)
class Spec:
    """A spec as it was written."""

    algorithms: tuple[str, ...]
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    fields: Mapping[str, Any]
    own: Mapping[str, Mapping[str, Any]]
    """By algorithm: options and fields that are for it alone."""
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """By name: options and fields that go together, one setting each."""
    own_variants: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    """By algorithm: variants that it has in the place of the shared ones."""


@dataclass(frozen=True)
class Job:
    """One training of a sweep."""

    name: str
    """Its folder below the sweep's, such as `mcq/pendulum-mixed/lam=0.5/seed-0`."""
    algorithm: str
    dataset: str
    """The data set as the spec names it."""
    seed: int
    options: dict[str, Any]
    """What else the spec gives to `mildly.training.loop.train`: options and config fields."""
    setting: str
    """The crossed fields, such as `lam=0.5`; empty where there are none."""
    plan: Plan
    """What `run.json` will say, but for what depends on the machine and on the data's content."""


def read_spec(path: str | os.PathLike[str]) -> Spec:
    """Read a spec; a mistake in it is told with the nearest name that is known."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise MildlyError(f"{path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:  # not TOML, or not even text
        raise MildlyError(f"{path}: not a TOML file ({error}).") from error
    try:
        return _checked(values)
    except MildlyError as error:
        raise MildlyError(f"{path}: {error}") from error


def _checked(values: Mapping[str, Any]) -> Spec:
    from mildly.algorithms import ALGORITHMS, algorithm_named

    options = options_of_train()
    for name in ("algorithms", "datasets"):
        if name not in values:
            raise MildlyError(f"'{name}' is missing; write {name} = [...].")
    tables = {"fields", "variants", *ALGORITHMS}
    for name, value in values.items():
        if name in tables and not isinstance(value, dict):
            raise MildlyError(f"'{name}' must be a table: write [{name}] and its values below.")
        if name not in {*tables, *_LISTS, *options}:
            owners = [owner for owner, kind in ALGORITHMS.items() if name in _field_names(kind)]
            if owners:
                raise MildlyError(f"'{name}' is a field of {', '.join(owners)}: write it below [fields].")
            raise unknown_name("key", name, {*tables, *_LISTS, *options})
    algorithms = _texts("algorithms", values)
    known = {algorithm: _field_names(algorithm_named(algorithm)) for algorithm in algorithms}
    fields = values.get("fields", {})
    for name in fields:
        if name in options:
            raise MildlyError(f"'{name}' is no field of an algorithm's config: write it above [fields].")
        if not any(name in names for names in known.values()):
            raise unknown_name("field", name, set().union(*known.values()))
    unused = [name for name in ALGORITHMS if name in values and name not in algorithms]
    if unused:
        raise MildlyError(f"[{unused[0]}] is about an algorithm that is not in 'algorithms'.")
    own = {algorithm: dict(values.get(algorithm, {})) for algorithm in algorithms}
    variants = _variants("variants", values.get("variants", {}))
    own_variants = {
        algorithm: _variants(f"{algorithm}.variants", given.pop("variants"))
        for algorithm, given in own.items()
        if "variants" in given
    }
    places: dict[str, tuple[Mapping[str, Any], set[str]]]
    places = {algorithm: (given, known[algorithm]) for algorithm, given in own.items()}
    places |= {f"variants.{name}": (given, set().union(*known.values())) for name, given in variants.items()}
    for algorithm, named in own_variants.items():
        places |= {f"{algorithm}.variants.{name}": (given, known[algorithm]) for name, given in named.items()}
    for place, (given, allowed) in places.items():
        for name in given:
            if name not in {*options, *allowed}:
                raise unknown_name(f"key below [{place}]", name, {*options, *allowed})
    shared = {name: value for name, value in values.items() if name in options}
    for given in (shared, fields, *(given for given, _ in places.values())):
        _check_options(given)
        for name, value in given.items():
            if value == []:
                raise MildlyError(f"'{name}' is an empty list: give at least one value.")
    seeds = _seeds(values.get("seeds", 1))
    return Spec(algorithms, _texts("datasets", values), seeds, shared, fields, own, variants, own_variants)


def _variants(place: str, given: Any) -> Mapping[str, Mapping[str, Any]]:
    """Named settings, each a table."""
    if not isinstance(given, dict):
        raise MildlyError(f"'{place}' must be a table: write [{place}.NAME] and values below.")
    for name, values in given.items():
        if not name.strip("."):
            raise MildlyError(f"'{name}' below [{place}] cannot be the name of a folder.")
        if not isinstance(values, dict):
            raise MildlyError(f"'{name}' below [{place}] must be a table: write [{place}.{name}] and its values below.")
    return given


def _texts(name: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """A list of texts; a single one needs no brackets."""
    listed = values[name] if isinstance(values[name], list) else [values[name]]
    if not listed or not all(isinstance(item, str) for item in listed):
        raise MildlyError(f"{name} must be a list of names, such as {name} = ['...'], got {values[name]!r}.")
    return tuple(listed)


def _seeds(given: Any) -> tuple[int, ...]:
    seeds = given if isinstance(given, list) else range(given) if type(given) is int else ()
    if not seeds or not all(type(seed) is int for seed in seeds):
        raise MildlyError(f"seeds must be how many, at least 1, or a list of whole numbers, got {given!r}.")
    return tuple(seeds)


@cache
def options_of_train() -> dict[str, Any]:
    """What a spec may say of a training besides its config, with the defaults."""
    from mildly.training.loop import train

    parameters = inspect.signature(train).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.name not in _NOT_OF_A_SPEC}


def _check_options(given: Mapping[str, Any]) -> None:
    for name, default in options_of_train().items():
        kind = str if default is None else type(default)
        if name in given and type(given[name]) is not kind:
            raise MildlyError(f"{name} must be {_KINDS[kind]}, got {given[name]!r}.")


def _field_names(kind: Any) -> set[str]:
    return {field.name for field in dataclasses.fields(kind.Config)}


def expand(spec: Spec) -> list[Job]:
    """Every job of a spec: all with the first seed, then all with the second, so that the picture is whole early.

    All that can be wrong with a job is told now, before any runs.
    """
    from mildly.algorithms import algorithm_named

    jobs, known = [], options_of_train()
    for algorithm in spec.algorithms:
        kind = algorithm_named(algorithm)
        for dataset, (variant, given) in itertools.product(spec.datasets, _variants_of(spec, algorithm).items()):
            options = {name: value for name, value in given.items() if name in known}
            fields = {name: _with_none(kind, name, given[name]) for name in given if name in _field_names(kind)}
            for crossed, values in _crossed(kind, fields):
                setting = ",".join(part for part in (safe(variant), crossed) if part)
                jobs += [_job(algorithm, dataset, seed, setting, options, values) for seed in spec.seeds]
    twice = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if twice:
        raise MildlyError(
            f"two jobs would be called {twice[0]}: something is listed twice, or the names of two data sets or of two "
            "variants make the same folder."
        )
    return sorted(jobs, key=lambda job: spec.seeds.index(job.seed))


def _variants_of(spec: Spec, algorithm: str) -> dict[str, dict[str, Any]]:
    """All that is given for an algorithm, by variant; shared variants that mean the same for it are one."""
    from mildly.algorithms import algorithm_named

    common = {**spec.options, **spec.fields, **spec.own.get(algorithm, {})}
    own = spec.own_variants.get(algorithm)
    if own:
        return {name: {**common, **varied} for name, varied in own.items()}
    known = {*options_of_train(), *_field_names(algorithm_named(algorithm))}
    different: dict[str, dict[str, Any]] = {}
    for name, varied in spec.variants.items():
        said = {key: value for key, value in varied.items() if key in known}
        if said not in different.values():
            different[name] = said
    if not any(different.values()):  # nothing to tell apart, so nothing to name
        return {"": common}
    return {name: {**common, **said} for name, said in different.items()}


def _with_none(kind: Any, name: str, value: Any) -> Any:
    """TOML has no None: the text "None" stands for it where a field may be nothing."""
    if isinstance(value, list):
        return [_with_none(kind, name, item) for item in value]
    optional = type(None) in get_args(get_type_hints(kind.Config)[name])
    return None if value == "None" and optional else value


def setting_of(path: Path, plan: Plan) -> str | None:
    """What the folder of a sweep's run says of its setting, the inverse of a job's name; None for any other folder."""
    parts, named = path.absolute().parts, (plan.algorithm, safe(plan.data.name))
    if parts[-1] != f"seed-{plan.seed}":
        return None
    if parts[-3:-1] == named:
        return ""
    return parts[-2] if parts[-4:-2] == named else None


def _crossed(kind: Any, fields: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every combination of the listed values: how to call it, and the fields."""
    listed = [name for name, value in fields.items() if _is_list_of_values(kind, name, value)]
    for combination in itertools.product(*(fields[name] for name in listed)):
        chosen = dict(zip(listed, combination, strict=True))
        setting = ",".join(f"{name}={_text(value)}" for name, value in chosen.items())
        yield safe(setting), {**fields, **chosen}


def _is_list_of_values(kind: Any, name: str, value: Any) -> bool:
    """Whether a list holds values to compare; `hidden = [64, 64]` is one value, since the field itself is a tuple."""
    if not isinstance(value, list):
        return False
    annotated = get_type_hints(kind.Config)[name]
    is_tuple = any(get_origin(choice) is tuple for choice in (annotated, *get_args(annotated)))
    return not is_tuple or (bool(value) and all(isinstance(item, list) for item in value))


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def safe(name: str) -> str:
    """A name without what a folder's must not have."""
    return re.sub(r"[^\w.+,=-]", "_", name)


def _job(
    algorithm: str, dataset: str, seed: int, setting: str, options: Mapping[str, Any], fields: Mapping[str, Any]
) -> Job:
    from mildly.algorithms import algorithm_named
    from mildly.algorithms.base import make_config
    from mildly.device import resolve_device

    data_name = name_of(dataset)
    filled = {**options_of_train(), **options}
    planned = {field.name: filled[field.name] for field in dataclasses.fields(Plan) if field.name in filled}
    try:
        config = make_config(algorithm_named(algorithm), filled["preset"], data_name, fields)
        plan = Plan(
            algorithm=algorithm,
            config=dataclasses.asdict(config),
            dataset=None,
            data=Meta(data_name),
            seed=seed,
            threads=1,
            **{**planned, "device": resolve_device(filled["device"])},
        )
    except MildlyError as error:
        raise MildlyError(f"{algorithm} on {dataset}: {error}") from error
    parts = (algorithm, safe(data_name), setting, f"seed-{seed}")
    name = "/".join(part for part in parts if part)
    return Job(name, algorithm, dataset, seed, {**options, **fields}, setting, plan)
