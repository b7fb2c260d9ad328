"""Choosing among policies: held-out episodes, weights of estimators, verdicts, the page."""

from __future__ import annotations

import dataclasses
import html
import json
import re

import numpy as np
import pytest
from conftest import make_dataset, train_tiny
from logs import periods

import mildly
from mildly.actors import DeterministicActor
from mildly.cli import main
from mildly.cli.choose import print_choice
from mildly.data.select import held_out, without_episodes
from mildly.ope.choose import Candidate, combined, gain_over, verdict
from mildly.ope.coverage import Coverage
from mildly.ope.estimators import Estimate, disagreement
from mildly.ope.evaluate import judging_data, plan_of
from mildly.ope.grade import Held, grading
from mildly.ope.settings import Settings
from mildly.policy import Policy
from mildly.report.choice import render
from mildly.training.offline import resume, train

QUICK = Settings(steps=500, density_steps=5, hidden_dims=(32,), replications=100)
TINY = {"hidden_dims": (8, 8), "batch_size": 8, "quiet": True, "eval_every": 0, "check": False}


# Held-out episodes


def test_whole_episodes_are_held_out_by_the_seed():
    data = make_dataset(rows=100)
    held = held_out(data, 0.2, seed=0)
    assert len(held) == 2
    assert held == held_out(data, 0.2, seed=0)
    assert any(held != held_out(data, 0.2, seed=seed) for seed in range(1, 4))
    kept = without_episodes(data, held)
    rows = np.concatenate([np.arange(100)[episode] for i, episode in enumerate(data.episodes()) if i not in held])
    assert np.array_equal(kept.observations, data.observations[rows])
    assert len(kept.episodes()) == 8
    assert "2 of 10 episodes are held out" in kept.meta.notes[-1]


def test_a_training_never_sees_what_it_holds_out_and_says_which(tmp_path):
    data = make_dataset(rows=100)
    run = train("bc", data, steps=5, out=tmp_path / "run", holdout=0.3, seed=3, normalize_observations=True, **TINY)
    held = json.loads((run.path / "run.json").read_text())["held_out"]
    assert held == held_out(data, 0.3, seed=3)
    kept = without_episodes(data, held)
    seen = mildly.load_policy(run.path).normalizer
    assert seen.mean.numpy() == pytest.approx(kept.observations.mean(axis=0), rel=1e-5)
    assert seen.mean.numpy() != pytest.approx(data.observations.mean(axis=0), rel=1e-5)


def test_a_resumed_run_holds_the_same_episodes_out(tmp_path):
    data = make_dataset(rows=100)
    options = {"holdout": 0.3, "checkpoint_every": 5, "log_every": 5, **TINY}
    whole = train("bc", data, steps=10, out=tmp_path / "whole", **options)
    part = train("bc", data, steps=5, out=tmp_path / "part", **options)
    resume(part.path, steps=10, dataset=data, quiet=True)
    for name in ("metrics.jsonl", "policy/weights.safetensors"):
        assert (whole.path / name).read_bytes() == (part.path / name).read_bytes()
    assert part.plan().held_out == whole.plan().held_out


@pytest.mark.parametrize("share", ["1", "-0.1", "2"])
def test_shares_that_make_no_sense_are_refused(share, refused):
    said = refused.command("train", "bc", "--dataset", "pendulum-mixed", "--holdout", share)
    assert "holdout must be in [0, 1)" in said


def test_one_episode_cannot_be_held_out(refused):
    refused(lambda: held_out(make_dataset(rows=10), 0.2, 0), "one single episode", "--episode")


def plan_with(tmp_path, name, data, **options):
    return plan_of(train("bc", data, steps=1, out=tmp_path / name, **options, **TINY).path)


def test_candidates_are_judged_by_episodes_that_none_has_seen(tmp_path):
    data = make_dataset(rows=200)
    one, two = (plan_with(tmp_path, name, data, holdout=0.4, seed=seed) for name, seed in (("a", 0), ("b", 1)))
    common = sorted(set(one.held_out) & set(two.held_out))
    assert 2 <= len(common) < 8
    judging, notes = judging_data({"a": one, "b": two}, data)
    assert len(judging.episodes()) == len(common)
    first = data.episodes()[common[0]]
    assert np.array_equal(judging.observations[:10], data.observations[first])
    assert "episodes that were held out of training" in notes[0]


def test_a_run_without_a_holdout_is_told_that_its_estimates_are_too_good(tmp_path):
    data = make_dataset(rows=100)
    judging, notes = judging_data({"a": plan_with(tmp_path, "a", data)}, data)
    assert judging is data
    assert notes[0].endswith("all 10 episodes that it is judged by, so that its estimates are too good")
    assert "train with --holdout, such as 0.2" in notes[1]


