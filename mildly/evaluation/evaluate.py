"""Evaluate a trained run's policy."""

from __future__ import annotations

import os
from collections.abc import Callable

from mildly.algorithms import algorithm_named
from mildly.data.dataset import Meta
from mildly.environments import Environment, Simulator, check_fit, trust_env
from mildly.errors import MildlyError
from mildly.evaluation.rollout import Evaluation, rollout
from mildly.policy import load_policy
from mildly.run import Run


def evaluate(
    run: str | os.PathLike[str] | Run,
    *,
    env: Environment | None = None,
    episodes: int = 10,
    seed: int | None = None,
    target_return: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Run a trained policy for whole episodes with deterministic actions.

    Args:
        run: a run's folder, or a `policy` folder on its own (then `env` is needed).
        env: another environment than the run's: an id, also as `module:Id`; an environment of your own; or a function
            that makes one, such as its class, so that episodes are run side by side.
        episodes: how many.
        seed: episode i starts from environment seed `1000 * seed + 100 + i`; by default the run's own seed.
        target_return: what a policy that can be told so is to aim at, in the environment's units; by default its own
            target, which for a Decision Transformer is the best return of its data.
        progress: called with the number of episodes ended so far.
    """
    path = run.path if isinstance(run, Run) else os.fspath(run)
    if os.path.exists(os.path.join(path, "run.json")) and not os.path.exists(os.path.join(path, "policy")):
        algorithm = Run.open(path).plan().algorithm
        if not algorithm_named(algorithm).ACTS:
            raise MildlyError(f"{path}: holds a model of the environment ({algorithm}), not a policy.")
        raise MildlyError(
            f"{path}: no policy yet: its main steps have not begun. Go on with mildly train --resume {path}"
        )
    if isinstance(env, str):
        trust_env(env)
    policy = load_policy(path)
    meta = Meta(name=os.path.basename(os.path.normpath(path)))
    if os.path.exists(os.path.join(path, "run.json")):
        plan = Run.open(path).plan()
        meta, seed = plan.data, plan.seed if seed is None else seed
        env = plan.env if env is None else env
    where = None if env is None else Simulator.of(env)
    if where is not None:
        sizes = policy.observation_size, int(policy.actor.spec["action_size"])
        check_fit(where, *sizes, f"the policy in {path}", policy.action_space)
    return rollout(
        policy, meta, env=where, episodes=episodes, seed=seed or 0, target_return=target_return, progress=progress
    )
