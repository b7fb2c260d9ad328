"""Rows that are missing inside episodes: an episode stays one, and what is not known of it is known to be unknown."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import make_dataset
from hypothesis import given, settings, strategies as st
from slow_log import Row, logs, transitions
from test_assemble import assembled, cuts

from mildly.cli import main
from mildly.data.batches import Windows
from mildly.data.check import check
from mildly.data.check.inspection import Inspection
from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.select import best_episodes
from mildly.errors import MildlyError

DROP = ImportOptions(drop_bad_rows=True)


def slow_episodes(rows: list[Row]) -> list[list[Row]]:
    """The transitions of each episode, good ones and bad ones."""
    found: list[list[Row]] = [[]]
    for row in transitions(rows):
        found[-1].append(row)
        if row.ends:
            found.append([])
    return [episode for episode in found if episode]


def is_bad(row: Row) -> bool:
    used = row.obs if row.terminated and not all(map(math.isfinite, row.next_obs or [])) else row.next_obs
    return not all(map(math.isfinite, [*row.obs, *row.action, row.reward, *(used or [])]))


@settings(max_examples=250)
@given(logs(), cuts)
def test_episodes_keep_identity_length_and_return(rows: list[Row], cuts: set[int]) -> None:
    episodes = [episode for episode in slow_episodes(rows) if not all(map(is_bad, episode))]
    if not episodes:
        with pytest.raises(MildlyError, match="no row"):
            assembled(rows, cuts, DROP)
        return
    data = assembled(rows, cuts, DROP)
    kept = [sum(not is_bad(row) for row in episode) for episode in episodes]
    assert [rows.stop - rows.start for rows in data.episodes()] == kept
    assert data.episode_lengths().tolist() == [len(episode) for episode in episodes]
    returns = [sum(row.reward if math.isfinite(row.reward) else math.nan for row in episode) for episode in episodes]
    np.testing.assert_allclose(data.episode_returns(), returns)
    assert (data.gaps is None) == (kept == [len(episode) for episode in episodes])


@settings(max_examples=100)
@given(logs(), cuts)
def test_segments_are_what_follows_without_a_gap(rows: list[Row], cuts: set[int]) -> None:
    try:
        data = assembled(rows, cuts, DROP)
    except MildlyError:
        return
    inside = {row for episode in data.episodes() for row in range(episode.start, episode.stop)}
    assert sorted(inside) == list(range(len(data)))
    for segment in data.segments():
        ends = (data.terminated | data.truncated)[segment]
        assert ends.tolist() == [False] * (len(ends) - 1) + [True]
    assert {episode.stop for episode in data.episodes()} <= {segment.stop for segment in data.segments()}


@given(st.lists(st.sampled_from(range(30)), max_size=12))
def test_what_is_missing_never_changes_the_other_transitions(missing: list[int]) -> None:
    """The multiset of good transitions is that of the clean twin without those that touch a missing row."""
    rows = [Row([float(i), 1.0], [i / 40, 0.0], float(i), truncated=i % 10 == 9) for i in range(30)]
    clean = assembled(rows)
    hurt = [
        Row([math.nan, 1.0], r.action, r.reward, r.terminated, r.truncated) if i in missing else r
        for i, r in enumerate(rows)
    ]
    touched = [i in missing or i + 1 in missing for i in range(30)]
    expected = [
        (s, n)
        for s, n in zip(clean.observations[:, 0], clean.next_observations[:, 0], strict=True)
        if not touched[int(s)]
    ]
    if not expected:
        return
    data = assembled(hurt, options=DROP)
    assert list(zip(data.observations[:, 0], data.next_observations[:, 0], strict=True)) == expected
    whole = dict(zip((episode.start // 9 for episode in clean.episodes()), clean.episode_returns(), strict=True))
    for episode, value in zip(data.episodes(), data.episode_returns(), strict=True):
        assert value == pytest.approx(whole[int(data.observations[episode.start, 0]) // 10])  # no reward was lost


def gappy() -> Dataset:
    """Three episodes of six rows: whole; a row lost; a reward lost."""
    rows = [Row([float(i), 1.0], [0.0, 0.0], 1.0, terminated=i % 6 == 5, next_obs=[i + 1.0, 1.0]) for i in range(18)]
    rows[8].action[0] = math.nan
    rows[14].reward = math.nan
    return assembled(rows, options=DROP, verify=True)


def test_gaps_are_saved_and_loaded_and_part_of_the_fingerprint(tmp_path: Path) -> None:
    data = gappy()
    loaded = Dataset.load(data.save(tmp_path / "set"))
    assert loaded.episodes() == data.episodes() == [slice(0, 6), slice(6, 11), slice(11, 16)]
    np.testing.assert_array_equal(loaded.episode_returns(), [6.0, 6.0, np.nan])
    assert loaded.known_returns().tolist() == [6.0, 6.0]
    assert loaded.meta.fingerprint == data.meta.fingerprint
    (tmp_path / "set" / "gaps.npy").unlink()
    with pytest.raises(MildlyError, match="its content is not what was saved"):
        Dataset.load(tmp_path / "set")


@pytest.mark.parametrize(
    "table",
    [
        np.zeros((0, 3)),
        np.zeros((2, 2)),
        np.array([[6.0, 0, 0], [16, 0, 0], [11, 0, 0]]),
        np.array([[6.0, 0, 0], [17, 0, 0]]),
        np.array([[5.0, 0, 0], [16, 0, 0]]),
        np.array([[6.0, -1, 0], [16, 0, 0]]),
        np.array([[6.5, 0, 0], [16, 0, 0]]),
        np.array([[np.nan, 0, 0], [16, 0, 0]]),
        np.array([[6, 0, 0], [16, 0, 0]]),
    ],
    ids=str,
)
def test_a_table_of_gaps_that_does_not_fit_is_refused(tmp_path: Path, table: np.ndarray) -> None:
    folder = gappy().save(tmp_path / "set")
    np.save(folder / "gaps.npy", table)
    with pytest.raises(MildlyError, match=r"gaps\.npy"):
        Dataset.load(folder, verify=False)


def test_a_set_without_gaps_has_no_such_file(tmp_path: Path) -> None:
    folder = make_dataset().save(tmp_path / "set")
    assert not (folder / "gaps.npy").exists()
    assert Dataset.load(folder).gaps is None


def test_best_episodes_are_judged_whole_and_unknown_returns_come_last() -> None:
    """With negative rewards a fragment would look best."""
    rows = [Row([float(i), 1.0], [0.0, 0.0], -1.0, terminated=i % 6 == 5, next_obs=[i + 1.0, 1.0]) for i in range(24)]
    for i in (7, 8, 9):
        rows[i].action[0] = math.nan
    rows[14].reward = math.nan
    rows[20].reward = -0.5
    data = assembled(rows, options=DROP, verify=True)
    best = best_episodes(data, 0.25)
    assert best.observations[:, 0].tolist() == [18, 19, 20, 21, 22, 23]
    assert best_episodes(data, 0.75).episode_returns().tolist() == [-6.0, -6.0, -5.5]
    assert best_episodes(data, 0.75).episode_lengths().tolist() == [6, 6, 6]
    assert "The returns of 1 episodes are not known, since rewards are missing." in best.meta.notes


def test_windows_do_not_cross_a_gap_and_count_the_episodes_steps() -> None:
    data = gappy()
    windows = Windows(data, 200, 4, torch.device("cpu"))
    batch = windows.sample(torch.Generator().manual_seed(0))
    numbers = batch.observations[:, :, 0]
    inside = batch.mask[:, 1:] == 1
    assert (numbers[:, 1:] - numbers[:, :-1])[inside].unique().tolist() == [1.0]


def test_info_and_check_speak_of_whole_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = gappy().save(tmp_path / "set")
    assert main(["data", "info", str(folder)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "episodes 3 (2 with gaps, 1 of unknown return)" in shown
    assert "episode length: mean (min, max) 6.0 (6, 6)" in shown
    inspection = Inspection(Dataset.load(folder), thorough=True)
    assert inspection.steps.tolist() == [6, 6, 6]
    assert inspection.lengths.tolist() == [6, 5, 5]


@pytest.mark.parametrize(("rows", "words"), [((3,), "--fill interpolate"), (tuple(range(2, 14)), "--drop-bad-rows")])
def test_the_check_recommends_filling_short_gaps_and_dropping_long_ones(rows: tuple[int, ...], words: str) -> None:
    data = make_dataset()
    data.observations[list(rows)] = np.nan
    (finding,) = (found for found in check(data) if found.code == "nan")
    assert words in finding.advice.split(" (")[0]