def test_runs_with_and_without_a_holdout_are_both_told_what_they_have_seen(tmp_path):
    data = make_dataset(rows=100)
    judging, notes = judging_data(
        {"whole": plan_with(tmp_path, "whole", data), "part": plan_with(tmp_path, "part", data, holdout=0.2)}, data
    )
    assert judging is data
    whole, part, advice = notes
    assert whole.startswith("whole: was trained on all 10 episodes")
    assert part.startswith("part: was trained on 8 of the 10 episodes")
    assert "all with one --seed and one --holdout" in advice


def test_logs_that_a_run_was_fine_tuned_on_count_as_seen(tmp_path):
    data, further = make_dataset(rows=200), make_dataset(rows=200, seed=1)
    run = train("sac", data, steps=2, holdout=0.2, out=tmp_path / "run", **TINY)
    assert judging_data({"a": plan_of(run.path)}, further) == (further, [])
    mildly.finetune(run, dataset=further, logged=data, steps=2, eval_every=0, quiet=True)
    judging, notes = judging_data({"a": plan_of(run.path)}, further)
    assert judging is further
    assert notes[0].startswith("a: was trained on all 20 episodes")
    assert len(judging_data({"a": plan_of(run.path)}, data)[0].episodes()) == 4


def test_nothing_in_common_is_refused(tmp_path, refused):
    data = make_dataset(rows=200)
    plans = {f"{seed}": plan_with(tmp_path, f"{seed}", data, holdout=0.1, seed=seed) for seed in range(3)}
    refused(lambda: judging_data(plans, data), "0 of the episodes were held out of every training", "one --seed")


# Estimates together


def test_estimates_are_weighted_and_those_that_are_no_numbers_left_out():
    none = Estimate(float("nan"), float("nan"), float("nan"), doubts=("no density",))
    found = combined({"a": Estimate(1, 0, 2), "b": Estimate(5, 4, 7), "c": none}, {"a": 0.3, "b": 0.1, "c": 0.6})
    assert (found.value, found.low, found.high) == pytest.approx((2.0, 1.0, 3.25))
    assert found.doubts == ("c: no density",)


def test_fqe_and_dr_that_exclude_each_other_are_a_doubt():
    far, near = ({"fqe": Estimate(1, 0, 2), "dr": Estimate(value, value - 1, value + 1)} for value in (5, 2))
    assert combined(far, {"fqe": 0.5, "dr": 0.5}).doubts == (*disagreement(far),) != ()
    assert combined(near, {"fqe": 0.5, "dr": 0.5}).doubts == ()


def test_a_gain_has_the_errors_of_both():
    gain = gain_over(Estimate(10, 7, 12), Estimate(4, 3, 8))
    assert (gain.value, gain.low, gain.high) == pytest.approx((6.0, 6 - 5.0, 6 + np.hypot(2, 1)))


# Verdicts


def candidate(value, half=1.0, covered=1.0, doubts=((),)):
    one = Estimate(value, value - half, value + half)
    share = np.arange(100) < 100 * covered
    found = {
        f"estimator {i}": Estimate(value, value - half, value + half, doubts=each) for i, each in enumerate(doubts)
    }
    return Candidate("runs/a", one, gain_over(one, Estimate(10.0, 9.5, 10.5)), found, Coverage(share, 1.0 - share, 0.5))


def graded(good=True):
    values = [0.0, 1.0, 2.0, 3.0]
    held = [
        Held("g", 5, Estimate(v, v - 0.1, v + 0.1), 1.5, {"fqe": Estimate(v if good else 9.0, 0, 1)}, 0.9)
        for v in values
    ]
    return grading("log", "time", 0.9, held)


@pytest.mark.parametrize(
    ("given", "grades", "deploy", "words"),
    [
        (candidate(15.0), graded(), True, "Deploy runs/a"),
        (candidate(15.0), None, True, "No grading on this log"),
        (candidate(10.5), graded(), False, "Not distinguishable from the log"),
        (
            candidate(10.5, covered=0.52),
            graded(),
            False,
            "test it in small steps, and with care: in 48 % of the states",
        ),
        (candidate(5.0), graded(), False, "earns less than the log"),
        (candidate(15.0, covered=0.4), graded(), False, "60 % of the states"),
        (candidate(15.0, doubts=(("it moves",), ("one episode",))), graded(), False, "doubts itself"),
        (candidate(15.0, doubts=(("it moves",), ())), graded(), True, "Deploy runs/a"),
        (candidate(15.0), graded(good=False), False, "every estimator fails on this log"),
        (candidate(15.0, covered=0.52), graded(good=False), False, "with care: in 48 % of the states"),
        (candidate(float("nan")), graded(), False, "no estimator gives a number"),
    ],
)
def test_verdicts_in_plain_words(given, grades, deploy, words):
    run, said = verdict([given], grades)
    assert (run == "runs/a") is deploy
    assert words in said


# All of it


def aiming(tmp_path, name, aim):
    """A saved policy that always does the same."""
    actor = DeterministicActor(1, 1, ())
    actor.net[0].weight.data.zero_()
    actor.net[0].bias.data.fill_(float(np.arctanh(aim)))
    Policy(actor).save(tmp_path / name)
    return str(tmp_path / name)


