"""The pages that `--help` shows: complete, in groups, no wider than the terminal."""

from __future__ import annotations

import dataclasses
import inspect
import re
from pathlib import Path

import pytest
from made_up import MadeUp

from mildly.algorithms import ALGORITHMS
from mildly.cli import main
from mildly.cli.flags import flags_of
from mildly.cli.train import Options, help_page, reading_flags
from mildly.data import formats
from mildly.training.offline import train

WIDTHS = (60, 80, 100)
PAGE = """\
MADE-UP: a method with a group of each kind, for the tests of flags and help;
nothing of it can be trained.

usage: mildly train made-up --dataset SET [options]

Presets
  The defaults below are those of default.

  default
  paper                       as published
  quick                       fewer actions

Run
[...]

First to change
  --lam NUMBER|auto           Weight of the data's error against the other term,
                              in (0, 1]. (default 0.7)
  --behavior.kind cvae|flow   Its form. (default cvae)

Method
  --floor NUMBER              Lower bound of the targets.
  --reduction min|mean        How targets are combined. (default min)
  --one-sided / --no-one-sided
                              Train actions only where their value is above the
                              target, not below. (default off)
  --gamma NUMBER              Discount factor. (default 0.99)

Networks and optimization
  --actor-lr NUMBER           Learning rate of the actor. (default 3e-4)
  --batch-size INT            Samples in a minibatch. (default 256)
  --normalize-observations / --no-normalize-observations
                              Normalize observations to zero mean and unit
                              variance. The policy keeps the normalization.
                              (default off)

The behavior model
  --behavior.hidden-dims INT ...
                              Widths of its hidden layers. (default 750 750)
  --behavior.steps INT        Train it in this many first steps only; in all if
                              not given.

Extras
  What the paper does not have.

  --extras.return-mix NUMBER  Weight of the data's returns in the targets.
                              (default 0)
  --extras.level-start / --extras.no-level-start
                              Start at the level of the data's returns.
                              (default off)
"""
"""What `mildly train made-up --help` shows at 80 columns; the options of the run and of reading are left out."""


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ALGORITHMS, "made-up", MadeUp)


def shown(name: str, *args: str, width: int = 80) -> str:
    return "".join(f"{line.plain}\n" for line in help_page(name, ALGORITHMS[name], args).lines(width))


def one_line(text: str) -> str:
    return " ".join(text.split())


def text_of(option: str, page: str) -> str:
    """All that a page says of a flag, as one line."""
    (entry,) = re.findall(rf"^  {re.escape(option)} .*\n(?:   .*\n)*", page, re.MULTILINE)
    return one_line(entry)


def test_page_of_a_small_algorithm() -> None:
    page = shown("made-up")
    start, end, reading = (page.index(words) for words in ("  --dataset", "\nFirst to change", "\nHow to read a file"))
    assert page[:start] + "[...]\n" + page[end:reading] == PAGE


