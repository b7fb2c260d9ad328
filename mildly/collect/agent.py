"""Agents that learn online, to make data with: a folder holds one SAC training, which can be stopped at any moment.

    agent.json              the environment, the seed, the hyperparameters, versions
    evaluations.jsonl       a line an evaluation; the first (step 0) is of uniformly random actions
    snapshots/STEP/         the policy at each evaluation
    experience.bin          every transition so far, one record behind the other
    checkpoint.safetensors  the learner's whole state, replaced atomically
    references.json         the returns of random actions and of the expert, on episodes of their own

A checkpoint is written only where an episode ends, and every episode starts from a seed of its own: then the
environment has no state that would have to be kept, and a training that was killed and started again ends with the
same bits as one that was not.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mildly.algorithms.base import build_config, stream_seed
from mildly.algorithms.sac import SAC, SACConfig
from mildly.collect.online import OnlineLearner
from mildly.collect.rollouts import describe, unit_bounds
from mildly.data.dataset import DTYPES, FIELDS, Array, Meta
from mildly.environments import make_env
from mildly.errors import MildlyError, unknown_name
from mildly.evaluation.rollout import rollout
from mildly.files import atomic_write
from mildly.policy import Policy, load_policy
from mildly.run import Run, versions
from mildly.training import checkpoint

FORMAT = 1


@dataclass(frozen=True)
class AgentPlan:
    """What determines an agent. It can be trained longer at any time, so the number of steps is no part of it."""

    env_id: str
    seed: int = 0
    sac: SACConfig = field(default_factory=lambda: SACConfig(hidden=(256, 256), batch_size=128, critic_lr=1e-3))
    random_steps: int = 5_000
    """Uniformly random actions at the start, without learning."""
    eval_every: int = 5_000
    """Environment steps between evaluations, each of which leaves a snapshot of the policy."""
    eval_episodes: int = 10
    reference_episodes: int = 50
    """Episodes in which the reference returns are measured."""
    checkpoint_every: int = 1_000
    """Environment steps between checkpoints, at least: they wait for the end of an episode."""

    @classmethod
    def preset(cls, name: str, env_id: str, seed: int = 0) -> AgentPlan:
        """A plan by name: `standard` for robots, `small` for tasks such as Pendulum."""
        if name not in PRESETS:
            raise unknown_name("preset", name, PRESETS)
        return cls(env_id, seed, **PRESETS[name])


PRESETS: Mapping[str, Mapping[str, Any]] = {
    "standard": {},
    "small": {"sac": SACConfig(**SAC.PRESETS["small"]), "random_steps": 1_000, "eval_every": 1_000},
}
"""Named plans: fields of AgentPlan."""


def read_plan(folder: str | os.PathLike[str]) -> tuple[AgentPlan, int] | None:
    """What `agent.json` says, the plan and the steps last asked for; None where there is none."""
    path = Path(folder) / "agent.json"
    try:
        values = json.loads(path.read_text())
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}, expected {FORMAT}")
        sac = build_config(SAC, values["plan"]["sac"])
        return AgentPlan(**values["plan"] | {"sac": sac}), int(values["steps"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, MildlyError) as error:
        raise MildlyError(f"{path}: damaged ({error}).") from error


@dataclass(frozen=True)
class Agent:
    """An agent's folder: what it experienced, the policies on its way, and how good they were."""

    path: Path
    plan: AgentPlan
    steps: int
    """Environment steps trained so far."""

    @property
    def random_return(self) -> float:
        """What uniformly random actions bring."""
        return float(Run(self.path).evaluations()[0]["mean_return"])

    def best(self) -> tuple[int, float]:
        """Step and return of the best evaluation, however poor."""
        return max(self._evaluations(), key=lambda line: line[1])

    def expert(self) -> tuple[int, float]:
        """Step and return of the best evaluation, which must beat random actions."""
        step, value = self.best()
        if value <= self.random_return:
            raise MildlyError(
                f"{self.path}: after {self.steps} steps the agent's best return, {value:.1f}, is no better than random "
                f"actions' {self.random_return:.1f}. Train it longer with --agent-steps."
            )
        return step, value

    def medium(self, share: float = 1 / 3) -> tuple[int, float]:
        """Step and return of the first evaluation that reaches random + share * (expert - random)."""
        if not 0 < share <= 1:
            raise MildlyError(f"share must be above 0 and at most 1, not {share}.")
        level = self.random_return + share * (self.expert()[1] - self.random_return)
        return next(line for line in self._evaluations() if line[1] >= level)

    def policy(self, step: int) -> Policy:
        """The policy at an evaluation."""
        return load_policy(self.snapshot(step))

    def snapshot(self, step: int) -> Path:
        """The folder of a policy."""
        return self.path / "snapshots" / f"{step:09d}"

    def experience(self, steps: int | None = None) -> dict[str, Array]:
        """Columns of the first steps, or of all, by memory map."""
        shape = (self.steps if steps is None else steps,)
        rows = np.memmap(self.path / "experience.bin", record(self.plan.env_id), "r", shape=shape)
        return {name: rows[name] for name in FIELDS}

    def references(self) -> tuple[float, float]:
        """Returns of random actions and of the expert, the latter on episodes that did not choose it."""
        path, (step, _) = self.path / "references.json", self.best()
        known = json.loads(path.read_text()) if path.exists() else {}
        if known.get("step") != step:
            episodes, seed = self.plan.reference_episodes, self.plan.seed + 1
            meta = describe(self.path.name, self.plan.env_id)
            value = rollout(self.policy(step), meta, episodes=episodes, seed=seed).mean_return
            known = {"step": step, "random": self.random_return, "expert": value}
            _write(path, known)
        return float(known["random"]), float(known["expert"])

    def _evaluations(self) -> list[tuple[int, float]]:
        lines = [(int(line["step"]), float(line["mean_return"])) for line in Run(self.path).evaluations()]
        return lines[1:]


