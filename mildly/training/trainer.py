"""The one trainer, for logged data and environments: batch, update, log, evaluate, checkpoint; resumable to the bit.

A training is the algorithm's phases (a behavior model, a warm-up), each with steps of its own, and then the main steps.
Batches come from a `Source`. That of logged data only samples; one that steps environments is in `environment.py`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from safetensors import SafetensorError
from torch import Tensor

from mildly.algorithms.base import Algorithm, Metrics, Phase
from mildly.data.batches import Sampler
from mildly.device import memory_for, peak_megabytes
from mildly.errors import MildlyError
from mildly.evaluation.rollout import Evaluation, EvaluationFailed
from mildly.run import Run, is_step
from mildly.training import checkpoint
from mildly.training.divergence import ValueWatch

_NAMED = 12  # names in a message
_RECENT = 1_000  # steps whose metrics are kept until the next line of the log


class Diverged(MildlyError):
    """A loss became NaN or infinite, or values left what the rewards allow."""


class SourceFailed(MildlyError):
    """An environment broke down; all before that is sound."""


Failed = TypeVar("Failed", SourceFailed, EvaluationFailed)


class Source(ABC):
    """Where batches come from, with what must be kept to go on from there."""

    stage = 0
    """Which part of a run it serves: 0 for the first, on logged data. Each begins where the one before has ended."""

    at_boundary = True
    """Whether a checkpoint may be written now, so that a resumed training is the same one."""

    @abstractmethod
    def next_batches(self, own: Sampler | None = None) -> Sequence[Any]:
        """What the next step learns from, of a phase's own sampler where it has one: a batch, several, or none."""

    @abstractmethod
    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Tensors and JSON facts for the checkpoint; what else belongs to it is on disk afterwards."""

    @abstractmethod
    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Go to where a checkpoint stands; where there is none, and nothing is given, to the beginning."""


