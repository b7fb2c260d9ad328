"""A plan made real: the algorithm, its data, its environment, and the trainer; and what a person sees of it."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

from mildly.algorithms import algorithm_named
from mildly.data.batches import Sampler
from mildly.data.dataset import Dataset
from mildly.data.select import without_episodes
from mildly.device import OutOfMemory, resolve_device
from mildly.environments import Simulator
from mildly.errors import Stopped
from mildly.evaluation.rollout import Evaluation, EvaluationFailed, rollout
from mildly.observation_space import ObservationSpace
from mildly.policy import Policy
from mildly.run import Plan, Run
from mildly.training.divergence import ValueWatch, likely_causes
from mildly.training.outlook import earned_by_the_log, outlook
from mildly.training.preflight import check_learned, check_reward, check_sizes, evaluation_of
from mildly.training.progress import TrainingProgress
from mildly.training.signals import stop_requests
from mildly.training.tensorboard import Events, check_events, events
from mildly.training.trainer import Monitor, SampledSource, Schedule, Source, Trainer


class Evaluated(NamedTuple):
    """What a callback is told after an evaluation."""

    run: Run
    step: int
    result: Evaluation
    policy: Policy
    """The policy as of this step, which learns on afterwards: `save` it to keep it."""


Callback = Callable[[Evaluated], object]


class Asked(NamedTuple):
    """What is asked for in Python, and kept in no file."""

    simulator: Simulator | None
    callbacks: tuple[Callback, ...]
    quiet: bool


class Session:
    """A plan made real: the algorithm, its data, and the trainer."""

    RESUME = "mildly train --resume"
    """The command that goes on."""

    def __init__(self, run: Run, plan: Plan, config: Any, data: Dataset, asked: Asked) -> None:
        data = without_episodes(data, plan.held_out)
        self.run, self.plan, self.data, self.asked = run, plan, data, asked
        self.warnings: list[str] | None = None
        """What the look at the data has found; None where nobody has looked now."""
        self.failure: Exception | None = None
        """What a callback raised."""
        self.say: Callable[[str], object] = lambda line: None
        """Tells the person, once training goes on."""
        check_events(plan)
        kind, device = algorithm_named(plan.algorithm), resolve_device(plan.device)
        self.simulator, self.notes = evaluation_of(plan, data, asked.simulator) if kind.ACTS else (None, [])
        check_reward(plan.algorithm, config, data)
        check_sizes(config, data, run.checkpoint)
        self.algorithm = kind(config, data.observation_size, data.action_size, seed=plan.seed, device=device)
        built = self.algorithm.state_dict().keys()
        sampler = self.algorithm.batches(data)
        check_learned(self.algorithm, built, sampler, data)
        self.observation_space = _observation_space(self.algorithm.select(data))
        self.notes += [*data.meta.notes[-1:], *self.algorithm.notes] if plan.held_out else self.algorithm.notes
        for phase in self.algorithm.phases():
            if phase.steps > plan.steps < kind.steps_of(plan.preset):
                flag = f"--{phase.field.replace('_', '-')}"
                at_most = "at most " if phase.finished is not None else ""
                self.notes.append(
                    f"the phase '{phase.name}' has {at_most}{phase.steps:,} steps, more than "
                    f"the {plan.steps:,} that follow ({flag})"
                )
        """What to tell the user before the first step."""
        gamma: float | None = getattr(config, "gamma", None)
        scale = self.algorithm.preprocessing.reward_scale
        self.watch = None if gamma is None or not plan.watch_values else ValueWatch.of(data, scale, gamma)
        self.trainer = Trainer(
            run,
            self.algorithm,
            self.source(sampler),
            Schedule(plan.steps, plan.log_every, plan.eval_every, plan.checkpoint_every),
            evaluate=self.evaluate if self.simulator else None,
            on_save=self._save_products,
            watch=self.watch,
            causes=lambda: likely_causes(data, self.algorithm.preprocessing, config, self.algorithm.prepared),
        )

    def source(self, sampler: Sampler) -> Source:
        """Where batches come from: here, the logged data."""
        return SampledSource(sampler, self.algorithm.random_stream(self.plan.seed, "batches"))

    def tell(self, said: Sequence[str], *, checked: bool) -> None:
        """Remember what was said of the data, to be told before the first step and, the warnings, after the last."""
        self.notes = [*said, *self.notes]
        self.warnings = [line for line in said if line.startswith("warning")] if checked else None

    def run_anew(self) -> Run:
        """Train in a new folder, which disappears where not even the first checkpoint fits into memory."""
        try:
            return self.run_to_end()
        except OutOfMemory:
            if not self.run.checkpoint.exists():
                shutil.rmtree(self.run.path)
            raise

    def run_to_end(self) -> Run:
        """Train to the end, or to a signal."""
        trainer = self.trainer
        where, quiet = self.simulator.name if self.simulator else None, self.asked.quiet
        with (
            stop_requests() as stop,
            closing(events(self.plan, self.run, trainer.phase.name, trainer.step)) as log,
            TrainingProgress(self.plan, self.run.path, trainer.main_step, where, quiet=quiet) as progress,
        ):
            for line in [*self.notes, *self._phases_ahead(), *trainer.notes]:
                progress.say(line)
            if trainer.complete:
                progress.say(f"complete at step {trainer.step:,} already; prolong it with --steps, the new total")
            self.say = progress.say
            self.begun()
            self._train(_Monitor(progress, log, partial(self.call_back, stop)), stop)
        if self.failure:
            raise self.failure
        for line in self._last_words() if trainer.complete and not quiet else ():
            progress.say(line)
        self.ended(stop)
        return self.run

    @property
    def goes_on(self) -> str:
        """The command that goes on with this run."""
        return f"{self.RESUME} {shlex.quote(str(self.run.path))}"

    def _train(self, monitor: Monitor, stop: Sequence[int]) -> None:
        """Train, and say how to go on where evaluations fail."""
        try:
            self.trainer.train(monitor, stop)
        except EvaluationFailed as error:
            raise EvaluationFailed(f"{error} Go on with: {self.goes_on}") from error

    def _phases_ahead(self) -> list[str]:
        """All steps at a glance, where phases come before the main ones."""
        *before, main = self.trainer.phases
        if not before or self.trainer.main_step:
            return []
        at_most = ["at most " if phase.finished is not None else "" for phase in before]
        named = [f"{most}{phase.steps:,} of {phase.name}" for most, phase in zip(at_most, before, strict=True)]
        return [f"steps: {', '.join(named)}, then {main.steps:,} of {self.plan.algorithm} itself"]

    def begun(self) -> None:
        """Called before the first step: here, nothing is left to do."""

    def ended(self, stop: Sequence[int]) -> None:
        """Called when the trainer has come to its end, or was asked to stop."""
        if stop:
            raise Stopped(self._stopped_message(), stop[0])

    def _last_words(self) -> list[str]:
        """What the evaluations compare with; without any, what else is known of the policy."""
        if self._is_blind():
            return outlook(self.run, self.plan, self.data, self.algorithm.policy(self.plan.data), self.warnings)
        evaluated = self.run.evaluations()
        return earned_by_the_log(self.data, evaluated[-1], self.plan.steps, self.goes_on) if evaluated else []

    def _is_blind(self) -> bool:
        """Whether nothing says how well the policy acts, though somebody may have expected it."""
        wanted = self.algorithm.ACTS and (self.plan.eval_every or self.plan.env is None)
        return bool(wanted) and self.simulator is None and not self.run.evaluations()

    def evaluate(self, step: int) -> Evaluation:
        plan = self.plan
        return rollout(self.policy(), plan.data, env=self.simulator, episodes=plan.episodes, seed=plan.seed)

    def policy(self) -> Policy:
        """The policy so far, which knows what its data were like."""
        return dataclasses.replace(self.algorithm.policy(self.plan.data), observation_space=self.observation_space)

    def _save_products(self) -> None:
        """The policy, if it learns one, and what else the algorithm leaves."""
        if self.algorithm.ACTS:
            self.policy().save(self.run.path / "policy")
        for name, product in self.algorithm.products().items():
            product.save(self.run.path / name)

    def call_back(self, stop: list[int], step: int, result: Evaluation) -> None:
        """Tell the callbacks. An error in one stops the training as a signal does, with a checkpoint."""
        try:
            for callback in self.asked.callbacks:
                callback(Evaluated(self.run, step, result, self.policy()))
        except Exception as error:
            self.failure = error
            stop.append(0)

    def _stopped_message(self) -> str:
        trainer = self.trainer
        where = f" of the phase '{trainer.phase.name}'" if trainer.phase.name else ""
        goes_on = "The run is complete." if trainer.complete else f"Resume with: {self.goes_on}"
        return f"stopped at step {trainer.step:,} of {trainer.phase.steps:,}{where}; a checkpoint is written. {goes_on}"


def _observation_space(data: Dataset) -> ObservationSpace:
    return ObservationSpace.of(data.observations, data.meta.observation_names, data.meta.observation_units)


class _Monitor:
    """Progress for the person, event files for TensorBoard, and the callbacks."""

    def __init__(self, progress: TrainingProgress, log: Events, call_back: Callable[[int, Evaluation], None]) -> None:
        self.progress, self.log, self.call_back = progress, log, call_back
        self.begin, self.tick = progress.begin, progress.tick

    def metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        self.log.write(step, values, "train", phase)
        self.progress.metrics(values)

    def evaluated(self, step: int, result: Evaluation) -> None:
        self.log.write(step, {"return": result.mean_return, "score": result.score}, "evaluation")
        self.progress.evaluated(step, result)
        self.call_back(step, result)
