r"""Compare the behavior models on actions whose shape is known and follows the state: two modes, a ring, a switch.

    python benchmarks/behavior_models.py --out benchmarks/results/behavior_models.json \
        --picture docs/images/behavior-models.png

All models see the same batches, step by step in turns. Times are those of the processor, on one thread, so that a
busy machine does not spoil their ratio. Measured on fresh states:

    out_of_support   share of drawn actions farther than three standard deviations from where the data are
    coverage         share of the data's parts (two modes; twelve arcs of the ring; two positions of the switch) that
                     get at least half their due
    spread           standard deviation of a state's actions, MCQ's metric `behavior_spread`
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mildly.behavior import BEHAVIOR_MODELS
from mildly.behavior.base import BehaviorModel
from mildly.files import atomic_write
from mildly.optimizer import minimize
from mildly.run import versions

OBSERVATIONS, ACTIONS = 4, 2
STATES, DRAWS = 200, 300  # on which a model is judged
TIMED_STATES, TIMED_DRAWS, ROUNDS = 512, 10, 15  # what a step of MCQ draws
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "CVAE, as printed": ("cvae", {}),
    "CVAE, KL weight 0.03": ("cvae", {"kl_weight": 0.03, "latent_clip": None}),
    "CGAN": ("cgan", {}),
    "flow": ("flow", {}),
}
"""What is compared: the name of the model and the options that are not its defaults."""
MODE_RADIUS, MODE_STD = 0.7, 0.07
RING_RADIUS, RING_STD, RING_SHIFT, RING_ARCS = 0.6, 0.05, 0.25, 12
SWITCH_STD = 0.05  # what passes for the corner of the bounds itself


@dataclass(frozen=True)
class Shape:
    """A distribution of two-dimensional actions in each state."""

    parts: int
    draw: Callable[[Tensor, torch.Generator], Tensor]
    """Actions for states, (..., o) to (..., 2)."""
    deviation: Callable[[Tensor, Tensor], Tensor]
    """How many standard deviations actions lie from the nearest point of the data's modes or ring."""
    part: Callable[[Tensor, Tensor], Tensor]
    """The part that actions belong to, 0 to parts - 1."""


def mode(states: Tensor) -> Tensor:
    """One of the two modes, which turn with the state; the other lies opposite."""
    angle = math.pi / 2 * states[..., 0]
    return MODE_RADIUS * torch.stack([angle.cos(), angle.sin()], dim=-1)


def draw_modes(states: Tensor, random: torch.Generator) -> Tensor:
    """One of the modes, and noise."""
    side = 2.0 * torch.randint(2, (*states.shape[:-1], 1), generator=random) - 1
    return side * mode(states) + MODE_STD * torch.randn((*states.shape[:-1], ACTIONS), generator=random)


def deviation_from_modes(states: Tensor, actions: Tensor) -> Tensor:
    """Distance to the nearer mode."""
    near, far = (torch.linalg.vector_norm(actions - side * mode(states), dim=-1) for side in (1, -1))
    return torch.minimum(near, far) / MODE_STD


def nearer_mode(states: Tensor, actions: Tensor) -> Tensor:
    """Which of the two modes an action is nearer to."""
    return ((actions * mode(states)).sum(-1) > 0).long()


def draw_ring(states: Tensor, random: torch.Generator) -> Tensor:
    """A point of the ring, with noise on its radius."""
    angle = 2 * math.pi * torch.rand(states.shape[:-1], generator=random)
    radius = RING_RADIUS + RING_STD * torch.randn(states.shape[:-1], generator=random)
    return RING_SHIFT * states[..., :2] + radius.unsqueeze(-1) * torch.stack([angle.cos(), angle.sin()], dim=-1)


def deviation_from_ring(states: Tensor, actions: Tensor) -> Tensor:
    """Distance to the ring."""
    offset = actions - RING_SHIFT * states[..., :2]
    distance: Tensor = torch.linalg.vector_norm(offset, dim=-1) - RING_RADIUS
    return distance.abs() / RING_STD


def arc(states: Tensor, actions: Tensor) -> Tensor:
    """Which arc of the ring an action is in the direction of."""
    offset = actions - RING_SHIFT * states[..., :2]
    turn = torch.atan2(offset[..., 1], offset[..., 0]) / (2 * math.pi) + 0.5
    return (turn * RING_ARCS).long().clamp_max(RING_ARCS - 1)


