"""Does the log confirm what a run's critics promise of other actions? No simulator is asked.

    python benchmarks/confirmed_slopes.py RUN... -o benchmarks/results/confirmed_slopes.json

A logged action deviates from the policy's by e = a - mu(s), and the critics' slope g at mu(s) promises p = g e for it.
What followed is in the log: the advantage A, a sum of the temporal differences of V(s) = mean_j Q_j(s, pi(s)) over the
next steps, discounted by gamma and by a further 0.95 (generalized advantage estimation). The coefficient of A on p is 1
if the log brings what the critics promise, 0 if it brings nothing, and negative if it brings the contrary.

A policy that imitates the data badly in some states deviates there in the same way each time, and A is then due to the
state. So p is compared with A through the change of the deviation from one step to the next, g (e - e_before), in which
such errors cancel and the noise of the logging policy stays (an instrumental variable). The rows are told apart by how
far into an episode they lie.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from action_resolution import learner_of, seen_by
from critic_slopes import PARTS
from torch import Tensor

from mildly.data.dataset import Array, Dataset
from mildly.run import Run, versions

BLOCK = 20_000
DECAY = 0.95
DRAWS = 4  # of the policy, whose mean value is V


def followed(differences: Array, data: Dataset, factor: float) -> Array:
    """The sum of all temporal differences to come in a row's segment, each step further on counting `factor` less."""
    total = np.empty(len(differences))
    for segment in data.segments():
        later = 0.0
        for row in range(segment.stop - 1, segment.start - 1, -1):
            later = total[row] = differences[row] + factor * later
    return total


def coefficient(outcome: Array, promise: Array, instrument: Array) -> tuple[float, float]:
    """Of the outcome on the promise, as far as the instrument tells; and its standard error."""
    y, x, z = (column - column.mean() for column in (outcome, promise, instrument))
    slope = (z @ y) / (z @ x)
    return float(slope), float(np.sqrt(np.square(z * (y - slope * x)).sum()) / abs(z @ x))


def promises(learner: Any, states: Tensor, actions: Tensor) -> Tensor:
    """The slope of the critics' mean at the policy's action, and the logged action's deviation: (rows, 2, a)."""
    policy = learner.actor(states).mean.detach().tanh().requires_grad_()
    (slope,) = torch.autograd.grad(learner.critics(states, policy).mean(dim=0).sum(), policy)
    return torch.stack([slope, actions - policy.detach()], dim=1)


def values(learner: Any, states: Tensor, generator: torch.Generator) -> Tensor:
    """V(s)."""
    with torch.no_grad():
        drawn = learner.actor(states).sample(DRAWS, generator)
        found: Tensor = learner.critics(states, drawn).mean(dim=(0, 2))
    return found


def confirmed(learner: Any, data: Dataset) -> list[dict[str, Any]]:
    """The coefficient in each part of an episode, and in all."""

    def in_blocks(function: Callable[..., Tensor], *columns: Tensor) -> Array:
        starts = range(0, len(columns[0]), BLOCK)
        parts = [function(learner, *(column[at : at + BLOCK] for column in columns)) for at in starts]
        return torch.cat(parts).double().numpy()

    generator = torch.Generator().manual_seed(0)
    states, after = (seen_by(learner, rows) for rows in (data.observations, data.next_observations))
    slope, deviation = in_blocks(promises, states, torch.from_numpy(np.array(data.actions))).swapaxes(0, 1)
    now, then = (in_blocks(lambda learner, part: values(learner, part, generator), part) for part in (states, after))
    gamma = learner.config.gamma
    differences = np.asarray(data.rewards) + gamma * ~np.asarray(data.terminated) * then - now
    advantage = followed(differences, data, gamma * DECAY)
    place = np.concatenate([np.arange(segment.stop - segment.start) for segment in data.segments()])
    promise = (slope * deviation).sum(-1)
    instrument = (slope * (deviation - np.roll(deviation, 1, axis=0))).sum(-1)
    rows = []
    for first, end in (*PARTS, (1, int(place.max()) + 1)):
        chosen = (place >= max(first, 1)) & (place < end)
        if chosen.sum() > 1:
            found, error = coefficient(advantage[chosen], promise[chosen], instrument[chosen])
            steps, size = [first, end], float(promise[chosen].std())
            rows.append(
                {"steps": steps, "rows": int(chosen.sum()), "promise_std": size, "confirmed": found, "error": error}
            )
    return rows


def main() -> None:
    """Measure, print, record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="runs with critics and a stochastic policy")
    parser.add_argument("-o", "--out", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    record = []
    for path in args.runs:
        run = Run.open(path)
        learner, data, step = learner_of(run)
        parts = confirmed(learner, data)
        record.append({"data": data.meta.name, "step": step, "parts": parts, "config": run.plan().flat_config})
        for part in parts:
            first, end = part["steps"]
            print(f"{data.meta.name}, {first:3} to {end:4}: {part['confirmed']:6.2f} +- {part['error']:.2f}")
    if args.out is not None:
        args.out.write_text(json.dumps({"versions": versions(), "runs": record}, indent=1) + "\n")


if __name__ == "__main__":
    main()