def train_agent(
    folder: str | os.PathLike[str],
    plan: AgentPlan,
    steps: int,
    progress: Callable[[int, float], None] | None = None,
) -> Agent:
    """Train an agent in its folder, or go on with it; nothing is done where it has made the steps already.

    Args:
        folder: made where it does not exist.
        plan: must be the one that the agent was begun with.
        steps: environment steps; the episode that is under way then is still finished.
        progress: called after each step with the step and the last evaluation's return.
    """
    folder = Path(folder)
    begun = read_plan(folder)
    steps = steps if begun is None else max(steps, begun[1])  # an agent is never cut back
    if begun is None:
        if steps < plan.eval_every:
            raise MildlyError(f"an agent needs at least {plan.eval_every} steps, to its first evaluation; not {steps}.")
        Run(folder).check_free()
        make_env(plan.env_id).close()  # an environment that cannot be made must leave no folder
        folder.mkdir(parents=True, exist_ok=True)
    elif begun[0] != plan:
        changed = [x.name for x in dataclasses.fields(plan) if getattr(plan, x.name) != getattr(begun[0], x.name)]
        was = ", ".join(f"{name} {getattr(begun[0], name)}" for name in changed)
        raise MildlyError(f"{folder}: this agent was begun with {was}. Give the same, or another folder for the agent.")
    if begun is None or begun[1] != steps:
        values = {"format": FORMAT, "steps": steps, "plan": dataclasses.asdict(plan), "versions": versions()}
        _write(folder / "agent.json", values)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # small networks gain nothing from more, and bits depend on their number
    try:
        with Run(folder).locked():
            training = _Training(folder, plan)
            training.restore(steps)
            if training.step < steps:
                training.go(steps, progress)
    finally:
        torch.set_num_threads(threads)
    return Agent(folder, plan, training.step)


