"""The run folder: plain files that any tool can read.

A run leaves

    run.json               what was asked: algorithm, config, data, seed, versions
    metrics.jsonl          a line every few hundred steps: losses and value estimates
    evaluations.jsonl      a line an evaluation: every episode's return
    checkpoint.safetensors the whole state, replaced atomically
    timing.json            seconds spent on updates, data, bookkeeping, evaluation, checkpoints
    policy/                the policy as of the last checkpoint, ready to deploy
"""

from __future__ import annotations

import dataclasses
import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from mildly.data.dataset import Meta
from mildly.errors import MildlyError
from mildly.files import replacing

FORMAT = 1
_NUMBERS = ("steps", "seed", "eval_every", "episodes", "log_every", "checkpoint_every", "threads")
_PACKAGES = ("mildly", "torch", "numpy", "gymnasium", "mujoco")


@dataclass(frozen=True)
class Plan:
    """Everything that determines a run. Two runs with equal plans on one machine have equal bits."""

    algorithm: str
    preset: str
    config: dict[str, Any]
    dataset: str
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


@dataclass(frozen=True)
class Run:
    """A run folder."""

    path: Path

    def check_free(self) -> None:
        """A folder that holds a run, or anything else, is never touched."""
        path = self.path
        if (path / "run.json").exists():
            raise MildlyError(
                f"{path}: holds a run already. Go on with 'mildly train --resume {path}', or choose another --out."
            )
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise MildlyError(f"{path}: exists and is not an empty folder. Choose another --out.")

    def create(self, plan: Plan) -> None:
        """Make the folder and write `run.json`."""
        self.check_free()
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MildlyError(f"{self.path}: cannot be made ({error.strerror}). Choose another --out.") from error
        self.write_plan(plan)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Run:
        """An existing run."""
        run = cls(Path(path))
        if not (run.path / "run.json").is_file():
            raise MildlyError(f"{path}: no run here (no run.json). Start one with 'mildly train'.")
        return run

    @property
    def checkpoint(self) -> Path:
        """The checkpoint's file."""
        return self.path / "checkpoint.safetensors"

    def plan(self) -> Plan:
        """What `run.json` says."""
        path = self.path / "run.json"
        try:
            values = json.loads(path.read_text())
            if values["format"] != FORMAT:
                raise ValueError(f"format {values['format']}, expected {FORMAT}")
            names = {field.name for field in dataclasses.fields(Plan)}
            plan = {name: value for name, value in values.items() if name in names}
            for name in _NUMBERS:
                if not isinstance(plan[name], int):
                    raise ValueError(f"{name} is {plan[name]!r}, expected a whole number")
            return Plan(**{**plan, "data": Meta.from_json(values["data"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MildlyError(f"{path}: damaged ({error}).") from error

    def write_plan(self, plan: Plan) -> None:
        """Replace `run.json`."""
        values = {"format": FORMAT, **dataclasses.asdict(plan), "versions": versions()}
        with replacing(self.path / "run.json") as unfinished:
            unfinished.write_text(json.dumps(values, indent=2) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return _read_lines(self.path / "metrics.jsonl")

    def evaluations(self) -> list[dict[str, Any]]:
        """The lines of `evaluations.jsonl`."""
        return _read_lines(self.path / "evaluations.jsonl")

    def timing(self) -> dict[str, float]:
        """Seconds spent so far, by what they were spent on; empty before the first checkpoint."""
        path = self.path / "timing.json"
        try:
            return {part: float(seconds) for part, seconds in json.loads(path.read_text()).items()}
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError, AttributeError) as error:
            raise MildlyError(f"{path}: damaged ({error}).") from error

    def write_timing(self, seconds: Mapping[str, float]) -> None:
        """Replace `timing.json`."""
        with replacing(self.path / "timing.json") as unfinished:
            unfinished.write_text(json.dumps({part: round(spent, 3) for part, spent in seconds.items()}) + "\n")

    def rewind(self, step: int) -> None:
        """Forget lines written after a checkpoint's step, and any line a crash cut short."""
        for name in ("metrics.jsonl", "evaluations.jsonl"):
            path = self.path / name
            if path.exists():
                kept = [json.dumps(line) for line in _read_lines(path) if line["step"] <= step]
                with replacing(path) as unfinished:
                    unfinished.write_text("".join(f"{line}\n" for line in kept))

    def append(self, name: str, line: dict[str, Any]) -> None:
        """Add a line to `metrics.jsonl` or `evaluations.jsonl`."""
        with (self.path / name).open("a") as file:
            file.write(json.dumps(line) + "\n")


def versions() -> dict[str, str]:
    """The versions that a result depends on."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _read_lines(path: Path) -> list[dict[str, Any]]:
    """JSON lines; a last line without its end is what a crash left, and is skipped."""
    if not path.exists():
        return []
    lines = path.read_text().split("\n")[:-1]
    try:
        read = [json.loads(line) for line in lines]
        if not all(isinstance(line, dict) and isinstance(line.get("step"), int) for line in read):
            raise ValueError("a line without a step")
        return read
    except ValueError as error:
        raise MildlyError(f"{path}: damaged ({error}).") from error
