"""Training speed on a set that does not fit the memory the process may use, against one held in memory.

    python benchmarks/large_sets.py --memory 1200 --rows 20000000 --output benchmarks/results/large_sets.json

Makes a set on disk, empties the system's file cache, puts this process into a control group with the given memory
(root on Linux is needed for both; `--memory 0` leaves that out), and alternates between steps on batches from the
mapped set and from a small one in memory, with the same learner. The first half of the rounds is warm-up.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import make_config
from mildly.data.batches import Transitions
from mildly.data.dataset import FIELDS, Dataset, Meta
from mildly.data.writer import Writer
from mildly.run import versions

OBSERVATIONS, ACTIONS = 17, 6
IN_MEMORY = 200_000
BLOCK = 250_000


def write_set(folder: Path, rows: int) -> None:
    """Random transitions of HalfCheetah's sizes."""
    random = np.random.default_rng(0)
    with Writer(folder) as writer:
        for start in range(0, rows, BLOCK):
            count = min(BLOCK, rows - start)
            observations = random.standard_normal((count, OBSERVATIONS), dtype=np.float32)
            writer.append(
                {
                    "observations": observations,
                    "actions": random.uniform(-1, 1, (count, ACTIONS)),
                    "rewards": random.standard_normal(count, dtype=np.float32),
                    "next_observations": observations[::-1],
                    "terminated": np.zeros(count, dtype=bool),
                    "truncated": np.arange(start, start + count) % 1000 == 999,
                }
            )
        writer.finish(Meta("large"))


def confine(megabytes: int) -> None:
    """Limit the memory of this process, its share of the system's file cache included."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")
    old, new = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
    root, limit = (old, "memory.limit_in_bytes") if old.exists() else (new, "memory.max")
    group = root / f"mildly-{os.getpid()}"
    group.mkdir()
    (group / limit).write_text(str(megabytes << 20))
    (group / "cgroup.procs").write_text(str(os.getpid()))


def measure(folder: Path, num_actions: int, rounds: int, steps: int) -> dict[str, list[float]]:
    """Seconds a step of each round, mapped and in memory by turns."""
    kind = ALGORITHMS["mcq"]
    learner = kind(make_config(kind, "paper", "", {"num_actions": num_actions}), OBSERVATIONS, ACTIONS, seed=0)
    large, device = Dataset.load(folder), torch.device("cpu")
    held = {name: np.array(getattr(large, name)[:IN_MEMORY]) for name in FIELDS}
    samplers = {
        "memory": Transitions(Dataset.adopt(held, Meta("held"), "held"), 256, device),
        "mapped": Transitions(large, 256, device),
    }
    generators = {name: torch.Generator().manual_seed(0) for name in samplers}
    seconds: dict[str, list[float]] = {name: [] for name in samplers}
    for _ in range(2 * rounds):
        for name, sampler in samplers.items():
            began = time.perf_counter()
            for _ in range(steps):
                learner.update(sampler.sample(generators[name]))
            seconds[name].append((time.perf_counter() - began) / steps)
    return {name: values[rounds:] for name, values in seconds.items()}


def main() -> None:
    """Parse, measure, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--memory", type=int, default=1200, help="megabytes the process may use; 0 for no limit")
    parser.add_argument("--num-actions", type=int, default=10, help="MCQ's N; fewer make the steps quicker")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=15, help="steps of a round")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    folder = Path(tempfile.mkdtemp(prefix="mildly-large-"))
    try:
        write_set(folder / "set", args.rows)
        size = sum(file.stat().st_size for file in (folder / "set").iterdir())
        if args.memory:
            confine(args.memory)
        seconds = measure(folder / "set", args.num_actions, args.rounds, args.steps)
    finally:
        shutil.rmtree(folder)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        "options": {name: str(value) for name, value in vars(args).items() if name != "output"},
        "set_megabytes": size >> 20,
        "seconds_a_step": seconds,
        "speed_mapped_to_memory": round(medians["memory"] / medians["mapped"], 3),
        "versions": versions(),
    }
    text = json.dumps(result, indent=2)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
