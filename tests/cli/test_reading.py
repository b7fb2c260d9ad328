"""One set of reading options: what reads a raw log in one command reads it in all, and advice names no other."""

from __future__ import annotations

import ast
import json
import re
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import Refused, run_fields, unsealed
from hypothesis import given, strategies as st

import mildly
from mildly.algorithms import ALGORITHMS
from mildly.cli import main
from mildly.cli.data.check import CheckOptions
from mildly.cli.data.convert import ConvertOptions
from mildly.cli.data.info import InfoOptions
from mildly.cli.flags import flags_of
from mildly.cli.train import Options, ResumeOptions, reading_flags
from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError, Stopped
from mildly.run import Run

OPTIONS = ["--action", "valve", "--reward", "-power - 10*abs(temp - 21)", "--time", "at", "--max-gap", "90"]
SHORT = ["--steps", "12", "--threads", "1", "--hidden-dims", "8", "--batch-size", "8", "--eval-every", "0"]


def building(path: Path, rows: int = 120) -> Path:
    """A room, its heating and the time; half an hour is missing in the middle."""
    random = np.random.default_rng(0)
    lines = ["at,temp,outside,power,valve"]
    for i in range(rows):
        minute = i + 30 * (i >= rows // 2)
        numbers = [20 + random.normal(), 5 + random.normal(), abs(random.normal()), random.uniform(0, 100)]
        lines.append(",".join([f"2024-05-01 {minute // 60:02}:{minute % 60:02}:00", *(f"{x:.3f}" for x in numbers)]))
    path.write_text("\n".join(lines) + "\n")
    return path


def spellings(*kinds: Any) -> set[str]:
    return {name for kind in kinds for flag in flags_of(kind) for name in flag.spellings}


READING = spellings(ImportOptions)
COMMANDS = {
    "data info": spellings(InfoOptions),
    "data check": spellings(CheckOptions),
    "data convert": spellings(ConvertOptions),
    "train": {name for flag in reading_flags() for name in flag.spellings}
    | spellings(Options, ResumeOptions, *(kind.Config for kind in ALGORITHMS.values())),
}


@pytest.mark.parametrize("command", ["data info", "data check", "data convert", "train"])
def test_every_command_that_reads_a_log_has_all_options_of_reading(command: str) -> None:
    assert COMMANDS[command] >= READING


def test_the_same_words_read_the_same_data_in_every_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = str(building(tmp_path / "log.csv"))
    assert main(["data", "convert", log, str(tmp_path / "set"), *OPTIONS]) == 0
    made = Dataset.load(tmp_path / "set")
    assert (len(made), len(made.episodes()), made.observation_size) == (118, 2, 3)
    capsys.readouterr()
    assert main(["data", "info", log, *OPTIONS]) == 0
    assert made.meta.fingerprint[:16] in capsys.readouterr().out
    assert main(["data", "check", log, *OPTIONS]) in (0, 1)
    assert "118 transitions" in capsys.readouterr().out
    assert main(["train", "bc", "--dataset", log, "--out", str(tmp_path / "run"), *SHORT, *OPTIONS]) == 0
    assert Run.open(tmp_path / "run").plan().data.fingerprint == made.meta.fingerprint


def test_the_check_that_a_training_recommends_can_be_run_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(building(tmp_path / "a log.csv"))
    bounds = ["--action-low", "-1", "--action-high", "101"]
    assert main(["train", "bc", "--dataset", log, "--out", str(tmp_path / "run"), *SHORT, *OPTIONS, *bounds]) == 0
    advice = re.search(r"^'mildly (data check .*)' shows it in full$", capsys.readouterr().err, re.MULTILINE)
    assert advice is not None
    assert main(shlex.split(advice[1])) in (0, 1)
    assert "118 transitions" in capsys.readouterr().out


def test_the_next_steps_of_the_data_commands_can_be_run_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    building(tmp_path / "a log.csv")
    asked: list[tuple[str, dict[str, Any]]] = []

    def train(name: str, **given: Any) -> Any:
        asked.append((name, given))
        raise Stopped("no more is wanted here", 2)

    monkeypatch.setattr("mildly.training.offline.train", train)
    where = ["a log", "--data-dir", str(tmp_path)]
    for reward, algorithm in (OPTIONS[3], "mcq"), ("none", "bc"):
        options = ["--action", "valve", "--reward", reward, "--time", "at", "--max-gap", "90"]
        assert main(["data", "info", *where, *options]) == 0
        assert main(shlex.split(_next(capsys))[1:]) == 0
        main(shlex.split(_next(capsys))[1:])
        name, given = asked.pop()
        assert (name, given["dataset"], given["data_dir"]) == (algorithm, "a log", str(tmp_path))
        assert given["reading"] == ImportOptions(action="valve", reward=reward, time="at", max_gap=90.0)


def _next(capsys: pytest.CaptureFixture[str]) -> str:
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("next: "))
    return line.removeprefix("next: ")


