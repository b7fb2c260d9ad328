"""Rewards computed from columns: as Python computes them, and nothing else is ever evaluated."""

from __future__ import annotations

import math
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from conftest import Refused
from hypothesis import assume, given, settings, strategies as st

from mildly.data.expression import FUNCTIONS, MOST_LETTERS, parse
from mildly.errors import MildlyError

COLUMNS = {
    "power": np.array([0.0, 2.0, -1.5, 4.0]),
    "temp": np.array([21.0, 19.0, 25.5, 0.5]),
    "Temp (C)": np.array([1.0, -2.0, 3.0, 4.0]),
    "a-b": np.array([1.0, 1.0, 2.0, 2.0]),
}


def values(text: str) -> list[float]:
    expression = parse(text, list(COLUMNS), "log.csv: --reward")
    result: list[float] = expression.values({name: COLUMNS[name] for name in expression.columns}, 4).tolist()
    return result


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("-power - 10*abs(temp - 21)", [0, -22, -43.5, -209]),
        ("  power ", [0, 2, -1.5, 4]),
        ("2", [2, 2, 2, 2]),
        ("-power ** 2", [0, -4, -2.25, -16]),
        ("`Temp (C)` / 2 + `a-b`", [1.5, 0, 3.5, 4]),
        ("`power`*2", [0, 4, -3, 8]),
        ("where(temp < 20, -1, power > 0)", [0, -1, 0, -1]),
        ("(0 < power) + (0 <= power < 3)", [1, 2, 0, 1]),
        ("clip(power, -1, 3)", [0, 2, -1, 3]),
        ("min(power, temp, 1) + max(power, 0)", [0, 3, -1.5, 4.5]),
        ("sqrt(power * power) - exp(0) + log(1)", [-1, 1, 0.5, 3]),
        ("power == 2", [0, 1, 0, 0]),
    ],
)
def test_a_formula_means_what_a_person_reads(text: str, expected: list[float]) -> None:
    assert values(text) == pytest.approx(expected)


def test_what_cannot_be_computed_is_no_number_and_no_crash() -> None:
    found = values("log(power) + 1 / power")
    assert found[1] == pytest.approx(math.log(2) + 0.5)
    assert math.isnan(found[0])
    assert math.isnan(found[2])
    assert values("9**9**9**9") == [math.inf] * 4


def test_a_formula_names_the_columns_it_needs_in_their_order() -> None:
    assert parse("`a-b` + power * power", list(COLUMNS), "f").columns == ("a-b", "power")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("-pwer", ["log.csv: --reward '-pwer': there is no column 'pwer'", "Did you mean 'power'?", "Temp (C)"]),
        ("`Temp(C)`", ["no column 'Temp(C)'", "Did you mean 'Temp (C)'?"]),
        ("absolute(power)", ["no function 'absolute'", "abs, sqrt"]),
        ("mim(power, 1)", ["no function 'mim'. Did you mean 'min'?"]),
        ("abs(power, 1)", ["abs takes 1 value, got 2"]),
        ("min(power)", ["min takes at least 2 values, got 1"]),
        ("abs", ["no column 'abs'"]),
        ("temp.inner", ["are allowed", "`backticks`"]),
        ("Temp (C)", ["no function 'Temp'"]),
        ("power -", ["is no formula", "abs(temp - 21)"]),
        ("", ["is no formula"]),
        ("power; temp", ["is no formula"]),
        ("power\n+temp", ["is no formula"]),
        ("1" * (MOST_LETTERS + 1), ["1,001 letters"]),
        ("+".join(["power"] * 150), ["too long or too deep"]),
        ("-" * 50 + "power", ["too long or too deep"]),
    ],
)
def test_a_mistake_is_told_with_what_to_do(text: str, words: list[str], refused: Refused) -> None:
    refused(lambda: parse(text, list(COLUMNS), "log.csv: --reward"), *words)


