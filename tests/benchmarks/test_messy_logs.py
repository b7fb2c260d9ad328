"""Three logs as people keep them: every planted fault is named by column and line, and none is found in a clean log."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mildly.cli import main
from mildly.data.check import Finding, check
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.training.offline import train

PATH = Path(__file__).parents[2] / "recipes" / "messy_logs.py"
spec = importlib.util.spec_from_file_location("messy_logs", PATH)
assert spec is not None
assert spec.loader is not None
recipe: Any = importlib.util.module_from_spec(spec)
sys.modules["messy_logs"] = recipe
spec.loader.exec_module(recipe)

KINDS = {fault.finding for fault in recipe.FAULTS}


class Checked:
    """A written log, read and checked."""

    def __init__(self, log: str, folder: Path, faults: Any) -> None:
        self.path, self.planted = recipe.write(log, folder, faults)
        self.findings = check(load_dataset(self.path, verify=False))

    def of(self, code: str) -> Finding:
        found = [finding for finding in self.findings if finding.code == code]
        assert found, f"{code} is not among {sorted({finding.code for finding in self.findings})}"
        return found[0]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, bool], Checked]:
    """Each log, clean and with all of its faults."""
    folders = {messy: tmp_path_factory.mktemp("messy" if messy else "clean") for messy in (False, True)}
    return {
        (log, messy): Checked(log, folders[messy], recipe.FAULTS if messy else ())
        for log in recipe.LOGS
        for messy in folders
    }


@pytest.mark.parametrize("log", recipe.LOGS)
def test_a_clean_log_has_no_errors_no_warnings_and_no_finding_of_a_fault(logs: Any, log: str) -> None:
    findings = logs[log, False].findings
    assert {finding.code for finding in findings if finding.severity != "info"} == set()
    assert not {finding.code for finding in findings} & KINDS


@pytest.mark.parametrize(
    "fault", recipe.FAULTS, ids=lambda fault: f"{fault.log}-{fault.kind}-{fault.column}".replace(" ", "-")
)
def test_every_fault_is_named_by_column_and_line(logs: Any, fault: Any) -> None:
    log = logs[fault.log, True]
    evidence = log.of(fault.finding).evidence
    planted = next(one for one in log.planted if one.fault == fault)
    column = fault.column.removeprefix("next_")
    assert re.search(rf"\b{column}\b", evidence), (column, evidence)
    places = planted.places
    if (fault.log, fault.kind) == ("vehicle", "deleted"):
        places = places[:1]  # without a clock, it is the row before the gap that does not lead to the next
    for file, line in places:
        folder = f"{file} " if fault.log == "vehicle" else ""
        kind = "row" if fault.log == "tank" else "line"
        assert re.search(rf"{folder}(between )?{kind}s? ([^;()]*\b)?{line}\b", evidence), (file, line, evidence)


def test_the_command_tells_the_same(logs: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", str(logs["building", True].path)]) == 1
    words = " ".join(capsys.readouterr().out.split())
    assert "'obs_outdoor': 4 values of -999 in lines 494, 553, 2156, 3463" in words
    assert "By 'timestamp': lines 2924 and 2925." in words
    assert "Lines of a file are counted from 1, rows and columns from 0." in words


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


ADVICE = {
    "building": {"missing": "obs_outdoor=-999,obs_co2=65535,reward=-9999"},
    "tank": {"missing": "obs_inflow=32767,obs_product=-50", "time_limit": 150},
    "vehicle": {"missing": "obs_speed=1e+10"},
}
"""What the check advises for each messy log, beside filling what is missing and leaving out what cannot be filled."""


@pytest.mark.parametrize("log", recipe.LOGS)
def test_the_check_advises_what_is_done_below(logs: Any, log: str) -> None:
    advice = " ".join(finding.advice for finding in logs[log, True].findings)
    words = [f"--missing {ADVICE[log]['missing']}`", "--fill interpolate", "--drop-bad-rows"]
    for word in [*words, *(["--time-limit 150"] if log == "tank" else [])]:
        assert word in advice


@pytest.mark.parametrize("algorithm", ["bc", "iql", "td3-bc", "cql", "mcq"])
@pytest.mark.parametrize("messy", [False, True], ids=["clean", "messy"])
@pytest.mark.parametrize("log", recipe.LOGS)
def test_the_usual_algorithms_train_without_a_flag(
    logs: Any, log: str, messy: bool, algorithm: str, tmp_path: Path
) -> None:
    """Presets as they are, but for the size of networks and batches. Messy logs are read as the check advises."""
    sizes: dict[str, Any] = {"hidden_dims": (16, 16), "batch_size": 32, "log_every": 50}
    sizes |= {"extras.bc_warmup_steps": 50} if algorithm in ("mcq", "cql") else {}
    sizes |= {"behavior.steps": 50} if algorithm == "mcq" else {}
    advice: dict[str, Any] = {"fill": "interpolate", "drop_bad_rows": True, **ADVICE[log]} if messy else {}
    run = train(
        algorithm,
        logs[log, messy].path,
        out=tmp_path / "run",
        steps=100,
        eval_every=0,
        threads=1,
        reading=ImportOptions(**advice),
        **sizes,
    )
    lines = run.metrics()
    assert lines[-1]["step"] == 100
    assert all(np.isfinite(value) for line in lines for value in line.values() if not isinstance(value, str))
