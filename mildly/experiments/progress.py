"""Progress of a sweep, read from the run folders: a live table on a terminal, a line every 30 seconds elsewhere."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from mildly.experiments.process import WorkerTask, last_line
from mildly.run import is_number
from mildly.terminal import SafeConsole

_LIVE_SECONDS, _PLAIN_SECONDS = 1.0, 30.0
_ROWS = 24  # running jobs shown


@dataclass
class Counts:
    """Numbers of jobs by state."""

    all: int
    done: int = 0
    failed: int = 0


@dataclass
class SweepProgress:
    """Shows the running jobs: step, speed, last score, time left."""

    counts: Counts
    console: SafeConsole = field(default_factory=lambda: SafeConsole(stderr=True))

    def __post_init__(self) -> None:
        self.shown = time.monotonic()
        self.first: dict[str, tuple[float, int]] = {}
        """By job: the time and step of its first row about main steps, from which its speed is counted."""
        self.live = Live(console=self.console, auto_refresh=False) if self.console.is_terminal else None

    def __enter__(self) -> SweepProgress:
        if self.live:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live:
            self.live.update("", refresh=True)
            self.live.stop()

    def say(self, text: str) -> None:
        """Print a line above the table."""
        self.console.print(text, soft_wrap=True)

    def refresh(self, running: Iterable[WorkerTask]) -> None:
        """Show the running jobs, unless they were shown just before."""
        if time.monotonic() - self.shown < (_LIVE_SECONDS if self.live else _PLAIN_SECONDS):
            return
        self.shown = time.monotonic()
        tasks = list(running)
        rows = [self._row(task) for task in tasks[:_ROWS]]
        if self.live:
            self.live.update(Group(Text(self._summary(len(tasks))), _table(rows)), refresh=True)
        else:
            text = "; ".join(f"{name} {', '.join(part for part in rest if part)}" for name, *rest in rows)
            self.say(f"{self._summary(len(tasks))}: {text}")

    def _summary(self, running: int) -> str:
        counts = self.counts
        waiting = counts.all - counts.done - counts.failed - running
        failed = f", {counts.failed} failed" if counts.failed else ""
        return f"{counts.done} of {counts.all} jobs done{failed}, {running} running, {waiting} waiting"

    def _row(self, task: WorkerTask) -> tuple[str, str, str, str, str]:
        """Name, step, speed, score, time left."""
        folder = Path(task.folder)
        line = last_line(folder / "metrics.jsonl")
        phase, step = str(line.get("phase", "")), _main_step(line)
        if phase:
            self.first[task.name] = self.shown, 0
        began, start = self.first.setdefault(task.name, (self.shown, step))
        speed = max(0, step - start) / max(self.shown - began, 1e-9)
        evaluation = last_line(folder / "evaluations.jsonl")
        score, mean_return = _number(evaluation, "score"), _number(evaluation, "mean_return")
        result = "" if mean_return is None else f"return {mean_return:.1f}" if score is None else f"score {score:.1f}"
        left = f"{timedelta(seconds=round((task.all_steps - step) / speed))} left" if speed else ""
        steps = f"{step:,}/{task.all_steps:,}" + (f" ({phase})" if phase else "")
        return task.name, steps, f"{speed:.1f} steps/s" if speed else "", result, left


def _table(rows: Sequence[tuple[str, ...]]) -> Table:
    table = Table(box=None, pad_edge=False, show_header=False)
    for i in range(5):
        table.add_column(justify="right" if i else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _main_step(line: Mapping[str, Any]) -> int:
    """The step of a line of metrics; 0 in the phases before the main steps."""
    return 0 if "phase" in line else int(_number(line, "step") or 0)


def _number(line: Mapping[str, Any], name: str) -> float | None:
    """A finite number in a line; None for anything else that a damaged file may hold."""
    return float(line[name]) if is_number(line.get(name)) else None
