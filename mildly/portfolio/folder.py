"""The folder of `mildly solve`: plain files, with all that is needed to go on.

solve.json        what was asked for, and the plan in steps
rungs.json        what the rungs so far have told, and who was kept
data/             the log as it was read, where it was no data set yet
runs/NAME/        a run for each candidate
judged/           the fits that rungs and the choice needed
policy/           the policy of the best candidate
card.md           the model card
choice.html       the verdict, intervals and diagnostics; choice.json the same for programs
report.html       how the candidates have learned
evaluation.json   what an environment said afterwards, if asked
"""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.files import read_own_json, remove_leftovers, write_json
from mildly.portfolio.plan import LEARNERS, StepPlan
from mildly.run import OtherFormat, Run, check_format, is_number, is_step
from mildly.versions import versions

FORMAT = 1
_REQUEST, _RUNGS, _EVALUATION = "solve.json", "rungs.json", "evaluation.json"
_TYPES: Mapping[str, Any] = {
    "dataset": str | None,
    "reading": dict,
    "name": str,
    "fingerprint": str,
    "copied": bool,
    "minutes": float | int | None,
    "seed": int,
    "holdout": float | int,
    "gamma": float | int,
    "by": str,
    "groups": int,
    "labels": list | None,
    "said": list,
}


@dataclass(frozen=True)
class Request:
    """What was asked for, the data included; and the plan, once there is one."""

    dataset: str | None
    """Where the log is found; None for one that was made in Python."""
    reading: dict[str, Any]
    name: str
    fingerprint: str
    copied: bool
    """Whether the folder holds a copy of the log, since it was no data set yet."""
    minutes: float | None
    seed: int
    holdout: float
    gamma: float
    by: str
    groups: int
    labels: list[float] | list[str] | None
    """The value of a column for each episode, where groups are those of equal ones."""
    said: list[str]
    """What the look at the data has found."""
    plan: StepPlan | None = None

    def grading(self) -> dict[str, Any]:
        """How the estimators are graded, and with which discount: options of `mildly.choose`."""
        labels = None if self.labels is None else np.array(self.labels)
        return {"by": self.by, "groups": self.groups, "labels": labels, "gamma": self.gamma}


@dataclass(frozen=True)
class Told:
    """What a rung has told."""

    steps: int
    values: dict[str, dict[str, Any]]
    """What fitted Q evaluation estimates of each candidate; empty in the last rung, which the choice judges."""
    failed: dict[str, str]
    """Candidates that could not be trained, and why."""
    kept: list[str]
    """Who goes on, the best first."""


@dataclass(frozen=True)
class SolveFolder:
    """A folder of `mildly solve`."""

    path: Path

    @classmethod
    def open(cls, path: Path) -> SolveFolder:
        """An existing one."""
        if not (path / _REQUEST).is_file():
            raise MildlyError(f"{path}: nothing was begun here (no {_REQUEST}). Begin with 'mildly solve SET'.")
        return cls(path)

    def check_new(self) -> None:
        """A folder that holds a solution already is never touched."""
        if (self.path / _REQUEST).exists():
            again = f"mildly solve --resume {shlex.quote(str(self.path))}"
            raise MildlyError(
                f"{self.path}: holds a log's solution already. Go on with '{again}', or choose another --out."
            )

    def run(self, name: str) -> Run:
        """A candidate's."""
        return Run(self.path / "runs" / name)

    def request(self) -> Request:
        """What `write_request` wrote."""
        path = self.path / _REQUEST
        try:
            values = read_own_json(path, lambda given: check_format(path, given["format"], FORMAT))
            given = {each.name: values[each.name] for each in dataclasses.fields(Request)}
            for name, kind in _TYPES.items():
                if not isinstance(given[name], kind):
                    raise TypeError(f"{name} is {given[name]!r}")
            if given["labels"] is not None:  # a missing number is null
                labels = given["labels"] = [math.nan if label is None else label for label in given["labels"]]
                if not (all(map(_is_number, labels)) or all(isinstance(label, str) for label in labels)):
                    raise TypeError("labels are neither numbers nor texts")
            plan = given.pop("plan")
            return Request(**given, plan=None if plan is None else StepPlan.from_json(plan))
        except OtherFormat:
            raise
        except (OSError, ValueError, KeyError, TypeError, AttributeError, MildlyError) as error:
            raise MildlyError(f"{path}: damaged ({error}).") from error

    def write_request(self, request: Request) -> None:
        """Replace `solve.json`."""
        plan = None if request.plan is None else request.plan.to_json()
        values = {"format": FORMAT, **dataclasses.asdict(request), "plan": plan, "versions": versions()}
        if request.labels is not None:  # JSON has no NaN, which is what a missing number is
            values["labels"] = [None if label != label else label for label in request.labels]
        write_json(self.path / _REQUEST, json.loads(json.dumps(values)))

    def forget(self) -> None:
        """Remove what a beginning has left that came to nothing."""
        shutil.rmtree(self.path / "data", ignore_errors=True)
        (self.path / _REQUEST).unlink()

    def rungs(self) -> list[Told]:
        """What the rungs so far have told."""
        path = self.path / _RUNGS
        if not path.exists():
            return []
        try:
            told = [Told(**each) for each in read_own_json(path)["rungs"]]
            for each in told:
                names = {*each.kept, *each.values, *each.failed}
                known = all(one["value"] is None or is_number(one["value"]) for one in each.values.values())
                if not (names <= LEARNERS.keys() and each.kept and known and is_step(each.steps)):
                    raise ValueError("a rung that cannot have been")
            return told
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise MildlyError(f"{path}: damaged ({error}).") from error

    def write_rungs(self, told: list[Told]) -> None:
        """Replace `rungs.json`."""
        write_json(self.path / _RUNGS, {"rungs": [dataclasses.asdict(each) for each in told]})

    def evaluation(self) -> dict[str, list[float]]:
        """The returns of each candidate in an environment; empty where nobody asked."""
        path = self.path / _EVALUATION
        try:
            found = read_own_json(path) if path.exists() else {}
            if not all(name in LEARNERS and all(map(is_number, returns)) for name, returns in found.items()):
                raise ValueError("returns that are no numbers")
            return found
        except (OSError, ValueError, TypeError) as error:
            raise MildlyError(f"{path}: damaged ({error}).") from error

    def write_evaluation(self, returns: Mapping[str, list[float]]) -> None:
        """Replace `evaluation.json`."""
        write_json(self.path / _EVALUATION, returns)

    def data(self, request: Request, given: Dataset | None = None) -> tuple[Dataset, str]:
        """The log, and where trainings find it. One that was no data set yet is kept in the folder first."""
        place = self.path / "data"
        remove_leftovers(self.path)
        if request.copied and not place.exists():
            if given is None and request.dataset is None:
                raise MildlyError(f"{self.path}: was stopped before the log was kept. Begin again with another --out.")
            (given or self._read(request)).save(place)
        source = str(place.resolve()) if request.copied else str(request.dataset)
        data = load_dataset(source)
        if data.meta.fingerprint != request.fingerprint:
            raise MildlyError(f"{self.path}: '{request.name}' is not the log that this was begun with any more.")
        return data, source

    def _read(self, request: Request) -> Dataset:
        try:
            reading = ImportOptions.from_json(request.reading)
        except (ValueError, TypeError) as error:
            raise MildlyError(f"{self.path / _REQUEST}: the options of reading are damaged ({error}).") from error
        return load_dataset(str(request.dataset), reading, trusted=False)


def _is_number(label: object) -> bool:
    return is_number(label) or label is math.nan
