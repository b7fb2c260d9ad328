"""What is said at the end of a training: what the log's episodes earned, beside the policy's own evaluations.

Of a policy that was never run in an environment: the data, its losses, how far it is from the data.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mildly.data.dataset import Dataset
from mildly.data.options import ImportOptions
from mildly.data.returns import discounted_returns
from mildly.policy import Policy
from mildly.run import Plan, Run

_ROWS = 10_000  # of the data, on which the policy is asked
_AT_BOUND = 0.99  # in [-1, 1]
_FAR = 0.5  # of what the log's rewards come to, by which the critics' values may differ from it
_SMALL = 1_000_000  # rows of data whose returns are computed without a wait


def outlook(run: Run, plan: Plan, data: Dataset, policy: Policy, warnings: Sequence[str] | None) -> list[str]:
    """What can be said of a policy at the end of a training without an evaluation, a line each; and what to do next.

    Args:
        run: the run.
        plan: its plan.
        data: what it was trained on.
        policy: what it has learned.
        warnings: what the look at the data has found; None if nobody has looked now.
    """
    last: Mapping[str, Any] = next(iter(run.metrics()[-1:]), {})
    losses = ", ".join(f"{name} {value:.4g}" for name, value in last.items() if name.startswith("loss_"))
    returns = data.known_returns()
    spread = f", mean return {returns.mean():.4g} ({returns.min():.4g} to {returns.max():.4g})"
    return [
        "no environment: what the policy earns is not known. What the data tell of it:",
        f"- data: {len(data):,} transitions in {len(data.episodes()):,} episodes"
        + (spread if np.isfinite(returns).all() else ""),
        *_distance(data, policy),
        *_values(plan, data, last, policy.reward_scale),
        *([f"- losses at the end: {losses}"] if losses else []),
        *([] if warnings is None else [f"- check of the data: {'; '.join(warnings) or 'no warning'}"]),
        "next:",
        *_next_steps(run, plan, data, look=bool(warnings)),
    ]


def earned_by_the_log(data: Dataset, last: Mapping[str, Any], steps: int, goes_on: str) -> list[str]:
    """What a policy's returns compare with: those of the logged episodes, as far as they are known.

    Args:
        data: the log.
        last: the last evaluation.
        steps: those of the training, of which the last evaluation may lack some.
        goes_on: the command that prolongs it.
    """
    returns = data.known_returns()
    if not np.isfinite(returns).all():
        return []
    scores = data.score(returns)
    score = "" if scores is None else f", normalized score {scores.mean():.1f}, best {scores.max():.1f}"
    said = [f"the log's own episodes: mean return {returns.mean():.1f}, best {returns.max():.1f}{score}"]
    same = last["step"] == steps and last["env_id"] == data.meta.env_id
    if same and last["mean_return"] < returns.mean():
        said.append(f"this policy earns less than the log did: more steps may help ({goes_on} --steps N)")
    return said


def _next_steps(run: Run, plan: Plan, data: Dataset, *, look: bool) -> Iterator[str]:
    folder = shlex.quote(str(run.path))
    if plan.dataset is not None:
        source = f"{shlex.quote(plan.dataset)} {ImportOptions.from_json(plan.reading).words()}".rstrip()
        if look:
            yield f"  mildly data check {source}   (what the warnings mean)"
        if plan.algorithm != "bc":
            options = f"{source}{_holdout(plan, data)}"
            yield f"  mildly train bc --dataset {options}   (imitation, which this policy must be better than)"
        if "gamma" in plan.config:
            yield f"  mildly ope {folder} --dataset {source}   (what it would earn, estimated from the data)"
    yield f"  mildly report {folder} -o report.html   (values, losses and distance against time)"
    yield f"  mildly evaluate {folder} --env MODULE:ID   (with a simulator; in Python env= takes an object, too)"


def _holdout(plan: Plan, data: Dataset) -> str:
    """The flags that keep the same episodes out of another training, which can then be judged beside this one."""
    held = len(plan.held_out)
    if not held:
        return ""
    episodes = len(data.episode_ends()) + held
    shares = (f"{held / episodes:.{digits}g}" for digits in range(1, 17))
    share = next(each for each in shares if round(float(each) * episodes) == held)
    return f" --holdout {share}" + (f" --seed {plan.seed}" if plan.seed else "")


def _distance(data: Dataset, policy: Policy) -> list[str]:
    """How far the policy's actions are from the logged ones, where it acts on the observation alone."""
    if policy.actor.start(1) is not None:
        return []
    rows = np.linspace(0, len(data) - 1, min(len(data), _ROWS)).astype(np.int64)
    logged = np.asarray(data.actions[rows], dtype=np.float64)
    acted = policy.act(data.observations[rows])
    acted = acted if policy.action_space is None else policy.action_space.to_unit(acted)
    error, usual = (_rms(acted - logged), _rms(logged - logged.mean(axis=0)))
    bounds = [f"{100 * (np.abs(actions) > _AT_BOUND).mean():.0f} %" for actions in (acted, logged)]
    return [
        f"- distance: its actions are {50 * error:.1f} % of their range away from the logged ones (root mean square); "
        f"the logged ones are {50 * usual:.1f} % away from their own mean",
        f"- at a bound: {bounds[0]} of its actions, {bounds[1]} of the logged ones",
    ]


def _rms(difference: np.ndarray[Any, Any]) -> float:
    return float(np.sqrt(np.square(difference).mean()))


def _values(plan: Plan, data: Dataset, last: Mapping[str, Any], reward_scale: float) -> list[str]:
    """What the critics believe of the logged actions, beside what these have brought."""
    if "q_data" not in last:
        return []
    own = f", the policy's {last['q_ood']:.4g}" if "q_ood" in last else ""
    seen = ""
    if "gamma" in plan.config and len(data) <= _SMALL:
        value, weight = discounted_returns(data, float(plan.config["gamma"]))
        earned = reward_scale * (value * weight).sum() / weight.sum()
        seen = f"; the log's own discounted rewards come to {earned:.4g}"
        if abs(last["q_data"] - earned) > _FAR * abs(earned):
            seen += ". That is far apart: after few steps critics have not learned yet; after many, they err"
    return [f"- values: the critics give the logged actions {last['q_data']:.4g}{own}{seen}"]
