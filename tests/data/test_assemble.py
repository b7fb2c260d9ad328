"""From rows to transitions: the blocks of `assemble` against the slow rules of `slow_log`, wherever the borders are."""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from slow_log import Row, assert_same, logs, steps_of, transitions

from mildly.data.assemble import Log, Memory, Sink, Steps, assemble, limited
from mildly.data.dataset import Dataset, Meta
from mildly.data.options import ImportOptions
from mildly.data.writer import Writer
from mildly.errors import MildlyError

cuts = st.sets(st.integers(0, 14))


def in_blocks(rows: list[Row], cuts: set[int]) -> Iterator[Steps]:
    """The rows with block borders at the cuts; two cuts beyond the end give no empty block, one at 0 does."""
    steps = steps_of(rows)
    borders = [0, *sorted(cut for cut in cuts if cut <= len(rows)), len(rows)]
    for start, stop in pairwise(borders):
        yield Steps(*(None if column is None else column[start:stop].copy() for column in steps))


def assembled(
    rows: list[Row],
    cuts: set[int] | None = None,
    options: ImportOptions | None = None,
    *,
    sink: Sink | None = None,
    verify: bool = False,
) -> Dataset:
    log = Log(Meta("log"), in_blocks(rows, cuts or set()), where="log.csv", scaled=True)
    return assemble(log, options or ImportOptions(), sink or Memory(), verify=verify)


def number_in(dataset: Dataset, words: str) -> int:
    """The number of rows that a note tells; 0 without such a note."""
    notes = [note for note in dataset.meta.notes if words in note]
    return int(re.search(r"([\d,]+) (row|episode)", notes[0])[1]) if notes else 0


@settings(max_examples=250)
@given(logs(), cuts, st.none() | st.integers(1, 6), st.booleans())
def test_any_flags_in_any_blocks_give_the_transitions_of_the_slow_rules(
    rows: list[Row], cuts: set[int], time_limit: int | None, drop: bool
) -> None:
    expected = transitions(rows, time_limit, drop)
    options = ImportOptions(time_limit=time_limit, drop_bad_rows=drop)
    if not expected:
        with pytest.raises(MildlyError, match=r"^log\.csv: no row"):
            assembled(rows, cuts, options)
        return
    dataset = assembled(rows, cuts, options)
    assert_same(dataset, expected)
    assert not (dataset.terminated & dataset.truncated).any()
    assert dataset.terminated[-1] or dataset.truncated[-1]
    if rows[0].next_obs is None:
        kept = transitions(rows, time_limit)
        assert number_in(dataset, "has no next observation") == len(rows) - len(kept)
        assert number_in(dataset, "NaN or infinite") == len(kept) - len(expected)


@settings(max_examples=15)
@given(logs(bad=False), cuts)
def test_the_fingerprint_does_not_depend_on_the_blocks_or_on_the_sink(rows: list[Row], cuts: set[int]) -> None:
    if not transitions(rows):
        return
    whole = assembled(rows, verify=True)
    assert assembled(rows, cuts, verify=True).meta.fingerprint == whole.meta.fingerprint
    with tempfile.TemporaryDirectory() as folder, Writer(Path(folder) / "set") as writer:
        written = assembled(rows, cuts, sink=writer, verify=True)
        assert written.meta.fingerprint == whole.meta.fingerprint
        writer.finish(written.meta)
        assert Dataset.load(Path(folder) / "set").meta == whole.meta


@given(logs(), cuts, st.integers(1, 6))
def test_a_task_s_horizon_keeps_terminal_rows_terminal(rows: list[Row], cuts: set[int], limit: int) -> None:
    step, expected = 0, []
    for row in rows:
        step += 1
        expected.append((row.terminated, row.truncated or step % limit == 0))
        step = 0 if row.ends else step
    blocks = list(limited(in_blocks(rows, cuts), limit))
    found = [pair for block in blocks for pair in zip(block.terminated, block.truncated, strict=True)]
    assert found == expected


# The same by hand


def plain(count: int) -> list[Row]:
    return [Row([i, i], [0.1, 0.2], 1.0) for i in range(count)]


def ends(dataset: Dataset) -> tuple[list[int], list[int]]:
    return np.flatnonzero(dataset.terminated).tolist(), np.flatnonzero(dataset.truncated).tolist()