def test_the_advice_of_the_check_reads_the_same_log_in_the_same_way(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = building(tmp_path / "a log.csv")
    lines = log.read_text().splitlines()
    lines[20] = ",".join([*lines[20].split(",")[:3], "", "0"])
    log.write_text("\n".join(lines) + "\n")
    assert main(["data", "check", str(log), *OPTIONS[:2], "--cost", "power"]) == 1
    advice = re.search(r"`(mildly data convert .*? --drop-bad-rows)`", capsys.readouterr().out)
    assert advice is not None
    command = advice[1].replace(" DST ", f" {shlex.quote(str(tmp_path / 'set'))} ")
    assert main(shlex.split(command)[1:]) == 0
    assert load_dataset(tmp_path / "set").meta.action_names == ("valve",)


def test_a_run_on_a_raw_log_is_resumed_on_the_same_data(tmp_path: Path) -> None:
    log = str(building(tmp_path / "log.csv"))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    start = ["train", "bc", "--dataset", log, *OPTIONS, *SHORT, "--log-every", "2"]
    assert main([*start, "--out", str(whole)]) == 0
    assert main([*start, "--out", str(parts), "--steps", "6"]) == 0
    assert main(["train", "--resume", str(parts), "--steps", "12"]) == 0
    assert Run.open(whole).plan().reading == {
        "action": "valve",
        "reward": "-power - 10*abs(temp - 21)",
        "time": "at",
        "max_gap": 90.0,
    }
    for name in ("metrics.jsonl", "policy/weights.safetensors"):
        assert (whole / name).read_bytes() == (parts / name).read_bytes()


@pytest.mark.parametrize(
    "reading", [{"obs": 3}, {"nonsense": "x"}, {"scaled": 1}, {"action_low": "1"}, {"action_low": [1]}, {"max_gap": -1}]
)
def test_damaged_options_of_reading_are_told(tmp_path: Path, reading: Any, refused: Refused) -> None:
    log = str(building(tmp_path / "log.csv"))
    assert main(["train", "bc", "--dataset", log, "--out", str(tmp_path / "run"), *OPTIONS, *SHORT]) == 0
    path = tmp_path / "run" / "run.json"
    path.write_text(json.dumps({**unsealed(path), "reading": reading}))
    assert "the options of reading in it are damaged" in refused.command("train", "--resume", str(tmp_path / "run"))


numbers = st.floats(allow_nan=False, allow_infinity=False, min_value=0.1, max_value=1e6)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "obs": st.text(),
            "time": st.text(),
            "max_gap": numbers,
            "scaled": st.booleans(),
            "time_limit": st.integers(1, 1000),
            "drop_bad_rows": st.booleans(),
            "env": st.text(),
        },
    ),
    st.lists(numbers, min_size=1, max_size=3),
)
def test_options_survive_a_file(given: dict[str, Any], low: list[float]) -> None:
    options = ImportOptions(**given, action_low=tuple(low), action_high=tuple(x + 1 for x in low))
    assert ImportOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    assert ImportOptions().to_json() == {}
    assert ImportOptions(max_memory=3).to_json() == {}


