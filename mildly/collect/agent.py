"""Agents that learn online, to make data with: a folder holds one SAC training, which can be stopped at any moment.

    agent.json              the environment, the seed, the hyperparameters, versions
    metrics.jsonl           a line every thousand steps: losses and value estimates
    evaluations.jsonl       a line per evaluation; the first (step 0) is of uniformly random actions
    snapshots/STEP/         the policy at each evaluation
    experience.bin          every transition so far, one record behind the other
    checkpoint.safetensors  the learner's whole state, replaced atomically
    timing.json             seconds spent on updates, steps of the environment, evaluation, checkpoints; peak memory
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
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mildly.algorithms.base import Phase
from mildly.algorithms.config import build_config
from mildly.algorithms.sac import SAC, SACConfig
from mildly.collect.rollouts import describe
from mildly.data.dataset import FIELDS, Array
from mildly.device import cpu_threads
from mildly.environments import Simulator, action_space_of, make_env
from mildly.errors import MildlyError, unknown_name
from mildly.evaluation.rollout import Evaluation, rollout
from mildly.files import atomic_write, read_object, refuse_links, remove_leftovers
from mildly.policy import Policy, load_policy
from mildly.run import OtherFormat, Run, check_format
from mildly.state import stream_seed
from mildly.training.environment import Acting, EnvironmentSource
from mildly.training.experience import ExperienceFile, record
from mildly.training.trainer import Schedule, Trainer
from mildly.versions import versions

FORMAT = 2
_LOG_EVERY = 1_000


@dataclass(frozen=True)
class AgentPlan:
    """What determines an agent. It can be trained longer at any time, so the number of steps is no part of it."""

    env_id: str
    seed: int = 0
    sac: SACConfig = field(default_factory=lambda: SACConfig(hidden_dims=(256, 256), batch_size=128, critic_lr=1e-3))
    random_steps: int = 5_000
    """Uniformly random actions at the start, without learning."""
    eval_every: int = 5_000
    """Environment steps between evaluations, each of which leaves a snapshot of the policy."""
    eval_episodes: int = 10
    reference_episodes: int = 50
    """Episodes in which the reference returns are measured."""
    checkpoint_every: int = 1_000
    """Environment steps after which a checkpoint is due; it waits for the end of the episode."""

    def episode_seed(self, episode: int) -> int:
        """What an episode starts from."""
        return stream_seed(self.seed, f"episode {episode}") % 2**31

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
        values = read_object(path)
        check_format(path, values["format"], FORMAT)
        sac = build_config(SAC, values["plan"]["sac"])
        return AgentPlan(**values["plan"] | {"sac": sac}), int(values["steps"])
    except FileNotFoundError:
        return None
    except OtherFormat:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, MildlyError) as error:
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
        return max(self.evaluations(), key=lambda line: line[1])

    def expert(self) -> tuple[int, float]:
        """Step and return of the best evaluation, which must beat random actions."""
        step, value = self.best()
        if value <= self.random_return:
            raise MildlyError(
                f"{self.path}: after {self.steps:,} steps the agent's best return, {value:.1f}, is no better than "
                f"random actions' {self.random_return:.1f}. Train it longer with --agent-steps."
            )
        return step, value

    def medium(self, share: float = 1 / 3) -> tuple[int, float]:
        """Step and return of the first evaluation that reaches random + share * (expert - random)."""
        if not 0 < share <= 1:
            raise MildlyError(f"share must be above 0 and at most 1, not {share}.")
        level = self.random_return + share * (self.expert()[1] - self.random_return)
        return next(line for line in self.evaluations() if line[1] >= level)

    def policy(self, step: int) -> Policy:
        """The policy at an evaluation."""
        return load_policy(self.snapshot(step))

    def snapshot(self, step: int) -> Path:
        """The folder of a policy."""
        return self.path / "snapshots" / f"{step:09d}"

    def experience(self, steps: int | None = None) -> dict[str, Array]:
        """Columns of the first steps, or of all, by memory map."""
        shape = (self.steps if steps is None else steps,)
        rows = np.memmap(self.path / "experience.bin", _record_in(self.plan.env_id), "r", shape=shape)
        return {name: rows[name] for name in FIELDS}

    def references(self) -> tuple[float, float]:
        """Returns of random actions and of the expert, the latter on episodes that did not choose it."""
        path, (step, _) = self.path / "references.json", self.best()
        known = _read_references(path)
        if known.get("step") != step:
            episodes, seed = self.plan.reference_episodes, self.plan.seed + 1
            meta = describe(self.path.name, self.plan.env_id)
            value = rollout(self.policy(step), meta, episodes=episodes, seed=seed).mean_return
            known = {"step": step, "random": self.random_return, "expert": value}
            _write(path, known)
        return float(known["random"]), float(known["expert"])

    def evaluations(self) -> list[tuple[int, float]]:
        """Steps and mean returns of the agent's own evaluations."""
        lines = [(int(line["step"]), float(line["mean_return"])) for line in Run(self.path).evaluations()]
        return lines[1:]


def train_agent(
    folder: str | os.PathLike[str],
    plan: AgentPlan,
    steps: int,
    progress: Callable[[int, float], None] | None = None,
    tell: Callable[[str], None] = lambda note: None,
) -> Agent:
    """Train an agent in its folder, or go on with it; nothing is done where it has made the steps already.

    Args:
        folder: made where it does not exist.
        plan: must be the one that the agent was begun with.
        steps: environment steps; the episode that is under way then is still finished.
        progress: called after each step with the step and the last evaluation's return.
        tell: called with what a person should know, such as that a checkpoint is damaged.
    """
    folder = Path(folder)
    if read_plan(folder) is None:
        if steps < plan.eval_every:
            raise MildlyError(
                f"an agent needs at least {plan.eval_every:,} steps, to its first evaluation; not {steps:,}."
            )
        Run(folder).check_free()
        make_env(plan.env_id).close()  # an environment that cannot be made must leave no folder
        folder.mkdir(parents=True, exist_ok=True)
    with cpu_threads(1), Run(folder).locked():  # small networks gain nothing from more
        refuse_links(folder)
        remove_leftovers(folder)
        trained = _train(folder, plan, _begin(folder, plan, steps), progress, tell)
    return Agent(folder, plan, trained)


