"""Ctrl-C, SIGTERM and what clusters send before the end, as requests that the trainer answers at the end of a step."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_NAMES = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")


def stop_signals() -> tuple[int, ...]:
    """The signals that ask a program to stop. SIGHUP is none under `nohup`, which ignores it for us."""
    known = [getattr(signal, name) for name in _NAMES if hasattr(signal, name)]
    always = (signal.SIGINT, signal.SIGTERM)  # shells ignore Ctrl-C for what they start in the background
    return tuple(number for number in known if number in always or signal.getsignal(number) != signal.SIG_IGN)


@contextmanager
def stop_requests() -> Iterator[list[int]]:
    """Collects signals that ask the program to stop, instead of dying of them; a second Ctrl-C stops it at once.

    Outside the main thread signals are somebody else's, and the list stays empty.
    """
    received: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        if received and number == signal.SIGINT:
            raise KeyboardInterrupt
        received.append(number)

    try:
        before = {number: signal.signal(number, remember) for number in stop_signals()}
    except ValueError:
        yield received
        return
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
