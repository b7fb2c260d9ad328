"""Flags: what is given is read, by its type and its group, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import pytest
from made_up import MadeUp, MadeUpConfig

from mildly.algorithms import ALGORITHMS
from mildly.cli import main
from mildly.cli.flags import build, flags_of, read
from mildly.cli.marks import Arg, Mark
from mildly.data import formats
from mildly.errors import MildlyError
from mildly.training import offline


@dataclass
class Reading:
    """How to read."""

    scaled: bool = False
    bounds: tuple[float, ...] | None = None


@dataclass
class Command:
    """Each kind of flag."""

    source: Annotated[str, Mark.POSITIONAL]
    more: Annotated[tuple[Path, ...], Mark.POSITIONAL] = ()
    output: Annotated[Path, Arg(aliases=("-o",))] = Path("out")
    count: int | None = 3
    weight: float | Literal["auto"] = 1.0
    name: str | None = None
    check: bool = True
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    policy: Annotated[tuple[str, ...], Mark.REPEATED] = ()
    reading: Annotated[Reading, Mark.NO_PREFIX] = field(default_factory=Reading)


def parsed(*args: str) -> Command:
    return build(Command, read(args, flags_of(Command), "command"))


def test_flags_are_read_by_their_types() -> None:
    assert parsed("a") == Command("a")
    assert parsed("a", "--count", "-4", "--weight=-1e-3", "-o", "b", "--name", "x=y") == Command(
        "a", output=Path("b"), count=-4, weight=-1e-3, name="x=y"
    )
    assert parsed("--no-check", "a", "b", "c", "--json") == Command("a", (Path("b"), Path("c")), check=False, json=True)
    assert parsed("a", "--weight", "auto", "--count", "None", "--name", "None") == Command(
        "a", count=None, weight="auto"
    )
    assert parsed("a", "--policy", "p", "--policy=q") == Command("a", policy=("p", "q"))
    assert parsed("a", "--bounds", "-1", "-.5", "--scaled") == Command("a", reading=Reading(True, (-1.0, -0.5)))
    assert parsed("a", "--scaled", "--no-scaled", "--count", "1", "--count", "2") == Command("a", count=2)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ("", "SOURCE must be given"),
        ("a --wieght 1", "unknown option '--wieght'. Did you mean '--weight'? 'command --help' shows"),
        ("a --no-json", "unknown option '--no-json'"),
        ("a -x", "unknown option '-x'"),
        ("a --count 1.5", "--count must be a whole number, got '1.5'"),
        ("a --weight", "--weight needs a value: --weight NUMBER|auto"),
        ("a --weight --json", "--weight needs a value"),
        ("a --bounds 1 x", "--bounds must be a number, got 'x'"),
        ("a --check=1", "--check takes no value: --check or --no-check"),
        ("a --json true", "--json takes no value: --json"),
    ],
)
def test_mistakes_are_named(args: str, message: str) -> None:
    with pytest.raises(MildlyError) as caught:
        parsed(*args.split())
    assert message in str(caught.value)


def test_groups_have_a_prefix() -> None:
    flags = {flag.name: flag for flag in flags_of(MadeUpConfig)}
    assert flags["behavior.hidden_dims"].option == "--behavior.hidden-dims"
    assert flags["extras.level_start"].spellings == ("--extras.level-start", "--extras.no-level-start")
    assert flags["lam"].option == "--lam"
    assert "behavior" not in flags
    quick = {flag.name: flag.default for flag in flags_of(MadeUpConfig, MadeUpConfig(lam="auto"))}
    assert (quick["lam"], quick["behavior.hidden_dims"]) == ("auto", (750, 750))


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, dict[str, Any]]]:
    """What reaches `train`, which does nothing."""
    calls: list[tuple[str, dict[str, Any]]] = []

    def record(algorithm: str, **given: Any) -> Any:
        calls.append((algorithm, given))
        return SimpleNamespace(path=tmp_path, evaluations=list)

    monkeypatch.setattr(offline, "train", record)
    monkeypatch.setitem(ALGORITHMS, "made-up", MadeUp)
    return calls


def test_only_what_is_given_reaches_the_training(trained: list[tuple[str, dict[str, Any]]]) -> None:
    for name in ALGORITHMS:
        assert main(["train", name, "--dataset", "somewhere"]) == 0
        assert trained.pop() == (name, {"dataset": "somewhere"})
    flags = "--dataset d --seed 0 --lam 0.7 --floor None --no-check --no-one-sided --extras.return-mix 0.1"
    groups = "--behavior.hidden-dims 64 64 --extras.level-start --behavior.kind flow --behavior.steps=5"
    assert main(["train", "made-up", *flags.split(), *groups.split()]) == 0
    assert trained.pop() == (
        "made-up",
        {
            "dataset": "d",
            "seed": 0,
            "lam": 0.7,
            "floor": None,
            "check": False,
            "one_sided": False,
            "extras.return_mix": 0.1,
            "behavior.hidden_dims": (64, 64),
            "extras.level_start": True,
            "behavior.kind": "flow",
            "behavior.steps": 5,
        },
    )


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [
        ("--behavior.hidden-dim", "--behavior.hidden-dims"),
        ("--behavior-hidden-dims", "--behavior.hidden-dims"),
        ("--hidden-dims", "--behavior.hidden-dims"),
        ("--return-mix", "--extras.return-mix"),
        ("--return_mix", "--extras.return-mix"),
        ("--batch_size", "--batch-size"),
        ("--lambda", "--lam"),
    ],
)
def test_unknown_flag_is_told_with_the_nearest(
    trained: list[tuple[str, dict[str, Any]]], capsys: pytest.CaptureFixture[str], wrong: str, nearest: str
) -> None:
    assert main(["train", "made-up", "--dataset", "d", wrong, "1"]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: unknown option '{wrong}'. Did you mean '{nearest}'? 'mildly train made-up --help'")
    assert err.count("\n") == 1
    assert not trained


@pytest.mark.parametrize("algorithm", ["bc", "mcq"])
@pytest.mark.parametrize("check", ["--check", "--no-check"])
def test_a_table_is_opened_once(algorithm: str, check: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = []
    read_file = formats.read
    monkeypatch.setattr(formats, "read", lambda path, *rest: opened.append(path) or read_file(path, *rest))
    lengths = [8, 13, 9, 11, 7, 12] * 4
    steps = [(episode, step == length - 1) for episode, length in enumerate(lengths) for step in range(length)]
    rows = "".join(
        f"{episode},{i * 7 % 31},{i * 5 % 11 / 5 - 1},{i % 5},{int(end)}\n" for i, (episode, end) in enumerate(steps)
    )
    table = tmp_path / "log.csv"
    table.write_text(f"episode,obs,action,reward,terminated\n{rows}")
    short = f"--preset paper --steps 1 --threads 1 --hidden-dims 8 --out {tmp_path / 'run'} {check}"
    assert main(["train", algorithm, "--dataset", str(table), *short.split()]) == 0
    assert opened == [table]
