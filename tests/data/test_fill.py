"""Filling missing cells: against a slow rule, one column and one gap at a time, however the rows come in blocks."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from slow_log import Row
from test_assemble import assembled, cuts, in_blocks

from mildly.data.dataset import Dataset
from mildly.data.fill import FillPlan, filled, parse_fill
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.words import counted

METHODS = st.sampled_from(["previous", "interpolate", 7.5, None])


def slow_fill(values: list[float], ends: list[bool], method: Any, limit: int) -> list[float]:
    """One column."""
    found, start = list(values), 0
    for stop in [i + 1 for i, end in enumerate(ends) if end] + [len(values)]:
        i = start
        while i < stop:
            if not math.isnan(values[i]):
                i += 1
                continue
            j = i
            while j < stop and math.isnan(values[j]):
                j += 1
            left = values[i - 1] if i > start else math.nan
            right = values[j] if j < stop else math.nan
            for k in range(i, j):
                if j - i > limit or method is None:
                    continue
                if method == "previous":
                    found[k] = left
                elif method == "interpolate":
                    found[k] = left + (right - left) * (k - i + 1) / (j - i + 1)
                else:
                    found[k] = method
            i = j
        start = stop
    return found


@st.composite
def holey(draw: st.DrawFn) -> list[Row]:
    rows = []
    for i in range(draw(st.integers(1, 25))):
        cells = [math.nan if draw(st.integers(0, 2)) == 0 else float(i + 10 * column) for column in range(4)]
        end = draw(st.sampled_from([None] * 8 + ["terminated", "truncated"]))
        rows.append(Row(cells[:2], cells[2:], math.nan, end == "terminated", end == "truncated"))
    return rows


@settings(max_examples=400)
@given(holey(), cuts, st.tuples(METHODS, METHODS, METHODS, METHODS), st.integers(1, 4))
def test_blocks_give_what_the_slow_rule_gives(
    rows: list[Row], cuts: set[int], methods: tuple[Any, ...], limit: int
) -> None:
    notes: list[str] = []
    blocks = list(filled(in_blocks(rows, cuts), FillPlan(methods[:2], methods[2:], limit), notes))
    got = np.concatenate([np.concatenate([block.observations, block.actions], axis=1) for block in blocks])
    ends = [row.ends for row in rows]
    assert len(got) == len(rows)
    before = np.array([[*row.obs, *row.action] for row in rows])
    for column, method in enumerate(methods):
        expected = slow_fill(before[:, column].tolist(), ends, method, limit)
        np.testing.assert_allclose(got[:, column], expected, rtol=1e-6)
    assert np.concatenate([block.terminated for block in blocks]).tolist() == [row.terminated for row in rows]
    assert np.isnan(np.concatenate([block.rewards for block in blocks])).all()  # a reward is never filled
    count = int(np.isnan(before).sum() - np.isnan(got).sum())
    assert not (count or np.isnan(got).any()) or notes[0].startswith(
        f"Filled: {counted(count, 'missing cell')}, in gaps"
    )


def test_filling_saves_transitions_that_dropping_loses() -> None:
    rows = [Row([float(i), 1.0], [i / 20, 0.0], 1.0, truncated=i == 19) for i in range(20)]
    rows[5].obs[0] = rows[11].action[1] = math.nan
    dropped = assembled(rows, options=ImportOptions(drop_bad_rows=True), verify=True)
    kept = assembled(rows, options=ImportOptions(fill="interpolate"), verify=True)
    assert (len(dropped), len(kept)) == (16, 19)
    assert kept.observations[5, 0] == 5.0
    assert kept.gaps is None
    assert kept.meta.notes[0] == "Filled: 2 missing cells, in gaps of at most 5 rows."


def test_what_is_not_filled_is_still_refused() -> None:
    rows = [Row([float(i), 1.0], [0.0, 0.0], 1.0) for i in range(20)]
    for i in range(5, 12):
        rows[i].obs[0] = math.nan
    with pytest.raises(MildlyError, match="NaN or infinite"):
        assembled(rows, options=ImportOptions(fill="previous"), verify=True)
    assert len(assembled(rows, options=ImportOptions(fill="previous", max_fill=7), verify=True)) == 19
    both = assembled(rows, options=ImportOptions(fill="previous", drop_bad_rows=True), verify=True)
    assert both.episode_lengths().tolist() == [19]


def test_columns_by_name_and_pattern() -> None:
    plan = parse_fill("temp*=interpolate, valve=previous,0", 3, ["temp_in", "temp_out", "flow"], ["valve"], "log.csv")
    assert plan == FillPlan(("interpolate", "interpolate", 0.0), ("previous",), 3)
    assert parse_fill("flow=-1.5e1", None, ["temp", "flow"], ["valve"], "x").observations == (None, -15.0)


@pytest.mark.parametrize(
    ("text", "limit", "words"),
    [
        ("mean", None, "--fill takes previous, interpolate or a number"),
        ("flow=", None, "--fill takes previous"),
        ("speed=0", None, "no column fits --fill 'speed'. Known: flow, valve"),
        ("nan", None, "--fill takes previous"),
        ("0", 0, "max-fill must be at least 1, got 0"),
    ],
)
def test_mistakes_are_told(text: str, limit: int | None, words: str) -> None:
    with pytest.raises(MildlyError) as caught:
        parse_fill(text, limit, ["flow"], ["valve"], "log.csv")
    assert words in str(caught.value)


def test_columns_of_a_table_are_filled_by_name_and_keep_their_names(tmp_path: Path) -> None:
    lines = ["temp,flow,valve,reward", "20,1,0.1,1", ",,0.2,1", "22,3,0.3,1", "23,4,,1", "24,5,0.5,1"]
    (tmp_path / "log.csv").write_text("\n".join(lines) + "\n")
    options = {"action": "valve", "scaled": True}
    data = load_dataset(tmp_path / "log.csv", fill="temp=interpolate,valve=previous,9", **options)
    assert data.observations.tolist() == [[20, 1], [21, 9], [22, 3], [23, 4]]
    np.testing.assert_allclose(data.actions[:, 0], [0.1, 0.2, 0.3, 0.3])
    assert (data.meta.observation_names, data.meta.action_names) == (("temp", "flow"), ("valve",))
    loaded = Dataset.load(data.save(tmp_path / "set"))
    assert loaded.meta.observation_names == ("temp", "flow")
    with pytest.raises(MildlyError, match=r"no column fits --fill 'speed'. Known: temp, flow, valve"):
        load_dataset(tmp_path / "log.csv", fill="speed=0", **options)


@pytest.mark.parametrize("method", ["previous", "interpolate", "7"])
def test_a_filled_observation_is_also_the_next_one_of_the_row_before(tmp_path: Path, method: str) -> None:
    states = np.arange(60, dtype=float).reshape(20, 3)
    ends = np.arange(20) % 10 == 9
    after = np.concatenate([states[1:], states[-1:]])
    after[9] = 99.0  # the first episode's last state is no row
    gaps = [(3, 1), (4, 1), (10, 0), (10, 2), (15, 2)] if method != "7" else [(3, 1), (9, 0), (10, 2)]
    for row, column in gaps:
        states[row, column] = np.nan
        if not ends[row - 1]:
            after[row - 1, column] = np.nan
    if method != "7":
        states[10] = [30, 31, 32]  # nothing before it to fill it from
    arrays = {"observations": states, "actions": np.zeros((20, 1)), "rewards": np.zeros(20)}
    np.savez(tmp_path / "log.npz", **arrays, next_observations=after, terminals=np.zeros(20), timeouts=ends)
    data = load_dataset(tmp_path / "log.npz", fill=method)
    assert len(data) == 20
    inside = np.flatnonzero(~ends[:-1])
    np.testing.assert_array_equal(data.next_observations[inside], data.observations[inside + 1])
    assert data.next_observations[9].tolist() == [99, 99, 99]
    expected = {"previous": 7.0, "interpolate": 10.0, "7": 7.0}[method]
    assert data.observations[3, 1] == expected
