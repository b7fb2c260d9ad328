"""How the built-in data sets were made, with this project's own SAC. Run again: equal bits on an equal machine.

    python recipes/builtin_sets.py pendulum-mixed OUT
    python recipes/builtin_sets.py hopper-mixed OUT

A mixed set has three parts, as a real log has good days and bad ones: uniformly random actions, part of the
experience of a SAC agent while it learns, and the behavior (with noise) of that agent when its return reaches a
medium level. Imitating all of it is poor; picking the best of each state is not.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from mildly.algorithms.sac import SAC, SACConfig
from mildly.collect.rollouts import ActFunction, collect, concatenate, describe, uniform
from mildly.data.dataset import FIELDS, Array, Dataset, Meta
from mildly.environments import Simulator, make_env
from mildly.evaluation.rollout import rollout
from mildly.policy import Policy
from mildly.training.environment import Acting, EnvironmentSource, Transition


@dataclass(frozen=True)
class Recipe:
    """What goes into a set."""

    env_id: str
    sac: SACConfig
    random_steps: int
    medium_return: float
    max_steps: int
    expert_steps: int
    """Further steps, to know the expert's return where the task has no reference returns; 0 for none."""
    eval_every: int
    """Environment steps between looks at the return."""
    part: int
    """Transitions of each of the three parts, at most."""
    seed: int = 0


RECIPES = {
    "pendulum-mixed": Recipe(
        env_id="Pendulum-v1",
        sac=SACConfig(hidden_dims=(128, 128), batch_size=128, actor_lr=1e-3, critic_lr=1e-3, alpha_lr=1e-3),
        random_steps=1_000,
        medium_return=-700.0,
        max_steps=20_000,
        expert_steps=10_000,
        eval_every=200,
        part=8_000,
    ),
    "hopper-mixed": Recipe(
        env_id="Hopper-v4",
        sac=SACConfig(hidden_dims=(256, 256), batch_size=128, critic_lr=1e-3),
        random_steps=5_000,
        medium_return=800.0,
        max_steps=200_000,
        expert_steps=0,
        eval_every=1_000,
        part=20_000,
    ),
}


def make(name: str) -> Dataset:
    """Follow a recipe."""
    recipe = RECIPES[name]
    meta = describe(name, recipe.env_id)
    medium = learn(recipe, meta, recipe.max_steps, recipe.medium_return)
    if medium.evaluations[-1][1] < recipe.medium_return:
        raise SystemExit(f"{name}: the agent did not reach {recipe.medium_return} within {recipe.max_steps} steps")
    random_part = collect(recipe.env_id, uniform(medium.algorithm.action_size), recipe.part, meta, seed=recipe.seed + 1)
    replay_part = thinned(medium.dataset(meta), recipe.part, recipe.seed + 2)
    medium_part = collect(recipe.env_id, stochastic(medium.algorithm.policy()), recipe.part, meta, seed=recipe.seed + 3)
    if recipe.expert_steps:
        expert = learn(recipe, meta, recipe.expert_steps, float("inf"))
        best = rollout(expert.algorithm.policy(meta), meta, episodes=50, seed=1).mean_return
        worst = float(random_part.episode_returns().mean())
        meta = replace(meta, reference_min=round(worst, 1), reference_max=round(best, 1))
    step, value = medium.evaluations[-1]
    source = (
        f"recipes/builtin_sets.py: {len(random_part)} random steps; {len(replay_part)} steps from the first {step} of "
        f"a SAC agent's learning; {len(medium_part)} steps of that agent with noise "
        f"(without: return {value:.0f})"
    )
    return concatenate([random_part, replay_part, medium_part], replace(meta, source=source))


@dataclass
class Learned:
    """An agent that learned online, everything it experienced, and its returns on the way."""

    algorithm: SAC
    experience: list[Transition] = field(default_factory=list)
    evaluations: list[tuple[int, float]] = field(default_factory=list)

    def dataset(self, meta: Meta) -> Dataset:
        """The experience as a data set, in the order in which it was made."""
        columns = {name: np.asarray([transition[name] for transition in self.experience]) for name in FIELDS}
        return Dataset.from_arrays(**columns, meta=meta)


def learn(recipe: Recipe, meta: Meta, max_steps: int, stop_at: float) -> Learned:
    """Train SAC online until an evaluation reaches a return: one gradient step for each step of the environment."""
    env = make_env(recipe.env_id)
    sizes = env.observation_space.shape, env.action_space.shape
    env.close()
    assert sizes[0] is not None
    assert sizes[1] is not None
    algorithm = SAC(recipe.sac, sizes[0][0], sizes[1][0], seed=recipe.seed)
    source = EnvironmentSource(
        algorithm,
        Simulator.of(recipe.env_id),
        seed=recipe.seed,
        episode_seed=lambda episode: None if episode else recipe.seed,  # the first alone: these sets are older
        acting=Acting(random_steps=recipe.random_steps),
    )
    learned = Learned(algorithm)
    for step in range(1, max_steps + 1):
        learned.experience += source.step_environments()
        if step > recipe.random_steps:
            algorithm.update(source.buffer.sample(source.generator))
        if step % recipe.eval_every == 0:
            value = rollout(algorithm.policy(meta), meta, episodes=5, seed=recipe.seed).mean_return
            learned.evaluations.append((step, value))
            print(f"  step {step}: return {value:.1f}", flush=True)
            if value >= stop_at:
                break
    source.close()
    return learned


def thinned(dataset: Dataset, rows: int, seed: int) -> Dataset:
    """Whole episodes, drawn at random, kept in order, cut to a number of rows (all of them if there are fewer)."""
    if len(dataset) <= rows:
        return dataset
    episodes = dataset.episodes()
    order = np.random.default_rng(seed).permutation(len(episodes))
    lengths = np.array([episodes[i].stop - episodes[i].start for i in order])
    enough = int(np.searchsorted(lengths.cumsum(), rows)) + 1
    picked = np.concatenate([np.r_[episodes[i]] for i in sorted(order[:enough])])[:rows]
    columns = {field: getattr(dataset, field)[picked] for field in FIELDS}
    return Dataset.from_arrays(**columns, meta=dataset.meta)


def stochastic(policy: Policy) -> ActFunction:
    """A policy's draws as a behavior."""
    generator = torch.Generator().manual_seed(0)

    def act(observations: Array, rng: np.random.Generator) -> Array:
        return policy.act(observations, deterministic=False, generator=generator)

    return act


def main() -> None:
    """Parse, make, save, describe."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("name", choices=sorted(RECIPES))
    parser.add_argument("out", type=Path, help="folder to write")
    args = parser.parse_args()
    torch.set_num_threads(1)
    dataset = make(args.name)
    dataset.save(args.out)
    returns = dataset.episode_returns()
    print(f"{args.out}: {len(dataset)} transitions, {len(returns)} episodes, mean return {returns.mean():.1f}")


if __name__ == "__main__":
    main()
