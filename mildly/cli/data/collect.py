"""`mildly data collect`: make a data set by running policies in an environment."""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mildly.cli.marks import Mark
from mildly.cli.output import console, parse
from mildly.data.tasks import base_name
from mildly.errors import MildlyError, tell
from mildly.files import plain_name
from mildly.terminal import SafeConsole

if TYPE_CHECKING:
    from mildly.collect.agent import Agent
    from mildly.collect.make_set import Part

_STEPS = 100_000
_AGENT_STEPS = {"standard": 200_000, "small": 20_000}
_PLAIN_SECONDS, _BAR_SECONDS = 15.0, 0.25

_DESCRIPTION = """Make a data set by running policies in an environment.

Give policies of your own with --policy:
  random                 uniformly random actions
  FOLDER                 a run, or a policy that a run has left
  FILE.npz               a network as arrays
  FILE.py:FUNCTION       a Python function, also as MODULE:FUNCTION: observations (n, o) and a numpy generator to
                         actions (n, a) in the environment's units

or ask for one of D4RL's kinds with --kind. All but random come from a SAC agent that learns online; it lives in the
folder --agent, is trained there at first use, and goes on where it stood if it was interrupted:
  random                 uniformly random actions
  expert                 the agent at its best
  medium                 the agent when its return was --share of the way from random to expert
  medium-expert          half and half
  medium-replay          all that the agent experienced until it was medium
  full-replay            all that the agent experienced

Examples:
  mildly data collect sets/random --env Hopper-v4
  mildly data collect sets/medium --env Hopper-v4 --kind medium --agent agents/hopper
  mildly data collect sets/mine --env Pendulum-v1 --policy runs/first --policy controller.py:act --parts 3 1
"""


@dataclass
class CollectOptions:
    """Options of `mildly data collect`."""

    out: Annotated[Path, Mark.POSITIONAL]
    """Folder to write; it appears when the set is complete."""
    env: str
    """A gymnasium environment with Box spaces, e.g. Hopper-v4."""
    kind: Literal["random", "medium", "medium-replay", "expert", "medium-expert", "full-replay"] | None = None
    """One of D4RL's kinds, see above; random where no --policy is given."""
    policy: Annotated[tuple[str, ...], Mark.REPEATED] = ()
    """What acts, see above. May be given several times: the policies act one after the other."""
    parts: tuple[float, ...] = ()
    """The policies' parts of the steps, e.g. 3 1; equal by default."""
    steps: int | None = None
    """Transitions to collect, 100000 by default; replay kinds have as many as the agent made."""
    seed: int = 0
    """Same seed, same bits."""
    environments: int = 16
    """Environments stepped side by side; the data depend on it, as on the seed."""
    deterministic: Annotated[bool, Mark.NO_NEGATIVE] = False
    """The policies' mean actions; otherwise draws from them."""
    name: str | None = None
    """What the set is called; made of environment and kind by default, e.g. hopper-medium-collected."""
    agent: Path | None = None
    """The agent's folder. Where the benchmark has no reference returns, its random and best returns serve."""
    agent_steps: int | None = None
    """Environment steps to train the agent for; by default as before, or 200000 (20000 with --preset small)."""
    agent_seed: int | None = None
    """The agent's seed, 0 by default."""
    preset: Literal["standard", "small"] | None = None
    """The agent's networks and schedule: standard for robots (the default), small for tasks such as Pendulum."""
    share: float = 1 / 3
    """Medium is the first evaluation that reaches random + SHARE * (expert - random)."""


def main(args: Sequence[str]) -> int:
    """Parse, collect, print."""
    options = parse(CollectOptions, args, prog="mildly data collect", description=_DESCRIPTION)
    _check(options)
    # Before numpy is loaded: the policies' matrices are small, and threads would only wait for each other.
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch

    from mildly.collect.make_set import describe_set, make_set
    from mildly.environments import trust_env

    torch.set_num_threads(1)
    trust_env(options.env)
    agent = None if options.agent is None else _train(options, options.agent)
    parts = _parts(options, agent)
    meta = describe_set(options.name or _default_name(options), options.env, agent)
    total = sum(part.steps for part in parts)
    with _progress(f"collecting {meta.name}", total) as show:
        made = make_set(
            options.out,
            options.env,
            parts,
            meta,
            seed=options.seed,
            environments=options.environments,
            progress=lambda done: show(done, ""),
        )
    returns = made.episode_returns()
    score = made.score(returns)
    scored = "" if score is None else f" (normalized score {score.mean():.1f})"
    out = console()
    if agent is not None and (options.kind or "").startswith("medium") and agent.medium(options.share) == agent.best():
        out.print(
            "warning: the agent's first evaluation at the medium level is also its best, so that medium and expert are "
            "one policy. Train it longer (--agent-steps), or ask for less (--share)."
        )
    out.print(f"{options.out}: {len(made):,} transitions, {len(returns):,} episodes")
    out.print(f"mean return {returns.mean():.1f}{scored}")
    out.print(f"next: mildly data info {shlex.quote(str(options.out))}")
    return 0


