"""The run folder: plain files that say everything about a run."""

from __future__ import annotations

import dataclasses
import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from conftest import Refused, train_tiny, unsealed

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.extras import AnchoredExtras
from mildly.behavior import BehaviorConfig
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.run import OtherFormat, Run
from mildly.training.offline import resume, train


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return train_tiny("mcq", tmp_path_factory.mktemp("runs") / "run", steps=20, eval_every=10, seed=5, lam=0.8)


def test_run_json_says_what_was_asked_on_what_data_with_which_versions(finished: Run) -> None:
    said = json.loads((finished.path / "run.json").read_text())
    assert said["algorithm"] == "mcq"
    assert said["config"].keys() == {field.name for field in dataclasses.fields(ALGORITHMS["mcq"].Config)}
    for group, kind in (("behavior", BehaviorConfig), ("extras", AnchoredExtras)):
        assert said["config"][group].keys() == {field.name for field in dataclasses.fields(kind)}
    assert said["config"]["lam"] == 0.8
    assert said["config"]["hidden_dims"] == said["config"]["behavior"]["hidden_dims"] == [16, 16]
    assert (said["seed"], said["steps"], said["threads"], said["device"]) == (5, 20, 1, "cpu")
    assert said["data"]["fingerprint"] == load_dataset("pendulum-mixed").meta.fingerprint
    assert said["data"]["name"] == said["dataset"] == "pendulum-mixed"
    for package in ("torch", "numpy", "gymnasium"):
        assert said["versions"][package] == version(package)


def test_folder_holds_the_files_of_the_contract_and_nothing_else(finished: Run) -> None:
    found = sorted(str(path.relative_to(finished.path)) for path in finished.path.rglob("*") if path.is_file())
    assert found == [
        "checkpoint.safetensors",
        "evaluations.jsonl",
        "metrics.jsonl",
        "policy/policy.json",
        "policy/weights.safetensors",
        "run.json",
        "timing.json",
    ]


def test_lines_are_json_that_any_tool_reads(finished: Run) -> None:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    for name, steps in (("metrics.jsonl", [5, 10, 15, 20]), ("evaluations.jsonl", [10, 20])):
        read = [json.loads(line, parse_constant=refuse) for line in (finished.path / name).read_text().splitlines()]
        assert [line["step"] for line in read] == steps
    assert finished.metrics()[0].keys() >= {"loss_td", "loss_ood", "loss_behavior", "q_data", "q_ood"}


def test_folder_with_a_run_or_with_anything_else_is_refused_and_untouched(finished: Run, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()}
    with pytest.raises(MildlyError, match=r"holds a run already\. Go on with 'mildly train --resume"):
        train_tiny("mcq", finished.path)
    assert {path: path.read_bytes() for path in finished.path.rglob("*") if path.is_file()} == before
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("Dear")
    for taken in (tmp_path / "letters", tmp_path / "letters" / "dear.txt"):
        with pytest.raises(MildlyError, match="exists and is not an empty folder"):
            train_tiny("bc", taken)
    with pytest.raises(MildlyError, match="cannot be made"):
        train_tiny("bc", tmp_path / "letters" / "dear.txt" / "run")
    assert [path.name for path in tmp_path.rglob("*")] == ["letters", "dear.txt"]


def test_empty_folder_is_accepted(tmp_path: Path) -> None:
    assert train_tiny("bc", tmp_path, steps=5, eval_every=0).plan().steps == 5


def test_runs_without_a_name_get_free_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    runs = [train("bc", "pendulum-mixed", steps=2, eval_every=0, hidden_dims=(8,), batch_size=4) for _ in range(3)]
    assert [str(run.path) for run in runs] == [f"runs/bc-pendulum-mixed-s0{end}" for end in ("", "-2", "-3")]


def test_metrics_are_those_of_the_main_steps_or_of_a_phase(tmp_path: Path) -> None:
    run = Run(tmp_path)
    lines = [{"phase": "a", "step": 1}, {"phase": "a", "step": 2}, {"phase": "b", "step": 1}, {"step": 1}, {"step": 2}]
    for line in lines:
        run.append("metrics.jsonl", line)
    assert run.metrics() == lines[3:]
    assert run.metrics("a") == lines[:2]
    assert run.metrics("b") == lines[2:3]
    assert run.metrics("c") == []


@pytest.mark.parametrize("number", [1, 99])
def test_a_run_of_another_version_is_refused_in_one_sentence_and_untouched(
    finished: Run, tmp_path: Path, refused: Refused, number: int
) -> None:
    run = Run(Path(shutil.copytree(finished.path, tmp_path / "run")))
    said = unsealed(run.path / "run.json")
    (run.path / "run.json").write_text(json.dumps(said | {"format": number}))
    before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
    told = f"{run.path / 'run.json'}: of another version of mildly (format {number}; this one reads 2). Train it again"
    for call in (run.plan, lambda: resume(run.path)):
        assert refused(call).startswith(told)
        with pytest.raises(OtherFormat):
            call()
    assert f"error: {told}" in refused.command("train", "--resume", str(run.path))
    assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before


def test_flat_config_names_the_fields_of_groups_with_a_dot(finished: Run) -> None:
    plan = finished.plan()
    assert plan.config["behavior"]["hidden_dims"] == plan.flat_config["behavior.hidden_dims"] == [16, 16]
    assert plan.flat_config["lam"] == 0.8
    assert not plan.flat_config.keys() & {"behavior", "extras"}


def test_damaged_lines_are_told_and_a_cut_last_line_is_not_a_damage(tmp_path: Path) -> None:
    run = Run(tmp_path)
    assert run.metrics() == []
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n{"step": 2}\n{"ste')
    assert run.metrics() == [{"step": 1}, {"step": 2}]
    for damage in ('{"step": 1}\n{"st\n', "7\n", '{"loss": 1.0}\n'):
        (tmp_path / "metrics.jsonl").write_text(damage)
        with pytest.raises(MildlyError, match=r"metrics\.jsonl: damaged"):
            run.metrics()


def test_folder_without_a_run_is_told(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(MildlyError, match=r"no run here \(no run\.json\)"):
            Run.open(folder)
    assert not list(tmp_path.iterdir())
