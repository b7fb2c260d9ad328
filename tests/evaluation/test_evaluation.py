"""Rollouts: the same as plain gymnasium, scored by hand, and quiet."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from conftest import CountingActor, mildly as command, train_tiny

import mildly
from mildly.action_space import ActionSpace
from mildly.actors import TanhGaussianActor
from mildly.data.dataset import Meta
from mildly.data.registry import load_dataset
from mildly.environments import make_env
from mildly.errors import MildlyError
from mildly.evaluation.rollout import episode_seed, rollout
from mildly.policy import Policy


def random_policy(observation_size: int, action_size: int, bound: float = 1.0, seed: int = 0) -> Policy:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        actor = TanhGaussianActor(observation_size, action_size, (16, 16), -5.0, 2.0)
    return Policy(actor, action_space=ActionSpace((-bound,) * action_size, (bound,) * action_size))


PENDULUM = Meta("swing", env_id="Pendulum-v1", reference_min=-1200.0, reference_max=-200.0)


def alone(env_id: str, policy: Policy, seed: int) -> tuple[float, int]:
    """Return and length of one episode in plain gymnasium."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        env = gymnasium.make(env_id)
    observation, _ = env.reset(seed=seed)
    total, length, ended = 0.0, 0, False
    while not ended:
        observation, reward, terminated, truncated, _ = env.step(policy.act(observation))
        total, length, ended = total + float(reward), length + 1, terminated or truncated
    env.close()
    return total, length


def test_episodes_side_by_side_equal_episodes_alone_in_plain_gymnasium() -> None:
    policy = random_policy(3, 1, bound=2.0)
    result = rollout(policy, PENDULUM, episodes=3, seed=7)
    assert result.seeds == [7100, 7101, 7102]
    for seed, total, length in zip(result.seeds, result.returns, result.lengths, strict=True):
        expected = alone("Pendulum-v1", policy, seed)
        assert (total, length) == (pytest.approx(expected[0], rel=1e-4), 200)  # a batch of one rounds differently
    assert len(set(result.returns)) == 3


def test_episodes_that_end_early_leave_the_others_running() -> None:
    """Hopper falls at different times; each length and return is that of the episode alone."""
    policy = random_policy(11, 3, seed=7)
    together = rollout(policy, Meta("hop", env_id="Hopper-v4"), episodes=4, seed=0)
    assert len(set(together.lengths)) > 1
    for i in range(4):
        total, length = alone("Hopper-v4", policy, together.seeds[i])
        assert length == together.lengths[i]
        assert total == pytest.approx(together.returns[i], rel=1e-3)


def test_a_policy_that_remembers_plays_side_by_side_what_it_plays_alone() -> None:
    """Hopper falls at different times, and what each episode brought is part of the next action."""
    policy = Policy(CountingActor(11, 3), reward_scale=0.5, action_space=ActionSpace((-1.0,) * 3, (1.0,) * 3))
    together = rollout(policy, Meta("hop", env_id="Hopper-v4"), episodes=4, seed=0)
    assert together == rollout(policy, Meta("hop", env_id="Hopper-v4"), episodes=4, seed=0)  # it is started anew
    assert together.lengths[0] < max(together.lengths[1:])  # so rows are not the numbers of those still running
    for i in range(4):
        env = make_env("Hopper-v4")
        observation, _ = env.reset(seed=together.seeds[i])
        acting, rewards, ended = policy.start(1), list[float](), False
        while not ended:
            (action,) = acting.act(observation[None])
            known = np.tanh(0.5 * sum(rewards) / 100)
            np.testing.assert_allclose(action[:2], [len(rewards) / 1000, known], atol=1e-6)
            observation, reward, terminated, truncated, _ = env.step(action)
            acting.observe(np.array([reward]))
            rewards.append(float(reward))
            ended = terminated or truncated
        env.close()
        assert (sum(rewards), len(rewards)) == (pytest.approx(together.returns[i], rel=1e-5), together.lengths[i])


def test_runs_of_different_seeds_share_no_evaluation_episode() -> None:
    seeds = [episode_seed(seed, episode) for seed in range(4) for episode in range(100)]
    assert len(set(seeds)) == 400


def test_equal_seeds_give_equal_episodes_to_the_bit() -> None:
    policy = random_policy(3, 1, bound=2.0)
    assert rollout(policy, PENDULUM, episodes=2, seed=1) == rollout(policy, PENDULUM, episodes=2, seed=1)
    assert rollout(policy, PENDULUM, episodes=2, seed=1) != rollout(policy, PENDULUM, episodes=2, seed=3)


def test_scores_are_returns_between_the_references() -> None:
    result = rollout(random_policy(3, 1, bound=2.0), PENDULUM, episodes=2)
    assert result.scores is not None
    assert result.scores == pytest.approx([(total + 1200.0) / 10.0 for total in result.returns])
    assert result.score == pytest.approx(sum(result.scores) / 2)
    assert result.mean_return == pytest.approx(sum(result.returns) / 2)


