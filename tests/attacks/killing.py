"""Commands that are killed (SIGKILL): before the nth change that they make to a folder, or at a moment of any kind."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random

from mildly.collect.agent import read_plan
from mildly.data.registry import load_dataset
from mildly.dynamics import load_dynamics
from mildly.files import read_json
from mildly.policy import load_policy
from mildly.run import Run
from mildly.training import checkpoint

# A process forks one for each command, so that torch, which takes longer to load than a tiny run, is loaded once.
_SERVER = """
import json, os, sys, tempfile
import torch._dynamo  # which an optimizer loads when it is first used
import mildly.collect.make_set, mildly.experiments.sweep, mildly.report.page, mildly.training.offline
from mildly.cli import main

for line in sys.stdin:
    task = json.loads(line)
    pid = os.fork()
    if pid == 0:
        os.environ.update(task["environment"])
        os.chdir(task["folder"])
        said = os.open(task["said"], os.O_CREAT | os.O_WRONLY)
        for number, target in enumerate((os.open(os.devnull, os.O_RDONLY), said, said)):
            os.dup2(target, number)
        tempfile.tempdir = None  # as if it had not been looked for yet
        exec(open(task["watch"]).read(), {})
        code = 1
        try:
            code = main(task["args"])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""
# Each change that a process makes below the folder is a byte in a file named after it; before the change with a given
# number it kills itself, once for all processes of a command together.
_WATCH = """
import os, signal, sys

who = "worker" if "mildly.experiments.worker" in sys.orig_argv else "command"
changes = 0
writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT

def watch(event, args):
    global changes
    if event == "open":
        if not args[2] & writing:
            return
    elif event not in ("os.rename", "os.link", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.chmod"):
        return
    paths = [os.path.abspath(os.fsdecode(path)) for path in args[:2] if isinstance(path, (str, bytes, os.PathLike))]
    if not any(path.startswith(os.environ["KILL_BELOW"] + os.sep) for path in paths):
        return
    changes += 1
    os.write(note, b".")
    if changes == int(os.environ["KILL_BEFORE"]):
        try:
            os.close(os.open(os.path.join(os.environ["KILL_NOTES"], "killed"), os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        os.kill(os.getpid(), signal.SIGKILL)

if os.environ.get("KILL_WHO") in (who, "all"):
    note = os.open(os.path.join(os.environ["KILL_NOTES"], str(os.getpid())), os.O_CREAT | os.O_WRONLY)
    sys.addaudithook(watch)
"""
_PATIENCE = 300.0  # seconds for a command to end


@dataclass(frozen=True)
class Moment:
    """When to kill: before a change with this number, or so many seconds after the first change (or the start)."""

    change: int = 0
    seconds: float | None = None


NEVER = Moment()


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    killed: bool
    """Whether it, or one of its workers, was killed on the way."""
    changes: int
    """Of the process that made the most."""
    seconds: float
    """From the first change, or from the start of a command that makes none."""
    message: str


class Killer:
    """Runs commands in folders, and kills them."""

    def __init__(self, place: Path) -> None:
        """`place` is for notes."""
        self.place, self.runs = place, 0
        self.watch = place / "sitecustomize.py"  # by that name, a sweep's workers load it before anything else
        self.watch.write_text(_WATCH)
        self.server = subprocess.Popen(
            [sys.executable, "-c", _SERVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )

    def close(self) -> None:
        """End the process that starts the commands."""
        self.server.kill()
        self.server.communicate()

    def run(
        self,
        args: Sequence[str],
        folder: Path,
        moment: Moment = NEVER,
        who: str = "command",
        writes: bool = True,
    ) -> Ended:
        """The command, to its end or to the moment.

        Args:
            args: what a person types behind `mildly`.
            folder: where.
            moment: when to kill.
            who: the `command`, a `worker` of a sweep, or `all` of them together.
            writes: whether the command changes its folder, so that seconds count from the first change.
        """
        self.runs += 1
        notes = self.place / f"notes-{self.runs}"
        notes.mkdir()
        environment = {
            "PYTHONPATH": os.pathsep.join([str(self.place), os.environ.get("PYTHONPATH", str(self.place))]),
            "MINARI_DATASETS_PATH": str(folder / "minari"),
            "TMPDIR": str(folder / "tmp"),
            "KILL_WHO": who,
            "KILL_BELOW": str(folder),
            "KILL_NOTES": str(notes),
            "KILL_BEFORE": str(moment.change),
        }
        paths = {"folder": str(folder), "said": str(notes / "said"), "watch": str(self.watch)}
        task = {"args": list(args), "environment": environment, **paths}
        assert self.server.stdin is not None
        self.server.stdin.write(json.dumps(task).encode() + b"\n")
        pid = self._answer()
        if writes:
            _wait(lambda: self._ended() or max(_changes(notes).values(), default=0) > 0)
        start = time.monotonic()
        if moment.seconds is not None:
            _wait(self._ended, moment.seconds)
            if not self._ended():
                _kill(pid, who, notes)
        _wait(self._ended)
        return Ended(
            code=self._answer(),
            killed=(notes / "killed").exists(),
            changes=max(_changes(notes).values(), default=0),
            seconds=time.monotonic() - start,
            message=(notes / "said").read_text(errors="replace") if (notes / "said").exists() else "",
        )

    def _answer(self) -> int:
        assert self.server.stdout is not None
        return int(self.server.stdout.readline())

    def _ended(self) -> bool:
        return bool(select.select([self.server.stdout], [], [], 0)[0])


def _kill(pid: int, who: str, notes: Path) -> None:
    """All that are watched, as a loss of power would."""
    workers = [worker for worker in _changes(notes) if _parent(worker) == pid]
    for each in [*([pid] if who != "worker" else []), *workers]:  # the sweep first: it would start a worker again
        with suppress(ProcessLookupError):
            os.kill(each, signal.SIGKILL)
            (notes / "killed").touch()


def random_moment(random: Random, whole: Ended) -> Moment:
    """A moment of a command that takes so many changes and seconds."""
    if whole.changes and random.random() < 0.5:
        return Moment(change=random.randint(1, whole.changes))
    return Moment(seconds=random.uniform(0.0, whole.seconds))


def _changes(notes: Path) -> dict[int, int]:
    """By process."""
    return {int(note.name): note.stat().st_size for note in notes.iterdir() if note.name.isdigit()}


def _parent(pid: int) -> int:
    """The parent of a process that runs, else 0."""
    asked = subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, text=True)
    return int(asked.stdout or 0)


def _wait(condition: Callable[[], bool], seconds: float = _PATIENCE) -> None:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.001)


def check_sound(folder: Path) -> None:
    """Whatever has its final name is whole."""
    for path in folder.rglob("*"):
        if any(part.startswith(".tmp-") for part in path.relative_to(folder).parts) or not path.is_file():
            continue
        if path.name.startswith("checkpoint"):
            checkpoint.load(path)
        elif path.name == "weights.safetensors":
            (load_dynamics if path.parent.name == "dynamics" else load_policy)(path.parent)
        elif path.name == "run.json":
            Run(path.parent).plan()
            Run(path.parent).metrics()
            Run(path.parent).evaluations()
        elif path.name == "agent.json":
            assert read_plan(path.parent) is not None
        elif path.name == "dataset.json":
            load_dataset(path.parent)
        elif path.suffix == ".json":
            read_json(path)
        elif path.suffix in (".html", ".svg", ".tex"):
            assert path.read_text().rstrip().endswith(("</html>", "</svg>", r"\end{tabular}")), path
        elif path.suffix == ".png":
            assert path.read_bytes()[-8:-4] == b"IEND", path