HOSTILE = [
    "__import__('os').system('touch owned')",
    "power.__class__.__mro__[1].__subclasses__()",
    "().__class__.__bases__[0]",
    "[power for power in (1, 2)]",
    "(lambda: 1)()",
    "power[0]",
    "power if temp else 1",
    "(x := 5)",
    "f'{power}'",
    "'a' * 10**9",
    "b'a'",
    "abs(*power)",
    "clip(power, low=0, high=1)",
    "min(**{})",
    "{power: 1}",
    "{1, 2}",
    "yield power",
    "await power",
    "power and temp",
    "not power",
    "~power",
    "power % 2",
    "power // 2",
    "power @ power",
    "power << 9999999",
    "power is temp",
    "power in temp",
    "True",
    "None",
    "...",
    "1j",
    "1e999",
    "9" * 900,
    "(1, 2)",
    "abs(abs)(1)",
    "exec('import os')",
    "eval('1')",
    "open('/etc/passwd')",
    "getattr(power, 'real')",
    "print",
    "`__import__`('os')",
    "``",
    "`",
    "power`temp",
    "\x00",
    "import os",
    "power = 1",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_but_arithmetic_is_allowed(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for forbidden in (os, subprocess):
        monkeypatch.setattr(forbidden, "system" if forbidden is os else "Popen", lambda *_: pytest.fail("was run"))
    with pytest.raises(MildlyError, match=r"^log\.csv: --reward '"):
        parse(text, list(COLUMNS), "log.csv: --reward")
    assert list(tmp_path.iterdir()) == []


known = st.sampled_from([*HOSTILE, *FUNCTIONS, *COLUMNS, *"+-*/()`,.<>=[]{}:"])
fragments = st.lists(known | st.text(max_size=5))


@settings(max_examples=300)
@given(fragments.map("".join))
def test_any_text_is_a_formula_of_allowed_parts_or_an_error(text: str) -> None:
    try:
        expression = parse(text, list(COLUMNS), "f")
    except MildlyError:
        return
    found = expression.values({name: COLUMNS[name] for name in expression.columns}, 4)
    assert found.shape == (4,)
    assert found.dtype == np.float64


NAMES = {"x": 1.5, "y": -2.25, "z": 0.75}
PYTHON = {
    "abs": abs,
    "sqrt": math.sqrt,
    "exp": math.exp,
    "log": math.log,
    "min": min,
    "max": max,
    "clip": lambda value, low, high: min(max(value, low), high),
    "where": lambda condition, yes, no: yes if condition else no,
}


def _combined(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    two = st.tuples(inner, st.sampled_from(["+", "-", "*", "/", "**", "<", "<=", ">", ">=", "==", "!="]), inner)
    call = st.sampled_from(sorted(PYTHON)).flatmap(
        lambda name: st.lists(inner, min_size=FUNCTIONS[name][0], max_size=FUNCTIONS[name][1] or 4).map(
            lambda given: f"{name}({', '.join(given)})"
        )
    )
    return st.one_of(
        two.map(lambda parts: f"({parts[0]} {parts[1]} {parts[2]})"),
        two.map(" ".join),  # without brackets: by the operators' own precedence
        st.tuples(inner, inner, inner).map(lambda parts: f"({parts[0]} < {parts[1]} <= {parts[2]})"),
        inner.map(lambda text: f"-{text}"),
        call,
    )


numbers = st.floats(0, 9, allow_nan=False).map(lambda number: f"{number:.2f}") | st.integers(0, 9).map(str)
formulas = st.recursive(numbers | st.sampled_from(sorted(NAMES)), _combined, max_leaves=12)


@settings(max_examples=300)
@given(formulas)
def test_a_formula_equals_python_s_own_evaluation(text: str) -> None:
    try:
        expected = eval(text, {"__builtins__": {}, **PYTHON}, dict(NAMES))
    except (ZeroDivisionError, OverflowError, ValueError):  # where numpy has infinities and NaN
        assume(False)
    assume(not isinstance(expected, complex) and math.isfinite(expected) and abs(expected) < 1e100)
    expression = parse(text, list(NAMES), "f")
    found = expression.values({name: np.full(3, NAMES[name]) for name in expression.columns}, 3)
    np.testing.assert_allclose(found, float(expected), rtol=1e-9, atol=1e-12)
