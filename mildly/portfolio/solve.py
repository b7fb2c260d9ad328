"""From a log to a verdict: look at the data, train a portfolio by successive halving, grade the estimators, choose."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shlex
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.registry import MINARI, find, load_dataset, stable_source
from mildly.device import cpu_threads
from mildly.environments import check_fit
from mildly.errors import MildlyError, Stopped
from mildly.evaluation.evaluate import evaluate as run_policy
from mildly.experiments.sweep import available_cores
from mildly.files import atomic_write
from mildly.ope.choose import Choice, choose
from mildly.ope.estimators import check_data
from mildly.ope.evaluate import silent
from mildly.ope.fit import Say
from mildly.ope.groups import group, labels_of
from mildly.policy import load_policy
from mildly.portfolio.card import write_card
from mildly.portfolio.folder import Request, SolveFolder, Told
from mildly.portfolio.halving import halve, settings_of
from mildly.portfolio.measure import measured_plan
from mildly.portfolio.plan import LEARNERS, StepPlan
from mildly.report.choice import write_choice
from mildly.report.page import make_report, write_page
from mildly.run import Run
from mildly.training.preflight import environment_of, preflight

EPISODES = 10
"""Without which nothing can be learned from some, judged by others, and graded in groups."""


@dataclass(frozen=True)
class Solution:
    """What came of a log."""

    path: Path
    plan: StepPlan
    rungs: list[Told]
    choice: Choice
    """The finalists, and the verdict."""
    returns: dict[str, list[float]]
    """What each candidate earned in the environment, by episode; empty where nobody asked."""

    @property
    def best(self) -> str:
        """The candidate whose policy is in the folder; whether to deploy it is the choice's to say."""
        return self.choice.candidates[0].run

    @property
    def regret(self) -> float | None:
        """How much less the best candidate by the log earned than the best in hindsight; None where nobody asked."""
        means = {name: sum(found) / len(found) for name, found in self.returns.items()}
        return max(means.values()) - means[self.best] if means else None


def solve(
    dataset: str | os.PathLike[str] | Dataset,
    *,
    minutes: float = 30.0,
    steps: int | None = None,
    out: str | os.PathLike[str] | None = None,
    holdout: float = 0.2,
    gamma: float = 0.99,
    by: str = "time",
    groups: int = 5,
    seed: int = 0,
    workers: int | None = None,
    check: bool = True,
    evaluate: bool = False,
    episodes: int = 10,
    data_dir: str | os.PathLike[str] | None = None,
    reading: ImportOptions | None = None,
    say: Say = silent,
) -> Solution:
    """Train a portfolio on a log, choose by held-out episodes, and say whether to deploy; all is left in a folder.

    Args:
        dataset: a name, a path, or a Dataset.
        minutes: about how long it may take; the plan in steps follows from what is measured first, and is recorded.
        steps: the gradient steps of the last rung, instead of minutes: same seed and same steps, same bits.
        out: the folder; by default a new one under `runs/`.
        holdout: share of the episodes, whole ones, that nobody is trained on, and all are judged by.
        gamma: the discount factor that is learned and judged with.
        by: how the grading groups episodes: `time`, `cluster`, or a column of the log.
        groups: how many groups of time, or clusters.
        seed: decides all random numbers.
        workers: trainings at a time; by default one for each core. Results do not depend on it.
        check: look at the data first, and refuse what training would go wrong on.
        evaluate: run all candidates in the data's environment afterwards. The choice never sees it.
        episodes: of that.
        data_dir: folder in which data set names are looked for first.
        reading: how to read a raw log.
        say: hears of progress.
    """
    began = time.monotonic()
    if steps is None and not (minutes > 0 and math.isfinite(minutes)):
        raise MildlyError(f"minutes must be positive, got {minutes:g}.")
    _check_numbers(workers, episodes)
    plan, reading = None if steps is None else StepPlan.of(steps), reading or ImportOptions()
    data = load_dataset(dataset, reading, data_dir=data_dir)
    source = None if isinstance(dataset, Dataset) else stable_source(dataset, data_dir)
    request = Request(
        dataset=source,
        reading=reading.to_json(),
        name=data.meta.name,
        fingerprint=data.meta.fingerprint,
        copied=bool(reading.to_json()) or not _is_native(dataset, data_dir),
        minutes=None if plan else minutes,
        seed=seed,
        holdout=holdout,
        gamma=gamma,
        by=by,
        groups=groups,
        labels=_labels(dataset, reading, by, data, data_dir),
        said=preflight(data, source, reading, check=check),
        plan=plan,
    )
    _check(request, data, evaluate)
    if out is not None:
        SolveFolder(Path(out)).check_new()
    with Run.claim(out, f"solve-{data.meta.name}") as claimed:
        folder = SolveFolder(claimed.path)
        folder.write_request(request)
        with _ending_well(folder):
            return _work(folder, request, data, workers, episodes if evaluate else 0, began, say)


