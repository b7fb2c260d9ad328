"""Our fitted Q evaluation beside d3rlpy's: one policy, one data set, equal networks; values and speed.

    python benchmarks/ope_peers.py --python PYTHON -o benchmarks/results/ope_peers.json

PYTHON is one that has d3rlpy (`make bench-peers` installs it). d3rlpy clones the data; that clone, which acts without
noise, is the policy that both judge. Theirs copies its critic to the target every 20 steps, ours follows at a rate of
0.05; theirs has one critic for the value, since it takes the lowest of several for the target. Speed is measured with
five critics on both sides, in blocks by turns.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from peers import PYTHON, Theirs, open_data

from mildly.data.dataset import Array
from mildly.files import atomic_write
from mildly.ope.fqe import FQE, FQEConfig
from mildly.run import versions

GAMMA, WIDTHS, RATE, BATCH, CRITICS = 0.95, (64, 64), 1e-3, 256, 5
_BLOCK, _ROUNDS = 100, 6


class TheirClone:
    """d3rlpy's policy, judged by ours."""

    density = "none"

    def __init__(self, theirs: Theirs) -> None:
        self.theirs = theirs

    def actions(self, observations: Array, seed: int) -> Array:
        answer = self.theirs.ask("act", observations=np.asarray(observations).tolist())
        return np.asarray(answer["actions"], np.float32)[:, None].clip(-1, 1)

    def log_prob(self, observations: Array, actions: Array) -> Array:
        raise NotImplementedError("a policy without noise has no density")


def arguments(critics: int) -> dict[str, Any]:
    """Theirs, as ours are."""
    return {
        "learning_rate": RATE,
        "encoder_factory": list(WIDTHS),
        "batch_size": BATCH,
        "gamma": GAMMA,
        "n_critics": critics,
        "target_update_interval": 20,
    }


def steps(fqe: FQE, batches: Any, generator: torch.Generator, count: int) -> None:
    """Gradient steps as our trainer takes them."""
    for _ in range(count):
        fqe.step(batches.sample(generator))


def compare(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Values by seed, and seconds of processor time for a step."""
    data = open_data(args.dataset)
    theirs = Theirs(args.python, folder)
    theirs.load(data, folder)
    theirs.ask("build", config="BCConfig", arguments={"encoder_factory": list(WIDTHS), "batch_size": BATCH}, seed=0)
    theirs.ask("steps", count=args.clone_steps, fit=False)
    judged = TheirClone(theirs)
    starts = np.asarray(data.observations[[episode.start for episode in data.episodes()]]).tolist()
    values: dict[str, list[float]] = {"ours": [], "theirs": []}
    for seed in args.seeds:
        sizes: dict[str, Any] = {"batch_size": BATCH, "hidden_dims": WIDTHS, "ensemble": CRITICS}
        config = FQEConfig(**sizes, gamma=GAMMA, critic_lr=RATE, normalize_observations=False)
        fqe = FQE(config, judged, data.observation_size, data.action_size, seed=seed)
        batches, generator = fqe.batches(data), fqe.random_stream(seed, "batches")
        steps(fqe, batches, generator, args.steps)
        values["ours"] += fqe.estimates().tolist()
        theirs.ask("judge", arguments=arguments(1), seed=seed)
        theirs.ask("steps", count=args.steps, fit=False)
        values["theirs"].append(theirs.ask("value", observations=starts)["value"])
        print(json.dumps(values), flush=True)
    theirs.ask("judge", arguments=arguments(CRITICS), seed=0)
    seconds = timed(fqe, batches, generator, theirs)
    found = {"versions": {"ours": versions(), "theirs": theirs.ask("versions")["versions"]}}
    theirs.close()
    return {"values": values, "milliseconds_per_step": seconds, "steps": args.steps, "gamma": GAMMA, **found}


def timed(fqe: FQE, batches: Any, generator: torch.Generator, theirs: Theirs) -> dict[str, float]:
    """Milliseconds of processor time, the median of blocks by turns."""
    blocks: dict[str, list[float]] = {"ours": [], "theirs": []}
    for _ in range(_ROUNDS):
        start = time.process_time()
        steps(fqe, batches, generator, _BLOCK)
        blocks["ours"].append(time.process_time() - start)
        blocks["theirs"].append(theirs.ask("steps", count=_BLOCK, fit=False)["processor_seconds"])
    return {side: round(1000 * statistics.median(each) / _BLOCK, 2) for side, each in blocks.items()}


def main() -> None:
    """Parse, compare, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="pendulum-mixed")
    parser.add_argument("--python", type=Path, default=PYTHON, help="the Python that has d3rlpy")
    parser.add_argument("--steps", type=int, default=3000, help="gradient steps of each evaluation")
    parser.add_argument("--clone-steps", type=int, default=500, help="gradient steps of the policy to be judged")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mildly-peers-") as folder:
        found = compare(args, Path(folder))
    with atomic_write(args.out) as unfinished:
        unfinished.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "versions"}, indent=1))


if __name__ == "__main__":
    main()
