"""The clock of a table: what it says of the rows' order, of gaps and of uneven steps, and by line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Refused
from hypothesis import given, settings, strategies as st

from mildly.cli import main
from mildly.data.dataset import Dataset
from mildly.data.findings import Remark
from mildly.data.formats import table_file
from mildly.data.registry import load_dataset

START = datetime(2024, 5, 1, 22, 30)
FORMS = {
    "seconds": lambda t: f"{60 * t}",
    "fractions": lambda t: f"{60 * t + 0.25:.2f}",
    "since 1970, ms": lambda t: f"{1_700_000_000_000 + 60_000 * t}",
    "since 1970, ns": lambda t: f"{1_700_000_000_000_000_000 + 60_000_000_000 * t}",
    "ISO": lambda t: (START + timedelta(minutes=t)).isoformat(),
    "with a blank": lambda t: (START + timedelta(minutes=t)).isoformat(sep=" "),
    "with a zone": lambda t: (START + timedelta(minutes=t)).replace(tzinfo=UTC).isoformat(),
    "German": lambda t: f"{START + timedelta(minutes=t):%d.%m.%Y %H:%M}",
    "time of day": lambda t: f"{START + timedelta(minutes=t):%H:%M:%S}",
}


def log(
    path: Path, times: list[str] | list[int], *, name: str = "time", more: dict[str, list[object]] | None = None
) -> Path:
    """A table with these times, whose sensor x counts the rows."""
    columns: dict[str, list[object]] = {name: list(times), "x": list(range(len(times)))}
    columns |= {"u": [i % 3 / 2 - 0.5 for i in range(len(times))], "r": [1] * len(times), **(more or {})}
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def remarks(data: Dataset) -> dict[str, Remark]:
    found = [Remark.of(note) for note in data.meta.notes]
    return {remark.code: remark for remark in found if remark.code != "import"}


def minutes(*gone: int, count: int = 60) -> list[int]:
    return [t for t in range(count) if t not in gone]


@pytest.mark.parametrize("form", FORMS)
def test_a_clock_in_any_writing_that_runs_evenly_says_nothing(tmp_path: Path, form: str) -> None:
    data = load_dataset(log(tmp_path / "log.csv", [FORMS[form](t) for t in minutes(count=200)]))
    assert remarks(data) == {}
    assert (len(data), len(data.episodes())) == (199, 1)
    note = "'time' is the clock: its median step is 60 s, and an episode breaks where it pauses for more than 10 min"
    assert any(found.startswith(note) for found in data.meta.notes)
    assert data.observation_size == 1


@pytest.mark.parametrize("form", FORMS)
def test_two_swapped_rows_and_many_deleted_ones_are_noticed_by_line(tmp_path: Path, form: str) -> None:
    times = minutes(*range(100, 140), count=200)
    times[10], times[11] = times[11], times[10]
    data = load_dataset(log(tmp_path / "log.csv", [FORMS[form](t) for t in times]))
    found = remarks(data)
    assert sorted(found) == ["rows-swapped", "time-gaps"]
    swapped, gaps = found["rows-swapped"], found["time-gaps"]
    assert (swapped.severity, gaps.severity) == ("warning", "warning")
    assert swapped.evidence == "By 'time': lines 12 and 13."
    assert "between lines 101 and 102 (41 min); about 40 rows are missing in the longest" in gaps.evidence
    assert data.observations[data.truncated, 0].tolist() == [98, 158]
    assert data.observations[8:13, 0].tolist() == [8, 9, 11, 10, 12]  # x counts the rows of the file


def test_rows_that_are_out_of_order_by_more_than_one_place_break_the_episode(tmp_path: Path) -> None:
    times = minutes()
    times[10:20] = [*times[15:20], *times[10:15]]
    data = load_dataset(log(tmp_path / "log.csv", [60 * t for t in times]))
    back = remarks(data)["time-goes-back"]
    assert back.evidence == "'time' goes back 1 time in 59 steps: at line 17 (by 9 min)."
    assert back.advice.startswith("Sort the rows by 'time'")
    assert data.observations[data.truncated, 0].tolist() == [13, 58]


def test_no_transition_leads_over_a_gap_or_back_in_time(tmp_path: Path) -> None:
    times = minutes(*range(20, 45))
    times[5], times[6] = times[6], times[5]
    data = load_dataset(log(tmp_path / "log.csv", [60 * t for t in times]))
    elapsed = [
        times[int(b)] - times[int(a)]
        for a, b in zip(data.observations[:, 0], data.next_observations[:, 0], strict=True)
    ]
    assert set(elapsed) == {1}


def test_a_break_is_told_in_the_command_that_checks_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    times = minutes(*range(500, 2500), count=4000)
    times[3], times[4] = times[4], times[3]
    path = log(tmp_path / "log.csv", [FORMS["ISO"](t) for t in times])
    assert main(["data", "check", str(path)]) in (0, 1)
    told = capsys.readouterr().out
    assert "rows-swapped" in told
    assert "lines 5 and 6" in told
    assert "about 2,000 rows are missing" in told
    assert main(["data", "check", str(path), "--max-gap", "inf"]) in (0, 1)
    assert "time-gaps" not in capsys.readouterr().out


def test_what_was_found_survives_a_conversion(tmp_path: Path) -> None:
    from mildly.data.convert import convert

    path = log(tmp_path / "log.csv", [60 * t for t in minutes(*range(20, 45))])
    before = remarks(load_dataset(path))
    assert list(before) == ["time-gaps"]
    for target in ("set", "set.npz", "set.parquet", "set.hdf5"):
        convert(path, tmp_path / target)
        assert remarks(load_dataset(tmp_path / target)) == before


def test_the_user_s_limit_of_a_gap_is_the_one_that_counts(tmp_path: Path) -> None:
    path = log(tmp_path / "log.csv", [60 * t for t in minutes(5, 20, 21, 22)])
    assert len(load_dataset(path).episodes()) == 1
    assert "4 min" in remarks(load_dataset(path))["time-uneven"].evidence
    assert len(load_dataset(path, max_gap=200).episodes()) == 2
    assert len(load_dataset(path, max_gap=60).episodes()) == 3
    assert "pauses for more than 60 s (--max-gap" in str(load_dataset(path, max_gap=60).meta.notes)


def test_a_limit_without_a_clock_is_refused(tmp_path: Path, refused: Refused) -> None:
    path = log(tmp_path / "log.csv", minutes(), name="y")
    refused(load_dataset, "no column is a clock", "--max-gap", "--time", source=path, max_gap=3)
    refused(load_dataset, "max-gap must be positive", source=path, max_gap=0)
    assert len(load_dataset(path, max_gap=3, time="y").episodes()) == 1


def test_rows_logged_twice_and_uneven_steps_are_told_by_line(tmp_path: Path) -> None:
    times = [60 * t for t in minutes(30)]
    times.insert(7, times[6])
    found = remarks(load_dataset(log(tmp_path / "log.csv", times)))
    assert sorted(found) == ["time-repeats", "time-uneven"]
    assert found["time-repeats"].evidence.endswith("have the time of the row before in 'time': line 9.")
    assert (
        "1 of 59 steps of 'time' differ from the median of 60 s by more than half of it: before line 33 (120 s)."
        in (found["time-uneven"].evidence)
    )


def test_a_clock_coarser_than_the_steps_is_no_fault(tmp_path: Path) -> None:
    found = remarks(load_dataset(log(tmp_path / "log.csv", [t // 10 for t in range(100)])))
    assert [remark.severity for remark in found.values()] == ["info"]
    assert list(found) == ["time-coarse"]


def test_a_row_without_a_time_is_told_and_kept(tmp_path: Path) -> None:
    times: list[object] = [60 * t for t in minutes()]
    times[4], times[5] = "", ""
    data = load_dataset(log(tmp_path / "log.csv", times))  # type: ignore[arg-type]
    assert remarks(data)["time-missing"].evidence == "'time' is empty 2 times: lines 6, 7."
    assert list(remarks(data)) == ["time-missing"]
    assert len(data) == 59


def test_many_rows_out_of_order_are_an_error(tmp_path: Path) -> None:
    shuffled = np.random.default_rng(0).permutation(200)
    data = load_dataset(log(tmp_path / "log.csv", shuffled.tolist(), name="step"))
    assert remarks(data)["time-goes-back"].severity == "error"


# Lines


def test_lines_are_those_that_an_editor_shows(tmp_path: Path) -> None:
    rows = [f'{t},{t},1,{t % 3 - 1},1,"two\nlines"' for t in range(20)]
    rows[12], rows[13] = rows[13], rows[12]
    text = "# a comment\n# another\ntime,x,y,u,r,remark\ns,m,m,N,,\n\n" + "\n".join(rows)
    (tmp_path / "log.csv").write_text(text)
    data = load_dataset(tmp_path / "log.csv")
    lines = [text.splitlines().index(f'{row},{row},1,{row % 3 - 1},1,"two') + 1 for row in (13, 12)]
    assert remarks(data)["rows-swapped"].evidence == f"By 'time': lines {lines[0]} and {lines[1]}."
    assert remarks(data)["units-row"].evidence == "line 4: time = s, x = m, y = m, u = N."
    assert [data.place(row) for row in (11, 12, 13)] == [
        f"line {lines[0] - 2}",
        *(f"line {line}" for line in lines[::-1]),
    ]


def test_in_a_folder_the_file_is_named_and_each_begins_anew(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    for name in ("a", "b", "c"):
        times = minutes()
        if name != "a":
            times[8], times[9] = times[9], times[8]
        log(tmp_path / "runs" / f"{name}.csv", times)
    found = remarks(load_dataset(tmp_path / "runs"))
    assert list(found) == ["rows-swapped"]
    assert found["rows-swapped"].evidence == "By 'time': b.csv lines 10 and 11, c.csv lines 10 and 11."


# Parquet


@pytest.mark.parametrize(
    "kind", [pa.timestamp("ms"), pa.timestamp("ns", "UTC"), pa.date64(), pa.duration("s"), pa.string(), pa.int32()]
)
def test_times_of_parquet_files(tmp_path: Path, kind: pa.DataType) -> None:
    times = [86_400 * t for t in minutes(*range(20, 45))]
    stored = {
        pa.string(): [(START + timedelta(seconds=t)).isoformat() for t in times],
        pa.int32(): times,
        pa.duration("s"): times,
        pa.date64(): [1000 * t for t in times],
        pa.timestamp("ms"): [1000 * t for t in times],
        pa.timestamp("ns", "UTC"): [10**9 * t for t in times],
    }[kind]
    table = {"time": pa.array(stored, kind), "x": times, "u": [t % 3 - 1.0 for t in range(len(times))], "r": times}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    found = remarks(load_dataset(tmp_path / "log.parquet"))
    assert list(found) == ["time-gaps"]
    assert "between rows 19 and 20 (26 days)" in found["time-gaps"].evidence


def test_text_that_is_no_time_is_no_clock(tmp_path: Path) -> None:
    table = {"time": ["noon"] * 3, "x": [1.0, 2, 3], "u": [-1.0, 1, 0], "r": [0.0] * 3}
    pq.write_table(pa.table(table), tmp_path / "log.parquet")
    data = load_dataset(tmp_path / "log.parquet")
    assert "not used = time." in data.meta.notes[0]
    with pytest.raises(Exception, match="column 'time' cannot be read as times"):
        load_dataset(tmp_path / "log.parquet", time="time")


def test_a_cell_that_is_no_time_is_named_with_its_line(tmp_path: Path, refused: Refused) -> None:
    times = [FORMS["ISO"](t) for t in minutes(count=100_000)]
    times[-3] = "soon"
    path = log(tmp_path / "log.csv", times)
    with mock.patch.object(table_file, "_CSV_BLOCK", 10_000):  # whose first block does not show it
        refused.dataset(path, "column 'time' holds 'soon' in line 99999, expected a date and time")


# Columns that are no clocks


def test_a_column_t_that_is_a_temperature_is_an_observation(tmp_path: Path) -> None:
    times = np.random.default_rng(0).normal(20, 1, 60).round(3).tolist()
    data = load_dataset(log(tmp_path / "log.csv", times, name="T"))
    assert data.observation_size == 2
    assert (
        remarks(data)["no-clock"].what
        == "Column 'T' goes up and down, so that it is no clock and may be an observation."
    )
    with_names = log(tmp_path / "named.csv", times, name="t", more={"obs_0": [0] * 60})
    assert "not used = t" in load_dataset(with_names).meta.notes[0]


def test_a_column_called_time_that_is_no_clock_is_not_used(tmp_path: Path) -> None:
    times = np.random.default_rng(0).normal(20, 1, 60).round(3).tolist()
    data = load_dataset(log(tmp_path / "log.csv", times))
    assert "it is not used" in remarks(data)["no-clock"].what
    assert "not used = time" in data.meta.notes[0]


@pytest.mark.parametrize("name", ["t", "step", "time"])
@pytest.mark.parametrize("size", [60, 200, 10_000])
def test_a_clock_that_starts_anew_without_an_episode_column_begins_an_episode(
    tmp_path: Path, name: str, size: int
) -> None:
    path = log(tmp_path / "log.csv", [*range(20), *range(15), *range(30)], name=name)
    with mock.patch.object(table_file, "_CSV_BLOCK", size):
        data = load_dataset(path)
    assert [rows.stop - rows.start for rows in data.episodes()] == [19, 14, 29]
    found = remarks(data)["time-starts-anew"]
    assert (found.severity, found.what.endswith(": 3 episodes.")) == ("info", True)
    assert "lines 22, 37" in found.evidence


def test_a_clock_may_start_anew_with_the_episode(tmp_path: Path) -> None:
    more: dict[str, list[object]] = {"run": [0] * 20 + [1] * 15}
    data = load_dataset(log(tmp_path / "log.csv", [*range(20), *range(15)], more=more))
    assert remarks(data) == {}
    ends: dict[str, list[object]] = {"done": [0] * 19 + [1] + [0] * 15}
    assert remarks(load_dataset(log(tmp_path / "other.csv", [*range(20), *range(15)], more=ends))) == {}


def test_within_an_episode_that_is_numbered_a_clock_never_starts_anew(tmp_path: Path) -> None:
    more: dict[str, list[object]] = {"run": [0] * 35}
    found = remarks(load_dataset(log(tmp_path / "log.csv", [*range(20), *range(15)], more=more)))
    assert list(found) == ["time-goes-back"]


# Any blocks


@settings(max_examples=30)
@given(st.lists(st.integers(0, 40), min_size=3, max_size=40), st.integers(20, 300))
def test_the_same_is_found_wherever_the_blocks_end(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], size: int
) -> None:
    path = log(tmp_path_factory.mktemp("logs") / "log.csv", [0, 1, *times], more={"run": [0] * (len(times) + 2)})
    whole = load_dataset(path, time="time", max_gap=5)
    with mock.patch.object(table_file, "_CSV_BLOCK", size):
        parts = load_dataset(path, time="time", max_gap=5)
    np.testing.assert_array_equal(whole.truncated, parts.truncated)
    np.testing.assert_array_equal(whole.observations, parts.observations)
    for code in ("rows-swapped", "time-goes-back", "time-gaps", "time-repeats", "time-coarse"):
        a, b = (remarks(data).get(code, Remark("info", code, "")) for data in (whole, parts))
        assert (a.what, a.evidence.split(": ")[-1].split("; ")[0]) == (
            b.what,
            b.evidence.split(": ")[-1].split("; ")[0],
        )


def put_back(times: list[int]) -> list[int]:
    """The rows in order, but for what is out of place by more than one row."""
    rows, last = list(range(len(times))), len(times) - 1
    step = np.median([b - a for a, b in pairwise(times) if b > a] or [np.nan])
    for i in range(1, len(times)):
        alone = (i == 1 or times[i - 2] < times[i]) and (i == last or times[i - 1] < times[i + 1])
        if 0 < times[i - 1] - times[i] <= 1.5 * step and alone:
            rows[i - 1], rows[i] = i, i - 1
    return rows


@settings(max_examples=60)
@given(st.lists(st.integers(0, 30), min_size=3, max_size=40), st.integers(1, 6))
def test_breaks_are_where_a_slow_reference_has_them(
    tmp_path_factory: pytest.TempPathFactory, times: list[int], gap: int
) -> None:
    path = log(tmp_path_factory.mktemp("logs") / "log.csv", times)
    rows = put_back(times)
    expected = [(i, j) for i, j in pairwise(rows) if 0 <= times[j] - times[i] <= gap]
    if not expected:
        return
    data = load_dataset(path, time="time", max_gap=gap)
    found = list(zip(data.observations[:, 0].astype(int), data.next_observations[:, 0].astype(int), strict=True))
    assert found == expected
