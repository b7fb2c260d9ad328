"""How well do a run's critics tell good actions from bad ones in the same state?

    python benchmarks/action_resolution.py RUN... --policy POLICY.npz -o benchmarks/results/action_resolution.json

A critic may know the value of every state to a percent and still be blind to actions, since their values differ by far
less than those of states. So we measure it: states are drawn from the behavior policy's episodes in a MuJoCo task; in
each state a dozen actions around the policy's own are tried in the simulator, each followed by the behavior policy for
twenty steps, which gives true differences in value (further on, chance decides). The figure is the rank correlation
between these and the critics' values over the actions of one state, averaged over states: 1 for a critic that knows, 0
for one that guesses. Beside it stand how much values vary over actions and over states.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from mildly.algorithms import algorithm_named
from mildly.algorithms.config import build_config
from mildly.collect.rollouts import ActFunction, ArrayPolicy
from mildly.data.dataset import Array, Dataset
from mildly.data.registry import load_dataset
from mildly.environments import make_env
from mildly.run import Run, versions
from mildly.training import checkpoint


class Trials(NamedTuple):
    """Actions tried in states of the simulator."""

    observations: Array  # (states, o)
    actions: Array  # (states, n, a)
    returns: Array  # (states, n)


def tried(env_id: str, act: ActFunction, states: int, actions: int, reach: float, horizon: int, gamma: float) -> Trials:
    """True discounted returns of actions around the policy's, which goes on from there without noise."""
    env, rng = make_env(env_id), np.random.default_rng(0)
    simulator: Any = env.unwrapped
    found: list[tuple[Array, Array, Array]] = []
    observation, _ = env.reset(seed=0)
    while len(found) < states:
        for _ in range(int(rng.integers(5, 40))):
            observation, _, terminated, truncated, _ = env.step(act(observation[None].astype(np.float32), rng)[0])
            if terminated or truncated:
                observation, _ = env.reset()
        position, velocity = simulator.data.qpos.copy(), simulator.data.qvel.copy()
        own = act(observation[None].astype(np.float32), rng)[0]
        choices = np.clip(own + rng.uniform(-reach, reach, (actions, len(own))), -1, 1).astype(np.float32)
        values = np.empty(actions)
        for i, choice in enumerate(choices):
            env.reset(seed=1)  # so that no time limit is near
            simulator.set_state(position, velocity)
            values[i] = _followed(env, act, choice, horizon, gamma, rng)
        env.reset(seed=len(found))
        simulator.set_state(position, velocity)
        found.append((observation.astype(np.float32), choices, values))
    env.close()
    return Trials(*(np.stack(column) for column in zip(*found, strict=True)))


def _followed(env: Any, act: ActFunction, action: Array, horizon: int, gamma: float, rng: np.random.Generator) -> float:
    total = 0.0
    for step in range(horizon):
        observation, reward, terminated, _, _ = env.step(action)
        total += gamma**step * float(reward)
        if terminated:
            break
        action = act(observation[None].astype(np.float32), rng)[0]
    return total


def learner_of(run: Run) -> tuple[Any, Dataset, int]:
    """The learner of a run's last checkpoint, its data, and the step."""
    plan = run.plan()
    kind = algorithm_named(plan.algorithm)
    data = load_dataset(plan.dataset or plan.data.name)
    learner: Any = kind(build_config(kind, plan.config), data.observation_size, data.action_size, seed=plan.seed)
    learner.batches(data)
    tensors, facts = checkpoint.load(run.checkpoint)
    prefix = "algorithm."
    learner.load_state_dict({n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)})
    return learner, data, int(facts["step"])


def seen_by(learner: Any, observations: Array) -> Tensor:
    """States as the learner's networks see them."""
    states, normalizer = torch.from_numpy(np.array(observations, np.float32)), learner.preprocessing.normalizer
    return states if normalizer is None else normalizer.apply(states)


def resolution(run: Run, trials: Trials) -> dict[str, float]:
    """Rank correlation within states, and how much values vary over actions and over states."""
    learner, _, step = learner_of(run)
    states = seen_by(learner, trials.observations)
    with torch.no_grad():
        values = learner.critics(states, torch.from_numpy(trials.actions)).amin(dim=0).numpy()  # (states, n)
    ranks = [np.corrcoef(_ranks(mine), _ranks(true))[0, 1] for mine, true in zip(values, trials.returns, strict=True)]
    return {
        "step": step,
        "rank_correlation": float(np.nanmean(ranks)),
        "standard_error": float(np.nanstd(ranks) / np.sqrt(len(ranks))),
        "std_over_actions": float(values.std(axis=1).mean()),
        "true_std_over_actions": float(trials.returns.std(axis=1).mean()),
        "std_over_states": float(values.mean(axis=1).std()),
    }


def _ranks(values: Array) -> Array:
    return np.argsort(np.argsort(values)).astype(np.float64)


def main() -> None:
    """Parse, try, compare, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="runs on data of one task")
    parser.add_argument("--policy", required=True, help="the behavior policy, as arrays (.npz)")
    parser.add_argument("--states", type=int, default=200)
    parser.add_argument("--actions", type=int, default=12)
    parser.add_argument("--reach", type=float, default=0.5, help="how far from the policy's action, per dimension")
    parser.add_argument("--horizon", type=int, default=20)
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs = [Run.open(path) for path in args.runs]
    plan = runs[0].plan()
    assert plan.data.env_id is not None
    act = ArrayPolicy(args.policy, deterministic=True)
    trials = tried(plan.data.env_id, act, args.states, args.actions, args.reach, args.horizon, plan.config["gamma"])
    rows = []
    for run in runs:
        found = resolution(run, trials)
        rows.append({"run": run.path.name, "config": run.plan().flat_config, **found})
        print(
            f"{run.path.name:30} step {found['step']:6}  rank correlation {found['rank_correlation']:.3f} "
            f"+- {found['standard_error']:.3f}  std over actions {found['std_over_actions']:.2f} "
            f"(true {found['true_std_over_actions']:.2f}), over states {found['std_over_states']:.1f}"
        )
    if args.out is not None:
        how = {key: value for key, value in vars(args).items() if key not in ("runs", "out", "policy")}
        facts = {"data": plan.data.name, "policy": Path(args.policy).name, **how, "versions": versions()}
        args.out.write_text(json.dumps({**facts, "runs": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
