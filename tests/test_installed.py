"""The wheel in an environment of its own, without the repository; and a package from outside that adds to it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path
from typing import Any

import pytest
from cli.test_docs import blocks

ROOT = Path(__file__).parents[1]
FEW = ["--hidden-dims", "8", "8", "--batch-size", "16", "--log-every", "2", "--threads", "1"]

MIDDLE = '''
import torch
from mildly.behavior.base import BehaviorModel
from mildly.networks import mlp, normal


class Middle(BehaviorModel):
    """The mean action of a state, with noise around it."""

    HIDDEN_DIMS = (16,)
    ADAM = {"lr": 1e-3}

    def __init__(self, observation_size, action_size, hidden_dims=HIDDEN_DIMS):
        super().__init__()
        self.net = mlp((observation_size, *hidden_dims, action_size))

    def loss(self, observations, actions, generator=None, step=0):
        return (torch.tanh(self.net(observations)) - actions).square().sum(-1).mean()

    @torch.no_grad()
    def sample(self, observations, n, generator=None):
        mean = torch.tanh(self.net(observations)).unsqueeze(1)
        return (mean + 0.1 * normal((len(mean), n, mean.shape[-1]), mean, generator)).clamp(-1, 1)
'''

RECORDER = '''
import numpy as np
from mildly.data.assemble import Log
from mildly.data.dataset import Meta
from mildly.data.steps import Steps


def read(path, options):
    """A line for each step: three sensors, the action, the reward, and 1 in the last step of an episode."""
    rows = np.loadtxt(path)
    never = np.zeros(len(rows), dtype=bool)
    steps = Steps(rows[:, :3], rows[:, 3:4], rows[:, 4], never, rows[:, 5] > 0)
    return Log(Meta(path.stem), iter([steps]), where=str(path))
'''


def build(project: Path, out: Path) -> Path:
    """The wheel of a project; nothing is downloaded."""
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--wheel-dir", str(out)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(project)], check=True, cwd=out)
    (wheel,) = out.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that nothing is left in the repository."""
    copy, out = tmp_path_factory.mktemp("copy"), tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT / "mildly", copy / "mildly", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    return build(copy, out)


def environment(folder: Path, *wheels: Path) -> Path:
    """The interpreter of a new environment with wheels in it; their dependencies are those that are installed here."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    options = ["--no-deps", "--no-index", "--quiet"]
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", *options]
    subprocess.run([*pip, *map(str, wheels)], check=True)
    (site,) = (folder / "venv").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))  # last on the path, its own .pth files unread
    return python


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment(tmp_path_factory.mktemp("alone"), wheel)


@pytest.fixture(autouse=True)
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that commands run in; the tests' own paths are not passed on."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return tmp_path


def run(python: Path, *args: Any, code: int = 0) -> str:
    """What a command says."""
    ran = subprocess.run([python, "-P", *map(str, args)], capture_output=True, text=True)
    assert ran.returncode == code, f"{args}: {ran.stdout}\n{ran.stderr}"
    return ran.stdout + ran.stderr


def commands(python: Path, *each: list[str]) -> str:
    """Several commands in one process, which saves its start."""
    script = "import json, sys\nfrom mildly.cli import main\n"
    script += "for args in json.loads(sys.argv[1]):\n    assert main(args) == 0, args\n"
    return run(python, "-c", script, json.dumps(each))


def test_every_file_of_the_package_is_in_the_wheel(wheel: Path) -> None:
    there = {path.relative_to(ROOT).as_posix() for path in (ROOT / "mildly").rglob("*") if path.is_file()}
    there = {name for name in there if "__pycache__" not in name}
    assert "mildly/paper/published_scores.csv" in there
    with zipfile.ZipFile(wheel) as archive:
        assert {name for name in archive.namelist() if ".dist-info/" not in name} == there


def test_the_wheel_trains_evaluates_reports_and_renders_the_papers_tables_without_the_repository(
    python: Path, empty: Path
) -> None:
    where = run(python, "-c", "import mildly, sys; print(mildly.__file__, *sys.path, sep='\\n')").splitlines()
    assert Path(where[0]).is_relative_to(python.parents[1])
    assert str(ROOT) not in where
    said = commands(
        python,
        ["train", "bc", "--dataset", "pendulum-mixed", "--steps", "4", "--episodes", "1", "--out", "run", *FEW],
        ["evaluate", "run", "--episodes", "1"],
        ["report", "run", "-o", "report.html"],
        ["paper", "table1", "--render-only"],
        ["data", "list"],
    )
    assert "mean return" in said
    assert "halfcheetah-medium" in said
    assert (empty / "report.html").stat().st_size > 20_000
    assert run(python, python.with_name("mildly"), "--version").strip()


@pytest.fixture(scope="module")
def near(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that also has the package which CONTRIBUTING.md shows."""
    algorithm, project = (
        next(text for language, text in blocks(ROOT / "CONTRIBUTING.md") if language == kind)
        for kind in ("python", "toml")
    )
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("near")
    (source / "near").mkdir()
    (source / "pyproject.toml").write_text(project)
    for name, text in (("__init__", ""), ("td3_near", algorithm), ("middle", MIDDLE), ("recorder", RECORDER)):
        (source / "near" / f"{name}.py").write_text(text)
    return environment(out, wheel, build(source, out))


