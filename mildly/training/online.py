"""Online training: act in an environment, learn from what happens. Used to make the behaviour policies of data sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mildly.algorithms.base import Algorithm
from mildly.data.dataset import FIELDS, Array, Dataset, Meta
from mildly.data.replay import Replay
from mildly.environments import action_bounds, make_env
from mildly.evaluation.rollout import rollout


@dataclass
class OnlineRun:
    """An algorithm that learnt online, everything it experienced, and its returns on the way."""

    algorithm: Algorithm
    experience: list[dict[str, Any]] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    def dataset(self, meta: Meta) -> Dataset:
        """The experience as a data set, in the order in which it was made."""
        columns = {name: np.asarray([transition[name] for transition in self.experience]) for name in FIELDS}
        return Dataset.from_arrays(**columns, meta=meta)


def train_online(
    algorithm: Algorithm,
    meta: Meta,
    *,
    max_steps: int,
    random_steps: int,
    stop_at: float = float("inf"),
    eval_every: int = 1_000,
    eval_episodes: int = 5,
    seed: int = 0,
    progress: Callable[[int, float], None] | None = None,
) -> OnlineRun:
    """One gradient step for each environment step, until the evaluated return reaches `stop_at`.

    Args:
        algorithm: learns; acts by drawing from its policy.
        meta: names the environment and its action bounds.
        max_steps: environment steps at most.
        random_steps: uniformly random actions at the start, without learning.
        stop_at: mean return of an evaluation at which to stop.
        eval_every: environment steps between evaluations.
        eval_episodes: episodes of an evaluation.
        seed: of the environment and of the minibatches.
        progress: called with the step and the return of each evaluation.
    """
    assert meta.env_id is not None
    env = make_env(meta.env_id)
    low, high = action_bounds(env)
    rng = np.random.default_rng(seed)
    sampler = algorithm.random_stream(seed, "batches")
    replay = Replay.empty(max_steps, algorithm.observation_size, algorithm.action_size, algorithm.device)
    run = OnlineRun(algorithm)
    policy = algorithm.policy()  # shares the actor's weights, so it acts with what has been learnt so far
    observation: Array = env.reset(seed=seed)[0].astype(np.float32)
    for step in range(1, max_steps + 1):
        if step <= random_steps:
            action = rng.uniform(-1, 1, algorithm.action_size).astype(np.float32)
        else:
            action = policy.act(observation, deterministic=False, generator=algorithm.generator)
        raw, reward, terminated, truncated, _ = env.step(low + (action + 1) * (high - low) / 2)
        transition = {
            "observations": observation,
            "actions": action,
            "rewards": float(reward),
            "next_observations": raw.astype(np.float32),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }
        replay.add(transition)
        run.experience.append(transition)
        observation = transition["next_observations"]
        if terminated or truncated:
            observation = env.reset()[0].astype(np.float32)
        if step > random_steps:
            algorithm.update(replay.sample(algorithm.config.batch_size, sampler))
        if step % eval_every == 0:
            value = rollout(algorithm.policy(meta), meta, episodes=eval_episodes, seed=seed).mean_return
            run.evaluations.append((step, value))
            if progress is not None:
                progress(step, value)
            if value >= stop_at:
                break
    env.close()
    return run
