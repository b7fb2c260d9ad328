"""Successive halving: train some candidates, judge them on held-out episodes, go on with the better half."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from mildly.data.dataset import Dataset
from mildly.errors import MildlyError
from mildly.ope.estimators import Problem, estimate
from mildly.ope.evaluate import identity_of, judging_data, plan_of, silent
from mildly.ope.fit import Say
from mildly.ope.judged import JudgedPolicy
from mildly.ope.settings import QUICK, Settings
from mildly.policy import load_policy
from mildly.portfolio.folder import Request, SolveFolder, Told
from mildly.portfolio.learn import task_of, train_all
from mildly.portfolio.plan import LEARNERS, StepPlan, survivors


def halve(
    folder: SolveFolder, request: Request, plan: StepPlan, data: Dataset, source: str, workers: int, say: Say
) -> list[Told]:
    """Train rung by rung; what is told already is not done again."""
    told = folder.rungs()
    for i, rung in enumerate(plan.rungs):
        if i < len(told):
            continue
        names = told[-1].kept if told else list(LEARNERS)
        say(f"rung {i + 1} of {len(plan.rungs)}: {', '.join(names)} to step {rung.steps:,}")
        tasks = [
            task_of(name, folder.run(name).path, request, source, rung.steps, plan.warm_up)
            for name in sorted(names, key=list(LEARNERS).index, reverse=True)  # the slowest first
        ]
        failed = train_all(tasks, data, workers)
        trained = [name for name in names if name not in failed]
        for name, why in failed.items():
            say(f"{name} is out: {why}")
        if not trained:
            raise MildlyError(f"no candidate could be trained. {next(iter(failed.values()))}")
        last = rung is plan.rungs[-1]
        values = {} if last else _judged(folder, request, plan, data, trained, i, say)
        kept = trained if last else _kept(values, plan.rungs[i + 1].candidates)
        if not kept:
            raise MildlyError("fitted Q evaluation gives no number for any candidate: the log is too small for it.")
        told.append(Told(rung.steps, values, failed, kept))
        folder.write_rungs(told)
    return told


def _kept(values: Mapping[str, Mapping[str, Any]], keep: int) -> list[str]:
    numbers = {name: math.nan if one["value"] is None else float(one["value"]) for name, one in values.items()}
    return survivors(numbers, keep)


def _judged(
    folder: SolveFolder, request: Request, plan: StepPlan, data: Dataset, names: Sequence[str], rung: int, say: Say
) -> dict[str, dict[str, Any]]:
    """What fitted Q evaluation on the held-out episodes says of candidates as they are now."""
    found = {}
    held, _ = judging_data({name: plan_of(folder.run(name).path) for name in names}, data)
    for name in names:
        path, place = folder.run(name).path, folder.path / "judged" / f"rung-{rung + 1}" / name
        judged = JudgedPolicy.of(load_policy(path), held, name)
        problem = Problem(judged, held, request.gamma, settings_of(plan, request), place, silent, identity_of(path))
        one = estimate("fqe", problem)
        say(f"  {name}: {one.value:.4g} ({one.low:.4g} to {one.high:.4g}) by fqe")
        found[name] = one.to_json()
    return found


def settings_of(plan: StepPlan, request: Request) -> Settings:
    """How much work the fits take."""
    return dataclasses.replace(QUICK, steps=plan.fit_steps, density_steps=plan.density_steps, seed=request.seed)
