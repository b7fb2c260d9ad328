"""What a sweep runs: a TOML file written by hand, and the jobs that it expands to.

algorithms = ["bc", "mcq"]
datasets = ["pendulum-mixed", "hopper-mixed"]
seeds = 3               # 0, 1, 2; or a list
preset = "small"        # this and other options that `mildly.train` takes
steps = 6000
[fields]                # fields of the algorithms' configs; a list of values is crossed with all else
lam = [0.5, 0.7]
[mcq]                   # options and fields for one algorithm
steps = 8000
[finetune]              # what `mildly.finetune` does with every run afterwards, if anything
steps = 10000
[variants.floor]        # named variants; each may hold options and fields
pseudo_floor = 0.0
[variants.plain]
[bc.variants.best]      # variants of one algorithm, instead of the shared ones
best_episodes = 0.1

A field inside a group of the config is written with a dot (`behavior.model = "flow"`) or as a table of its own
(`[fields.behavior]`, `[mcq.behavior]`).
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import os
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, cast, get_args, get_origin, get_type_hints

from mildly.data.dataset import Meta
from mildly.data.registry import name_of
from mildly.environments import check_trusted
from mildly.errors import MildlyError, unknown_name
from mildly.files import plain_name
from mildly.run import Plan, flatten

_SET_BY_SWEEP = {
    *("algorithm", "dataset", "seed", "out", "threads", "data_dir"),
    *("variant", "source", "reading", "fields", "quiet", "callbacks"),
}
"""Arguments of `train` that a spec cannot give."""
_MOST_SEEDS = _MOST_JOBS = 10_000
_EXPECTED = {str: "text in quotes", int: "a whole number", bool: "true or false", float: "a number"}
_LISTS = ("algorithms", "datasets", "seeds")


@dataclass(frozen=True)
class Spec:
    """A spec as it was written. Fields inside groups have dotted names."""

    algorithms: tuple[str, ...]
    datasets: tuple[str, ...]
    seeds: tuple[int, ...]
    options: Mapping[str, Any]
    fields: Mapping[str, Any]
    own: Mapping[str, Mapping[str, Any]]
    """By algorithm: its own options and fields."""
    variants: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    """By name: the options and fields of a variant."""
    own_variants: Mapping[str, Mapping[str, Mapping[str, Any]]] = dataclasses.field(default_factory=dict)
    """By algorithm: variants that replace the shared ones."""
    finetune: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """What `mildly.finetune` is told afterwards; empty where nothing is fine-tuned."""


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
    """What else the spec gives to `mildly.training.offline.train`: options and config fields."""
    plan: Plan
    """What `run.json` will hold, except for what depends on the machine and on the content of the data."""
    finetune: dict[str, Any] = dataclasses.field(default_factory=dict)
    """What `mildly.finetune` is told afterwards."""

    @property
    def steps(self) -> int:
        """All steps, those of fine-tuning included."""
        return self.plan.steps + int(self.finetune.get("steps", 0))

    @property
    def variant(self) -> str:
        """The variant's name and the crossed fields, such as `lam=0.5`; empty where there are none."""
        return self.plan.variant


def read_spec(path: str | os.PathLike[str]) -> Spec:
    """Read a spec. For an unknown name the error suggests the nearest known one."""
    try:
        values = tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise MildlyError(f"{path}: cannot be read ({error.strerror}).") from error
    except (ValueError, RecursionError) as error:  # not TOML, not even text, or nested without end
        raise MildlyError(f"{path}: not a TOML file ({error}).") from error
    try:
        return _parse(values)
    except MildlyError as error:
        raise MildlyError(f"{path}: {error}") from error


