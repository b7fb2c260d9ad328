"""Files name environments as `module:Id`; nothing is imported unless a person types the name or says --trust-env."""

from __future__ import annotations

import dataclasses
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from carriers import minari_set
from conftest import make_dataset, train_tiny, unsealed

from mildly import environments
from mildly.cli import main
from mildly.data.convert import convert
from mildly.data.dataset import Dataset

ID = "canary_in_a_file:Canary-v0"
_CANARY = """
from pathlib import Path
import gymnasium as gym
import numpy as np
mark = Path(__file__).with_name("mark")
mark.write_text(mark.read_text() + "!" if mark.exists() else "!")

class Canary(gym.Env):
    observation_space = gym.spaces.Box(-10, 10, (3,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    def reset(self, *, seed=None, options=None):
        self.left = 3
        return np.zeros(3, np.float32), {}
    def step(self, action):
        self.left -= 1
        return np.zeros(3, np.float32), 1.0, False, self.left == 0, {}

gym.register("Canary-v0", Canary)
"""


@pytest.fixture(autouse=True)
def mark(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module that leaves a mark when it is imported; nobody has typed its name yet."""
    folder = tmp_path_factory.mktemp("modules")
    (folder / "canary_in_a_file.py").write_text(_CANARY)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv("PYTHONPATH", f"{folder}:{Path(environments.__file__).parents[2]}")
    monkeypatch.setattr(environments, "_trusted", set())
    monkeypatch.delenv("MILDLY_TRUST_ENV", raising=False)
    importlib.invalidate_caches()
    yield folder / "mark"
    sys.modules.pop("canary_in_a_file", None)


@pytest.fixture
def named(tmp_path: Path) -> Path:
    """A data set whose dataset.json names the module."""
    data = make_dataset()
    return dataclasses.replace(data, meta=dataclasses.replace(data.meta, env_id=ID, action_space=None)).save(
        tmp_path / "data"
    )


def trained(tmp_path: Path, named: Path) -> Path:
    return train_tiny("bc", tmp_path / "run", dataset=named, steps=5).path


FEW = ["--steps", "5", "--hidden-dims", "4", "--batch-size", "4", "--eval-every", "5", "--episodes", "1"]


def written(named: Path, target: Path) -> Path:
    convert(named, target)
    assert Dataset.load(named).meta.env_id == ID
    return target


@pytest.mark.parametrize("ending", ["", ".npz", ".hdf5", ".parquet", ".csv"])
def test_no_file_of_data_imports_anything(tmp_path: Path, named: Path, mark: Path, ending: str) -> None:
    path = written(named, tmp_path / f"stranger{ending}") if ending else named
    for number, args in enumerate(
        [
            ["data", "info", str(path)],
            ["data", "check", str(path)],
            ["data", "convert", str(path), str(tmp_path / "copy")],
            ["train", "bc", "--dataset", str(path), "--out", str(tmp_path / "run"), *FEW],
            ["evaluate", str(tmp_path / "run")],
            ["train", "--resume", str(tmp_path / "run"), "--steps", "8"],
            ["report", str(tmp_path / "run"), "--output", str(tmp_path / "page.html")],
        ]
    ):
        assert main(args) == (2 if args[0] == "evaluate" else 0), number
        assert not mark.exists(), args
    assert (tmp_path / "run" / "policy").is_dir()


def test_training_goes_on_without_the_environment_and_says_how_to_allow_it(
    tmp_path: Path, named: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    args = ["train", "bc", "--dataset", str(named), "--out", str(tmp_path / "run"), *FEW]
    assert main(args) == 0
    said = capsys.readouterr().err
    assert f"--env {ID}, or --trust-env" in said
    assert main(["evaluate", str(tmp_path / "run")]) == 2
    assert f"--env {ID}, or --trust-env" in capsys.readouterr().err
    assert not mark.exists()


@pytest.mark.parametrize("allowed", [["--env", ID], ["--trust-env"]])
def test_what_is_typed_or_allowed_is_imported_and_works(
    tmp_path: Path, named: Path, mark: Path, allowed: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["train", "bc", "--dataset", str(named), "--out", run, *FEW, *allowed]) == 0
    assert mark.read_text() == "!"
    assert main(["evaluate", run, "--episodes", "1", *allowed]) == 0
    assert "mean return 3.0" in capsys.readouterr().out
    environments._trusted.clear()
    assert "MILDLY_TRUST_ENV" not in environments.os.environ
    assert main(["evaluate", run, "--episodes", "1"]) == 2, "leave to import does not outlast the command"


def change_run(run: Path, value: Any) -> None:
    (run / "run.json").write_text(json.dumps({**unsealed(run / "run.json"), **value}))


@pytest.mark.parametrize("change", [{"env": ID}, {"env": ID, "data": {"name": "x", "env_id": ID}}])
def test_a_stranger_s_run_imports_nothing(tmp_path: Path, mark: Path, change: dict[str, Any]) -> None:
    data = make_dataset().save(tmp_path / "plain")
    run = trained(tmp_path, data)
    if "data" in change:
        change["data"]["fingerprint"] = Dataset.load(data).meta.fingerprint
    change_run(run, change)
    for args in (
        ["evaluate", str(run)],
        ["train", "--resume", str(run), "--steps", "8"],
        ["report", str(run), "--output", str(tmp_path / "page.html"), "--csv", str(tmp_path / "tables")],
    ):
        assert main(args) in (0, 2)
        assert not mark.exists(), args


@pytest.mark.parametrize("name", ["table1", "table-cost", "fig-parameters", "fig-values"])
def test_the_paper_s_tables_import_nothing_of_the_runs_they_show(tmp_path: Path, mark: Path, name: str) -> None:
    data = make_dataset(env_id=ID)
    shown = {"table-cost": "halfcheetah-medium-v2", "fig-values": "walker2d-random-v2"}.get(
        name, "hopper-medium-replay-v2"
    )
    data = dataclasses.replace(data, meta=dataclasses.replace(data.meta, name=shown))
    run = train_tiny("mcq", tmp_path / "run", dataset=data.save(tmp_path / "data"), steps=2, eval_every=0).path
    change_run(run, {"env": ID})
    for args in (["--runs", str(run), "--out", str(tmp_path / "out")], ["--out", str(run)]):
        assert main(["paper", name, "--render-only", *args]) == 0
        assert not mark.exists(), args


@pytest.mark.slow
def test_the_paper_s_runs_import_nothing_that_their_data_name(tmp_path: Path, named: Path, mark: Path) -> None:
    named.rename(tmp_path / "hopper-medium-recollected")
    args = ["paper", "table1", "--datasets", "hopper-medium", "--algorithms", "bc", "--steps", "3", "--seeds", "1"]
    args += ["--fields", "hidden_dims=[4]", "--data-dir", str(tmp_path), "--out", str(tmp_path / "runs")]
    assert main(args) == 0
    assert len(list((tmp_path / "runs").rglob("run.json"))) == 1
    assert not mark.exists()


def test_what_only_looks_at_a_stranger_s_set_imports_nothing(tmp_path: Path, named: Path, mark: Path) -> None:
    run = trained(tmp_path, make_dataset().save(tmp_path / "plain"))
    change_run(run, {"env": ID})
    for args in (
        ["data", "list", "--data-dir", str(tmp_path)],
        ["data", "info", str(named), "--plot", str(tmp_path / "set.png")],
        ["train", "bc", "--dataset", str(named), "--help"],
        ["data", "collect", str(tmp_path / "made"), "--env", "Pendulum-v1", "--policy", str(run), "--steps", "5"],
        ["report", str(tmp_path), "--output", str(tmp_path / "page.html"), "--figures", str(tmp_path / "figures")],
        ["sweep", str(named / "dataset.json"), "--out", str(tmp_path / "sweep"), "--dry-run"],
    ):
        assert main(args) in (0, 2)
        assert not mark.exists(), args


def test_the_options_of_reading_in_a_stranger_s_run_import_nothing(tmp_path: Path, mark: Path) -> None:
    rows = "".join(f"{i},{-i},1,{i % 3 - 1},0.5,{i}\n" for i in range(30))
    (tmp_path / "log.csv").write_text(f"x,y,z,u0,u1,reward\n{rows}")
    args = ["train", "bc", "--dataset", str(tmp_path / "log.csv"), "--action", "u0,u1", "--out", str(tmp_path / "run")]
    assert main([*args, *FEW, "--no-check"]) == 0
    change_run(tmp_path / "run", {"env": ID, "reading": {"action": "u0,u1", "env": ID}})
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "8"]) == 2
    assert not mark.exists()


def test_a_sweep_s_file_and_its_data_import_nothing(
    tmp_path: Path, named: Path, mark: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = f'algorithms = ["bc"]\ndatasets = ["{named}"]\nsteps = 5\nepisodes = 1\neval_every = 5\n'
    fields = "[fields]\nhidden_dims = [4]\nbatch_size = 4\n"
    for text in (f'{common}env = "{ID}"\n{fields}', f'{common}{fields}[variants.a]\nenv = "{ID}"\n[variants.b]\n'):
        (tmp_path / "spec.toml").write_text(text)
        assert main(["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "sweep")]) == 2
        assert f"--env {ID}, or --trust-env" in capsys.readouterr().err
        assert not mark.exists()
    (tmp_path / "spec.toml").write_text(common + fields)
    assert main(["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "sweep")]) == 0
    assert not mark.exists()
    assert main(["sweep", str(tmp_path / "spec.toml"), "--out", str(tmp_path / "trusting"), "--trust-env"]) == 0
    assert mark.exists()


def test_a_sweep_s_jobs_import_nothing_from_the_folder_they_are_started_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = make_dataset().save(tmp_path / "data")
    (tmp_path / "torch.py").write_text(f"open({str(tmp_path / 'bitten')!r}, 'w')\nraise ImportError('a stranger')\n")
    (tmp_path / "spec.toml").write_text(
        f'algorithms = ["bc"]\ndatasets = ["{data}"]\nsteps = 5\neval_every = 0\n[fields]\nhidden_dims = [4]\n'
    )
    monkeypatch.chdir(tmp_path)
    assert main(["sweep", "spec.toml", "--out", "sweep"]) == 0
    assert not (tmp_path / "bitten").exists()


def test_an_agent_s_folder_imports_nothing(tmp_path: Path, mark: Path) -> None:
    from mildly.collect.agent import AgentPlan, train_agent

    plan = {**dataclasses.asdict(AgentPlan.preset("small", "Pendulum-v1")), "env_id": ID}
    folder = tmp_path / "agent"
    folder.mkdir()
    (folder / "agent.json").write_text(json.dumps({"format": 2, "steps": 1000, "plan": plan}))
    args = ["data", "collect", str(tmp_path / "set"), "--kind", "expert", "--agent", str(folder)]
    assert main([*args, "--env", "Pendulum-v1", "--preset", "small"]) == 2
    with pytest.raises(environments.MildlyError):
        train_agent(folder, AgentPlan.preset("small", ID), 1000)
    assert not mark.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "change",
    [
        {"id": ID},
        {"entry_point": "canary_in_a_file:Canary", "vector_entry_point": "canary_in_a_file:Canary"},
        {"additional_wrappers": [{"name": "x", "entry_point": "canary_in_a_file:Canary", "kwargs": {}}]},
    ],
)
@pytest.mark.parametrize("missing", ["", "action_space", "observation_space"])
def test_a_minari_set_imports_nothing(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], missing: str
) -> None:
    """Where a set does not say its spaces, Minari makes the environment to ask it."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    folder = minari_set(lambda spec: spec.update(change))
    described = json.loads((folder / "data" / "metadata.json").read_text())
    described.pop(missing, None)
    (folder / "data" / "metadata.json").write_text(json.dumps(described))
    for args in (
        ["data", "info", str(folder)],
        ["data", "check", str(folder)],
        ["data", "convert", str(folder), str(tmp_path / "copy")],
        ["train", "bc", "--dataset", str(folder), "--out", str(tmp_path / "run"), *FEW],
        ["data", "info", "minari:stranger/set-v0"],
    ):
        assert main(args) in (0, 1, 2)
        assert not mark.exists(), args
