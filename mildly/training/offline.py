"""Train on logged data, and resume: from what a person asks for to a run folder."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any, NamedTuple

import torch

from mildly.algorithms import algorithm_named
from mildly.algorithms.config import build_config, check_fields, make_config
from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset, stable_source
from mildly.device import resolve_device
from mildly.environments import Environment, Simulator, trust_env
from mildly.errors import MildlyError
from mildly.evaluation.rollout import Evaluation, rollout
from mildly.observation_space import ObservationSpace
from mildly.policy import Policy
from mildly.run import Plan, Run
from mildly.training.divergence import ValueWatch, likely_causes
from mildly.training.outlook import outlook
from mildly.training.preflight import check_learned, check_reward, check_sizes, environment_of, evaluation_of, preflight
from mildly.training.progress import TrainingProgress
from mildly.training.reading import read_data, reread
from mildly.training.signals import stop_requests
from mildly.training.tensorboard import Events, check_events, events
from mildly.training.trainer import OutOfMemory, SampledSource, Schedule, Trainer


class Stopped(Exception):
    """The run was asked to stop (Ctrl-C, SIGTERM) and has written a checkpoint."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def train(
    algorithm: str,
    dataset: str | os.PathLike[str] | Dataset,
    *,
    preset: str = "default",
    steps: int | None = None,
    seed: int = 0,
    out: str | os.PathLike[str] | None = None,
    eval_every: int = 5_000,
    episodes: int = 10,
    env: Environment | None = None,
    log_every: int = 200,
    checkpoint_every: int = 1_000,
    device: str = "auto",
    threads: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    check: bool = True,
    tensorboard: bool = False,
    reading: ImportOptions | None = None,
    variant: str = "",
    source: str | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
    **fields: Any,
) -> Run:
    """Train a policy on logged data; returns the run, whose folder holds everything.

    Args:
        algorithm: a name in `mildly.ALGORITHMS`, such as `mcq`, `td3-bc` or `bc`.
        dataset: a name, a path, or a Dataset (which `resume` must then be given again: better save it, and give its
            folder).
        preset: a named set of hyperparameters.
        steps: gradient steps, the preset's own number if not given; phases before them, such as a warm-up, have steps
            of their own.
        seed: same seed, same bits.
        out: the run's folder; by default a new one under `runs/`.
        eval_every: gradient steps between evaluations; 0 for none.
        episodes: episodes of an evaluation.
        env: environment to evaluate in, if not the data set's own: an id, also as `module:Id`, which imports the
            module; an environment of your own; or a function that makes one, such as its class. The last two are kept
            in no file: give them to `resume` again.
        log_every: gradient steps between lines of metrics, which are means over those steps.
        checkpoint_every: gradient steps between checkpoints.
        device: `auto`, `cpu`, `cuda`, ...
        threads: CPU threads; all by default. Recorded, since results depend on it to the bit.
        data_dir: folder in which data set names are looked for first.
        check: look at the data first, and refuse what training would go wrong on (see `mildly data check`).
        tensorboard: also write event files for TensorBoard.
        reading: how to read a raw log, as `load_dataset` takes it.
        variant: what a sweep calls these settings.
        source: where `run.json` says the data are found, if not where they are read from.
        quiet: show no progress and no notes.
        callbacks: called after each evaluation with what is known then. If one raises, a checkpoint is written, the
            training stops, and the error goes on to the caller.
        fields: any field of the algorithm's Config.
    """
    kind = algorithm_named(algorithm)
    check_fields(kind, preset, fields)
    given = env if env is None or isinstance(env, str) else Simulator.of(env)
    data, reading = read_data(kind, dataset, reading or ImportOptions(), given, data_dir)
    if source is None and not isinstance(dataset, Dataset):
        source = stable_source(dataset, data_dir)
    said = preflight(data, source, reading, check=check)
    env_id, meta = environment_of(data.meta, given)
    config = make_config(kind, preset, data.meta.name, fields)
    plan = Plan(
        algorithm=algorithm,
        preset=preset,
        config=dataclasses.asdict(config),
        dataset=source,
        data=meta,
        steps=kind.steps_of(preset) if steps is None else steps,
        seed=seed,
        eval_every=eval_every,
        episodes=episodes,
        env=env_id,
        log_every=log_every,
        checkpoint_every=checkpoint_every,
        device=resolve_device(device),
        threads=torch.get_num_threads() if threads is None else threads,
        tensorboard=tensorboard,
        variant=variant,
        reading=reading.to_json(),
    )
    asked = _Asked(given if isinstance(given, Simulator) else None, tuple(callbacks), quiet)
    with Run.claim(out, f"{algorithm}-{data.meta.name}-s{seed}") as run:
        training = _Training(run, plan, config, data, asked)  # what fails here must leave no folder
        training.tell(said, checked=check)
        run.write_plan(plan)
        return training.run_anew()


