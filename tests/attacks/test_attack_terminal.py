"""Names with escape sequences reach neither a terminal nor a spreadsheet as something to obey."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
from conftest import make_dataset, train_tiny, unsealed
from rich.live import Live
from rich.progress import Progress
from rich.table import Table
from servers import serving

from mildly.cli import main
from mildly.data import download as downloads
from mildly.data.download import download
from mildly.data.official import MIRROR_VARIABLE
from mildly.errors import MildlyError, printable
from mildly.experiments.process import WorkerTask
from mildly.experiments.progress import Counts, SweepProgress
from mildly.report.export import _cell
from mildly.terminal import SafeConsole

EVIL = "\x1b]0;owned\x07\x1b[2J\x9b31m\u202eevil\r\x08"
RICH = re.compile(r"\x1b\[[\d;]*m|\r?\x1b\[\d*[AK]|\x1b\[\?25[lh]")
"""Colors, lines that are drawn anew, the cursor hidden and shown."""


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
    console = SafeConsole(file=out, force_terminal=terminal, width=100)
    table = Table("name", title=EVIL)
    table.add_row(EVIL)
    for thing in (EVIL, table):
        console.print(thing)
    for live in (Live(table, console=console), console.status(EVIL), Progress(console=console)):
        with live:
            if isinstance(live, Progress):
                live.add_task(EVIL)
    written = out.getvalue()
    for part in ("\x1b]0;", "\x07", "\x1b[2J", "\x9b", "\u202e", "\x08"):
        assert part not in written
    assert "evil" in written


def described(path: Path, **words: Any) -> Path:
    """A data set with other words in its description."""
    data = make_dataset()
    return dataclasses.replace(data, meta=dataclasses.replace(data.meta, **words)).save(path)


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A data set whose every word is for the terminal."""
    words = {"name": rf"{EVIL} $\bad{{$", "source": EVIL, "notes": (f"note {EVIL}",), "env_id": f"Nothing{EVIL}-v0"}
    return described(tmp_path / f"data{EVIL}", **words)


@pytest.fixture(params=["pipe", "terminal"])
def screen(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both ways to print: on a terminal there are also bars, live tables and colors, which are rich's own."""
    if request.param == "terminal":
        monkeypatch.setenv("FORCE_COLOR", "1")


FEW = ["--steps", "5", "--hidden-dims", "4", "--batch-size", "4"]


def harmless(capfd: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command; what it prints may hold rich's own sequences and nothing else that a terminal obeys."""
    assert main(args) in (0, 1, 2)
    said = capfd.readouterr()
    for text in said:
        assert obeyed(RICH.sub("", text)) == [], args
    return said.out + said.err


@pytest.mark.usefixtures("screen")
def test_no_command_prints_what_a_name_in_a_file_tells_the_terminal(
    tmp_path: Path, evil: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, run = str(evil), str(tmp_path / f"run{EVIL}")
    for args in (
        ["data", "info", folder],
        ["data", "check", folder],
        ["data", "check", folder, "--json"],
        ["data", "convert", folder, str(tmp_path / f"copy{EVIL}.npz")],
        ["data", "list", "--data-dir", str(tmp_path)],
        ["data", "collect", str(tmp_path / "set"), "--env", EVIL, "--name", EVIL],
        ["train", "bc", "--dataset", folder, "--out", run, *FEW, "--eval-every", "0"],
        ["train", "bc", "--dataset", folder, "--out", str(tmp_path / "other"), *FEW],
        ["evaluate", run],
        ["train", "--resume", run, "--steps", "6"],
        ["report", run, "--output", str(tmp_path / "page.html")],
        ["theory", "--mdps", "1", "--states", "3", "--actions", "2"],
        *([*command, EVIL] for command in (["train"], ["data"], ["bench", "--algorithm"], ["paper"], ["sweep"], [])),
    ):
        harmless(capfd, *args)


@pytest.mark.usefixtures("screen")
@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_sweep_prints_no_name_of_its_file_s_that_a_terminal_obeys(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], runs: bool
) -> None:
    data, spec, out = described(tmp_path / f"data{EVIL}", name=EVIL), tmp_path / "spec.toml", str(tmp_path / "sweep")
    quoted = json.dumps(EVIL).replace("\x9b", "\\u009b")
    spec.write_text(
        f"algorithms = ['bc']\ndatasets = [{json.dumps(str(data))}]\nsteps = 3\neval_every = 0\n"
        f"[fields]\nhidden_dims = [4]\n[variants.{quoted}]\nbatch_size = 4\n"
    )
    assert "1 job" in harmless(capfd, "sweep", str(spec), "--out", out, "--dry-run")
    if runs:
        assert "1 of 1 jobs complete" in harmless(capfd, "sweep", str(spec), "--out", out)
    for key in ("algorithms", "datasets", "preset", "device"):
        given = {"algorithms": "'bc'", "datasets": json.dumps(str(data)), key: quoted}
        spec.write_text("".join(f"{name} = {value}\n" for name, value in given.items()))
        assert "evil" in harmless(capfd, "sweep", str(spec), "--out", out)


def test_a_live_table_of_jobs_shows_a_phase_of_any_name(tmp_path: Path) -> None:
    task = WorkerTask("job", str(tmp_path), "bc", "", "", "", 0, 10, 1, {})
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 3, "phase": f"[/x]{EVIL}"}) + "\n")
    (tmp_path / "evaluations.jsonl").write_text(json.dumps({"step": EVIL, "score": EVIL, "mean_return": EVIL}) + "\n")
    written = io.StringIO()
    with SweepProgress(Counts(1), SafeConsole(file=written, force_terminal=True, width=100)) as progress:
        progress.shown = -1e9
        progress.refresh([task])
    assert obeyed(RICH.sub("", written.getvalue())) == []
    assert "owned" in written.getvalue()


