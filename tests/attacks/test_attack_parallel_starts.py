"""Trainings that start at one moment: each has a folder of its own, and `run.json` tells what was trained there."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import make_dataset

from mildly.run import Run

# Waits with everything loaded, so that the starts of several processes fall together.
_STARTER = """
import json, sys, time
from pathlib import Path
import mildly
from mildly.errors import MildlyError
from mildly.training.offline import train
data, out, rates = sys.argv[1], sys.argv[2] or None, sys.argv[3:]
print("ready", flush=True)
for line in sys.stdin:
    number, start = line.split()
    while time.time() < float(start):
        pass
    rate = float(rates[int(number)])
    place = None if out is None else f"{out}-{number}"
    options = dict(steps=3, eval_every=0, log_every=1, hidden_dims=(4,), batch_size=4, threads=1)
    try:
        run = train("bc", data, out=place, actor_lr=rate, **options)
        said = json.loads((run.path / "run.json").read_text())["config"]["actor_lr"]
        line = {"path": str(run.path), "rate": rate, "said": said}
    except MildlyError as error:
        line = {"refused": str(error), "rate": rate}
    print(json.dumps(line), flush=True)
"""


def race(tmp_path: Path, races: int, out: str, processes: int = 3) -> list[list[dict[str, object]]]:
    """What every process says of every race."""
    data = make_dataset().save(tmp_path / "data")
    started = []
    for process in range(processes):
        rates = [f"{1e-4 * (1 + process + processes * number):.6g}" for number in range(races)]
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", _STARTER, str(data), out, *rates],
                cwd=tmp_path,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
        )
    told: list[list[dict[str, object]]] = []
    for process in started:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for number in range(races):
        at = time.time() + 0.05
        for process in started:
            assert process.stdin is not None
            process.stdin.write(f"{number} {at}\n")
            process.stdin.flush()
        told.append([json.loads(process.stdout.readline()) for process in started])  # type: ignore[union-attr]
    for process in started:
        process.communicate()
    return told


RACES = [10, pytest.param(150, marks=pytest.mark.slow)]


@pytest.mark.parametrize("races", RACES)
def test_every_start_without_a_folder_gets_its_own_and_records_its_own_settings(tmp_path: Path, races: int) -> None:
    told = race(tmp_path, races, "")
    everything = [line for lines in told for line in lines]
    assert not [line for line in everything if "refused" in line]
    paths = [str(line["path"]) for line in everything]
    assert len(set(paths)) == len(paths) == 3 * races
    for line in everything:
        run = Run.open(tmp_path / str(line["path"]))
        assert line["said"] == line["rate"] == run.plan().config["actor_lr"]
        assert [entry["step"] for entry in run.metrics()] == [1, 2, 3]
    assert not list((tmp_path / "runs").rglob(".tmp-*"))


@pytest.mark.parametrize("races", RACES)
def test_of_those_who_want_one_folder_one_trains_and_the_others_are_refused(tmp_path: Path, races: int) -> None:
    for number, lines in enumerate(race(tmp_path, races, "given")):
        trained = [line for line in lines if "path" in line]
        assert len(trained) == 1
        for line in lines:
            assert line in trained or "given" in str(line["refused"])
        run = Run.open(tmp_path / f"given-{number}")
        assert run.plan().config["actor_lr"] == trained[0]["rate"]
        assert [entry["step"] for entry in run.metrics()] == [1, 2, 3]
