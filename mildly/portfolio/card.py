"""The model card: what a policy is, what speaks for it and against it, in words for those who must decide."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mildly.data.dataset import Dataset
from mildly.errors import printable
from mildly.files import atomic_write
from mildly.ope.estimators import Estimate
from mildly.ope.evaluate import COVERED
from mildly.portfolio.folder import Request
from mildly.portfolio.plan import LEARNERS
from mildly.versions import versions

if TYPE_CHECKING:
    from mildly.portfolio.solve import Solution

_COLUMNS = 40  # of a log that are listed
_ESTIMATORS = {
    "fqe": "fitted Q evaluation",
    "wis": "weighted importance sampling",
    "dr": "doubly robust: both together",
    "model": "rollouts in a learned model",
}
_DEPLOY = (
    "The log supports putting {best} in place of what was done so far. It is an estimate all the same: begin in small "
    "steps, beside what you do now, and compare what it earns."
)
_KEEP = (
    "The policy in this folder is the best candidate, {best}. The log does not support putting it in place of what was "
    "done so far."
)


def write_card(solution: Solution, request: Request, data: Dataset, path: Path) -> None:
    """Write the card as Markdown."""
    parts = [
        *_head(solution, request, data),
        *_earnings(solution, data),
        *_belief(solution),
        *_training(solution, request),
        *_environment(solution, data),
        *_data(request, data),
        *_limits(solution),
        *_use(solution, data),
    ]
    with atomic_write(path) as unfinished:
        unfinished.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _head(solution: Solution, request: Request, data: Dataset) -> Iterator[str]:
    choice, best = solution.choice, solution.best
    held = choice.episodes
    yield f"# A policy for {_plain(data.meta.name)}"
    yield f"**{_plain(choice.verdict)}**"
    yield (_KEEP if choice.deploy is None else _DEPLOY).format(best=best)
    rows = [
        ("decides", ", ".join(_column(data, "actions", i) for i in range(data.action_size))),
        ("looks at", ", ".join(_column(data, "observations", i) for i in _listed(data.observation_size))),
        ("learned by", f"{best}: {LEARNERS[best].words}; {solution.plan.rungs[-1].steps:,} gradient steps"),
        ("learned from", f"{_episodes(data) - held:,} of {_episodes(data):,} episodes; {held:,} were kept to judge by"),
        ("made with", f"mildly {versions().get('mildly', '')}, seed {request.seed}"),
    ]
    yield _table(("this policy", ""), rows)


def _earnings(solution: Solution, data: Dataset) -> Iterator[str]:
    choice = solution.choice
    yield "## What it would earn"
    rows = [("what the log did", f"{choice.log.value:.4g}", _interval(choice.log), "", "95 %")]
    for each in choice.candidates:
        gain = f"{each.gain.value:+.3g} ({each.gain.low:+.3g} to {each.gain.high:+.3g})"
        cells = (f"{each.value.value:.4g}", _interval(each.value), gain, f"{100 * each.covered.share:.0f} %")
        rows.append((each.run, *cells))
    yield _table(("", "value", "95 % interval", "gain over the log", "covered"), rows)
    yield (
        "A value is the sum of all rewards from the start of an episode on, where each counts "
        f"{choice.gamma:g} times as much as the one before it. Where the log only stops watching, the sum goes on; "
        f"where an episode ended for good, it ends.{_each_step(solution, data)} The {choice.episodes:,} episodes that "
        "nobody was trained on tell what the log earned, and what the candidates would."
    )
    yield (
        "*Covered* is the share of states in which the policy does what the log has seen done in like states; below "
        f"{100 * COVERED:.0f} % nobody knows what follows, whatever the estimate says."
    )


def _each_step(solution: Solution, data: Dataset) -> str:
    """Values of a task that never ends, as people know them: what a step earns."""
    choice = solution.choice
    if np.asarray(data.terminated).any():
        return ""
    log, best = ((1 - choice.gamma) * one.value for one in (choice.log, choice.candidates[0].value))
    return f" In rewards of a single step that is about {log:.3g} for the log and {best:.3g} for {solution.best}."


def _belief(solution: Solution) -> Iterator[str]:
    choice = solution.choice
    yield "## How far these numbers can be believed"
    if choice.grading is not None:
        grading = choice.grading
        yield (
            f"Groups of the log (by {_plain(grading.by)}) were held out in turn. What each really earned is known, and "
            "was estimated from the others: so every estimator shows on this very log whether it is right."
        )
        rows = [
            (
                f"{name} ({_ESTIMATORS[name]})" if name in _ESTIMATORS else name,
                f"{one.error:.3g}",
                f"{one.rank_correlation:.2f}",
                f"{choice.weights.get(name, 0.0):.2f}",
                _plain(one.failure) or "passed",
            )
            for name, one in grading.grades.items()
        ]
        rows.append(("guessing", f"{grading.guess_error:.3g}", "", "", ""))
        yield _table(("estimator", "off by", "rank correlation", "weight", "on this log"), rows)
        yield (
            "*Guessing* is to say that a group earned what the others did. An estimator passes that is off by less and "
            "tells better groups from worse (a rank correlation of 1 is perfect, 0 is chance). *Weight* is what it "
            "counts in the values above"
            + (": what fails has none." if grading.best is not None else f". {_plain(choice.basis)}")
        )
        yield _plain(grading.verdict())
    doubts = [f"{each.run}: {doubt}" for each in choice.candidates for doubt in each.value.doubts]
    if doubts:
        yield "Doubts of the estimators themselves:"
        yield _list(doubts)


def _training(solution: Solution, request: Request) -> Iterator[str]:
    yield "## How it was found"
    yield (
        f"{len(LEARNERS)} candidates were trained by successive halving: after each rung those went on that fitted Q "
        "evaluation (fqe) on the held-out episodes put first. Its values are below, of candidates as they were then. "
        "The choice above is among the finalists."
    )
    head = ["candidate", "", *(f"step {told.steps:,}" for told in solution.rungs)]
    rows = []
    for name, learner in LEARNERS.items():
        cells = []
        for told in solution.rungs:
            value = told.values.get(name, {}).get("value")
            finalist = "finalist" if name in told.kept and not told.values else ""
            cells.append("diverged" if name in told.failed else finalist if value is None else f"{value:.4g}")
        rows.append((name, learner.words, *cells))
    yield _table(head, rows)
    asked = f"{request.minutes:g} minutes" if request.minutes is not None else "given in steps"
    plan = solution.plan
    yield (
        f"Budget: {asked}. Fits of fqe had {plan.fit_steps:,} steps; those of the density of logged actions, and of a "
        f"group's clone, {plan.density_steps:,}. Each training has its run folder in `runs/`; `report.html` shows how "
        "they learned, `choice.html` all intervals and diagnostics."
    )


def _environment(solution: Solution, data: Dataset) -> Iterator[str]:
    if not solution.returns:
        return
    yield "## What the environment said afterwards"
    yield "These numbers were not used for choosing. Candidates that did not go on are shown as they were left."
    means = {name: float(np.mean(found)) for name, found in solution.returns.items()}
    rows = [
        (name, f"{means[name]:.4g}", f"{min(found):.4g} to {max(found):.4g}", "chosen" if name == solution.best else "")
        for name, found in sorted(solution.returns.items(), key=lambda each: -means[each[0]])
    ]
    rows.append(("the log", f"{data.known_returns().mean():.4g}", "", ""))
    yield _table(("", f"mean return in {_plain(data.meta.env_id)}", "episodes", ""), rows)
    yield f"Regret, what the best candidate in hindsight earned more: {solution.regret:.4g}."


def _data(request: Request, data: Dataset) -> Iterator[str]:
    returns = data.known_returns()
    yield "## The log"
    facts = [
        f"{_plain(data.meta.name)}: {len(data):,} transitions in {_episodes(data):,} episodes",
        f"an episode earned {returns.mean():.4g} on average, without a discount ({returns.min():.4g} to "
        f"{returns.max():.4g})",
        f"fingerprint {data.meta.fingerprint[:16]}",
    ]
    yield _list([*facts, *map(_plain, request.said or ["the look at the data found nothing to warn of"])])


def _limits(solution: Solution) -> Iterator[str]:
    yield "## Limits"
    yield _list(
        [
            "A reason that no column of the log shows is in no estimate.",
            "What follows an action that nobody has tried is a guess; hence the coverage.",
            "Values are those of the time of the log. If the world has changed since, they are history.",
            f"The same {solution.choice.episodes:,} episodes have chosen among the candidates and judged them, so that "
            "the best one's value is a little too good.",
            "The policy has no notion of safety beyond what the rewards say. It says where an observation is unlike "
            "all that it was trained on (`policy.unseen`): hand over to what you do now there.",
        ]
    )


def _use(solution: Solution, data: Dataset) -> Iterator[str]:
    yield "## How to use it"
    names = data.meta.observation_names
    observation = (
        "{" + ", ".join(f"{name!r}: ..." for name in names[:_COLUMNS]) + "}"
        if names
        else f"[...]  # {data.observation_size} numbers"
    )
    place = str(solution.path)
    yield f"```python\nimport mildly\n\npolicy = mildly.load_policy({place!r})\npolicy.act({observation})\n```"
    command = f"mildly evaluate {shlex.quote(place)} --env {data.meta.env_id or 'MODULE:ID'}"
    yield (
        f"With a simulator: `{command}`. The policy itself is the folder `policy/`, two plain files. Everything else "
        "tells how it came about."
    )


def _interval(one: Estimate) -> str:
    return f"{one.low:.4g} to {one.high:.4g}"


def _episodes(data: Dataset) -> int:
    return len(data.episode_ends())


def _listed(size: int) -> range:
    return range(min(size, _COLUMNS))


def _column(data: Dataset, field: str, i: int) -> str:
    """A column with its range: of actions the bounds, of observations what the log has."""
    space = data.meta.action_space
    if field == "actions" and space is not None:
        low, high = space.low[i], space.high[i]
    else:
        low, high = (float(end(getattr(data, field)[:, i])) for end in (np.min, np.max))
    name = _plain(data.column_name(i, field).strip("'"))
    return f"{name} ({low:.4g} to {high:.4g})"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _list(items: Sequence[str]) -> str:
    return "\n".join(f"- {item}" for item in items)


def _plain(text: object) -> str:
    """Other people's words, which must be neither markup nor a new line."""
    cleaned = " ".join(printable(text).split())
    for mark in ("\\", "|", "`", "*", "[", "]"):
        cleaned = cleaned.replace(mark, f"\\{mark}")
    return cleaned.replace("<", "&lt;")
