"""The report as one HTML page that needs nothing else: style, script and data are in it."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Iterable
from datetime import datetime
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from string import Template

from mildly.files import atomic_write, writable
from mildly.report.charts import DARK, LIGHT, VALUE_DARK, VALUE_LIGHT, chart_specs
from mildly.report.comparison import Comparison, compare
from mildly.report.markup import Html, escaped, join, tag
from mildly.report.reading import read_runs
from mildly.report.sections import page_sections
from mildly.report.summary import Report, title


def make_report(paths: Iterable[str | os.PathLike[str]]) -> Report:
    """All runs at or below the given folders, ready to be written as a page, a table or figures."""
    return Report(*read_runs(paths))


def write_page(report: Report, path: str | os.PathLike[str], comparison: Comparison | str | None = None) -> Path:
    """Write the page. Links to runs are relative, so that page and runs can be moved together.

    Args:
        report: of `make_report`.
        path: the file to write.
        comparison: of `compare`, where it has been made already.
    """
    path = writable(path)
    text = render(report, path.absolute().parent, compare(report) if comparison is None else comparison)
    with atomic_write(path) as unfinished:
        unfinished.write_text(text, encoding="utf-8")
    return path


def render(report: Report, folder: Path, comparison: Comparison | str) -> str:
    """The page's text; `folder` is where it will stand."""
    specs = chart_specs(report, comparison)
    parts = page_sections(report, comparison, specs, folder)
    script = _script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    made = f"Made by mildly {version('mildly')} on {datetime.now():%d %B %Y, %H:%M}."
    return Template(_asset("page.html")).substitute(
        title=escaped(title(report)),
        made=escaped(made),
        palette=_palette(),
        style=_asset("page.css"),
        contents=join(tag("a", name, href=f"#{anchor}") for anchor, name, _ in parts),
        sections=join((content for _, _, content in parts), "\n"),
        data=_embedded(specs),
        script=script,
        script_hash=f"'sha256-{digest}'",
    )


def _embedded(specs: object) -> Html:
    """JSON within a script element, which no text in it can end."""
    text = json.dumps(specs, separators=(",", ":"), allow_nan=False)
    return Html(text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e"))


def _script() -> str:
    """The whole script in a function of its own, so that it leaves no names behind but one for those who look."""
    return f"(() => {{\n{_asset('charts.js')}\n{_asset('page.js')}}})();"


def _palette() -> str:
    """The colors as CSS variables, for light, dark and asked for."""
    light, dark = (
        "".join(f"--s{i}:{color};" for i, color in enumerate(series))
        + "".join(f"--v{i}:{color};" for i, color in enumerate(values))
        for series, values in ((LIGHT, VALUE_LIGHT), (DARK, VALUE_DARK))
    )
    return (
        f":root{{{light}}}\n@media screen and (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{dark}}}}}\n"
        f"@media screen{{:root[data-theme=dark]{{{dark}}}}}"
    )


def _asset(name: str) -> str:
    return (files("mildly.report") / name).read_text(encoding="utf-8")
