"""What a step, a fit and a choice take on this machine with these data: measured by doing each in the small."""

from __future__ import annotations

import dataclasses
import math
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from mildly.data.dataset import Dataset
from mildly.errors import MildlyError
from mildly.files import temporary_path
from mildly.ope.choose import choose
from mildly.ope.estimators import Problem
from mildly.ope.evaluate import judging_data, plan_of, silent
from mildly.ope.fit import Say
from mildly.ope.judged import JudgedPolicy
from mildly.ope.settings import QUICK
from mildly.policy import load_policy
from mildly.portfolio.folder import Request, SolveFolder
from mildly.portfolio.learn import task_of, train_here
from mildly.portfolio.plan import (
    DENSITY,
    FINALISTS,
    LEARNERS,
    LEAST,
    Costs,
    Pace,
    StepPlan,
    plan_within,
    seconds_of,
)
from mildly.run import Run, training_seconds

_RESERVE = 0.85  # share of a budget that is planned for: a machine has other things to do
_MEASURING = 0.05  # share of a budget that measuring may take
_FEW = 10
_ROUGHLY = 10  # steps that tell how many more can be measured
_STEPS = (30, 2_000)  # that are measured, at least and at most


def measured_plan(
    folder: SolveFolder, request: Request, data: Dataset, source: str, workers: int, began: float, say: Say
) -> StepPlan:
    """The longest plan within the minutes, by what things cost here."""
    budget = 60 * float(request.minutes or 0)
    say("measuring what a step takes here")
    scratch = temporary_path(folder.path / "measure")  # what a killed process leaves of it is removed by the next one
    scratch.mkdir()
    try:
        costs = measure(request, data, source, scratch, _MEASURING * budget, workers)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    spent = time.monotonic() - began
    plan = plan_within(_RESERVE * budget - spent, costs, workers)
    least = StepPlan.of(LEAST)
    say(_prices(plan or least, costs, workers))
    if plan is None:
        enough = math.ceil((spent + seconds_of(least, costs, workers)) / _RESERVE / 60 + 0.5)
        folder.forget()
        raise MildlyError(
            f"{request.minutes:g} minutes are too few for '{request.name}' on this machine: even a last rung of "
            f"{LEAST:,} steps takes longer. --minutes {enough} is enough."
        )
    return plan


def _prices(plan: StepPlan, costs: Costs, workers: int) -> str:
    paces = ", ".join(f"{name} {1000 * pace.step:.3g}" for name, pace in costs.train.items())
    minutes, last = seconds_of(plan, costs, workers) / 60, plan.rungs[-1].steps
    return (
        f"milliseconds a step: {paces}, fqe {1000 * costs.fit.step:.3g}; a last rung of {last:,} steps, with all "
        f"before and after it, takes about {minutes:.1f} minutes"
    )


def measure(request: Request, data: Dataset, source: str, scratch: Path, seconds: float, workers: int) -> Costs:
    """The costs, by work of about so many seconds."""
    share = seconds / (len(LEARNERS) + 2)
    start = _start_seconds() if workers > 1 else 0.0
    train = {name: _training(name, request, data, source, scratch / name, share) for name in LEARNERS}
    train = {name: dataclasses.replace(pace, begin=pace.begin + start) for name, pace in train.items()}
    runs = [str(scratch / name) for name in LEARNERS]
    held, _ = judging_data({runs[-1]: plan_of(runs[-1])}, data)
    problem = Problem(JudgedPolicy.of(load_policy(runs[-1]), held, "mcq"), held, request.gamma, QUICK, scratch, silent)

    def with_steps(steps: int) -> Problem:
        settings = dataclasses.replace(QUICK, steps=steps, density_steps=steps)
        return dataclasses.replace(problem, settings=settings, folder=scratch / f"fit-{time.monotonic_ns()}")

    fit = _fitting(lambda steps: with_steps(steps).fitted, share)
    density = _fitting(lambda steps: with_steps(steps).behavior_log_prob, share)
    labels = {label for label in request.labels or () if label == label and label != ""}  # NaN is a missing one
    groups = request.groups if request.labels is None else len(labels)
    fits = (groups + FINALISTS) * fit.step
    step = fits + DENSITY * ((groups + 1) * density.step + groups * train["clone"].step)
    few = dataclasses.replace(QUICK, steps=_FEW, density_steps=round(DENSITY * _FEW))
    began = time.monotonic()
    choose(runs[-FINALISTS:], data, **request.grading(), settings=few, out=scratch / "choice")
    return Costs(train, fit, Pace(max(0.0, time.monotonic() - began - _FEW * step), step))


def _training(name: str, request: Request, data: Dataset, source: str, folder: Path, share: float) -> Pace:
    """Of a candidate that goes on from a checkpoint: what the first steps load, allocate and draw is its beginning."""
    run, done = Run(folder), 0

    def go_on(steps: int) -> tuple[float, float]:
        nonlocal done
        done, before, began = done + steps, training_seconds(run.timing()), time.monotonic()
        train_here(task_of(name, folder, request, source, done, warm_up=0), data)
        return time.monotonic() - began, training_seconds(run.timing()) - before

    return _pace(go_on, share)


def _fitting(work: Callable[[int], object], share: float) -> Pace:
    """Of work that begins anew each time."""

    def seconds(steps: int) -> tuple[float, float]:
        began = time.monotonic()
        work(steps)
        spent = time.monotonic() - began
        return spent, spent

    return _pace(seconds, share)


def _pace(seconds: Callable[[int], tuple[float, float]], share: float) -> Pace:
    """By two lengths of some work, of which so many steps take `seconds`: with all around them, and the steps alone."""
    seconds(_FEW)
    _, few = seconds(_FEW)
    more = _within(share, max(0.0, seconds(_FEW + _ROUGHLY)[1] - few) / _ROUGHLY)
    whole, many = seconds(_FEW + more)
    step = max(0.0, many - few) / more
    return Pace(max(0.0, whole - (_FEW + more) * step), step)


def _within(share: float, step: float) -> int:
    """How many steps take so many seconds."""
    least, most = _STEPS
    return min(max(least, int(share / max(step, 1e-6))), most)


def _start_seconds() -> float:
    """What a process takes before it trains."""
    began = time.monotonic()
    subprocess.run([sys.executable, "-P", "-c", "import mildly.training.finetune, torch._dynamo"], check=True)
    return time.monotonic() - began
