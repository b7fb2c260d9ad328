"""Train on logged data, and resume: from what a person asks for to a run folder."""

from __future__ import annotations

import dataclasses
import os
import shlex
import shutil
from collections.abc import Mapping
from contextlib import closing
from typing import Any

import torch

from mildly.algorithms import algorithm_named
from mildly.algorithms.config import build_config, check_fields, make_config
from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset, stable_source
from mildly.device import resolve_device
from mildly.errors import MildlyError
from mildly.evaluation.rollout import Evaluation, rollout
from mildly.run import Plan, Run
from mildly.training.divergence import ValueWatch, likely_causes
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
    env: str | None = None,
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
        env: environment to evaluate in, if not the data set's own.
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
        fields: any field of the algorithm's Config.
    """
    kind = algorithm_named(algorithm)
    check_fields(kind, preset, fields)
    data, reading = read_data(kind, dataset, reading or ImportOptions(), env, data_dir)
    if source is None and not isinstance(dataset, Dataset):
        source = stable_source(dataset, data_dir)
    said = preflight(data, source, reading, check=check)
    env, meta = environment_of(data.meta, env)
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
        env=env,
        log_every=log_every,
        checkpoint_every=checkpoint_every,
        device=resolve_device(device),
        threads=torch.get_num_threads() if threads is None else threads,
        tensorboard=tensorboard,
        variant=variant,
        reading=reading.to_json(),
    )
    with Run.claim(out, f"{algorithm}-{data.meta.name}-s{seed}") as run:
        training = _Training(run, plan, config, data)  # what fails here must leave no folder
        training.notes = [*said, *training.notes]
        run.write_plan(plan)
        try:
            return training.run_to_end()
        except OutOfMemory:
            if not run.checkpoint.exists():
                shutil.rmtree(run.path)
            raise


def resume(
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    dataset: Dataset | None = None,
) -> Run:
    """Go on with a run from its last checkpoint, as if it had never been interrupted.

    Args:
        path: the run's folder.
        steps: a new total of gradient steps, to prolong a run.
        device: another device than the run was started on; the bits may then differ.
        threads: another number of CPU threads; the bits may then differ.
        dataset: the data, where `run.json` does not say where to find it.
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
    training = _Training(run, plan, config, data)
    with run.locked():
        run.check_own()
        training.trainer.restore()
        if plan != begun:
            run.write_plan(plan)
        return training.run_to_end()


class _Training:
    """A plan made real: the algorithm, its data, and the trainer."""

    def __init__(self, run: Run, plan: Plan, config: Any, data: Dataset) -> None:
        self.run, self.plan = run, plan
        check_events(plan)
        self.env, self.notes = evaluation_of(plan, data)
        check_reward(plan.algorithm, config, data)
        check_sizes(config, data, run.checkpoint)
        kind, device = algorithm_named(plan.algorithm), resolve_device(plan.device)
        self.algorithm = kind(config, data.observation_size, data.action_size, seed=plan.seed, device=device)
        built = self.algorithm.state_dict().keys()
        sampler = self.algorithm.batches(data)
        check_learned(self.algorithm, built, sampler, data)
        self.notes += self.algorithm.notes
        for phase in self.algorithm.phases():
            if phase.steps > plan.steps:
                flag = f"--{phase.field.replace('_', '-')}"
                self.notes.append(
                    f"the phase '{phase.name}' has {phase.steps} steps, more than the {plan.steps} that follow ({flag})"
                )
        """What to tell the user before the first step."""
        gamma: float | None = getattr(config, "gamma", None)
        self.trainer = Trainer(
            run,
            self.algorithm,
            SampledSource(sampler, self.algorithm.random_stream(plan.seed, "batches")),
            Schedule(plan.steps, plan.log_every, plan.eval_every, plan.checkpoint_every),
            evaluate=self._evaluate if self.env else None,
            on_save=lambda: self.algorithm.policy(plan.data).save(run.path / "policy"),
            watch=None if gamma is None else ValueWatch.of(data, self.algorithm.preprocessing.reward_scale, gamma),
            causes=lambda: likely_causes(data, self.algorithm.preprocessing, config, self.algorithm.prepared),
        )

    def run_to_end(self) -> Run:
        """Train to the end, or to a signal."""
        trainer, threads = self.trainer, torch.get_num_threads()
        torch.set_num_threads(self.plan.threads)
        try:
            with (
                stop_requests() as stop,
                closing(events(self.plan, self.run, trainer.phase.name, trainer.step)) as log,
                TrainingProgress(self.plan, self.run.path, trainer.main_step, self.env) as progress,
            ):
                for line in [*self.notes, *trainer.notes]:
                    progress.say(line)
                if trainer.complete:
                    progress.say(f"complete at step {trainer.step} already; prolong it with --steps, the new total")
                trainer.train(_Monitor(progress, log), stop)
            if stop:
                raise Stopped(self._stopped_message(), stop[0])
        finally:
            torch.set_num_threads(threads)
        return self.run

    def _evaluate(self, step: int) -> Evaluation:
        plan = self.plan
        policy = self.algorithm.policy(plan.data)
        return rollout(policy, plan.data, env_id=self.env, episodes=plan.episodes, seed=plan.seed)

    def _stopped_message(self) -> str:
        trainer = self.trainer
        where = f" of the phase '{trainer.phase.name}'" if trainer.phase.name else ""
        goes_on = f"Resume with: mildly train --resume {shlex.quote(str(self.run.path))}"
        goes_on = "The run is complete." if trainer.complete else goes_on
        return f"stopped at step {trainer.step} of {trainer.phase.steps}{where}; a checkpoint is written. {goes_on}"


class _Monitor:
    """Progress for the person, and event files for TensorBoard."""

    def __init__(self, progress: TrainingProgress, log: Events) -> None:
        self.progress, self.log = progress, log
        self.begin, self.tick = progress.begin, progress.tick

    def metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        self.log.write(step, values, "train", phase)
        self.progress.metrics(values)

    def evaluated(self, step: int, result: Evaluation) -> None:
        self.log.write(step, {"return": result.mean_return, "score": result.score}, "evaluation")
        self.progress.evaluated(step, result)
