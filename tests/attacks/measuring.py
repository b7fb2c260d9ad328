"""How much memory reading a file takes, in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

LIMIT = 60
"""Megabytes that reading is told to keep to."""

# Prints how many megabytes reading took beyond those at its start, and what it said.
PROGRAM = f"""
import json, sys
from mildly.data.registry import load_dataset
from mildly.data.convert import convert
from mildly.errors import MildlyError
from measuring import most_memory
import h5py, pyarrow.parquet, pyarrow.csv
task, path, *rest = sys.argv[1:]
before = most_memory()
try:
    said = str(len(load_dataset(path, max_memory={LIMIT}) if task == "load" else convert(path, rest[0])))
except MildlyError as error:
    said = str(error)
print(json.dumps([most_memory() - before, said]))
"""


def measured(task: str, path: Path, *rest: Path) -> tuple[float, str]:
    """Megabytes, and what loading or converting said."""
    program = f"import sys; sys.path.append({str(Path(__file__).parent)!r})\n{PROGRAM}"
    command = [sys.executable, "-c", program, task, str(path), *map(str, rest)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    megabytes, said = json.loads(done.stdout)
    return megabytes, said


def memory_now() -> float:
    """Megabytes of this process; the most that it takes is counted anew from here."""
    Path("/proc/self/clear_refs").write_text("5")
    return _megabytes("VmRSS")


def most_memory() -> float:
    """The most megabytes that this process has taken. `getrusage` would count what its parent took, too."""
    return _megabytes("VmHWM")


def _megabytes(name: str) -> float:
    found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1e3
