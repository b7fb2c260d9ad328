"""Fine-tune a trained run: online in an environment, or with further logs beside the first."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mildly.actors import DeterministicActor
from mildly.algorithms import algorithm_named
from mildly.algorithms.config import require
from mildly.data.batches import Mixture, Sampler, Transitions
from mildly.data.check.shift import shift
from mildly.data.dataset import Array, Dataset, Meta
from mildly.data.options import ImportOptions
from mildly.device import cpu_threads, resolve_device
from mildly.environments import Environment, Simulator, UntrustedEnvironment, check_fit, trust_env
from mildly.errors import MildlyError
from mildly.evaluation.rollout import Evaluation
from mildly.policy import Policy
from mildly.run import Plan, Run
from mildly.stage import Stage
from mildly.state import stream_seed
from mildly.training import checkpoint
from mildly.training.environment import Acting, EnvironmentSource, Share
from mildly.training.experience import ExperienceFile, columns, record
from mildly.training.further_logs import read_further, reread_further
from mildly.training.reading import reopened
from mildly.training.safety import SafetyNet
from mildly.training.session import Asked, Callback, Session
from mildly.training.trainer import SampledSource, Source, SourceFailed

STEPS = 100_000
"""Steps of fine-tuning, if not said: the paper's."""
_FIXED = ("share", "share_end", "updates_per_step", "environments", "noise")
"""What cannot change on the way, since a resumed part would not be the same."""


class FellBelow(MildlyError):
    """An evaluation fell below `stop_below`; the best policy is back in its place."""


