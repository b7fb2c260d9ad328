"""`mildly solve`: what it leaves, that it repeats itself and goes on after a stop, and what it refuses."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import make_dataset

import mildly
from mildly.cli import main
from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset
from mildly.data.select import pick_episodes
from mildly.errors import MildlyError, Stopped
from mildly.ope.evaluate import identity_of
from mildly.portfolio.card import write_card
from mildly.portfolio.folder import Request, SolveFolder
from mildly.portfolio.plan import LEARNERS, StepPlan
from mildly.portfolio.solve import Solution

TINY: dict[str, Any] = {"steps": 4, "workers": 1, "groups": 3, "check": False}
SAME = ("solve.json", "rungs.json", "choice.json", "card.md", "choice.html", "policy/weights.safetensors")


def log() -> Dataset:
    return make_dataset(rows=200)


def left_in(folder: Path) -> dict[str, bytes]:
    return {name: (folder / name).read_bytes() for name in SAME}


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Solution:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place := tmp_path_factory.mktemp("whole"))
        found = mildly.solve(log(), out="solved", **TINY)
        return Solution(place / found.path, found.plan, found.rungs, found.choice, found.returns)


def test_the_folder_holds_the_policy_the_card_and_the_pages(solved):
    assert json.loads((solved.path / "solve.json").read_text())["plan"] == StepPlan.of(4).to_json() | {
        "rungs": [{"candidates": 5, "steps": 1}, {"candidates": 3, "steps": 2}, {"candidates": 2, "steps": 4}]
    }
    assert identity_of(solved.path) == identity_of(solved.path / "runs" / solved.best)
    action = mildly.load_policy(solved.path).act(log().observations[:3], unseen="ignore")
    assert action.shape == (3, 2)
    for page in ("choice.html", "report.html"):
        assert (solved.path / page).read_text().rstrip().endswith("</html>")
    assert json.loads((solved.path / "choice.json").read_text())["verdict"] == solved.choice.verdict


def test_the_better_half_goes_on_and_the_others_stay_where_they_are(solved):
    steps = {name: steps_of(solved, name) for name in LEARNERS}
    assert sorted(steps.values()) == [1, 1, 2, 4, 4]
    first, second, last = solved.rungs
    values = {name: one["value"] for name, one in first.values.items()}
    assert first.kept == sorted(values, key=lambda name: -values[name])[:3]
    assert set(second.values) == set(first.kept)
    assert last.kept == second.kept
    assert {name for name, reached in steps.items() if reached == 4} == set(last.kept)
    assert {each.run for each in solved.choice.candidates} == set(last.kept)


def steps_of(solved: Solution, name: str) -> int:
    lines = (solved.path / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return max(json.loads(line)["step"] for line in lines)


def test_no_candidate_sees_the_episodes_that_it_is_judged_by(solved):
    held = {tuple(json.loads((solved.path / "runs" / name / "run.json").read_text())["held_out"]) for name in LEARNERS}
    assert len(held) == 1
    assert len(held.pop()) == solved.choice.episodes == 4


def test_the_card_tells_verdict_data_estimates_grades_and_limits(solved):
    card = (solved.path / "card.md").read_text()
    best = solved.choice.candidates[0]
    assert f"**{solved.choice.verdict}**" in card
    assert "200 transitions in 20 episodes" in card
    assert f"| {best.run} | {best.value.value:.4g} |" in card
    assert "16 of 20 episodes; 4 were kept to judge by" in card
    for title in ("What it would earn", "How far these numbers can be believed", "How it was found", "Limits"):
        assert f"## {title}" in card
    assert solved.choice.grading.verdict() in card
    assert "What the environment said" not in card


@pytest.mark.parametrize("alike", [True, False])
def test_the_card_says_where_the_values_are_fqe_s_alone(solved, tmp_path, alike):
    told = solved.choice.grading
    failed = {name: dataclasses.replace(grade, weight=0.0) for name, grade in told.grades.items()}
    choice = dataclasses.replace(
        solved.choice, grading=dataclasses.replace(told, grades=failed, alike=alike), weights={"fqe": 1.0}
    )
    path = tmp_path / "card.md"
    write_card(dataclasses.replace(solved, choice=choice), SolveFolder(solved.path).request(), log(), path)
    card = path.read_text()
    assert ("No estimator could be graded on this log" if alike else "No estimator passed on this log") in card
    assert "the values are fqe's alone, which no grade backs." in card
    assert "What fails has no weight" not in card
    weights = dict(re.findall(r"\| (\w+) \([^|]*\) \|[^|]*\|[^|]*\| ([\d.]+) \|", card))
    assert weights == {"fqe": "1.00", "dr": "0.00", "wis": "0.00", "model": "0.00"}


def test_words_of_a_log_are_no_markup_of_the_card_and_another_seed_is_another_result(solved, tmp_path):
    data = make_dataset(rows=200, observation_names=("<b>", "a|b", "x\n# big"))
    found = mildly.solve(data, out=tmp_path / "solved", seed=1, **TINY)
    card, _, code = (found.path / "card.md").read_text().partition("```python")
    assert "&lt;b> (" in card
    assert "<b>" not in card
    assert "a\\|b (" in card
    assert "\n# big" not in card + code
    assert found.rungs != solved.rungs


def test_names_of_groups_are_kept_until_the_work_goes_on(tmp_path):
    folder = SolveFolder(tmp_path)
    request = Request("log", {}, "log", "", False, 10.0, 3, 0.2, 0.9, "crew", 5, ["anna", "bob"], [])
    folder.write_request(request)
    assert folder.request() == request


def test_a_missing_number_among_the_labels_is_kept_until_the_work_goes_on(tmp_path):
    folder = SolveFolder(tmp_path)
    request = Request("log", {}, "log", "", False, 10.0, 3, 0.2, 0.9, "crew", 5, [1.0, math.nan, 2.0], [])
    folder.write_request(request)
    again = folder.request()
    assert again.labels is not None
    np.testing.assert_array_equal(again.labels, request.labels)
    assert dataclasses.replace(again, labels=None) == dataclasses.replace(request, labels=None)
    assert "NaN" not in (tmp_path / "solve.json").read_text()


class Stopping:
    """Stops the work, as Ctrl-C does, when it says something that begins so."""

    def __init__(self, moment: str) -> None:
        self.moment = moment

    def __call__(self, text: str) -> None:
        if text.startswith(self.moment):
            raise KeyboardInterrupt


def test_what_was_stopped_goes_on_and_ends_like_what_was_left_alone(solved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(Stopped, match="mildly solve --resume solved"):
        mildly.solve(log(), out="solved", say=Stopping("rung 1"), **TINY)
    for moment in ("  iql:", "rung 2", "rung 3", "choosing", "group 2", "candidate 2"):
        assert not Path("solved/card.md").exists()
        with pytest.raises(Stopped):
            mildly.resume_solve("solved", workers=1, say=Stopping(moment))
    mildly.resume_solve("solved", workers=1)
    assert left_in(tmp_path / "solved") == left_in(solved.path)


def test_going_on_with_what_is_complete_changes_nothing(solved, monkeypatch):
    monkeypatch.chdir(solved.path.parent)
    before = left_in(solved.path)
    mildly.resume_solve("solved", workers=1)
    assert left_in(solved.path) == before


@pytest.mark.slow
def test_results_do_not_depend_on_the_number_of_workers(solved, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mildly.solve(log(), out="solved", **{**TINY, "workers": 2})
    assert left_in(tmp_path / "solved") == left_in(solved.path)


def test_what_diverges_is_out_and_the_others_go_on(tmp_path):
    data = log()
    huge = Dataset.from_arrays(
        **{name: np.asarray(getattr(data, name)) for name in ("observations", "actions", "next_observations")},
        rewards=np.asarray(data.rewards) * 1e25,
        terminated=np.asarray(data.terminated),
        truncated=np.asarray(data.truncated),
        meta=data.meta,
    )
    found = mildly.solve(huge, out=tmp_path / "solved", **TINY)
    assert "td3-bc" in found.rungs[0].failed
    assert "clone" in found.rungs[0].values
    assert not set(found.rungs[0].failed) & set(found.rungs[0].kept)
    assert "| diverged |" in (found.path / "card.md").read_text()


# The environment


def test_an_environment_is_asked_afterwards_and_changes_no_choice(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pick_episodes(load_dataset("pendulum-mixed"), np.arange(10)).save("log")
    assert main(["solve", "log", "--steps", "2", "--workers", "1", "--groups", "3", "--out", "solved"]) == 0
    assert "environment" not in capsys.readouterr().out
    before = left_in(tmp_path / "solved")
    resumed = ["solve", "--resume", "solved", "--workers", "1", "--evaluate", "--episodes", "1"]
    assert main(resumed) == 0
    out = capsys.readouterr().out
    after = left_in(tmp_path / "solved")
    assert {name for name in SAME if before[name] != after[name]} == {"card.md"}
    returns = json.loads(Path("solved/evaluation.json").read_text())
    means = {name: sum(returns[name]) for name in LEARNERS}
    best = json.loads(before["choice.json"])["candidates"][0]["run"]
    assert f"Regret against the best in hindsight: {max(means.values()) - means[best]:.4g}." in out
    assert "What the environment said afterwards" in after["card.md"].decode()
    assert main(["evaluate", "solved", "--env", "Pendulum-v1", "--episodes", "1"]) == 0
    assert math.isfinite(sum(means.values()))


def test_an_environment_that_cannot_be_asked_is_refused_before_anything_is_trained(tmp_path, refused, monkeypatch):
    with pytest.raises(Stopped):  # begun where nobody asks
        mildly.solve(make_dataset(rows=200, env_id="Pendulum-v1"), out=tmp_path / "a", say=Stopping("rung"), **TINY)
    folder, tiny = str(tmp_path / "a" / "data"), ["--steps", "2", "--no-check", "--workers", "1"]
    resumed = ["solve", "--resume", str(tmp_path / "a"), "--evaluate"]
    for args in (["solve", folder, *tiny, "--evaluate"], resumed):
        assert "environment 'Pendulum-v1' has observations (3,) and actions (1,)" in refused.command(*args)
    assert "episodes must be at least 1, got 0" in refused.command(*resumed, "--episodes", "0")
    monkeypatch.setitem(sys.modules, "gymnasium", None)
    assert "gymnasium is not installed" in refused.command("solve", folder, *tiny, "--evaluate")
    assert not (tmp_path / "a" / "runs").exists()


def test_an_evaluation_that_fails_leaves_the_policy_and_the_card(tmp_path, monkeypatch):
    def fails(*args: object, **options: object) -> None:
        raise MildlyError("the simulation is unstable")

    monkeypatch.setattr("mildly.portfolio.solve.run_policy", fails)
    data = pick_episodes(load_dataset("pendulum-mixed"), np.arange(10)).save(tmp_path / "log")
    with pytest.raises(MildlyError, match="unstable"):
        mildly.solve(data, out=tmp_path / "solved", evaluate=True, **{**TINY, "steps": 2})
    assert all((tmp_path / "solved" / name).exists() for name in SAME)
    assert not (tmp_path / "solved" / "evaluation.json").exists()


# The command


def test_the_command_reads_a_table_and_groups_by_a_column(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    lines = ["day,crew,x,u,reward"]
    random = np.random.default_rng(0)
    for day in range(18):
        lines += [f"{day},{day % 3},{random.normal():.3f},{random.uniform(-1, 1):.3f},{day % 3}" for _ in range(8)]
    Path("log.csv").write_text("\n".join(lines) + "\n")
    reading = ["--obs", "x", "--action", "u", "--action-low", "-1", "--action-high", "1", "--episode", "day"]
    work = ["--steps", "2", "--by", "crew", "--no-check", "--json"]
    assert main(["solve", "log.csv", *reading, *work, "--workers", "1", "--out", "solved"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["group"] for each in found["choice"]["grading"]["held"]] == ["crew 0", "crew 1", "crew 2"]
    assert found["best"] in LEARNERS
    Path("log.csv").unlink()  # the folder has all that is needed
    assert main(["solve", "--resume", "solved", "--workers", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == found


def saved(tmp_path: Path, **options: Any) -> str:
    data = make_dataset(**options)
    return str(data.save(tmp_path / f"log-{len(data)}"))


def test_wrong_uses_are_refused(tmp_path, refused, solved):
    fine = saved(tmp_path, rows=200)
    tiny = ["--steps", "2", "--no-check", "--workers", "1"]
    assert "one single episode" in refused.command("solve", saved(tmp_path, rows=10), *tiny)
    few = refused.command("solve", saved(tmp_path, rows=50), *tiny)
    assert "has 5 episodes; 10 are needed" in few
    assert "--episode COLUMN" in few
    assert "exclude each other" in refused.command("solve", fine, "--steps", "2", "--minutes", "3")
    assert "minutes must be positive" in refused.command("solve", fine, "--minutes", "0")
    assert "steps must be at least 1" in refused.command("solve", fine, "--steps", "0")
    assert "workers must be at least 1" in refused.command("solve", fine, "--workers", "0")
    assert "holdout must leave two" in refused.command("solve", fine, *tiny, "--holdout", "0.01")
    assert "gamma must be in [0, 1)" in refused.command("solve", fine, *tiny, "--gamma", "1")
    assert "--groups must be at least 3" in refused.command("solve", fine, *tiny, "--groups", "2")
    assert "names no environment" in refused.command("solve", fine, *tiny, "--evaluate")
    assert "--resume" in refused.command("solve", fine, *tiny, "--out", str(solved.path))
    assert "not an empty folder" in refused.command("solve", fine, *tiny, "--out", str(tmp_path))
    assert "nothing was begun here" in refused.command("solve", "--resume", str(tmp_path))
    assert "SET must be given" in refused.command("solve")


def test_data_that_training_would_go_wrong_on_are_refused_with_what_was_found(tmp_path, refused):
    ends = np.ones(200, bool)
    arrays = {name: np.asarray(getattr(log(), name)) for name in ("observations", "actions", "next_observations")}
    meta = log().meta
    huge = Dataset.from_arrays(
        **arrays, rewards=np.full(200, 1e9), terminated=~ends, truncated=np.asarray(log().truncated), meta=meta
    )
    said = refused.command("solve", str(huge.save(tmp_path / "huge")), "--steps", "2")
    assert "Rewards are larger than 1,000,000" in said
    assert "Divide the rewards" in said
    last = Dataset.from_arrays(**arrays, rewards=np.ones(200), terminated=ends, truncated=~ends, meta=meta)
    said = refused.command("solve", str(last.save(tmp_path / "last")), "--steps", "2", "--no-check")
    assert "every row is terminal" in said


def test_a_log_that_has_changed_is_not_gone_on_with(tmp_path, refused, monkeypatch):
    monkeypatch.chdir(tmp_path)
    log().save("log")
    with pytest.raises(Stopped):
        mildly.solve("log", out="solved", say=Stopping("rung 1"), **TINY)
    make_dataset(rows=200, seed=1).save("other")
    Path("log").rename("old")
    Path("other").rename("log")
    refused(lambda: mildly.resume_solve("solved"), "is not the log that this was begun with")


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("solve.json", {"seed": "0"}),
        ("solve.json", {"labels": ["a", 1]}),
        ("solve.json", {"plan": {"rungs": []}}),
        ("solve.json", {"format": 99}),
        ("rungs.json", {"rungs": [{"steps": 1, "values": {}, "failed": {}, "kept": ["../.."]}]}),
        ("rungs.json", {"rungs": [{"steps": 1, "values": {"iql": 3}, "failed": {}, "kept": ["iql"]}]}),
        ("evaluation.json", {"iql": ["much"]}),
    ],
)
def test_files_that_cannot_be_ours_are_told(solved, tmp_path, refused, name, changes):
    shutil.copytree(solved.path, tmp_path / "solved")
    path = tmp_path / "solved" / name
    values = json.loads(path.read_text()) if path.exists() else {}
    values.pop("digest", None)
    path.write_text(json.dumps(values | changes))
    refused(lambda: mildly.resume_solve(tmp_path / "solved", workers=1), f"{name}: ")


def test_a_budget_that_is_too_small_says_which_is_enough_and_leaves_nothing(tmp_path, refused):
    log().save(tmp_path / "log")
    said = refused.command("solve", str(tmp_path / "log"), "--minutes", "0.001", "--no-check", "--workers", "1")
    assert "minutes are too few" in said
    assert "is enough" in said


@pytest.mark.slow
def test_minutes_are_kept_and_the_plan_is_recorded(tmp_path):
    import time

    began = time.monotonic()
    found = mildly.solve(log(), minutes=6, out=tmp_path / "solved", groups=3, check=False)
    assert time.monotonic() - began < 1.1 * 360
    assert json.loads((found.path / "solve.json").read_text())["plan"] == json.loads(json.dumps(found.plan.to_json()))