def resume(
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    dataset: Dataset | None = None,
    env: Environment | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Go on with a run from its last checkpoint, as if it had never been interrupted.

    Args:
        path: the run's folder.
        steps: a new total of gradient steps, to prolong a run.
        device: another device than the run was started on; the bits may then differ.
        threads: another number of CPU threads; the bits may then differ.
        dataset: the data, where `run.json` does not say where to find it.
        env: the environment to evaluate in, where the run was begun with one that is no id.
        quiet: show no progress and no notes.
        callbacks: called after each evaluation, as in `train`.
    """
    run = Run.open(path)
    begun = run.plan()
    plan = dataclasses.replace(
        begun,
        steps=begun.steps if steps is None else steps,
        device=begun.device if device is None else resolve_device(device),
        threads=begun.threads if threads is None else threads,
    )
    if dataset is None and plan.dataset is None:
        raise MildlyError(
            f"{path}: was trained on a Dataset in memory. Resume it in Python: mildly.resume(path, dataset=...)."
        )
    data = load_dataset(dataset) if dataset is not None else reread(run, plan)
    if data.meta.fingerprint != plan.data.fingerprint:
        raise MildlyError(
            f"{path}: the data set '{data.meta.name}' is not the one this run was started on (its content differs)."
        )
    try:
        config = build_config(algorithm_named(plan.algorithm), plan.config)
    except MildlyError as error:
        raise MildlyError(f"{run.path / 'run.json'}: its config does not fit {plan.algorithm}: {error}") from error
    if isinstance(env, str):
        trust_env(env)
    asked = _Asked(None if env is None else Simulator.of(env), tuple(callbacks), quiet)
    training = _Training(run, plan, config, data, asked)
    with run.locked():
        run.check_own()
        training.trainer.restore()
        before = run.evaluations()  # without what was written after the checkpoint
        if before and training.simulator is None and plan.env is None:
            training.notes.append(
                f"not evaluated any more: '{before[-1]['env_id']}' was given in Python. Give it again: "
                "mildly.resume(path, env=...)"
            )
        if plan != begun:
            run.write_plan(plan)
        return training.run_to_end()


class Evaluated(NamedTuple):
    """What a callback is told after an evaluation."""

    run: Run
    step: int
    result: Evaluation
    policy: Policy
    """The policy as of this step, which learns on afterwards: `save` it to keep it."""


Callback = Callable[[Evaluated], object]


class _Asked(NamedTuple):
    """What is asked for in Python, and kept in no file."""

    simulator: Simulator | None
    callbacks: tuple[Callback, ...]
    quiet: bool


class _Training:
    """A plan made real: the algorithm, its data, and the trainer."""

    def __init__(self, run: Run, plan: Plan, config: Any, data: Dataset, asked: _Asked) -> None:
        self.run, self.plan, self.data, self.asked = run, plan, data, asked
        self.warnings: list[str] | None = None
        """What the look at the data has found; None where nobody has looked now."""
        self.failure: Exception | None = None
        """What a callback raised."""
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
        self.notes += self.algorithm.notes
        for phase in self.algorithm.phases():
            if phase.steps > plan.steps:
                flag = f"--{phase.field.replace('_', '-')}"
                at_most = "at most " if phase.finished is not None else ""
                self.notes.append(
                    f"the phase '{phase.name}' has {at_most}{phase.steps} steps, more than "
                    f"the {plan.steps} that follow ({flag})"
                )
        """What to tell the user before the first step."""
        gamma: float | None = getattr(config, "gamma", None)
        self.trainer = Trainer(
            run,
            self.algorithm,
            SampledSource(sampler, self.algorithm.random_stream(plan.seed, "batches")),
            Schedule(plan.steps, plan.log_every, plan.eval_every, plan.checkpoint_every),
            evaluate=self._evaluate if self.simulator else None,
            on_save=self._save_products,
            watch=None if gamma is None else ValueWatch.of(data, self.algorithm.preprocessing.reward_scale, gamma),
            causes=lambda: likely_causes(data, self.algorithm.preprocessing, config, self.algorithm.prepared),
        )

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
        trainer, threads = self.trainer, torch.get_num_threads()
        where, quiet = self.simulator.name if self.simulator else None, self.asked.quiet
        torch.set_num_threads(self.plan.threads)
        try:
            with (
                stop_requests() as stop,
                closing(events(self.plan, self.run, trainer.phase.name, trainer.step)) as log,
                TrainingProgress(self.plan, self.run.path, trainer.main_step, where, quiet=quiet) as progress,
            ):
                for line in [*self.notes, *trainer.notes]:
                    progress.say(line)
                if trainer.complete:
                    progress.say(f"complete at step {trainer.step} already; prolong it with --steps, the new total")
                trainer.train(_Monitor(progress, log, partial(self._call_back, stop)), stop)
            if self.failure:
                raise self.failure
            if trainer.complete and not quiet and self._is_blind():
                policy = self.algorithm.policy(self.plan.data)
                for line in outlook(self.run, self.plan, self.data, policy, self.warnings):
                    progress.say(line)
            if stop:
                raise Stopped(self._stopped_message(), stop[0])
        finally:
            torch.set_num_threads(threads)
        return self.run

    def _is_blind(self) -> bool:
        """Whether nothing says how well the policy acts, though somebody may have expected it."""
        wanted = self.algorithm.ACTS and (self.plan.eval_every or self.plan.env is None)
        return bool(wanted) and self.simulator is None and not self.run.evaluations()

    def _evaluate(self, step: int) -> Evaluation:
        plan = self.plan
        return rollout(self._policy(), plan.data, env=self.simulator, episodes=plan.episodes, seed=plan.seed)

    def _policy(self) -> Policy:
        """The policy so far, which knows what its data were like."""
        return dataclasses.replace(self.algorithm.policy(self.plan.data), observation_space=self.observation_space)

    def _save_products(self) -> None:
        """The policy, if it learns one, and what else the algorithm leaves."""
        if self.algorithm.ACTS:
            self._policy().save(self.run.path / "policy")
        for name, product in self.algorithm.products().items():
            product.save(self.run.path / name)

    def _call_back(self, stop: list[int], step: int, result: Evaluation) -> None:
        """Tell the callbacks. An error in one stops the training as a signal does, with a checkpoint."""
        try:
            for callback in self.asked.callbacks:
                callback(Evaluated(self.run, step, result, self._policy()))
        except Exception as error:
            self.failure = error
            stop.append(0)

    def _stopped_message(self) -> str:
        trainer = self.trainer
        where = f" of the phase '{trainer.phase.name}'" if trainer.phase.name else ""
        goes_on = f"Resume with: mildly train --resume {shlex.quote(str(self.run.path))}"
        goes_on = "The run is complete." if trainer.complete else goes_on
        return f"stopped at step {trainer.step} of {trainer.phase.steps}{where}; a checkpoint is written. {goes_on}"


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
