"""Making data sets: which policies act (by name, file, folder or function), for how long, and where the data go."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from mildly.collect.agent import Agent
from mildly.collect.rollouts import ActFunction, ArrayPolicy, PolicyBehavior, describe, from_own_units, stream, uniform
from mildly.data.dataset import FIELDS, Array, Dataset, Meta, blocks
from mildly.data.writer import Writer
from mildly.environments import make_env, trust_env
from mildly.errors import MildlyError, unknown_name
from mildly.policy import load_policy
from mildly.versions import versions

KINDS = {
    "random": "uniformly random actions",
    "medium": "the agent when it was a third of the way (--share) from random to its best",
    "medium-replay": "all that the agent experienced until then",
    "expert": "the agent at its best",
    "medium-expert": "half medium, half expert",
    "full-replay": "all that the agent ever experienced",
}
"""The kinds of data that D4RL has, made with an agent that learns online."""


@dataclass(frozen=True)
class Part:
    """A piece of a set: steps that a policy is to make, or transitions that are there already."""

    words: str
    """What it is, for the set's `source`."""
    steps: int
    made_by: ActFunction | PolicyBehavior | Mapping[str, Array]
    """A policy in [-1, 1], or columns."""

    def pieces(self, env_id: str, **how: Any) -> Iterator[Mapping[str, Array]]:
        """Its transitions, a piece at a time; the last row ends an episode."""
        if not isinstance(self.made_by, Mapping):
            yield from stream(env_id, self.made_by, self.steps, **how)
            return
        for rows in blocks(self.steps):
            piece = {name: np.array(self.made_by[name][rows]) for name in FIELDS}
            if rows.stop == self.steps:
                piece["truncated"][-1] |= not piece["terminated"][-1]
            yield piece
            if how["progress"] is not None:
                how["progress"](rows.stop)


def make_set(
    out: str | os.PathLike[str],
    env_id: str,
    parts: Sequence[Part],
    meta: Meta,
    *,
    seed: int = 0,
    environments: int = 16,
    progress: Callable[[int], None] | None = None,
) -> Dataset:
    """Write the parts behind one another into a new folder, which appears whole or not at all.

    Args:
        out: the folder.
        env_id: where the policies act.
        parts: at least one.
        meta: from `describe`; the source is completed here.
        seed: of the environments and of the policies' draws; each part has numbers of its own.
        environments: how many are stepped side by side; the data depend on it, as on the seed.
        progress: called with the number of transitions so far.
    """
    if seed < 0:
        raise MildlyError(f"seed must be at least 0, not {seed}.")
    words = "; ".join(f"{part.steps:,} steps of {part.words}" for part in parts)
    using = ", ".join(f"{name} {version}" for name, version in versions().items() if name in ("gymnasium", "mujoco"))
    source = f"mildly data collect: {words}; in {env_id}, seed {seed}, {environments} environments, {using}"
    with Writer(out) as writer:
        for number, part in enumerate(parts):
            before = writer.rows
            so_far = None if progress is None else lambda done, before=before: progress(before + done)
            for piece in part.pieces(env_id, seed=part_seed(seed, number), environments=environments, progress=so_far):
                writer.append(piece)
        made = Dataset.adopt(writer.arrays(), replace(meta, source=source), str(out))
        writer.finish(made.meta)
    return Dataset.load(out, verify=False)


def part_seed(seed: int, number: int) -> int:
    """The first part has the set's own seed, the others seeds that no other set is likely to have."""
    return int(np.random.SeedSequence([seed, number]).generate_state(1)[0]) if number else seed


def policy_parts(
    policies: Sequence[str], env_id: str, steps: int, *, shares: Sequence[float] = (), deterministic: bool = False
) -> list[Part]:
    """A part for each policy, with its share of the steps (equal ones by default)."""
    shares = shares or [1.0] * len(policies)
    if len(shares) != len(policies):
        raise MildlyError(f"there are {len(policies)} policies but {len(shares)} shares.")
    if min(shares) <= 0 or not np.isfinite(shares).all():
        raise MildlyError(f"shares must be above 0, not {', '.join(map(str, shares))}.")
    ends = np.rint(np.cumsum([0.0, *shares]) / sum(shares) * steps).astype(int)
    how = "deterministic" if deterministic else "stochastic"
    parts = []
    for policy, size in zip(policies, np.diff(ends).tolist(), strict=True):
        if size < 1:
            raise MildlyError(f"{policy}: its share of {steps:,} steps is none.")
        words = "uniformly random actions" if policy == "random" else f"{Path(policy).name} ({how})"
        parts.append(Part(words, size, act_function(policy, env_id, deterministic=deterministic)))
    return parts


