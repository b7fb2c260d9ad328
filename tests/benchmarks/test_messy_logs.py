"""Three logs as people keep them: every planted fault is named by column and row, and none is found in a clean log."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mildly.data.check import Finding, check
from mildly.data.registry import load_dataset
from mildly.training.offline import train

PATH = Path(__file__).parents[2] / "recipes" / "messy_logs.py"
spec = importlib.util.spec_from_file_location("messy_logs", PATH)
assert spec is not None
assert spec.loader is not None
recipe: Any = importlib.util.module_from_spec(spec)
sys.modules["messy_logs"] = recipe
spec.loader.exec_module(recipe)

STAGES = ("check",)
"""The stages whose faults are planted and asserted. `reading` joins when readers look at lines and clocks."""
ACTIVE = [fault for fault in recipe.FAULTS if fault.stage in STAGES]


class Checked:
    """A written log, read and checked."""

    def __init__(self, log: str, folder: Path, faults: Any) -> None:
        self.path, self.planted = recipe.write(log, folder, faults)
        self.data = load_dataset(self.path, verify=False)
        self.findings = check(self.data)
        table = recipe.LOGS[log]()
        for fault in sorted((one.fault for one in self.planted), key=lambda fault: fault.kind in recipe.MOVING):
            recipe.plant(table, fault)
        self.names = {prefix: [n for n in table.columns if n.startswith(prefix)] for prefix in ("obs_", "action_")}
        last = np.append(table.run[1:] != table.run[:-1], True)
        ended = table.columns.get("terminated", np.zeros(len(last))) > 0
        kept = np.ones(len(last), bool) if log == "vehicle" else ~last | ended
        self.rows = np.cumsum(kept) - 1
        """The transition that each row of the log becomes; the last of an episode that is cut off has none."""

    def of(self, code: str) -> Finding:
        found = [finding for finding in self.findings if finding.code == code]
        assert found, f"{code} is not among {sorted({finding.code for finding in self.findings})}"
        return found[0]

    def column(self, name: str) -> str:
        """What a finding calls a column of the log."""
        name = name.removeprefix("next_")
        for prefix, words in (("obs_", "column {}"), ("action_", "action column {}")):
            if name.startswith(prefix):
                return words.format(self.names[prefix].index(name))
        return name


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Checked]:
    """Each log, clean and messy."""
    folders = {messy: tmp_path_factory.mktemp("messy" if messy else "clean") for messy in (False, True)}
    return {
        (log, messy): Checked(log, folders[messy], ACTIVE if messy else ()) for log in recipe.LOGS for messy in folders
    }


@pytest.mark.parametrize("log", recipe.LOGS)
def test_a_clean_log_has_no_errors_no_warnings_and_no_finding_of_a_fault(logs: Any, log: str) -> None:
    findings = logs[log, False].findings
    assert {finding.code for finding in findings if finding.severity != "info"} == set()
    assert not {finding.code for finding in findings} & {fault.finding for fault in ACTIVE}


@pytest.mark.parametrize(
    "fault", ACTIVE, ids=lambda fault: f"{fault.log}-{fault.kind}-{fault.column}".replace(" ", "-")
)
def test_every_fault_is_named_by_column_and_row(logs: Any, fault: Any) -> None:
    log = logs[fault.log, True]
    evidence = log.of(fault.finding).evidence.lower()
    planted = next(one for one in log.planted if one.fault == fault)
    column = log.column(fault.column)
    if fault.kind == "copied column":
        assert re.search(rf"column \d+ repeats {column.split()[-1]}\b", evidence)
    elif fault.column and fault.kind not in ("time limit as terminal", "wrong flag"):
        assert column_is_named(column, evidence), (column, evidence)
    rows = [int(log.rows[row]) for row in planted.rows]
    for row in rows[:1] if fault.kind == "deleted" else rows:
        assert re.search(rf"rows?[ \d,and]* {row}\b|from row {row}\b", evidence), (row, evidence)


def column_is_named(column: str, evidence: str) -> bool:
    """`column 3`, also in `columns 1, 3`; an action's says so."""
    if not column.startswith("column"):
        kind, _, number = column.rpartition(" ")
        return (
            column in evidence
            or (kind.startswith("action") and f"actions: 1 value in column {number}" in evidence)
            or ("at a bound are" in evidence and f"column {number}" in evidence)
        )
    return re.search(rf"columns?[ \d,and]* {column.split()[-1]}\b", evidence) is not None


def test_there_are_faults_of_many_kinds() -> None:
    assert len(recipe.FAULTS) >= 25
    assert len({fault.kind for fault in recipe.FAULTS}) >= 15
    assert {fault.log for fault in recipe.FAULTS} == set(recipe.LOGS)


@pytest.mark.parametrize("log", recipe.LOGS)
def test_operators_differ_in_skill_so_that_there_is_something_to_learn(logs: Any, log: str) -> None:
    assert logs[log, False].of("returns-differ").severity == "info"


def test_logs_are_the_same_whenever_they_are_written(logs: Any, tmp_path: Path) -> None:
    again, _ = recipe.write("building", tmp_path)
    assert again.read_bytes() == logs["building", False].path.read_bytes()


@pytest.mark.parametrize("algorithm", ["bc", "iql", "td3-bc", "cql", "mcq"])
@pytest.mark.parametrize("log", recipe.LOGS)
def test_the_usual_algorithms_train_on_clean_logs_without_a_flag(
    logs: Any, log: str, algorithm: str, tmp_path: Path
) -> None:
    """Presets as they are, but for the size of networks and batches."""
    sizes: dict[str, Any] = {"hidden_dims": (16, 16), "batch_size": 32, "log_every": 50}
    sizes |= {"extras.bc_warmup_steps": 50} if algorithm in ("mcq", "cql") else {}
    run = train(algorithm, logs[log, False].path, out=tmp_path / "run", steps=200, eval_every=0, threads=1, **sizes)
    lines = run.metrics()
    assert lines[-1]["step"] == 200
    assert all(np.isfinite(value) for line in lines for value in line.values() if not isinstance(value, str))
