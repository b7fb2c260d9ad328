"""Where gymnasium is not installed policies act, data load and trainings run; what needs it says so in one sentence."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from conftest import tiny_fields

import mildly
from mildly import ActionSpace, MildlyError
from mildly.algorithms import ALGORITHMS
from mildly.cli import main
from mildly.experiments.spec import Spec, expand
from mildly.experiments.sweep_data import check_data
from mildly.training.offline import resume, train

TINY = {**tiny_fields(ALGORITHMS["bc"]), "steps": 4, "log_every": 2, "checkpoint_every": 2}
NEEDED = "evaluating and collecting need a simulator, and gymnasium is not installed. Install it with: pip install "
BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("gymnasium", "gymnasium_robotics", "mujoco"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture
def no_gymnasium(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if gymnasium were not installed."""
    monkeypatch.setitem(sys.modules, "gymnasium", None)


def python(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Code in an interpreter of its own."""
    return subprocess.run([sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True)


def bare(data: mildly.Dataset) -> mildly.Dataset:
    """A set that names its environment, but no action bounds."""
    return dataclasses.replace(data, meta=dataclasses.replace(data.meta, action_space=None))


# A machine without the packages


def test_a_saved_policy_acts_where_no_simulator_can_be_imported(tmp_path: Path) -> None:
    run = train("bc", "pendulum-mixed", out=tmp_path / "run", eval_every=0, **TINY)
    observations = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    np.save(tmp_path / "observations.npy", observations)
    code = """
import numpy as np
import mildly
policy = mildly.load_policy(sys.argv[1])
np.save(sys.argv[3], policy.act(np.load(sys.argv[2])))
"""
    done = python(BLOCKED + code, run.path, tmp_path / "observations.npy", tmp_path / "actions.npy")
    assert done.returncode == 0, done.stderr
    np.testing.assert_array_equal(np.load(tmp_path / "actions.npy"), mildly.load_policy(run.path).act(observations))


def test_data_load_and_trainings_run_where_no_simulator_can_be_imported(tmp_path: Path) -> None:
    code = """
import json
import mildly
data = mildly.load_dataset("pendulum-mixed")
assert len(data) == 19_400
out, fields = sys.argv[1], json.loads(sys.argv[2])
run = mildly.train("bc", "pendulum-mixed", out=out, eval_every=2, **fields)
assert run.evaluations() == []
mildly.resume(out, steps=6)
from mildly.cli import main
code = main(["evaluate", out])
assert "gymnasium" not in sys.modules
sys.exit(code)
"""
    done = python(BLOCKED + code, tmp_path / "run", json.dumps(TINY))
    assert done.returncode == 2, done.stderr
    *said, last = done.stderr.splitlines()
    assert last.count("pip install 'mildly[mujoco]'") == 1
    assert NEEDED in last
    assert "Traceback" not in done.stderr
    assert sum("training goes on without evaluation" in line for line in said) == 2  # once per training
    assert [line["step"] for line in mildly.run.Run(tmp_path / "run").metrics()] == [2, 4, 6]


def test_nothing_but_an_environment_imports_gymnasium() -> None:
    code = """
import sys
import mildly
mildly.load_policy, mildly.train, mildly.evaluate
import mildly.bench, mildly.collect.make_set, mildly.experiments.sweep, mildly.report
import mildly.paper.cost_table, mildly.paper.figures, mildly.paper.score_table
assert not {"gymnasium", "mujoco"} & set(sys.modules), "imported"
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


# What is said


def test_a_training_says_once_that_it_cannot_evaluate(
    no_gymnasium: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train("bc", "pendulum-mixed", out=tmp_path / "run", eval_every=2, **TINY)
    said = capsys.readouterr().err
    assert said.count("training goes on without evaluation: environment 'Pendulum-v1' cannot be made: " + NEEDED) == 1
    assert "on pendulum-mixed, not evaluated, seed 0" in said
    assert "acts in [-1, 1]" not in said  # the set knows its bounds
    assert run.plan().env == "Pendulum-v1"
    assert mildly.load_policy(run.path).action_space == ActionSpace((-2.0,), (2.0,))


def test_a_training_that_is_not_to_evaluate_has_nothing_to_say(
    no_gymnasium: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train("bc", "pendulum-mixed", out=tmp_path / "run", eval_every=0, **TINY)
    said = capsys.readouterr().err
    assert "simulator" not in said
    assert "on pendulum-mixed, not evaluated, seed 0" in said


def test_unknown_units_are_told(no_gymnasium: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train("bc", bare(mildly.load_dataset("pendulum-mixed")), out=tmp_path / "run", eval_every=0, **TINY)
    words = "'pendulum-mixed' names no action bounds, and Pendulum-v1 cannot be asked: the policy acts in [-1, 1]."
    assert words in capsys.readouterr().err
    assert mildly.load_policy(run.path).action_space is None


def test_an_environment_that_the_user_names_must_be_there(no_gymnasium: None, tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match=r"'Pendulum-v1' cannot be made: .*pip install 'mildly\[mujoco\]'"):
        train("bc", "pendulum-mixed", out=tmp_path / "run", env="Pendulum-v1", **TINY)
    assert not (tmp_path / "run").exists()


def test_a_run_goes_on_where_there_is_no_simulator_and_is_evaluated_again_where_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fields = {**TINY, "steps": 2, "checkpoint_every": 1, "eval_every": 2, "episodes": 1}
    run = train("bc", "pendulum-mixed", out=tmp_path / "run", **fields)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "gymnasium", None)
        resume(run.path, steps=4)
    resume(run.path, steps=6)
    assert [line["step"] for line in run.evaluations()] == [2, 4, 6]  # what was due is made up for


def test_without_mujoco_alone_a_training_goes_on_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(env_id: str) -> None:
        raise gymnasium.error.DependencyNotInstalled('MuJoCo is not installed, run `pip install "gymnasium[mujoco]"`')

    gymnasium = pytest.importorskip("gymnasium")
    monkeypatch.setattr(gymnasium, "make", missing)
    train("bc", "hopper-mixed", out=tmp_path / "run", eval_every=2, **TINY)
    assert "environment 'Hopper-v4' needs a package that is not installed: MuJoCo is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env_id", "extra"), [("Hopper-v4", "mujoco"), ("d4rl/pen-v0", "robotics"), ("PointMaze_UMaze-v3", "robotics")]
)
def test_collecting_names_the_extra(
    no_gymnasium: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], env_id: str, extra: str
) -> None:
    code = main(["data", "collect", str(tmp_path / "set"), "--env", env_id, "--policy", "random", "--steps", "10"])
    assert code == 2
    told = capsys.readouterr().err
    assert f"'{env_id}' cannot be made: {NEEDED}'mildly[{extra}]'." in " ".join(told.split())


