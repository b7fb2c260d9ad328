"""Agents that learn online and the sets made with them: resumable to the bit, kinds as D4RL has them, clear errors."""

from __future__ import annotations

import functools
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest
import torch
from conftest import COMMAND, CountingActor, Refused, make_dataset

from mildly.action_space import ActionSpace
from mildly.algorithms.sac import SAC, SACConfig
from mildly.cli import main
from mildly.cli.data.collect import CollectOptions
from mildly.collect.agent import PRESETS, Agent, AgentPlan, play_again, read_plan, train_agent
from mildly.collect.make_set import KINDS, Part, act_function, kind_parts, make_set, policy_parts
from mildly.collect.rollouts import collect, describe, uniform
from mildly.data.dataset import FIELDS, Dataset, Meta
from mildly.environments import Simulator, make_env
from mildly.errors import MildlyError
from mildly.policy import Policy
from mildly.run import Run
from mildly.training import checkpoint
from mildly.training.environment import Acting, EnvironmentSource

PENDULUM = describe("pendulum", "Pendulum-v1")
PLAN = AgentPlan(
    "Pendulum-v1",
    seed=7,
    sac=SACConfig(hidden_dims=(8, 8), batch_size=8),
    random_steps=50,
    eval_every=100,
    eval_episodes=1,
    reference_episodes=2,
    checkpoint_every=1,
)
STEPS = 500  # the episode of steps 401 to 600 is finished


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Agent:
    return train_agent(tmp_path_factory.mktemp("agents") / "pendulum", PLAN, STEPS)


