"""The training loop, one for all algorithms: batch, update, log, evaluate, checkpoint; resumable to the bit."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import torch
from safetensors import SafetensorError
from torch import Tensor

from mildly.algorithms import algorithm_named
from mildly.algorithms.base import Algorithm, Metrics, build_config, make_config
from mildly.data.dataset import Dataset
from mildly.data.registry import load_dataset, reference
from mildly.data.replay import Replay
from mildly.device import peak_megabytes, resolve_device
from mildly.environments import check_fit, stored_bounds
from mildly.errors import MildlyError
from mildly.evaluation.rollout import rollout
from mildly.run import Plan, Run
from mildly.training import checkpoint
from mildly.training.preflight import preflight
from mildly.training.progress import TrainingProgress
from mildly.training.signals import stop_requests
from mildly.training.tensorboard import check_events, events

_NAMED = 12  # names in a message


class Diverged(MildlyError):
    """A loss became NaN or infinite."""


class OutOfMemory(MildlyError):
    """A step did not fit into the device's memory."""


class Stopped(Exception):
    """The run was asked to stop (Ctrl-C, SIGTERM) and has written a checkpoint."""

    def __init__(self, message: str, signal_number: int) -> None:
        super().__init__(message)
        self.exit_code = 128 + signal_number


def train(
    algorithm: str,
    dataset: str | os.PathLike[str] | Dataset,
    *,
    preset: str = "paper",
    steps: int = 1_000_000,
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
        steps: gradient steps.
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
        variant: what a sweep calls these settings.
        source: where `run.json` says the data are found, if not where they are read from.
        fields: any field of the algorithm's Config.
    """
    kind = algorithm_named(algorithm)
    data = load_dataset(dataset, data_dir=data_dir)
    if source is None and not isinstance(dataset, Dataset):
        source = reference(dataset, data_dir)
    said = preflight(data, source, check=check)
    env = env or data.meta.env_id
    meta = data.meta
    if env is not None and meta.action_low is None:
        low, high = stored_bounds(env)
        meta = dataclasses.replace(meta, action_low=low, action_high=high)
    plan = Plan(
        algorithm=algorithm,
        preset=preset,
        config=dataclasses.asdict(make_config(kind, preset, data.meta.name, fields)),
        dataset=source,
        data=meta,
        steps=steps,
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
    )
    name = f"{algorithm}-{data.meta.name}-s{seed}"
    run = Run(Path(out) if out is not None else _free_folder(Path("runs") / name))
    run.check_free()
    training = _Training(run, plan, data)  # first, since what fails here must leave no folder
    training.said = [*said, *training.said]
    run.create(plan)
    with run.locked():
        try:
            return training.go()
        except OutOfMemory:
            if training.step == 0:
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
    data = load_dataset(dataset or plan.dataset or "")
    if data.meta.fingerprint != plan.data.fingerprint:
        raise MildlyError(
            f"{path}: the data set '{data.meta.name}' is not the one this run was started on (its content differs)."
        )
    training = _Training(run, plan, data)
    with run.locked():
        training.restore()
        if plan != begun:
            run.write_plan(plan)
        return training.go()


class _Training:
    """A run in memory: the algorithm, its data and where it stands."""

    def __init__(self, run: Run, plan: Plan, data: Dataset) -> None:
        self.run, self.plan, self.data = run, plan, data
        check_events(plan)
        if plan.env is not None:
            bounds = plan.data.action_low, plan.data.action_high
            check_fit(plan.env, data.observation_size, data.action_size, f"the data set '{data.meta.name}'", bounds)
        device = torch.device(resolve_device(plan.device))
        kind = algorithm_named(plan.algorithm)
        try:
            config = build_config(kind, plan.config)
        except MildlyError as error:
            raise MildlyError(f"{run.path / 'run.json'}: its config does not fit {plan.algorithm}: {error}") from error
        self.algorithm: Algorithm = kind(config, data.observation_size, data.action_size, seed=plan.seed, device=device)
        chosen = self.algorithm.select(data)
        self.algorithm.prepare(chosen)
        self.replay = Replay.of(chosen, device, self.algorithm.scaling)
        self.sampler = self.algorithm.random_stream(plan.seed, "batches")
        self.step = self.saved = 0
        self.sums: Metrics = {}
        """Sums of the metrics since the last line of the log."""
        self.counts: Counter[str] = Counter()
        """Steps in each of those sums: an algorithm may begin with other metrics than it ends with."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.said = [note for note in chosen.meta.notes if note not in data.meta.notes]
        """What to say of the data before the first step."""

    def go(self) -> Run:
        """Train to the end, or to a signal."""
        threads = torch.get_num_threads()
        torch.set_num_threads(self.plan.threads)
        try:
            with (
                stop_requests() as stop,
                TrainingProgress(self.plan, self.run.path, self.step) as progress,
                closing(events(self.plan, self.run, self.step)) as self.events,
            ):
                for line in self.said:
                    progress.say(line)
                if self.step == self.plan.steps:
                    progress.say(f"complete at step {self.step} already; prolong it with --steps, the new total")
                while self.step < self.plan.steps:
                    self._one_step()
                    progress.tick(self.step)
                    self._look_up(progress)
                    if stop:
                        break
            if stop:
                self._stopped(stop[0])
        finally:
            torch.set_num_threads(threads)
        return self.run

    def _look_up(self, progress: TrainingProgress) -> None:
        """After a step: log, evaluate and save if it is time to."""
        plan, last = self.plan, self.step == self.plan.steps
        if self.step % plan.log_every == 0 or last:
            self._log(progress)
        if plan.env and plan.eval_every and (self.step % plan.eval_every == 0 or last):
            self._evaluate(progress)
        if self.step % plan.checkpoint_every == 0 or last:
            self._save()

    def _stopped(self, signal_number: int) -> NoReturn:
        """Leave with a checkpoint of the step reached, also where the signal came during that step's evaluation."""
        if self.saved != self.step:
            self._save()
        goes_on = f"Resume with: mildly train --resume {shlex.quote(str(self.run.path))}"
        if self.step == self.plan.steps:
            goes_on = "The run is complete."
        message = f"stopped at step {self.step} of {self.plan.steps}; a checkpoint is written. {goes_on}"
        raise Stopped(message, signal_number)

    def _one_step(self) -> None:
        try:
            with self._timed("data"):
                batch = self.replay.sample(self.algorithm.config.batch_size, self.sampler)
            with self._timed("update"):
                metrics = self.algorithm.update(batch)
        except RuntimeError as error:
            if "memory" in str(error):
                size = self.algorithm.config.batch_size
                raise OutOfMemory(f"out of memory at step {self.step + 1} with batch_size {size}. Lower it.") from error
            raise
        with self._timed("bookkeeping"):
            known = [name for name in metrics if name in self.sums]
            if known:
                torch._foreach_add_([self.sums[name] for name in known], [metrics[name] for name in known])
            if len(known) < len(metrics):
                self.sums |= {name: value.clone() for name, value in metrics.items() if name not in self.sums}
            self.counts.update(metrics.keys())
            self.step += 1

    def _log(self, progress: TrainingProgress) -> None:
        """Means since the last line. The one place where the device is waited for."""
        with self._timed("bookkeeping"):
            self._check_sums()
            sums = torch.stack(list(self.sums.values())).tolist()
            means = {name: value / self.counts[name] for name, value in zip(self.sums, sums, strict=True)}
            self.sums, self.counts = {}, Counter()
            self.run.append("metrics.jsonl", {"step": self.step, **means})
            self.events.write(self.step, means, "train")
            progress.metrics(means)

    def _check_sums(self) -> None:
        """A sum over steps shows a NaN or infinity of any of them."""
        since = self.step - max(self.counts.values(), default=0)
        self._check_finite(self.sums, f"between steps {since + 1} and {self.step}")

    def _finite_state(self) -> dict[str, Tensor]:
        """The learner's state, known to be sound: weights are newer than metrics, and may have overflowed."""
        self._check_sums()
        state = self.algorithm.state_dict()
        self._check_finite(state, f"after step {self.step}")
        return state

    def _check_finite(self, tensors: Mapping[str, Tensor], when: str) -> None:
        floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
        if not floats:
            return
        finite = torch.stack([tensor.isfinite().all() for tensor in floats.values()]).tolist()
        bad = [name for name, good in zip(floats, finite, strict=True) if not good]
        if bad:
            names = ", ".join(bad[:_NAMED]) + (f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else "")
            kept = f"The last good checkpoint is kept in {self.run.path}" if self.run.checkpoint.exists() else ""
            raise Diverged(
                f"training diverged: {names} not finite {when}. {kept or 'No checkpoint was written yet'}. "
                "Lower the learning rates, or check the data's rewards for outliers."
            )

    def _evaluate(self, progress: TrainingProgress) -> None:
        with self._timed("evaluation"):
            plan = self.plan
            self._finite_state()
            policy = self.algorithm.policy(plan.data)
            result = rollout(policy, plan.data, env_id=plan.env, episodes=plan.episodes, seed=plan.seed)
            self.run.append("evaluations.jsonl", {"step": self.step, **result.to_json()})
            self.events.write(self.step, {"return": result.mean_return, "score": result.score}, "evaluation")
            progress.evaluated(self.step, result.score, result.mean_return)

    def _save(self) -> None:
        """The policy, then the checkpoint. Between two lines of the log the sums are part of the state."""
        with self._timed("checkpoint"):
            state = {f"algorithm.{name}": tensor for name, tensor in self._finite_state().items()}
            state |= {f"sums.{name}": tensor for name, tensor in self.sums.items()}
            state["sampler"] = self.sampler.get_state()
            facts = {
                "step": self.step,
                "metrics": list(self.sums),
                "counts": dict(self.counts),
                "lines": self.run.secure_lines(),
            }
            try:
                self.algorithm.policy(self.plan.data).save(self.run.path / "policy")
                checkpoint.save(self.run.checkpoint, state, facts)
            except (SafetensorError, OSError) as error:  # a full disk; the previous checkpoint still stands
                raise MildlyError(f"{self.run.path}: step {self.step} cannot be saved ({error}).") from error
        self.saved = self.step
        self.run.write_timing(self.seconds, peak_megabytes(self.algorithm.device))

    def restore(self) -> None:
        """Go to where the last checkpoint stands; a run without one starts over."""
        if not self.run.checkpoint.exists():
            self.run.rewind({})
            return
        tensors, facts = checkpoint.load(self.run.checkpoint)
        if facts["step"] > self.plan.steps:
            raise MildlyError(
                f"{self.run.path}: stands at step {facts['step']}, beyond the {self.plan.steps} steps asked for."
            )
        try:
            self.algorithm.load_state_dict(_below("algorithm.", tensors))
            self.sampler.set_state(tensors["sampler"])
            sums = _below("sums.", tensors)
            self.sums = {name: sums[name].to(self.algorithm.device) for name in facts["metrics"]}
            self.step, self.counts = facts["step"], Counter(facts["counts"])
            self.run.rewind(facts["lines"])
        except (KeyError, RuntimeError, ValueError) as error:
            raise MildlyError(f"{self.run.checkpoint}: does not fit the run's config ({error}).") from error
        self.saved = self.step
        self.seconds.update(self.run.timing())

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _free_folder(path: Path) -> Path:
    """The path itself, or with the next free number behind it."""
    path = path.with_name(re.sub(r"[^\w.+-]", "_", path.name))
    candidate, number = path, 2
    while candidate.exists():
        candidate, number = path.with_name(f"{path.name}-{number}"), number + 1
    return candidate