def resume_solve(
    path: str | os.PathLike[str],
    *,
    workers: int | None = None,
    evaluate: bool = False,
    episodes: int = 10,
    say: Say = silent,
) -> Solution:
    """Go on with `solve` where it was stopped, by the same plan; the result is that of one that was left alone."""
    began, folder = time.monotonic(), SolveFolder.open(Path(path))
    _check_numbers(workers, episodes)
    request = folder.request()
    with Run(folder.path).locked(), _ending_well(folder):
        return _work(folder, request, None, workers, episodes if evaluate else 0, began, say)


def _work(
    folder: SolveFolder,
    request: Request,
    given: Dataset | None,
    workers: int | None,
    episodes: int,
    began: float,
    say: Say,
) -> Solution:
    data, source = folder.data(request, given)
    workers = workers or min(available_cores(), len(LEARNERS))
    if given is None:  # what a file asks for is checked, too
        _check(request, data, evaluate=episodes > 0)
    plan = request.plan
    if plan is None:
        plan = measured_plan(folder, request, data, source, workers, began, say)
        folder.write_request(dataclasses.replace(request, plan=plan))
    _tell_plan(plan, say)
    rungs = halve(folder, request, plan, data, source, workers, say)
    finalists = [str(folder.run(name).path) for name in rungs[-1].kept]
    settings, place = settings_of(plan, request), folder.path / "judged" / "choice"
    say(f"choosing among {', '.join(rungs[-1].kept)}; the estimators are graded on this log first (by {request.by})")
    found = _by_names(choose(finalists, data, **request.grading(), settings=settings, out=place, say=say), folder)
    solution = Solution(folder.path, plan, rungs, found, folder.evaluation())
    _leave(solution, request, data)
    if episodes:  # last, since it may fail: a simulator is another's code
        folder.write_evaluation(_returns(folder, rungs, episodes, request.seed, say))
        solution = dataclasses.replace(solution, returns=folder.evaluation())
        write_card(solution, request, data, folder.path / "card.md")
    return solution


# Before


def _check(request: Request, data: Dataset, evaluate: bool) -> None:
    """Refuse what could only end badly, before anything is trained."""
    check_data(data)
    count, name = len(data.episode_ends()), data.meta.name
    if count < EPISODES:
        raise MildlyError(
            f"'{name}' has {count} episodes; {EPISODES} are needed, to learn from some, judge by others, and grade the "
            "estimators. Say where episodes begin (--episode COLUMN, --time-limit), or add logs."
        )
    if not 0 < request.holdout < 1 or round(request.holdout * count) < 2 or count - round(request.holdout * count) < 2:
        raise MildlyError(
            f"holdout must leave two of the {count} episodes on either side, such as 0.2; got {request.holdout:g}."
        )
    if not 0 <= request.gamma < 1:
        raise MildlyError(f"gamma must be in [0, 1), got {request.gamma:g}.")
    if request.seed < 0:
        raise MildlyError(f"seed must be at least 0, got {request.seed}.")
    group(data, request.by, request.groups, request.seed, request.grading()["labels"])
    if evaluate:
        env, meta = environment_of(data.meta, None)
        if env is None:
            raise MildlyError(f"'{name}' names no environment, so that --evaluate has none. Leave it out.")
        check_fit(env, data.observation_size, data.action_size, f"the data set '{name}'", meta.action_space)


