"""Rows out of order or there twice, wrong next observations, ends that are none; and who knows a time limit."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked import changed, codes, found, made, problem
from test_check_values import smooth

from mildly.data.dataset import FIELDS, Dataset, Meta
from mildly.data.registry import load_dataset


def moved(data: Dataset, rows: Any) -> Dataset:
    return changed(data, **{name: getattr(data, name)[rows] for name in FIELDS})


def test_swapped_rows_are_told_as_a_pair_and_not_as_missing_ends() -> None:
    data = made()
    finding = problem(moved(data, np.r_[:50, 51, 50, 52:2000]), "rows-swapped")
    assert finding.evidence == "In rows 50, 51."
    assert found(moved(data, np.r_[:50, 51, 50, 52:2000]), "episode-jumps") is None


def test_missing_rows_are_told_by_the_row_before_the_gap() -> None:
    assert "first in row 49" in problem(moved(made(), np.r_[:50, 60:2000]), "episode-jumps").evidence


def test_a_row_that_is_there_twice_is_told_once() -> None:
    twice = moved(made(), np.r_[:50, 49, 50:2000])
    assert "1 copy in row 50 (of 2,001 rows)" in problem(twice, "row-repeated").evidence
    assert found(twice, "episode-jumps") is found(twice, "rows-swapped") is None


def test_a_world_that_stands_still_repeats_no_rows() -> None:
    data = made()
    still = moved(data, np.repeat(np.arange(1000), 2))
    assert found(still, "row-repeated") is None


def test_a_next_observation_that_is_wrong_in_one_column_is_told_with_it() -> None:
    data = made()
    following = np.array(data.next_observations)
    following[[70, 200], 2] += 3.0
    finding = problem(changed(data, next_observations=following), "next-observation-wrong")
    assert finding.evidence.startswith("Column 2 in rows 70, 200, of 1,950 steps")
    assert found(changed(data, next_observations=following), "episode-jumps") is None


def test_an_outlier_does_not_hide_a_jump_in_its_column() -> None:
    data = made()
    observations, following = np.array(data.observations), np.array(data.next_observations)
    observations[300, 2] = following[299, 2] = 1e10
    following[70, 2] += 0.5
    finding = problem(changed(data, observations=observations, next_observations=following), "next-observation-wrong")
    assert "row 70" in finding.evidence


def test_sorting_is_advised_only_where_it_helps() -> None:
    data = made()
    order = np.random.default_rng(0).permutation(len(data))
    assert "sort the log by episode and step" in problem(moved(data, order), "rows-shuffled").advice
    sampled = moved(made([40] * 500), np.sort(np.random.default_rng(0).choice(20_000, 2000, replace=False)))
    shuffled = moved(sampled, order)
    assert "sorting would not help" in problem(shuffled, "rows-shuffled").advice


# Ends


def flagged(data: Dataset, row: int, name: str) -> Dataset:
    flags = np.array(getattr(data, name))
    flags[row] = True
    return changed(data, **{name: flags})


def restarted() -> Dataset:
    """Slow sensors that begin elsewhere with every episode, and a log without next observations."""
    data = smooth()
    starts = np.random.default_rng(3).uniform(-1, 1, (20, 4)) * [8, 90, 2, 40]
    observations = (data.observations + np.repeat(starts, 200, axis=0)).astype(np.float32)
    return changed(data, observations=observations, next_observations=np.roll(observations, -1, axis=0))


@pytest.mark.parametrize("name", ["terminated", "truncated"])
def test_a_flag_in_the_middle_of_an_episode_is_told_with_its_row(name: str) -> None:
    data = moved(restarted(), np.r_[:4000, :4000])  # 40 episodes
    assert found(data, "end-continues") is None
    finding = problem(flagged(data, 1033, name), "end-continues")
    assert finding.severity == "warning"
    assert finding.evidence.startswith("In row 1033, of 40 ends")


def test_ends_of_a_process_that_goes_on_are_no_mistakes() -> None:
    assert found(smooth(), "end-continues") is None


# Time limits and scores


def test_one_episode_that_ends_at_its_environments_limit_is_enough() -> None:
    lengths = [90, 200, 140, 60]
    assert found(made(lengths, terminated=True), "time-limit-as-terminal") is None
    known = made(lengths, terminated=True, meta=Meta("mine", env_id="Pendulum-v1"))
    finding = problem(known, "time-limit-as-terminal")
    assert finding.severity == "error"
    assert "1 of 4 terminated episodes lasts exactly 200 steps" in finding.evidence
    assert "It is the time limit of Pendulum-v1." in finding.evidence
    assert "--time-limit 200" in finding.advice
    other = made([90, 190, 140, 60], terminated=True, meta=Meta("mine", env_id="Pendulum-v1"))
    assert found(other, "time-limit-as-terminal") is None


def test_an_environment_that_only_a_file_names_is_not_imported(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "planted_by_a_file.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(str(tmp_path))
    for env_id in ("planted_by_a_file:Env-v0", "planted_by_a_file/Env-v0", "Unknown-v7", "\x00", "a:b:c"):
        assert found(made([200] * 2, terminated=True, meta=Meta("mine", env_id=env_id)), "episode-too-long") is None
    assert "planted_by_a_file" not in sys.modules


def test_episodes_of_many_times_the_limit_are_told_with_their_score() -> None:
    meta = Meta("mine", env_id="Pendulum-v1", reference_min=0.0, reference_max=10.0)
    finding = problem(made([2000, 200, 200], meta=meta), "episode-too-long")
    assert finding.severity == "warning"
    assert "1 of 3 episodes, the longest of 2,000 steps, and scores reach" in finding.evidence
    assert found(made([300, 200, 200], meta=meta), "episode-too-long") is None  # somewhat longer
    hopper = made([12_000, 900], meta=Meta("hopper-medium-v2"))
    assert "the horizon of hopper-medium-v2's task" in problem(hopper, "episode-too-long").what


def test_scores_beyond_sense_are_told() -> None:
    data = made()
    best = float(data.episode_returns().max())
    sane = changed(data, meta=Meta("mine", reference_min=0.0, reference_max=best / 2))
    assert found(sane, "score-beyond-sense") is None
    finding = problem(
        changed(data, meta=Meta("mine", reference_min=0.0, reference_max=best / 20)), "score-beyond-sense"
    )
    assert finding.severity == "warning"
    assert "to 2,000" in finding.evidence


def test_healthy_data_have_none_of_these() -> None:
    assert codes(made(), "warning") == codes(restarted(), "warning") == set()


def table(path: Path, ticks: Sequence[Sequence[float]]) -> Dataset:
    """Episodes of a log with a column of these numbers."""
    random = np.random.default_rng(0)
    rows = [
        f"{episode},{tick:g},{random.normal():.3f},{random.uniform(-1, 1):.3f},{random.normal():.3f}"
        for episode, some in enumerate(ticks)
        for tick in some
    ]
    path.write_text("\n".join(["episode,tick,x,u,reward", *rows]) + "\n")
    return load_dataset(path, action="u", scaled=True)


def test_a_column_that_counts_the_rows_of_each_episode_may_be_a_clock(tmp_path: Path) -> None:
    data = table(tmp_path / "log.csv", [range(1, 31)] * 4)
    assert data.meta.observation_names == ("tick", "x")
    finding = problem(data, "row-counter")
    assert finding.severity == "warning"
    assert finding.what == "'tick' counts the rows of each episode, as a clock does."
    assert finding.evidence == "It rises by 1 from row to row and starts anew at 1 in each of 4 episodes (of 116 rows)."
    assert "`--time tick`" in finding.advice
    assert found(load_dataset(tmp_path / "log.csv", action="u", scaled=True, time="tick"), "row-counter") is None
    assert found(load_dataset(tmp_path / "log.csv", action="u", scaled=True, obs="x"), "row-counter") is None


def test_a_clock_of_parts_of_a_second_is_seen_as_well(tmp_path: Path) -> None:
    data = table(tmp_path / "log.csv", [np.arange(500) * 0.05] * 4)
    assert "rises by 0.05 from row to row and starts anew at 0" in problem(data, "row-counter").evidence


@pytest.mark.parametrize(
    "ticks",
    [
        [range(100)] * 2,
        [range(start, start + 30) for start in range(4)],
        [range(30), range(30), [*range(15), *range(16, 31)]],
        [range(30), range(30), range(0, 60, 2)],
        [[20.0, 20.1, 20.3] * 10] * 4,
        [[5.0] * 30] * 4,
    ],
    ids=["few episodes", "other starts", "a row left out", "other steps", "a sensor", "constant"],
)
def test_a_column_that_does_anything_else_is_a_sensor(tmp_path: Path, ticks: Sequence[Sequence[float]]) -> None:
    assert found(table(tmp_path / "log.csv", ticks), "row-counter") is None