def content(folder: Path) -> dict[str, Any]:
    """All that must be equal in two equal agents."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    tensors, facts = checkpoint.load(folder / "checkpoint.safetensors")
    for own in (
        "checkpoint.safetensors",
        "checkpoint.previous.safetensors",
        "references.json",
        "agent.json",
        "timing.json",
    ):
        files.pop(own, None)
    return {**files, "facts": facts, **{name: tensor.numpy().tobytes() for name, tensor in tensors.items()}}


def returns_of(agent: Agent) -> dict[int, float]:
    return {line["step"]: line["mean_return"] for line in Run(agent.path).evaluations()}


# Training online


def source_of(random_steps: int, seed: int = 0, log: Any = None) -> EnvironmentSource:
    algorithm = SAC(PLAN.sac, 3, 1, seed=seed)
    return EnvironmentSource(
        algorithm,
        Simulator.of("Pendulum-v1"),
        seed=seed,
        episode_seed=lambda episode: 100 * seed + episode,
        acting=Acting(random_steps=random_steps, whole_episodes=True),
        log=log,
    )


def test_an_environment_gives_batches_after_its_random_steps() -> None:
    source = source_of(random_steps=20)
    given = [source.next_batches() for _ in range(60)]
    assert [len(batches) for batches in given] == [0] * 20 + [1] * 40
    assert len(source.buffer) == 60
    (sampled,) = given[-1]
    assert sampled.observations.shape == (PLAN.sac.batch_size, 3)
    known = source.buffer.columns["observations"][:60]
    assert all((row == known).all(dim=1).any() for row in sampled.observations)


def test_random_actions_come_before_the_policys() -> None:
    source = source_of(random_steps=20)
    actions = [source.step_environments()[0]["actions"] for _ in range(25)]
    uniformly = np.random.default_rng(0).uniform(-1, 1, (20, 1)).astype(np.float32)
    np.testing.assert_array_equal(actions[:20], uniformly)
    other = source_of(random_steps=25)
    others = [other.step_environments()[0]["actions"] for _ in range(25)]
    np.testing.assert_array_equal(actions[:20], others[:20])
    assert not np.isclose(actions[20:], others[20:]).any()


def test_the_agent_acts_with_what_it_has_learned_so_far() -> None:
    """And with draws: an actor whose outputs are moved acts elsewhere at once."""
    source = source_of(random_steps=0)
    drawn = np.array([source.step_environments()[0]["actions"] for _ in range(20)])
    assert drawn.std() > 0.05
    source.algorithm.actor.net[-1].bias.data[0] = 50.0
    assert source.step_environments()[0]["actions"].tolist() == [1.0]


def test_episodes_start_from_their_own_seeds_and_chain_within() -> None:
    source, env = source_of(random_steps=1000, seed=3), make_env("Pendulum-v1")
    made, boundaries = [], []
    for _ in range(450):
        made.append(source.step_environments()[0])
        boundaries.append(source.at_boundary)
    assert np.flatnonzero(boundaries).tolist() == [199, 399]
    assert source.started == 3
    for number in range(3):
        first = env.reset(seed=300 + number)[0].astype(np.float32)
        np.testing.assert_array_equal(made[200 * number]["observations"], first)
    env.close()
    for here, there in pairwise(made[:200]):
        np.testing.assert_array_equal(here["next_observations"], there["observations"])
    assert [row["truncated"] for row in made] == boundaries
    assert not any(row["terminated"] for row in made)


def test_an_agent_that_remembers_begins_anew_with_each_episode() -> None:
    algorithm = SAC(PLAN.sac, 11, 3)
    source = EnvironmentSource(
        algorithm,
        Simulator.of("Hopper-v4"),
        seed=0,
        episode_seed=lambda episode: episode,
        acting=Acting(whole_episodes=True),
    )
    source.acting = Policy(CountingActor(11, 3)).start(1)
    step, total, ended = 0, 0.0, 0
    for _ in range(300):
        transition = source.step_environments()[0]
        np.testing.assert_allclose(transition["actions"][:2], [step / 1000, np.tanh(total / 100)], atol=1e-6)
        step, total = step + 1, total + transition["rewards"]
        if source.at_boundary:
            step, total, ended = 0, 0.0, ended + 1
    assert ended > 2


@pytest.mark.parametrize("random_steps", [150, 230])
def test_a_source_restored_between_episodes_goes_on_to_the_bit(random_steps: int) -> None:
    """Only what it saves, its log and the learner's state are carried over."""
    kept, log = Rows(), Rows()
    whole, parted, other = (source_of(random_steps, log=rows) for rows in (kept, log, log))
    batches = [whole.next_batches() for _ in range(420)]
    for _ in range(200):
        parted.next_batches()
    tensors, facts = parted.save()
    facts = json.loads(json.dumps(facts))  # as a checkpoint holds them
    learner = parted.algorithm.state_dict()
    assert (log.flushed, facts["rows"], facts["started"], facts["ended"]) == (200, 200, 1, [True])
    for _ in range(7):
        parted.next_batches()  # lost
    other.algorithm.load_state_dict(learner)
    other.restore(tensors, facts)
    assert len(other.buffer) == len(log.rows) == 200
    again = [other.next_batches() for _ in range(220)]
    assert [len(batches) > 0 for batches in again] == [step > random_steps for step in range(201, 421)]
    for ones, sames in zip(batches[200:], again, strict=True):
        for one, same in zip(ones, sames, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    for column in FIELDS:
        np.testing.assert_array_equal([row[column] for row in kept.rows], [row[column] for row in log.rows])


class Rows:
    """A log of transitions in memory."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.flushed = 0

    def append(self, transition: dict[str, Any]) -> None:
        self.rows.append(transition)

    def flush(self) -> None:
        self.flushed = len(self.rows)

    def rewind(self, rows: int) -> dict[str, np.ndarray]:
        self.rows = self.rows[:rows]
        return {name: np.array([row[name] for row in self.rows]) for name in FIELDS}


# Agents


def test_an_agent_keeps_experience_evaluations_and_snapshots(agent: Agent) -> None:
    assert agent.steps == 600
    assert sorted(returns_of(agent)) == [0, 100, 200, 300, 400, 500, 600]
    experience = Dataset.from_arrays(**agent.experience(), meta=PENDULUM)
    assert [episode.stop for episode in experience.episodes()] == [200, 400, 600]
    starts = experience.observations[[0, 200, 400]]
    assert len(np.unique(starts, axis=0)) == 3
    np.testing.assert_array_equal(experience.next_observations[0], experience.observations[1])
    for step in (100, 600):
        assert agent.policy(step).action_space == ActionSpace((-2.0,), (2.0,))


def test_an_agents_actions_played_again_are_its_experience_to_the_bit(agent: Agent) -> None:
    experience = agent.experience()
    again = play_again(agent.plan, np.array(experience["actions"]))
    for name in FIELDS:
        assert again[name].dtype == experience[name].dtype
        assert np.array_equal(again[name], experience[name]), name


def test_an_agent_killed_and_started_again_equals_one_that_was_not(agent: Agent, tmp_path: Path) -> None:
    folder = tmp_path / "killed"
    code = (
        "import os, signal\n"
        "from mildly.algorithms.extras import AnchoredExtras\n"
        "from mildly.algorithms.sac import SACConfig\n"
        "from mildly.collect.agent import AgentPlan, train_agent\n"
        "kill = lambda step, value: os.kill(os.getpid(), signal.SIGKILL) if step == 333 else None\n"
        f"train_agent({str(folder)!r}, {PLAN!r}, {STEPS}, kill)"
    )
    killed = subprocess.run([sys.executable, "-c", code], env={"OMP_NUM_THREADS": "1"}, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    assert '"step": 300' in (folder / "evaluations.jsonl").read_text()
    _, facts = checkpoint.load(folder / "checkpoint.safetensors")
    assert facts["step"] == 200, "killed in the middle of the second episode"
    assert (facts["phase"], facts["phase_step"]) == ("", 200)
    assert (facts["source"]["rows"], facts["source"]["started"]) == (200, 1)
    (folder / "experience.bin").open("ab").write(b"half a record")
    assert content(folder) != content(agent.path)
    assert train_agent(folder, PLAN, STEPS).steps == 600
    assert content(folder) == content(agent.path)


def test_an_agent_whose_checkpoint_is_damaged_goes_on_from_the_one_before_and_says_so(
    agent: Agent, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(agent.path, tmp_path / "agent"))
    (folder / "checkpoint.safetensors").write_bytes(b"damage")
    told: list[str] = []
    train_agent(folder, PLAN, STEPS, tell=told.append)
    assert "going on from the checkpoint before it" in told[0]
    assert content(folder) == content(agent.path)


def test_an_agent_trained_longer_equals_one_trained_so_at_once(agent: Agent, tmp_path: Path) -> None:
    short = train_agent(tmp_path / "agent", PLAN, 150)
    assert short.steps == 200
    assert content(short.path) != content(agent.path)
    train_agent(short.path, PLAN, STEPS)
    assert content(short.path) == content(agent.path)


def test_an_agent_killed_before_its_first_checkpoint_starts_over(agent: Agent, tmp_path: Path) -> None:
    def interrupted(step: int, value: float) -> None:
        if step == 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train_agent(tmp_path / "agent", PLAN, STEPS, interrupted)
    assert not (tmp_path / "agent" / "checkpoint.safetensors").exists()
    assert len(Run(tmp_path / "agent").evaluations()) == 2
    train_agent(tmp_path / "agent", PLAN, STEPS)
    assert content(tmp_path / "agent") == content(agent.path)


def test_an_agent_has_lines_of_metrics_once_it_learns(agent: Agent, tmp_path: Path) -> None:
    """Every thousand steps; an agent of 600 has none yet, but its sums wait in the checkpoint."""
    assert Run(agent.path).metrics() == []
    tensors, facts = checkpoint.load(agent.path / "checkpoint.safetensors")
    assert facts["counts"]["loss_td"] == 600 - PLAN.random_steps
    assert tensors["sums.loss_td"].item() > 0
    longer = train_agent(Path(shutil.copytree(agent.path, tmp_path / "agent")), PLAN, 1000)
    (line,) = Run(longer.path).metrics()
    assert line["step"] == 1000
    assert line["loss_td"] > 0


def test_progress_has_every_step_and_the_last_evaluations_return(tmp_path: Path) -> None:
    seen: list[tuple[int, float]] = []
    made = train_agent(tmp_path / "agent", PLAN, 100, lambda step, value: seen.append((step, value)))
    returns = returns_of(made)
    assert seen == [(step, returns[step // 100 * 100]) for step in range(1, 201)]


def test_a_trained_agent_is_used_again_at_once(agent: Agent) -> None:
    before = content(agent.path)
    called: list[int] = []
    assert train_agent(agent.path, PLAN, STEPS, lambda step, value: called.append(step)) == agent
    assert called == []
    assert content(agent.path) == before


def test_expert_is_the_best_evaluation_and_medium_the_first_that_is_good_enough(agent: Agent) -> None:
    returns = returns_of(agent)
    random = returns.pop(0)
    best = max(returns, key=lambda step: returns[step])
    assert returns[best] > random, "this seed's agent must be better than random"
    assert agent.expert() == (best, returns[best])
    for share in (1 / 3, 0.9, 1.0):
        level = random + share * (returns[best] - random)
        first = min(step for step in returns if returns[step] >= level)
        assert agent.medium(share) == (first, returns[first])
    assert agent.medium(1 / 3)[0] < agent.medium(1.0)[0] == best
    for share in (0.0, 1.5):
        with pytest.raises(MildlyError, match="share must be"):
            agent.medium(share)


def test_reference_returns_are_measured_once_and_again_for_another_expert(agent: Agent) -> None:
    random, expert = agent.references()
    assert random == agent.random_return
    path = agent.path / "references.json"
    known = json.loads(path.read_text())
    assert (known["step"], known["expert"]) == (agent.expert()[0], expert)
    path.write_text(json.dumps(known | {"expert": 5.0}))
    assert agent.references() == (random, 5.0)
    path.write_text(json.dumps(known | {"step": 0, "expert": 5.0}))
    assert agent.references() == (random, expert)


def test_an_agent_no_better_than_random_makes_no_expert(agent: Agent, tmp_path: Path) -> None:
    poor = Agent(shutil.copytree(agent.path, tmp_path / "poor"), PLAN, 600)
    lines = Run(poor.path).evaluations()
    lines[0]["mean_return"] = 0.0
    (poor.path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(MildlyError, match=r"no better than random actions' 0\.0.*--agent-steps"):
        poor.medium()


@pytest.mark.parametrize(
    ("plan", "steps", "message"),
    [
        (replace(PLAN, seed=8), STEPS, "begun with seed 7"),
        (replace(PLAN, env_id="Hopper-v4"), STEPS, "begun with env_id Pendulum-v1"),
    ],
)
def test_an_agent_goes_on_only_as_it_was_begun(agent: Agent, plan: AgentPlan, steps: int, message: str) -> None:
    with pytest.raises(MildlyError, match=message):
        train_agent(agent.path, plan, steps)


def test_an_agent_is_trained_to_its_first_evaluation_at_least_and_never_cut_back(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match="at least 100 steps"):
        train_agent(tmp_path / "new", PLAN, 99)
    assert not (tmp_path / "new").exists()
    assert train_agent(agent.path, PLAN, 150).steps == agent.steps


def test_damage_and_foreign_folders_are_told(agent: Agent, tmp_path: Path) -> None:
    with pytest.raises(MildlyError, match="not an empty folder"):
        train_agent(make_dataset().save(tmp_path / "set"), PLAN, STEPS)
    with pytest.raises(MildlyError, match="NoSuch-v1"):
        train_agent(tmp_path / "new", replace(PLAN, env_id="NoSuch-v1"), STEPS)
    assert not (tmp_path / "new").exists()
    damaged = Path(shutil.copytree(agent.path, tmp_path / "damaged"))
    (damaged / "experience.bin").write_bytes(b"")
    with pytest.raises(MildlyError, match=r"experience\.bin: shorter than the checkpoint"):
        train_agent(damaged, PLAN, STEPS)
    (damaged / "agent.json").write_text("{}")
    with pytest.raises(MildlyError, match=r"agent\.json: damaged"):
        read_plan(damaged)
    assert read_plan(tmp_path) is None


def test_an_agent_of_an_older_version_is_refused_in_one_sentence_and_untouched(
    agent: Agent, tmp_path: Path, refused: Refused
) -> None:
    folder = Path(shutil.copytree(agent.path, tmp_path / "agent"))
    said = json.loads((folder / "agent.json").read_text())
    said["plan"]["sac"]["hidden"] = said["plan"]["sac"].pop("hidden_dims")  # as it was called then
    (folder / "agent.json").write_text(json.dumps(said | {"format": 1}))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    told = f"{folder / 'agent.json'}: of another version of mildly (format 1; this one reads 2). Train it again"
    assert refused(train_agent, folder=folder, plan=PLAN, steps=STEPS).startswith(told)
    args = ["--env", "Pendulum-v1", "--kind", "medium", "--agent", str(folder)]
    assert f"error: {told}" in refused.command("data", "collect", "out", *args)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


# Policies


FUNCTIONS = """
import numpy as np
def act(observations, rng): return np.clip(-8 * observations[:, 1:2], -2, 2)
def noisy(observations, rng): return rng.normal(size=(len(observations), 1))
def wild(observations, rng): return [[1e6]] * len(observations)
def broken(observations, rng): return observations["position"]
def wide(observations, rng): return np.zeros((len(observations), 4))
number = 3
"""


@pytest.fixture
def functions(tmp_path: Path) -> Path:
    path = tmp_path / "controller_of_a_user.py"
    path.write_text(FUNCTIONS)
    return path


def pendulum(act: Callable[..., Any], steps: int = 20, seed: int = 0) -> Dataset:
    return collect("Pendulum-v1", act, steps, PENDULUM, seed=seed, environments=2)


def test_a_python_function_acts_in_the_environments_units(functions: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    by_file = pendulum(act_function(f"{functions}:act", "Pendulum-v1"))
    np.testing.assert_allclose(by_file.actions, np.clip(-4 * by_file.observations[:, 1:2], -1, 1), atol=1e-6)
    monkeypatch.chdir(functions.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    by_module = pendulum(act_function("controller_of_a_user:act", "Pendulum-v1"))
    assert by_module.meta.fingerprint == by_file.meta.fingerprint
    noisy = act_function(f"{functions}:noisy", "Pendulum-v1")
    assert (
        pendulum(noisy).meta.fingerprint == pendulum(noisy).meta.fingerprint != pendulum(noisy, seed=1).meta.fingerprint
    )


def test_actions_beyond_the_bounds_are_clipped(functions: Path) -> None:
    assert pendulum(act_function(f"{functions}:wild", "Pendulum-v1")).actions.tolist() == [[1.0]] * 20


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("{file}:broken", "controller_of_a_user.py:broken' failed: IndexError"),
        ("{file}:wide", r"shape \(2, 4\); the environment needs \(2, 1\)"),
        ("{file}:number", "has no function 'number'"),
        ("{file}:absent", "has no function 'absent'"),
        ("{file}x.py:act", "cannot be loaded"),
        ("no_such_module:act", "cannot be loaded"),
        ("nonsense", "'nonsense' is no policy. Give 'random'"),
        ("absent.npz", "absent.npz: no such file"),
        ("{folder}", "no policy here"),
    ],
)
def test_bad_policies_are_told(functions: Path, policy: str, message: str) -> None:
    name = policy.format(file=functions, folder=functions.parent)
    with pytest.raises(MildlyError, match=message):
        pendulum(act_function(name, "Pendulum-v1"))


def test_policies_of_another_environment_are_refused(agent: Agent, tmp_path: Path) -> None:
    np.savez(tmp_path / "p.npz", W0=np.zeros((3, 3)), b0=np.zeros(3), log_std=np.zeros(3), act="relu", squash="tanh")
    with pytest.raises(MildlyError, match="observations of 3 numbers, but environment 'Hopper-v4' has 11"):
        act_function(str(tmp_path / "p.npz"), "Hopper-v4")
    with pytest.raises(MildlyError, match="Hopper-v4"):
        act_function(str(agent.snapshot(100)), "Hopper-v4")


def test_a_policy_folder_draws_from_the_seed_or_acts_by_its_mean(agent: Agent) -> None:
    folder = str(agent.snapshot(100))
    drawn, again = (pendulum(act_function(folder, "Pendulum-v1")) for _ in range(2))
    assert drawn.meta.fingerprint == again.meta.fingerprint
    mean = pendulum(act_function(folder, "Pendulum-v1", deterministic=True))
    np.testing.assert_allclose(2 * mean.actions, agent.policy(100).act(mean.observations), atol=1e-6)
    assert np.abs(drawn.actions - agent.policy(100).act(drawn.observations) / 2).max() > 0.05


# Sets


def test_policies_have_their_parts_of_the_steps(functions: Path, tmp_path: Path) -> None:
    parts = policy_parts(["random", f"{functions}:act"], "Pendulum-v1", 100, shares=(3, 1))
    made = make_set(tmp_path / "set", "Pendulum-v1", parts, PENDULUM, seed=5, environments=2)
    assert len(made) == 100
    assert np.flatnonzero(made.truncated).tolist() == [74, 99]
    first = collect("Pendulum-v1", uniform(1), 75, PENDULUM, seed=5, environments=2)
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(made, field)[:75], getattr(first, field))
    assert made.observations[75].tolist() != made.observations[0].tolist()
    assert "75 steps of uniformly random actions; 25 steps of controller_of_a_user.py:act" in made.meta.source
    assert Dataset.load(tmp_path / "set").meta == made.meta
    sizes = [part.steps for part in policy_parts(["random"] * 3, "Pendulum-v1", 100)]
    assert sum(sizes) == 100
    assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize(
    ("shares", "message"), [((1.0,), "2 policies but 1 shares"), ((1, 0), "above 0"), ((1e9, 1), "is none")]
)
def test_impossible_shares_are_refused(shares: tuple[float, ...], message: str) -> None:
    with pytest.raises(MildlyError, match=message):
        policy_parts(["random", "random"], "Pendulum-v1", 100, shares=shares)


def test_a_set_that_cannot_be_completed_leaves_nothing(tmp_path: Path) -> None:
    def fails(observations: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        if rng.random() < 0.01:
            raise MildlyError("enough")
        return np.zeros((len(observations), 1))

    with pytest.raises(MildlyError, match="enough"):
        make_set(tmp_path / "set", "Pendulum-v1", [Part("tests", 10_000, fails)], PENDULUM)
    assert list(tmp_path.iterdir()) == []


def test_replay_kinds_are_the_agents_experience(agent: Agent, tmp_path: Path) -> None:
    until = agent.medium()[0]
    for kind, rows in (("medium-replay", until), ("full-replay", 600)):
        made = make_set(tmp_path / kind, "Pendulum-v1", kind_parts(kind, agent, None), PENDULUM)
        assert len(made) == rows
        np.testing.assert_array_equal(made.observations, agent.experience(rows)["observations"])
        assert made.truncated[-1]
    assert "while it learned" in made.meta.source


def test_medium_expert_is_half_medium_and_half_expert(agent: Agent, tmp_path: Path) -> None:
    make = {"seed": 1, "environments": 2}
    both = make_set(tmp_path / "both", "Pendulum-v1", kind_parts("medium-expert", agent, 100), PENDULUM, **make)
    medium = make_set(tmp_path / "medium", "Pendulum-v1", kind_parts("medium", agent, 50), PENDULUM, **make)
    np.testing.assert_array_equal(both.actions[:50], medium.actions)
    sure = kind_parts("medium-expert", agent, 100, deterministic=True)
    mean = make_set(tmp_path / "mean", "Pendulum-v1", sure, PENDULUM, **make)
    for rows, step in ((slice(0, 50), agent.medium()[0]), (slice(50, 100), agent.expert()[0])):
        acted = agent.policy(step).act(mean.observations[rows])
        np.testing.assert_allclose(2 * mean.actions[rows], acted, atol=1e-6)
        assert f"at step {step}" in mean.meta.source
    with pytest.raises(MildlyError, match="Did you mean 'medium'"):
        kind_parts("medum", agent, 100)


# The command


def test_the_command_offers_every_kind_and_preset() -> None:
    offered = {name: str(hint) for name, hint in get_type_hints(CollectOptions, include_extras=True).items()}
    assert all(f"'{kind}'" in offered["kind"] for kind in KINDS)
    assert offered["kind"].count("'") == 2 * len(KINDS)
    assert all(f"'{preset}'" in offered["preset"] for preset in PRESETS)


def test_the_command_makes_a_set_with_an_agent_and_says_what_to_do_next(
    agent: Agent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--env", "Pendulum-v1", "--steps", "300", "--environments", "2"]
    for name in ("first", "again"):
        args = ["--kind", "medium", "--agent", str(agent.path), "--seed", "4", *common]
        assert main(["data", "collect", str(tmp_path / name), *args]) == 0
    said = capsys.readouterr().out
    assert "300 transitions, 2 episodes" in said
    assert f"next: mildly data info {tmp_path / 'again'}" in said
    first, again = (Dataset.load(tmp_path / name) for name in ("first", "again"))
    assert first.meta == again.meta
    assert (first.meta.name, first.meta.env_id) == ("pendulum-medium-collected", "Pendulum-v1")
    assert (first.meta.reference_min, first.meta.reference_max) == agent.references()
    for word in ("medium policy", "'pendulum'", "stochastic", "seed 4", "gymnasium "):
        assert word in first.meta.source
    assert main(["data", "info", str(tmp_path / "first")]) == 0


def test_the_command_collects_at_random_by_itself(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "set"
    assert main(["data", "collect", str(out), "--env", "Hopper-v4", "--steps", "50"]) == 0
    made = Dataset.load(out)
    assert (made.meta.name, made.meta.reference_max) == ("hopper-random-collected", 3234.3)
    assert made.meta.fingerprint == collect("Hopper-v4", uniform(3), 50, Meta("x")).meta.fingerprint
    assert capsys.readouterr().err == "collecting hopper-random-collected  50/50\n"


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--kind", "medium"], "needs an agent: give a folder with --agent"),
        (["--kind", "random", "--policy", "random"], "either --kind or --policy"),
        (["--kind", "full-replay", "--agent", "a", "--steps", "5"], "--steps and --deterministic do not apply"),
        (["--agent-steps", "5"], "--agent-steps: about the agent"),
        (["--parts", "1", "2"], "give the policies with --policy"),
        (["--steps", "0"], "steps must be at least 1"),
        (["--seed", "-1"], "seed must be at least 0"),
        (["--policy", "nonsense"], "is no policy"),
    ],
)
def test_contradictions_are_told_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["data", "collect", "out", "--env", "Pendulum-v1", *args]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_an_existing_folder_is_refused_before_an_agent_is_trained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "out").mkdir()
    args = ["--env", "Pendulum-v1", "--kind", "expert", "--agent", str(tmp_path / "agent")]
    assert main(["data", "collect", str(tmp_path / "out"), *args]) == 2
    assert "exists already" in capsys.readouterr().err
    assert not (tmp_path / "agent").exists()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_an_interrupted_command_leaves_nothing_half_written(tmp_path: Path, number: int, code: int) -> None:
    args = ["data", "collect", "set", "--env", "Pendulum-v1", "--steps", "10000000"]
    heed = functools.partial(
        signal.signal, number, signal.SIG_DFL
    )  # tests in the background inherit that it is ignored
    process = subprocess.Popen([*COMMAND, *args], cwd=tmp_path, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    until = time.monotonic() + 60
    while not list(tmp_path.glob(".tmp-*-set/content/*.npy")):
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(number)
    _, message = process.communicate(timeout=30)
    assert process.returncode == code
    assert "Traceback" not in message
    assert list(tmp_path.iterdir()) == []