def test_the_better_policy_is_chosen_and_the_worse_is_not(tmp_path):
    runs = [aiming(tmp_path, "down", -0.5), aiming(tmp_path, "up", 0.5)]
    found = mildly.choose(runs, periods(noise=0.7), gamma=0.8, grade=False, settings=QUICK)
    assert [each.run for each in found.candidates] == runs[::-1]
    assert found.deploy == runs[1]
    assert found.candidates[1].gain.high < 0
    assert found.weights == {"fqe": 1.0}


def test_a_better_policy_that_the_data_do_not_cover_is_not_deployed(tmp_path):
    """Where x is low, this log has seen no upward action."""
    found = mildly.choose([aiming(tmp_path, "up", 0.5)], periods(), gamma=0.8, grade=False, settings=QUICK)
    assert found.deploy is None
    assert "what the data hardly show" in found.verdict


def test_the_command_prints_a_verdict_and_writes_a_page(tmp_path, capsys):
    periods().save(tmp_path / "log")
    runs = [aiming(tmp_path, "<b>down", -0.5), aiming(tmp_path, "up", 0.5)]
    work = ["--steps", "5", "--density-steps", "5", "--hidden-dims", "4", "--groups", "3", "--gamma", "0.8"]
    command = ["choose", *runs, "--dataset", str(tmp_path / "log"), *work, "-o", str(tmp_path / "page.html")]
    assert main(command) == 0
    out = capsys.readouterr().out
    assert "gain over the log" in out
    assert any(word in out for word in ("Deploy", "deploy", "Not distinguishable"))
    page = (tmp_path / "page.html").read_text()
    assert "Verdict" in page
    assert "&lt;b&gt;down" in page
    assert "<b>down" not in page
    assert page.count("<svg") == 3
    assert "<script" not in page


@pytest.mark.parametrize(
    ("hidden", "reason"),
    [(False, "No estimator could be graded on this log"), (True, "No estimator passed on this log")],
)
def test_where_no_estimator_has_a_grade_screen_and_page_say_that_the_values_are_fqe_s_alone(
    tmp_path, capsys, hidden, reason
):
    log = periods(hidden)
    if not hidden:  # what was earned is luck, and the same in all periods
        log = dataclasses.replace(log, rewards=np.random.default_rng(0).normal(size=len(log)).astype(np.float32))
    few = dataclasses.replace(QUICK, steps=5, hidden_dims=(4,))
    found = mildly.choose([aiming(tmp_path, "up", 0.5)], log, gamma=0.8, groups=4, settings=few)
    print_choice(found)
    out, shown = capsys.readouterr().out, render(found)
    said = f"{reason}: the values are fqe's alone, which no grade backs."
    assert said in out
    assert "Estimators by weight" not in out
    assert said in html.unescape(shown)
    weights = dict(re.findall(r"<tr><td>(\w+)</td>(?:<td>[^<]*</td>){4}<td>([\d.]+)</td><td>", shown))
    assert weights == {"fqe": "1.00", "dr": "0.00", "wis": "0.00", "model": "0.00"}


def test_json_of_a_choice_is_plain(tmp_path, capsys):
    periods().save(tmp_path / "log")
    run = aiming(tmp_path, "up", 0.5)
    work = ["--steps", "5", "--density-steps", "5", "--hidden-dims", "4", "--no-grade", "--json"]
    assert main(["choose", run, "--dataset", str(tmp_path / "log"), *work]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["candidates"][0]["run"] == run
    assert found["grading"] is None


def test_wrong_uses_are_refused(tmp_path, refused):
    run = aiming(tmp_path, "up", 0.5)
    assert "no candidates" in refused.command("choose", "--dataset", "pendulum-mixed")
    assert "given twice" in refused.command("choose", run, run, "--dataset", "pendulum-mixed")
    assert "observations of 1" in refused.command("choose", run, "--dataset", "pendulum-mixed")
    assert "no policy here" in refused.command("choose", "nowhere", "--dataset", "pendulum-mixed")


def test_candidates_of_different_discounts_need_one_to_be_judged_by(tmp_path, refused):
    data = periods()
    runs = [
        train("td3-bc", data, steps=1, out=tmp_path / f"{gamma}", gamma=gamma, **TINY).path for gamma in (0.9, 0.99)
    ]
    refused(lambda: mildly.choose(runs, data), "different discounts (0.9, 0.99)", "--gamma")


def test_a_run_s_fingerprint_is_that_of_the_whole_log(tmp_path):
    data = make_dataset(rows=100)
    plan = plan_with(tmp_path, "a", data, holdout=0.2)
    assert plan.data.fingerprint == data.meta.fingerprint
    assert dataclasses.replace(plan, held_out=[]) != plan
    assert train_tiny("bc", tmp_path / "b", steps=1).plan().held_out == []