def test_the_environment_of_a_training_gives_a_raw_log_its_bounds(tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    data = mildly.load_dataset("pendulum-mixed")
    rows = "".join(
        f"{','.join(map(str, data.observations[i]))},{1.9 * data.actions[i, 0]},{data.rewards[i]}\n" for i in range(60)
    )
    (tmp_path / "log.csv").write_text("cos,sin,speed,torque,reward\n" + rows)
    run = mildly.train(
        "bc",
        tmp_path / "log.csv",
        reading=ImportOptions(action="torque"),
        env="Pendulum-v1",
        steps=2,
        out=tmp_path / "run",
        eval_every=0,
        log_every=1,
        check=False,
        **run_fields("bc"),
    )
    space = run.plan().data.action_space
    assert space is not None
    assert (space.low, space.high) == ((-2.0,), (2.0,))
    assert mildly.resume(run.path, steps=4).metrics()[-1]["step"] == 4


# Without a reward


def test_bc_trains_without_a_reward_and_others_refuse_with_advice(
    tmp_path: Path, refused: Refused, capsys: pytest.CaptureFixture[str]
) -> None:
    log = str(building(tmp_path / "log.csv"))
    args = ["--dataset", log, "--action", "valve", *SHORT]
    assert main(["train", "bc", *args, "--out", str(tmp_path / "run")]) == 0
    assert "The log has no reward" in capsys.readouterr().err
    assert main(["train", "--resume", str(tmp_path / "run"), "--steps", "14"]) == 0
    for algorithm in ("iql", "td3-bc", "mcq"):
        assert "cannot tell which column is the reward" in refused.command("train", algorithm, *args)
        told = refused.command("train", algorithm, *args, "--reward", "none")
        assert f"has no reward, and {algorithm} learns from it" in told
        assert "mildly train bc" in told
    told = refused.command("train", "bc", *args, "--best-episodes", "0.5")
    assert "has no reward, and --best-episodes chooses by it" in told


def test_a_converted_log_without_a_reward_is_refused_too(tmp_path: Path, refused: Refused) -> None:
    log, made = str(building(tmp_path / "log.csv")), str(tmp_path / "set")
    assert main(["data", "convert", log, made, "--action", "valve", "--reward", "none"]) == 0
    assert "learns from it" in refused.command("train", "iql", "--dataset", made, *SHORT, "--no-check")
    assert main(["train", "bc", "--dataset", made, "--out", str(tmp_path / "run"), *SHORT]) == 0


# Advice

PACKAGE = Path(mildly.__file__).parent
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
NAMED = re.compile(r"mildly (data \w+|\w+)|(Train) with")


def sentences(path: Path) -> list[str]:
    """The texts of a module, formatted ones with their fixed parts joined; docstrings are left out."""
    tree = ast.parse(path.read_text())
    docs = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    }
    inner = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            found.append("".join(str(part.value) if isinstance(part, ast.Constant) else "?" for part in node.values))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs | inner:
            found.append(node.value)
    return found


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "data").rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE))
)
def test_advice_names_only_options_that_the_command_has(path: Path) -> None:
    """An option that follows a command's name is that command's; any other is one of all that read a log."""
    everywhere = set.intersection(*(COMMANDS[name] for name in ("data info", "data check", "data convert", "train")))
    own = {"convert.py": COMMANDS["data convert"]}.get(path.name, everywhere) | {"--trust-env"}
    for sentence in sentences(path):
        named = [(found.start(), found[1] or found[2].lower()) for found in NAMED.finditer(sentence)]
        commands = [(place, name) for place, name in named if name in COMMANDS]
        for found in OPTION.finditer(sentence):
            before = [name for place, name in commands if place < found.start()]
            known = COMMANDS[before[-1]] if before else own
            assert found[0] in known | everywhere, f"'{found[0]}' in: {sentence}"


def test_the_walk_finds_an_option_that_is_not_there(tmp_path: Path) -> None:
    (tmp_path / "advice.py").write_text('x = 3\nraise E(f"{x}: give --wrong" " or --right")\n')
    assert [OPTION.findall(text) for text in sentences(tmp_path / "advice.py")] == [["--wrong", "--right"]]


def test_options_of_reading_that_cannot_be_are_named() -> None:
    with pytest.raises(MildlyError, match="max-gap must be positive"):
        ImportOptions(max_gap=float("nan"))
