"""Batches from environments: act, remember, sample. The trainer's source for learners that act themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np
from torch import Tensor

from mildly.action_space import ActionSpace
from mildly.algorithms.base import Algorithm
from mildly.data.batches import Buffer, Mixture, Sampler
from mildly.data.dataset import FIELDS, Array
from mildly.environments import EnvironmentFailed, Simulator, action_space_of
from mildly.errors import MildlyError
from mildly.training.trainer import Source, SourceFailed

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

    def cut(self, row: int) -> None:
        """The episode ends with this row, though it was not over: mark it truncated."""
        ...


class Share(NamedTuple):
    """The share of new transitions in a batch: fixed, or on a straight line from one number to another."""

    start: float
    end: float
    steps: int

    def at(self, step: int) -> float:
        """After so many steps."""
        return self.start + (self.end - self.start) * min(step / self.steps, 1.0)


class Acting(NamedTuple):
    """How a learner acts in its environments."""

    environments: int = 1
    """How many are stepped side by side."""
    updates_per_step: float = 1.0
    """Gradient steps for each step of an environment; below 1, one for several."""
    noise: float = 0.0
    """Standard deviation of the noise on the actions, which end at the bounds."""
    random_steps: int = 0
    """Uniformly random actions at the start, from which nothing is learned meanwhile."""
    whole_episodes: bool = False
    """Whether a checkpoint waits until all episodes have ended."""


class EnvironmentSource(Source):
    """A step of an environment for each step of the trainer, and draws from all transitions so far.

    Every episode starts from a seed that `episode_seed` gives. When a training is resumed, an episode that was under
    way is played again from its seed with the actions that were taken: then the environment stands where it stood, and
    the training ends with the same bits as one that was not interrupted. Where the environment does not repeat itself,
    the episode ends there as if by a time limit, and a note says so.
    """

    def __init__(
        self,
        algorithm: Algorithm,
        simulator: Simulator,
        *,
        seed: int,
        episode_seed: Callable[[int], int | None],
        acting: Acting | None = None,
        space: ActionSpace | None = None,
        log: ExperienceLog | None = None,
    ) -> None:
        """`space` is what -1 and 1 mean; the environment's own bounds, if not given."""
        self.algorithm, self.episode_seed, self.how, self.log = algorithm, episode_seed, acting or Acting(), log
        self.envs = [simulator.make() for _ in range(self.how.environments)]
        self.simulator = simulator
        self.space = space or action_space_of(self.envs[0])
        self.rng = np.random.default_rng(seed)
        self.generator = algorithm.random_stream(seed, "batches")
        sizes = algorithm.observation_size, algorithm.action_size
        self.buffer = Buffer(*sizes, algorithm.config.batch_size, algorithm.device, algorithm.preprocessing)
        self.sampler: Sampler = self.buffer
        self.share: Share | None = None
        self.seen: Callable[[Array], None] = lambda rewards: None
        """Told of every reward."""
        # shares the actor's weights, so it acts with what has been learned so far
        self.acting = algorithm.policy().start(len(self.envs), deterministic=False, unseen="ignore")
        self.taken = 0
        """Steps that the trainer has made."""
        self.started = 0
        """Episodes begun so far, which is the next one's number."""
        self.episodes = [-1] * len(self.envs)
        """The number of the episode in each environment."""
        self.ended = [True] * len(self.envs)
        self.observations: list[Array] = [np.zeros(0)] * len(self.envs)
        self.at_boundary = True
        self.notes: list[str] = []

    def next_batches(self, own: Sampler | None = None) -> list[Any]:
        """Step the environments where it is time, then sample."""
        if self.taken == len(self.buffer):
            self.step_environments()
        self.taken += 1
        if self.share is not None and isinstance(self.sampler, Mixture):
            new = self.share.at(self.taken)
            self.sampler.shares = {"logged": 1 - new, "new": new}
        updates = self._updates(self.taken) - self._updates(self.taken - 1)
        return [(own or self.sampler).sample(self.generator) for _ in range(updates)]

    def _updates(self, steps: int) -> int:
        """How many are due after so many steps."""
        return int(self.how.updates_per_step * max(steps - self.how.random_steps, 0) + 1e-9)

    def step_environments(self) -> list[Transition]:
        """One transition of each environment, which buffer and log have then too; all of them, or none."""
        with self._undone_on_failure():
            for i in [i for i, ended in enumerate(self.ended) if ended]:
                self._begin(i)
            given = np.stack(self.observations)
            actions = self._act(given)
            made = [self._step(i, action) for i, action in enumerate(self.space.from_unit(actions))]
        rows = [
            dict(zip(FIELDS, (before, action, reward, after, terminated, truncated), strict=True))
            for before, action, (after, reward, terminated, truncated) in zip(given, actions, made, strict=True)
        ]
        columns = {name: np.array([row[name] for row in rows]) for name in FIELDS}
        self.buffer.add(columns)
        self.seen(columns["rewards"])
        self.acting.observe(columns["rewards"])
        for i, row in enumerate(rows):
            if self.log is not None:
                self.log.append(row)
            self.observations[i] = row["next_observations"]
            self.ended[i] = row["terminated"] or row["truncated"]
        self.acting.reset([i for i, ended in enumerate(self.ended) if ended])
        self.at_boundary = not self.how.whole_episodes or all(self.ended)
        return rows

    def _act(self, observations: Array) -> Array:
        """Actions in [-1, 1]: draws of the policy, with noise if asked for."""
        shape = len(observations), self.algorithm.action_size
        if len(self.buffer) < self.how.random_steps:
            return self.rng.uniform(-1, 1, shape).astype(np.float32)
        actions = self.acting.act(observations, generator=self.algorithm.generator)
        if self.how.noise:
            actions = actions + self.how.noise * self.rng.standard_normal(shape)
        return np.clip(actions, -1, 1).astype(np.float32)

    def _begin(self, i: int) -> None:
        """Start the next episode in an environment."""
        self.observations[i] = self._reset(i, self.started)
        self.episodes[i], self.ended[i] = self.started, False
        self.started += 1

    @property
    def where(self) -> str:
        """The environment, and how many of them, in words."""
        return self.simulator.name if len(self.envs) == 1 else f"{len(self.envs)} of {self.simulator.name}"

    def _reset(self, i: int, episode: int) -> Array:
        return np.array(self.envs[i].reset(seed=self.episode_seed(episode))[0], dtype=np.float32)

    def _step(self, i: int, action: Array) -> tuple[Array, float, bool, bool]:
        raw, reward, terminated, truncated, _ = self.envs[i].step(action)
        return np.array(raw, dtype=np.float32), float(reward), terminated, truncated

    @contextmanager
    def _undone_on_failure(self) -> Iterator[None]:
        """Where an environment fails, random numbers go back to where they were: the step can be made again."""
        drawn, rng = self.algorithm.generator.get_state(), self.rng.bit_generator.state
        try:
            yield
        except EnvironmentFailed as error:
            self.algorithm.generator.set_state(drawn)
            self.rng.bit_generator.state = rng
            raise SourceFailed(error.told(f"at its step {len(self.buffer) + 1:,}")) from error

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        if self.log is not None:
            self.log.flush()
        facts = {
            "rows": len(self.buffer),
            "taken": self.taken,
            "started": self.started,
            "episodes": list(self.episodes),
            "ended": list(self.ended),
            "rng": self.rng.bit_generator.state,
        }
        return {"generator": self.generator.get_state()}, facts

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go to where a checkpoint stands; with none, to the beginning."""
        rows: Mapping[str, Array] = {}
        if self.log is not None:
            rows = self.log.rewind(facts.get("rows", 0))
            if len(rows["rewards"]):
                self.buffer.add(rows)
                self.seen(rows["rewards"])
        if facts:
            self.generator.set_state(tensors["generator"])
            self.rng.bit_generator.state = facts["rng"]
            self.taken, self.started = facts["taken"], facts["started"]
            self.episodes, self.ended = list(facts["episodes"]), list(facts["ended"])
            for i in [i for i, ended in enumerate(self.ended) if not ended]:
                self._play_again(i, rows)

    def _play_again(self, i: int, rows: Mapping[str, Array]) -> None:
        """Bring an environment to where it stood: rows of all environments follow each other round by round."""
        own = slice(i, None, len(self.envs))
        ends = np.flatnonzero(rows["terminated"][own] | rows["truncated"][own])
        first = int(ends[-1]) + 1 if len(ends) else 0
        actions, expected = rows["actions"][own][first:], rows["next_observations"][own][first:]
        try:
            observation = self._reset(i, self.episodes[i])
            for action in self.space.from_unit(actions):
                observation = self._step(i, action)[0]
        except EnvironmentFailed as error:
            raise MildlyError(
                f"the environment '{self.simulator.name}' cannot be brought to where it stood "
                f"({error.reason}). The checkpoint is as it was: try again when it runs."
            ) from error
        self.observations[i] = observation
        if len(actions) and not np.array_equal(observation, expected[-1]):
            self.ended[i] = True
            if self.log is not None:
                self.log.cut(i + len(self.envs) * (len(rows["rewards"][own]) - 1))
            self.notes.append(
                f"'{self.simulator.name}' does not repeat itself: the episode that was under way ends here, and a "
                "resumed training is not the same to the bit"
            )

    def close(self) -> None:
        """Let the environments go; one that is the user's own object stays open."""
        for env in [] if self.simulator.one else self.envs:
            env.close()
