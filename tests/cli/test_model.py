"""`mildly model`: fit, check, and a policy in the model; what is said and what is refused."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from conftest import Refused

from mildly.cli import main
from mildly.dynamics import load_dynamics
from mildly.run import Run
from mildly.training.trainer import Trainer

SMALL = ["--preset", "small", "--hidden-dims", "16", "--members", "3", "--elites", "2", "--threads", "1"]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("model") / "run"
    assert main(["model", "fit", "pendulum-mixed", "--out", str(out), *SMALL, "--max-steps", "150"]) == 0
    return out


def test_a_fit_is_a_run_that_leaves_a_model_and_no_policy(fitted: Path) -> None:
    run, model = Run.open(fitted), load_dynamics(fitted)
    assert run.plan().algorithm == "dynamics"
    assert run.plan().steps == 150
    assert {"loss_dynamics", "error", "held_out_error"} <= run.metrics()[-1].keys()
    assert not (fitted / "policy").exists()
    assert run.evaluations() == []
    assert (model.members, len(model.elites), model.rule) == (3, 2, "pendulum")
    assert model.config.test_episodes == 0.05


def test_a_check_shows_every_column_and_how_errors_grow(
    fitted: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "check.svg"
    assert main(["model", "check", str(fitted), "--horizon", "10", "--plot", str(picture)]) == 0
    shown = capsys.readouterr().out
    assert "1,000 transitions of 5 episodes" in shown
    for word in ("column 0", "column 2", "reward", "no change", "in 50 %", "in 90 %", "logged ends told"):
        assert word in shown
    assert picture.read_text().startswith("<?xml")
    assert main(["model", "check", str(fitted), "--json", "--horizon", "10"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["steps"] for row in found["growth"]] == [1, 2, 5, 10]
    assert all(0 <= share <= 1 for column in found["columns"] for share in column["coverage"])


def test_a_model_alone_is_checked_on_data_that_are_named(
    fitted: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    alone = str(fitted / "dynamics")
    assert "--dataset SET" in refused.command("model", "check", alone)
    assert main(["model", "check", alone, "--dataset", "pendulum-mixed"]) == 0
    assert "1,000 transitions of 5 episodes" in capsys.readouterr().out


def test_mistakes_are_told(fitted: Path, refused: Refused) -> None:
    assert "unknown model command 'fti'. Did you mean 'fit'?" in refused.command("model", "fti")
    assert "no dynamics model here" in refused.command("model", "check", ".")
    assert "horizon must be at least 1" in refused.command("model", "check", str(fitted), "--horizon", "0")
    assert "must end in .png" in refused.command("model", "check", str(fitted), "--plot", "picture.txt")
    assert "elites of the dynamics model" in refused.command("model", "fit", "pendulum-mixed", "--elites", "9")
    assert "no dynamics model here" in refused.command(
        "train", "mopo", "--dataset", "pendulum-mixed", "--model", "nowhere"
    )


def test_help_names_every_field(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "--help"]) == 0
    assert main(["model", "fit", "--help"]) == 0
    shown = capsys.readouterr().out
    for flag in ("--hidden-dims", "--scale-targets", "--test-episodes", "--patience", "--weight-decay"):
        assert flag in shown


def test_a_fit_that_was_stopped_goes_on_to_the_same_model(
    fitted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one_step = Trainer._one_step

    def interrupted(self: Trainer) -> None:
        one_step(self)
        if self.step == 70:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Trainer, "_one_step", interrupted)
    half = str(tmp_path / "half")
    assert main(["model", "fit", "pendulum-mixed", "--out", half, *SMALL, "--max-steps", "150"]) == 130
    assert "stopped at step 70 of 150" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["train", "--resume", half]) == 0
    for name in ("dynamics/weights.safetensors", "dynamics/dynamics.json", "metrics.jsonl"):
        assert (tmp_path / "half" / name).read_bytes() == (fitted / name).read_bytes()
