"""Tables, written by hand as text: what is in them, what is made of it, and what is said about it."""

from __future__ import annotations

import gzip
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Refused
from hypothesis import given, settings, strategies as st
from slow_log import Row, assert_same, ended_by_ids, logs, transitions

from mildly.action_space import ActionSpace
from mildly.data.dataset import Dataset
from mildly.data.formats import table_file
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

HEADER = '"episode","step","obs, x","obs_v","action","reward","done","remark"'
ROWS = """\
"first, try",0,0.0,1.5,-2,1,false,"ok"
"first, try",1,0.5,1.25,4,2,false,"a ""quoted"" word, a comma"
"first, try",2,1.0,1.0,0,4,true,"line
break"
second,0,10,-1.5,-2,8,false,
second,1,11,-1.25,3,16,false,
second,2,12,-1,1,32,false,
"""
TEXT = f"{HEADER}\n{ROWS}"


def assert_golden(dataset: Dataset, name: str = "log") -> None:
    """The first episode ends for good and is kept whole; of the second the last row only lends its observation."""
    assert dataset.meta.name == name
    assert (len(dataset), dataset.observation_size, dataset.action_size) == (5, 2, 1)
    np.testing.assert_array_equal(dataset.observations, [[0, 1.5], [0.5, 1.25], [1, 1], [10, -1.5], [11, -1.25]])
    np.testing.assert_array_equal(dataset.next_observations[[0, 1, 3, 4]], [[0.5, 1.25], [1, 1], [11, -1.25], [12, -1]])
    np.testing.assert_allclose(dataset.actions[:, 0], [-1, 1, -1 / 3, -1, 2 / 3], rtol=1e-6)
    assert dataset.meta.action_space == ActionSpace((-2.0,), (4.0,))
    assert dataset.terminated.tolist() == [False, False, True, False, False]
    assert dataset.truncated.tolist() == [False, False, False, False, True]
    assert dataset.episode_returns().tolist() == [7, 24]


def written(folder: Path, name: str, text: str | bytes) -> Path:
    path = folder / name
    content = text.encode() if isinstance(text, str) else text
    path.write_bytes(gzip.compress(content) if name.lower().endswith(".gz") else content)
    return path


# Golden


@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz", "log.CSV", "log.CSV.GZ"])
@pytest.mark.parametrize("start", ["", "\ufeff"])
def test_a_csv_file_with_quotes_and_a_byte_order_mark(tmp_path: Path, name: str, start: str) -> None:
    dataset = load_dataset(written(tmp_path, name, start + TEXT))
    assert_golden(dataset)
    assert dataset.meta.source == f"table {name}"
    assert dataset.meta.notes == (
        "Columns as guessed from their names: observation = obs, x, obs_v; action = action; reward = reward; "
        "next observation = the following row; episode = episode; terminated = done; truncated = none; time = step; "
        "not used = remark.",
        "'step' is the clock: its median step is 1 step, and an episode breaks where it pauses for more than 10 steps, "
        "10 times as long (--max-gap changes it).",
        "The last row of 1 episode has no next observation. It is used only as the next "
        "observation of the row before it, if there is one.",
        "Actions were mapped to [-1, 1] from the bounds found in the data: -2 to 4. "
        "If wider ones are allowed, give them with --action-low and --action-high.",
    )


@pytest.mark.parametrize("name", ["log.tsv", "log.tsv.gz", "log.TSV"])
def test_a_tsv_file(tmp_path: Path, name: str) -> None:
    lines = TEXT.replace("line\nbreak", "").replace("first, try", "first try").replace("obs, x", "obs x")
    assert_golden(load_dataset(written(tmp_path, name, lines.replace(",", "\t"))))


@pytest.mark.parametrize("ends", ["\r\n", "\r", "\n\n"])
def test_other_line_ends_and_empty_lines(tmp_path: Path, ends: str) -> None:
    lines = TEXT.replace("line\nbreak", "line break").replace("\n", ends)
    assert_golden(load_dataset(written(tmp_path, "log.csv", lines)))