class SampledSource(Source):
    """Batches of a sampler."""

    def __init__(self, sampler: Sampler, generator: torch.Generator, stage: int = 0) -> None:
        self.sampler, self.generator, self.stage = sampler, generator, stage

    def next_batches(self, own: Sampler | None = None) -> Sequence[Any]:
        return ((own or self.sampler).sample(self.generator),)

    def save(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {"generator": self.generator.get_state(), **_prefixed("sampler.", self.sampler.state_dict())}, {}

    def restore(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        if tensors:
            self.generator.set_state(tensors["generator"])
            self.sampler.load_state_dict(_below("sampler.", tensors))


@dataclass(frozen=True)
class Schedule:
    """When to do what, in main steps; phases log and save as often."""

    steps: int
    log_every: int
    eval_every: int
    """0 for never."""
    checkpoint_every: int
    ends: bool = True
    """Whether the last step is logged and evaluated even if it is not due, since no other will be."""


class Monitor(Protocol):
    """Shows a person where a training stands."""

    def begin(self, phase: Phase, step: int) -> None:
        """A phase, or with an empty name the main steps, goes on from a step."""
        ...

    def tick(self, step: int) -> None:
        """A step has been made."""
        ...

    def metrics(self, phase: str, step: int, values: Mapping[str, float]) -> None:
        """New means of the metrics."""
        ...

    def evaluated(self, step: int, result: Evaluation) -> None:
        """A new evaluation."""
        ...


class Trainer:
    """A training in memory: the learner, its source of batches, and where it stands."""

    def __init__(
        self,
        run: Run,
        algorithm: Algorithm,
        source: Source,
        schedule: Schedule,
        *,
        evaluate: Callable[[int], Evaluation] | None = None,
        on_save: Callable[[], object] | None = None,
        watch: ValueWatch | None = None,
        causes: Callable[[], str] | None = None,
    ) -> None:
        """What the trainer does besides.

        Args:
            run: where it is written down.
            algorithm: learns.
            source: gives batches.
            schedule: when to do what.
            evaluate: runs the policy of a step.
            on_save: writes what belongs beside a checkpoint of the main steps.
            watch: knows which values are possible.
            causes: says what may have driven a training apart.
        """
        self.run, self.algorithm, self.source, self.schedule = run, algorithm, source, schedule
        self.evaluate, self.on_save, self.watch, self.causes = evaluate, on_save, watch, causes
        main = Phase("", schedule.steps, algorithm.step, finished=algorithm.finished)
        self.phases: list[Phase] = [*algorithm.phases(), main]
        """The last one is the main steps'."""
        self.current = self.step = 0
        """Number of the phase, and the step within it."""
        self.saved = (0, 0)
        self.sums: Metrics = {}
        """Sums of the metrics since the last line of the log."""
        self.counts: Counter[str] = Counter()
        """Steps in each of those sums: an algorithm may begin with other metrics than it ends with."""
        self.recent: deque[Metrics] = deque(maxlen=_RECENT)
        """The metrics of each of those steps, to tell which was the first that is not finite."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.notes: list[str] = []
        """What a person should know of how it was restored."""

    @property
    def phase(self) -> Phase:
        """What is trained now."""
        return self.phases[self.current]

    @property
    def main_step(self) -> int:
        """Main steps made so far."""
        return 0 if self.phase.name else self.step

    @property
    def complete(self) -> bool:
        """Whether all steps are made; a source that cannot stop now is followed to where it can."""
        return not self.phase.name and self.phase_ended and self.source.at_boundary

    @property
    def phase_ended(self) -> bool:
        """Whether the steps of this phase, or the main ones, are made, or no more are needed."""
        finished = self.phase.finished
        return self.step >= self.phase.steps or (finished is not None and finished())

    def train(self, monitor: Monitor, stop: Sequence[int] = ()) -> None:
        """Train to the end, or until `stop` holds a signal, and leave a checkpoint of the step reached."""
        monitor.begin(self.phase, self.step)
        if self._evaluation_due and not any(line["step"] == self.step for line in self.run.evaluations()):
            self._evaluate(monitor)  # it failed, and the checkpoint is of before
        while not self.complete and not stop:
            if self.phase.name and self.phase_ended:
                self.current, self.step = self.current + 1, 0
                monitor.begin(self.phase, self.step)
            self._one_step()
            self._log_evaluate_save(monitor)
            monitor.tick(self.step)
        if self.saved != (self.current, self.step) and self.source.at_boundary:
            self._save()

    def _one_step(self) -> None:
        size = self.algorithm.config.batch_size
        try:
            with memory_for(f"at step {self.step + 1:,} with batch_size {size}. Lower it."):
                with self._timed("data"):
                    batches = self.source.next_batches(self.phase.sampler)
                for batch in batches:
                    with self._timed("update"):
                        metrics = self.phase.update(batch)
                    with self._timed("bookkeeping"):
                        self._add_up(metrics)
        except SourceFailed as error:
            raise self._saved_after(error) from error
        self.step += 1

    def _add_up(self, metrics: Metrics) -> None:
        known = [name for name in metrics if name in self.sums]
        if known:
            torch._foreach_add_([self.sums[name] for name in known], [metrics[name] for name in known])
        if len(known) < len(metrics):
            self.sums |= {name: value.clone() for name, value in metrics.items() if name not in self.sums}
        self.counts.update(metrics.keys())
        self.recent.append(metrics)

    def _saved_after(self, error: Failed) -> Failed:
        """What to tell of an environment that broke down, after a checkpoint of all before that."""
        if not self.source.at_boundary:
            return error
        self._save()
        return type(error)(f"{error} Nothing is lost: a checkpoint of step {self.step:,} is written.")

    def _log_evaluate_save(self, monitor: Monitor) -> None:
        """What is due after a step. A phase evaluates nothing, since its policy is not yet one."""
        every, ended = self.schedule, self.phase_ended
        if self.step % every.log_every == 0 or (ended and every.ends):
            self._log(monitor)
        if self._evaluation_due:
            self._evaluate(monitor)
        before = self.saved[1] if self.saved[0] == self.current else 0
        due = self.step // every.checkpoint_every > before // every.checkpoint_every
        due = due and not (self.watch and self.watch.suspicious)  # the last sound one may be needed
        if self.source.at_boundary and (due or ended):
            self._save()

    @property
    def _evaluation_due(self) -> bool:
        """Whether the policy of this step is to be evaluated."""
        every, last = self.schedule.eval_every, self.phase_ended and self.schedule.ends
        return bool(self.evaluate and every and self.main_step and (self.step % every == 0 or last))

    def _evaluate(self, monitor: Monitor) -> None:
        """Where the environment fails, a checkpoint of this step remains; resumed, it is evaluated first."""
        assert self.evaluate is not None
        with self._timed("evaluation"):
            self._finite_state()
            try:
                result = self.evaluate(self.step)
            except EvaluationFailed as error:
                raise self._saved_after(error) from error
            self.run.append("evaluations.jsonl", {"step": self.step, **result.to_json()})
            monitor.evaluated(self.step, result)

    def _log(self, monitor: Monitor) -> None:
        """Means since the last line. The one place where the device is waited for."""
        if not self.sums:  # nothing was learned yet
            return
        with self._timed("bookkeeping"):
            self._check_sums()
            sums = torch.stack(list(self.sums.values())).tolist()
            means = {name: value / self.counts[name] for name, value in zip(self.sums, sums, strict=True)}
            self.sums, self.counts = {}, Counter()
            self.recent.clear()
            phase = {"phase": self.phase.name} if self.phase.name else {}
            self.run.append("metrics.jsonl", {**phase, "step": self.step, **means})
            monitor.metrics(self.phase.name, self.step, means)
        wrong = self.watch.diverged(means) if self.watch and not self.phase.name else ""
        if wrong:
            raise self._diverged(f"{wrong} (--no-watch-values goes on all the same)")

    def _check_sums(self) -> None:
        """A sum over steps shows a NaN or infinity of any of them; the steps themselves show which came first."""
        if not _not_finite(self.sums):
            return
        for step, metrics in enumerate(self.recent, self.step - len(self.recent) + 1):
            self._check_finite(metrics, f"for the first time at step {step:,}")
        since = self.step - max(self.counts.values(), default=0)
        self._check_finite(self.sums, f"between steps {since + 1:,} and {self.step:,}")

    def _finite_state(self) -> dict[str, Tensor]:
        """The learner's state, known to be sound: weights are newer than metrics, and may have overflowed."""
        self._check_sums()
        state = self.algorithm.state_dict()
        self._check_finite(state, f"after step {self.step:,}")
        return state

    def _check_finite(self, tensors: Mapping[str, Tensor], when: str) -> None:
        bad = _not_finite(tensors)
        if bad:
            names = ", ".join(bad[:_NAMED]) + (f" and {len(bad) - _NAMED} more" if len(bad) > _NAMED else "")
            where = f" of the phase '{self.phase.name}'" if self.phase.name else ""
            raise self._diverged(f"{names} not finite {when}{where}")

    def _diverged(self, what: str) -> Diverged:
        kept = f"The last good checkpoint is kept in {self.run.path}" if self.run.checkpoint.exists() else ""
        causes = self.causes() if self.causes else "Lower the learning rates."
        return Diverged(f"training diverged: {what}. {kept or 'No checkpoint was written yet'}. {causes}")

    def _save(self) -> None:
        """What belongs beside it, then the checkpoint. Between two lines of the log the sums are part of the state."""
        with self._timed("checkpoint"):
            tensors = _prefixed("algorithm.", self._finite_state()) | _prefixed("sums.", self.sums)
            try:
                of_source, source_facts = self.source.save()
                facts = {
                    "step": self.main_step,
                    "phase": self.phase.name,
                    "phase_step": self.step,
                    "metrics": list(self.sums),
                    "counts": dict(self.counts),
                    "lines": self.run.secure_lines(),
                    "stage": self.source.stage,
                    "source": source_facts,
                }
                if self.on_save is not None and not self.phase.name:
                    self.on_save()
                checkpoint.save(self.run.checkpoint, tensors | _prefixed("source.", of_source), facts)
            except (SafetensorError, OSError) as error:  # a full disk; the previous checkpoint still stands
                raise MildlyError(f"{self.run.path}: step {self.step:,} cannot be saved ({error}).") from error
        self.saved = self.current, self.step
        self.run.write_timing(self.seconds, peak_megabytes(self.algorithm.device))

    def restore(self) -> None:
        """Go to where the last checkpoint stands, and cut off what was written after it; or start over."""
        if not self.run.checkpoint.exists() and not checkpoint.previous(self.run.checkpoint).exists():
            self.run.rewind({})
            self.source.restore({}, {})
            return
        tensors, facts = checkpoint.load_latest(self.run.checkpoint, self.notes.append)
        if facts["step"] > self.schedule.steps and self.schedule.ends:
            raise MildlyError(
                f"{self.run.path}: stands at step {facts['step']:,}, beyond the {self.schedule.steps:,} steps asked "
                "for."
            )
        try:
            self.algorithm.load_state_dict(_below("algorithm.", tensors))
            begun = facts.get("stage", 0) == self.source.stage  # otherwise the part before it has just ended
            self.source.restore(*(_below("source.", tensors), facts["source"]) if begun else ({}, {}))
            sums = _below("sums.", tensors)
            self.sums = {name: sums[name].to(self.algorithm.device) for name in facts["metrics"]}
            self.current = [phase.name for phase in self.phases].index(facts["phase"])
            self.step, self.counts = facts["phase_step"], Counter(facts["counts"])
            if not all(map(is_step, (self.step, *self.counts.values()))):
                raise ValueError("it counts steps that are no numbers")
            self.run.rewind(facts["lines"])
            if self.watch:
                self.watch.restore(self.run.metrics())
        except (KeyError, IndexError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise MildlyError(f"{self.run.checkpoint}: does not fit the run's config ({error}).") from error
        self.saved = self.current, self.step
        self.seconds.update(self.run.timing())

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Count seconds; those of phases apart, so that the main steps' cost is known."""
        start = time.perf_counter()
        yield
        self.seconds["phases" if self.phase.name else part] += time.perf_counter() - start


def _not_finite(tensors: Mapping[str, Tensor]) -> list[str]:
    """Names of tensors that hold a NaN or an infinity, in their order. The device is waited for once."""
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point()}
    if not floats:
        return []
    finite = torch.stack([tensor.isfinite().all() for tensor in floats.values()]).tolist()
    return [name for name, good in zip(floats, finite, strict=True) if not good]


def _prefixed(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}{name}": tensor for name, tensor in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
