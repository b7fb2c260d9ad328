"""Progress: plain lines in a log, a bar on a terminal; both name the phase that is trained."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import train_tiny

from mildly.algorithms.base import Phase
from mildly.run import Plan
from mildly.training import progress
from mildly.training.progress import TrainingProgress


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    return train_tiny("bc", tmp_path_factory.mktemp("runs") / "run", steps=5, eval_every=0).plan()


def phase(name: str, steps: int, finished: Callable[[], bool] | None = None) -> Phase:
    return Phase(name, steps, lambda batch: {}, finished=finished)


def test_lines_name_the_phase_and_count_its_steps(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(plan, Path("run"), 0, None) as shown:
        shown.begin(phase("first thing", 40), 0)
        shown.tick(40)
        shown.metrics({"loss_bc": 0.25, "unheard_of": 1.0})
        shown.begin(phase("second thing", 30), 0)
        shown.tick(29)
        shown.begin(phase("", 5), 0)
        shown.tick(5)
    _, *said = capsys.readouterr().err.splitlines()
    parts = [line.split("  ") for line in said]
    assert [part[0] for part in parts] == [
        "bc on pendulum-mixed, first thing: 40 steps first",
        "bc on pendulum-mixed, first thing",
        "bc on pendulum-mixed, second thing: 30 steps first",
        "bc on pendulum-mixed, second thing",
        "bc on pendulum-mixed",
    ]
    assert [part[1] for part in parts if len(part) > 1] == ["40/40", "29/30", "5/5"]
    assert parts[1][-1] == "loss_bc 0.25"
    assert "left of this phase" in said[1]
    assert "phase" not in said[4]
    assert "loss_bc" not in said[3] + said[4]  # what was shown of a phase is not said of the next


def test_a_phase_that_goes_on_says_from_where_and_one_that_is_over_says_nothing(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrainingProgress(plan, Path("run"), 0, None) as shown:
        shown.begin(phase("first thing", 40), 40)
        shown.begin(phase("second thing", 30), 12)
        shown.begin(phase("", 5), 2)
    _, *said = capsys.readouterr().err.splitlines()
    assert said == ["bc on pendulum-mixed, second thing: 30 steps first, from step 12"]


def test_lines_have_commas_in_thousands_and_one_thread_is_no_threads(
    plan: Plan, capsys: pytest.CaptureFixture[str]
) -> None:
    with TrainingProgress(plan, Path("run"), 0, None) as shown:
        shown.begin(phase("first thing", 40_000), 1_200)
        shown.tick(40_000)
    begun, first, then = capsys.readouterr().err.splitlines()
    assert begun.endswith(", cpu, 1 thread")
    assert first.endswith("first thing: 40,000 steps first, from step 1,200")
    assert "  40,000/40,000  " in then


def test_speed_is_that_of_the_phase_itself(
    plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "monotonic", lambda: now)
    with TrainingProgress(plan, Path("run"), 0, None) as shown:
        shown.begin(phase("first thing", 40), 0)
        now = 120.0
        shown.tick(20)
        now = 140.0
        shown.tick(40)
        shown.begin(phase("", 500), 100)
        now = 160.0
        shown.tick(300)
    said = [line for line in capsys.readouterr().err.splitlines() if "steps/s" in line]
    assert ["  ".join(line.split("  ")[1:4]).rstrip() for line in said] == [
        "20/40  1.0 steps/s  0:00:20 left of this phase",
        "40/40  1.0 steps/s  0:00:00 left of this phase",
        "300/500  10.0 steps/s  0:00:20 left",
    ]


@pytest.mark.parametrize(("width", "title"), [(160, "bc on pendulum-mixed, first thing"), (80, "bc, first thing")])
def test_the_bar_names_the_phase_and_counts_its_steps(
    plan: Plan, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int, title: str
) -> None:
    for name, value in {"FORCE_COLOR": "1", "TERM": "xterm-256color", "COLUMNS": str(width)}.items():
        monkeypatch.setenv(name, value)
    with TrainingProgress(plan, Path("run"), 0, None) as shown:
        shown.begin(phase("first thing", 40), 10)
        shown.tick(33)
    frames = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().err)
    last = [line for line in re.split(r"[\r\n]+", frames) if line.strip()][-1]
    assert last.startswith(f"{title} ")
    assert "33/40" in last


def test_a_phase_that_may_end_before_says_at_most(plan: Plan, capsys: pytest.CaptureFixture[str]) -> None:
    with TrainingProgress(plan, Path("run"), 0, None) as shown:
        shown.begin(phase("model", 40, lambda: False), 0)
        shown.tick(20)
        shown.begin(phase("", 5, lambda: False), 0)
        shown.tick(4)
    _, first, second, main = capsys.readouterr().err.splitlines()
    assert first == "bc on pendulum-mixed, model: at most 40 steps first"
    assert re.search(r"at most \d:\d\d:\d\d left", second)
    assert "at most" not in main
