"""A console that shows other people's text as text: what a terminal would obey is taken out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

from mildly.errors import printable


class SafeConsole(Console):
    """A rich console in which only rich itself sends control sequences."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.push_render_hook(_Cleaning())


class _Cleaning(RenderHook):
    """Wraps all that is printed."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Clean(renderable) for renderable in renderables]


class _Clean:
    """A renderable whose text is harmless; its styles stay."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self.inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
