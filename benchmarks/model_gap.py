"""What a policy earns in a dynamics model beside what it earns in the environment, from equal first states.

Usage:

    python benchmarks/model_gap.py RUN --model MODEL --dataset SET -o benchmarks/results/NAME.json

RUN is a training of MOPO, MODEL the folder of its model. Rewards are means over episodes and over the ten steps up to
the one that is named. Beside them stand the model's uncertainty along the way, and in logged states that of three
actions: the logged one, the policy's and a uniformly random one. An uncertainty that is alike for all three cannot keep
a policy near the data.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mildly.data.dataset import Array, Dataset
from mildly.data.registry import load_dataset
from mildly.dynamics import DynamicsEnsemble, load_dynamics
from mildly.environments import make_env
from mildly.errors import MildlyError
from mildly.policy import Policy, load_policy

_NAMED = (1, 5, 10, 20, 50, 100, 200, 500, 1000)
_WINDOW = 10
_DRAWS, _ROWS = 20, 2000  # model rollouts from each first state; logged states


def in_environment(policy: Policy, env_id: str, episodes: int, steps: int) -> tuple[Array, Array]:
    """First states, and the rewards of all episodes by step, NaN after an end."""
    starts, rewards = [], np.full((episodes, steps), np.nan)
    env = make_env(env_id)
    for episode in range(episodes):
        observation, _ = env.reset(seed=100 + episode)
        starts.append(observation)
        for step in range(steps):
            observation, reward, terminated, truncated, _ = env.step(policy.act(observation.astype(np.float32)))
            rewards[episode, step] = float(reward)
            if terminated or truncated:
                break
    return np.array(starts, np.float32), rewards


def unit_actions(policy: Policy, states: Tensor) -> Tensor:
    """The policy's actions as the model takes them, in [-1, 1]."""
    actions, space = policy.act(states.numpy()), policy.action_space
    return torch.as_tensor(actions if space is None else space.to_unit(actions), dtype=torch.float32)


def in_model(policy: Policy, model: DynamicsEnsemble, starts: Array, steps: int) -> tuple[list[float], list[float]]:
    """Mean reward and uncertainty by step, over those that are still under way."""
    states = torch.from_numpy(starts).repeat(_DRAWS, 1)
    made = model.rollout(states, lambda seen: unit_actions(policy, seen), steps, torch.Generator().manual_seed(0))
    pairs = [(float(step["rewards"].mean()), float(step["uncertainty"].mean())) for step in made]
    return [reward for reward, _ in pairs], [uncertainty for _, uncertainty in pairs]


def of_actions(policy: Policy, model: DynamicsEnsemble, data: Dataset) -> dict[str, float]:
    """The mean uncertainty in logged states, by who acts."""
    random = torch.Generator().manual_seed(0)
    rows = torch.randint(len(data), (_ROWS,), generator=random).sort().values.numpy()
    states, logged = (torch.tensor(np.asarray(column[rows])) for column in (data.observations, data.actions))
    uniform = 2 * torch.rand(logged.shape, generator=random) - 1
    actions = {"logged": logged, "policy": unit_actions(policy, states), "uniform": uniform}
    return {
        name: round(float(model.uncertainty(model.predict(states, a).stds).mean()), 3) for name, a in actions.items()
    }


def gap(policy: Policy, model: DynamicsEnsemble, data: Dataset, episodes: int, steps: int) -> dict[str, Any]:
    """All of it."""
    if data.meta.env_id is None:
        raise MildlyError(f"'{data.meta.name}' names no environment.")
    starts, real = in_environment(policy, data.meta.env_id, episodes, steps)
    rewards, uncertainty = in_model(policy, model, starts, steps)
    lived = int(np.isfinite(real).any(axis=0).sum())
    rows = []
    for named in (step for step in _NAMED if step <= min(steps, lived, len(rewards))):
        window = slice(max(0, named - _WINDOW), named)
        row = {"model": np.mean(rewards[window]), "environment": np.nanmean(real[:, window])}
        row |= {"uncertainty": np.mean(uncertainty[window])}
        rows.append({"step": named, **{key: round(float(value), 3) for key, value in row.items()}})
    return {"episodes": episodes, "uncertainty_of_actions": of_actions(policy, model, data), "rewards": rows}


def main() -> None:
    """Parse, measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="folders of trainings")
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--dataset", required=True)
    parser.add_argument("--episodes", type=int, default=10)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model, data = load_dynamics(args.model), load_dataset(args.dataset)
    found = {run.name: gap(load_policy(run), model, data, args.episodes, args.steps) for run in args.runs}
    print(json.dumps(found, indent=1))
    args.out.write_text(json.dumps({"data": data.meta.name, "runs": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
