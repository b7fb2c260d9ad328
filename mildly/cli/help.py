"""The page that `--help` shows: what a command does, how it is called, and its flags in groups that can be scanned."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import MISSING, dataclass
from typing import Any

from rich.text import Text

from mildly.cli.flags import Flag
from mildly.terminal import SafeConsole

_WIDEST, _LEFT = 100, 30
_STYLES = {r"^usage:": "bold", r"(?<![\w-])--?[a-z]([\w.-]*\w)?": "cyan", r"\((default [^)]*|required)\)$": "dim"}


@dataclass(frozen=True)
class Section:
    """A title, and rows of two columns below it: a flag or a name, and what it means."""

    title: str
    rows: Sequence[tuple[str, str]]
    about: str = ""

    def lines(self, column: int, width: int) -> list[Text]:
        """The lines of the section, the right column of its rows beginning at a column."""
        body = [f"  {line}".rstrip() for line in _paragraphs(self.about, width - 2)]
        body += [""] if body and self.rows else []
        for left, right in self.rows:
            body += _row(left, right, column, width)
        return [*(Text(line, "bold") for line in textwrap.wrap(self.title, width)), *map(_styled, body)]


@dataclass(frozen=True)
class Page:
    """What a command does, how it is called, and its sections."""

    about: str
    """The first paragraph comes first, the others after the usage. Indented lines stay as they are."""
    usage: str
    """A line for each way to call it."""
    sections: Sequence[Section]

    def lines(self, width: int) -> list[Text]:
        """The page in lines of at most that width."""
        head, _, rest = self.about.strip().partition("\n\n")
        opening = [*_paragraphs(head, width), ""]
        for i, way in enumerate(self.usage.splitlines()):
            opening += _hanging(" " * 7 if i else "usage: ", way, 7, width)
        opening += ["", *_paragraphs(rest, width)] if rest else []
        column = self._column(width)
        below = (line for section in self.sections for line in (Text(), *section.lines(column, width)))
        return [*map(_styled, opening), *below]

    def _column(self, width: int) -> int:
        """Where the right column begins. What is too long for the left one has a line of its own."""
        widest = min(_LEFT, width * 3 // 8 - 4)
        lengths = (len(left) for section in self.sections for left, _ in section.rows)
        return 4 + max((length for length in lengths if length <= widest), default=0)

    def show(self) -> None:
        """Print the page, as wide as the terminal up to a limit; in colors on a terminal only."""
        out = SafeConsole()
        out.print(Text("\n").join(self.lines(min(out.width, _WIDEST))), soft_wrap=True)


def asks_for_help(args: Sequence[str]) -> bool:
    """Whether `--help` is among the arguments."""
    return "--help" in args or "-h" in args


def flag_rows(flags: Iterable[Flag]) -> list[tuple[str, str]]:
    """A row for each flag: how it is written; its text and its default."""
    return [(_written(flag), f"{flag.text} {_default(flag)}".strip()) for flag in flags]


def sections_of(flags: Sequence[Flag]) -> list[Section]:
    """The arguments without a flag, the options, and the groups in their order."""
    loose = [flag for flag in flags if flag.positional]
    plain = [flag for flag in flags if not flag.positional and flag.group is None]
    found = [Section(title, flag_rows(some)) for title, some in (("Arguments", loose), ("Options", plain)) if some]
    return found + group_sections(flags)


def group_sections(flags: Sequence[Flag]) -> list[Section]:
    """A section for each group, with its docstring's first sentence as title and the others as text."""
    groups = dict.fromkeys(flag.group for flag in flags if flag.group is not None)
    made = []
    for group in groups:
        title, *about = re.split(r"\n|(?<=\.) (?=[A-Z])", inspect.getdoc(group) or group.__name__, maxsplit=1)
        rows = flag_rows(flag for flag in flags if flag.group is group)
        made.append(Section(title.removesuffix("."), rows, "".join(about).strip()))
    return made


def usage_of(prog: str, flags: Sequence[Flag]) -> str:
    """How a command is called: what must be given, and that there is more."""
    needed = [flag.metavar if flag.positional else _written(flag) for flag in flags if flag.default is MISSING]
    return " ".join([prog, *needed, *(["[options]"] if len(needed) < len(flags) else [])])


def _written(flag: Flag) -> str:
    """`--steps INT`, `--check / --no-check`, `-o, --output FILE`."""
    if flag.positional:
        return flag.metavar
    if flag.negative:
        return f"{flag.option} / {flag.negative}"
    names = ", ".join(flag.spellings)
    return f"{names} {flag.metavar}".strip()


def _default(flag: Flag) -> str:
    """`(default 0.7)`; nothing where the text alone can tell, which is never broken at the end of a line."""
    value = flag.default
    if value is MISSING:
        return "" if flag.positional else "(required)"
    if value is None or value in ("", ()) or (flag.switch and not flag.negative):
        return ""
    return f"(default {_shown(value)})".replace(" ", "\xa0")


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, tuple):
        return " ".join(map(_shown, value))
    if isinstance(value, float) and 0 < abs(value) < 1e-3:
        digits, exponent = f"{value:e}".split("e")
        return f"{float(digits):g}e{int(exponent)}"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _row(left: str, right: str, column: int, width: int) -> Iterator[str]:
    start = f"  {left}"
    if len(start) > column - 2:
        yield start
        start = ""
    yield from _hanging(start.ljust(column), right, column, width)


def _hanging(start: str, text: str, column: int, width: int) -> list[str]:
    """A paragraph whose first line begins with something else."""
    wrapped = textwrap.wrap(text, max(width - column, 20), break_on_hyphens=False) or [""]
    lines = [(start if i == 0 else " " * column) + line for i, line in enumerate(wrapped)]
    return [line.replace("\xa0", " ").rstrip() for line in lines]


def _paragraphs(text: str, width: int) -> list[str]:
    """Lines that follow each other become one paragraph; indented ones and empty ones stay as they are."""
    lines: list[str] = []
    running: list[str] = []
    for line in [*text.splitlines(), ""]:
        if line.strip() and not line.startswith(" "):
            running.append(line)
        else:
            lines += [*textwrap.wrap(" ".join(running), width, break_on_hyphens=False), line.rstrip()]
            running = []
    return lines[:-1]


def _styled(line: str) -> Text:
    text = Text(line)
    for pattern, style in _STYLES.items():
        text.highlight_regex(pattern, style)
    return text
