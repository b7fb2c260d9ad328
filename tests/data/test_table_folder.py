"""A folder of tables, one file a run."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Refused, make_dataset

from mildly.data.convert import convert, export
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset

HEADER = "x,v,u,reward\n"


def run(first: int, rows: int = 3) -> str:
    """Rows whose first number tells them apart."""
    return "".join(f"{first + i},0,{(i + 1) % 3 - 1},{i}\n" for i in range(rows))


def folder_of(folder: Path, **texts: str) -> Path:
    (folder / "runs").mkdir()
    for name, text in texts.items():
        (folder / "runs" / name.replace("__", ".")).write_text(text)
    return folder / "runs"


def test_each_file_is_an_episode_in_the_order_in_which_people_count(tmp_path: Path) -> None:
    texts = {f"run_{i}__csv": HEADER + run(10 * i) for i in (2, 10, 1)}
    folder = folder_of(tmp_path, **texts, README__txt="nothing", __hidden__csv="nothing")
    dataset = load_dataset(folder)
    assert dataset.observations[:, 0].tolist() == [10, 11, 20, 21, 100, 101]
    assert dataset.truncated.tolist() == [False, True] * 3
    assert (dataset.meta.name, dataset.meta.source) == ("runs", "folder of tables runs")
    assert "No column tells the episodes apart: each file is taken for one." in dataset.meta.notes


def test_episodes_within_the_files_may_have_the_same_numbers(tmp_path: Path) -> None:
    lines = "".join(f"{i // 3},{line}\n" for i, line in enumerate(run(0, 6).splitlines()))
    texts = {f"{name}__csv": f"episode,{HEADER}{lines}" for name in "ab"}
    dataset = load_dataset(folder_of(tmp_path, **texts))
    assert [rows.stop - rows.start for rows in dataset.episodes()] == [2] * 4


def test_a_last_flag_and_the_file_s_end_are_one_end(tmp_path: Path) -> None:
    text = "x,u,reward,done\n1,-1,1,0\n2,1,1,1\n3,1,1,0\n4,1,1,1\n"
    dataset = load_dataset(folder_of(tmp_path, a__csv=text, b__csv=text))
    assert dataset.terminated.tolist() == [False, True] * 4
    assert not any("flagged" in note for note in dataset.meta.notes)


def test_kinds_and_dialects_may_be_mixed_and_columns_in_another_order(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, a__csv=HEADER + run(0), b__tsv=(HEADER + run(10)).replace(",", ";"))
    (folder / "c.csv.gz").write_bytes(gzip.compress((HEADER + run(20)).encode()))
    columns = {"reward": [0.0, 1, 2], "u": [0.0, 1, -1], "v": [0, 0, 0], "x": [30, 31, 32]}
    pq.write_table(pa.table(columns), folder / "d.parquet")
    dataset = load_dataset(folder)
    assert dataset.observations[:, 0].tolist() == [0, 1, 10, 11, 20, 21, 30, 31]
    assert dataset.rewards.tolist() == [0, 1] * 4
    assert "Read with: semicolons between the columns." in dataset.meta.notes


def test_a_column_that_is_empty_in_one_file_is_still_a_sensor(tmp_path: Path, refused: Refused) -> None:
    folder = folder_of(tmp_path, a__csv=HEADER + run(0), b__csv=HEADER + run(10).replace(",0,", ",,"))
    refused.dataset(folder, "'observations' has NaN")
    assert load_dataset(folder, drop_bad_rows=True).observation_size == 2


@pytest.mark.parametrize(
    ("header", "words"), [("x,v,u,r\n", "lacks column 'reward'"), ("x,v,w,u,reward\n", "has a column 'w' more")]
)
def test_columns_that_differ_are_named_with_the_file(tmp_path: Path, header: str, words: str, refused: Refused) -> None:
    rows = run(0).replace(",0,", ",0,0,") if "w" in header else run(0)
    folder = folder_of(tmp_path, a__csv=HEADER + run(0), b__csv=header + rows)
    refused.dataset(folder, f"{folder / 'b.csv'}: {words}, unlike a.csv", "the same columns")


def test_a_bad_file_is_named(tmp_path: Path, refused: Refused) -> None:
    folder = folder_of(tmp_path, a__csv=HEADER + run(0), b__csv=HEADER + run(0) + "1,2,3\n")
    refused.dataset(folder, f"{folder / 'b.csv'}: cannot be read as a table (line 5: Expected 4 columns, got 3")
    (folder / "b.csv").write_text(HEADER)
    refused.dataset(folder, f"{folder / 'b.csv'}: has no rows.")


def test_a_folder_is_converted_like_a_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, **{f"{i}__csv": HEADER + run(i, 5) for i in range(12)})
    made = convert(folder, tmp_path / "set", ImportOptions(drop_bad_rows=True))
    assert (len(made), len(made.episodes()), made.meta.name) == (48, 12, "set")


def test_our_own_tables_agree_in_what_their_actions_mean_or_are_refused(tmp_path: Path, refused: Refused) -> None:
    data = make_dataset(20)
    folder = folder_of(tmp_path)
    for name in ("a", "b"):
        export(data, folder / f"{name}.parquet")
    both = load_dataset(folder)
    assert len(both) == 40
    assert both.actions[:20].tolist() == data.actions.tolist()
    export(data, tmp_path / "c.csv")
    (tmp_path / "c.csv").rename(folder / "c.csv")
    refused.dataset(folder, "differ in the bounds of their actions")
