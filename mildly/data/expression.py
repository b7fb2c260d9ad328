"""Rewards that are computed: `-power - 10 * abs(temp - 21)`, arithmetic over the columns of a table.

The text is parsed into Python's own syntax tree, and only what is listed below is ever evaluated, by numpy: numbers,
columns, `+ - * / **`, comparisons (1 where they hold, else 0) and the functions in `FUNCTIONS`. Nothing is compiled,
and there are no attributes, no indices and no other names. A column whose name is no word stands in backticks.
"""

from __future__ import annotations

import ast
import math
import re
import unicodedata
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import reduce

import numpy as np

from mildly.data.dataset import Array
from mildly.errors import MildlyError
from mildly.words import counted

MOST_LETTERS, MOST_PARTS, MOST_DEPTH = 1000, 200, 40

_OPERATORS: dict[type[ast.AST], Callable[..., Array]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.Pow: np.power,
    ast.UAdd: np.positive,
    ast.USub: np.negative,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}


def _where(condition: Array, yes: Array, no: Array) -> Array:
    return np.where(np.not_equal(condition, 0), yes, no)


FUNCTIONS: dict[str, tuple[int, int | None, Callable[..., Array]]] = {
    "abs": (1, 1, np.abs),
    "sqrt": (1, 1, np.sqrt),
    "exp": (1, 1, np.exp),
    "log": (1, 1, np.log),
    "min": (2, None, lambda *values: reduce(np.minimum, values)),
    "max": (2, None, lambda *values: reduce(np.maximum, values)),
    "clip": (3, 3, lambda value, low, high: np.minimum(np.maximum(value, low), high)),
    "where": (3, 3, _where),
}
"""How few and how many arguments each takes, and what it does."""
_QUOTED = re.compile(r"`([^`]*)`")


class UnknownColumn(MildlyError):
    """An expression names a column that is not there."""


@dataclass(frozen=True)
class Expression:
    """A number for each row, from the columns that it names."""

    text: str
    columns: tuple[str, ...]
    """Those that it needs, in order."""
    tree: ast.expr
    known: Mapping[str, str]
    """Names in the tree, and the columns that they mean."""
    is_column: bool = False
    """Whether it is a column that was named as such, with this sign or the other, and no formula."""

    def __str__(self) -> str:
        return self.text

    @classmethod
    def of_column(cls, name: str, *, negative: bool = False) -> Expression:
        """A column as it is, or with the other sign."""
        tree: ast.expr = ast.Name("column", ast.Load())
        tree = ast.UnaryOp(ast.USub(), tree) if negative else tree
        return cls(f"-{name}" if negative else name, (name,), tree, {"column": name}, is_column=True)

    @classmethod
    def constant(cls, value: float, text: str) -> Expression:
        """The same number in every row."""
        return cls(text, (), ast.Constant(value), {})

    def values(self, columns: Mapping[str, Array], rows: int) -> Array:
        """The numbers of some rows, float64. What cannot be computed is NaN or infinite."""
        with np.errstate(all="ignore"):
            value = _value(self.tree, {name: columns[column] for name, column in self.known.items()})
        return np.broadcast_to(value, (rows,)).astype(np.float64)


