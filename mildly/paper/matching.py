"""Which runs are compared with a published score: on the same data set, with the settings closest to the paper's."""

from __future__ import annotations

from collections.abc import Sequence

from mildly.algorithms import algorithm_named
from mildly.algorithms.config import make_config
from mildly.data.tasks import RECOLLECTED, base_name
from mildly.errors import MildlyError
from mildly.evaluation.results import Result
from mildly.run import Plan, flatten


def official_name(name: str, known: Sequence[str]) -> str | None:
    """The benchmark's data set that a name means: itself, or the one it was re-collected for. None for any other."""
    for official in known:
        recollected = (f"{stem}{ending}" for stem in (official, base_name(official)) for ending in RECOLLECTED)
        if name == official or name in recollected:
            return official
    return None


def is_recollected(result: Result) -> bool:
    """Whether the run was trained on re-collected data instead of the official file."""
    return result.plan.data.name.endswith(RECOLLECTED)


def changes(plan: Plan) -> list[str]:
    """What is not as in the preset `paper` for a run's data set: settings such as `num_actions 1`, and less data."""
    try:
        algorithm = algorithm_named(plan.algorithm)
        paper = flatten(make_config(algorithm, "paper", plan.data.name, {}))
    except MildlyError:
        return []
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in paper.items()}
    config = plan.flat_config
    changed = [f"{name} {config[name]}" for name in listed if config.get(name, listed[name]) != listed[name]]
    changed += [f"{plan.holdout} held out"] if plan.held_out else []
    return [*changed, *(f"fine-tuned, {stage.words}" for stage in plan.finetune)]


def closest_to_paper(results: Sequence[Result]) -> list[Result]:
    """Of the runs of one algorithm on one task, the group closest to the paper, one run per seed.

    Runs with different settings or data are never mixed: the fewest changes come first, then the official data, then
    the larger number of seeds. Of two runs with the same seed the longer one counts.
    """
    groups: dict[tuple[tuple[str, ...], bool], dict[int, Result]] = {}
    for result in results:
        by_seed = groups.setdefault((tuple(changes(result.plan)), is_recollected(result)), {})
        if result.plan.seed not in by_seed or result.step > by_seed[result.plan.seed].step:
            by_seed[result.plan.seed] = result
    best = min(groups, key=lambda key: (len(key[0]), key[1], -len(groups[key])), default=None)
    return [] if best is None else list(groups[best].values())
