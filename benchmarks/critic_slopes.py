"""Where in an episode do a run's critics push the policy, and how hard?

    python benchmarks/critic_slopes.py RUN... -o benchmarks/results/critic_slopes.json

For logged states and actions, by how far into its episode a row lies: the critics' value, the length of their mean
slope in the action, how much the two critics' slopes agree (cosine), how much their values differ, and how wide the
policy is (before its tanh). A slope that is long where values change quickly from state to state, and on which both
critics agree, need not be an action's own: an action that follows from the state can be taken for the reason of the
state's value.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from action_resolution import learner_of, seen_by
from torch.nn.functional import cosine_similarity

from mildly.run import Run, versions

ROWS, BLOCK = 60_000, 5_000
PARTS = ((0, 3), (3, 10), (10, 30), (30, 60), (60, 100), (100, 1000))
"""Steps of an episode."""


def slopes(run: Run) -> tuple[int, list[dict[str, Any]]]:
    """The step of a run's checkpoint, and the facts of each part of an episode."""
    learner, data, step = learner_of(run)
    rows = min(ROWS, len(data))
    states, actions = seen_by(learner, data.observations[:rows]), torch.from_numpy(np.array(data.actions[:rows]))
    found: list[list[np.ndarray]] = []
    for start in range(0, rows, BLOCK):
        given, at = states[start : start + BLOCK], actions[start : start + BLOCK].clone().requires_grad_()
        values = learner.critics(given, at)  # (2, rows)
        one, two = (torch.autograd.grad(value.sum(), at, retain_graph=True)[0] for value in values)
        columns = (
            values.mean(dim=0),
            ((one + two) / 2).norm(dim=-1),
            cosine_similarity(one, two, dim=-1),
            (values[0] - values[1]).abs(),
            learner.actor(given).log_std.exp().mean(dim=-1),
        )
        found.append([column.detach().numpy() for column in columns])
    names = ("value", "slope", "agreement", "difference", "policy_std")
    table = dict(zip(names, (np.concatenate(column) for column in zip(*found, strict=True)), strict=True))
    place = np.concatenate([np.arange(episode.stop - episode.start) for episode in data.episodes()])[:rows]
    parts = [(part, (place >= part[0]) & (place < part[1])) for part in PARTS]
    return step, [
        {"steps": list(part), "rows": int(chosen.sum()), **{k: float(v[chosen].mean()) for k, v in table.items()}}
        for part, chosen in parts
        if chosen.any()
    ]


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="runs with two critics and a stochastic policy")
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    record = []
    for path in args.runs:
        run = Run.open(path)
        step, parts = slopes(run)
        data, config = run.plan().data.name, run.plan().flat_config
        record.append({"run": path.name, "data": data, "step": step, "parts": parts, "config": config})
        for part in parts:
            first, end = part["steps"]
            facts = "  ".join(f"{name} {part[name]:.3g}" for name in list(part)[2:])
            print(f"{path.name} step {step}, {first:3} to {end:4} steps into an episode: {facts}")
    if args.out is not None:
        args.out.write_text(json.dumps({"versions": versions(), "runs": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
