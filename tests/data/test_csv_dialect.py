"""How texts are written in different countries and by different programs: all of it the same table."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from mildly.data.dataset import Dataset
from mildly.data.formats.csv_dialect import Dialect, detect
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

ROWS = [
    ["run", "Größe", "speed", "torque", "reward"],
    ["é 1", "0.5", "-1.25", "-2.5", "1"],
    ["é 1", "0.75", "1e-2", "1.5", "2"],
    ["é 1", "1", "-.5", "2.5", "3"],
    ["b", "3", "4", "0.5", "4"],
    ["b", "4", "5", "0.5", "5"],
]


def text(sign: str = ",", decimal: str = ".") -> str:
    header, *rows = ROWS
    lines = [header, *([row[0], *(cell.replace(".", decimal) for cell in row[1:])] for row in rows)]
    return "\n".join(sign.join(line) for line in lines) + "\n"


def load(folder: Path, content: bytes, name: str = "log.csv") -> Dataset:
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return load_dataset(folder / name, action="torque")


def assert_same_table(dataset: Dataset) -> None:
    np.testing.assert_array_equal(dataset.observations, np.float32([[0.5, -1.25], [0.75, 0.01], [3, 4]]))
    np.testing.assert_array_equal(dataset.next_observations, np.float32([[0.75, 0.01], [1, -0.5], [4, 5]]))
    np.testing.assert_allclose(dataset.actions[:, 0], [-1, 1, 0.5], rtol=1e-6)  # from -2.5 to 1.5
    assert "observation = Größe, speed" in dataset.meta.notes[0]


def how(dataset: Dataset) -> str | None:
    return next((note for note in dataset.meta.notes if note.startswith("Read with: ")), None)


@pytest.mark.parametrize("name", ["log.csv", "log.tsv", "log.csv.gz"])
@pytest.mark.parametrize(("sign", "word"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "bars")])
def test_any_usual_sign_between_the_columns(tmp_path: Path, name: str, sign: str, word: str) -> None:
    dataset = load(tmp_path, text(sign).encode(), name)
    assert_same_table(dataset)
    usual = "\t" if "tsv" in name else ","
    assert how(dataset) == (None if sign == usual else f"Read with: {word} between the columns.")


@pytest.mark.parametrize("sign", [";", "\t", "|"])
def test_decimal_commas(tmp_path: Path, sign: str) -> None:
    dataset = load(tmp_path, text(sign, ",").encode())
    assert_same_table(dataset)
    assert "decimal commas" in str(how(dataset))


@pytest.mark.parametrize(
    ("encoding", "words"),
    [
        ("utf-8", None),
        ("utf-8-sig", None),
        ("utf-16", "Read with: UTF-16."),
        ("latin-1", "Read with: Latin-1 (it is no UTF-8)."),
        ("cp1252", "Read with: Latin-1 (it is no UTF-8)."),
    ],
)
@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
def test_encodings(tmp_path: Path, encoding: str, words: str | None, name: str) -> None:
    dataset = load(tmp_path, text().encode(encoding), name)
    assert_same_table(dataset)
    assert how(dataset) == words


def test_all_at_once_as_a_spreadsheet_program_writes_it(tmp_path: Path) -> None:
    lines = "# made in a laboratory; 1,5\n\n# twice\n" + text(";", ",")
    dataset = load(tmp_path, lines.replace("\n", "\r\n").encode("utf-16"))
    assert_same_table(dataset)
    words = "Read with: UTF-16, semicolons between the columns, decimal commas, 3 lines of comments skipped."
    assert how(dataset) == words


@pytest.mark.parametrize("start", ["# x\n", "\ufeff# x\n#\n", "#\n\n\n# y\n\n"])
def test_comments_before_the_header_are_skipped(tmp_path: Path, start: str) -> None:
    assert_same_table(load(tmp_path, (start + text()).encode()))


def test_a_header_within_a_comment_is_one_above_numbers(tmp_path: Path) -> None:
    np.savetxt(tmp_path / "log.csv", [[1, -1, 0], [2, 1, 0], [3, 1, 0]], delimiter=",", header="x,u,r")
    dataset = load_dataset(tmp_path / "log.csv")
    assert dataset.observations.tolist() == [[1], [2]]
    assert how(dataset) == "Read with: the columns' names in a comment."


def test_signs_in_quotes_and_in_names_do_not_mislead(tmp_path: Path) -> None:
    header = '"x, m; y | z",speed,u,reward\n'
    assert load_dataset(written(tmp_path, header + "1,2,-1,0\n2,3,1,0\n")).observation_size == 2
    names = "Weg, m;Kraft, N;u;reward\n"  # as many commas as semicolons are not more of them
    assert load_dataset(written(tmp_path, names + "1,5;2,5;-1;0\n2,5;3,5;1;0\n")).observations.tolist() == [[1.5, 2.5]]


def written(folder: Path, content: str) -> Path:
    (folder / "log.csv").write_text(content)
    return folder / "log.csv"


def test_points_in_dates_are_no_decimals_and_a_few_points_do_not_outvote_commas(tmp_path: Path) -> None:
    rows = "".join(f"0{day}.05.2024;12.30;{day},5;{day},25;1\n" for day in range(1, 4))
    path = written(tmp_path, "date;clock;x;u;r\n" + rows)
    assert load_dataset(path, obs="x", action="u").observations.tolist() == [[1.5], [2.5]]


def test_a_name_in_an_encoding_of_its_own_far_behind_does_not_matter(tmp_path: Path) -> None:
    lines = ["run,x,u,r", *(f"one,{i},{i % 3 - 1},0" for i in range(120_000)), "tw\xf6,1,1,0", "tw\xf6,2,1,0"]
    (tmp_path / "log.csv").write_bytes("\n".join(lines).encode("latin-1"))
    dataset = load_dataset(tmp_path / "log.csv")
    assert len(dataset.episodes()) == 2
    assert how(dataset) is None


# Commas within quotes


def quoted(decimal: str = ",") -> str:
    header, *rows = ROWS
    cells = [header, *([row[0], *(f'"{cell.replace(".", decimal)}"' for cell in row[1:])] for row in rows)]
    return "\n".join(",".join(line) for line in cells) + "\n"


def test_decimal_commas_within_quotes(tmp_path: Path) -> None:
    dataset = load(tmp_path, quoted().encode())
    assert_same_table(dataset)
    assert how(dataset) == "Read with: decimal commas."


def test_points_within_quotes_are_points(tmp_path: Path) -> None:
    assert_same_table(load(tmp_path, quoted(".").encode()))


def test_commas_between_thousands_are_not_taken_for_decimal_ones(tmp_path: Path) -> None:
    path = written(tmp_path, 'x,u,r\n"1,500",-1,0\n"2,250",1,0\n"3,125",0,0\n')
    with pytest.raises(MildlyError, match="column 'x' holds '1,500' in line 2, expected a number"):
        load_dataset(path, obs="x")


# A row of units


@pytest.mark.parametrize(
    ("units", "told"),
    [
        ("-,m,m/s,N m,-\n", "Größe = m, speed = m/s, torque = N m."),
        ("name,[m],[m/s],,\n", "run = name, Größe = [m], speed = [m/s]."),
        (",m,m/s,N m,1/s\nSmp,Avg,Avg,Smp,Avg\n", "Größe = m, speed = m/s, torque = N m, reward = 1/s."),
    ],
)
@pytest.mark.parametrize("name", ["log.csv", "log.csv.gz"])
@pytest.mark.parametrize("start", ["", "# made in a laboratory\n"])
def test_a_row_of_units_below_the_header_is_skipped_and_kept_in_the_notes(
    tmp_path: Path, units: str, told: str, name: str, start: str
) -> None:
    lines = text().splitlines(keepends=True)
    dataset = load(tmp_path, "".join([start, lines[0], units, *lines[1:]]).encode(), name)
    assert_same_table(dataset)
    first = 2 + bool(start)
    lines_told = f"line {first}" if units.count("\n") == 1 else f"lines {first}, {first + 1}"
    note = f"Note (units-row): Rows of units below the header were skipped. [{lines_told}: {told}]"
    assert note in dataset.meta.notes


@pytest.mark.parametrize("first", ["NA,NA,NA", "1,NaN,-", "n/a,2,1"])
def test_a_first_row_that_lacks_values_is_no_row_of_units(tmp_path: Path, first: str) -> None:
    path = written(tmp_path, f"x,u,r\n{first}\n1,-1,0\n2,1,0\n3,1,0\n")
    dataset = load_dataset(path, verify=False)
    assert len(dataset) == 3
    assert how(dataset) is None


def test_words_in_one_column_of_the_first_row_are_a_mistake_and_no_units(tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match="column 'r' holds 'high' in line 2"):
        load_dataset(written(tmp_path, "x,u,r\n1,-1,high\n2,1,0\n3,1,0\n"))


# Lists in cells


@pytest.mark.parametrize(
    "cells",
    [
        ('"[1.0, 2.0]"', '"[3, -4.5e0]"', '"[5, 6]"'),
        ("[1. 2.]", "[ 3.  -4.5]", "[5. 6.]"),
        ('"(1.0, 2.0)"', '"(3,-4.5)"', '"( 5 , 6 )"'),
        ('"[1.\n 2.]"', '"[3\n-4.5]"', '"[5\n6]"'),
    ],
)
def test_cells_may_be_lists_of_numbers(tmp_path: Path, cells: tuple[str, ...]) -> None:
    rows = "".join(f"{cell},{action},1\n" for cell, action in zip(cells, ("[-1]", "[0.5]", "[1]"), strict=True))
    dataset = load_dataset(written(tmp_path, f"obs,actions,r\n{rows}"))
    assert dataset.observations.tolist() == [[1, 2], [3, -4.5]]
    assert dataset.next_observations.tolist() == [[3, -4.5], [5, 6]]
    assert dataset.actions.tolist() == [[-1], [0.5]]


def test_a_missing_list_is_missing_and_others_are_told(tmp_path: Path) -> None:
    rows = ['"[1, 2]"', "", '"[3, 4]"', '"[5, 6]"', '"[7, 8]"']
    path = written(tmp_path, "obs,u,r\n" + "".join(f"{cell},{i % 3 - 1},1\n" for i, cell in enumerate(rows)))
    assert load_dataset(path, drop_bad_rows=True).observations.tolist() == [[3, 4], [5, 6]]
    for cell, words in (('"[1, x]"', "must hold lists of numbers"), ('"[1, 2, 3]"', "differ in length")):
        path = written(
            tmp_path, "obs,u,r\n" + "".join(f'"[{i}, 2]",{i % 3 - 1},1\n' for i in range(300)) + f"{cell},1,1\n"
        )
        with pytest.raises(MildlyError, match=f"'obs' .*{words}|column 'obs' {words}"):
            load_dataset(path)


def test_a_reward_of_lists_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, 'x,u,r\n1,-1,"[1, 2]"\n2,1,"[1, 2]"\n')
    with pytest.raises(MildlyError, match="needs one number of column 'r', which holds lists"):
        load_dataset(path)


# No header


def test_a_header_that_counts_the_columns_is_a_header(tmp_path: Path) -> None:
    rows = "1,2,-1,0\n2,3,1,0\n3,4,1,0\n"
    named = load_dataset(written(tmp_path, "0,1,2,3\n" + rows), obs="0-1", action="2", reward="3")
    assert named.observations.tolist() == [[1, 2], [2, 3]]
    indexed = "".join(f"{i},{row}\n" for i, row in enumerate(rows.split()))
    path = written(tmp_path, ",0,1,2,3\n" + indexed)
    assert load_dataset(path, obs="0-1", action="2", reward="3").observations.tolist() == [[1, 2], [2, 3]]


def test_a_table_without_names_may_have_decimal_commas_and_comments(tmp_path: Path) -> None:
    path = written(tmp_path, "# made by hand\n1,5;-1,5;0\n2,5;1,5;0\n3,5;1,0;0\n")
    dataset = load_dataset(path, obs="0", action="1", reward="2")
    assert dataset.observations.tolist() == [[1.5], [2.5]]
    assert "no names of columns" in str(how(dataset))


@given(st.binary(max_size=300), st.booleans())
def test_any_start_of_a_file_is_a_dialect_or_an_error(head: bytes, whole: bool) -> None:
    try:
        found: object = detect(head, whole=whole, usual=",", where="log.csv")
    except MildlyError as error:
        found = error
    assert isinstance(found, Dialect) or str(found).startswith("log.csv: ")
