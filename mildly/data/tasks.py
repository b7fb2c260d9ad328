"""What is known of the benchmark tasks: environment, reference returns, horizon, and the paper's 27 data sets."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

_KINDS = ("random", "medium", "medium-replay", "medium-expert", "expert")

PAPER_DATASETS: tuple[str, ...] = (
    *(f"{robot}-{kind}-v2" for robot in ("halfcheetah", "hopper", "walker2d") for kind in _KINDS),
    *(f"maze2d-{maze}-v1" for maze in ("umaze", "umaze-dense", "medium", "medium-dense")),
    *(f"{task}-{kind}-v0" for task in ("pen", "door", "relocate", "hammer") for kind in ("human", "cloned")),
)
"""The data sets of the paper's tables."""

RECOLLECTED = ("-collected", "-recollected")
"""How the names of data sets end that `mildly data collect` and `recipes/` have made."""
_EDITION = re.compile(rf"(-v\d+)?({'|'.join(RECOLLECTED)})?$")


def base_name(name: str) -> str:
    """The name without version and without the ending of re-collected data.

    >>> base_name("hopper-medium-v2"), base_name("hopper-medium-recollected"), base_name("pen-human-v0-collected")
    ('hopper-medium', 'hopper-medium', 'pen-human')
    """
    return _EDITION.sub("", name, count=1)


@dataclass(frozen=True)
class Task:
    """One environment of the benchmark."""

    prefix: str
    env_id: str
    reference_min: float
    reference_max: float
    horizon: int
    terminates: bool = True
    version: str | None = None
    same_env_ids: tuple[str, ...] = ()


@cache
def tasks() -> tuple[Task, ...]:
    """All known tasks."""
    table = tomllib.loads((files("mildly.data") / "tasks.toml").read_text())
    return tuple(Task(**{**row, "same_env_ids": tuple(row.get("same_env_ids", ()))}) for row in table["task"])


def task_of(dataset: str) -> Task | None:
    """The task a data set belongs to, by its name; None if it is not one of the benchmark's."""
    matching = [
        task
        for task in tasks()
        if f"{dataset}-".startswith(f"{task.prefix}-") and (not task.version or dataset.endswith(f"-{task.version}"))
    ]
    return max(matching, key=lambda task: (len(task.prefix), task.version is not None), default=None)


def task_of_env(env_id: str) -> Task | None:
    """The task whose reference returns hold in an environment; None where there is none, or its rewards differ."""
    return next((task for task in tasks() if env_id in (task.env_id, *task.same_env_ids)), None)