def kind_parts(
    kind: str, agent: Agent, steps: int | None, *, share: float = 1 / 3, deterministic: bool = False
) -> list[Part]:
    """The parts of a set of D4RL's kinds, from an agent.

    Args:
        kind: a key of `KINDS`.
        agent: has been trained.
        steps: transitions; replay sets have as many as the agent made, so that they take None.
        share: how far medium is from random (0) to expert (1).
        deterministic: the policies' mean actions instead of draws.
    """
    if kind not in KINDS:
        raise unknown_name("kind", kind, KINDS)
    env_id, name = agent.plan.env_id, agent.path.resolve().name
    if kind.endswith("replay"):
        until, value = agent.medium(share) if kind == "medium-replay" else (agent.steps, agent.best()[1])
        reached = f"when its return reached {value:.1f}" if kind == "medium-replay" else f"best return {value:.1f}"
        return [Part(f"the SAC agent '{name}' while it learned ({reached})", until, agent.experience(until))]
    if kind == "random":
        return policy_parts(["random"], env_id, steps or 0)
    levels = {"medium": agent.medium(share), "expert": agent.expert()}
    parts = policy_parts(
        [str(agent.snapshot(levels[level][0])) for level in kind.split("-")],
        env_id,
        steps or 0,
        deterministic=deterministic,
    )
    how = "deterministic" if deterministic else "stochastic"
    named = []
    for level, part in zip(kind.split("-"), parts, strict=True):
        step, value = levels[level]
        words = (
            f"the {level} policy of the SAC agent '{name}' at step {step:,} ({how}; return {value:.1f} when evaluated)"
        )
        named.append(replace(part, words=words))
    return named


def describe_set(name: str, env_id: str, agent: Agent | None = None) -> Meta:
    """The new set's metadata. Reference returns are the benchmark's in its own environments, else the agent's."""
    meta = describe(name, env_id)
    if agent is None or meta.reference_min is not None:
        return meta
    random, expert = agent.references()
    if expert <= random:
        return replace(meta, notes=("The agent is no better than random actions, so there are no reference returns.",))
    note = f"Reference returns were measured: random actions' and the best policy's of the agent '{agent.path.name}'."
    return replace(meta, reference_min=random, reference_max=expert, notes=(note,))


def act_function(policy: str, env_id: str, *, deterministic: bool = False) -> ActFunction | PolicyBehavior:
    """A policy by what the user calls it, acting in [-1, 1].

    Args:
        policy: `random`; a run's or policy's folder; arrays in an `.npz` file; or a Python function of observations
            (n, o) and a numpy generator that gives actions (n, a) in the environment's units, as `module:function` or
            `file.py:function`.
        env_id: where it will act.
        deterministic: mean actions instead of draws, where the policy draws.
    """
    trust_env(env_id)
    env = make_env(env_id)
    assert env.observation_space.shape is not None
    assert env.action_space.shape is not None
    observation_size, action_size = env.observation_space.shape[0], env.action_space.shape[0]
    env.close()
    if policy == "random":
        return uniform(action_size)
    if Path(policy).is_dir():
        loaded = load_policy(policy)
        loaded.check_fit(env_id, f"the policy {policy}")
        return PolicyBehavior(loaded, env_id, deterministic=deterministic)
    if policy.endswith(".npz"):
        arrays = ArrayPolicy(policy, deterministic)
        if arrays.observation_size != observation_size:
            takes = f"takes observations of {arrays.observation_size} numbers"
            raise MildlyError(f"{policy}: {takes}, but environment '{env_id}' has {observation_size}.")
        return arrays
    if ":" in policy:
        return from_own_units(_guarded(_function(policy), policy), env_id)
    raise MildlyError(
        f"'{policy}' is no policy. Give 'random', the folder of a run or of a policy, an .npz file of arrays, or a "
        "Python function as module:function or path/to/file.py:function."
    )


def _function(name: str) -> Callable[[Array, np.random.Generator], Any]:
    """The function that `module:function` or `file.py:function` names."""
    where, _, attribute = name.rpartition(":")
    try:
        module = _module(where)
    except Exception as error:  # whatever the user's own code raises
        raise MildlyError(f"'{name}': {where} cannot be loaded ({type(error).__name__}: {error}).") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        raise MildlyError(f"'{name}': {where} has no function '{attribute}'.")
    return found  # type: ignore[no-any-return]


def _module(where: str) -> ModuleType:
    if not where.endswith(".py"):
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())  # as `python -m` finds modules
        return importlib.import_module(where)
    spec = importlib.util.spec_from_file_location(Path(where).stem, where)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _guarded(function: Callable[[Array, np.random.Generator], Any], name: str) -> ActFunction:
    """A user's function whose errors and answers are told as its own."""

    def act(observations: Array, rng: np.random.Generator) -> Array:
        try:
            return np.asarray(function(observations, rng), dtype=np.float64)
        except Exception as error:
            raise MildlyError(f"'{name}' failed: {type(error).__name__}: {error}") from error

    return act