RECORD = """
import mildly, numpy as np
data = mildly.load_dataset("pendulum-mixed")
rows = slice(0, 1000)
columns = data.observations[rows], 2 * data.actions[rows], data.rewards[rows, None], data.truncated[rows, None]
np.savetxt("log.rec", np.hstack(columns))
"""


def test_what_a_package_from_outside_brings_trains_resumes_sweeps_and_is_in_help_and_report(
    near: Path, empty: Path
) -> None:
    run(near, "-c", RECORD)
    few = [*FEW, "--steps", "4", "--episodes", "1", "--env", "Pendulum-v1", "--dataset", "log.rec"]
    said = commands(
        near,
        ["train", "--help"],
        ["train", "td3-near", "--help"],
        ["train", "td3-near", "--out", "run", *few],
        ["train", "mcq", "--preset", "small", "--behavior.model", "middle", "--out", "mcq", *few],
    )
    assert "TD3 near the data: leaving the logged next action costs value" in said
    assert "What a squared distance of 1 from the logged next" in said  # and the line ends
    assert "cvae|cgan|flow|middle" in run(near, "-m", "mildly", "train", "mcq", "--help")
    (empty / "sweep.toml").write_text(
        'algorithms = ["td3-near"]\ndatasets = ["log.rec"]\nseeds = 2\nsteps = 4\nenv = "Pendulum-v1"\nepisodes = 1\n'
        "[fields]\nhidden_dims = [[8, 8]]\nbatch_size = 16\nbeta = 0.5\n"
    )
    said = commands(
        near,
        ["train", "--resume", "run", "--steps", "6"],
        ["evaluate", "run", "--episodes", "1"],
        ["sweep", "sweep.toml", "--out", "swept", "--workers", "1"],
        ["report", "run", "mcq", "swept", "-o", "report.html"],
    )
    assert "2 of 2 jobs complete" in said
    assert "td3-near" in said.split("report.html")[-2]
    assert "td3-near" in (empty / "report.html").read_text()
    assert ".rec" in run(near, "-m", "mildly", "data", "convert", "--help")


def test_an_author_can_check_an_algorithm_of_a_package_from_outside(near: Path) -> None:
    run(near, "-c", "from mildly.testing import check_algorithm; check_algorithm('td3-near', 'check')")


def test_a_package_that_fails_is_told_and_does_not_keep_the_others_from_working(near: Path) -> None:
    (module,) = near.parents[1].glob("lib/python*/site-packages/near/td3_near.py")
    sound = module.read_text()
    module.write_text("raise RuntimeError('not today')")
    said = run(near, "-m", "mildly", "train", "td3-near", "--dataset", "pendulum-mixed", code=2)
    module.write_text(sound)
    assert "the algorithm 'td3-near' of the package near is left out (RuntimeError: not today)" in said
    assert "unknown algorithm 'td3-near'. Known: awac, bc," in said


def test_files_in_the_current_folder_register_nothing(python: Path, empty: Path) -> None:
    """`python -m` looks for modules there, and the folder may be a stranger's."""
    (empty / "evil.py").write_text("open('mark', 'w')")
    (empty / "evil-1.dist-info").mkdir()
    (empty / "evil-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: evil\nVersion: 1\n")
    (empty / "evil-1.dist-info" / "entry_points.txt").write_text("[mildly.algorithms]\nevil = evil:Evil\n")
    ask = ["-c", "import sys; sys.path.insert(0, ''); from mildly.algorithms import ALGORITHMS; print(*ALGORITHMS)"]
    assert "evil" not in run(python, *ask)
    assert not (empty / "mark").exists()
