"""Names with escape sequences reach neither a terminal nor a spreadsheet as something to obey."""

from __future__ import annotations

import csv
import dataclasses
import io
from pathlib import Path

import pytest
from conftest import make_dataset
from rich.table import Table

from mildly.cli import main
from mildly.errors import printable
from mildly.report.export import _cell
from mildly.terminal import SafeConsole

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\r\x08"


def obeyed(text: str) -> list[str]:
    return [character for character in text if printable(character) != character]


def test_every_control_character_is_taken_out_and_text_stays() -> None:
    for code in [*range(0x20), *range(0x7F, 0xA0)]:
        assert printable(chr(code)) == (chr(code) if chr(code) in "\t\n" else "\ufffd")
    for text in ("hopper-medium-v2", "größe 3 ± 1", "日本", "a\tb\nc", "🙂"):
        assert printable(text) == text


@pytest.mark.parametrize("terminal", [False, True])
def test_a_console_prints_its_own_sequences_only(terminal: bool) -> None:
    out = io.StringIO()
    console = SafeConsole(file=out, force_terminal=terminal, width=100, markup=False)
    table = Table("name", title=EVIL)
    table.add_row(EVIL)
    for thing in (EVIL, table):
        console.print(thing)
    written = out.getvalue()
    for part in ("\x1b]0;", "\x07", "\x1b[2J", "\x9b", "\u202e", "\x08"):
        assert part not in written
    assert "evil" in written


def test_no_command_prints_what_a_name_in_a_file_tells_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = make_dataset()
    notes, meta = (f"note {EVIL}",), data.meta
    meta = dataclasses.replace(meta, name=EVIL, source=EVIL, notes=notes, env_id=f"Nothing{EVIL}-v0")
    folder, run = str(dataclasses.replace(data, meta=meta).save(tmp_path / "data")), str(tmp_path / "run")
    few = ["--steps", "5", "--hidden-dims", "4", "--batch-size", "4"]
    for args in (
        ["data", "info", folder],
        ["data", "check", folder],
        ["train", "bc", "--dataset", folder, "--out", run, *few, "--eval-every", "0"],
        ["train", "bc", "--dataset", folder, "--out", str(tmp_path / "other"), *few],
        ["evaluate", run],
        ["train", "--resume", run, "--steps", "6"],
        ["report", run, "--output", str(tmp_path / "page.html")],
        ["train", EVIL],
        [EVIL],
    ):
        assert main(args) in (0, 1, 2)
        out, err = capfd.readouterr()
        assert obeyed(out) == obeyed(err) == [], args


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", '=HYPERLINK("http://x")'])
def test_text_that_begins_as_a_formula_is_text_in_a_table(text: str) -> None:
    assert _cell(text) == f"'{text}"
    assert _cell(-1.5) == -1.5


def test_a_data_set_called_like_a_formula_is_harmless_in_csv(tmp_path: Path) -> None:
    data = make_dataset()
    data = dataclasses.replace(data, meta=dataclasses.replace(data.meta, name="=cmd|' /C calc'!A0", env_id=None))
    folder, run = data.save(tmp_path / "data"), str(tmp_path / "run")
    assert main(["train", "bc", "--dataset", str(folder), "--out", run, "--steps", "5", "--hidden-dims", "4"]) == 0
    assert main(["report", run, "--output", str(tmp_path / "page.html"), "--csv", str(tmp_path / "tables")]) == 0
    rows = list(csv.reader((tmp_path / "tables" / "summary.csv").open(newline="")))
    assert "'=cmd|' /C calc'!A0" in rows[1]
    assert not [cell for row in rows for cell in row if cell.startswith(("=", "+", "@", "\t"))]