@pytest.fixture(scope="module")
def evil_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a set of the paper's, with a setting for the terminal, and for matplotlib."""
    folder = tmp_path_factory.mktemp("paper")
    data = described(folder / "data", name="halfcheetah-expert-v2", reference_min=0.0, reference_max=1.0)
    run = train_tiny("mcq", folder / "run", dataset=data, steps=5, eval_every=0).path
    plan = unsealed(run / "run.json")
    plan["config"]["behavior"]["model"] = rf"{EVIL} $\bad{{$"
    (run / "run.json").write_text(json.dumps(plan))
    line = {"step": 5, "returns": [1.0], "lengths": [1], "scores": [1.0], "mean_return": 1.0, "score": 1.0}
    (run / "evaluations.jsonl").write_text(json.dumps(line) + "\n")
    return run


@pytest.mark.filterwarnings("error:Glyph")
@pytest.mark.usefixtures("screen")
@pytest.mark.parametrize("name", ["table1", "table-cost", "fig-values"])
def test_the_paper_s_tables_print_no_setting_that_a_terminal_obeys(
    tmp_path: Path, evil_run: Path, capfd: pytest.CaptureFixture[str], name: str
) -> None:
    out = str(tmp_path / f"out{EVIL}")
    said = harmless(capfd, "paper", name, "--render-only", "--runs", str(evil_run), "--out", out)
    assert "evil" in said or name == "table-cost"


@pytest.mark.usefixtures("screen")
def test_a_server_s_words_do_not_reach_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(downloads, "_FIRST_PAUSE", 0.001)

    def answer(request: BaseHTTPRequestHandler) -> None:
        reason = EVIL.replace("\r", "").encode("utf-8")
        request.wfile.write(b"HTTP/1.1 503 " + reason + b"\r\nContent-Length: 0\r\n\r\n")

    with serving(answer) as address:
        monkeypatch.setenv(MIRROR_VARIABLE, address)
        assert "owned" in harmless(capfd, "data", "info", "hopper-medium-v2")
        with pytest.raises(MildlyError):
            download(address, tmp_path / f"file{EVIL}")
    assert obeyed(RICH.sub("", capfd.readouterr().err)) == []


@pytest.mark.filterwarnings("error:Glyph")  # which matplotlib quotes as they are
def test_a_name_is_no_mathematics_in_a_picture(tmp_path: Path, evil: Path, capfd: pytest.CaptureFixture[str]) -> None:
    harmless(capfd, "data", "info", str(evil), "--plot", str(tmp_path / "set.png"))
    assert (tmp_path / "set.png").is_file()


def test_a_message_that_quotes_a_file_does_not_flood_the_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = make_dataset().save(tmp_path / "data")
    values = unsealed(folder / "dataset.json")
    values["meta"]["name"] = ["x" * 10**6]
    (folder / "dataset.json").write_text(json.dumps(values))
    said = harmless(capfd, "data", "info", str(folder))
    assert "damaged" in said
    assert len(said) < 5000


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