def _check_numbers(workers: int | None, episodes: int) -> None:
    for name, value in (("workers", workers), ("episodes", episodes)):
        if value is not None and value < 1:
            raise MildlyError(f"{name} must be at least 1, got {value}.")


def _is_native(dataset: str | os.PathLike[str] | Dataset, data_dir: str | os.PathLike[str] | None) -> bool:
    """Whether it is a folder of ours, which can be read again as it is."""
    if isinstance(dataset, Dataset) or os.fspath(dataset).startswith(MINARI):
        return False
    return (find(dataset, data_dir) / "dataset.json").is_file()


def _labels(
    dataset: str | os.PathLike[str] | Dataset,
    reading: ImportOptions,
    by: str,
    data: Dataset,
    data_dir: str | os.PathLike[str] | None,
) -> list[float] | list[str] | None:
    """The value of a column for each episode; None where groups are of another kind."""
    place = None if data_dir is None else os.fspath(data_dir)
    source = None if isinstance(dataset, Dataset) else os.fspath(dataset)
    labels = labels_of(source, reading, by, data, place)
    return None if labels is None else labels.tolist()


@contextmanager
def _ending_well(folder: SolveFolder) -> Iterator[None]:
    """One thread, since bits depend on it; and whoever stops the work is told how to go on."""
    try:
        with cpu_threads(1):
            yield
    except (Stopped, KeyboardInterrupt) as stopped:
        again = f"mildly solve --resume {shlex.quote(str(folder.path))}"
        raise Stopped.retold(stopped, f"stopped; nothing is lost. Go on with: {again}") from stopped


def _tell_plan(plan: StepPlan, say: Say) -> None:
    for i, rung in enumerate(plan.rungs):
        who = ", ".join(LEARNERS) if i == 0 else f"the best {rung.candidates}"
        then = f"fqe of {plan.fit_steps:,} steps on held-out episodes" if rung is not plan.rungs[-1] else "the choice"
        say(f"plan, rung {i + 1}: {who} to step {rung.steps:,}; then {then}")


# Afterwards


def _by_names(choice: Choice, folder: SolveFolder) -> Choice:
    """The choice with the candidates' names instead of their folders."""
    start = f"{folder.path / 'runs'}{os.sep}"
    return dataclasses.replace(
        choice,
        candidates=tuple(dataclasses.replace(each, run=each.run.removeprefix(start)) for each in choice.candidates),
        deploy=choice.deploy and choice.deploy.removeprefix(start),
        verdict=choice.verdict.replace(start, ""),
    )


def _returns(folder: SolveFolder, rungs: Sequence[Told], episodes: int, seed: int, say: Say) -> dict[str, list[float]]:
    """What each candidate earns in the environment, as it was when it was last trained."""
    found = {}
    for name in LEARNERS:
        if any(name in told.failed for told in rungs):
            continue
        say(f"running {name} for {episodes} episodes, after the choice")
        found[name] = run_policy(folder.run(name), episodes=episodes, seed=seed).returns
    return found


def _leave(solution: Solution, request: Request, data: Dataset) -> None:
    """The policy, the pages and, last of all, the card."""
    path = solution.path
    load_policy(path / "runs" / solution.best).save(path / "policy")
    write_choice(solution.choice, path / "choice.html")
    with atomic_write(path / "choice.json") as unfinished:
        unfinished.write_text(json.dumps(solution.choice.to_json(), indent=2) + "\n")
    write_page(make_report([path / "runs"]), path / "report.html")
    write_card(solution, request, data, path / "card.md")
