"""Train on logged data, and resume: from what a person asks for to a run folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

import torch

from mildly.algorithms import algorithm_named
from mildly.algorithms.config import check_fields, make_config
from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import stable_source
from mildly.data.select import held_out
from mildly.device import cpu_threads, resolve_device
from mildly.environments import Environment, Simulator, trust_env
from mildly.errors import MildlyError
from mildly.run import Plan, Run
from mildly.training.preflight import environment_of, preflight
from mildly.training.reading import read_data, reopened
from mildly.training.session import Asked, Callback, Evaluated as Evaluated, Session


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
    holdout: float = 0.0,
    log_every: int = 200,
    checkpoint_every: int = 1_000,
    device: str = "auto",
    threads: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    check: bool = True,
    tensorboard: bool = False,
    watch_values: bool = True,
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
        holdout: share of the episodes, whole ones drawn by the seed, that are kept out of the training, for `choose` to
            judge by. Which they are is in `run.json`.
        log_every: gradient steps between lines of metrics, which are means over those steps.
        checkpoint_every: gradient steps between checkpoints.
        device: `auto`, `cpu`, `cuda`, ...
        threads: CPU threads; all by default. Recorded, since results depend on it to the bit.
        data_dir: folder in which data set names are looked for first.
        check: look at the data first, and refuse what training would go wrong on (see `mildly data check`).
        tensorboard: also write event files for TensorBoard.
        watch_values: end a training whose values leave what the rewards allow. Numbers that are not finite end it in
            any case.
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
    source = source or (None if isinstance(dataset, Dataset) else stable_source(dataset, data_dir))
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
        watch_values=watch_values,
        variant=variant,
        reading=reading.to_json(),
        held_out=held_out(data, holdout, seed),
    )
    asked = Asked(given if isinstance(given, Simulator) else None, tuple(callbacks), quiet)
    with Run.claim(out, f"{algorithm}-{data.meta.name}-s{seed}") as run, cpu_threads(plan.threads):
        return _begin(run, plan, config, data, asked, said, checked=check)


def _begin(
    run: Run, plan: Plan, config: Any, data: Dataset, asked: Asked, said: Sequence[str], *, checked: bool
) -> Run:
    """Train in a new folder."""
    training = Session(run, plan, config, data, asked)  # what fails here must leave no folder
    training.tell(said, checked=checked)
    run.write_plan(plan)
    return training.run_anew()


def resume(
    path: str | os.PathLike[str],
    *,
    steps: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    watch_values: bool | None = None,
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
        watch_values: from now on as in `train`.
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
        watch_values=begun.watch_values if watch_values is None else watch_values,
    )
    if begun.finetune:
        raise MildlyError(f"{path}: was fine-tuned since. Go on with that: mildly finetune {path}")
    data, config = reopened(run, plan, dataset, "mildly.resume(path, dataset=...)")
    if isinstance(env, str):
        trust_env(env)
    asked = Asked(None if env is None else Simulator.of(env), tuple(callbacks), quiet)
    with cpu_threads(plan.threads):
        training = Session(run, plan, config, data, asked)
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