def test_a_row_at_a_cut_off_lends_its_observation_to_the_row_before() -> None:
    rows = plain(6)
    rows[2].truncated = True
    dataset = assembled(rows)
    assert dataset.observations[:, 0].tolist() == [0, 1, 3, 4]
    assert dataset.next_observations[:, 0].tolist() == [1, 2, 4, 5]
    assert ends(dataset) == ([], [1, 3])
    assert "The last row of 2 episodes has no next observation" in dataset.meta.notes[0]


def test_a_terminal_row_is_kept_even_as_the_last() -> None:
    rows = plain(4)
    rows[1].terminated = rows[3].terminated = True
    dataset = assembled(rows)
    assert len(dataset) == 4
    assert ends(dataset) == ([1, 3], [])
    assert dataset.meta.notes == ()


@pytest.mark.parametrize("border", [1, 2, 3, 4])
def test_a_row_without_action_is_the_final_observation_of_its_episode(border: int) -> None:
    rows = plain(5)
    rows[2].action, rows[2].terminated = [math.nan, math.nan], True
    dataset = assembled(rows, {border})
    assert dataset.observations[:, 0].tolist() == [0, 1, 3]
    assert dataset.next_observations[:, 0].tolist() == [1, 2, 4]
    assert ends(dataset) == ([1], [2])


def test_a_time_limit_takes_back_the_ends_it_caused_and_leaves_falls_alone() -> None:
    rows = plain(17)
    for end in (3, 5, 14):  # four steps, then a fall after two, then one after nine
        rows[end].terminated = True
    for row in rows:
        row.next_obs = [9.0, 9.0]
    dataset = assembled(rows, options=ImportOptions(time_limit=4))
    assert ends(dataset) == ([5, 14], [3, 16])
    assert "Taken for cut off: 1 episode that ended for good after exactly 4 steps." in dataset.meta.notes


def test_a_final_observation_is_no_step_of_the_time_limit() -> None:
    rows = plain(5)
    rows[4].action, rows[4].terminated = [math.nan, math.nan], True
    assert ends(assembled(rows, options=ImportOptions(time_limit=4))) == ([], [3])
    assert ends(assembled(rows, options=ImportOptions(time_limit=5))) == ([3], [])


def test_a_row_before_a_bad_one_is_cut_off_and_the_episode_goes_on_behind_it() -> None:
    rows = plain(6)
    rows[3].reward = math.nan
    dataset = assembled(rows, options=ImportOptions(drop_bad_rows=True))
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 4]
    assert ends(dataset) == ([], [2, 3])
    assert dataset.episodes() == [slice(0, 4)]
    assert "Left out: 1 row with NaN or infinite values. Episodes go on behind such rows." in dataset.meta.notes


def test_a_terminal_row_before_a_bad_one_is_kept_with_its_own_observation_as_the_next() -> None:
    rows = plain(6)
    rows[2].terminated = True
    rows[3].obs = [math.nan, 3.0]
    dataset = assembled(rows, options=ImportOptions(drop_bad_rows=True), verify=True)
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 4]
    assert dataset.next_observations[:, 0].tolist() == [1, 2, 2, 5]
    assert ends(dataset) == ([2], [3])


def test_nothing_left_is_an_error_that_names_the_file() -> None:
    with pytest.raises(MildlyError, match=r"^log\.csv: no row has a next observation"):
        assembled(plain(1))


def test_what_the_user_says_stands_above_what_the_log_says() -> None:
    options = ImportOptions(name="mine", env="Pendulum-v1", reference_min=-5.0, reference_max=5.0, scaled=True)
    meta = assembled(plain(3), options=options).meta
    assert (meta.name, meta.env_id, meta.reference_min, meta.reference_max) == ("mine", "Pendulum-v1", -5.0, 5.0)


def test_numbers_too_large_for_float32_are_refused_without_a_warning() -> None:
    steps = steps_of(plain(3))._replace(rewards=np.array([0.0, 1e300, 0.0]))
    log = Log(Meta("log"), iter([steps]), where="log.csv", scaled=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(MildlyError, match=r"'rewards' has NaN or infinite values.*row 1.*SRC DST --drop-bad-rows"):
            assemble(log, ImportOptions(), Memory())


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"time_limit": 0}, "time-limit must be at least 1"),
        ({"action_low": (-1.0,)}, "action-low and action-high go together"),
        ({"reference_max": 1.0}, "reference-min and reference-max go together"),
        ({"reference_min": 1.0, "reference_max": 1.0}, "must differ"),
    ],
)
def test_options_that_contradict_themselves_are_refused(fields: dict[str, float], words: str) -> None:
    with pytest.raises(MildlyError, match=words):
        ImportOptions(**fields)