def play_again(plan: AgentPlan, actions: Array) -> dict[str, Array]:
    """An agent's experience from its actions alone, (n, action) in [-1, 1], which are a tenth of it.

    Equal bits where the simulator computes as it did for the agent.
    """
    rows = np.zeros(len(actions), _record_in(plan.env_id))
    episode, ended, observation = 0, True, None
    with closing(Simulator.of(plan.env_id).make()) as env:
        for row, unit, action in zip(rows, actions, action_space_of(env).from_unit(actions), strict=True):
            if ended:
                observation, _ = env.reset(seed=plan.episode_seed(episode))
                episode += 1
            row["observations"], row["actions"] = observation, unit
            observation, row["rewards"], row["terminated"], row["truncated"], _ = env.step(action)
            row["next_observations"] = observation
            ended = bool(row["terminated"] or row["truncated"])
    return {name: rows[name] for name in FIELDS}


def _begin(folder: Path, plan: AgentPlan, steps: int) -> int:
    """Write down what is planned; the steps to make, since an agent is never cut back."""
    begun = read_plan(folder)
    steps = steps if begun is None else max(steps, begun[1])
    if begun is not None and begun[0] != plan:
        changed = [x.name for x in dataclasses.fields(plan) if getattr(plan, x.name) != getattr(begun[0], x.name)]
        was = ", ".join(f"{name} {getattr(begun[0], name)}" for name in changed)
        raise MildlyError(f"{folder}: this agent was begun with {was}. Give the same, or another folder for the agent.")
    if begun is None or begun[1] != steps:
        values = {"format": FORMAT, "steps": steps, "plan": dataclasses.asdict(plan), "versions": versions()}
        _write(folder / "agent.json", values)
    return steps


def _train(
    folder: Path,
    plan: AgentPlan,
    steps: int,
    progress: Callable[[int, float], None] | None,
    tell: Callable[[str], None],
) -> int:
    """Train to the end of the episode in which the last step falls; the steps that were made."""
    run, meta, agent = Run(folder), describe(folder.name, plan.env_id), Agent(folder, plan, 0)
    row = _record_in(plan.env_id)
    algorithm = SAC(plan.sac, row["observations"].shape[0], row["actions"].shape[0], seed=plan.seed)

    def evaluate(step: int) -> Evaluation:
        """Run the policy, and keep it."""
        policy = algorithm.policy(meta)
        policy.save(agent.snapshot(step))
        return rollout(policy, meta, episodes=plan.eval_episodes, seed=plan.seed)

    with closing(ExperienceFile(folder / "experience.bin", row)) as log:
        source = EnvironmentSource(
            algorithm,
            Simulator.of(plan.env_id),
            seed=plan.seed,
            episode_seed=plan.episode_seed,
            acting=Acting(random_steps=plan.random_steps, whole_episodes=True),
            log=log,
        )
        schedule = Schedule(steps, _LOG_EVERY, plan.eval_every, plan.checkpoint_every, ends=False)
        trainer = Trainer(run, algorithm, source, schedule, evaluate=evaluate)
        trainer.restore()
        for note in trainer.notes:
            tell(note)
        if not run.evaluations():
            random = rollout(_Random(plan), meta, episodes=plan.reference_episodes, seed=plan.seed + 1)
            run.append("evaluations.jsonl", {"step": 0, **random.to_json()})
        trainer.train(_Monitor(progress, float(run.evaluations()[-1]["mean_return"])))
        source.close()
    return trainer.step


class _Monitor:
    """Calls a function with the step and the last evaluation's return."""

    def __init__(self, progress: Callable[[int, float], None] | None, value: float) -> None:
        self.progress, self.value = progress, value

    def begin(self, phase: Phase, step: int) -> None:
        pass

    def tick(self, step: int) -> None:
        if self.progress is not None:
            self.progress(step, self.value)

    def metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        pass

    def evaluated(self, step: int, result: Evaluation) -> None:
        self.value = result.mean_return


class _Random:
    """Uniformly random actions in the environment's units, to be evaluated as policies are."""

    def __init__(self, plan: AgentPlan) -> None:
        env = make_env(plan.env_id)
        self.space = action_space_of(env)
        env.close()
        self.rng = np.random.default_rng(plan.seed)

    def act(self, observations: Array) -> Array:
        """Actions for a batch."""
        shape = len(observations), self.space.size
        return self.rng.uniform(self.space.low, self.space.high, shape).astype(np.float32)


def _record_in(env_id: str) -> np.dtype[Any]:
    """A transition in an environment as `experience.bin` holds it."""
    env = make_env(env_id)
    sizes = env.observation_space.shape, env.action_space.shape
    env.close()
    assert sizes[0] is not None
    assert sizes[1] is not None
    return record(sizes[0][0], sizes[1][0])


def _read_references(path: Path) -> dict[str, Any]:
    try:
        known = read_object(path)
        return {"step": known["step"], "random": float(known["random"]), "expert": float(known["expert"])}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise MildlyError(f"{path}: damaged ({error}). Remove it, and it is measured again.") from error


def _write(path: Path, values: Mapping[str, Any]) -> None:
    with atomic_write(path) as unfinished:
        unfinished.write_text(json.dumps(values, indent=2) + "\n")