def finetune(
    run: str | os.PathLike[str] | Run,
    *,
    steps: int | None = None,
    env: Environment | None = None,
    dataset: str | os.PathLike[str] | Dataset | None = None,
    share: float | None = None,
    share_end: float | None = None,
    updates_per_step: float | None = None,
    environments: int | None = None,
    noise: float | None = None,
    stop_below: float | None = None,
    eval_every: int | None = None,
    episodes: int | None = None,
    device: str | None = None,
    threads: int | None = None,
    data_dir: str | os.PathLike[str] | None = None,
    reading: ImportOptions | None = None,
    logged: Dataset | None = None,
    quiet: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Run:
    """Go on with a trained run in its folder: online, or with further logs. The same call resumes what was interrupted.

    Networks, optimizers, targets and normalization are those of the run's checkpoint, and no hyperparameter changes. In
    the logs of the run a step is now a step of the environment, and counting goes on where the offline part ended.
    Resuming is exact at any step: all transitions are on disk, and episodes that were under way are played again from
    their seed with the actions that were taken. Where the environment does not repeat itself, they end there instead.

    Args:
        run: a run that is complete.
        steps: steps of the environment, or on logs gradient steps; 100,000 if not given. With more than before, a part
            that is complete is prolonged.
        env: the environment to act in, if not the run's: an id, also as `module:Id`; or a function that makes one, such
            as its class. It is evaluated in another one of the same kind.
        dataset: further logs to learn from instead; read with the run's own options, unless others are given.
        share: share of new transitions in every batch (0.5: as many as old ones); not given, all transitions are alike.
        share_end: the share at the end, if it is to change on a straight line.
        updates_per_step: gradient steps for each step of an environment, 1 if not given; 0.25 is one for four.
        environments: environments side by side, 1 if not given.
        noise: standard deviation of the noise on the actions of deterministic policies, 0.1 if not given. Others act
            with draws of their own.
        stop_below: stop where an evaluation's score, or return where there is no score, is less than this, and put the
            best policy back.
        eval_every: steps between evaluations, the run's own if not given.
        episodes: episodes of an evaluation, the run's own if not given.
        device: another device than the run's.
        threads: another number of CPU threads.
        data_dir: folder in which data set names are looked for first.
        reading: how to read further logs, as `load_dataset` takes it.
        logged: the first data, where `run.json` does not say where to find them.
        quiet: show no progress and no notes.
        callbacks: called after each evaluation, as in `train`.

    Raises:
        FellBelow: an evaluation was less than `stop_below`.
    """
    run = run if isinstance(run, Run) else Run.open(run)
    begun = run.plan()
    given = _said(steps=steps, share=share, share_end=share_end, noise=noise, stop_below=stop_below)
    given |= _said(updates_per_step=updates_per_step, environments=environments)
    given |= _said(eval_every=eval_every, episodes=episodes)
    _check_given(begun, given, env, dataset)
    simulator = _simulator(env)
    data, config = reopened(run, begun, logged, "mildly.finetune(path, logged=...)")
    new = None if dataset is None else read_further(begun, data, dataset, reading, data_dir)
    if new is not None:
        given |= {"fingerprint": new.data.meta.fingerprint, "dataset": new.source, "reading": new.reading.to_json()}
    elif simulator is not None:
        given["env"] = simulator.name
    stages = _stages(run, begun, given)
    if stages[-1].online:
        simulator = simulator or _known(run, stages[-1])
        _check_online(begun, data, simulator)
    plan = dataclasses.replace(
        begun,
        finetune=stages,
        steps=stages[-1].start + stages[-1].steps,
        device=begun.device if device is None else resolve_device(device),
        threads=begun.threads if threads is None else threads,
    )
    further = [
        new.data if number == len(stages) and new is not None else reread_further(run, plan, data, stage)
        for number, stage in enumerate(stages, 1)
    ]
    with cpu_threads(plan.threads):
        session = Finetuning(run, plan, config, data, Asked(simulator, tuple(callbacks), quiet), further)
        session.tell([] if new is None else new.said, checked=new is not None)
        return _trained(session, None if plan == begun else plan)


def _trained(session: Finetuning, plan: Plan | None) -> Run:
    """Train to the end, in a folder that is locked; a plan that is new is written down first."""
    run = session.run
    try:
        with run.locked():
            run.check_own()
            session.trainer.restore()
            if plan is not None:
                run.write_plan(plan)
            return session.run_to_end()
    except SourceFailed as error:
        raise SourceFailed(f"{error} Go on with: mildly finetune {run.path}") from error
    finally:
        session.close()


def _said(**options: Any) -> dict[str, Any]:
    """Of options, those that are given."""
    return {name: value for name, value in options.items() if value is not None}


def _check_given(begun: Plan, given: Mapping[str, Any], env: Environment | None, dataset: object) -> None:
    """Refuse what would have no effect, before anything is read."""
    if not algorithm_named(begun.algorithm).ACTS:
        raise MildlyError(f"this run holds a model of the environment ({begun.algorithm}): no policy to fine-tune.")
    if dataset is None:
        return
    if env is not None:
        raise MildlyError("give an environment to act in, or further logs (--dataset); one part follows the other.")
    online = [name for name in ("environments", "updates_per_step", "noise") if name in given]
    if online:
        raise MildlyError(f"{', '.join(online)}: for steps in an environment, not for further logs (--dataset).")


def _simulator(env: Environment | None) -> Simulator | None:
    """What the user names or gives; evaluation needs one of its own beside it."""
    if env is None:
        return None
    if isinstance(env, str):
        trust_env(env)
    simulator = Simulator.of(env)
    if simulator.one:
        raise MildlyError(
            "fine-tuning acts in one environment and is evaluated in another: give an id, or a function that makes "
            "environments, such as a class."
        )
    return simulator


def _known(run: Run, stage: Stage) -> Simulator:
    """The environment that a file names."""
    if stage.env is None:
        raise MildlyError(
            f"{run.path}: names no environment to act in. Give one with --env, or further logs with --dataset."
        )
    simulator = Simulator.of(stage.env)
    try:
        simulator.make().close()
    except UntrustedEnvironment:
        raise
    except MildlyError as error:
        raise MildlyError(
            f"{error} If it was given in Python, give it again: mildly.finetune(path, env=...)."
        ) from error
    return simulator


def _stages(run: Run, begun: Plan, given: Mapping[str, Any]) -> tuple[Stage, ...]:
    """The parts of the run, of which the last is to be trained now: the one that was the last before, or a new one."""
    before, step = begun.finetune, checkpoint.step_of(run.checkpoint)
    last, complete = before[-1] if before else None, step >= begun.steps
    anew = "env" in given or "fingerprint" in given
    if last is not None and not anew:
        same = last.online or not complete
    else:
        same = last is not None and (last.fingerprint, last.env) == (given.get("fingerprint", ""), given.get("env"))
    if last is not None and same:
        for name in _FIXED:
            if name in given and given[name] != getattr(last, name):
                raise MildlyError(
                    f"{run.path}: this fine-tuning was begun with {name} {getattr(last, name)}. Give the same, or "
                    "leave it out."
                )
        return (*before[:-1], dataclasses.replace(last, **given))
    if not complete:
        done = step - last.start if last else step
        what = f"mildly finetune {run.path}" if before else f"mildly train --resume {run.path}"
        raise MildlyError(
            f"{run.path}: stands at step {step:,} of {begun.steps:,}. Finish that first ({what})"
            + (f", or make this step its last ({what} --steps {done})." if done else ".")
        )
    usual: dict[str, Any] = {"steps": STEPS, "eval_every": begun.eval_every, "episodes": begun.episodes}
    usual |= {} if anew else {"env": begun.env}
    return (*before, Stage(start=begun.steps, **{**usual, **given}))


def _check_online(plan: Plan, data: Dataset, simulator: Simulator) -> None:
    """Refuse what cannot learn online, and environments that do not fit."""
    why = algorithm_named(plan.algorithm).OFFLINE_ONLY
    if why:
        raise MildlyError(f"{plan.algorithm} cannot learn online: {why}.")
    sizes = data.observation_size, data.action_size
    check_fit(simulator, *sizes, f"the data set '{data.meta.name}'", plan.data.action_space)


class Finetuning(Session):
    """A run that goes on with what its first data do not hold."""

    RESUME = "mildly finetune"

    def __init__(
        self, run: Run, plan: Plan, config: Any, data: Dataset, asked: Asked, further: Sequence[Dataset | None]
    ) -> None:
        """`further` are the logs of each part, None where it acts itself."""
        self.stages, self.stage, self.further = plan.finetune, plan.finetune[-1], further
        self.log: ExperienceFile | None = None
        self.net: SafetyNet | None = None
        often = {"eval_every": self.stage.eval_every, "episodes": self.stage.episodes}
        blind = self.stage.stop_below is not None and not self.stage.eval_every
        require(not blind, "eval_every", "positive, since stop_below looks at evaluations", 0)
        super().__init__(run, dataclasses.replace(plan, **often), config, data, asked)  # type: ignore[arg-type]
        if self.stage.stop_below is not None and self.simulator is None:
            raise MildlyError(f"{run.path}: no environment to evaluate in, so that stop_below would never stop it.")

    def source(self, sampler: Sampler) -> Source:
        """The first data, what came in earlier parts, and what comes now."""
        if not isinstance(sampler, Transitions):
            raise MildlyError(
                f"{self.plan.algorithm} cannot be fine-tuned: it learns from {type(sampler).__name__}, not from single "
                "transitions."
            )
        number, size = len(self.stages), self.algorithm.config.batch_size
        old: dict[str, Sampler] = {"logged": sampler}
        for i, logs in enumerate(self.further[:-1], 1):
            old[f"part {i}"] = self._experience(i) if logs is None else self._logs(logs)
        now, shares = self.further[-1], None
        if self.stage.share is not None:
            shares = {"logged": 1 - self.stage.share, "new": self.stage.share}
        before = Mixture(old, None, size, keep_rows=True) if len(old) > 1 else sampler
        made = self._acting() if now is None else None
        fresh: Sampler = made.buffer if made else self._logs(now)  # type: ignore[arg-type]
        self.algorithm.begin_finetuning()
        mixed = Mixture({"logged": before, "new": fresh}, shares, size, keep_rows=True)
        if made is None:
            assert now is not None
            self._tell_shift(now)
            stream = self.algorithm.random_stream(self.plan.seed, f"part {number}")
            return SampledSource(mixed, stream, number)
        made.sampler, made.stage = mixed, number
        if self.stage.share is not None and self.stage.share_end is not None:
            made.share = Share(self.stage.share, self.stage.share_end, self.stage.steps)
        return made

    def _acting(self) -> EnvironmentSource:
        """The learner in its environments."""
        stage, number, seed = self.stage, len(self.stages), self.plan.seed
        assert self.asked.simulator is not None
        actor = self.algorithm.acting()
        if actor.start(1) is not None:
            raise MildlyError(f"{self.plan.algorithm} cannot be fine-tuned online: its policy remembers its episode.")
        self.log = ExperienceFile(self._file(number), self._record())
        self.algorithm.begin_acting()
        noise = stage.noise if isinstance(actor, DeterministicActor) else 0.0
        made = EnvironmentSource(
            self.algorithm,
            self.asked.simulator,
            seed=stream_seed(seed, f"part {number}"),
            episode_seed=lambda episode: stream_seed(seed, f"part {number} episode {episode}") % 2**31,
            acting=Acting(stage.environments, stage.updates_per_step, noise),
            space=self.plan.data.action_space,
            log=self.log,
        )
        made.seen = self._watch
        return made

    def _experience(self, part: int) -> Transitions:
        """What an earlier part has experienced; of its rows nothing else is known."""
        try:
            rows: dict[str, Any] = columns(self._file(part), self._record())
        except OSError as error:
            raise MildlyError(f"{self._file(part)}: cannot be read ({error.strerror}).") from error
        made = Dataset(**rows, meta=Meta(f"part {part}"))
        self._include(made)
        learner = self.algorithm
        return Transitions(made, learner.config.batch_size, learner.device, learner.preprocessing, first_row=None)

    def _logs(self, logs: Dataset) -> Transitions:
        self._include(logs)
        return self.algorithm.more_batches(logs)

    def _file(self, part: int) -> Path:
        return self.run.path / f"online-{part}.bin"

    def _record(self) -> np.dtype[Any]:
        return record(self.data.observation_size, self.data.action_size)

    def _include(self, data: Dataset) -> None:
        """The policy has seen these observations, too, and values may be as high as these rewards allow."""
        self.observation_space = self.observation_space.including(np.asarray(data.observations))
        self._watch(np.asarray(data.rewards))

    def _watch(self, rewards: Array) -> None:
        if self.watch is not None:
            scale = self.algorithm.preprocessing.reward_scale
            self.watch.include(float(rewards.min()) * scale, float(rewards.max()) * scale)

    def _tell_shift(self, new: Dataset) -> None:
        """What is different in the further logs, by the data doctor."""
        self.notes.append(f"{len(new):,} new transitions beside {len(self.data):,}; normalization is that of the old")
        for found in shift(self.data, new):
            word = "warning: " if found.severity == "warning" else ""
            self.notes.append(f"{word}{found.what} {found.evidence} {found.advice}".rstrip())

    def begun(self) -> None:
        """The evaluation that fine-tuning is compared with, if there is none of this very step."""
        if isinstance(self.trainer.source, EnvironmentSource):
            self.say(f"online: it acts in {self.trainer.source.where} for {self.stage.steps:,} steps")
            for note in self.trainer.source.notes:
                self.say(note)
        if self.simulator is None or not self.stage.eval_every:
            return
        self.net = SafetyNet(self.run, self.stages, self.simulator.name)
        if self.net.first is None and self.trainer.step == self.stage.start:
            result = self.evaluate(self.trainer.step)
            self.run.append("evaluations.jsonl", {"step": self.trainer.step, **result.to_json()})
            self.net.judge(self.trainer.step, result, self.policy())
        elif not self.net.folder.exists():
            self.policy().save(self.net.folder)

    def call_back(self, stop: list[int], step: int, result: Evaluation) -> None:
        """The safety net first, then the callbacks."""
        if self.net is not None:
            said = self.net.judge(step, result, self.policy())
            if said:
                self.say(said)
            if self.net.fallen:
                stop.append(0)
        super().call_back(stop, step, result)

    def _last_words(self) -> list[str]:
        return [*super()._last_words(), *(self.net.summary() if self.net is not None else [])]

    def ended(self, stop: Sequence[int]) -> None:
        """Put the best policy back, where it is time for that."""
        if self.net is not None and self.net.fallen:
            raise FellBelow(self.net.roll_back())
        super().ended(stop)

    def policy(self) -> Policy:
        """The policy so far, which knows the range of the new observations, too."""
        policy, source = super().policy(), self.trainer.source
        if not isinstance(source, EnvironmentSource) or not len(source.buffer):
            return policy
        seen = source.buffer.columns["observations"][: len(source.buffer)].cpu().numpy()
        return dataclasses.replace(policy, observation_space=self.observation_space.including(seen))

    def close(self) -> None:
        """Let files and environments go."""
        if self.log is not None:
            self.log.close()
        if isinstance(self.trainer.source, EnvironmentSource):
            self.trainer.source.close()
