"""Logs whose policies' real returns can be known: for each a ladder of policies, and the world to run them in.

- `pendulum-mixed`, `pendulum-poor` (its worse half): hand-made controllers, from balancing to working against it.
- `hopper-ladder`, `halfcheetah-ladder`, `walker2d-ladder`: snapshots of a training and trained agents. The log
  of a ladder has six parts of about 10,000 steps: whole episodes of the re-collected sets random, medium and expert,
  and episodes of three of the snapshots. The others that are judged have never acted in it.
- `building`, `tank`, `vehicle`: the messy logs of `recipes/messy_logs.py`, repaired as the guide says; linear clones of
  better and worse episodes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from own_logs import messy_logs, prepare

from mildly.collect.rollouts import ArrayPolicy, collect, concatenate
from mildly.data.dataset import Array, Dataset
from mildly.data.registry import load_dataset
from mildly.data.select import best_episodes, pick_episodes
from mildly.environments import action_space_of, make_env
from mildly.ope.judged import normal_log_prob

Act = Callable[[Array], Array]
"""Observations (n, o) to actions (n, a) in [-1, 1]."""
BANDWIDTH = 0.1
SWINGS = {"rest": 0.0, "swing 0.05": 0.05, "swing 0.2": 0.2, "swing 0.5": 0.5, "against": -0.5, "push": 9.0}
SNAPSHOTS = ("trpo-snap-000", "trpo-snap-020", "trpo-snap-040", "trpo-snap-080", "trpo-snap-200")
AGENTS = ("d4rl-medium-v2", "zoo-trpo", "zoo-tqc")
SETS, LOGGED, ROWS = ("random", "medium", "expert"), SNAPSHOTS[1:4], 10_000
PLANTS = ("building", "tank", "vehicle")
LOGS = (
    *("pendulum-mixed", "hopper-ladder", "halfcheetah-ladder", "walker2d-ladder"),
    *("pendulum-poor", *PLANTS),
)
GAMMAS = {"pendulum": 0.97, "building": 0.95, "tank": 0.95, "vehicle": 0.95}
"""By task; 0.99 elsewhere."""


class Log(NamedTuple):
    """A log, and what is known of policies for it."""

    data: Dataset
    gamma: float
    policies: dict[str, Act]
    """From bad to good."""
    play: Callable[[Act, int], Iterator[float]]
    """The rewards of an episode that no time limit ends, for a policy and a seed."""
    labels: Array | None
    """Which part each episode comes from, where the log is made of parts."""


class Deterministic:
    """A function of observations, judged as a policy without noise."""

    density = f"a normal kernel of width {BANDWIDTH:g}"

    def __init__(self, act: Act) -> None:
        self.act = act

    def actions(self, observations: Array, seed: int) -> Array:
        return np.asarray(self.act(np.asarray(observations)), np.float32)[:, None]

    def log_prob(self, observations: Array, actions: Array) -> Array:
        return normal_log_prob(actions, self.act(np.asarray(observations)), BANDWIDTH)


def open_log(name: str, sets: Path, policies: Path, work: Path) -> Log:
    """A log by its name in `LOGS`."""
    task, labels = name.split("-")[0], None
    if name in PLANTS:
        prepare(name, work)
        data = load_dataset(work / name / "set")
        made = linear_clones(data)
        play: Callable[[Act, int], Iterator[float]] = partial(play_plant, name, data)
    else:
        data, labels = parts(task, sets, policies) if name.endswith("ladder") else (load_dataset(f"{task}-mixed"), None)
        data = worse_half(data) if name.endswith("poor") else data
        made, play = ladder(task, policies), partial(play_env, str(data.meta.env_id))
    return Log(data, GAMMAS.get(task, 0.99), made, play, labels)


def parts(task: str, sets: Path, policies: Path) -> tuple[Dataset, Array]:
    """Episodes of sets and of snapshots, one part after the other, and which of these each episode is."""
    chosen = []
    for part in SETS:
        whole = load_dataset(sets / f"{task}-{part}-recollected")
        lengths = np.diff(whole.episode_ends(), prepend=0)
        order = np.random.default_rng(0).permutation(len(lengths))
        count = int(np.searchsorted(np.cumsum(lengths[order]), ROWS)) + 1
        chosen.append(pick_episodes(whole, np.sort(order[:count])))
    meta = dataclasses.replace(chosen[0].meta, name=f"{task}-ladder", notes=())
    for part in LOGGED:
        policy = ArrayPolicy(policies / f"{task}_{part}.npz", deterministic=False)
        chosen.append(collect(str(meta.env_id), policy, ROWS, meta))
    labels = np.repeat(np.arange(len(chosen)), [len(part.episode_ends()) for part in chosen])
    return concatenate(chosen, meta), labels


def worse_half(data: Dataset) -> Dataset:
    """The episodes below the median return."""
    returns = data.episode_returns()
    return pick_episodes(data, np.flatnonzero(returns < np.median(returns)))


def ladder(task: str, policies: Path) -> dict[str, Act]:
    """Policies from bad to good for a task."""
    if task == "pendulum":
        return {name: swing(gain) for name, gain in SWINGS.items()}
    arrays = {name: ArrayPolicy(policies / f"{task}_{name}.npz", deterministic=True) for name in (*SNAPSHOTS, *AGENTS)}
    return {name: partial(policy, rng=np.random.default_rng(0)) for name, policy in arrays.items()}


def swing(gain: float) -> Act:
    """Pendulum: pump energy until it suffices, then balance; a gain of 0 does nothing, above 1 it only pushes."""

    def act(observations: Array) -> Array:
        cos, sin, speed = np.asarray(observations, np.float64).T
        lacking = 10 - (speed**2 / 6 * 1.0 + 5 * (1 + cos))  # ml^2/3 and mgl/2 of gymnasium's pendulum
        pumped = gain * lacking * np.sign(speed)
        balanced = -(8 * np.arctan2(sin, cos) + 2 * speed) if 0 < gain <= 1 else pumped
        torque = np.full_like(cos, 1.0) if gain > 1 else np.where(cos > 0.9, balanced, pumped)
        return np.asarray(np.clip(torque / 2, -1, 1)[:, None])

    return act


def linear_clones(data: Dataset) -> dict[str, Act]:
    """Least squares of the actions in the worst, middle and best third, in all and the best tenth; and no feedback."""
    order = np.argsort(data.episode_returns(), kind="stable")
    thirds = [pick_episodes(data, np.sort(part)) for part in np.array_split(order, 3)]
    still = np.asarray(data.actions, np.float64).mean(axis=0)
    names = ("worst", "middle", "best")
    made = {f"clone of the {name} third": linear(part) for name, part in zip(names, thirds, strict=True)}
    return {
        "mean action": lambda observations: np.tile(still, (len(observations), 1)),
        **made,
        "clone of all": linear(data),
        "clone of the best tenth": linear(best_episodes(data, 0.1)),
    }


def linear(data: Dataset) -> Act:
    """Actions as a linear function of observations."""
    inputs = np.concatenate([np.asarray(data.observations, np.float64), np.ones((len(data), 1))], axis=1)
    weights = np.linalg.lstsq(inputs, np.asarray(data.actions, np.float64), rcond=None)[0]
    return lambda observations: np.clip(np.asarray(observations, np.float64) @ weights[:-1] + weights[-1], -1, 1)


def play_env(env_id: str, act: Act, seed: int) -> Iterator[float]:
    """The rewards of an episode in an environment without its time limit."""
    made = make_env(env_id)
    env, space = made.unwrapped, action_space_of(made)
    observation, _ = env.reset(seed=5000 + seed)
    ended = False
    while not ended:
        unit = act(np.asarray(observation, np.float32)[None])
        observation, reward, ended, _, _ = env.step(space.clip(space.from_unit(unit))[0])
        yield float(reward)
    made.close()


def play_plant(log: str, data: Dataset, act: Act, seed: int) -> Iterator[float]:
    """The rewards of an episode in a plant. A day of the building follows a day of one of its operators."""
    plant: Any = messy_logs.PLANTS[log](np.random.default_rng((1000, seed)))
    plant.begin()
    for _ in range(96 if log == "building" else 0):
        plant.look()
        plant.step(*plant.operate(plant.skills[seed % len(plant.skills)]))
    names, space = [f"obs_{name}" for name in plant.sensors], data.meta.action_space
    columns = [names.index(name) for name in data.meta.observation_names]
    ended = False
    while not ended:
        seen = np.array(plant.look(), np.float32)[columns]
        unit = act(seen[None])
        reward, ended = plant.step(*(unit if space is None else space.from_unit(unit))[0].tolist())
        yield float(reward)
