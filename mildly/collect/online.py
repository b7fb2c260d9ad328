"""Batches from an environment: act, remember, sample. The trainer's source for agents that learn online."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from torch import Tensor

from mildly.algorithms.base import Algorithm
from mildly.data.batches import Buffer, Sampler
from mildly.data.dataset import FIELDS, Array
from mildly.environments import action_space_of, make_env
from mildly.training.trainer import Source

Transition = dict[str, Any]


class ExperienceLog(Protocol):
    """Keeps every transition outside the checkpoint."""

    def append(self, transition: Transition) -> None:
        """One more."""
        ...

    def flush(self) -> None:
        """All of them are on disk afterwards."""
        ...

    def rewind(self, rows: int) -> Mapping[str, Array]:
        """Forget all but the first rows, and give those as columns."""
        ...


class EnvironmentSource(Source):
    """One step of an environment for each batch, with draws from all transitions so far.

    Every episode starts from a seed that `episode_seed` gives. Then between two episodes the environment has no state
    that would have to be kept, and a training that was killed there and started again ends with the same bits.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        env_id: str,
        *,
        seed: int,
        random_steps: int,
        episode_seed: Callable[[int], int | None],
        log: ExperienceLog | None = None,
    ) -> None:
        """The first `random_steps` actions are uniformly random, and nothing is learned from a batch meanwhile."""
        self.algorithm, self.random_steps, self.episode_seed, self.log = algorithm, random_steps, episode_seed, log
        self.env = make_env(env_id)
        self.space = action_space_of(self.env)
        self.rng = np.random.default_rng(seed)
        self.generator = algorithm.random_stream(seed, "batches")
        sizes = algorithm.observation_size, algorithm.action_size
        self.buffer = Buffer(*sizes, algorithm.config.batch_size, algorithm.device, algorithm.preprocessing)
        # shares the actor's weights, so it acts with what has been learned so far
        self.acting = algorithm.policy().start(1, deterministic=False, unseen="ignore")
        self.episode = 0
        self.at_boundary = True
        self.observation: Array

    def next_batch(self, own: Sampler | None = None) -> Any:
        """Step the environment, then sample."""
        transition = self.step_environment()
        if self.log is not None:
            self.log.append(transition)
        return (own or self.buffer).sample(self.generator) if len(self.buffer) > self.random_steps else None

    def step_environment(self) -> Transition:
        """One transition, which the buffer has then too."""
        if self.at_boundary:
            self.observation = self.env.reset(seed=self.episode_seed(self.episode))[0].astype(np.float32)
        if len(self.buffer) < self.random_steps:
            action = self.rng.uniform(-1, 1, self.algorithm.action_size).astype(np.float32)
        else:
            action = self.acting.act(self.observation[None], generator=self.algorithm.generator)[0]
        raw, reward, terminated, truncated, _ = self.env.step(self.space.from_unit(action))
        transition = {
            "observations": self.observation,
            "actions": action,
            "rewards": float(reward),
            "next_observations": raw.astype(np.float32),
            "terminated": bool(terminated),
            "truncated": bool(truncated),
        }
        self.buffer.add({name: np.asarray(transition[name])[None] for name in FIELDS})
        self.acting.observe(np.array([reward]))
        self.observation = transition["next_observations"]
        self.at_boundary = bool(terminated or truncated)
        if self.at_boundary:
            self.episode += 1
            self.acting.reset()
        return transition

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self.log is not None:
            self.log.flush()
        facts = {"rows": len(self.buffer), "episode": self.episode, "rng": self.rng.bit_generator.state}
        return {"generator": self.generator.get_state()}, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go to where a checkpoint stands; with none, to the beginning."""
        if self.log is not None:
            rows = self.log.rewind(facts.get("rows", 0))
            if len(rows["rewards"]):
                self.buffer.add({name: np.array(rows[name]) for name in FIELDS})
        if facts:
            self.generator.set_state(tensors["generator"])
            self.rng.bit_generator.state = facts["rng"]
            self.episode = facts["episode"]