def corner(states: Tensor) -> Tensor:
    """One of two opposite corners of the bounds, as the state's sign has it."""
    side = torch.where(states[..., 0] > 0, 1.0, -1.0)
    return torch.stack([torch.ones_like(side), side], dim=-1)


def draw_switch(states: Tensor, random: torch.Generator) -> Tensor:
    """One of the two corners, exactly: the torques of a controller that only knows full power."""
    return (2.0 * torch.randint(2, (*states.shape[:-1], 1), generator=random) - 1) * corner(states)


def deviation_from_switch(states: Tensor, actions: Tensor) -> Tensor:
    """Distance to the nearer corner."""
    near, far = (torch.linalg.vector_norm(actions - side * corner(states), dim=-1) for side in (1, -1))
    return torch.minimum(near, far) / SWITCH_STD


def nearer_corner(states: Tensor, actions: Tensor) -> Tensor:
    """Which of the two corners an action is nearer to."""
    return ((actions * corner(states)).sum(-1) > 0).long()


SHAPES = {
    "two modes": Shape(2, draw_modes, deviation_from_modes, nearer_mode),
    "ring": Shape(RING_ARCS, draw_ring, deviation_from_ring, arc),
    "switch": Shape(2, draw_switch, deviation_from_switch, nearer_corner),
}
PICTURED = ("two modes", "ring")


def make_states(count: int, random: torch.Generator) -> Tensor:
    """States, uniform in a box; half of their dimensions say nothing."""
    return 2 * torch.rand((count, OBSERVATIONS), generator=random) - 1


def make_models(seed: int) -> dict[str, tuple[BehaviorModel, torch.optim.Optimizer]]:
    """Every model with its own optimizer, at its defaults."""
    made: dict[str, tuple[BehaviorModel, torch.optim.Optimizer]] = {}
    for name, (kind, options) in MODELS.items():
        torch.manual_seed(seed)
        model = BEHAVIOR_MODELS[kind](OBSERVATIONS, ACTIONS, **options)
        made[name] = model, torch.optim.Adam(model.parameters(), **model.ADAM, fused=True)
    return made


def train(shape: Shape, seed: int, steps: int, batch: int) -> tuple[dict[str, BehaviorModel], dict[str, float]]:
    """The trained models and the median milliseconds of their steps."""
    made = make_models(seed)
    data = torch.Generator().manual_seed(seed)
    noise = {name: torch.Generator().manual_seed(seed + 1000) for name in made}
    seconds: dict[str, list[float]] = {name: [] for name in made}
    for step in range(steps):
        states = make_states(batch, data)
        actions = shape.draw(states, data).clamp(-1, 1)
        for name, (model, optimizer) in made.items():
            began = time.process_time()
            minimize(model.loss(states, actions, noise[name], step), optimizer)
            seconds[name].append(time.process_time() - began)
    milliseconds = {name: 1e3 * statistics.median(values) for name, values in seconds.items()}
    return {name: model for name, (model, _) in made.items()}, milliseconds


def judge(shape: Shape, states: Tensor, actions: Tensor) -> dict[str, float]:
    """The three measures of actions (states, draws, 2)."""
    states = states.unsqueeze(1)
    inside = shape.deviation(states, actions) <= 3
    part = shape.part(states, actions)
    counts = torch.stack([((part == k) & inside).sum(dim=1) for k in range(shape.parts)])
    return {
        "out_of_support": 1 - inside.float().mean().item(),
        "coverage": (counts >= 0.5 * actions.shape[1] / shape.parts).float().mean().item(),
        "spread": actions.std(dim=1, unbiased=False).mean().item(),
    }


def time_draws(models: dict[str, BehaviorModel]) -> dict[str, float]:
    """Median milliseconds of drawing what a step of MCQ draws, in turns."""
    states = make_states(TIMED_STATES, torch.Generator().manual_seed(0))
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(ROUNDS):
        for name, model in models.items():
            began = time.process_time()
            model.sample(states, TIMED_DRAWS, torch.Generator().manual_seed(0))
            seconds[name].append(time.process_time() - began)
    return {name: 1e3 * statistics.median(values) for name, values in seconds.items()}


def compare(seed: int, shape: Shape, steps: int, batch: int) -> tuple[dict[str, Any], dict[str, BehaviorModel]]:
    """All measures of all models, and of the data themselves; and the models."""
    models, training = train(shape, seed, steps, batch)
    drawing = time_draws(models)
    random = torch.Generator().manual_seed(seed + 2000)
    states = make_states(STATES, random)
    data = shape.draw(states.unsqueeze(1).expand(-1, DRAWS, -1), random).clamp(-1, 1)
    rows = {"data": judge(shape, states, data)}
    for name, model in models.items():
        rows[name] = judge(shape, states, model.sample(states, DRAWS, random))
        rows[name] |= {"train_ms": training[name], "draw_ms": drawing[name]}
    return {name: {key: round(value, 4) for key, value in row.items()} for name, row in rows.items()}, models


