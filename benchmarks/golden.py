"""Did a change of the code change what it computes? Every algorithm and preset, 60 steps, compared to the bit.

    python benchmarks/golden.py record golden.json       before the change
    python benchmarks/golden.py compare golden.json      after it; exits with 1 where anything differs

Each case crosses the boundaries of its phases: a behavior model of 15 steps, a warm-up of 20, where a preset has them.
Bits depend on the machine and on the versions of torch and of its libraries, so that a record is for one machine.
`benchmarks/results/golden.json` is that of commit d9f2edf, before algorithms were rewritten to one file each; presets
whose phases were then part of the main steps were driven there in the order that they have now. Two cases differ from
it on purpose: AWAC's `paper` has smaller batches, and IQL's learning rate does not fall in a warm-up.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import build_config, make_config
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError
from mildly.run import flatten, versions

FIT, WARM_UP, STEPS, SEED = 15, 20, 60, 3
_SMALL: dict[str, Any] = {"hidden_dims": (32, 32), "batch_size": 32}
_MILD: dict[str, Any] = {**_SMALL, "behavior.hidden_dims": (32, 32), "num_actions": 3}
OPTIONS: list[tuple[str, str, dict[str, Any]]] = [
    ("sac", "paper", {**_SMALL, "extras.policy_ema": 0.01, "extras.level_start": True}),
    ("sac", "paper", {**_SMALL, "alpha_first": False, "extras.bc_warmup_steps": 1}),
    ("sac", "paper", {**_SMALL, "extras.return_mix": 0.1}),
    ("td3", "paper", {**_SMALL, "extras.bc_warmup_steps": 1, "extras.bc_weight": 0.5, "extras.policy_ema": 0.01}),
    ("td3-bc", "paper", {**_SMALL, "extras.bc_warmup_steps": 1, "extras.bc_weight": 0.5}),
    ("iql", "paper", {**_SMALL, "extras.bc_warmup_steps": 1, "extras.level_start": True, "extras.return_mix": 0.1}),
    ("iql", "paper", {**_SMALL, "dropout": 0.1, "layer_norm": True}),
    ("awac", "paper", {**_SMALL, "extras.bc_warmup_steps": 1, "extras.level_start": True, "extras.policy_ema": 0.01}),
    ("cql", "paper", {**_SMALL, "extras.bc_weight": 0.5, "extras.level_start": True}),
    ("mcq", "paper", {**_MILD, "behavior.model": "cgan", "lam": "auto"}),
    (
        "mcq",
        "paper",
        {**_MILD, "behavior.model": "flow", "ood_weight": 0.5, "delta_scale": 0.1, "pseudo_critics": "target"},
    ),
    (
        "mcq",
        "paper",
        {**_MILD, "behavior.steps": 1, "behavior.cache": True, "behavior.refresh_every": 7, "ood_actions": 1},
    ),
    ("mcq", "paper", {**_MILD, "behavior.steps": 1}),
    ("mcq", "paper", {**_MILD, "lam": 1.0}),
    ("mcq", "official", {**_MILD, "pseudo_reduction": "mean", "one_sided": True, "ood_distance_min": 0.05}),
    (
        "mcq-td3",
        "paper",
        {
            **_MILD,
            "policy_noise": 0.2,
            "policy_delay": 2,
            "extras.bc_warmup_steps": 1,
            "extras.bc_weight": 0.5,
        },
    ),
    ("mcq-td3", "default", {**_MILD, "extras.return_mix": 0.0}),
    ("mcq", "default", {**_MILD, "extras.return_mix": 0.0}),
]
"""Options that no preset has, on small networks."""


def digest(tensors: list[Tensor]) -> list[str]:
    """A short hash of each."""
    contents = (tensor.detach().cpu().contiguous().numpy().tobytes() for tensor in tensors)
    return [hashlib.sha256(content).hexdigest()[:16] for content in contents]


def run_case(algorithm: str, preset: str, fields: dict[str, Any]) -> dict[str, Any]:
    """The hashes of weights and optimizers after 60 steps, and the metrics of some of these steps."""
    kind, data = ALGORITHMS[algorithm], load_dataset("hopper-mixed")
    given = flatten(make_config(kind, preset, "hopper-medium-v2", fields))
    phases = {"behavior.steps": FIT, "extras.bc_warmup_steps": WARM_UP, "warmup_steps": WARM_UP}
    config = build_config(kind, given | {name: steps for name, steps in phases.items() if given.get(name)})
    learner = kind(config, data.observation_size, data.action_size, seed=SEED)
    batches, generator = learner.batches(data), learner.random_stream(SEED, "batches")
    metrics = [phase.update(batches.sample(generator)) for phase in learner.phases() for _ in range(phase.steps)]
    metrics += [learner.step(batches.sample(generator)) for _ in range(STEPS - len(metrics))]
    state = [tensor for tensor in learner.state_dict().values() if tensor.is_floating_point() and tensor.ndim]
    shown = [0, FIT, FIT + WARM_UP, STEPS - 1]
    return {
        "algorithm": algorithm,
        "preset": preset,
        "fields": fields,
        "policy": digest(list(learner.policy().actor.state_dict().values())),
        "state": sorted(digest(state)),
        "metrics": {str(step): {name: value.item() for name, value in metrics[step].items()} for step in shown},
    }


def cases() -> list[dict[str, Any]]:
    """All of them; a preset that these data do not suit is left out."""
    made = []
    named: list[tuple[str, str, dict[str, Any]]]
    named = [(name, preset, {}) for name, kind in sorted(ALGORITHMS.items()) for preset in kind.PRESETS]
    for algorithm, preset, fields in [*named, *OPTIONS]:
        try:
            made.append(json.loads(json.dumps(run_case(algorithm, preset, fields))))
        except MildlyError as error:
            print(f"{algorithm} {preset}: left out ({error})")
    return made


def compare(before: dict[str, Any], after: dict[str, Any]) -> str:
    """What differs, in words; nothing if nothing does."""
    if before["policy"] == after["policy"] and before["state"] == after["state"]:
        return "" if before["metrics"] == after["metrics"] else "metrics differ"
    step = next((step for step, values in before["metrics"].items() if values != after["metrics"].get(step)), None)
    return f"weights differ (metrics {f'from step {step} on' if step else 'equal'})"


def main() -> None:
    """Record, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "compare"])
    parser.add_argument("path", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    now = cases()
    if args.what == "record":
        args.path.write_text(json.dumps({"versions": versions(), "cases": now}, indent=1) + "\n")
        return
    known = {json.dumps([case[x] for x in ("algorithm", "preset", "fields")]): case for case in now}
    different = 0
    for case in json.loads(args.path.read_text())["cases"]:
        told = compare(case, known[json.dumps([case[x] for x in ("algorithm", "preset", "fields")])])
        different += bool(told)
        print(f"{case['algorithm']:<8} {case['preset']:<9} {told or 'equal':<12} {case['fields'] or ''}")
    print(f"{different} of {len(known)} differ")
    raise SystemExit(bool(different))


if __name__ == "__main__":
    main()