def _parse(values: Mapping[str, Any]) -> Spec:
    _check_top_level(values)
    own, own_variants = {}, {}
    for algorithm in (algorithms := _names("algorithms", values)):
        given = dict(values.get(algorithm, {}))
        if "variants" in given:
            own_variants[algorithm] = _variants(f"{algorithm}.variants", given.pop("variants"))
        own[algorithm] = flatten(given)
    spec = Spec(
        algorithms=algorithms,
        datasets=_names("datasets", values),
        seeds=seeds_of(values.get("seeds", 1)),
        options={name: value for name, value in values.items() if name in train_options()},
        fields=flatten(values.get("fields", {})),
        own=own,
        variants=_variants("variants", values.get("variants", {})),
        own_variants=own_variants,
        finetune=finetune_of(values.get("finetune", {}), algorithms),
    )
    _check_fields(spec)
    return spec


def finetune_of(given: Any, algorithms: Sequence[str] = ()) -> dict[str, Any]:
    """What is to come after every training, of those options that a file can say."""
    from mildly.algorithms import algorithm_named
    from mildly.stage import Stage
    from mildly.training.finetune import STEPS

    known = {each.name for each in dataclasses.fields(Stage)} - {"start", "dataset", "fingerprint", "reading", "env"}
    for name in given:
        if name not in known:
            raise unknown_name("key below [finetune]", name, known)
    for algorithm in algorithms if given else ():
        if algorithm_named(algorithm).OFFLINE_ONLY:
            raise MildlyError(f"[finetune]: {algorithm} cannot learn online.")
    if given:
        given = {"steps": STEPS, **given}
        Stage(**{"start": 1, "eval_every": 0, "episodes": 1, **given})  # refuses what makes no sense
    return dict(given)


def _check_fields(spec: Spec) -> None:
    """Unknown names, and values of the wrong type, in all tables of a spec."""
    known = {algorithm: set(_field_types(algorithm)) for algorithm in spec.algorithms}
    every_field = set().union(*known.values())
    for name in spec.fields:
        if name in train_options():
            raise MildlyError(f"'{name}' is no field of an algorithm's config: write it above [fields].")
        if name not in every_field:
            raise _unknown("field", name, every_field)
    tables: dict[str, tuple[Mapping[str, Any], set[str]]]
    tables = {algorithm: (given, known[algorithm]) for algorithm, given in spec.own.items()}
    tables |= {f"variants.{name}": (given, every_field) for name, given in spec.variants.items()}
    for algorithm, variants in spec.own_variants.items():
        tables |= {f"{algorithm}.variants.{name}": (given, known[algorithm]) for name, given in variants.items()}
    for table, (given, fields) in tables.items():
        allowed = {*train_options(), *fields}
        for name in given:
            if name not in allowed:
                raise _unknown(f"key below [{table}]", name, allowed)
    for given in (spec.options, spec.fields, *(given for given, _ in tables.values())):
        _check_values(given)


def _check_top_level(values: Mapping[str, Any]) -> None:
    from mildly.algorithms import ALGORITHMS

    for name in ("algorithms", "datasets"):
        if name not in values:
            raise MildlyError(f"'{name}' is missing; write {name} = [...].")
    tables = {"fields", "variants", "finetune", *ALGORITHMS}
    known = {*tables, *_LISTS, *train_options()}
    for name, value in values.items():
        if name in tables and not isinstance(value, dict):
            raise MildlyError(f"'{name}' must be a table: write [{name}] and its values below.")
        for field in flatten({name: value}) if name not in known else ():
            owners = [algorithm for algorithm in ALGORITHMS if field in _field_types(algorithm)]
            if owners:
                raise MildlyError(f"'{field}' is a field of {', '.join(owners)}: write it below [fields].")
        if name not in known:
            raise unknown_name("key", name, known)
    unused = [name for name in ALGORITHMS if name in values and name not in _names("algorithms", values)]
    if unused:
        raise MildlyError(f"[{unused[0]}] is about an algorithm that is not in 'algorithms'.")


def _unknown(what: str, name: str, known: Iterable[str]) -> MildlyError:
    members = sorted(field for field in known if field.startswith(f"{name}."))
    if members:
        return MildlyError(f"'{name}' is a group of fields: write {members[0]} or another of them.")
    return unknown_name(what, name, known)


