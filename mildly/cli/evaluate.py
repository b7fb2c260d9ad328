"""`mildly evaluate`: run a trained policy in its environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from rich.progress import Progress

from mildly.cli.marks import Mark
from mildly.cli.output import console, parse, table, use_threads
from mildly.errors import tell
from mildly.terminal import SafeConsole

if TYPE_CHECKING:
    from rich.table import Table

    from mildly.evaluation.rollout import Evaluation


@dataclass
class Options:
    """Options of `mildly evaluate`."""

    run: Annotated[str, Mark.POSITIONAL]
    """A run's folder (or a policy's, with --env)."""
    env: str | None = None
    """Another environment than the run's; MODULE:ID imports the module that registers it."""
    episodes: int = 10
    """Episodes to run."""
    seed: int | None = None
    """Episode i starts from environment seed 1000 * SEED + 100 + i; by default the run's own seed."""
    target_return: tuple[float, ...] = ()
    """Returns to aim at, one or several, each evaluated in turn; for policies that can be told one, such as a Decision
    Transformer's. By default the policy's own target."""
    threads: int | None = None
    """CPU threads; all cores by default. With several trainings at a time, give each 1: threads that
    wait for each other's cores are many times slower."""
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print a JSON object instead of tables, one per line for several targets."""


def main(args: Sequence[str]) -> int:
    """Parse, evaluate, print."""
    options = parse(
        Options,
        args,
        prog="mildly evaluate",
        description="Run a trained policy for whole episodes, deterministically.",
    )
    from mildly.evaluation.evaluate import evaluate

    use_threads(options.threads)
    targets: list[float | None] = [*options.target_return] or [None]
    total = options.episodes * len(targets)
    errors, results = SafeConsole(stderr=True), list["Evaluation"]()
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        bar = progress.add_task("episodes", total=total)

        def ended(done: int) -> None:
            done += options.episodes * len(results)
            progress.update(bar, completed=done)
            if not errors.is_terminal:
                tell(f"{done}/{total} episodes")

        for target in targets:
            given: dict[str, Any] = {"env": options.env, "episodes": options.episodes, "seed": options.seed}
            results.append(evaluate(options.run, **given, target_return=target, progress=ended))
    if options.json:
        for result in results:
            print(json.dumps(result.to_json()))
    elif len(results) > 1:
        console().print(of_targets(results))
    else:
        show(results[0])
    return 0


def of_targets(results: Sequence[Evaluation]) -> Table:
    """What came out for each return that was aimed at."""
    scored = results[0].scores is not None
    shown = table("target", "mean return", "sd", "lowest", "highest", "mean length", *(["score"] if scored else []))
    for result in results:
        returns = result.returns
        numbers = [result.target_return, result.mean_return, np.std(returns), min(returns), max(returns)]
        numbers += [np.mean(result.lengths), *([result.score] if scored else [])]
        shown.add_row(*(f"{number:.1f}" for number in numbers))
    return shown


def show(result: Evaluation) -> None:
    """Every episode of an evaluation, and their means."""
    out = console()
    episodes = table("episode", "seed", "return", "length", *(["score"] if result.scores else []))
    for i, (seed, value, length) in enumerate(zip(result.seeds, result.returns, result.lengths, strict=True)):
        score = [f"{result.scores[i]:.1f}"] if result.scores else []
        episodes.add_row(str(i + 1), str(seed), f"{value:.1f}", str(length), *score)
    out.print(episodes)
    spread = float(np.std(result.returns))
    aim = "" if result.target_return is None else f" aiming at {result.target_return:.1f}"
    line = f"\n{result.env_id}{aim}: mean return {result.mean_return:.1f} (sd {spread:.1f})"
    out.print(line + (f", normalized score {result.score:.1f}" if result.scores else ""))
