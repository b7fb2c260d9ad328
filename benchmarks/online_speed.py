"""What acting costs: steps in an environment with their updates, beside the same updates alone.

Usage:

    python benchmarks/online_speed.py -o benchmarks/results/online_speed.json

MCQ's default preset on hopper. Blocks of both kinds take turns, and processor seconds are counted, not the clock's: a
busy machine slows both alike. The second part has one update for four steps, in one environment and in four side by
side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from mildly.algorithms.config import make_config
from mildly.algorithms.mcq import MCQ
from mildly.data.batches import Mixture
from mildly.data.registry import load_dataset
from mildly.environments import Simulator
from mildly.training.environment import Acting, EnvironmentSource
from mildly.versions import versions


def source_of(acting: Acting) -> tuple[MCQ, EnvironmentSource]:
    """A learner on hopper's built-in data, which acts in hopper."""
    data = load_dataset("hopper-mixed")
    algorithm = MCQ(make_config(MCQ, "default", data.meta.name, {}), data.observation_size, data.action_size)
    logged = algorithm.batches(data)
    algorithm.begin_finetuning()
    simulator = Simulator.of("Hopper-v4")
    source = EnvironmentSource(algorithm, simulator, seed=0, episode_seed=lambda episode: episode, acting=acting)
    size = algorithm.config.batch_size
    source.sampler = Mixture({"logged": logged, "new": source.buffer}, None, size, keep_rows=True)
    return algorithm, source


def block(algorithm: MCQ, source: EnvironmentSource, steps: int, *, acts: bool) -> float:
    """Processor seconds of some steps, or of as many updates alone."""
    start = time.process_time()
    for _ in range(steps):
        batches: list[Any] = source.next_batches() if acts else [source.sampler.sample(source.generator)]
        for batch in batches:
            algorithm.step(batch)
    return time.process_time() - start


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, help="JSON file to write")
    parser.add_argument("--blocks", type=int, default=8, help="blocks of each kind")
    parser.add_argument("--steps", type=int, default=40, help="steps of a block")
    args = parser.parse_args()
    torch.set_num_threads(1)
    algorithm, source = source_of(Acting())
    block(algorithm, source, 10, acts=True)
    both, alone = [], []
    for _ in range(args.blocks):
        both.append(block(algorithm, source, args.steps, acts=True) / args.steps)
        alone.append(block(algorithm, source, args.steps, acts=False) / args.steps)
    per_second = {}
    for environments in (1, 4):
        several = source_of(Acting(environments, updates_per_step=0.25))
        block(*several, 20, acts=True)
        spent = [block(*several, args.steps, acts=True) / args.steps for _ in range(args.blocks)]
        per_second[str(environments)] = round(1 / statistics.median(spent), 1)
    found = {
        "ms_with_environment": round(1e3 * statistics.median(both), 2),
        "ms_update_alone": round(1e3 * statistics.median(alone), 2),
        "speed_of_updates_alone": round(statistics.median(alone) / statistics.median(both), 3),
        "steps_per_second_by_environments_one_update_for_four_steps": per_second,
        "note": "MCQ default, Hopper-v4, one thread, processor seconds",
        "cores": os.cpu_count(),
        "versions": versions(),
    }
    print(json.dumps(found, indent=1))
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
