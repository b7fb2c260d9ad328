"""`mildly data check`: what is wrong with a data set, and what to do about it."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from rich.text import Text

from mildly.cli.marks import Arg, Mark
from mildly.cli.output import console, parse, with_reading
from mildly.data.check import Finding, check
from mildly.data.findings import lacks_reward
from mildly.data.options import ImportOptions
from mildly.data.registry import load_dataset
from mildly.terminal import SafeConsole
from mildly.words import counted

_ABOUT = """Look for what would spoil a training, or surprise you later.

Errors are what training would go wrong on, warnings what its result would suffer from, notes are good to know. The
exit code is 1 if there is an error, 0 if there is none, 2 if the data cannot be read."""

_MARKS = {"error": ("error", "bold red"), "warning": ("warning", "bold yellow"), "info": ("note", "bold cyan")}
_INDENT = 9
_LONG = 1_000_000  # transitions; shorter sets are checked before anybody wonders
_WIDTH = 110
_CONVERT = re.compile(r"mildly data convert SRC DST([^`]*)")
_CITES = re.compile(r"\b(?:line|row|column)s? \d")


@dataclass
class CheckOptions:
    """Options of `mildly data check`."""

    dataset: Annotated[str, Mark.POSITIONAL, Arg(metavar="SET")]
    """A data set's name, file or folder."""
    data_dir: str | None = None
    """Folder in which data set names are looked for first."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print the findings as a JSON list, for programs."""
    reading: Annotated[ImportOptions, Mark.NO_PREFIX] = field(default_factory=ImportOptions)


def main(args: Sequence[str]) -> int:
    """Check and print."""
    options = parse(CheckOptions, args, prog="mildly data check", description=_ABOUT)
    errors = SafeConsole(stderr=True)
    with errors.status(Text(f"reading {options.dataset}")) as status:
        data = load_dataset(options.dataset, options.reading, data_dir=options.data_dir, verify=False)
        status.update(f"checking {len(data):,} transitions")
        if len(data) > _LONG and not errors.is_terminal:
            errors.print(f"checking {len(data):,} transitions")
        findings = check(data)
    if options.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        found = [dataclasses.replace(finding, advice=_own(finding.advice, options)) for finding in findings]
        _print(f"{data.meta.name}: {counted(len(data), 'transition')}", found)
    failed = any(finding.severity == "error" for finding in findings)
    if not (failed or options.json):
        algorithm = "bc" if lacks_reward(data.meta.notes) else "mcq"
        train = f"mildly train {algorithm} --dataset {shlex.quote(options.dataset)}"
        console().print(f"next: {with_reading(train, options.reading, options.data_dir)}")
    return int(failed)


def _own(advice: str, options: CheckOptions) -> str:
    """Advice that has the user's own log and options in its command, but for those that it gives itself."""

    def command(found: re.Match[str]) -> str:
        given = {name.replace("-", "_") for name in re.findall(r"--([a-z-]+)", found[1])}
        given |= {"cost"} if "reward" in given else set()
        others: dict[str, Any] = {
            each.name: each.default for each in dataclasses.fields(ImportOptions) if each.name in given
        }
        words = f"mildly data convert {shlex.quote(options.dataset)} DST"
        return with_reading(words, dataclasses.replace(options.reading, **others), options.data_dir) + found[1]

    return _CONVERT.sub(command, advice)


def _print(title: str, findings: Sequence[Finding]) -> None:
    out = console()
    out.print(title, style="bold")
    for finding in findings:
        mark, style = _MARKS[finding.severity]
        out.print()
        out.print(mark.ljust(_INDENT), style=style, end="")
        out.print(_folded(finding.what, out), end=" ")
        out.print(f"({finding.code})", style="dim")
        if finding.evidence:
            out.print(" " * _INDENT + _folded(finding.evidence, out), style="dim")
        if finding.advice:
            out.print(" " * _INDENT + _folded(f"-> {finding.advice}", out))
    out.print()
    if any(_CITES.search(f"{finding.what} {finding.evidence}") for finding in findings):
        out.print("Lines of a file are counted from 1, rows and columns from 0.", style="dim")
    numbers = {severity: sum(finding.severity == severity for finding in findings) for severity in _MARKS}
    words = zip(("error", "warning", "note"), numbers.values(), strict=True)
    style = next((_MARKS[severity][1] for severity in ("error", "warning") if numbers[severity]), "bold green")
    out.print(", ".join(f"{number or 'no'} {word}{'' if number == 1 else 's'}" for word, number in words), style=style)


def _folded(text: str, out: SafeConsole) -> str:
    """Text in lines that fit beside the indent of a terminal; elsewhere one line, so that it can be searched."""
    if not out.is_terminal:
        return text
    width = max(min(out.width, _WIDTH) - _INDENT, 30)
    return textwrap.fill(text, width, break_long_words=False).replace("\n", "\n" + " " * _INDENT)
