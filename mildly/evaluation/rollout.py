"""Episodes of a policy in a real environment, stepped side by side so that the network runs once for all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np

from mildly.data.dataset import Array, Meta, normalized_score
from mildly.environments import Environment, EnvironmentFailed, Simulator
from mildly.errors import MildlyError
from mildly.policy import Policy


def episode_seed(seed: int, episode: int) -> int:
    """Environment seed of an evaluation episode of a run: always the same, and shared with no run of another seed."""
    return 1000 * seed + 100 + episode


class EvaluationFailed(MildlyError):
    """The environment broke down in an evaluation; what was learned is sound."""


class Acts(Protocol):
    """Anything that maps a batch of observations to a batch of actions, in the environment's units."""

    def act(self, observations: Array) -> Array:
        """Actions (n, a) for observations (n, o)."""
        ...


@runtime_checkable
class Starts(Protocol):
    """Anything that remembers its episodes, as a `Policy` may: what it gives acts, and is told the rewards."""

    def start(self, episodes: int, **options: Any) -> Any:
        """So many episodes side by side, with `act(observations, rows)` and `observe(rewards, rows)`."""
        ...


class _Memoryless:
    """Such a thing as if it had been started."""

    def __init__(self, policy: Acts) -> None:
        self.policy = policy

    def act(self, observations: Array, rows: Sequence[int]) -> Array:
        return self.policy.act(observations)

    def observe(self, rewards: Array, rows: Sequence[int]) -> None:
        pass


@dataclass(frozen=True)
class Evaluation:
    """What came out of some episodes: every return, not only the mean."""

    env_id: str
    seeds: list[int]
    returns: list[float]
    lengths: list[int]
    scores: list[float] | None
    """Normalized returns (0 a random policy, 100 an expert); None where the task has no reference."""
    target_return: float | None = None
    """The return that the policy was told to aim at; None for one that aims at none."""

    @property
    def mean_return(self) -> float:
        """Mean over episodes."""
        return float(np.mean(self.returns))

    @property
    def score(self) -> float | None:
        """Mean normalized score over episodes."""
        return None if self.scores is None else float(np.mean(self.scores))

    def to_json(self) -> dict[str, Any]:
        """Everything, with the means, for a line of JSON."""
        facts = {**asdict(self), "mean_return": self.mean_return, "score": self.score}
        if self.target_return is None:
            del facts["target_return"]
        return facts


def rollout(
    policy: Acts | Starts,
    meta: Meta,
    *,
    env: Environment | Simulator | None = None,
    episodes: int = 10,
    seed: int = 0,
    target_return: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Run whole episodes. Equal seeds give equal episodes.

    Args:
        policy: is started anew and acts deterministically; or anything that acts on observations alone.
        meta: of the data set the policy was trained on: environment and reference returns.
        env: another environment than the data set's.
        episodes: how many.
        seed: the run's seed; episode i starts from environment seed 1000 * seed + 100 + i.
        target_return: what a policy that can be told so is to aim at; by default its own target.
        progress: called with the number of episodes ended so far.
    """
    where = meta.env_id if env is None else env
    if where is None:
        raise MildlyError(f"'{meta.name}' names no environment to run in; give one with --env.")
    if episodes < 1:
        raise MildlyError(f"episodes must be at least 1, got {episodes}.")
    if seed < 0:
        raise MildlyError(f"seed must be at least 0, got {seed}.")
    simulator = where if isinstance(where, Simulator) else Simulator.of(where)
    seeds = [episode_seed(seed, i) for i in range(episodes)]
    conditions: dict[str, Any] = {} if target_return is None else {"target_return": target_return}
    returns, lengths, ended = np.zeros(episodes), np.zeros(episodes, dtype=int), 0
    for side_by_side in [[i] for i in range(episodes)] if simulator.one else [list(range(episodes))]:
        said = None if progress is None else partial(lambda before, done: progress(before + done), ended)
        own_seeds = [seeds[i] for i in side_by_side]
        returns[side_by_side], lengths[side_by_side] = _play(policy, simulator, own_seeds, said, conditions)
        ended += len(side_by_side)
    scores = normalized_score(returns, meta) if simulator.name == meta.env_id else None
    scored = None if scores is None else scores.tolist()
    if target_return is None and isinstance(policy, Policy):
        target_return = policy.target_return
    return Evaluation(simulator.name, seeds, returns.tolist(), lengths.tolist(), scored, target_return)


def _play(
    policy: Acts | Starts,
    simulator: Simulator,
    seeds: Sequence[int],
    progress: Callable[[int], None] | None,
    conditions: Mapping[str, Any],
) -> tuple[Array, Array]:
    """Returns and lengths of episodes side by side."""
    episodes = len(seeds)
    envs = [simulator.make() for _ in seeds]
    try:
        starts = [env.reset(seed=s)[0] for env, s in zip(envs, seeds, strict=True)]
        observations = np.stack(starts).astype(np.float32)
        returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=int)
        options = {"unseen": "ignore", **conditions}
        acting = policy.start(episodes, **options) if isinstance(policy, Starts) else _Memoryless(policy)
        running, rewards = list(range(episodes)), np.zeros(episodes)
        while running:
            actions = acting.act(observations[running], running)
            ended = []
            for i, action in zip(running, actions, strict=True):
                observations[i], rewards[i], terminated, truncated, _ = envs[i].step(action)
                lengths[i] += 1
                if terminated or truncated:
                    ended.append(i)
            returns[running] += rewards[running]
            acting.observe(rewards[running], running)
            if ended:
                running = [i for i in running if i not in ended]
                if progress is not None:
                    progress(episodes - len(running))
    except EnvironmentFailed as error:
        raise EvaluationFailed(error.told("in an evaluation")) from error
    finally:
        for env in envs if not simulator.one else ():
            env.close()
    return returns, lengths
