"""What the tests of algorithms share: the registry, learners that have seen data, and walks through their phases."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from conftest import batch_for, make_dataset, tiny
from torch import Tensor, nn

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.base import Algorithm, Metrics, Phase
from mildly.algorithms.config import field_types
from mildly.algorithms.cql import CQL
from mildly.algorithms.iql import IQL
from mildly.algorithms.mcq import MCQ
from mildly.data.batches import Batch, Transitions
from mildly.state import Stateful

CPU = torch.device("cpu")
DATA = make_dataset()

FIELDS = {name: set(field_types(kind.Config)) for name, kind in sorted(ALGORITHMS.items())}
"""The config fields of every algorithm, by their dotted names."""
WITH_EXTRAS = [name for name, fields in FIELDS.items() if "extras.bc_warmup_steps" in fields]
ANCHORED = [name for name, fields in FIELDS.items() if "extras.bc_weight" in fields]
PRESETS = [(name, preset) for name, kind in sorted(ALGORITHMS.items()) for preset in kind.PRESETS]

every_algorithm = pytest.mark.parametrize("name", sorted(ALGORITHMS))
every_with_extras = pytest.mark.parametrize("name", WITH_EXTRAS)
every_anchored = pytest.mark.parametrize("name", ANCHORED)
every_preset = pytest.mark.parametrize(("name", "preset"), PRESETS)

_EVERYTHING = {
    "normalize_observations": True,
    "extras.level_start": True,
    "extras.return_mix": 0.2,
    "extras.bc_steps": 2,
    "extras.bc_warmup_steps": 3,
    "extras.bc_weight": 0.5,
    "extras.bc_preference": 1.0,
    "extras.bc_rise": 1.0,
    "extras.policy_ema": 0.3,
    "behavior.steps": 2,
    "behavior.cache": True,
    "behavior.refresh_every": 2,
    "lam": "auto",
    "best_episodes": 0.5,
    "dropout": 0.2,
    "gradient_actions": 4,
    "lagrange_threshold": 5.0,
    "layer_norm": True,
    "reward_scaling": True,
    "warmup_steps": 3,
    "exact_last": True,
    "shared_masks": True,
}
_REFUSED = {"uwac": {"layer_norm"}}
"""What some algorithms cannot do though they have the field."""
WITH_BEHAVIOR = [name for name, fields in FIELDS.items() if "behavior.steps" in fields]
WITH_MODEL = [name for name, fields in FIELDS.items() if "dynamics.max_steps" in fields]
WITH_MMD = [name for name, fields in FIELDS.items() if "warmup_steps" in fields]


def everything(name: str) -> dict[str, Any]:
    """Fields that switch on whatever an algorithm can do besides its method."""
    fields = FIELDS[name] - _REFUSED.get(name, set())
    return {field: value for field, value in _EVERYTHING.items() if field in fields}


def nothing(name: str) -> dict[str, Any]:
    """Fields that leave the method alone; the warm-ups of CQL and BEAR would take long."""
    return {field: 0 for field in ("extras.bc_warmup_steps", "warmup_steps") if field in FIELDS[name]}


bare_and_full = pytest.mark.parametrize("options", [nothing, everything])


def starting(name: str, **fields: Any) -> Any:
    """A learner that has seen the data."""
    learner = tiny(name, **{"gamma": 0.9, **fields})
    learner.batches(DATA)
    return learner


def batch_of(seed: int = 0, rows: int = 12) -> Batch:
    """Rows of the data as they are logged."""
    return Transitions(DATA, rows, CPU).sample(torch.Generator().manual_seed(seed))


def drawn_by(learner: Algorithm, seed: int = 0, rows: int = 12) -> Batch:
    """The same rows, as the learner's own sampler gives them."""
    return learner.batches(DATA).sample(torch.Generator().manual_seed(seed), rows)


def trained(name: str, steps: int, seed: int = 0, first: int = 0) -> Algorithm:
    """A tiny learner after some main steps, each on a batch of its own."""
    learner: Algorithm = tiny(name, seed)
    go_on(learner, steps, first)
    return learner


def go_on(learner: Algorithm, steps: int, first: int) -> None:
    for step in range(first, first + steps):
        learner.step(batch_for(learner, step))


