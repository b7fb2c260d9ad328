"""The paper's tables and figures as data: which algorithms on which data sets with which settings, and its numbers."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from mildly.data.tasks import PAPER_DATASETS
from mildly.errors import unknown_name

METHODS = {
    "BC": "bc",
    "SAC": "sac",
    "CQL": "cql",
    "UWAC": "uwac",
    "TD3+BC": "td3-bc",
    "IQL": "iql",
    "BCQ": "bcq",
    "BEAR": "bear",
    "MOPO": "mopo",
    "DT": "decision-transformer",
    "CDC": "cdc",
    "PBRL": "pbrl",
    "MCQ-TD3": "mcq-td3",
    "MCQ": "mcq",
}
"""The paper's name of a method, and the algorithm's here."""

STEPS, SEEDS, EVAL_EVERY = 1_000_000, 4, 5_000
"""The paper's protocol: gradient steps, seeds; evaluations as in D4RL's benchmarks."""

_MUJOCO = PAPER_DATASETS[:15]
_LAMBDAS = (0.3, 0.5, 0.7, 0.9, 0.95)
_NUMBERS = (1, 5, 20)  # 10, the default, is among the runs over lambda


class Score(NamedTuple):
    """A cell of one of the paper's tables."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Study:
    """Runs of an exhibit: methods on data sets, with fields of their configs crossed."""

    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    fields: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper."""

    name: str
    title: str
    studies: tuple[Study, ...]
    label: str = ""
    """Its table in `paper_scores.csv`."""

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods, in the paper's order."""
        return tuple(dict.fromkeys(method for study in self.studies for method in study.methods))

    @property
    def datasets(self) -> tuple[str, ...]:
        """All data sets, in the paper's order."""
        return tuple(dict.fromkeys(dataset for study in self.studies for dataset in study.datasets))


_STUDIED = ("halfcheetah-medium-v2", "hopper-medium-replay-v2")

EXHIBITS = {
    exhibit.name: exhibit
    for exhibit in (
        Exhibit(
            "table1",
            "Normalized scores on the MuJoCo sets (the paper's Table 1)",
            (Study(("BC", "SAC", "CQL", "UWAC", "TD3+BC", "IQL", "MCQ"), _MUJOCO),),
            "tab:scorepaper",
        ),
        Exhibit(
            "table-deterministic",
            "MCQ on TD3",
            (Study(("MCQ-TD3",), tuple(name for name in _MUJOCO if "-expert-v2" not in name or "medium" in name)),),
            "tab:deterministicmcq",
        ),
        Exhibit(
            "table-more",
            "More baselines on the MuJoCo sets",
            (Study(("BCQ", "BEAR", "MOPO", "DT", "CDC", "PBRL", "MCQ"), _MUJOCO),),
            "tab:morebaselines",
        ),
        Exhibit(
            "table-other",
            "maze2d and Adroit",
            (Study(("BC", "BEAR", "CQL", "BCQ", "TD3+BC", "IQL", "MCQ"), PAPER_DATASETS[15:]),),
            "tab:mazeadroit",
        ),
        Exhibit(
            "fig-parameters",
            "Effects of lambda and N on the score and on Q (the paper's parameter study)",
            (
                Study(("MCQ",), _STUDIED, {"lam": _LAMBDAS}),
                Study(("MCQ",), _STUDIED, {"num_actions": _NUMBERS, "lam": (0.95,)}),
            ),
        ),
        Exhibit(
            "fig-values",
            "Value estimates of MCQ: in the data, of the policy's actions, and the target",
            (
                Study(
                    ("MCQ",),
                    (
                        "halfcheetah-random-v2",
                        "walker2d-random-v2",
                        "halfcheetah-medium-expert-v2",
                        "walker2d-medium-expert-v2",
                        "halfcheetah-expert-v2",
                    ),
                ),
            ),
        ),
        Exhibit(
            "table-cost",
            "Cost: seconds for 1,000 gradient steps, and memory",
            (Study(("CQL", "MCQ"), ("halfcheetah-medium-v2",)),),
        ),
    )
}
"""By name. What the paper does not print (the grid of its figures over N) is our choice."""

COST = {"CQL": (38.2, 1.4), "MCQ": (30.3, 1.2)}
"""The paper's cost table: seconds for 1,000 gradient steps and gigabytes, on an RTX 3090."""


def exhibit_named(name: str) -> Exhibit:
    """An exhibit, or an error with the nearest name."""
    if name not in EXHIBITS:
        raise unknown_name("table or figure", name, EXHIBITS)
    return EXHIBITS[name]


@cache
def paper_scores() -> dict[tuple[str, str], Score]:
    """The paper's 285 scores, by data set and method."""
    with (files("mildly.paper") / "paper_scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        (row["dataset"], row["method"]): Score(float(row["mean"]), float(row["std"]) if row["std"] else None)
        for row in rows
    }
