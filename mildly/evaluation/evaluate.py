"""Evaluate a trained run's policy."""

from __future__ import annotations

import os
from collections.abc import Callable

from mildly.data.dataset import Meta
from mildly.environments import trust_env
from mildly.errors import MildlyError
from mildly.evaluation.rollout import Evaluation, rollout
from mildly.policy import load_policy
from mildly.run import Run


def evaluate(
    run: str | os.PathLike[str] | Run,
    *,
    env: str | None = None,
    episodes: int = 10,
    seed: int | None = None,
    progress: Callable[[int], None] | None = None,
) -> Evaluation:
    """Run a trained policy for whole episodes with deterministic actions.

    Args:
        run: a run's folder, or a `policy` folder on its own (then `env` is needed).
        env: another environment than the run's.
        episodes: how many.
        seed: episode i starts from environment seed `1000 * seed + 100 + i`; by default the run's own seed.
        progress: called with the number of episodes ended so far.
    """
    path = run.path if isinstance(run, Run) else os.fspath(run)
    if os.path.exists(os.path.join(path, "run.json")) and not os.path.exists(os.path.join(path, "policy")):
        raise MildlyError(
            f"{path}: no policy yet: its main steps have not begun. Go on with mildly train --resume {path}"
        )
    trust_env(env)
    policy = load_policy(path)
    meta = Meta(name=os.path.basename(os.path.normpath(path)))
    if os.path.exists(os.path.join(path, "run.json")):
        plan = Run.open(path).plan()
        meta, env, seed = plan.data, env or plan.env, plan.seed if seed is None else seed
    if env is not None:
        policy.check_fit(env, f"the policy in {path}")
    return rollout(policy, meta, env_id=env, episodes=episodes, seed=seed or 0, progress=progress)
