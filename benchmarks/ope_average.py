"""Is the average of fitted Q evaluation's critics nearer to the truth than where they end? Both read off one fit.

    python benchmarks/ope_average.py --policies POLICIES --sets SETS --truth benchmarks/results/ope.json \
        -o benchmarks/results/ope_average.json

Every second policy of each log of `ope_truth.py`, with its settings and seed: what the averaged critics and what the
target critics of the same fit say of the starts, beside the recorded truth. What is recorded already is not made again.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from ope_logs import Deterministic, open_log
from ope_truth import arguments, settings_of

from mildly.data.dataset import Array
from mildly.files import atomic_write
from mildly.ope.fqe import FQE, FQEConfig
from mildly.run import versions


def both(fqe: FQE) -> dict[str, list[float]]:
    """Each critic's estimate, averaged over the fit and as the targets end."""
    averaged: Array = fqe.estimates()
    fqe.average_critics.load_state_dict(fqe.target_critics.state_dict())
    return {"average": averaged.tolist(), "last": fqe.estimates().tolist()}


def error(found: dict[str, Any], side: str, *, of_means: bool) -> float:
    """Root mean square over policies: of the critics' mean, or of every critic."""
    off = [np.array(one[side]) - one["truth"] for one in found.values()]
    return float(np.sqrt(np.mean([(each.mean() ** 2 if of_means else (each**2).mean()) for each in off])))


def main() -> None:
    """Fit, compare, print a line for each log."""
    parser = arguments(__doc__)
    parser.add_argument("--truth", type=Path, required=True, help="the record of ope_truth.py")
    args = parser.parse_args()
    torch.set_num_threads(1)
    truth = json.loads(args.truth.read_text())
    record: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    for name in [log for log in args.logs if log not in record]:
        log, settings = open_log(name, args.sets, args.policies, args.work), settings_of(name)
        found: dict[str, Any] = {}
        for policy, act in list(log.policies.items())[::2]:
            config = FQEConfig(gamma=log.gamma, hidden_dims=settings.hidden_dims)
            sizes = log.data.observation_size, log.data.action_size
            fqe = FQE(config, Deterministic(act), *sizes, seed=settings.seed)
            batches, generator = fqe.batches(log.data), fqe.random_stream(settings.seed, "batches")
            for _ in range(settings.steps):
                fqe.step(batches.sample(generator))
            found[policy] = {"truth": truth[name]["policies"][policy]["truth"]["value"], **both(fqe)}
        errors = {
            side: {"of_means": error(found, side, of_means=True), "of_critics": error(found, side, of_means=False)}
            for side in ("average", "last")
        }
        record[name] = {"errors": errors, "policies": found, "settings": vars(settings), "versions": versions()}
        with atomic_write(args.out) as unfinished:
            unfinished.write_text(json.dumps(record, indent=1) + "\n")
        print(f"{name}: {json.dumps(errors)}", flush=True)


if __name__ == "__main__":
    main()
