"""The main table from a record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "main_table.py"


def run_of(algorithm: str, dataset: str, scores: list[float]) -> dict[str, object]:
    evaluations = [{"step": step, "score": score} for step, score in enumerate(scores, 1)]
    return {"algorithm": algorithm, "dataset": dataset, "variant": None, "evaluations": evaluations}


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    """Two sets: MCQ on both, with two seeds on the first; BC on the first alone."""
    runs = [
        run_of("mcq", "hopper-medium-recollected", [*[99.0] * 12, *[10.0] * 10]),  # the last ten count
        run_of("mcq", "hopper-medium-recollected", [99.0, 20.0, 20.0]),  # of the second half
        run_of("bc", "hopper-medium-recollected", [16.0]),
        run_of("mcq", "hopper-random-recollected", [3.0]),
    ]
    (tmp_path / "record.json").write_text(json.dumps({"note": "", "runs": runs}))
    sets = [
        {"name": f"hopper-{kind}-recollected", "score": score} for kind, score in (("medium", 39.04), ("random", 1.2))
    ]
    (tmp_path / "sets.json").write_text(json.dumps({"sets": sets}))
    words = [sys.executable, str(SCRIPT), "record.json", "--sets", "sets.json", "--picture", "table.png"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    return done.stdout.splitlines()


def test_a_cell_is_the_mean_over_seeds_of_the_last_evaluations_and_the_best_is_bold(table):
    assert table[2] == "| hopper-medium | 39.0 | 15.0 (2) | **16.0** |"


def test_a_method_that_was_not_run_on_a_set_is_a_dash_and_the_set_not_in_the_mean(table):
    assert table[3] == "| hopper-random | 1.2 | **3.0** | - |"
    assert table[4] == "| mean of 1 | 39.0 | 15.0 | 16.0 |"


def test_of_an_algorithm_the_first_steps_alone_may_count(tmp_path: Path) -> None:
    runs = [run_of(name, "hopper-medium-recollected", [10.0, 20.0, 30.0, 40.0]) for name in ("mcq", "bc")]
    (tmp_path / "record.json").write_text(json.dumps({"note": "", "runs": runs}))
    sets = [{"name": "hopper-medium-recollected", "score": 39.0}]
    (tmp_path / "sets.json").write_text(json.dumps({"sets": sets}))
    words = [sys.executable, str(SCRIPT), "record.json", "--sets", "sets.json", "--steps", "mcq", "2"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[2] == "| hopper-medium | 39.0 | 15.0 | **30.0** |"
