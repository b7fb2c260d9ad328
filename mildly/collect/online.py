"""Online training: act in an environment, learn from what happens. Used to make the behavior policies of data sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mildly.algorithms.base import Algorithm
from mildly.collect.rollouts import unit_bounds
from mildly.data.dataset import FIELDS, Array, Dataset, Meta
from mildly.data.replay import Replay
from mildly.environments import make_env
from mildly.evaluation.rollout import rollout


@dataclass
class OnlineRun:
    """An algorithm that learned online, everything it experienced, and its returns on the way."""

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
    learner = OnlineLearner(algorithm, meta, capacity=max_steps, random_steps=random_steps, seed=seed)
    run = OnlineRun(algorithm)
    learner.start_episode(seed)
    while learner.step < max_steps:
        transition = learner.one_step()
        run.experience.append(transition)
        if transition["terminated"] or transition["truncated"]:
            learner.start_episode()
        if learner.step % eval_every == 0:
            value = rollout(algorithm.policy(meta), meta, episodes=eval_episodes, seed=seed).mean_return
            run.evaluations.append((learner.step, value))
            if progress is not None:
                progress(learner.step, value)
            if value >= stop_at:
                break
    learner.env.close()
    return run


class OnlineLearner:
    """An algorithm in its environment: what `train_online` and `train_agent` have in common.

    Besides the algorithm itself its state is `step`, the generators `rng` and `sampler`, the replay and, between
    two episodes, the environment's own generator.
    """

    def __init__(self, algorithm: Algorithm, meta: Meta, *, capacity: int, random_steps: int, seed: int) -> None:
        assert meta.env_id is not None
        self.algorithm, self.random_steps = algorithm, random_steps
        self.env = make_env(meta.env_id)
        self.low, self.high = unit_bounds(self.env)
        self.rng = np.random.default_rng(seed)
        self.sampler = algorithm.random_stream(seed, "batches")
        self.replay = Replay.empty(capacity, algorithm.observation_size, algorithm.action_size, algorithm.device)
        self.policy = algorithm.policy()  # shares the actor's weights, so it acts with what has been learned so far
        self.step = 0
        self.observation: Array

    def start_episode(self, seed: int | None = None) -> None:
        """Reset the environment; with a seed at the very beginning only."""
        self.observation = self.env.reset(seed=seed)[0].astype(np.float32)

    def one_step(self) -> dict[str, Any]:
        """Act, remember, learn. Returns the transition; after the last one of an episode, start the next."""
        self.step += 1
        if self.step <= self.random_steps:
            action = self.rng.uniform(-1, 1, self.algorithm.action_size).astype(np.float32)
        else:
            action = self.policy.act(self.observation, deterministic=False, generator=self.algorithm.generator)
        own = self.low + (action + 1) * (self.high - self.low) / 2
        raw, reward, terminated, truncated, _ = self.env.step(own)
        transition = {
            "observations": self.observation,
            "actions": action,
            "rewards": float(reward),
            "next_observations": raw.astype(np.float32),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }
        self.replay.add(transition)
        self.observation = transition["next_observations"]
        if self.step > self.random_steps:
            self.algorithm.update(self.replay.sample(self.algorithm.config.batch_size, self.sampler))
        return transition
