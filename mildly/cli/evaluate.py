"""`mildly evaluate`: run a trained policy in its environment."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from rich.progress import Progress

from mildly.cli.marks import Mark
from mildly.cli.output import console, parse, table
from mildly.errors import tell
from mildly.terminal import SafeConsole


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
    json: Annotated[bool, Mark.NO_NEGATIVE] = False
    """Print one JSON object instead of tables."""


def main(args: Sequence[str]) -> int:
    """Parse, evaluate, print."""
    options = parse(
        Options,
        args,
        prog="mildly evaluate",
        description="Run a trained policy for whole episodes, deterministically.",
    )
    from mildly.evaluation.evaluate import evaluate

    errors = SafeConsole(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as progress:
        bar = progress.add_task("episodes", total=options.episodes)

        def ended(done: int) -> None:
            progress.update(bar, completed=done)
            if not errors.is_terminal:
                tell(f"{done}/{options.episodes} episodes")

        result = evaluate(options.run, env=options.env, episodes=options.episodes, seed=options.seed, progress=ended)
    if options.json:
        print(json.dumps(result.to_json()))
        return 0
    out = console()
    episodes = table("episode", "seed", "return", "length", *(["score"] if result.scores else []))
    for i, (seed, value, length) in enumerate(zip(result.seeds, result.returns, result.lengths, strict=True)):
        score = [f"{result.scores[i]:.1f}"] if result.scores else []
        episodes.add_row(str(i + 1), str(seed), f"{value:.1f}", str(length), *score)
    out.print(episodes)
    spread = float(np.std(result.returns))
    line = f"\n{result.env_id}: mean return {result.mean_return:.1f} (sd {spread:.1f})"
    out.print(line + (f", normalized score {result.score:.1f}" if result.scores else ""))
    return 0