@pytest.mark.parametrize("style", [("0", "1"), ("False", "True"), ("FALSE", "TRUE"), ("0.0", "1.0"), ("no", "yes")])
def test_flags_in_every_usual_writing(tmp_path: Path, style: tuple[str, str]) -> None:
    text = TEXT.replace(",false,", f",{style[0]},").replace(",true,", f",{style[1]},")
    assert_golden(load_dataset(written(tmp_path, "log.csv", text)))


COLUMNS = {
    "episode": ["a", "a", "a", "b", "b", "b"],
    "obs_x": [0.0, 0.5, 1.0, 10.0, 11.0, 12.0],
    "obs_v": [1.5, 1.25, 1.0, -1.5, -1.25, -1.0],
    "action": [-2, 4, 0, -2, 3, 1],
    "reward": [1.0, 2.0, 4.0, 8.0, 16.0, 32.0],
    "done": [False, False, True, False, False, False],
}


@pytest.mark.parametrize("ending", ["parquet", "pq", "PARQUET"])
def test_a_parquet_file_of_many_types(tmp_path: Path, ending: str) -> None:
    types = {"obs_x": pa.float64(), "obs_v": pa.float16(), "action": pa.int8(), "reward": pa.decimal128(5, 1)}
    arrays = {name: pa.array(values).cast(types.get(name, pa.array(values).type)) for name, values in COLUMNS.items()}
    path = tmp_path / f"log.{ending}"
    pq.write_table(pa.table(arrays), path)
    assert_golden(load_dataset(path))


@pytest.mark.parametrize(
    "kind",
    [pa.list_(pa.float32()), pa.list_(pa.float64(), 2), pa.large_list(pa.float32())],
    ids=["list", "fixed", "large"],
)
def test_a_parquet_file_whose_cells_are_lists(tmp_path: Path, kind: pa.DataType) -> None:
    states = [list(pair) for pair in zip(COLUMNS["obs_x"], COLUMNS["obs_v"], strict=True)]
    rest = {name: pa.array(values) for name, values in COLUMNS.items() if not name.startswith("obs")}
    pq.write_table(pa.table({**rest, "observation.state": pa.array(states, kind)}), tmp_path / "log.parquet")
    assert_golden(load_dataset(tmp_path / "log.parquet"))


@pytest.mark.parametrize("flag", [pa.int8(), pa.float64(), pa.bool_()])
def test_flags_of_a_parquet_file_may_be_numbers(tmp_path: Path, flag: pa.DataType) -> None:
    pq.write_table(pa.table({**COLUMNS, "done": pa.array(COLUMNS["done"]).cast(flag)}), tmp_path / "log.parquet")
    assert_golden(load_dataset(tmp_path / "log.parquet"))


def test_without_episodes_and_flags_all_rows_are_one_episode_and_the_notes_say_so(tmp_path: Path) -> None:
    dataset = load_dataset(written(tmp_path, "log.csv", "x,u,r\n1,-1,1\n2,1,2\n3,1,4\n"))
    assert dataset.truncated.tolist() == [False, True]
    assert dataset.episode_returns().tolist() == [3]
    assert any("all rows are taken for one" in note for note in dataset.meta.notes)
    assert any("every end is taken for a cut-off" in note for note in dataset.meta.notes)


def test_empty_cells_are_nan_and_can_be_left_out(tmp_path: Path, refused: Refused) -> None:
    path = written(tmp_path, "log.csv", "x,u,r\n1,-1,1\n2,1,\n3,1,4\n4,NaN,8\n5,-1,16\n6,1,32\n")
    refused.dataset(path, "'actions' has NaN or infinite values, first in line 5, 'u'")
    dataset = load_dataset(path, drop_bad_rows=True)
    assert dataset.rewards.tolist() == [1, 4, 16]
    assert dataset.truncated.tolist() == [True, True, True]


def test_other_words_for_a_missing_value(tmp_path: Path) -> None:
    cells = ["-", "--", "n/a", "#N/A", "N/A", "NA", ""]
    text = "x,u,r\n" + "".join(f"{i},-1,1\n{i}.5,1,1\n{cell},1,1\n" for i, cell in enumerate(cells))
    dataset = load_dataset(written(tmp_path, "log.csv", text), drop_bad_rows=True)
    assert dataset.observations[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6]


