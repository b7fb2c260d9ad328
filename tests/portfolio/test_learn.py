"""How a candidate's training is asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from mildly.algorithms.config import check_fields, field_types
from mildly.algorithms.mcq import MCQ
from mildly.portfolio.folder import Request
from mildly.portfolio.learn import task_of

REQUEST = Request("log", {}, "log", "", False, 10.0, 3, 0.2, 0.9, "episode", 5, None, [])


@pytest.mark.parametrize(("warm_up", "steps"), [(100, (400, 800, 100)), (0, (1, 1, 1))])
def test_the_phases_of_mcq_are_as_short_as_its_plan(warm_up: int, steps: tuple[int, ...]) -> None:
    options = task_of("mcq", Path("run"), REQUEST, "log", 1_000, warm_up).options
    phases = ("behavior.steps", "extras.bc_steps", "extras.bc_warmup_steps")
    assert tuple(options[phase] for phase in phases) == steps
    fields = {name: value for name, value in options.items() if name in field_types(MCQ.Config)}
    assert set(phases) | {"gamma"} == set(fields)
    check_fields(MCQ, "default", fields)


@pytest.mark.parametrize(("name", "discounts"), [("clone", False), ("iql", True)])
def test_other_candidates_have_no_phases(name: str, discounts: bool) -> None:
    options = task_of(name, Path("run"), REQUEST, "log", 1_000, 100).options
    assert options == {"holdout": 0.2, "eval_every": 0} | ({"gamma": 0.9} if discounts else {})