def _variants(table: str, given: Any) -> dict[str, dict[str, Any]]:
    if not isinstance(given, dict):
        raise MildlyError(f"'{table}' must be a table: write [{table}.NAME] and values below.")
    for name, values in given.items():
        if not name.strip("."):
            raise MildlyError(f"'{name}' below [{table}] cannot be the name of a folder.")
        if not isinstance(values, dict):
            raise MildlyError(f"'{name}' below [{table}] must be a table: write [{table}.{name}] and its values below.")
    return {name: flatten(values) for name, values in given.items()}


def _names(key: str, values: Mapping[str, Any]) -> tuple[str, ...]:
    """A list of names; a single one needs no brackets."""
    listed = values[key] if isinstance(values[key], list) else [values[key]]
    if not listed or not all(isinstance(item, str) for item in listed):
        raise MildlyError(f"{key} must be a list of names, such as {key} = ['...'], got {values[key]!r}.")
    return tuple(listed)


def seeds_of(given: Any) -> tuple[int, ...]:
    """The seeds that a number, or a list, means."""
    number = given if type(given) is int else len(given) if isinstance(given, list) else 0
    if number > _MOST_SEEDS:
        raise MildlyError(f"seeds must be at most {_MOST_SEEDS:,}.")
    seeds = given if isinstance(given, list) else range(number)
    if not seeds or not all(type(seed) is int for seed in seeds):
        raise MildlyError(f"seeds must be a number of seeds, at least 1, or a list of whole numbers, got {given!r}.")
    return tuple(seeds)


@cache
def train_options() -> dict[str, Any]:
    """The options that a spec may give to `train` besides config fields, with their defaults."""
    from mildly.training.offline import train

    parameters = inspect.signature(train).parameters.values()
    return {parameter.name: parameter.default for parameter in parameters if parameter.name not in _SET_BY_SWEEP}


def _option_type(name: str) -> type:
    """What an option of `train` must be in a spec: the first of the types that it takes."""
    from mildly.training.offline import train

    hint = get_type_hints(train)[name]
    return cast(type, get_args(hint)[0] if get_args(hint) else hint)


def _check_values(given: Mapping[str, Any]) -> None:
    for name in train_options().keys() & given.keys():
        expected = _option_type(name)
        if type(given[name]) not in ((int, float) if expected is float else (expected,)):
            raise MildlyError(f"{name} must be {_EXPECTED[expected]}, got {given[name]!r}.")
    if isinstance(given.get("env"), str):
        check_trusted(given["env"])
    for name, value in given.items():
        if value == []:
            raise MildlyError(f"'{name}' is an empty list: give at least one value.")


def _field_types(algorithm: str) -> dict[str, Any]:
    from mildly.algorithms import algorithm_named
    from mildly.algorithms.config import field_types

    return field_types(algorithm_named(algorithm).Config)


def expand(spec: Spec) -> list[Job]:
    """All jobs of a spec, those of the first seed first, so that every setting has a result early.

    Mistakes in the settings of any job are found here, before the first one runs.
    """
    jobs, options, number = [], train_options(), 0
    for algorithm in spec.algorithms:
        types = _field_types(algorithm)
        for dataset, (variant, given) in itertools.product(spec.datasets, _variants_of(spec, algorithm).items()):
            own_options = {name: value for name, value in given.items() if name in options}
            fields = {name: _with_none(value, types[name]) for name, value in given.items() if name in types}
            listed = [name for name, value in fields.items() if _is_list_of_values(value, types[name])]
            number += len(spec.seeds) * math.prod(len(fields[name]) for name in listed)
            if number > _MOST_JOBS:  # before they are made: a few lists multiply to more than any memory
                raise MildlyError(f"a sweep has at most {_MOST_JOBS:,} jobs, but these lists make more.")
            for crossed, values in _crossed(fields, listed):
                label = ",".join(part for part in (folder_name(variant), crossed) if part)
                made = _jobs(algorithm, dataset, spec.seeds, label, own_options, values)
                jobs += [dataclasses.replace(job, finetune=dict(spec.finetune)) for job in made]
    repeated = [name for name, count in Counter(job.name for job in jobs).items() if count > 1]
    if repeated:
        raise MildlyError(
            f"two jobs would be called {repeated[0]}: something is listed twice, or the names of two data sets or of "
            "two variants make the same folder."
        )
    order = {seed: place for place, seed in enumerate(spec.seeds)}
    return sorted(jobs, key=lambda job: order[job.seed])