class _Training:
    """An agent in memory."""

    def __init__(self, folder: Path, plan: AgentPlan) -> None:
        self.agent, self.run, self.plan = Agent(folder, plan, 0), Run(folder), plan
        self.record = record(plan.env_id)
        self.meta: Meta = describe(folder.name, plan.env_id)
        sizes = self.record["observations"].shape[0], self.record["actions"].shape[0]
        self.algorithm = SAC(plan.sac, *sizes, seed=plan.seed)
        self.episode = self.step = self.saved = 0
        self.experience = folder / "experience.bin"

    def restore(self, steps: int) -> None:
        """Go to where the checkpoint stands, and cut off what was written after it."""
        facts: dict[str, Any] = {"step": 0, "episode": 0, "lines": {}}
        tensors: dict[str, torch.Tensor] = {}
        if self.run.checkpoint.exists():
            tensors, facts = checkpoint.load(self.run.checkpoint)
        self.step = self.saved = facts["step"]
        self.episode = facts["episode"]
        size = self.step * self.record.itemsize
        self.experience.touch()
        if self.experience.stat().st_size < size:
            raise MildlyError(f"{self.experience}: shorter than the checkpoint knows. Restore it from a copy.")
        os.truncate(self.experience, size)
        self.run.rewind(facts["lines"])
        if self.step >= steps:
            return
        self.learner = OnlineLearner(
            self.algorithm,
            self.meta,
            capacity=max(steps, self.step),
            random_steps=self.plan.random_steps,
            seed=self.plan.seed,
        )
        if tensors:
            self._restore_learner(tensors, facts)

    def _restore_learner(self, tensors: Mapping[str, torch.Tensor], facts: Mapping[str, Any]) -> None:
        learner = self.learner
        try:
            self.algorithm.load_state_dict({n.removeprefix("algorithm."): t for n, t in tensors.items()})
            learner.sampler.set_state(tensors["sampler"])
            learner.rng.bit_generator.state = facts["rng"]
        except (KeyError, RuntimeError, ValueError) as error:
            raise MildlyError(f"{self.run.checkpoint}: does not fit the agent's plan ({error}).") from error
        rows = np.fromfile(self.experience, self.record)
        for name, column in learner.replay.columns.items():
            column[: self.step] = torch.from_numpy(rows[name].astype(np.float32))
        learner.step = learner.replay.size = self.step

    def go(self, steps: int, progress: Callable[[int, float], None] | None) -> None:
        """Train to the end of the episode in which the last step falls."""
        value = self._evaluate_random() if self.step == 0 else float(self.run.evaluations()[-1]["mean_return"])
        with self.experience.open("ab") as experience:
            while self.step < steps:
                self.learner.start_episode(stream_seed(self.plan.seed, f"episode {self.episode}") % 2**31)
                ended = False
                while not ended:
                    self._make_room()
                    transition = self.learner.one_step()
                    experience.write(self._as_record(transition))
                    self.step = self.learner.step
                    ended = transition["terminated"] or transition["truncated"]
                    if self.step % self.plan.eval_every == 0:
                        value = self._evaluate()
                    if progress is not None:
                        progress(self.step, value)
                self.episode += 1
                if self.step - self.saved >= self.plan.checkpoint_every or self.step >= steps:
                    experience.flush()
                    os.fsync(experience.fileno())
                    self._save()
        self.learner.env.close()

    def _as_record(self, transition: Mapping[str, Any]) -> bytes:
        return np.array([tuple(transition[name] for name in FIELDS)], self.record).tobytes()

    def _make_room(self) -> None:
        """The episode that is under way at the last step may be a long one."""
        replay = self.learner.replay
        if replay.size == len(replay.columns["rewards"]):
            for name, column in replay.columns.items():
                replay.columns[name] = torch.cat([column, torch.zeros_like(column)])

    def _evaluate(self) -> float:
        """Run the policy, keep it and its returns."""
        state = self.algorithm.state_dict()
        if not all(tensor.isfinite().all() for tensor in state.values() if tensor.is_floating_point()):
            raise MildlyError(
                f"{self.run.path}: the agent's training diverged before step {self.step}. Use another seed."
            )
        policy = self.algorithm.policy(self.meta)
        policy.save(self.agent.snapshot(self.step))
        result = rollout(policy, self.meta, episodes=self.plan.eval_episodes, seed=self.plan.seed)
        self.run.append("evaluations.jsonl", {"step": self.step, **result.to_json()})
        return result.mean_return

    def _evaluate_random(self) -> float:
        policy, episodes = _Random(self.plan), self.plan.reference_episodes
        result = rollout(policy, self.meta, episodes=episodes, seed=self.plan.seed + 1)
        self.run.append("evaluations.jsonl", {"step": 0, **result.to_json()})
        return result.mean_return

    def _save(self) -> None:
        learner = self.learner
        tensors = {f"algorithm.{name}": tensor for name, tensor in self.algorithm.state_dict().items()}
        tensors["sampler"] = learner.sampler.get_state()
        facts = {
            "step": self.step,
            "episode": self.episode,
            "rng": learner.rng.bit_generator.state,
            "lines": self.run.secure_lines(),
        }
        checkpoint.save(self.run.checkpoint, tensors, facts)
        self.saved = self.step


class _Random:
    """Uniformly random actions in the environment's units, to be evaluated as policies are."""

    def __init__(self, plan: AgentPlan) -> None:
        env = make_env(plan.env_id)
        self.low, self.high = unit_bounds(env)
        env.close()
        self.rng = np.random.default_rng(plan.seed)

    def act(self, observations: Array) -> Array:
        """Actions for a batch."""
        return self.rng.uniform(self.low, self.high, (len(observations), len(self.low))).astype(np.float32)


def record(env_id: str) -> np.dtype[Any]:
    """A transition in an environment as `experience.bin` holds it."""
    env = make_env(env_id)
    widths = {"observations": env.observation_space.shape, "actions": env.action_space.shape}
    env.close()
    widths["next_observations"] = widths["observations"]
    return np.dtype([(name, DTYPES[name], widths.get(name) or ()) for name in FIELDS])


def _write(path: Path, values: Mapping[str, Any]) -> None:
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(values, indent=2) + "\n")
