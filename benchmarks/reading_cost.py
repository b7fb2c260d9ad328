"""What a reader must open to follow one algorithm, counted: lines, inheritance, and switches between files.

    python benchmarks/reading_cost.py
    python benchmarks/reading_cost.py --output benchmarks/results/reading_cost.json

Lines are those of the files that define the algorithm's classes or its mathematics: its own, those of its base classes,
and those of `mildly/algorithms` and `mcb.py` whose functions one `update` calls. Switches are how often, in the order
of these calls, the file changes. Depth is how many classes lie between `Algorithm` and the algorithm, itself included.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm
from mildly.data.dataset import Dataset, Meta

PACKAGE = Path(inspect.getfile(Algorithm)).parents[1]


def is_read(path: str) -> bool:
    """Whether a file is part of the method, and not of the machinery (networks, optimizers) that it stands on."""
    file = Path(path)
    return file == PACKAGE / "mcb.py" or file.parent == PACKAGE / "algorithms"


def calls_of(function: Callable[[], object]) -> list[str]:
    """The files of the method's functions, in the order in which they are called."""
    called: list[str] = []

    def watch(frame: Any, event: str, _: object) -> None:
        name = frame.f_code.co_name
        if event == "call" and not name.startswith("<") and is_read(frame.f_code.co_filename):
            called.append(frame.f_code.co_filename)

    sys.setprofile(watch)
    try:
        function()
    finally:
        sys.setprofile(None)
    return called


def reading_cost(name: str) -> dict[str, Any]:
    """Lines, calls, switches and depth of an algorithm as its paper has it."""
    kind, random = ALGORITHMS[name], np.random.default_rng(0)
    rows = 64
    data = Dataset.from_arrays(
        observations=random.normal(size=(rows, 3)),
        actions=random.uniform(-1, 1, (rows, 2)),
        rewards=random.normal(size=rows),
        next_observations=random.normal(size=(rows, 3)),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        meta=Meta("random"),
    )
    learner = kind(kind.Config(batch_size=8), 3, 2)
    batch = learner.batches(data).sample(learner.random_stream(0, "batches"))
    learner.update(batch)
    called = calls_of(lambda: learner.update(batch))
    classes = [base for base in kind.__mro__ if issubclass(base, Algorithm)]
    files = {inspect.getfile(base) for base in classes} | set(called)
    lines = {str(Path(file).relative_to(PACKAGE)): len(Path(file).read_text().splitlines()) for file in files}
    return {
        "algorithm": name,
        "lines": sum(lines.values()),
        "files": dict(sorted(lines.items())),
        "calls": len(called),
        "switches": sum(one != other for one, other in pairwise(called)),
        "depth": depth(kind),
    }


def depth(kind: type[Any]) -> int:
    """Steps of inheritance from `Algorithm`."""
    return 0 if kind is Algorithm else 1 + max(depth(base) for base in kind.__bases__ if issubclass(base, Algorithm))


def main() -> None:
    """Count, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    costs = [reading_cost(name) for name in sorted(ALGORITHMS)]
    print(f"{'':<10}{'lines':>7}{'files':>7}{'calls':>7}{'switches':>10}{'depth':>7}")
    for cost in costs:
        numbers = (cost["lines"], len(cost["files"]), cost["calls"], cost["switches"], cost["depth"])
        print(f"{cost['algorithm']:<10}" + "".join(f"{n:>{w}}" for n, w in zip(numbers, (7, 7, 7, 10, 7), strict=True)))
    if args.output:
        args.output.write_text(json.dumps(costs, indent=1) + "\n")


if __name__ == "__main__":
    main()