def _variants_of(spec: Spec, algorithm: str) -> dict[str, dict[str, Any]]:
    """All options and fields of an algorithm, by variant; shared variants that are the same for it are run once."""
    common = {**spec.options, **spec.fields, **spec.own.get(algorithm, {})}
    own = spec.own_variants.get(algorithm)
    if own:
        return {name: {**common, **given} for name, given in own.items()}
    known = {*train_options(), *_field_types(algorithm)}
    different: dict[str, dict[str, Any]] = {}
    for name, given in spec.variants.items():
        applicable = {key: value for key, value in given.items() if key in known}
        if applicable not in different.values():
            different[name] = applicable
    if not any(different.values()):  # all the same, so that no name is needed
        return {"": common}
    return {name: {**common, **given} for name, given in different.items()}


def _with_none(value: Any, annotated: Any) -> Any:
    """TOML has no None: the text "None" is read as None where a field may be None."""
    if isinstance(value, list):
        return [_with_none(item, annotated) for item in value]
    return None if value == "None" and type(None) in get_args(annotated) else value


def _crossed(fields: Mapping[str, Any], listed: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every combination of the values of the listed fields: its label, and all fields."""
    for combination in itertools.product(*(fields[name] for name in listed)):
        chosen = dict(zip(listed, combination, strict=True))
        label = ",".join(f"{name}={_value_text(value)}" for name, value in chosen.items())
        yield folder_name(label), {**fields, **chosen}


def _is_list_of_values(value: Any, annotated: Any) -> bool:
    """Whether a list holds values to compare; for a field that is a tuple, `[64, 64]` is one value."""
    if not isinstance(value, list):
        return False
    is_tuple = any(get_origin(choice) is tuple for choice in (annotated, *get_args(annotated)))
    return not is_tuple or (bool(value) and all(isinstance(item, list) for item in value))


def _value_text(value: Any) -> str:
    if isinstance(value, list):
        return "x".join(map(str, value))
    return str(value).lower() if isinstance(value, bool) else str(value)


def folder_name(name: str) -> str:
    """A name with underscores for the characters that a folder's name cannot have."""
    return plain_name(name) if name else ""


def _jobs(
    algorithm: str,
    dataset: str,
    seeds: Sequence[int],
    variant: str,
    options: Mapping[str, Any],
    fields: Mapping[str, Any],
) -> list[Job]:
    """One setting with every seed."""
    from mildly.algorithms import algorithm_named
    from mildly.algorithms.config import make_config
    from mildly.device import resolve_device

    data_name = name_of(dataset)
    filled = {**train_options(), **options}
    planned = {field.name: filled[field.name] for field in dataclasses.fields(Plan) if field.name in filled}
    try:
        kind = algorithm_named(algorithm)
        config = make_config(kind, filled["preset"], data_name, fields)
        if filled["steps"] is None:
            planned["steps"] = kind.steps_of(filled["preset"])
        plan = Plan(
            algorithm=algorithm,
            config=dataclasses.asdict(config),
            dataset=None,
            data=Meta(data_name),
            seed=seeds[0],
            threads=1,
            variant=variant,
            **{**planned, "device": resolve_device(filled["device"])},
        )
        plans = [dataclasses.replace(plan, seed=seed) for seed in seeds]
    except MildlyError as error:
        raise MildlyError(f"{algorithm} on {dataset}: {error}") from error
    setting = "/".join(part for part in (algorithm, folder_name(data_name), variant) if part)
    return [
        Job(f"{setting}/seed-{plan.seed}", algorithm, dataset, plan.seed, {**options, **fields}, plan) for plan in plans
    ]
