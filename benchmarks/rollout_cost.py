"""What MOPO's rollouts cost: 50,000 states, 5 steps, at the authors' sizes (7 members of 4 x 200, halfcheetah's data).

Usage:

    python benchmarks/rollout_cost.py -o benchmarks/results/bench_mopo.json

Beside the seconds stand the processor's, which other programs on the machine hardly change, the arithmetic as counted
by torch on a few of the states, and one product of 2048 x 200 x 200 by turns, which tells what the machine can do then.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

from mildly.algorithms.config import make_config
from mildly.algorithms.mopo import MOPO
from mildly.data.dataset import Dataset, Meta

_PRODUCTS = 50
_COUNTED = 1000  # states


def learner(preset: str, rows: int = 10_000, **fields: Any) -> MOPO:
    """MOPO with random data of halfcheetah's sizes and an untrained model."""
    random = np.random.default_rng(0)
    data = Dataset.from_arrays(
        observations=random.normal(size=(rows, 17)),
        actions=random.uniform(-1, 1, (rows, 6)),
        rewards=random.normal(size=rows),
        next_observations=random.normal(size=(rows, 17)),
        terminated=np.zeros(rows, bool),
        truncated=np.zeros(rows, bool),
        meta=Meta("random"),
    )
    mopo = MOPO(make_config(MOPO, preset, "", fields), 17, 6)
    mopo.batches(data)
    return mopo


def machine_gflops() -> float:
    """Billions of operations a second of one matrix product."""
    left, right = torch.randn(2048, 200), torch.randn(200, 200)
    start = time.perf_counter()
    for _ in range(_PRODUCTS):
        torch.mm(left, right)
    return _PRODUCTS * 2 * 2048 * 200 * 200 / (time.perf_counter() - start) / 1e9


def cost(preset: str, turns: int, **fields: Any) -> dict[str, Any]:
    """Rollouts of one preset."""
    mopo = learner(preset, **fields)
    c, few = mopo.config, torch.randn(_COUNTED, 17)
    with torch.no_grad(), FlopCounterMode(display=False) as flops:
        for _ in mopo.dynamics.ensemble().rollout(few, mopo.explore, c.rollout_length):
            pass
    seconds, processor, machine = [], [], []
    for _ in range(turns):
        machine.append(machine_gflops())
        start, busy = time.perf_counter(), time.process_time()
        mopo.roll_out()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - busy)
    gflop = flops.get_total_flops() / 1e9 * c.rollout_batch / _COUNTED
    return {
        "preset": preset,
        "states": c.rollout_batch,
        "length": c.rollout_length,
        "turns": turns,
        "seconds": round(statistics.median(seconds), 4),
        "seconds_best": round(min(seconds), 4),
        "processor_seconds": round(statistics.median(processor), 4),
        "gflop": round(gflop, 1),
        "machine_gflops": round(statistics.median(machine), 1),
        "ratio": round(gflop / statistics.median(seconds) / statistics.median(machine), 3),
    }


def main() -> None:
    """Parse, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--presets", nargs="+", default=["paper", "default", "small"])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    rows = [cost(preset, args.turns) for preset in args.presets]
    for row in rows:
        print(json.dumps(row))
    args.out.write_text(
        json.dumps({"torch": torch.__version__, "threads": args.threads, "rows": rows}, indent=2) + "\n"
    )


if __name__ == "__main__":
    main()