def test_true_and_false_of_a_sensor_are_one_and_zero(tmp_path: Path, refused: Refused) -> None:
    path = written(tmp_path, "log.csv", "x,open,u,r\n1,True,-1,1\n2,False,1,2\n3,True,1,4\n4,,1,4\n5,True,1,4\n")
    assert load_dataset(path, drop_bad_rows=True).observations.tolist() == [[1, 1], [2, 0]]
    columns = {"x": [1.0, 2, 3], "open": [True, None, True], "u": [-1.0, 1, 1], "r": [0.0] * 3}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    refused.dataset(tmp_path / "log.parquet", "'observations' has NaN")


def test_an_empty_flag_is_false(tmp_path: Path) -> None:
    assert_golden(load_dataset(written(tmp_path, "log.csv", TEXT.replace(",false,", ",,"))))
    for number, values in enumerate(
        ([None, None, True, None, None, None], [None, 0, 1, 0, 0, None], [float("nan"), 0.0, 1.0, 0.0, 0.0, None])
    ):
        pq.write_table(pa.table({**COLUMNS, "done": values}), tmp_path / f"{number}.parquet")
        assert_golden(load_dataset(tmp_path / f"{number}.parquet"), str(number))
    pq.write_table(pa.table({**COLUMNS, "done": pa.nulls(6)}), tmp_path / "none.parquet")
    assert not load_dataset(tmp_path / "none.parquet").terminated.any()


@pytest.mark.parametrize("size", [1, 2, 6])
def test_a_missing_list_is_a_row_of_nan(tmp_path: Path, size: int, refused: Refused) -> None:
    states = [[0.0, 1.5], [0.5, 1.25], [1.0, 1.0], None, [11.0, -1.25], [12.0, -1.0]]
    rest = {name: values for name, values in COLUMNS.items() if not name.startswith("obs")}
    pq.write_table(pa.table({**rest, "observation.state": states}), tmp_path / "log.parquet")
    with mock.patch.object(table_file, "_PARQUET_BLOCK", size):
        refused.dataset(
            tmp_path / "log.parquet", "'observations' has NaN", "mildly data convert SRC DST --drop-bad-rows"
        )
        dataset = load_dataset(tmp_path / "log.parquet", drop_bad_rows=True)
    assert dataset.observations.tolist() == [[0, 1.5], [0.5, 1.25], [1, 1], [11, -1.25]]
    assert dataset.terminated.tolist() == [False, False, True, False]


BOTH = "x,u,r,{0},truncated\n1,-1,1,0,0\n2,1,1,1,1\n3,1,1,0,0\n4,1,1,0,0\n5,1,1,1,0\n"


def test_done_beside_truncated_means_that_the_episode_is_over(tmp_path: Path) -> None:
    dataset = load_dataset(written(tmp_path, "log.csv", BOTH.format("done")))
    assert dataset.observations[:, 0].tolist() == [1, 3, 4, 5]
    assert dataset.terminated.tolist() == [False, False, False, True]
    assert any(note.startswith("Both done and cut off: 1 row.") for note in dataset.meta.notes)


def test_a_row_both_terminated_and_truncated_is_terminal(tmp_path: Path) -> None:
    dataset = load_dataset(written(tmp_path, "log.csv", BOTH.format("terminated")))
    assert dataset.terminated.tolist() == [False, True, False, False, True]
    assert not any("both" in note for note in dataset.meta.notes)


def test_what_the_user_says_is_not_called_a_guess(tmp_path: Path) -> None:
    path = written(tmp_path, "log.csv", "t,p,q,w,c\n0,1,2,-1,1\n1,2,3,1,1\n2,3,4,1,1\n")
    dataset = load_dataset(path, obs=["p", "q"], action="w", reward="c")
    assert dataset.observations.tolist() == [[1, 2], [2, 3]]
    assert dataset.meta.notes[0].startswith("Columns: observation = p, q; action = w; ")


# Any block size


