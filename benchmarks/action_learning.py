"""How many steps do critics need until they know what an action adds to the state?

    python benchmarks/action_learning.py SET... -o benchmarks/results/action_learning.json --picture PICTURE.png

A critic of the printed method (2 x 256, Adam at 0.0003, batches of 256) is trained on what the log says for sure, the
reward of each transition, from raw observations, from raw ones with layer normalization, and from normalized ones. A
network that sees the (normalized) state alone is the measure: it explains most of a reward's variance, and actions
explain the rest. The figure is the share of the state's error that is gone on held-out episodes: 0 for a critic that
knows as much as the state tells, 1 for one that knows all that the action adds, below 0 for one that does not even know
the state.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Dataset
from mildly.data.normalize import Normalizer
from mildly.data.registry import load_dataset
from mildly.data.tasks import base_name
from mildly.dynamics.split import Split
from mildly.networks import Critics
from mildly.optimizer import Adam, minimize
from mildly.run import versions

HIDDEN, RATE, BATCH, HELD_OUT = (256, 256), 3e-4, 256, 0.1
KINDS = {"raw": (False, False), "raw, layer normalization": (False, True), "normalized": (True, False)}
"""Whether observations are normalized, and the critic's layers."""
STEPS = (250, 500, 1000, 2000, 4000, 8000, 16000, 32000)
"""At which the error is measured."""


class Rows(NamedTuple):
    """What a critic sees, and the reward in standard deviations."""

    observations: Tensor
    actions: Tensor
    rewards: Tensor

    def at(self, rows: Tensor) -> Rows:
        """Some of them."""
        return Rows(*(column[rows] for column in self))


def rows_of(data: Dataset, *, normalized: bool, blind: bool = False) -> Rows:
    """All rows of a data set; `blind` hides the actions."""
    observations, actions = (torch.from_numpy(np.array(x)) for x in (data.observations, data.actions))
    if normalized:
        observations = Normalizer.of(data, torch.device("cpu")).apply(observations)
    rewards = torch.from_numpy(np.array(data.rewards))
    scaled = (rewards - rewards.mean()) / rewards.std()
    return Rows(observations, torch.zeros_like(actions) if blind else actions, scaled)


def errors(
    rows: Rows, split: Split, steps: Sequence[int], *, layer_norm: bool = False, seed: int = 0
) -> Iterator[float]:
    """The mean squared error on held-out episodes after so many steps each."""
    torch.manual_seed(seed)
    random, train = torch.Generator().manual_seed(seed), torch.from_numpy(split.train)
    test = rows.at(torch.from_numpy(np.concatenate([np.arange(part.start, part.stop) for part in split.test])))
    critic = Critics(rows.observations.shape[1], rows.actions.shape[1], HIDDEN, 1, layer_norm)
    optimizer = Adam(list(critic.parameters()), lr=RATE)
    for step in range(1, steps[-1] + 1):
        batch = rows.at(train[torch.randint(len(train), (BATCH,), generator=random)])
        minimize((critic(batch.observations, batch.actions)[0] - batch.rewards).square().mean(), optimizer)
        if step in steps:
            with torch.no_grad():
                yield float((critic(test.observations, test.actions)[0] - test.rewards).square().mean())


def learned(data: Dataset, steps: Sequence[int], seed: int = 0) -> dict[str, Any]:
    """What the state alone explains, and by kind of critic the share of the rest that it knows at each step."""
    split = Split.of(data, HELD_OUT)
    state = min(errors(rows_of(data, normalized=True, blind=True), split, steps, seed=seed))
    found = {
        kind: [
            1 - error / state
            for error in errors(rows_of(data, normalized=normalized), split, steps, layer_norm=norm, seed=seed)
        ]
        for kind, (normalized, norm) in KINDS.items()
    }
    return {"state_explains": 1 - state, "shares": found}


def draw(table: dict[str, dict[str, Any]], steps: Sequence[int], path: Path) -> None:
    """A panel per data set, a line per kind of critic."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(1 + 2.8 * len(table), 2.8), layout="constrained", dpi=120)
    panels = figure.subplots(1, len(table), sharey=True, squeeze=False)[0]
    for axis, (name, row) in zip(panels, table.items(), strict=True):
        for color, (kind, shares) in zip(("#d1495b", "#e09f3e", "#2a6f97"), row["shares"].items(), strict=True):
            axis.plot(steps, shares, marker="o", markersize=3, color=color, label=kind)
        axis.set_xscale("log")
        axis.set_ylim(-1, 1)
        axis.axhline(0, color="#888888", linewidth=0.8)
        axis.set_title(name, fontsize=9, loc="left")
        axis.set_xlabel("steps", fontsize=9)
        axis.grid(alpha=0.25)
        axis.spines[["top", "right"]].set_visible(False)
    panels[0].set_ylabel("share known of what\nactions add to the reward", fontsize=9)
    panels[-1].legend(fontsize=7, frameon=False)
    figure.savefig(path)


def main() -> None:
    """Parse, train, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", metavar="SET", help="names of data sets")
    parser.add_argument("--most", type=int, default=STEPS[-1], help="the last step to measure at")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("-o", "--out", type=Path)
    parser.add_argument("--picture", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    steps, table = [step for step in STEPS if step <= args.most], {}
    for name in args.datasets:
        row = learned(load_dataset(name), steps, args.seed)
        table[base_name(name)] = row
        print(f"{base_name(name)}: the state alone explains {row['state_explains']:.4f} of the reward", flush=True)
        for kind, shares in row["shares"].items():
            print(f"  {kind:26}" + " ".join(f"{share:6.2f}" for share in shares), flush=True)
    if args.out:
        facts = {"steps": steps, "seed": args.seed, "hidden": HIDDEN, "rate": RATE, "batch": BATCH}
        args.out.write_text(json.dumps({**facts, "versions": versions(), "sets": table}, indent=1) + "\n")
    if args.picture:
        draw(table, steps, args.picture)


if __name__ == "__main__":
    main()