def test_another_environment_and_missing_references_have_no_score() -> None:
    policy = random_policy(3, 1, bound=2.0)
    hopping = Meta("hop", env_id="Hopper-v4", reference_min=0.0, reference_max=1.0)
    assert rollout(policy, hopping, env="Pendulum-v1", episodes=1).score is None
    assert rollout(policy, Meta("swing", env_id="Pendulum-v1"), episodes=1).score is None
    assert rollout(policy, PENDULUM, env="Pendulum-v1", episodes=1).score is not None


def test_progress_counts_ended_episodes() -> None:
    done: list[int] = []
    rollout(random_policy(11, 3), Meta("hop", env_id="Hopper-v4"), episodes=3, progress=done.append)
    assert done == sorted(set(done))
    assert done[-1] == 3


def test_run_is_evaluated_in_the_environment_it_was_trained_for(tmp_path: Path) -> None:
    """Data that name no environment, trained with one given: `evaluate` needs it no second time."""
    data = load_dataset("pendulum-mixed")
    nameless = type(data)(**{**vars(data), "meta": Meta("nameless", action_space=ActionSpace((-2.0,), (2.0,)))})
    run = train_tiny("bc", tmp_path / "run", dataset=nameless, env="Pendulum-v1", steps=10, eval_every=10)
    result = mildly.evaluate(run.path, episodes=1)
    assert result.env_id == "Pendulum-v1"
    assert result.returns == run.evaluations()[-1]["returns"]


def test_impossible_evaluations_are_told(tmp_path: Path) -> None:
    random_policy(3, 1).save(tmp_path / "policy")
    random_policy(2, 3).save(tmp_path / "wide")
    for folder, given, message in (
        ("policy", {}, "names no environment to run in; give one with --env"),
        ("policy", {"env": "Hopper-v4"}, r"'Hopper-v4' has observations \(11,\) and actions \(3,\), but the policy"),
        ("wide", {"env": "MountainCarContinuous-v0"}, r"actions \(1,\), but the policy .* has \(2,\) and \(3,\)"),
        ("policy", {"env": "Nowhere-v0"}, "'Nowhere-v0' cannot be made"),
        ("policy", {"env": "no_such_module:Nowhere-v0"}, "'no_such_module:Nowhere-v0' needs a package"),
        ("policy", {"env": "CartPole-v1"}, "its action space is Discrete"),
        ("policy", {"env": "Pendulum-v1", "episodes": 0}, "episodes must be at least 1"),
        ("policy", {"env": "Pendulum-v1", "seed": -101}, "seed must be at least 0"),
        (".", {"env": "Pendulum-v1"}, None),
        ("absent", {}, "no policy here"),
    ):
        if message is None:
            assert mildly.evaluate(tmp_path / folder, **given).score is None  # type: ignore[arg-type]
            continue
        with pytest.raises(MildlyError, match=message):
            mildly.evaluate(tmp_path / folder, **given)  # type: ignore[arg-type]


def test_actions_reach_the_environment_within_its_bounds() -> None:
    env = make_env("Pendulum-v1")
    policy = random_policy(3, 1, bound=2.0)
    observations = np.random.default_rng(0).normal(0, 1e6, (50, 3)).astype(np.float32)
    actions = policy.act(observations)
    assert all(env.action_space.contains(action) for action in actions)
    assert actions.max() > 1.0  # in the environment's units, not in [-1, 1]


def test_evaluating_a_mujoco_robot_prints_no_warning_and_leaves_no_log(tmp_path: Path) -> None:
    random_policy(11, 3).save(tmp_path / "policy")
    done = command("evaluate", "policy", "--env", "Hopper-v4", "--episodes", "2", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["returns"]) == 2
    assert "WARN" not in done.stderr
    assert "eprecat" not in done.stderr
    assert [entry.name for entry in tmp_path.iterdir()] == ["policy"]


def test_unstable_simulation_is_quiet_and_leaves_no_log(tmp_path: Path) -> None:
    """The same steps without our `make_env` do leave a log, so the simulation really is unstable."""
    script = """
import sys
import numpy as np
if sys.argv[1] == "ours":
    from mildly.environments import make_env
    env = make_env("Hopper-v4")
else:
    import gymnasium
    env = gymnasium.make("Hopper-v5")
env.reset(seed=0)
env.unwrapped.set_state(env.unwrapped.init_qpos, np.full(6, 1e12))
for _ in range(3):
    env.step(np.ones(3, dtype=np.float32))
"""
    made = {}
    for whose in ("ours", "theirs"):
        folder = tmp_path / whose
        folder.mkdir()
        done = subprocess.run(
            [sys.executable, "-c", script, whose], cwd=folder, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        made[whose] = ([entry.name for entry in folder.iterdir()], done.stdout + done.stderr)
    assert made["theirs"][0] == ["MUJOCO_LOG.TXT"]
    assert made["ours"] == ([], "")
