"""Pieces of HTML. All text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


@dataclass(frozen=True)
class TableColumn:
    """A table's column."""

    title: str
    number: bool = False
    """Aligned to the right, and sorted by size."""


@dataclass(frozen=True)
class TableCell:
    """A table's cell."""

    text: str
    value: float | None = None
    """What to sort by, if not the text."""
    strong: bool = False


Row: TypeAlias = Sequence[TableCell | str]


def escaped(text: str) -> Html:
    """Text as markup; markup as it is."""
    return text if isinstance(text, Html) else Html(escape(text, quote=True))


def join(parts: Iterable[str], between: str = "") -> Html:
    """Pieces, escaped and put together."""
    return Html(between.join(escaped(part) for part in parts))


def tag(name: str, *content: str, **attributes: str) -> Html:
    """An element; `class_` stands for `class` and `data_x` for `data-x`."""
    rendered = "".join(f' {key.rstrip("_").replace("_", "-")}="{escaped(value)}"' for key, value in attributes.items())
    return Html(f"<{name}{rendered}>{join(content)}</{name}>")


def html_table(name: str, columns: Sequence[TableColumn], rows: Iterable[Row], title: str) -> Html:
    """A table that can be sorted by its headers and saved as CSV, in a box that scrolls sideways by itself."""
    heads = join(
        tag("th", column.title, scope="col", **({"class_": "number"} if column.number else {})) for column in columns
    )
    body = join(tag("tr", *(_cell(c, cell) for c, cell in zip(columns, row, strict=True))) for row in rows)
    made = tag(
        "table",
        tag("caption", title, class_="unseen"),
        tag("thead", tag("tr", heads)),
        tag("tbody", body),
        id=name,
        class_="sortable",
    )
    save = tag("button", "CSV", type="button", data_save=name, aria_label=f"Save the table '{title}' as CSV")
    return join(
        [
            tag("div", made, class_="scroll", tabindex="0", role="region", aria_label=title),
            tag("p", save, class_="save table-save"),
        ]
    )


def _cell(column: TableColumn, cell: TableCell | str) -> Html:
    if isinstance(cell, str):
        cell = TableCell(cell)
    attributes = {"class_": "number"} if column.number else {}
    if column.number:
        attributes["data_value"] = "" if cell.value is None else repr(float(cell.value))
    return tag("td", tag("strong", cell.text) if cell.strong else cell.text, **attributes)


def chart(name: str, caption: str = "") -> Html:
    """The place of a chart, drawn by the page's script when it comes into view."""
    return tag("figure", *([tag("figcaption", caption)] if caption else []), data_chart=name)


def section(name: str, title: str, *content: str) -> Html:
    """A part of the page with its heading."""
    return tag("section", tag("h2", title, id=f"{name}-title"), *content, id=name, aria_labelledby=f"{name}-title")


def paragraph(text: str, class_: str = "") -> Html:
    """A paragraph."""
    return tag("p", text, **({"class_": class_} if class_ else {}))
