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
    words = "Read with: UTF-16, semicolons between the columns, decimal commas, 3 line(s) of comments skipped."
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


@given(st.binary(max_size=300), st.booleans())
def test_any_start_of_a_file_is_a_dialect_or_an_error(head: bytes, whole: bool) -> None:
    try:
        found: object = detect(head, whole=whole, usual=",", where="log.csv")
    except MildlyError as error:
        found = error
    assert isinstance(found, Dialect) or str(found).startswith("log.csv: ")
