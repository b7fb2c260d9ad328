"""Mutated files of every kind through every command that reads them: no traceback, no hang, no memory without bound."""

from __future__ import annotations

import contextlib
import io
import json
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import FrameType

import mutations
import pytest
from carriers import one_of_each
from measuring import memory_now, most_memory
from mutations import damaged

from mildly.cli import main
from mildly.collect.agent import read_plan
from mildly.data.memory import VARIABLE
from mildly.errors import MildlyError, printable
from mildly.files import sha256

SECONDS, WAITING, MEGABYTES = 10.0, 60.0, 400.0
"""What one command may take."""

Call = partial[object]
Mutant = Callable[[Path, random.Random], bytes]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    one_of_each(folder)
    return folder


def data_commands(place: Path, draw: random.Random) -> list[Sequence[str]]:
    copy = str(place.with_name("copy") / draw.choice(("set", "log.npz", "log.csv")))
    return [("data", "info", str(place)), ("data", "check", str(place)), ("data", "convert", str(place), copy)]


def run_commands(place: Path, draw: random.Random) -> list[Sequence[str]]:
    run, out = str(place), place.with_name("out")
    exhibit = draw.choice(("table1", "table1", "table-cost", "fig-parameters"))
    return [
        (
            "report",
            run,
            "--output",
            str(out / "page.html"),
            "--csv",
            str(out / "tables"),
            "--latex",
            str(out / "t.tex"),
        ),
        ("paper", exhibit, "--render-only", "--runs", run, "--out", str(out), "--csv", str(out / "table.csv")),
        ("evaluate", run, "--episodes", "1"),
        ("train", "--resume", run, "--steps", "12"),
    ]


def sweep_commands(place: Path, draw: random.Random) -> list[Sequence[str]]:
    return [("sweep", str(place), "--out", str(place.with_name("sweep")), "--dry-run")]


def policy_commands(place: Path, draw: random.Random) -> list[Sequence[str]]:
    few = ("--env", "Pendulum-v1", "--steps", "5", "--environments", "1")
    return [("data", "collect", str(place.with_name("collected")), "--policy", str(place), *few)]


KINDS: dict[str, tuple[Mutant, Callable[[Path, random.Random], list[Sequence[str]]]]] = {
    "run/run.json": (mutations.of_json, run_commands),
    "run/metrics.jsonl": (mutations.of_lines, run_commands),
    "run/evaluations.jsonl": (mutations.of_lines, run_commands),
    "run/timing.json": (mutations.of_json, run_commands),
    "run/checkpoint.safetensors": (mutations.of_checkpoint, run_commands),
    "run/policy/policy.json": (mutations.of_json, run_commands),
    "run/policy/weights.safetensors": (mutations.of_weights, run_commands),
    "policy.npz": (mutations.of_npz, policy_commands),
    "agent/agent.json": (mutations.of_json, lambda place, draw: []),
    "spec.toml": (mutations.of_toml, sweep_commands),
    "set/dataset.json": (mutations.of_json, data_commands),
    "set/observations.npy": (mutations.of_npy, data_commands),
    "set/truncated.npy": (mutations.of_npy, data_commands),
    "log.csv": (mutations.of_csv, data_commands),
    "log.csv.gz": (mutations.of_csv, data_commands),
    "log.npz": (mutations.of_npz, data_commands),
    "log.hdf5": (mutations.of_hdf5, data_commands),
    "log.parquet": (mutations.of_parquet, data_commands),
    "episodes/data/metadata.json": (mutations.of_json, data_commands),
    "episodes/data/main_data.hdf5": (mutations.of_hdf5, data_commands),
}
"""By file: how its content is changed with knowledge of the format, besides the bytes, and what reads it."""


@pytest.mark.filterwarnings("ignore")
@pytest.mark.timeout(7200, method="thread")  # the other method needs the signal that tells a hang here
@pytest.mark.parametrize("count", [3, pytest.param(260, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_mutated_file_is_read_or_refused(
    tmp_path: Path, sound: Path, kind: str, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "200")
    wrong = []
    for number in range(count):
        draw = random.Random(f"{kind} {number}")
        case = tmp_path / str(number)
        place = changed(sound, case, kind, draw, knowing=number % 2 == 0)
        calls: list[Call] = [partial(main, args) for args in KINDS[kind][1](place, draw)]
        calls += [partial(read_plan, place)] if kind.startswith("agent") else []
        failures = [f"{number}: {call.args}: {failure}" for call in calls if (failure := failure_of(call))]
        wrong += failures
        if not failures:
            shutil.rmtree(case)
    assert not wrong, f"{len(wrong)} of {count}, as in {tmp_path}:\n" + "\n".join(wrong)


def changed(sound: Path, case: Path, kind: str, draw: random.Random, *, knowing: bool) -> Path:
    """A copy of a sound file, or of the folder that it belongs to, which was changed; what a command is given."""
    top = Path(kind).parts[0]
    (case / "out").mkdir(parents=True)
    (case / "copy").mkdir()
    place = case / top
    (shutil.copytree if (sound / top).is_dir() else shutil.copyfile)(sound / top, place)
    file = case / kind
    content = KINDS[kind][0](file, draw) if knowing else damaged(file.read_bytes(), draw)
    file.write_bytes(content)
    if file.name == "weights.safetensors":  # so that it is not refused for the sum alone
        description = json.loads(file.with_name("policy.json").read_text())
        file.with_name("policy.json").write_text(json.dumps({**description, "weights_sha256": [sha256(file)]}))
    return place


class Hang(BaseException):
    """The time is up."""


@contextlib.contextmanager
def at_most(seconds: float, waiting: float) -> Iterator[None]:
    """Raise Hang after so many seconds of work, which do not depend on what else the machine does, or of waiting."""

    def ring(number: int, frame: FrameType | None) -> None:
        raise Hang

    timers = ((signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, waiting))
    before = [(number, signal.signal(number, ring)) for number, _, _ in timers]
    try:
        for _, timer, limit in timers:
            signal.setitimer(timer, limit)
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in before:
            signal.signal(number, handler)


def failure_of(call: Call) -> str:
    """What a command must not do, in words; nothing if it reads the file, or refuses it with a message."""
    screen, began, before = io.StringIO(), time.process_time(), memory_now()
    try:
        with at_most(SECONDS, WAITING), contextlib.redirect_stdout(screen), contextlib.redirect_stderr(screen):
            code = call()
    except MildlyError:
        code = 2
    except Hang:
        return f"hangs: {traceback.format_exc()[-900:]}"
    except BaseException:
        return traceback.format_exc()[-900:]
    if isinstance(code, int) and code not in (0, 2) and not (code == 1 and "check" in call.args[0]):
        return f"exit code {code}: {screen.getvalue()[-300:]}"
    if time.process_time() - began > SECONDS:  # where the signal came too late, in a library
        return f"took {time.process_time() - began:.0f} s"
    if most_memory() - before > MEGABYTES:
        return f"took {most_memory() - before:.0f} MB"
    said = screen.getvalue()
    return "" if printable(said) == said else f"prints {said[-300:]!r}"