def _check(options: CollectOptions) -> None:
    """Contradictions, found before anything is trained or written."""
    kind = options.kind or "random"
    if options.out.exists():
        raise MildlyError(f"{options.out}: exists already. Give another folder, or remove it first.")
    if options.policy and options.kind:
        raise MildlyError("give either --kind or --policy, not both.")
    if options.parts and not options.policy:
        raise MildlyError("--parts are the policies' parts of the steps; give the policies with --policy.")
    if kind != "random" and options.agent is None:
        raise MildlyError(
            f"--kind {kind} needs an agent: give a folder with --agent. If there is none yet, one is trained there."
        )
    if kind.endswith("replay") and (options.steps is not None or options.deterministic):
        raise MildlyError(f"{kind} is what the agent experienced; --steps and --deterministic do not apply.")
    agents = {"--agent-steps": options.agent_steps, "--agent-seed": options.agent_seed, "--preset": options.preset}
    given = [flag for flag, value in agents.items() if value is not None]
    if given and options.agent is None:
        raise MildlyError(f"{', '.join(given)}: about the agent, but there is none; give its folder with --agent.")


def _train(options: CollectOptions, folder: Path) -> Agent:
    """The agent, trained as far as was asked for."""
    from mildly.collect.agent import AgentPlan, read_plan, train_agent

    begun = read_plan(folder)
    if begun is None or options.preset is not None or options.agent_seed is not None:
        plan = AgentPlan.preset(options.preset or "standard", options.env, options.agent_seed or 0)
    else:
        plan = replace(begun[0], env_id=options.env)
    default = begun[1] if begun else _AGENT_STEPS[options.preset or "standard"]
    steps = default if options.agent_steps is None else options.agent_steps
    try:
        with _progress(f"training {folder}", steps) as show:
            return train_agent(
                folder, plan, steps, lambda step, value: show(min(step, steps), f"last return {value:.1f}"), tell
            )
    except (KeyboardInterrupt, SystemExit):
        tell(f"{folder}: the same command goes on with the agent from its last checkpoint")
        raise


def _parts(options: CollectOptions, agent: Agent | None) -> list[Part]:
    from mildly.collect.make_set import kind_parts, policy_parts

    steps, kind = options.steps or _STEPS, options.kind or "random"
    if options.steps is not None and options.steps < 1:
        raise MildlyError(f"steps must be at least 1, not {options.steps}.")
    if agent is None or options.policy or kind == "random":
        policies = options.policy or ("random",)
        return policy_parts(policies, options.env, steps, shares=options.parts, deterministic=options.deterministic)
    return kind_parts(kind, agent, steps, share=options.share, deterministic=options.deterministic)


def _default_name(options: CollectOptions) -> str:
    environment = base_name(re.split("[/:]", options.env)[-1]).lower()
    kind = options.kind or ("policy" if options.policy else "random")
    return plain_name(f"{environment}-{kind}-collected")


@contextmanager
def _progress(title: str, total: int) -> Iterator[Callable[[int, str], None]]:
    """A bar on a terminal, a line every few seconds elsewhere; gives the function that takes the news."""
    errors = SafeConsole(stderr=True)
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[news]}", markup=False),
    )
    shown, last = time.monotonic(), 0
    with Progress(*columns, console=errors, disable=not errors.is_terminal) as bar:
        task = bar.add_task(title, total=total, news="")

        def show(done: int, news: str) -> None:
            nonlocal shown, last
            now = time.monotonic()
            waits = now - shown < (_BAR_SECONDS if errors.is_terminal else _PLAIN_SECONDS)
            if done == last or (done < total and waits):
                return
            shown, last = now, done
            bar.update(task, completed=done, news=news)
            if not errors.is_terminal:
                tell(f"{title}  {done}/{total}  {news}".rstrip())

        yield show
