"""Our fitted Q evaluation beside d3rlpy's: one policy, one data set, equal networks; values and speed.

    python benchmarks/ope_peers.py --python PYTHON -o benchmarks/results/ope_peers.json

PYTHON is one that has d3rlpy (`make bench-peers` installs it). d3rlpy clones the data; that clone, which acts without
noise, is the policy that both judge. Theirs copies its critic to the target every 20 steps, ours follows at a rate of
0.05; theirs has one critic for the value, since it takes the lowest of several for the target. Speed is measured with
five critics on both sides, in blocks by turns.

SCOPE-RL, whose `--scope` is another Python, needs the propensities of the log, and all episodes of one length. So both
get a log of a linear plant whose propensities are known, and weigh it with one kernel: weighted importance sampling,
and doubly robust with the same values, wrong on purpose.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
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
from mildly.ope.importance import Paths, Weights, doubly_robust, weighted_return
from mildly.ope.judged import normal_log_prob
from mildly.run import versions

GAMMA, WIDTHS, RATE, BATCH, CRITICS = 0.95, (64, 64), 1e-3, 256, 5
BANDWIDTH = 0.3
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


def linear_plant(episodes: int = 2000, steps: int = 8) -> dict[str, Any]:
    """x' = 0.7 x + 0.5 a + noise, r = x, under a normal policy: what estimators take, rows of all episodes."""
    random = np.random.default_rng(0)
    x = np.empty((episodes, steps))
    actions = 0.1 + 0.3 * random.normal(size=x.shape)
    x[:, 0] = random.normal(size=episodes)
    for t in range(1, steps):
        x[:, t] = 0.7 * x[:, t - 1] + 0.5 * actions[:, t - 1] + 0.1 * random.normal(size=episodes)
    density = np.exp(-0.5 * ((actions - 0.1) / 0.3) ** 2) / 0.3 / np.sqrt(2 * np.pi)
    own = 0.2 + 0.1 * x  # what the policy to be judged does
    values = np.stack([2 * x + actions, 2 * x + own], axis=-1)  # Q of logged and of own actions: not the true ones
    columns = {"action": actions, "reward": x, "pscore": density, "evaluation_policy_action": own}
    return {
        **{name: column.reshape(-1, 1) if name != "reward" else column.ravel() for name, column in columns.items()},
        "state_action_value_prediction": values.reshape(-1, 2),
    }


def against_scope(python: Path, folder: Path, steps: int = 8) -> dict[str, Any]:
    """Our weights beside SCOPE-RL's: values, and milliseconds of processor time."""
    given = linear_plant(steps=steps)
    np.savez(folder / "log.npz", **given)
    options = {"step_per_trajectory": steps, "gamma": GAMMA, "kernel": "gaussian", "bandwidth": BANDWIDTH}
    worker, log = str(Path(__file__).with_name("scope_worker.py")), str(folder / "log.npz")
    command = [str(python), "-W", "ignore", worker, log, json.dumps(options)]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    theirs = json.loads(said.strip().split("\n")[-1])
    start = time.process_time()
    tables = {name: column.reshape(-1, steps, column[0].size) for name, column in given.items()}
    log_ratios = normal_log_prob(tables["action"], tables["evaluation_policy_action"], BANDWIDTH)
    log_ratios = log_ratios - np.log(tables["pscore"][..., 0])
    rows = np.arange(log_ratios.size).reshape(log_ratios.shape)
    paths = Paths(rows, np.ones_like(rows, dtype=bool), np.ones(len(rows), dtype=bool))
    weights, counts = Weights.of(paths, log_ratios, clip=np.inf), np.ones((1, len(rows)))
    rewards, (logged, own) = tables["reward"][..., 0], np.moveaxis(tables["state_action_value_prediction"], -1, 0)
    following = np.concatenate([own[:, 1:], np.zeros((len(own), 1))], axis=1)
    errors = rewards + GAMMA * following - logged
    ours = {
        "wis": float(weighted_return(paths, weights, rewards, GAMMA, counts)[0]),
        "dr": float(doubly_robust(weights, errors, own[:, 0], GAMMA, counts)[0]),
    }
    seconds = time.process_time() - start
    return {"ours": {**ours, "milliseconds_of_both": round(1000 * seconds, 2)}, "theirs": theirs, **options}


def main() -> None:
    """Parse, compare, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", default="pendulum-mixed")
    parser.add_argument("--python", type=Path, default=PYTHON, help="the Python that has d3rlpy")
    parser.add_argument("--scope", type=Path, help="a Python that has SCOPE-RL")
    parser.add_argument("--steps", type=int, default=3000, help="gradient steps of each evaluation")
    parser.add_argument("--clone-steps", type=int, default=500, help="gradient steps of the policy to be judged")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="mildly-peers-") as folder:
        scope = {"scope_rl": against_scope(args.scope, Path(folder))} if args.scope else {}
        found = {**compare(args, Path(folder)), **scope}
    with atomic_write(args.out) as unfinished:
        unfinished.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps({name: value for name, value in found.items() if name != "versions"}, indent=1))


if __name__ == "__main__":
    main()
