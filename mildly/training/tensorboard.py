"""TensorBoard event files beside the plain metrics, for those who look at runs there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from mildly.errors import MildlyError
from mildly.run import Plan, Run


class Events(Protocol):
    """Takes scalars."""

    def write(self, step: int, values: Mapping[str, float | None], group: str) -> None:
        """The values of a step, under `group/`."""
        ...

    def close(self) -> None:
        """Put everything on disk."""
        ...


class _Nothing:
    def write(self, step: int, values: Mapping[str, float | None], group: str) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


class _Files:
    def __init__(self, folder: str, step: int) -> None:
        self.writer = _summary_writer()(folder, purge_step=step + 1)

    def write(self, step: int, values: Mapping[str, float | None], group: str) -> None:
        for name, value in values.items():
            if value is not None:
                self.writer.add_scalar(f"{group}/{name}", value, step)

    def close(self) -> None:
        self.writer.close()


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


def events(plan: Plan, run: Run, step: int) -> Events:
    """Event files in the run's folder from a step on, hiding what an interrupted run wrote after it; or nothing."""
    return _Files(str(run.path / "tensorboard"), step) if plan.tensorboard else _Nothing()
