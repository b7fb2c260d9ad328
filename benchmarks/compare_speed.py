"""Is a change of the code slower? Gradient steps of two checkouts by turns in one run, every algorithm and preset.

    git worktree add ../before COMMIT
    python benchmarks/compare_speed.py ../before --output benchmarks/results/compare_speed.json

Each checkout has a process of its own with one thread. Processor time is counted, which other work on the machine
disturbs less than the clock, and the ratio of a turn's two medians is what is compared.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from mildly.algorithms import ALGORITHMS
from mildly.run import versions

WORKER = """
import json, sys, time
sys.path.insert(0, sys.argv[1])
import torch
torch.set_num_threads(1)
import mildly
from mildly.bench import Candidate
assert mildly.__file__.startswith(sys.argv[1]), mildly.__file__
for line in sys.stdin:
    asked = json.loads(line)
    if "candidate" in asked:
        try:
            candidate = Candidate(*asked["candidate"], 11, 3, "cpu", {})
            print("true", flush=True)
        except mildly.MildlyError:
            print("false", flush=True)
        continue
    seconds = []
    for _ in range(asked["steps"]):
        began = time.process_time()
        candidate.step()
        seconds.append(time.process_time() - began)
    print(json.dumps(seconds), flush=True)
"""
TURN = 0.3  # seconds
ROOT = Path(__file__).resolve().parents[1]


class Checkout:
    """A process that runs the code of one folder."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", WORKER, str(folder.resolve())]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd="/")

    def ask(self, **asked: Any) -> Any:
        """Tell the process what to do; its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())


def compare(before: Checkout, after: Checkout, turns: int) -> dict[str, Any]:
    """Milliseconds of both, and the ratio of each turn."""
    steps = max(1, min(100, int(TURN / statistics.median(before.ask(steps=3)))))
    after.ask(steps=3)
    seconds: dict[Checkout, list[list[float]]] = {before: [], after: []}
    for turn in range(turns):
        for checkout in (before, after) if turn % 2 else (after, before):
            seconds[checkout].append(checkout.ask(steps=steps))
    medians = {checkout: [statistics.median(turn) for turn in turns] for checkout, turns in seconds.items()}
    ratios = [two / one for one, two in zip(medians[before], medians[after], strict=True)]
    return {
        "ms_before": 1e3 * statistics.median(medians[before]),
        "ms_after": 1e3 * statistics.median(medians[after]),
        "ratio": statistics.median(ratios),
        "ratios": [round(ratio, 4) for ratio in ratios],
    }


def main() -> None:
    """Compare, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--algorithms", nargs="+", default=sorted(ALGORITHMS))
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    before, after = Checkout(args.before), Checkout(ROOT)
    rows: dict[str, Any] = {}
    print(f"{'':<18}{'ms before':>10}{'ms after':>10}{'ratio':>8}")
    for name, preset in [(one, preset) for one in args.algorithms for preset in ALGORITHMS[one].PRESETS]:
        fits = [checkout.ask(candidate=[name, preset]) for checkout in (before, after)]
        if not all(fits):
            continue  # the bench's random data do not suit this preset
        row = rows[f"{name} {preset}"] = compare(before, after, args.turns)
        print(f"{name} {preset}".ljust(18) + f"{row['ms_before']:>10.2f}{row['ms_after']:>10.2f}{row['ratio']:>8.3f}")
    if args.output:
        record = {"turns": args.turns, "versions": versions(), "rows": rows}
        args.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
