"""TensorBoard event files beside the plain metrics, for those who look at runs there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from mildly.errors import MildlyError
from mildly.run import Plan, Run


class Events(Protocol):
    """Takes scalars."""

    def write(self, step: int, values: Mapping[str, float | None], group: str, phase: str = "") -> None:
        """The values of a main step, or of a phase's, under `group/`."""
        ...

    def close(self) -> None:
        """Put everything on disk."""
        ...


class _Nothing:
    def write(self, step: int, values: Mapping[str, float | None], group: str, phase: str = "") -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Files:
    """Every phase has a folder of its own: it counts its own steps, and events are hidden by their step alone."""

    def __init__(self, folder: Path, phase: str, step: int) -> None:
        self.folder, self.phase, self.step = folder, phase, step
        self.writers: dict[str, Any] = {}

    def write(self, step: int, values: Mapping[str, float | None], group: str, phase: str = "") -> None:
        if phase not in self.writers:
            known = self.step if phase == self.phase else 0
            folder = self.folder / phase.replace(" ", "-")
            self.writers[phase] = _summary_writer()(str(folder), purge_step=known + 1)
        for name, value in values.items():
            if value is not None:
                self.writers[phase].add_scalar(f"{group}/{name}", value, step)

    def close(self) -> None:
        for writer in self.writers.values():
            writer.close()


def _summary_writer() -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MildlyError("event files need the tensorboard package: pip install 'mildly[tensorboard]'.") from error
    return SummaryWriter


def check_events(plan: Plan) -> None:
    """Raise where event files are asked for but cannot be written, before anything is."""
    if plan.tensorboard:
        _summary_writer()


def events(plan: Plan, run: Run, phase: str, step: int) -> Events:
    """Event files in the run's folder from a step on, hiding what an interrupted run wrote after it; or nothing."""
    return _Files(run.path / "tensorboard", phase, step) if plan.tensorboard else _Nothing()
