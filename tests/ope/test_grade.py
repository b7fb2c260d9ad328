"""Estimators graded on a log whose answers are known, and on one that is built to defeat them."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from logs import EPISODES, PERIODS, periods

import mildly
from mildly.cli import main
from mildly.data.dataset import FIELDS, Dataset, Meta
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.data.select import pick_episodes
from mildly.errors import MildlyError
from mildly.ope.estimators import Estimate
from mildly.ope.grade import Held, grade, grading
from mildly.ope.groups import clusters, column_labels, group, habits
from mildly.ope.settings import Settings

QUICK = Settings(steps=400, density_steps=150, hidden_dims=(32,), replications=100)


def test_a_log_of_several_policies_grades_fqe_well():
    found = grade(periods(), groups=PERIODS, estimators=["fqe"], gamma=0.8, settings=QUICK)
    assert [each.episodes for each in found.held] == [EPISODES] * PERIODS
    fqe = found.grades["fqe"]
    assert fqe.rank_correlation == pytest.approx(1.0)
    assert fqe.error < found.guess_error / 2
    assert fqe.failure == ""
    assert found.best == "fqe"
    assert "Trust fqe most" in found.verdict()


def test_a_log_built_to_defeat_fqe_ends_in_a_verdict_that_says_so():
    """What the periods earned has a reason that no column shows."""
    settings = dataclasses.replace(QUICK, steps=150, density_steps=50)
    found = grade(periods(hidden=True), groups=PERIODS, gamma=0.8, settings=settings)
    assert not found.alike
    assert all(one.failure for one in found.grades.values())
    assert all(one.weight == 0 for one in found.grades.values())
    assert found.best is None
    assert "Every estimator fails on this log" in found.verdict()


@pytest.mark.parametrize("gamma", [-0.5, 1.0, 1.2])
def test_a_discount_with_which_returns_need_not_be_finite_is_refused_before_any_work(gamma, tmp_path):
    with pytest.raises(MildlyError, match=rf"gamma must be in \[0, 1\), got {gamma}"):
        grade(periods(), groups=PERIODS, estimators=["wis"], gamma=gamma, settings=QUICK, out=tmp_path)
    assert not list(tmp_path.iterdir())


def test_fits_of_other_episodes_or_of_other_settings_are_not_taken_over(tmp_path):
    data, few = periods(), {"estimators": ["wis"], "gamma": 0.8, "out": tmp_path / "out"}
    settings = dataclasses.replace(QUICK, density_steps=5)
    numbers = np.arange(len(data.episodes())) % 3
    first = grade(data, by="crew", labels=numbers, settings=settings, **few)
    assert grade(data, by="crew", labels=numbers, settings=settings, **few).held == first.held
    for labels, other in (((numbers + 1) % 3, settings), (numbers, dataclasses.replace(settings, density_steps=6))):
        with pytest.raises(MildlyError, match="--out"):
            grade(data, by="crew", labels=labels, settings=other, **few)


def test_picked_episodes_have_the_fingerprint_of_their_content(tmp_path):
    data = periods()
    one, other = (pick_episodes(data, np.array(chosen)) for chosen in ([0, 2], [0, 3]))
    assert len({each.meta.fingerprint for each in (data, one, other)}) == 3
    columns = [getattr(one, name) for name in FIELDS]
    assert Dataset.from_arrays(*columns, meta=Meta("again")).meta.fingerprint == one.meta.fingerprint
    assert Dataset.load(one.save(tmp_path / "one")).meta.fingerprint == one.meta.fingerprint


def test_groups_by_another_name_need_labels(tmp_path):
    with pytest.raises(MildlyError, match="groups by 'crew' need labels"):
        grade(periods(), by="crew", estimators=["wis"], settings=QUICK, out=tmp_path)


def held(truth, guess=0.0, half=0.1, **values):
    estimates = {name: Estimate(value, value - half, value + half) for name, value in values.items()}
    return Held("g", 5, Estimate(truth, truth - 0.1, truth + 0.1), guess, estimates, 0.9)


def test_grades_by_hand():
    rows = [held(1.0, 3.0, good=1.2, flat=2.0), held(2.0, 2.5, good=2.2, flat=2.0), held(3.0, 2.0, good=3.0, flat=2.0)]
    found = grading("it", "time", 0.9, rows)
    good, flat = found.grades["good"], found.grades["flat"]
    assert good.bias == pytest.approx(0.4 / 3)
    assert good.error == pytest.approx(np.sqrt(0.08 / 3))
    assert good.rank_correlation == pytest.approx(1.0)
    assert good.interval_coverage == pytest.approx(1 / 3)  # 0.1 and 0.1 allow 0.141
    assert found.guess_error == pytest.approx(np.sqrt((4 + 0.25 + 1) / 3))
    assert "rank correlation nan" in flat.failure
    assert (good.weight, flat.weight) == (1.0, 0.0)


def test_weights_are_inverse_squared_errors_of_those_that_passed():
    rows = [held(float(i), 5.0, one=i + 0.1, two=i + 0.2, bad=5.0 - 3 * i) for i in range(4)]
    found = grading("it", "time", 0.9, rows)
    assert found.grades["one"].weight == pytest.approx(0.8)
    assert found.grades["two"].weight == pytest.approx(0.2)
    assert found.grades["bad"].weight == 0.0
    assert found.best == "one"


def test_an_estimator_without_numbers_fails_for_its_reason():
    none = Estimate(float("nan"), float("nan"), float("nan"), doubts=("no density",))
    rows = [dataclasses.replace(held(float(i), one=float(i)), estimates={"wis": none}) for i in range(3)]
    found = grading("it", "time", 0.9, rows)
    assert found.grades["wis"].failure == "no density"
    assert json.loads(json.dumps(found.to_json()))["grades"]["wis"]["error"] is None


def test_groups_that_earned_alike_grade_nothing():
    rows = [held(1.0 + 0.01 * i, 1.0, one=1.0 + 0.01 * i) for i in range(4)]
    found = grading("it", "time", 0.9, rows)
    assert found.alike
    assert "earned alike" in found.verdict()
    assert found.best is None
    assert found.grades["one"].weight == 0.0
    assert found.grades["one"].failure == "not graded: the groups earned alike"


# Groups


def test_groups_of_time_are_stretches_that_cover_the_log():
    found = group(periods(), "time", 5)
    assert np.array_equal(np.concatenate([each.episodes for each in found]), np.arange(PERIODS * EPISODES))
    assert [len(each.episodes) for each in found] == [8] * 5


def test_clusters_find_the_policies_that_acted():
    data = periods()
    nearest = clusters(habits(data), PERIODS, np.random.default_rng(0))
    counts = np.stack([np.bincount(own, minlength=PERIODS) for own in nearest.reshape(PERIODS, EPISODES)])
    assert counts.max(axis=1).sum() >= 0.9 * PERIODS * EPISODES  # their noise hides a few
    assert len(set(counts.argmax(axis=1).tolist())) == PERIODS


def test_a_column_of_the_log_makes_groups(tmp_path, capsys):
    rows = ["episode,shift,x,u,reward"]
    random = np.random.default_rng(0)
    for episode in range(12):
        rows += [f"{episode},{episode % 3},{random.normal():.4f},{random.uniform(-1, 1):.4f},{episode % 3}"] * 4
    path = tmp_path / "log.csv"
    path.write_text("\n".join(rows) + "\n")
    options = ["--obs", "x", "--action", "u", "--reward", "reward", "--episode", "episode"]
    bounds = ["--action-low", "-1", "--action-high", "1"]
    work = ["--steps", "3", "--density-steps", "3", "--hidden-dims", "4", "--estimators", "fqe"]
    assert main(["ope", "grade", str(path), "--by", "shift", *options, *bounds, *work]) == 0
    out = capsys.readouterr().out
    assert all(f"shift {i}" in out for i in range(3))
    assert "guessing" in out


CREWS = ["anna", "bob", "carl", "anna", "", "bob", "carl", "anna"]


@pytest.mark.parametrize("name", ["log.csv", "log.parquet", "runs"])
def test_groups_may_have_names(name, tmp_path):
    """A log of one file, or of a file for each episode; who was there in the fifth episode nobody knows."""
    columns = ("episode", "crew", "x", "u", "reward")
    rows = [dict(zip(columns, (i, crew, 0.5, 0.1, 1.0), strict=True)) for i, crew in enumerate(CREWS) for _ in range(4)]
    path, parts = tmp_path / name, {tmp_path / name: rows}
    if name == "runs":
        path.mkdir()
        parts = {path / f"run_{i}.csv": rows[4 * i : 4 * i + 4] for i in range(len(CREWS))}
    for file, part in parts.items():
        write = pyarrow.parquet.write_table if file.suffix == ".parquet" else pyarrow.csv.write_csv
        write(pyarrow.Table.from_pylist(part), file)
    reading = ImportOptions(obs="x", action="u", reward="reward", episode="episode", scaled=True)
    data = load_dataset(path, reading)
    labels = column_labels(str(path), reading, "crew", data)
    assert labels.tolist() == CREWS
    found = {each.name: each.episodes.tolist() for each in group(data, "crew", 3, labels=labels)}
    assert found == {"crew anna": [0, 3, 7], "crew bob": [1, 5], "crew carl": [2, 6]}


def test_a_column_to_group_by_that_is_not_there_is_told(tmp_path):
    path = tmp_path / "log.csv"
    path.write_text("crew,x,u,reward\n" + "anna,1,0.5,1\n" * 3)
    reading = ImportOptions(obs="x", action="u", scaled=True)
    with pytest.raises(MildlyError, match="no column fits --by 'operator'"):
        column_labels(str(path), reading, "operator", load_dataset(path, reading))


def test_a_column_of_the_observation_is_known_without_the_file():
    data = periods()
    named = dataclasses.replace(data, meta=dataclasses.replace(data.meta, observation_names=("x",)))
    labels = column_labels("nowhere", None, "x", named)
    assert np.array_equal(labels, data.observations[::15, 0])


def test_a_column_that_is_not_there_is_told_with_what_groups_can_be_made_of(tmp_path, refused):
    data = periods()
    named = dataclasses.replace(data, meta=dataclasses.replace(data.meta, name="room", observation_names=("temp",)))
    told = "'room' has no column 'nope' to group by. --by can be time, cluster or temp."
    for command in (("ope", "grade"), ("solve", "--steps", "4")):
        said = refused.command(*command, str(named.save(tmp_path / command[0])), "--by", "nope")
        assert told in said
        assert "--obs" not in said
    refused(lambda: mildly.solve(named, steps=4, by="nope", out=tmp_path / "out"), told)
    assert "--by can be time or cluster." in refused.command("ope", "grade", "pendulum-mixed", "--by", "nope")
    (tmp_path / "log.csv").write_text("x,u,reward\n" + "1,0.5,1\n2,-0.5,1\n" * 40)
    raw = ("--obs", "x", "--action", "u", "--action-low", "-1", "--action-high", "1", "--time-limit", "8")
    said = refused.command("ope", "grade", str(tmp_path / "log.csv"), *raw, "--by", "nope")
    assert "--by 'nope'" in said
    assert "The columns are x, u, reward." in said


@pytest.mark.parametrize(
    ("options", "words"),
    [(("--groups", "2"), "--groups must be at least 3"), (("--estimators", "fqa"), "unknown estimator 'fqa'")],
)
def test_wrong_words_are_refused(options, words, refused):
    assert words in refused.command("ope", "grade", "pendulum-mixed", *options)


def test_settings_without_sense_are_refused():
    for name, value in (("seed", -1), ("steps", 0), ("clip", 1.0)):
        with pytest.raises(MildlyError, match=name):
            Settings(**{name: value})


def test_a_log_of_too_few_episodes_is_refused(tmp_path, refused):
    data = periods()
    from mildly.data.select import pick_episodes

    pick_episodes(data, np.arange(4)).save(tmp_path / "few")
    assert "grading needs 3" in refused.command("ope", "grade", str(tmp_path / "few"))
