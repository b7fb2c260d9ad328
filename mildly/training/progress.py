"""Progress: a live bar on a terminal, plain lines elsewhere (a log file, a pipe)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from mildly.algorithms.base import Phase
from mildly.evaluation.rollout import Evaluation
from mildly.run import Plan
from mildly.terminal import SafeConsole
from mildly.words import counted

_PLAIN_SECONDS, _BAR_SECONDS = 15.0, 0.25
_WIDE = 140  # columns of a terminal that also has room for losses
_SHOWN = ("loss_dynamics", "held_out_error", "loss_behavior", "loss_bc", "loss_critic", "loss_actor", "q_data", "q_ood")


class TrainingProgress:
    """Shows step, speed, time left, last score and losses."""

    def __init__(self, plan: Plan, folder: Path, start: int, env: str | None, *, quiet: bool = False) -> None:
        self.console = SafeConsole(stderr=True, quiet=quiet)
        self.run = f"{plan.algorithm} on {plan.data.name}"
        self.title, self.steps = self.run, plan.steps
        self.score = self.at_most = ""
        self.left = "left"
        self.details = ""
        self.first, self.began = start, time.monotonic()
        self.shown, self.shown_at = self.began, start
        self.step = start
        self.bar: Progress | None = None
        self.wide = self.console.width >= _WIDE
        if self.console.is_terminal and not quiet:
            self.bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=24 if self.wide else 8),
                MofNCompleteColumn(),
                TextColumn("{task.fields[speed]}"),
                TextColumn("{task.fields[details]}"),
                console=self.console,
            )
            self.task = self.bar.add_task(self.title, total=plan.steps, completed=start, speed="", details="")

        lam = f", lam {plan.config['lam']}" if "lam" in plan.config else ""
        evaluation = f"evaluated in {env}" if env and plan.eval_every else "not evaluated"
        if plan.env is None and env is None:
            evaluation = f"'{plan.data.name}' names no environment to evaluate in"
        self.say(
            f"{folder}: {plan.algorithm} (preset {plan.preset}{lam}) on {plan.data.name}, {evaluation}, "
            f"seed {plan.seed}, {plan.device}, {counted(plan.threads, 'thread')}"
            + (f", from step {start:,}" if start else "")
        )

    def __enter__(self) -> TrainingProgress:
        if self.bar:
            self.bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and self.step != self.shown_at:
            self._show(self.step)
        if self.bar:
            self.bar.stop()

    def begin(self, phase: Phase, step: int) -> None:
        """A phase, or with an empty name the main steps, goes on from a step."""
        if self.step != self.shown_at:
            self._show(self.step)
        short = self.run if self.wide else self.run.split()[0]
        name, steps = phase.name, phase.steps
        self.title, self.steps = f"{self.run if not self.bar else short}{f', {name}' if name else ''}", steps
        self.at_most = "at most " if name and phase.finished is not None else ""
        self.left = "left of this phase" if name else "left"
        self.first, self.began = step, time.monotonic()
        self.shown, self.shown_at, self.step, self.details = self.began, step, step, ""
        if self.bar:
            self.bar.update(self.task, description=self.title, total=steps, completed=step, speed="", details="")
        elif name and step < steps:
            self.say(f"{self.title}: {self.at_most}{steps:,} steps first" + (f", from step {step:,}" if step else ""))

    def tick(self, step: int) -> None:
        """A step has been made; shown if the last look is long enough ago."""
        self.step = step
        if time.monotonic() - self.shown > (_BAR_SECONDS if self.bar else _PLAIN_SECONDS):
            self._show(step)

    def metrics(self, values: Mapping[str, float]) -> None:
        """New losses, shown with the next look."""
        self.details = "  ".join(f"{name} {values[name]:.4g}" for name in _SHOWN if name in values)

    def evaluated(self, step: int, result: Evaluation) -> None:
        """A new evaluation."""
        self.score = f"return {result.mean_return:.1f}" if result.score is None else f"score {result.score:.1f}"
        self._show(step)

    def say(self, text: str) -> None:
        """A line that stays."""
        self.console.print(text, soft_wrap=True)

    def _show(self, step: int) -> None:
        self.shown, self.shown_at = time.monotonic(), step
        speed = (step - self.first) / max(self.shown - self.began, 1e-9)
        rest = f"{self.at_most}{clock((self.steps - step) / speed)} {self.left}" if speed else ""
        pace = f"{speed:.1f} steps/s  {rest}".rstrip()
        losses = "" if self.bar and not self.wide else self.details
        details = "  ".join(part for part in (self.score, losses) if part)
        if self.bar:
            self.bar.update(self.task, completed=step, speed=pace, details=details)
        else:
            self.say(f"{self.title}  {step:,}/{self.steps:,}  {pace}  {details}")


def clock(seconds: float) -> str:
    """Hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}"