@settings(max_examples=60)
@given(
    logs(bad=False, both=False),
    st.lists(st.integers(1, 5), min_size=14, max_size=14),
    st.sampled_from(["csv", "parquet"]),
    st.integers(1, 5),
)
def test_episodes_are_told_apart_wherever_the_blocks_end(
    rows: list[Row], lengths: list[int], ending: str, size: int
) -> None:
    ids = np.repeat(np.arange(len(lengths)), lengths)[: len(rows)].tolist()
    expected = transitions(ended_by_ids(rows, ids))
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(table_file, "_PARQUET_BLOCK", size):
        path = Path(folder) / f"log.{ending}"
        write_rows(path, rows, ids)
        with mock.patch.object(table_file, "_CSV_BLOCK", 100 * size):
            if not expected:
                with pytest.raises(MildlyError, match="no row has a next observation"):
                    load_dataset(path)
                return
            assert_same(load_dataset(path, scaled=True), expected)


def write_rows(path: Path, rows: list[Row], ids: list[int]) -> None:
    columns = {
        "episode": ids,
        **{f"obs_{i}": [row.obs[i] for row in rows] for i in range(2)},
        **{f"action_{i}": [row.action[i] for row in rows] for i in range(2)},
        "reward": [row.reward for row in rows],
        "terminated": [row.terminated for row in rows],
        "truncated": [row.truncated for row in rows],
    }
    if rows[0].next_obs is not None:
        columns |= {f"next_obs_{i}": [row.next_obs[i] for row in rows if row.next_obs] for i in range(2)}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(columns), path)
        return
    lines = [",".join(columns), *(",".join(map(str, line)) for line in zip(*columns.values(), strict=True))]
    path.write_text("\n".join(lines))


@pytest.mark.parametrize("size", range(100, 420, 20))
def test_a_line_break_within_quotes_may_lie_on_a_block_s_border(tmp_path: Path, size: int) -> None:
    with mock.patch.object(table_file, "_CSV_BLOCK", size):
        assert_golden(load_dataset(written(tmp_path, "log.csv", TEXT)))


# Mistakes


def test_a_file_without_a_header_needs_the_numbers_of_its_columns(tmp_path: Path, refused: Refused) -> None:
    path = written(tmp_path, "log.csv", "0.5,-1.25,1e-3,7\n1,2,3,4\n2,1,0,5\n")
    refused.dataset(path, "the first line holds numbers", "--obs 0-7 --action 8,9 --reward 10")
    dataset = load_dataset(path, obs="0-1", action="2", reward="3", action_low=-3, action_high=3)
    assert dataset.observations.tolist() == [[0.5, -1.25], [1, 2]]
    assert dataset.rewards.tolist() == [7, 4]
    assert "Read with: no names of columns, which are counted from 0." in dataset.meta.notes


def test_rows_out_of_order_are_refused_with_their_place(tmp_path: Path, refused: Refused) -> None:
    text = "episode,x,u,r\n1,1,-1,0\n2,2,1,0\n2,3,1,0\n1,4,1,0\n"
    refused.dataset(
        written(tmp_path, "log.csv", text),
        "episode 1 (column 'episode') goes on in line 5",
        "Sort the rows by 'episode' first",
    )


@pytest.mark.parametrize("size", [1, 2])
def test_rows_out_of_order_are_found_across_blocks(tmp_path: Path, size: int, refused: Refused) -> None:
    columns = {"episode": [7, 7, 8, 7], "x": [1.0] * 4, "u": [-1.0, 1, 1, 1], "r": [0.0] * 4}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    with mock.patch.object(table_file, "_PARQUET_BLOCK", size):
        refused.dataset(tmp_path / "log.parquet", "episode 7", "row 3")


STEPS = "run,step,x,u,r,done\na,0,1,-1,0,0\na,1,2,1,0,{0}\na,{1},3,1,0,0\nb,0,4,1,0,0\nb,2,5,1,0,1\n"


@pytest.mark.parametrize("size", [40, 1000])
def test_steps_may_start_anew_behind_a_flag_which_is_told_within_an_episode(tmp_path: Path, size: int) -> None:
    with mock.patch.object(table_file, "_CSV_BLOCK", size):
        dataset = load_dataset(written(tmp_path, "log.csv", STEPS.format(1, 0)))
        other = load_dataset(written(tmp_path, "other.csv", STEPS.format(0, 2)))
    assert dataset.terminated.tolist() == [False, True, False, True]
    assert (
        "Warning (flag-inside-episode): Rows are flagged as an episode's last, but by 'run' the episode goes on"
        in str(dataset.meta.notes)
    )
    assert other.terminated.tolist() == [False, False, False, True]
    assert "flagged" not in str(other.meta.notes)


