"""Values of other types in a run, a policy, a sweep or a data set: each is one clear message. Found by the fuzz."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carriers import minari_set, policy_arrays
from conftest import Refused, train_tiny, unsealed
from mutations import DEEP

from mildly.actors import TanhGaussianActor
from mildly.cli import main
from mildly.collect.agent import AgentPlan, read_plan
from mildly.collect.rollouts import ArrayPolicy
from mildly.data.memory import VARIABLE
from mildly.data.registry import load_dataset
from mildly.policy import Policy, load_policy
from mildly.run import Run
from mildly.training import checkpoint
from mildly.training.offline import resume

LINE = {"step": 5, "returns": [1.0], "mean_return": 1.0, "score": 1.0}
FACTS = {"step": 5, "source": {}, "metrics": [], "phase": "", "phase_step": 5, "counts": {}, "lines": {}}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny("bc", tmp_path_factory.mktemp("sound") / "run", steps=10, eval_every=5).path


@pytest.fixture
def run(tmp_path: Path, sound: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "run"))


def change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps(unsealed(path) | values))


@pytest.mark.parametrize(
    "line",
    [
        {**LINE, "score": [1.0]},
        {**LINE, "score": "1"},
        {**LINE, "mean_return": None},
        {**LINE, "returns": ["1"]},
        {**LINE, "step": 1e999},
        {**LINE, "step": 10**30},
        {**LINE, "step": -1},
        {"step": 5},
    ],
)
def test_an_evaluation_that_is_none_is_damage_to_all_who_read_it(
    tmp_path: Path, run: Path, refused: Refused, line: dict[str, Any]
) -> None:
    (run / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    refused(Run(run).evaluations, "evaluations.jsonl: damaged")
    assert main(["paper", "table1", "--render-only", "--runs", str(run), "--out", str(tmp_path / "out")]) == 2
    assert main(["report", str(run), "--output", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize(
    "line", [{"q_data": "high"}, {"q_data": None}, {"q_data": {}}, {"step": 1e999}, {"step": 2**99}]
)
def test_metrics_that_are_no_numbers_are_damage(
    tmp_path: Path, run: Path, refused: Refused, line: dict[str, Any]
) -> None:
    (run / "metrics.jsonl").write_text(json.dumps({"step": 5, **line}) + "\n")
    refused(Run(run).metrics, "metrics.jsonl: damaged")
    assert main(["report", str(run), "--output", str(tmp_path / "page.html")]) == 0


@pytest.mark.parametrize(
    "facts",
    [[], {"step": "5"}, {**FACTS, "phase_step": "5"}, {**FACTS, "counts": {"a": 1e9}}, {**FACTS, "phase": []}],
)
def test_a_checkpoint_that_counts_no_steps_is_damage(run: Path, refused: Refused, facts: Any) -> None:
    tensors, _ = checkpoint.load(run / "checkpoint.safetensors")
    (run / "checkpoint.safetensors").unlink()
    checkpoint.save(run / "checkpoint.safetensors", tensors, facts)
    refused(lambda: resume(run, steps=20), "checkpoint.safetensors: ")


@pytest.mark.parametrize("values", [{"threads": True}, {"steps": 10.0}])
def test_a_plan_of_other_types_is_damage(run: Path, refused: Refused, values: dict[str, Any]) -> None:
    change(run / "run.json", **values)
    refused(lambda: resume(run, steps=20), "run.json: damaged", "must be a whole number")


def test_a_run_without_versions_can_be_prolonged(run: Path) -> None:
    values = unsealed(run / "run.json")
    del values["versions"]
    (run / "run.json").write_text(json.dumps(values))
    assert resume(run, steps=12).metrics()[-1]["step"] == 12


@pytest.mark.parametrize("value", ["low", None, [1], float("nan")])
def test_a_policy_s_bounds_must_be_numbers(tmp_path: Path, refused: Refused, value: object) -> None:
    folder = Policy(TanhGaussianActor(3, 2, (4,))).save(tmp_path / "policy")
    spec = unsealed(folder / "policy.json")["spec"]
    change(folder / "policy.json", spec=spec | {"log_std_max": value})
    refused(lambda: load_policy(folder), "the policy is damaged")


def test_a_policy_s_arrays_are_held_to_the_limit_on_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    np.savez_compressed(tmp_path / "policy.npz", **policy_arrays(2), more=np.zeros((1000, 1000)))
    refused(lambda: ArrayPolicy(tmp_path / "policy.npz"), "8.0 MB", "1.0 MB")


def test_an_agent_of_endless_steps_is_damage(tmp_path: Path, refused: Refused) -> None:
    plan = vars(AgentPlan.preset("small", "Pendulum-v1"))
    values = {"format": 2, "steps": 1e999, "plan": plan | {"sac": vars(plan["sac"]) | {"extras": {}}}}
    (tmp_path / "agent.json").write_text(json.dumps(values))
    refused(lambda: read_plan(tmp_path), "agent.json: damaged")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"seeds = {10**300}", "seeds must be at most 10,000"),
        (f"seeds = {DEEP}", "not a TOML file"),
        (f"seeds = 100\n[fields]\nlam = {[0.5] * 500}", "at most 10,000 jobs"),
        (f"[fields]\nbatch_size = {[1] * 40}\ntau = {[1.0] * 40}\ngamma = {[0.9] * 40}", "at most 10,000 jobs"),
    ],
)
def test_a_sweep_without_end_is_refused_before_its_jobs_are_made(
    tmp_path: Path, refused: Refused, text: str, words: str
) -> None:
    (tmp_path / "spec.toml").write_text(f"algorithms = 'mcq'\ndatasets = 'pendulum-mixed'\n{text}\n")
    assert words in refused.command("sweep", str(tmp_path / "spec.toml"), "--out", "sweep", "--dry-run")


@pytest.mark.parametrize(
    "values",
    [{"dataset_id": "x" * 100_000}, {"total_episodes": 10**9}, {"total_episodes": None}, {"observation_space": None}],
)
@pytest.mark.filterwarnings("ignore")
def test_a_minari_set_that_would_keep_minari_busy_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Refused, values: dict[str, Any]
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    folder = minari_set(lambda spec: None)
    change(folder / "data" / "metadata.json", **values)
    began = time.monotonic()
    refused(load_dataset, "not a Minari data set, or damaged", source=folder)
    assert time.monotonic() - began < 5


def test_episodes_that_are_lists_are_refused(tmp_path: Path, refused: Refused) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {"obs": [1.0, 2.0], "action": [0.0, 0.0], "reward": [0.0, 0.0], "episode": [[1], [2]]}
    parquet.write_table(pytest.importorskip("pyarrow").table(columns), tmp_path / "log.parquet")
    refused.dataset(tmp_path / "log.parquet", "tells no episodes")
