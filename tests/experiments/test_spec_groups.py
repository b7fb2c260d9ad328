"""Fields inside groups of a config: dotted names or tables in a spec, dotted names in folders, labels and messages."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
from conftest import Refused
from sweeps import parsed

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.bc import BC
from mildly.algorithms.config import AlgorithmConfig, field_types
from mildly.data.registry import load_dataset
from mildly.experiments.spec import Job, expand
from mildly.experiments.sweep import run_sweep
from mildly.paper.jobs import parse_fields
from mildly.paper.matching import changes
from mildly.run import Run, flatten


@dataclass(frozen=True)
class ModelConfig:
    kind: Literal["cvae", "flow"] = "cvae"
    widths: tuple[int, ...] = (8, 8)
    weight: float | None = 1.0


@dataclass(frozen=True)
class GroupedConfig(AlgorithmConfig):
    rate: float = 0.1
    model: ModelConfig = ModelConfig()


class Grouped(BC):
    """An algorithm with a group in its config."""

    Config = GroupedConfig  # type: ignore[assignment]
    PRESETS = {"paper": {}}  # and the default that every algorithm has


HEAD = 'algorithms = ["grouped", "bc"]\ndatasets = "pendulum-mixed"\n'


@pytest.fixture(autouse=True)
def grouped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "grouped", Grouped)


def jobs(tmp_path: Path, text: str) -> list[Job]:
    return [job for job in expand(parsed(tmp_path, HEAD + text)) if job.algorithm == "grouped"]


def test_the_fields_of_groups_have_dotted_names() -> None:
    assert field_types(GroupedConfig).keys() >= {"rate", "model.kind", "model.widths", "batch_size"}
    assert flatten(GroupedConfig())["model.widths"] == (8, 8)
    assert flatten({"a": {"b": {"c": [1]}, "d": None}, "e": 2}) == {"a.b.c": [1], "a.d": None, "e": 2}


@pytest.mark.parametrize(
    "text",
    [
        '[fields]\n"model.kind" = ["cvae", "flow"]\n"model.widths" = [4, 4]\n',
        '[fields]\nmodel.kind = ["cvae", "flow"]\nmodel.widths = [4, 4]\n',
        '[fields.model]\nkind = ["cvae", "flow"]\nwidths = [4, 4]\n',
        '[grouped]\n"model.kind" = ["cvae", "flow"]\n[grouped.model]\nwidths = [4, 4]\n',
        '[grouped.model]\nkind = ["cvae", "flow"]\nwidths = [4, 4]\n',
    ],
)
def test_quoted_dotted_and_nested_fields_mean_the_same(tmp_path: Path, text: str) -> None:
    found = jobs(tmp_path, text)
    assert [job.name for job in found] == [
        f"grouped/pendulum-mixed/model.kind={kind}/seed-0" for kind in ("cvae", "flow")
    ]
    assert [job.plan.config["model"] for job in found] == [
        {"kind": kind, "widths": (4, 4), "weight": 1.0} for kind in ("cvae", "flow")
    ]
    assert found[1].options == {"model.kind": "flow", "model.widths": [4, 4]}
    assert [job.variant for job in found] == ["model.kind=cvae", "model.kind=flow"]


@pytest.mark.parametrize("table", ["variants", "grouped.variants"])
def test_variants_may_hold_groups_and_win_over_other_tables(tmp_path: Path, table: str) -> None:
    text = f"""
    [fields.model]
    weight = "None"
    [grouped.model]
    widths = [[4], [5]]
    [{table}.wide.model]
    widths = [16, 16]
    [{table}.flow]
    "model.weight" = 0.5
    model.kind = "flow"
    """
    models = {job.variant: tuple(job.plan.config["model"].values()) for job in jobs(tmp_path, text)}
    assert models == {
        "wide": ("cvae", (16, 16), None),
        "flow,model.widths=4": ("flow", (4,), 0.5),
        "flow,model.widths=5": ("flow", (5,), 0.5),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model.kind = 'flow'", "'model.kind' is a field of grouped: write it below [fields]"),
        ("[fields]\nmodel.knd = 'flow'", "unknown field 'model.knd'. Did you mean 'model.kind'?"),
        ("[fields]\nmodel = 'flow'", "'model' is a group of fields: write model.kind or another of them"),
        ("[grouped]\nmodel = 1", "'model' is a group of fields"),
        ("[variants.a.model]\nwidth = [3]", "unknown key below [variants.a] 'model.width'"),
        ("[bc.model]\nkind = 'flow'", "unknown key below [bc] 'model.kind'"),
        ("[fields.model]\nkind = []", "'model.kind' is an empty list"),
        ("[fields.model]\nkind = 'gan'", "model.kind must be 'cvae' or 'flow', got 'gan'"),
    ],
)
def test_mistakes_are_named_by_the_dotted_name(tmp_path: Path, text: str, message: str, refused: Refused) -> None:
    refused(lambda: jobs(tmp_path, text), message)


def test_a_run_that_has_begun_with_another_value_in_a_group_is_refused(tmp_path: Path, refused: Refused) -> None:
    (job,) = jobs(tmp_path, "[fields]\nmodel.widths = [4, 4]\n")
    data = load_dataset("pendulum-mixed").meta
    begun = dataclasses.replace(job.plan, data=data, dataset="pendulum-mixed", env=data.env_id)
    (tmp_path / "out" / job.name).mkdir(parents=True)
    Run(tmp_path / "out" / job.name).write_plan(begun)
    changed = jobs(tmp_path, "[fields]\nmodel.widths = [5, 5]\n")
    refused(lambda: run_sweep(changed, tmp_path / "out"), "Different now: model.widths (5, 5), not (4, 4).")


def test_changes_from_the_paper_are_named_by_the_dotted_name(tmp_path: Path) -> None:
    assert parse_fields(["model.kind='flow'", "rate=0.5"]) == {"model.kind": "flow", "rate": 0.5}
    (job,) = jobs(tmp_path, "[fields]\nmodel.kind = 'flow'\n")
    (tmp_path / "run").mkdir()
    run = Run(tmp_path / "run")
    run.write_plan(job.plan)
    assert changes(run.plan()) == ["model.kind flow"]
