"""The paper's tables and figures: which algorithms on which data sets with which settings, and the published scores."""

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
    "AWAC": "awac",
    "MCQ-TD3": "mcq-td3",
    "MCQ": "mcq",
}
"""The paper's name of a method, and the algorithm's here."""

STEPS, SEEDS, EVAL_EVERY = 1_000_000, 4, 5_000
"""The paper's protocol: gradient steps, seeds; evaluations as in D4RL's benchmarks."""

_MUJOCO, _MAZES = PAPER_DATASETS[:15], tuple(name for name in PAPER_DATASETS if name.startswith("maze2d"))
_WITHOUT_EXPERTS = tuple(name for name in _MUJOCO if "-expert-v2" not in name or "medium" in name)
_PARTS = {"average without experts' sets": _WITHOUT_EXPERTS}
_TABLE_1 = ("BC", "SAC", "CQL", "UWAC", "TD3+BC", "IQL")
_COPIED = "Copied by the paper from others, and not run by its authors:"
_LAMBDAS = (0.3, 0.5, 0.7, 0.9, 0.95)
_NUMBERS = (1, 5, 20)  # 10, the default, is among the runs over lambda


class PublishedScore(NamedTuple):
    """A score that the paper prints."""

    mean: float
    std: float | None


@dataclass(frozen=True)
class Grid:
    """Methods on data sets, crossed with values of config fields."""

    methods: tuple[str, ...]
    datasets: tuple[str, ...]
    fields: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of the paper."""

    name: str
    title: str
    grids: tuple[Grid, ...]
    label: str = ""
    """The LaTeX label of its table of scores, as in `published_scores.csv`; empty where it shows something else."""
    online_steps: int = 0
    """Steps in the environment that follow those on the data."""
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Data sets of which the paper prints an average besides that of all, by the words for them."""
    notes: tuple[str, ...] = ()
    """What to know of the published numbers, a sentence each."""

    @property
    def methods(self) -> tuple[str, ...]:
        """All methods, in the paper's order."""
        return tuple(dict.fromkeys(method for grid in self.grids for method in grid.methods))

    @property
    def datasets(self) -> tuple[str, ...]:
        """All data sets, in the paper's order."""
        return tuple(dict.fromkeys(dataset for grid in self.grids for dataset in grid.datasets))


_TASKS = ("halfcheetah", "hopper", "walker2d")
_STUDIED = ("halfcheetah-medium-v2", "hopper-medium-replay-v2")

REPRODUCTIONS = {
    reproduction.name: reproduction
    for reproduction in (
        Reproduction(
            "table1",
            "Normalized scores on the MuJoCo sets (the paper's Table 1)",
            (Grid((*_TABLE_1, "MCQ"), _MUJOCO),),
            "tab:scorepaper",
            parts=_PARTS,
            notes=(f"{_COPIED} TD3+BC, and IQL but on the random and expert sets.",),
        ),
        Reproduction(
            "table-deterministic",
            "MCQ on TD3",
            (Grid((*_TABLE_1, "MCQ-TD3"), _WITHOUT_EXPERTS),),
            "tab:deterministicmcq",
            notes=("The runs of all but MCQ-TD3 are those of table1: --runs shows them here, too.",),
        ),
        Reproduction(
            "table-more",
            "More baselines on the MuJoCo sets",
            (Grid(("BCQ", "BEAR", "MOPO", "DT", "CDC", "PBRL", "MCQ"), _MUJOCO),),
            "tab:morebaselines",
            parts=_PARTS,
            notes=(
                f"{_COPIED} BEAR, MOPO, PBRL (from PBRL's paper), DT (from TD3+BC's) and CDC.",
                "CDC's scores are those of its paper, which knows version 0 of the data sets alone.",
            ),
        ),
        Reproduction(
            "table-other",
            "maze2d and Adroit",
            (Grid(("BC", "BEAR", "CQL", "BCQ", "TD3+BC", "IQL", "MCQ"), PAPER_DATASETS[15:]),),
            "tab:mazeadroit",
            parts={"average of maze2d": _MAZES},
            notes=(
                f"{_COPIED} BC, BEAR, CQL and BCQ.",
                "Of IQL on maze2d the paper prints an average of 37.2; that of its four scores is 43.7.",
                "The paper has 0.0 ± 0.0 for TD3+BC on all eight Adroit sets; others have measured other scores there.",
            ),
        ),
        Reproduction(
            "fig-parameters",
            "Effects of lambda and N on the score and on Q (the paper's parameter study)",
            (
                Grid(("MCQ",), _STUDIED, {"lam": _LAMBDAS}),
                Grid(("MCQ",), _STUDIED, {"num_actions": _NUMBERS, "lam": (0.95,)}),
            ),
        ),
        Reproduction(
            "fig-values",
            "Value estimates of MCQ: in the data, of the policy's actions, and the target",
            (
                Grid(
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
        Reproduction(
            "fig-online",
            "From offline to online: scores on the data, then in the environment",
            (
                Grid(
                    ("CQL", "TD3+BC", "IQL", "AWAC", "MCQ"),
                    tuple(f"{task}-{kind}-v2" for kind in ("random", "medium-replay") for task in _TASKS),
                ),
            ),
            online_steps=100_000,
        ),
        Reproduction(
            "table-cost",
            "Cost: seconds per 1,000 gradient steps, and memory",
            (Grid(("CQL", "MCQ"), ("halfcheetah-medium-v2",)),),
        ),
    )
}
"""By name. What the paper does not print (the grids of its figures over lambda and N) is our choice."""

PUBLISHED_COST = {"CQL": (38.2, 1.4), "MCQ": (30.3, 1.2)}
"""The paper's cost table: seconds per 1,000 gradient steps and gigabytes, on an RTX 3090."""


def reproduction_named(name: str) -> Reproduction:
    """A table or figure; an unknown name is an error that suggests the nearest known one."""
    if name not in REPRODUCTIONS:
        raise unknown_name("table or figure", name, REPRODUCTIONS)
    return REPRODUCTIONS[name]


@cache
def published_scores() -> dict[tuple[str, str], PublishedScore]:
    """The paper's 285 scores, by data set and method."""
    with (files("mildly.paper") / "published_scores.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {
        (row["dataset"], row["method"]): PublishedScore(float(row["mean"]), float(row["std"]) if row["std"] else None)
        for row in rows
    }
