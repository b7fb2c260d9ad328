"""Flags from dataclasses: a field is a flag, its type what may follow, the text under it its help.

A field that is itself a dataclass is a group, whose flags have its name before a dot: `--behavior.hidden-dims 64 64`.
The same list of flags is what a command understands and what its help shows. What a type cannot say is a
mark on the field (`marks.py`).
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from mildly.cli.marks import Mark
from mildly.errors import MildlyError, unknown_name

T = TypeVar("T")
_METAVARS = {int: "INT", float: "NUMBER", str: "TEXT"}


@dataclass(frozen=True)
class Flag:
    """A field as the command line sees it."""

    name: str
    """The field's, after its groups': `behavior.hidden_dims`."""
    option: str
    """`--behavior.hidden-dims`."""
    kind: Any
    """The type, without marks."""
    default: Any
    """MISSING if the flag is required."""
    text: str
    """One paragraph of help."""
    group: type | None = None
    """The dataclass that the field belongs to, if it is a group's."""
    marks: tuple[Any, ...] = ()

    @property
    def positional(self) -> bool:
        """Whether the value stands alone."""
        return Mark.POSITIONAL in self.marks

    @property
    def switch(self) -> bool:
        """Whether no value follows: `--check`."""
        return bool in self._members

    @property
    def repeats(self) -> bool:
        """Whether the flag is given once for each value."""
        return Mark.REPEATED in self.marks

    @property
    def many(self) -> bool:
        """Whether several values may follow."""
        return not self.repeats and any(get_origin(member) is tuple for member in self._members)

    @property
    def negative(self) -> str | None:
        """`--no-check`, if there is such a spelling: the last part of a dotted name is what is negated."""
        if not self.switch or Mark.NO_NEGATIVE in self.marks:
            return None
        group, dot, last = self.option.removeprefix("--").rpartition(".")
        return f"--{group}{dot}no-{last}"

    @property
    def spellings(self) -> tuple[str, ...]:
        """What stands for this flag in the arguments."""
        aliases = tuple(alias for mark in self.marks for alias in getattr(mark, "aliases", None) or ())
        return (*aliases, self.option, *([self.negative] if self.negative else []))

    @property
    def metavar(self) -> str:
        """What follows the flag: `INT`, `min|mean`, `NUMBER|auto`, `INT ...`, nothing for a switch."""
        said = next((mark.metavar for mark in self.marks if getattr(mark, "metavar", None)), None)
        if said or self.switch:
            return said or ""
        if self.positional:
            return self.name.rpartition(".")[2].upper().replace("_", "-")
        several = " ..." if self.many else ""
        return "|".join(_metavar(member) for member in self._elements) + several

    def value(self, words: Sequence[str]) -> Any:
        """The field's value from the words that follow the flag."""
        if words == ["None"] and NoneType in self._members:
            return None
        values = tuple(self._element(word) for word in words)
        return values if self.many or self.repeats else values[0]

    @property
    def _members(self) -> tuple[Any, ...]:
        """The types of a union, or the only one."""
        return get_args(self.kind) if get_origin(self.kind) in (Union, UnionType) else (self.kind,)

    @property
    def _elements(self) -> tuple[Any, ...]:
        """The types that one word may have."""
        members = (member for member in self._members if member is not NoneType)
        return tuple(get_args(member)[0] if get_origin(member) is tuple else member for member in members)

    def _element(self, word: str) -> Any:
        for kind in self._elements:
            try:
                if get_origin(kind) is Literal:
                    return next(choice for choice in get_args(kind) if str(choice) == word)
                return kind(word)
            except (ValueError, StopIteration):
                continue
        raise MildlyError(f"{self.metavar if self.positional else self.option} must be {self._wanted()}, got '{word}'.")

    def _wanted(self) -> str:
        """The types in words: `a number or auto`."""
        names = {int: "a whole number", float: "a number"}
        words = (get_args(kind) if get_origin(kind) is Literal else (names.get(kind, kind),) for kind in self._elements)
        return " or ".join(str(word) for some in words for word in some)


