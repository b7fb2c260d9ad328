"""Records of runs, and records that grow."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import mildly

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "record.py"


def recorded(folder: Path, *words: str) -> list[dict[str, object]]:
    """The runs of the record after a call."""
    words = (sys.executable, str(SCRIPT), *words, "-o", "record.json")
    subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True)
    known = json.loads((folder / "record.json").read_text())
    assert known["note"] == "what for"
    return list(known["runs"])


def test_a_record_grows_and_a_later_run_of_a_kind_takes_the_place_of_an_earlier(tmp_path: Path) -> None:
    for name, steps, seed in (("first", 2, 0), ("longer", 4, 0), ("other", 2, 1)):
        fields = {"preset": "small", "steps": steps, "seed": seed, "eval_every": 2, "episodes": 1}
        mildly.train("bc", "pendulum-mixed", out=tmp_path / name, quiet=True, **fields)
    (alone,) = recorded(tmp_path, "first", "--note", "what for")
    assert alone["run"] == "first"
    assert len(alone["evaluations"]) == 1
    longer, other = recorded(tmp_path, "longer", "other", "--add")
    assert [run["run"] for run in (longer, other)] == ["longer", "other"]
    assert len(longer["evaluations"]) == 2
    *kept, named = recorded(tmp_path, "first", "--add", "--variant", "short")
    assert kept == [longer, other]
    assert (named["run"], named["variant"]) == ("first", "short")
