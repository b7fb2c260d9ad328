"""How far the estimators of `mildly ope` are from the truth, for policies whose real return is known.

    python benchmarks/ope_truth.py --policies POLICIES --logs pendulum-mixed hopper-mixed -o benchmarks/results/ope.json

Each policy is run in the environment (the truth: the mean discounted return of episodes that no time limit cuts off),
and estimated from the log alone. Of each log: every estimate with its interval, the root mean square error, the rank
correlation, how many intervals held the truth, and the regret at 1: what the policy that an estimator puts first falls
short of the best. What is recorded already is not made again.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mildly.collect.rollouts import ArrayPolicy
from mildly.data.dataset import Array
from mildly.data.registry import load_dataset
from mildly.environments import action_space_of, make_env
from mildly.evaluation.statistics import rank_correlation
from mildly.files import atomic_write
from mildly.ope.coverage import coverage
from mildly.ope.estimators import ESTIMATORS, Problem, estimate, logged_return
from mildly.ope.judged import normal_log_prob
from mildly.ope.settings import Settings
from mildly.run import versions

GAMMA, HORIZON, BANDWIDTH = 0.97, 300, 0.1  # behind 300 steps a reward counts a ten thousandth
SETTINGS = Settings(steps=3000, density_steps=500, hidden_dims=(32, 32))
SNAPSHOTS = ("trpo-snap-000", "trpo-snap-040", "trpo-snap-080", "trpo-snap-120", "d4rl-medium-v2", "zoo-tqc")
SWINGS = {"rest": 0.0, "swing 0.05": 0.05, "swing 0.2": 0.2, "swing 0.5": 0.5, "against": -0.5, "push": 9.0}


class Deterministic:
    """A function of observations, judged as a policy without noise."""

    density = f"a normal kernel of width {BANDWIDTH:g}"

    def __init__(self, act: Callable[[Array], Array]) -> None:
        self.act = act

    def actions(self, observations: Array, seed: int) -> Array:
        return np.asarray(self.act(np.asarray(observations)), np.float32)[:, None]

    def log_prob(self, observations: Array, actions: Array) -> Array:
        return normal_log_prob(actions, self.act(np.asarray(observations)), BANDWIDTH)


def swing(gain: float) -> Callable[[Array], Array]:
    """Pendulum: pump energy until it suffices, then balance; a gain of 0 does nothing, above 1 it only pushes."""

    def act(observations: Array) -> Array:
        cos, sin, speed = np.asarray(observations, np.float64).T
        lacking = 10 - (speed**2 / 6 * 1.0 + 5 * (1 + cos))  # ml^2/3 and mgl/2 of gymnasium's pendulum
        pumped = gain * lacking * np.sign(speed)
        balanced = -(8 * np.arctan2(sin, cos) + 2 * speed) if 0 < gain <= 1 else pumped
        torque = np.full_like(cos, 1.0) if gain > 1 else np.where(cos > 0.9, balanced, pumped)
        return np.asarray(np.clip(torque / 2, -1, 1)[:, None])

    return act


def ladder(log: str, policies: Path) -> dict[str, Callable[[Array], Array]]:
    """Policies from bad to good for a log, in [-1, 1]."""
    task = log.split("-")[0]
    if task == "pendulum":
        return {name: swing(gain) for name, gain in SWINGS.items()}
    arrays = {name: ArrayPolicy(policies / f"{task}_{name}.npz", deterministic=True) for name in SNAPSHOTS}
    return {name: partial(policy, rng=np.random.default_rng(0)) for name, policy in arrays.items()}


def truth(env_id: str, act: Callable[[Array], Array], episodes: int) -> dict[str, float]:
    """Mean discounted return, whose episodes no time limit cuts off, with its standard error; and the plain return."""
    discounted, plain, made = [], [], make_env(env_id)
    limit = made.spec.max_episode_steps if made.spec else None
    env, space = made.unwrapped, action_space_of(made)
    for episode in range(episodes):
        observation, _ = env.reset(seed=5000 + episode)
        rewards: list[float] = []
        ended = False
        while not ended and len(rewards) < max(HORIZON, limit or 0):
            unit = act(np.asarray(observation, np.float32)[None])
            observation, reward, ended, _, _ = env.step(space.clip(space.from_unit(unit))[0])
            rewards.append(float(reward))
        discounted.append(float(np.dot(rewards, GAMMA ** np.arange(len(rewards)))))
        plain.append(sum(rewards[:limit]))
    made.close()
    return {
        "value": float(np.mean(discounted)),
        "standard_error": float(np.std(discounted, ddof=1) / np.sqrt(episodes)),
        "return": float(np.mean(plain)),
    }


def summary(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Of each estimator: error, rank correlation, coverage of intervals, regret at 1."""
    real = np.array([row["truth"]["value"] for row in rows.values()])
    noise = np.array([1.96 * row["truth"]["standard_error"] for row in rows.values()])
    found = {}
    for name in next(iter(rows.values()))["estimates"]:
        given = [row["estimates"][name] for row in rows.values()]
        values = np.array([one["value"] for one in given])
        half = np.array([(one["high"] - one["low"]) / 2 for one in given])
        found[name] = {
            "error": round(float(np.sqrt(np.mean((values - real) ** 2))), 2),
            "rank_correlation": round(rank_correlation(values, real), 2),
            "intervals_that_held": round(float(np.mean(np.abs(values - real) <= np.hypot(half, noise))), 2),
            "regret_at_1": round(float(real.max() - real[values.argmax()]), 2),
        }
    return found


def measure(log: str, args: argparse.Namespace, record: dict[str, Any]) -> None:
    """All policies of a log, each written down as soon as it is done."""
    data = load_dataset(log)
    rows: dict[str, Any] = record.setdefault(log, {}).setdefault("policies", {})
    problem: Problem | None = None
    for name, act in ladder(log, args.policies).items():
        if name in rows:
            continue
        judged = Deterministic(act)
        with tempfile.TemporaryDirectory() as folder:
            start = time.process_time()
            if problem is None:
                problem = Problem(judged, data, GAMMA, SETTINGS, Path(folder), lambda text: None)
            else:
                problem = problem.for_policy(judged, Path(folder), name)
            estimates = {each: estimate(each, problem).to_json() for each in ESTIMATORS}
            seconds = time.process_time() - start
        rows[name] = {
            "truth": truth(str(data.meta.env_id), act, args.episodes),
            "estimates": estimates,
            "coverage": coverage(judged, data).share,
            "processor_seconds": round(seconds, 1),
        }
        record[log] |= {"data": logged_return(problem).value, "summary": summary(rows), "settings": vars(SETTINGS)}
        record[log]["versions"] = versions()
        with atomic_write(args.out) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1) + "\n")
        values = {each: round(one["value"], 2) for each, one in estimates.items()}
        print(f"{log}, {name}: {rows[name]['truth']['value']:.2f}, estimated {json.dumps(values)}", flush=True)


def main() -> None:
    """Parse, measure, print what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policies", type=Path, required=True, help="folder of policies as arrays (.npz)")
    parser.add_argument("--logs", nargs="+", default=["pendulum-mixed", "hopper-mixed"], help="names or folders")
    parser.add_argument("--episodes", type=int, default=20, help="episodes of the truth")
    parser.add_argument("-o", "--out", type=Path, required=True, help="JSON file to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    record = json.loads(args.out.read_text()) if args.out.exists() else {}
    for log in args.logs:
        measure(log, args, record)
        print(json.dumps(record[log]["summary"], indent=1))


if __name__ == "__main__":
    main()