def _metavar(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    return _METAVARS.get(kind, str(kind.__name__).upper())


def flags_of(kind: type, values: Any = None, prefix: str = "", path: str = "", group: type | None = None) -> list[Flag]:
    """The flags of a dataclass and of its groups.

    Args:
        kind: the dataclass.
        values: an instance whose values are the defaults; otherwise they are the fields' own.
        prefix: what stands before the names of its flags.
        path: what stands before the names of its fields.
        group: the dataclass itself, if it is a group of another one.
    """
    hints, texts = get_type_hints(kind, include_extras=True), _texts(kind)
    found = []
    for field in dataclasses.fields(kind):
        annotated = hints[field.name]
        marks = annotated.__metadata__ if get_origin(annotated) is Annotated else ()
        inner = annotated.__origin__ if marks else annotated
        default = _default(field) if values is None else getattr(values, field.name)
        if isinstance(inner, type) and dataclasses.is_dataclass(inner):
            own = prefix if Mark.NO_PREFIX in marks else f"{prefix}{_dashed(field.name)}."
            inside = None if default is MISSING else default
            found += flags_of(inner, inside, own, f"{path}{field.name}.", inner)
        else:
            option, text = f"--{prefix}{_dashed(field.name)}", texts.get(field.name, "")
            found.append(Flag(path + field.name, option, inner, default, text, group, marks))
    return found


def _dashed(name: str) -> str:
    return name.replace("_", "-")


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default


def _texts(kind: type) -> dict[str, str]:
    """The texts under the fields of a class and of those it is made of, each as one paragraph."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if dataclasses.is_dataclass(base):
            found |= _own_texts(base)
    return found


def _own_texts(kind: type) -> dict[str, str]:
    try:
        (body,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except (OSError, TypeError):  # made without a source
        return {}
    assert isinstance(body, ast.ClassDef)
    pairs = zip(body.body, body.body[1:], strict=False)
    return {
        field.target.id: " ".join(text.value.value.split())
        for field, text in pairs
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }


def read(args: Sequence[str], flags: Sequence[Flag], prog: str) -> dict[str, Any]:
    """The values that the arguments give, by the fields' names; what they do not give is not in it."""
    known = {spelling: flag for flag in flags for spelling in flag.spellings if not flag.positional}
    given: dict[str, Any] = {}
    loose: list[str] = []
    words = deque(args)
    while words:
        option, equals, value = words.popleft().partition("=")
        if option not in known:
            if option.startswith("--") or (option.startswith("-") and option[1:2].isalpha()):
                raise unknown_name("option", option, known, listing=f"{prog} --help")
            loose.append(option + equals + value)
            continue
        flag = known[option]
        if flag.switch:
            if equals or (words and words[0].lower() in ("true", "false")):
                raise MildlyError(f"{option} takes no value: {' or '.join(flag.spellings)}.")
            given[flag.name] = option != flag.negative
            continue
        following = [value] if equals else list(_values(words, known, flag.many))
        if not following:
            raise MildlyError(f"{option} needs a value: {option} {flag.metavar}.")
        before = given.get(flag.name, ()) if flag.repeats else ()
        now = flag.value(following)
        given[flag.name] = (*before, *now) if flag.repeats else now
    return given | _placed(loose, flags, given, prog)


def _values(words: deque[str], known: Mapping[str, Flag], many: bool) -> Iterator[str]:
    """Take the words up to the next flag, or the next one only."""
    while words and not words[0].startswith("--") and words[0] not in known:
        yield words.popleft()
        if not many:
            return


def _placed(loose: Sequence[str], flags: Sequence[Flag], given: Mapping[str, Any], prog: str) -> dict[str, Any]:
    """The words that follow no flag, as the positional fields in their order; nothing may be left, or missing."""
    found: dict[str, Any] = {}
    for flag in flags:
        taken = loose if flag.many else loose[:1]
        if flag.positional and (taken or flag.many):  # several may be none: the command knows what it then says
            found[flag.name] = flag.value(taken)
            loose = loose[len(taken) :]
    if loose:
        raise MildlyError(f"'{loose[0]}' belongs to no option. '{prog} --help' shows all options.")
    missing = [flag for flag in flags if flag.default is MISSING and flag.name not in {**given, **found}]
    if missing:
        names = " and ".join(flag.metavar if flag.positional else f"{flag.option} {flag.metavar}" for flag in missing)
        raise MildlyError(f"{names} must be given. '{prog} --help' explains it.")
    return found


def build(kind: type[T], given: Mapping[str, Any]) -> T:
    """The dataclass with the values that `read` found, its groups included."""
    values = {name: value for name, value in given.items() if "." not in name}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        start = f"{field.name}."
        inside = {name.removeprefix(start): value for name, value in given.items() if name.startswith(start)}
        if inside:
            values[field.name] = dataclasses.replace(_default(field), **inside)
    return kind(**values)
