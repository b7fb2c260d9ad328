"""The tables and pictures of our own studies say what the runs of a sweep say."""

from __future__ import annotations

import importlib
import json
import statistics
import sys
from pathlib import Path

import pytest
from conftest import train_tiny

from mildly.evaluation.results import load_results

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
study = importlib.import_module("study")

SHORT = {"steps": 20, "eval_every": 10}


@pytest.fixture(scope="module")
def sweep(tmp_path_factory) -> Path:
    """Two settings of BC with two seeds each, one run of SAC."""
    root = tmp_path_factory.mktemp("sweep")
    for seed in (0, 1):
        train_tiny("bc", root / f"bc/pendulum-mixed/all/seed-{seed}", seed=seed, variant="all", **SHORT)
        best = root / f"bc/pendulum-mixed/best-tenth/seed-{seed}"
        train_tiny("bc", best, seed=seed, variant="best-tenth", best_episodes=0.1, **SHORT)
    train_tiny("sac", root / "sac/pendulum-mixed/seed-0", **SHORT)
    return root


def test_a_setting_is_a_variant_or_an_algorithm_or_both_where_both_differ(sweep):
    everything = study.grouped(load_results([sweep]))
    assert list(everything) == ["bc, all", "bc, best-tenth", "sac"]
    assert [len(row["pendulum-mixed"]) for row in everything.values()] == [2, 2, 1]
    assert list(study.grouped(load_results([sweep / "bc"]))) == ["all", "best-tenth"]
    assert list(study.grouped(load_results([sweep / "sac"]))) == ["sac"]


def test_the_table_holds_means_deviations_and_ranks(sweep):
    groups = study.grouped(load_results([sweep]))
    lines = [line.strip("| ").split(" | ") for line in study.table(groups).splitlines()[2:]]
    scores = {setting: [result.score for result in row["pendulum-mixed"]] for setting, row in groups.items()}
    ranked = sorted(scores, key=lambda setting: -statistics.mean(scores[setting]))
    for setting, cell, mean, rank in lines:
        assert cell.strip("*").startswith(f"{statistics.mean(scores[setting]):.1f}")
        assert mean == f"{statistics.mean(scores[setting]):.1f}"
        assert rank == f"{1 + ranked.index(setting):.1f}"
        assert cell.startswith("**") == (ranked[0] == setting)
        if len(scores[setting]) > 1:
            assert cell.strip("*").endswith(f"± {statistics.stdev(scores[setting]):.1f}")


def test_settings_are_ordered_beside_a_baseline_and_a_wrong_one_is_told(sweep):
    groups = study.grouped(load_results([sweep]))
    means = {name: statistics.mean(result.score for result in row["pendulum-mixed"]) for name, row in groups.items()}
    others = sorted(means.keys() - {"sac"}, key=lambda name: -means[name])
    assert list(study.beside(groups, "sac")) == ["sac", *others]
    with pytest.raises(SystemExit, match=r"no such setting: td3; there are bc, all, bc, best-tenth, sac"):
        study.beside(groups, "td3")


def test_a_hyperparameter_inside_a_group_can_be_drawn_against(tmp_path, monkeypatch, capsys):
    for mix in (0.1, 0.5):
        folder, variant = tmp_path / "runs" / f"sac/pendulum-mixed/{mix}", f"extras.return_mix={mix}"
        train_tiny("sac", folder, variant=variant, **{"extras.return_mix": mix}, **SHORT)
    found = study.curves(study.grouped(load_results([tmp_path / "runs"])), "extras.return_mix", "pendulum-mixed")
    assert {label: list(by_value) for label, by_value in found.items()} == {"": [0.1, 0.5]}
    picture, flags = tmp_path / "picture.png", ["--of", "extras.return_mix", "-o", str(tmp_path / "record.json")]
    monkeypatch.setattr(sys, "argv", ["study.py", str(tmp_path / "runs"), *flags, "--picture", str(picture)])
    study.main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| extras.return_mix=0.5 |" in capsys.readouterr().out


@pytest.mark.parametrize("flags", [[], ["--final", "--baseline", "sac"], ["--of", "batch_size"]])
def test_the_command_draws_and_records(sweep, tmp_path, monkeypatch, capsys, flags):
    picture, out = tmp_path / "picture.png", tmp_path / "record.json"
    where = sweep / "sac" if "--of" in flags else sweep  # the values of actions are in the second picture: BC has none
    monkeypatch.setattr(sys, "argv", ["study.py", str(where), *flags, "--picture", str(picture), "-o", str(out)])
    study.main()
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "| sac |" in capsys.readouterr().out
    records = json.loads(out.read_text())
    assert len(json.dumps(records)) > 100
    assert "returns" in out.read_text()
