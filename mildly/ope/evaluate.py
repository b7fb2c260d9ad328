"""One policy judged on logged data: every estimator, beside what the log itself and its clone earn."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from mildly.data.dataset import Dataset
from mildly.data.select import pick_episodes
from mildly.errors import MildlyError, Stopped
from mildly.files import sha256
from mildly.ope.coverage import coverage
from mildly.ope.estimators import (
    ESTIMATORS,
    Estimate,
    Problem,
    check_data,
    check_names,
    disagreement,
    estimate,
    fitted_q,
    logged_return,
    plain,
)
from mildly.ope.fit import Say
from mildly.ope.judged import JudgedPolicy
from mildly.ope.settings import Settings
from mildly.policy import Policy, load_policy
from mildly.run import Plan, Run
from mildly.training.offline import resume, train
from mildly.weights import WEIGHTS

_EPISODES = 2  # that must be held out to judge by
GAMMA = 0.99
"""Of a policy whose run tells none."""
COVERED = 0.75
"""Share of states below which the data know too little of what a policy does."""


def silent(text: str) -> None:
    """Say nothing."""


@dataclass(frozen=True)
class Judgment:
    """What the data tell of a policy. All values are discounted returns from the data's starts."""

    policy: str
    dataset: str
    episodes: int
    gamma: float
    stochastic: bool
    anchors: Mapping[str, Estimate]
    """What the log earned, and what its clone would by fqe: the same unit, and a test of fqe on these data."""
    estimates: Mapping[str, Estimate]
    """By the names of the estimators."""
    coverage: float
    """Share of states in which the policy's action is like logged ones; 0.95 is the log's own."""
    data_return: float
    """The log's mean return without a discount; no estimate has this unit."""
    density: str
    """Which density of the policy importance weights use."""
    doubts: tuple[str, ...]
    """What speaks against every estimate."""
    notes: tuple[str, ...]
    """Which data it was judged by."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        tables = {
            name: {key: value.to_json() for key, value in getattr(self, name).items()}
            for name in ("anchors", "estimates")
        }
        values = {field.name: plain(getattr(self, field.name)) for field in dataclasses.fields(self)}
        return {**values, **tables}


def judge(
    run: str | os.PathLike[str],
    data: Dataset,
    *,
    estimators: Sequence[str] = tuple(ESTIMATORS),
    gamma: float | None = None,
    stochastic: bool = False,
    clone: bool = True,
    settings: Settings | None = None,
    out: str | os.PathLike[str] | None = None,
    say: Say = silent,
) -> Judgment:
    """Estimate what a saved policy would earn, from logged data alone.

    Args:
        run: a run's folder, or a `policy` folder.
        data: the log that the policy was trained on, of which the held-out episodes are judged by; or another one.
        estimators: names in `ESTIMATORS`.
        gamma: the discount factor; by default the run's own, or 0.99.
        stochastic: judge the policy's draws instead of its deterministic actions.
        clone: also clone the data and judge the clone, whose return is known to be near the log's.
        settings: how much work to take.
        out: a folder to keep fits in, so that an interrupted call goes on where it was; otherwise nothing is kept.
        say: hears of progress.
    """
    check_names(estimators)
    policy, plan = load_policy(run), plan_of(run)
    data, notes = judging_data({os.fspath(run): plan}, data)
    judged = JudgedPolicy.of(policy, data, os.fspath(run), stochastic=stochastic)
    gamma = gamma_of(plan) if gamma is None else gamma
    settings = settings or Settings()
    with kept_in(out) as folder:
        problem = Problem(judged, data, gamma, settings, folder, say, identity_of(run))
        estimates = {name: estimate(name, problem) for name in estimators}
        anchors = {"the log": logged_return(problem)}
        if clone:
            anchors["its clone (fqe)"] = fitted_q(clone_problem(problem, folder / "clone"))
    covered = coverage(judged, data, settings.seed).share
    return Judgment(
        policy=os.fspath(run),
        dataset=data.meta.name,
        episodes=len(data.episode_ends()),
        gamma=gamma,
        stochastic=stochastic,
        anchors=anchors,
        estimates=estimates,
        coverage=covered,
        data_return=float(data.known_returns().mean()),
        density=judged.density,
        doubts=(*_doubts(covered, anchors), *disagreement(estimates)),
        notes=tuple(notes),
    )


def _doubts(covered: float, anchors: Mapping[str, Estimate]) -> Iterator[str]:
    if covered < COVERED:
        yield (
            f"in {100 * (1 - covered):.0f} % of the states the policy does what the data hardly show (5 % are usual): "
            "no estimate knows what follows"
        )
    log, clone = (anchors.get(name) for name in ("the log", "its clone (fqe)"))
    if log is not None and clone is not None and (clone.high < log.low or clone.low > log.high):
        yield (f"fqe gives the log's own clone {clone.value:.4g}, but the log earned {log.value:.4g}: fqe errs here")


def judging_data(plans: Mapping[str, Plan | None], data: Dataset) -> tuple[Dataset, list[str]]:
    """The episodes that none of some policies was trained on, and what there is to say of them."""
    check_data(data)
    known = {name: _kept_out(plan, data) for name, plan in plans.items() if plan is not None}
    trained = {name: kept for name, kept in known.items() if kept is not None}
    if not trained:
        return data, []
    if not all(trained.values()):
        return data, _seen_in_training(trained, len(data.episode_ends()))
    common = sorted(set.intersection(*map(set, trained.values())))
    if len(common) < _EPISODES:
        raise MildlyError(
            f"{len(common)} of the episodes were held out of every training; judging needs {_EPISODES}. Train with one "
            "--seed and one --holdout for all, such as 0.2."
        )
    held = pick_episodes(data, np.array(common))
    check_data(held)
    return held, [f"judged by the {len(common):,} episodes that were held out of training"]


def _kept_out(plan: Plan, data: Dataset) -> Sequence[int] | None:
    """Which episodes of the data a run was not trained on; None where it has never seen the data."""
    fingerprint = data.meta.fingerprint
    if fingerprint and fingerprint in (stage.fingerprint for stage in plan.finetune):
        return []
    return plan.held_out if fingerprint and fingerprint == plan.data.fingerprint else None


def _seen_in_training(trained: Mapping[str, Sequence[int]], episodes: int) -> list[str]:
    """A note for each policy that is judged by episodes that it was trained on, and what to do."""
    notes = []
    for name, kept_out in trained.items():
        seen = f"{episodes - len(kept_out):,} of the {episodes:,}" if kept_out else f"all {episodes:,}"
        notes.append(f"{name}: was trained on {seen} episodes that it is judged by, so that its estimates are too good")
    each = "all with one --seed and one" if len(trained) > 1 else "with"
    return [*notes, f"train {each} --holdout, such as 0.2, and what that keeps out is what is judged by"]


def clone_problem(problem: Problem, folder: Path) -> Problem:
    """The same problem for a clone of the data: a policy that draws as they do."""
    policy = clone_of(problem.data, folder / "run", problem.settings)
    judged = JudgedPolicy.of(policy, problem.data, "the clone", stochastic=True)
    return problem.for_policy(judged, folder, identity_of(folder / "run"))


def clone_of(data: Dataset, folder: Path, settings: Settings) -> Policy:
    """What imitates the data, by draws. A folder that holds the run already is gone on with."""
    plain = dataclasses.replace(data, meta=dataclasses.replace(data.meta, env_id=None))  # never evaluated
    if (folder / "run.json").exists():
        begun = Run.open(folder).plan()
        asked = settings.density_steps, settings.seed, data.meta.fingerprint
        if (begun.steps, begun.seed, begun.data.fingerprint) != asked:
            raise MildlyError(f"{folder}: is of other episodes, or of other settings. Choose another --out.")
        run = resume(folder, dataset=plain, quiet=True)
    else:
        run = train(
            "bc",
            plain,
            preset="small",
            steps=settings.density_steps,
            seed=settings.seed,
            out=folder,
            eval_every=0,
            threads=1,
            check=False,
            quiet=True,
        )
    return load_policy(run.path)


def plan_of(run: str | os.PathLike[str]) -> Plan | None:
    """The plan of a run; a policy's folder has none."""
    return Run.open(run).plan() if (Path(run) / "run.json").is_file() else None


def gamma_of(plan: Plan | None) -> float:
    """The discount that a policy was trained with, or the usual one."""
    return float(plan.config.get("gamma", GAMMA)) if plan is not None else GAMMA


def identity_of(run: str | os.PathLike[str]) -> str:
    """What tells a saved policy from others: the checksum of its weights."""
    folder = Path(run)
    return sha256((folder / "policy" if (folder / "policy").is_dir() else folder) / WEIGHTS)


@contextmanager
def kept_in(out: str | os.PathLike[str] | None) -> Iterator[Path]:
    """The folder to work in: the given one, which stays, or one that disappears. Who stops the work is told which."""
    try:
        if out is None:
            with TemporaryDirectory(prefix="mildly-ope-") as folder:
                yield Path(folder)
            return
        try:
            Path(out).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MildlyError(f"{out}: cannot be made ({error.strerror}). Choose another --out.") from error
        yield Path(out)
    except (Stopped, KeyboardInterrupt) as stopped:
        nothing = "nothing was kept. With --out DIR the same command goes on where it was stopped."
        told = nothing if out is None else f"the fits so far are kept in {out}."
        raise Stopped.retold(stopped, f"stopped; {told}") from stopped