def test_a_flag_that_is_none_is_named(tmp_path: Path, refused: Refused) -> None:
    refused.dataset(
        written(tmp_path, "other.csv", "x,u,r,done\n1,-1,1,0\n2,1,1,2\n"),
        "column 'done' holds '2'",
        "expected true or false",
    )
    pq.write_table(pa.table({**COLUMNS, "done": [0, 0, 2, 0, 0, 0]}), tmp_path / "log.parquet")
    refused.dataset(tmp_path / "log.parquet", "'done' must hold true and false (or 1 and 0)")


def test_an_empty_cell_in_the_episode_column_is_named(tmp_path: Path, refused: Refused) -> None:
    pq.write_table(pa.table({**COLUMNS, "episode": ["a", "a", None, "b", "b", "b"]}), tmp_path / "log.parquet")
    refused.dataset(tmp_path / "log.parquet", "the episode column 'episode' has empty cells")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["left"] * 6, "does not hold numbers"),
        ([[1.0], [1.0, 2.0], [1.0], [1.0], [1.0], [1.0]], "differ in length"),
        ([{"x": 1}] * 6, "does not hold numbers"),
        (pa.array(range(6), pa.timestamp("s")), "does not hold numbers"),
    ],
)
def test_cells_that_are_no_numbers_are_named(tmp_path: Path, values: object, words: str, refused: Refused) -> None:
    pq.write_table(pa.table({**COLUMNS, "obs_v": values}), tmp_path / "log.parquet")
    refused.dataset(tmp_path / "log.parquet", "'obs_v'", words)


def test_a_word_in_a_column_of_numbers_is_named_with_its_row_and_column(tmp_path: Path, refused: Refused) -> None:
    refused.dataset(
        written(tmp_path, "log.csv", "x,u,r\n1,-1,1\n2,1,two\n3,1,1\n"), "column 'r' holds 'two'", "expected a number"
    )


@pytest.mark.slow
def test_a_million_rows_of_twenty_columns_take_seconds_and_little_memory(tmp_path: Path) -> None:
    rows, path = 1_000_000, tmp_path / "log.csv"
    names = ["episode", *(f"obs_{i}" for i in range(14)), *(f"action_{i}" for i in range(3)), "reward", "terminated"]
    block = np.random.default_rng(0).normal(size=(1000, 18)).clip(-1, 1).round(6).astype(str)
    lines = [",".join(row) for row in block]
    with path.open("w") as file:
        file.write(",".join(names) + "\n")
        for episode in range(rows // 1000):
            file.writelines(f"{episode},{line},0\n" for line in lines)
    program = f"""
import resource, time
from mildly.data.convert import convert
start = time.perf_counter()
data = convert({str(path)!r}, {str(tmp_path / "out")!r})
print(len(data), time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    count, seconds, gigabytes = map(float, done.stdout.split())
    assert count == rows - rows // 1000
    assert seconds < 15
    assert gigabytes < 1.5


@pytest.mark.parametrize("blank", ["", "NA"])
def test_an_empty_episode_cell_in_a_csv_is_told(tmp_path: Path, blank: str) -> None:
    lines = [f"{i},0.5,1.0,{3 if i < 6 else blank}" for i in range(10)]
    (tmp_path / "log.csv").write_text("\n".join(["obs_0,action_0,reward,episode", *lines]) + "\n")
    with pytest.raises(MildlyError, match="empty cells"):
        load_dataset(tmp_path / "log.csv")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, "Columns as guessed from their names:"),
        ({"action": "action"}, "Columns as given (action) and guessed from their names (the others):"),
        ({"obs": "x", "reward": "reward"}, "Columns as given (observation, reward) and guessed from their names (the"),
        ({"obs": "x", "action": "action", "reward": "reward"}, "Columns: observation = x;"),
    ],
)
def test_columns_that_were_given_are_not_called_guessed(tmp_path, options, told):
    rows = [f"{i / 10},{(-1) ** i * 0.5},{i}" for i in range(8)]
    (tmp_path / "log.csv").write_text("\n".join(["x,action,reward", *rows]))
    assert load_dataset(tmp_path / "log.csv", **options).meta.notes[0].startswith(told)
