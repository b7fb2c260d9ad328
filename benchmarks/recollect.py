"""Collect a D4RL-style set with one of D4RL's own behaviour policies, stored as arrays.

    python benchmarks/recollect.py hopper-medium-recollected policies/hopper_d4rl-medium-v2.npz DST

Scores on such a set stand beside the paper's as an orientation, not as the same measurement.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.progress import Progress

from mildly.data.collect import ArrayPolicy, collect, describe
from mildly.data.tasks import task_of


def main() -> None:
    """Parse, collect, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", help="the new set's name; its task gives environment and reference returns")
    parser.add_argument("policy", type=Path, help="the policy's .npz file")
    parser.add_argument("out", type=Path, help="folder to write")
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    task = task_of(args.name)
    if task is None or task.env_id is None:
        parser.error(f"{args.name}: no known task with an environment")
    source = f"{args.steps} stochastic steps of {args.policy.stem}, seed {args.seed}"
    meta = describe(args.name, task.env_id, source)
    with Progress() as progress:
        bar = progress.add_task(args.name, total=args.steps)
        dataset = collect(
            task.env_id,
            ArrayPolicy(args.policy),
            args.steps,
            meta,
            seed=args.seed,
            progress=lambda done: progress.update(bar, completed=done),
        )
    dataset.save(args.out)
    returns = dataset.episode_returns()
    print(f"{args.out}: {len(dataset)} transitions, {len(returns)} episodes, mean return {returns.mean():.1f}")


if __name__ == "__main__":
    main()