def parse(text: str, columns: Sequence[str], where: str) -> Expression:
    """The expression that a text means.

    Args:
        text: what the user wrote.
        columns: all names that a table has.
        where: what messages begin with, such as `log.csv: --reward`.

    Raises:
        UnknownColumn: a name in it is no column; the message has the nearest one.
        MildlyError: it is no expression, or uses what is not allowed.
    """
    where = f"{where} '{text[:100]}'"
    if len(text) > MOST_LETTERS:
        raise MildlyError(f"{where}...: has {len(text):,} letters, and may have {MOST_LETTERS:,}.")
    quoted: dict[str, str] = {}

    def stand_in(found: re.Match[str]) -> str:
        name = f"quoted_{len(quoted)}"
        while name in text:
            name += "_"
        quoted[name] = found[1]
        return f" {name} "

    plain = _QUOTED.sub(stand_in, text).strip()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(plain, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise MildlyError(
            f"{where}: is no formula that can be read. An example is '-power - 10 * abs(temp - 21)'; a column whose "
            "name has blanks or signs in it stands in `backticks`."
        ) from error
    found = {_plain(name): name for name in reversed(columns)}
    known: dict[str, str] = {}
    for part in _parts(tree, where):
        if isinstance(part, ast.Name):
            name = quoted.get(part.id, part.id)
            if _plain(name) not in found:
                raise _unknown(name, columns, where)
            known[part.id] = found[_plain(name)]
    return Expression(text.strip(), tuple(dict.fromkeys(known.values())), tree, known)


def _plain(name: str) -> str:
    """As the parser of Python normalizes the letters of a name."""
    return unicodedata.normalize("NFKC", name.strip())


def _unknown(name: str, columns: Sequence[str], where: str) -> UnknownColumn:
    near = get_close_matches(name, [*columns, *FUNCTIONS], n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    shown = ", ".join(columns[:40]) + (", ..." if len(columns) > 40 else "")
    return UnknownColumn(f"{where}: there is no column '{name}'.{hint} The columns are {shown}.")


def _parts(tree: ast.expr, where: str) -> Iterator[ast.expr]:
    """All parts of an expression, once each is known to be allowed; names of functions are not among them."""
    waiting = [(tree, 1)]
    count = 0
    while waiting:
        part, depth = waiting.pop()
        count += 1
        if count > MOST_PARTS or depth > MOST_DEPTH:
            raise MildlyError(f"{where}: is too long or too deep; {MOST_PARTS} parts are allowed, {MOST_DEPTH} deep.")
        waiting += [(inner, depth + 1) for inner in reversed(_inside(part, where))]
        yield part


def _inside(part: ast.expr, where: str) -> list[ast.expr]:
    """What a part is made of."""
    match part:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool) and _is_finite(value):
            return []
        case ast.Name():
            return []
        case ast.UnaryOp(op=operator, operand=inner) if type(operator) in _OPERATORS:
            return [inner]
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return [left, right]
        case ast.Compare(left=left, ops=operators, comparators=others) if all(
            type(operator) in _OPERATORS for operator in operators
        ):
            return [left, *others]
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]) if name in FUNCTIONS:
            least, most, _ = FUNCTIONS[name]
            if len(given) < least or (most is not None and len(given) > most):
                number = ("" if most == least else "at least ") + counted(least, "value")
                raise MildlyError(f"{where}: {name} takes {number}, got {len(given)}.")
            return given
        case ast.Call(func=ast.Name(id=name)):
            near = get_close_matches(name, FUNCTIONS, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise MildlyError(f"{where}: no function '{name}'.{hint} There are {', '.join(FUNCTIONS)}.")
    raise MildlyError(
        f"{where}: only numbers, columns, + - * / **, comparisons and {', '.join(FUNCTIONS)} are allowed. A column "
        "whose name has points, blanks or signs in it stands in `backticks`."
    )


def _is_finite(value: int | float) -> bool:
    try:
        return math.isfinite(float(value))
    except OverflowError:
        return False


def _value(part: ast.expr, columns: Mapping[str, Array]) -> Array:
    match part:
        case ast.Constant(value=int() | float() as value):
            return np.asarray(float(value))
        case ast.Name(id=name):
            return columns[name].astype(np.float64)
        case ast.UnaryOp(op=operator, operand=inner):
            return _OPERATORS[type(operator)](_value(inner, columns))
        case ast.BinOp(left=left, op=operator, right=right):
            return _OPERATORS[type(operator)](_value(left, columns), _value(right, columns))
        case ast.Compare(left=left, ops=operators, comparators=others):
            sides = [_value(side, columns) for side in (left, *others)]
            pairs = zip(operators, sides, sides[1:], strict=False)
            holds = [_OPERATORS[type(operator)](a, b) for operator, a, b in pairs]
            return reduce(np.logical_and, holds).astype(np.float64)
        case ast.Call(func=ast.Name(id=name), args=given):
            return FUNCTIONS[name][2](*(_value(argument, columns) for argument in given))
    raise AssertionError("parts are looked at before they are evaluated")
