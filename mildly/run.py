"""The run folder: plain files that any tool can read.

A run leaves

    run.json               the plan: algorithm, config, data, seed; and versions
    metrics.jsonl          a line every few hundred steps: losses and value estimates
    evaluations.jsonl      a line per evaluation: every episode's return
    checkpoint.safetensors the whole state, replaced atomically
    checkpoint.previous.safetensors   the checkpoint before, in case the last is damaged
    timing.json            seconds spent on updates, data, bookkeeping, evaluation, checkpoints; peak memory
    policy/                the policy as of the last checkpoint, ready to deploy
    dynamics/              the dynamics model, where one was learned
    best/                  the policy of the best evaluation since fine-tuning began, if it was fine-tuned
    online-1.bin           every transition that it has made online in the first part of fine-tuning, and so on
    tensorboard/           event files, if asked for
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from mildly.data.dataset import Meta
from mildly.errors import MildlyError
from mildly.files import (
    atomic_write,
    is_temporary,
    open_own,
    parse_json,
    plain_name,
    read_json,
    read_own_json,
    refuse_links,
    remove_leftovers,
    write_json,
)
from mildly.stage import Stage
from mildly.versions import versions as versions

FORMAT = 2
_LEAST = {
    "steps": 1,
    "seed": 0,
    "eval_every": 0,
    "episodes": 1,
    "log_every": 1,
    "checkpoint_every": 1,
    "threads": 1,
}
_MOST = {"seed": 2**32 - 1, "threads": 1024} | dict.fromkeys(
    ("steps", "eval_every", "episodes", "log_every", "checkpoint_every"), 10**15
)
_TYPES = {
    "algorithm": str,
    "preset": str,
    "config": dict,
    "device": str,
    "variant": str,
    **dict.fromkeys(("tensorboard", "watch_values"), bool),
    "reading": dict,
    "held_out": list,
}
_LINES = ("metrics.jsonl", "evaluations.jsonl")
_PEAK = "peak_megabytes"


class OtherFormat(MildlyError):
    """A file of another version."""


def check_format(path: Path, found: object, known: object) -> None:
    """Raise where a file is of another format than this version reads."""
    if found != known:
        raise OtherFormat(
            f"{path}: of another version of mildly (format {found}; this one reads {known}). Train it again, or use "
            "that version."
        )


@dataclass(frozen=True)
class Plan:
    """Everything that determines a run. Two runs with equal plans on one machine have equal bits."""

    algorithm: str
    preset: str
    config: dict[str, Any]
    dataset: str | None
    data: Meta
    steps: int
    seed: int
    eval_every: int
    episodes: int
    env: str | None
    log_every: int
    checkpoint_every: int
    device: str
    threads: int
    tensorboard: bool = False
    watch_values: bool = True
    variant: str = ""
    """What a sweep calls this run's settings, such as `lam=0.5`; empty for a run of its own."""
    reading: dict[str, Any] = field(default_factory=dict)
    """The options that a raw log was read with."""
    held_out: list[int] = field(default_factory=list)
    """Episodes of the data that are not trained on, by their numbers."""
    finetune: tuple[Stage, ...] = ()
    """What came after the first data; `steps` counts these parts, too."""

    @property
    def further(self) -> str:
        """What came after the first data, in words."""
        return ", then ".join(stage.words for stage in self.finetune) or "none"

    @property
    def holdout(self) -> str:
        """How many episodes are not trained on, in words; which they are differs by seed."""
        return f"{len(self.held_out):,} episodes" if self.held_out else "none"

    @property
    def offline_steps(self) -> int:
        """The steps on the first data."""
        return self.finetune[0].start if self.finetune else self.steps

    @property
    def flat_config(self) -> dict[str, Any]:
        """The config's fields; those inside groups have dotted names, such as `behavior.model`."""
        return flatten(self.config)

    def __post_init__(self) -> None:
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if type(value) is not int:
                raise MildlyError(f"{name} must be a whole number, got {value!r}.")
            if value < least:
                raise MildlyError(f"{name} must be at least {least}, got {value}.")
            if value > _MOST[name]:
                raise MildlyError(f"{name} must be at most {_MOST[name]:,}, got {value:,}.")


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    def check_free(self) -> None:
        """A folder that holds a run, or anything but what a killed start may have left, is never touched."""
        path = self.path
        if (path / "run.json").exists():
            raise MildlyError(
                f"{path}: holds a run already. Go on with 'mildly train --resume {path}', or choose another --out."
            )
        if path.exists() and (not path.is_dir() or not all(map(is_temporary, path.iterdir()))):
            raise MildlyError(f"{path}: exists and is not an empty folder. Choose another --out.")

    @classmethod
    @contextmanager
    def claim(cls, out: str | os.PathLike[str] | None, name: str) -> Iterator[Run]:
        """A new folder that is this process's alone, locked: `out`, or the next free one called `runs/NAME`.

        Where nothing was written to it in the end, it disappears again.
        """
        first = [] if Path("runs").exists() else [Path("runs")]
        run = cls(Path(out)) if out is not None else cls._reserve(Path("runs") / plain_name(name))
        new = [run.path, *first]
        if out is not None:
            run.check_free()
        made = [path for path in (run.path, *run.path.parents) if not path.exists()] if out is not None else new
        try:
            run.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MildlyError(f"{run.path}: cannot be made ({error.strerror}). Choose another --out.") from error
        with run.locked():
            try:
                run.check_free()
                yield run
            finally:
                with suppress(OSError):  # not empty: something was written. Only who has the lock may remove it
                    for path in made:
                        path.rmdir()

    @classmethod
    def _reserve(cls, path: Path) -> Run:
        """Make the folder, or the first with a number behind its name that does not exist yet."""
        candidate, number = path, 2
        while True:
            try:
                candidate.parent.mkdir(parents=True, exist_ok=True)
                candidate.mkdir()
                return cls(candidate)
            except FileNotFoundError:  # another start, which came to nothing, has just removed `runs`
                continue
            except FileExistsError:
                candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
            except OSError as error:
                raise MildlyError(f"{candidate}: cannot be made ({error.strerror}). Choose another --out.") from error

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """An existing run."""
        run = cls(Path(path))
        if not (run.path / "run.json").is_file():
            raise MildlyError(f"{path}: no run here (no run.json). Start one with 'mildly train'.")
        return run

    def check_own(self) -> None:
        """Before writing into an existing run: no links, and no leftovers of processes that were killed."""
        refuse_links(self.path)
        for folder in (self.path, self.path / "policy", self.path / "dynamics", self.path / "best"):
            remove_leftovers(folder)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps other processes from training in this folder; the lock dies with the process."""
        if sys.platform == "win32":  # has no such locks
            yield
            return
        import fcntl

        busy = MildlyError(f"{self.path}: another process is training in this folder.")
        try:
            folder = os.open(self.path, os.O_RDONLY)
        except FileNotFoundError as error:  # removed by one that came to nothing, just now
            raise busy from error
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise busy from error
            if not self.path.exists() or not os.path.samestat(os.fstat(folder), self.path.stat()):
                raise busy
            yield
        finally:
            os.close(folder)

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's file."""
        return self.path / "checkpoint.safetensors"

    def plan(self) -> Plan:
        """The plan in `run.json`."""
        path = self.path / "run.json"
        try:
            values = read_own_json(path, lambda given: check_format(path, given["format"], FORMAT))
            names = {field.name for field in dataclasses.fields(Plan)}
            plan = {name: value for name, value in values.items() if name in names}
            _check_types(plan)
            stages = tuple(Stage.from_json(stage) for stage in values.get("finetune", ()))
            return Plan(**{**plan, "data": Meta.from_json(values["data"]), "finetune": stages})
        except OtherFormat:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MildlyError) as error:
            raise MildlyError(f"{path}: damaged ({error}).") from error

    def write_plan(self, plan: Plan) -> None:
        """Replace `run.json`; the versions stay those that the run was begun with."""
        path = self.path / "run.json"
        begun_with = read_own_json(path).get("versions", {}) if path.exists() else versions()
        values = {"format": FORMAT, **dataclasses.asdict(plan), "data": plan.data.to_json(), "versions": begun_with}
        write_json(path, json.loads(json.dumps(values)))

    def metrics(self, phase: str | None = None) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl` about the main steps, or about a phase before them."""
        path = self.path / "metrics.jsonl"
        lines = [line for line in _read_lines(path) if line.get("phase") == phase]
        for line in lines:
            if not all(is_number(value) for name, value in line.items() if name != "phase"):
                raise MildlyError(f"{path}: damaged (step {line['step']} has something else than numbers).")
        return lines

    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of `evaluations.jsonl`: increasing steps, numbers of episodes, and their means.

        Of one step there are two where fine-tuning begins in another environment.
        """
        path = self.path / "evaluations.jsonl"
        lines = [{"score": None, "env_id": None, **line} for line in _read_lines(path)]
        for before, after in pairwise(lines):
            moved = before["env_id"] != after["env_id"]
            if before["step"] > after["step"] or (before["step"] == after["step"] and not moved):
                raise MildlyError(f"{path}: damaged (steps that do not increase).")
        for line in lines:
            if not all(_are_numbers(line.get(name)) for name in ("returns", "scores", "lengths")):
                raise MildlyError(f"{path}: damaged (step {line['step']} has something else than numbers).")
            if not is_number(line.get("mean_return")) or not (line["score"] is None or is_number(line["score"])):
                raise MildlyError(f"{path}: damaged (step {line['step']} has no mean_return or no sound score).")
        return lines

    def timing(self) -> dict[str, float]:
        """Seconds spent so far, by what they were spent on; empty before the first checkpoint."""
        return {part: spent for part, spent in self._timing().items() if part != _PEAK}

    def peak_megabytes(self) -> float | None:
        """The most memory that the process, or the GPU, has used; None before the first checkpoint."""
        return self._timing().get(_PEAK)

    def _timing(self) -> dict[str, float]:
        path = self.path / "timing.json"
        try:
            return {part: float(value) for part, value in read_json(path).items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, TypeError, AttributeError, OverflowError) as error:
            raise MildlyError(f"{path}: damaged ({error}).") from error

    def write_timing(self, seconds: Mapping[str, float], peak_megabytes: float) -> None:
        """Replace `timing.json`."""
        values = {part: round(spent, 3) for part, spent in seconds.items()} | {_PEAK: round(peak_megabytes)}
        with atomic_write(self.path / "timing.json") as unfinished:
            unfinished.write_text(json.dumps(values) + "\n")

    def secure_lines(self) -> dict[str, int]:
        """Make sure that all lines so far are on disk; the sizes of their files, for `rewind`."""
        sizes = {}
        for name in _LINES:
            path = self.path / name
            if path.exists():
                with open_own(path, "rb+") as file:
                    os.fsync(file.fileno())
                sizes[name] = path.stat().st_size
        return sizes

    def rewind(self, sizes: Mapping[str, int]) -> None:
        """Cut the files of lines to the sizes they had at a checkpoint; what came later will be written again."""
        for name in _LINES:
            path, size = self.path / name, sizes.get(name, 0)
            if (path.stat().st_size if path.exists() else 0) < size:
                raise MildlyError(f"{path}: lines that the checkpoint knows are missing. Restore the file from a copy.")
            if path.exists():
                with open_own(path, "rb+") as file:
                    file.truncate(size)

    def append(self, name: str, line: dict[str, Any]) -> None:
        """Add a line to `metrics.jsonl` or `evaluations.jsonl`."""
        with open_own(self.path / name, "ab") as file:
            file.write(json.dumps(line).encode() + b"\n")


def _check_types(plan: Mapping[str, Any]) -> None:
    """Raise where a plan from a file has something of another type; numbers are checked by the plan itself."""
    for name, kind in _TYPES.items():
        if name in plan and not isinstance(plan[name], kind):
            raise TypeError(f"{name} is {plan[name]!r}")
    for name in ("dataset", "env"):
        if not isinstance(plan.get(name), str | None):
            raise TypeError(f"{name} is {plan[name]!r}")


def flatten(values: Any) -> dict[str, Any]:
    """The fields of a config, a dataclass or nested mappings, by their dotted names."""
    items = vars(values) if dataclasses.is_dataclass(values) else values
    flat: dict[str, Any] = {}
    for name, value in items.items():
        if isinstance(value, Mapping) or dataclasses.is_dataclass(value):
            flat |= {f"{name}.{inner}": kept for inner, kept in flatten(value).items()}
        else:
            flat[name] = value
    return flat


def is_number(value: Any) -> bool:
    """Whether something from a file is a finite number."""
    return type(value) in (int, float) and math.isfinite(value)


def is_step(value: Any) -> bool:
    """Whether something from a file is a number of steps that a run may have."""
    return type(value) is int and 0 <= value <= _MOST["steps"]


def _are_numbers(values: Any) -> bool:
    return values is None or (isinstance(values, list) and all(map(is_number, values)))


def training_seconds(seconds: Mapping[str, float]) -> float:
    """Of what `Run.timing` gives, that spent on gradient steps: evaluations and checkpoints do not count."""
    return sum(seconds.get(part, 0.0) for part in ("update", "data", "bookkeeping"))


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines; a last line without its end is what a crash left, and is skipped."""
    if not path.exists():
        return []
    try:
        read = [parse_json(line) for line in path.read_bytes().split(b"\n")[:-1]]
        if not all(isinstance(line, dict) and is_step(line.get("step")) for line in read):
            raise ValueError("a line without a step")
        return read
    except ValueError as error:
        raise MildlyError(f"{path}: damaged ({error}).") from error
