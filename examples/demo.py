"""The demo behind `make demo`: logged Pendulum data in, a policy far better than the data out.

Safe to stop and start again: each training goes on from its last checkpoint, and a finished one is not repeated.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

import mildly
from mildly.errors import Stopped
from mildly.report.plots import learning_curves
from mildly.run import Run

DATASET = "pendulum-mixed"
STEPS = {"bc": 5_000, "mcq": 5_000}
OUT = Path("demo")


def train(algorithm: str) -> Run:
    """Train with small networks, or go on with what an earlier demo began."""
    folder = OUT / algorithm
    if (folder / "run.json").exists():
        return mildly.resume(folder)
    return mildly.train(
        algorithm, DATASET, preset="small", steps=STEPS[algorithm], eval_every=500, checkpoint_every=500, out=folder
    )


def main() -> None:
    """Train BC and MCQ, compare them with their data, draw the learning curve."""
    began = time.monotonic()
    console = Console(highlight=False)
    data = mildly.load_dataset(DATASET)
    console.print(f"\n{DATASET}: {len(data):,} logged transitions of random and half-trained behavior\n")
    runs = {algorithm: train(algorithm) for algorithm in STEPS}

    table = Table("", "mean return", "normalized score", "episodes", title="\nPendulum", title_justify="left", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    returns = data.episode_returns()
    data_scores = data.score(returns)
    assert data_scores is not None
    levels = {"the data": float(data_scores.mean())}
    table.add_row("the data itself", f"{returns.mean():.0f}", f"{levels['the data']:.1f}", str(len(returns)))
    for algorithm, label in (("bc", "BC: imitates the data"), ("mcq", "MCQ: learns from it")):
        result = mildly.evaluate(runs[algorithm], episodes=10)
        assert result.score is not None
        levels[algorithm] = result.score
        table.add_row(label, f"{result.mean_return:.0f}", f"{result.score:.1f}", str(len(result.returns)))
    console.print(table)
    picture = learning_curves(
        {"MCQ": runs["mcq"], "BC": runs["bc"]},
        OUT / "learning_curve.png",
        levels={"mean of the data": levels["the data"]},
        title="Pendulum, offline: policies learned from logged data alone",
    )
    console.print(f"\n0 is a random policy, 100 an expert's. Took {time.monotonic() - began:.0f} s.")
    console.print(f"The learning curve: {picture}\n")
    console.print("Go on with these ('source .venv/bin/activate' puts mildly on the PATH):")
    for command in (
        f"evaluate {OUT}/mcq --episodes 20",
        f"train --resume {OUT}/mcq --steps {STEPS['mcq'] + 2_000}",
        "data info hopper-mixed",
        "train mcq --help",
    ):
        console.print(f"  .venv/bin/mildly {command}")


if __name__ == "__main__":
    try:
        main()
    except Stopped as stopped:
        print(f"{stopped}\nOr run the demo again: it goes on from there.", file=sys.stderr)
        sys.exit(stopped.exit_code)