def test_a_log_that_names_its_environment_is_read_without_it(no_gymnasium: None, tmp_path: Path) -> None:
    path = bare(mildly.load_dataset("pendulum-mixed")).save(tmp_path / "set")
    read = mildly.load_dataset(path, name="other")
    assert (read.meta.name, read.meta.env_id, read.meta.action_space) == ("other", "Pendulum-v1", None)


def test_a_sweep_says_it_before_it_begins(no_gymnasium: None, tmp_path: Path) -> None:
    folder = mildly.load_dataset("pendulum-mixed").save(tmp_path / "set")
    spec = Spec(("bc",), (str(folder),), (0, 1), {"steps": 10}, fields={}, own={})
    (line,) = check_data(folder, expand(spec))
    assert line.startswith("training goes on without evaluation: environment 'Pendulum-v1'")
    with pytest.raises(MildlyError, match="need a simulator"):
        check_data(folder, expand(dataclasses.replace(spec, options={"steps": 10, "env": "Pendulum-v1"})))


# What is installed


def test_simulators_are_extras() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert not any("gymnasium" in needed or "mujoco" in needed for needed in project["dependencies"])
    extras = project["optional-dependencies"]
    assert any(needed.startswith("gymnasium[mujoco]") for needed in extras["mujoco"])
    assert "mildly[mujoco]" in extras["robotics"]
    (everything,) = extras["all"]
    assert set(everything.removeprefix("mildly[").removesuffix("]").split(",")) == set(extras) - {"all", "test"}
    assert "mildly[all]" in extras["test"]
