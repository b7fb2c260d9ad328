"""A console that shows other people's text as text: what a terminal would obey is taken out of it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from mildly.errors import printable


class SafeConsole(Console):
    """A rich console in which only rich itself sends control sequences; nothing in a text is taken for markup."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"markup": False, "emoji": False, "highlight": False, **options})

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Every text on its way to the screen: printed lines, cells of tables, and what bars and live tables show."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)
