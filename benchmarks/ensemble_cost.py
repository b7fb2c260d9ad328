"""What an ensemble costs: PBRL's step with 10 critics as a multiple of its step with 2 critics of the same size.

Usage:

    python benchmarks/ensemble_cost.py -o benchmarks/results/bench_pbrl.json

Both take turns on one thread, on random data of halfcheetah's sizes, and a step's cost is the processor time that it
takes, so that other programs on the machine hardly matter. Besides it stands the ratio of the arithmetic alone, as
counted by torch.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from mildly.bench import Candidate

FEW, MANY = 2, 10


def cost(preset: str, turns: int, **fields: Any) -> dict[str, Any]:
    """One preset's steps with few and with many critics."""
    pair = [Candidate("pbrl", preset, 17, 6, "cpu", {**fields, "ensemble": k}) for k in (FEW, MANY)]
    seconds: list[list[float]] = [[], []]
    for _ in range(turns):
        for taken, candidate in zip(seconds, pair, strict=True):
            start = time.process_time()
            candidate.step()
            taken.append(time.process_time() - start)
    few, many = (statistics.median(taken) for taken in seconds)
    return {
        "preset": preset,
        "turns": turns,
        f"cpu_ms_{FEW}_critics": round(1e3 * few, 2),
        f"cpu_ms_{MANY}_critics": round(1e3 * many, 2),
        "ratio": round(many / few, 3),
        "ratio_of_best": round(min(seconds[1]) / min(seconds[0]), 3),
        f"gflop_{MANY}_critics": round(pair[1].gflop, 3),
        "ratio_of_arithmetic": round(pair[1].gflop / pair[0].gflop, 3),
    }


def main() -> None:
    """Parse, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["paper", "default", "small"])
    parser.add_argument("--turns", type=int, default=30)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = [cost(preset, args.turns) for preset in args.presets]
    for row in rows:
        print(json.dumps(row))
    args.out.write_text(json.dumps({"torch": torch.__version__, "threads": 1, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