def test_page_is_printed_as_wide_as_the_terminal_and_without_codes_elsewhere(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns, width in ((70, 70), (80, 80), (140, 100)):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert main(["train", "made-up", "--help"]) == 0
        assert capsys.readouterr().out == shown("made-up", width=width)


@pytest.mark.parametrize("name", [*ALGORITHMS, "made-up"])
def test_page_shows_every_field_once_and_nothing_of_python(name: str) -> None:
    kind = ALGORITHMS[name]
    flags = [*flags_of(Options), *reading_flags(), *flags_of(kind.Config)]
    for width in WIDTHS:
        page = shown(name, width=width)
        assert sorted(re.findall(r"^  (--[\w.-]+)", page, re.MULTILINE)) == sorted(flag.option for flag in flags)
        assert max(map(len, page.splitlines())) <= width
        assert not re.search(r"\{|None\||default None|MISSING|<class", page)
        assert not re.search(r" $", page, re.MULTILINE)
    assert all(flag.text for flag in flags)
    assert {*kind.KEY_FIELDS} <= {flag.name for flag in flags}
    presets = one_line(page.split("\nRun\n")[0])
    for preset in kind.PRESETS:
        assert kind.PRESET_NOTES[preset]
        assert f" {preset} {kind.PRESET_NOTES[preset]}" in presets


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_first_to_change_is_a_handful_of_fields(name: str) -> None:
    kind = ALGORITHMS[name]
    start, end = (shown(name).index(title) for title in ("\nFirst to change\n", "\nNetworks and optimization\n"))
    listed = re.findall(r"^  --([\w.-]+)", shown(name)[start:end].split("\nMethod\n")[0], re.MULTILINE)
    assert listed == [field.replace("_", "-") for field in kind.KEY_FIELDS]
    assert 5 <= len(listed) <= 10


def test_a_preset_without_words_is_shown_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(MadeUp, "PRESET_NOTES", {})
    assert "\n  default\n  paper\n  quick\n" in shown("made-up")


def test_groups_are_in_order_and_a_methods_own_fields_come_first() -> None:
    titles = re.findall(r"^[A-Z][a-z ]+$", shown("made-up"), re.MULTILINE)
    fixed = ["Presets", "Run", "First to change", "Method", "Networks and optimization"]
    assert titles == [*fixed, "The behavior model", "Extras", "How to read a file of logs"]
    page = shown("td3-bc")
    assert page.index("--alpha ") < page.index("--gamma ") < page.index("\nMethod\n") < page.index("--policy-noise ")
    page = shown("mcq-td3")[shown("mcq-td3").index("\nMethod\n") :]
    assert page.index("--policy-delay ") < page.index("--ood-weight ") < page.index("--noise-clip ")
    assert page.index("\nBehavior model: ") < page.index("\nExtras: ")  # as it is what MCQ adds to TD3


def test_defaults_are_those_of_the_preset_and_the_data_set(tmp_path: Path) -> None:
    quick = shown("made-up", "--preset", "quick")
    assert "those of quick." in quick
    assert "those of default." in shown("made-up", "--preset", "--help")
    assert text_of("--lam", quick).endswith("(default auto)")
    assert text_of("--floor", quick).endswith("(default -1.5)")
    assert text_of("--extras.return-mix", quick).endswith("(default 0.1)")
    (tmp_path / "hopper_random-v2.csv").touch()
    for dataset in ("hopper-random-v2", str(tmp_path / "hopper_random-v2.csv")):
        page = shown("mcq", "--preset=small", "--dataset", dataset)
        assert "those of small on hopper-random-v2." in one_line(page)
        assert text_of("--lam", page).endswith("(default 0.6)")
        assert text_of("--hidden-dims", page).endswith("(default 128 128)")
    assert "on hopper-mixed." in one_line(shown("mcq", "--dataset", "hopper-mixed"))
    assert "on D4RL/pen/human-v2." in one_line(shown("mcq", "--dataset", "minari:D4RL/pen/human-v2"))


def test_page_opens_no_file_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(formats, "read", lambda *args: pytest.fail("opened"))
    (tmp_path / "log.csv").write_text("a,b\n")
    assert "those of default on log." in one_line(shown("mcq", "--dataset", str(tmp_path / "log.csv")))


def test_defaults_of_the_run_are_those_of_the_library() -> None:
    parameters = inspect.signature(train).parameters
    for field in dataclasses.fields(Options):
        default = parameters[field.name].default
        assert field.default == (dataclasses.MISSING if default is inspect.Parameter.empty else default)


def test_train_lists_the_algorithms(capsys: pytest.CaptureFixture[str]) -> None:
    for args, code in ((["train", "--help"], 0), (["train"], 2)):
        assert main(args) == code
        out = capsys.readouterr().out
        assert all(f"\n  {name} " in out for name in ALGORITHMS)
        assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize(
    "command",
    ["train --resume x", "evaluate", "sweep", "report", "theory", "bench", "paper table1"]
    + [f"data {action}" for action in ("list", "info", "check", "convert", "collect")],
)
def test_every_command_has_a_page(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command.split(), "--help"])
    assert ended.value.code == 0
    out = capsys.readouterr().out
    assert f"\nusage: mildly {command.removesuffix(' x')}" in out
    assert "\nOptions\n" in out
    assert "None" not in out
    options = out[out.index("\nOptions\n") :]
    assert max(map(len, options.splitlines())) <= 80
