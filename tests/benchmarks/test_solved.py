"""The record of `mildly solve` on several logs: its regret by hand."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
benchmark = importlib.import_module("solved")


def solution(best: str, deploy: str | None) -> SimpleNamespace:
    plain = SimpleNamespace(to_json=lambda: {"value": 1.0})
    candidates = [SimpleNamespace(run=best, value=plain), SimpleNamespace(run="clone", value=plain)]
    choice = SimpleNamespace(candidates=candidates, deploy=deploy, verdict="", log=plain, weights={"fqe": 1.0})
    rungs = [SimpleNamespace(kept=[best, "clone"])]
    return SimpleNamespace(best=best, choice=choice, rungs=rungs, plan=plain)


def test_regret_is_what_the_best_in_hindsight_earns_more():
    returns = {"clone": [1.0, 3.0], "iql": [10.0, 10.0], "mcq": [7.0, 9.0]}
    found = benchmark.row(solution("mcq", "mcq"), returns, data=1.5)
    assert (found["chosen"], found["best_in_hindsight"], found["deploy"]) == ("mcq", "iql", True)
    assert found["regret"] == 2.0
    assert found["regret_share"] == 0.25  # of 10 - 2


def test_a_choice_that_is_not_deployed_and_has_no_rival():
    found = benchmark.row(solution("mcq", None), {"mcq": [4.0], "clone": [4.0]}, data=5.0)
    assert not found["deploy"]
    assert found["regret"] == found["regret_share"] == 0.0