def walk(learner: Algorithm, main_steps: int) -> list[tuple[str, Callable[[Any], Metrics]]]:
    """What a trainer calls, one entry for each step: the name of its phase, empty for a main step, and the call."""
    phases = [*learner.phases(), Phase("", main_steps, learner.step)]
    return [(phase.name, phase.update) for phase in phases for _ in range(phase.steps)]


def warm_up_of(learner: Algorithm) -> Phase:
    """The phase in which the actor clones."""
    (phase,) = (phase for phase in learner.phases() if phase.name == "bc warm-up")
    return phase


def snapshot(part: Stateful) -> dict[str, Tensor]:
    """A copy of a state, to be compared later."""
    return {name: tensor.clone() for name, tensor in part.state_dict().items()}


def differing(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> set[str]:
    """The names under which two dicts of the same names hold different bits."""
    assert one.keys() == other.keys()
    return {name for name in one if not torch.equal(one[name], other[name])}


def parts(learner: Stateful, kind: Any, prefix: str = "") -> dict[str, Any]:
    """All attributes of a kind that a learner's state is made of, also those of its own stateful parts."""
    found: dict[str, Any] = {}
    for name, value in vars(learner).items():
        if name in learner.DERIVED:
            continue
        if isinstance(value, kind):
            found[f"{prefix}{name}"] = value
        elif isinstance(value, Stateful):
            found |= parts(value, kind, f"{prefix}{name}.")
    return found


def with_gradient(learner: Stateful) -> set[str]:
    """The networks and numbers that a backward pass has reached."""
    networks = {
        name for name, part in parts(learner, nn.Module).items() if any(p.grad is not None for p in part.parameters())
    }
    leaves = {name: tensor for name, tensor in parts(learner, Tensor).items() if tensor.is_leaf}
    return networks | {name for name, tensor in leaves.items() if tensor.grad is not None}


def slow_return(row: int, gamma: float) -> tuple[float, float]:
    """What followed in the data from a row on, and the share of it that the log shows."""
    total, k = 0.0, 0
    while True:
        total += gamma**k * float(DATA.rewards[row + k])
        k += 1
        if DATA.terminated[row + k - 1]:
            return total, 1.0
        if DATA.truncated[row + k - 1]:
            return total / (1 - gamma**k), 1 - gamma**k


def all_finite(metrics: Metrics) -> bool:
    return bool(metrics) and all(math.isfinite(value) for value in metrics.values())


def changed_iql(**fields: Any) -> IQL:
    """IQL with weights that are all random and targets that differ from its critics."""
    iql: IQL = tiny("iql", seed=3, **{"gamma": 0.9, **fields})
    random = torch.Generator().manual_seed(9)
    for part in (iql.actor, iql.value, iql.critics, iql.target_critics):
        for parameter in part.parameters():
            parameter.data.add_(0.2 * torch.randn(parameter.shape, generator=random))
    return iql


def changed_mcq(**fields: Any) -> MCQ:
    """MCQ with targets, a temperature and a spread of actions that are not as they were built."""
    mcq: MCQ = tiny("mcq", seed=4, **{"gamma": 0.9, "num_actions": 4, **fields})
    mcq.log_alpha.data.fill_(-0.4)
    random = torch.Generator().manual_seed(8)
    for part in (mcq.target_critics, mcq.critics, mcq.behavior.model.decoder):
        for parameter in part.parameters():
            parameter.data.add_(0.3 * torch.randn(parameter.shape, generator=random))
    return mcq


def choosing_anew(cql: CQL, slope: Callable[[], Tensor], times: int = 400) -> Tensor:
    """Slopes, (times, weights), of a learner that draws the same actions each time and chooses others among them."""
    start, random, other_actions = cql.generator.get_state(), torch.Generator().manual_seed(5), cql.other_actions

    def then_random(given: Batch) -> Any:
        found = other_actions(given)
        cql.generator.manual_seed(int(torch.randint(2**40, (), generator=random)))
        return found

    cql.other_actions = then_random  # type: ignore[method-assign]
    seen = []
    for _ in range(times):
        cql.generator.set_state(start)
        seen.append(slope())
    return torch.stack(seen)