def draw_picture(path: Path, models: dict[str, dict[str, BehaviorModel]]) -> None:
    """The data's actions and each model's in two states, a row for each shape."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    columns = ["the data", *MODELS]
    figure, axes = pyplot.subplots(len(PICTURED), len(columns), figsize=(11, 4.9), sharex=True, sharey=True)
    states = torch.tensor([[0.5, 0.5, 0.0, 0.0], [-0.5, -0.5, 0.0, 0.0]])
    for line, label in zip(axes, PICTURED, strict=True):
        shape = SHAPES[label]
        for axis, name in zip(line, columns, strict=True):
            random = torch.Generator().manual_seed(0)
            if name == "the data":
                actions = shape.draw(states.unsqueeze(1).expand(-1, DRAWS, -1), random).clamp(-1, 1)
            else:
                actions = models[label][name].sample(states, DRAWS, random)
            for drawn, color in zip(actions, ("#0072b2", "#d55e00"), strict=True):
                axis.scatter(drawn[:, 0], drawn[:, 1], s=4, color=color, alpha=0.5, linewidths=0)
            outside = 100 * judge(shape, states, actions)["out_of_support"]
            axis.set(aspect="equal", xlim=(-1.05, 1.05), ylim=(-1.05, 1.05), xticks=(-1, 0, 1), yticks=(-1, 0, 1))
            axis.text(0, -0.98, f"{outside:.0f} % out of support", ha="center", fontsize=8, color="#555555")
            if label == PICTURED[0]:
                axis.set_title(name, fontsize=10)
        line[0].set_ylabel(label, fontsize=10)
    figure.tight_layout()
    with atomic_write(path) as temporary:
        figure.savefig(temporary, dpi=90, format="png")


def main() -> None:
    """Parse, measure, print, write down."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--shapes", nargs="+", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("-o", "--out", type=Path, help="JSON file to write; shapes that are not run keep their record")
    parser.add_argument("--picture", type=Path, help="PNG file to write, from the first seed's models")
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.picture and not set(PICTURED) <= set(args.shapes):
        parser.error(f"the picture needs the shapes {' and '.join(PICTURED)}")
    records = json.loads(args.out.read_text()) if args.out and args.out.exists() else {}
    shown: dict[str, dict[str, BehaviorModel]] = {}
    for label in args.shapes:
        results: dict[str, list[dict[str, float]]] = {}
        for seed in args.seeds:
            rows, models = compare(seed, SHAPES[label], args.steps, args.batch)
            shown.setdefault(label, models)
            for name, row in rows.items():
                results.setdefault(name, []).append({"seed": seed, **row})
                print(f"{label}, seed {seed}, {name}: {row}", flush=True)
        records[label] = record(args, label) | {"results": results}
        if args.out:
            args.out.write_text(compact(records))
    if args.picture:
        draw_picture(args.picture, shown)


def record(args: argparse.Namespace, label: str) -> dict[str, Any]:
    """What a reader needs to measure it again."""
    seeds = " ".join(map(str, args.seeds))
    return {
        "command": f"python benchmarks/behavior_models.py --shapes '{label}' --steps {args.steps} "
        f"--batch {args.batch} --seeds {seeds}",
        "threads": 1,
        "models": {name: {"model": kind, **options} for name, (kind, options) in MODELS.items()},
        "versions": versions(),
    }


def compact(records: dict[str, Any]) -> str:
    """JSON with a line for each seed, so that a diff can be read."""
    shapes = []
    for label, content in records.items():
        parts = [f' "{key}": {json.dumps(value)}' for key, value in content.items() if key != "results"]
        models = [
            f"  {json.dumps(name)}: [\n   " + ",\n   ".join(map(json.dumps, rows)) + "\n  ]"
            for name, rows in content["results"].items()
        ]
        parts.append(' "results": {\n' + ",\n".join(models) + "\n }")
        shapes.append(f"{json.dumps(label)}: {{\n" + ",\n".join(parts) + "\n}")
    return "{\n" + ",\n".join(shapes) + "\n}\n"


if __name__ == "__main__":
    main()
