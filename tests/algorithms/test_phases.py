"""Phases before the main steps: their order, what each of them trains, and what the log says of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import make_batch, same, tiny, train_tiny, weights
from learners import (
    DATA,
    WITH_MODEL,
    all_finite,
    batch_of,
    differing,
    every_algorithm,
    every_with_extras,
    parts,
    snapshot,
    starting,
    walk,
    warm_up_of,
)
from torch import nn

from mildly.algorithms.base import Algorithm
from mildly.run import Run
from mildly.training.offline import resume

BEHAVIOR, WARM_UP = "behavior model", "bc warm-up"
BOTH = {"behavior.steps": 2, "extras.bc_warmup_steps": 3}
every_mcq = pytest.mark.parametrize("name", ["mcq", "mcq-td3"])


def named(learner: Algorithm) -> list[tuple[str, int]]:
    return [(phase.name, phase.steps) for phase in learner.phases()]


# Which there are


@every_mcq
def test_the_behavior_model_comes_first_and_then_the_warm_up(name):
    assert named(tiny(name, **BOTH)) == [(BEHAVIOR, 2), (WARM_UP, 3)]
    assert named(tiny(name, **{"behavior.steps": 2})) == [(BEHAVIOR, 2)]
    assert named(tiny(name, **{"extras.bc_warmup_steps": 3})) == [(WARM_UP, 3)]


@every_mcq
def test_where_no_term_needs_a_behavior_model_it_has_no_phase(name):
    assert named(tiny(name, lam=1.0, **BOTH)) == [(WARM_UP, 3)]
    assert named(tiny(name, lam=1.0, ood_weight=0.5, **BOTH)) == [(BEHAVIOR, 2), (WARM_UP, 3)]


@every_algorithm
def test_there_are_none_unless_asked_for_but_for_warm_ups_that_are_the_authors_own(name):
    own = {"cql": [(WARM_UP, 40_000)], "bear": [("mmd warm-up", 40_000)], "uwac": [("mmd warm-up", 40_000)]}
    own["mopo"] = [("dynamics model", 4)]
    assert named(tiny(name)) == own.get(name, [])


@every_with_extras
def test_a_warm_up_has_the_steps_it_is_given(name):
    before = [("dynamics model", 4)] if name in WITH_MODEL else []
    assert named(tiny(name, **{"extras.bc_warmup_steps": 3})) == [*before, (WARM_UP, 3)]
    assert named(tiny(name, **{"extras.bc_warmup_steps": 0})) == before


def test_behavior_cloning_has_no_warm_up():
    with pytest.raises(NotImplementedError, match="BC has no warm-up"):
        tiny("bc").warm_up(make_batch())


# What each of them trains


@every_with_extras
def test_every_warm_up_clones_while_the_critics_learn(name):
    """The harness of all algorithms with extras: cloning gains likelihood, critics and targets move, all is finite."""
    fields = {"actor_lr": 0.01, "critic_lr": 0.01, "normalize_observations": True}
    learner = starting(name, **fields, **{"extras.bc_warmup_steps": 60})
    sampler, random = learner.batches(DATA), torch.Generator().manual_seed(0)
    whole = sampler.sample(torch.Generator().manual_seed(1), 200)
    before, distance = weights(learner.critics, learner.target_critics), learner.bc_loss(whole).item()
    phase = warm_up_of(learner)
    for _ in range(phase.steps):
        metrics = phase.update(sampler.sample(random))
        assert all_finite(metrics)
        assert {"loss_td", "loss_critic"} <= metrics.keys()
        assert ("loss_bc" in metrics) != ("loss_actor" in metrics)
    assert learner.bc_loss(whole).item() < distance - 0.02
    moved = [
        not torch.equal(a, b) for a, b in zip(before, weights(learner.critics, learner.target_critics), strict=True)
    ]
    assert all(moved)
    metrics = learner.step(sampler.sample(random))
    assert all_finite(metrics)
    assert "loss_actor" in metrics
    assert "loss_bc" not in metrics


@every_mcq
def test_each_step_trains_what_its_phase_is_for_and_a_boundary_lies_between_two_steps(name):
    learner = starting(name, **BOTH, **{"extras.policy_ema": 0.5})
    networks = {key: part for key, part in parts(learner, nn.Module).items() if key != "behavior.model"}
    temperature = {"log_alpha"} if name == "mcq" else set()
    moves = {BEHAVIOR: {"behavior.model"}, WARM_UP: set(networks) - {"extras.average"}, "": set(networks) | temperature}
    order = []
    for step, (phase, update) in enumerate(walk(learner, 2)):
        before = snapshot(learner)
        metrics = update(batch_of(step))
        changed = differing(before, {key: learner.state_dict()[key] for key in before})  # slots of Adam are new
        moved = {key for key in [*networks, "behavior.model"] if any(name.startswith(f"{key}.") for name in changed)}
        assert moved | (changed & {"log_alpha"}) == moves[phase]
        assert ("loss_behavior" in metrics) == (phase == BEHAVIOR)
        assert ("loss_bc" in metrics) == (phase == WARM_UP)
        assert ("loss_actor" in metrics) == (phase == "")
        assert ("loss_ood" in metrics) == (phase != BEHAVIOR)
        order.append(phase)
    assert order == 2 * [BEHAVIOR] + 3 * [WARM_UP] + 2 * [""]
    assert learner.behavior.updates == 2
    assert learner.extras.steps == 2  # the main ones


@every_mcq
def test_a_behavior_model_without_steps_of_its_own_learns_in_every_step(name):
    learner = starting(name, **{"extras.bc_warmup_steps": 3})
    for step, (_, update) in enumerate(walk(learner, 3)):
        before = weights(learner.behavior.model)
        assert "loss_behavior" in update(batch_of(step))
        assert not same(before, weights(learner.behavior.model))
    assert learner.behavior.updates == 6


@every_mcq
def test_a_behavior_model_that_no_term_needs_learns_in_no_step(name):
    learner = starting(name, lam=1.0, **{"extras.bc_warmup_steps": 2})
    before = weights(learner.behavior.model)
    for step, (_, update) in enumerate(walk(learner, 2)):
        assert not {"loss_behavior", "loss_ood"} & update(batch_of(step)).keys()
    assert same(before, weights(learner.behavior.model))


@every_with_extras
def test_the_main_steps_do_not_need_the_phases_to_have_been(name):
    """As where speed is measured: they are the method's from the first on."""
    learner, plain = (tiny(name, **{"extras.bc_warmup_steps": steps}) for steps in (1000, 0))
    for step in range(3):
        got, expected = (each.step(batch_of(step)) for each in (learner, plain))
        assert got.keys() == expected.keys()
        assert all(torch.equal(got[key], expected[key]) for key in got)
        assert "loss_actor" in got


# Lines of the log

PLAN = {"behavior.steps": 12, "extras.bc_warmup_steps": 9, "eval_every": 0, "steps": 23}
LENGTHS = {BEHAVIOR: 12, WARM_UP: 9, None: 23}


def check_means(line: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Each number of a line is the mean over the steps since the line before."""
    assert set(line) == {name for row in rows for name in row}
    for name in set(line) - {"step", "phase"}:
        values = [row[name] for row in rows]
        assert line[name] == pytest.approx(sum(values) / len(values), rel=1e-4, abs=1e-6), (line["step"], name)


def check_lines(lines: list[dict[str, Any]], every: list[dict[str, Any]], steps: list[int]) -> None:
    assert [line["step"] for line in lines] == steps
    for line, first in zip(lines, [0, *steps], strict=False):
        check_means(line, every[first : line["step"]])


@pytest.fixture(scope="module")
def every_step(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with a line for each step."""
    return train_tiny("mcq", tmp_path_factory.mktemp("phases") / "every", **PLAN, log_every=1)


def test_every_step_of_every_phase_has_its_own_number_and_the_metrics_of_its_phase(every_step: Run) -> None:
    for phase, steps in LENGTHS.items():
        lines = every_step.metrics(phase)
        assert [line["step"] for line in lines] == list(range(1, steps + 1))
        for line in lines:
            assert ("loss_behavior" in line) == (phase == BEHAVIOR)
            assert ("loss_bc" in line) == (phase == WARM_UP)
            assert ("loss_actor" in line) == (phase is None)
            assert ("loss_critic" in line) == (phase != BEHAVIOR)


def test_a_line_holds_the_means_of_steps_of_one_phase(tmp_path: Path, every_step: Run) -> None:
    """The last step of a phase has a line of its own, so that none holds steps of two."""
    run = train_tiny("mcq", tmp_path / "run", **PLAN, log_every=5)
    expected = {BEHAVIOR: [5, 10, 12], WARM_UP: [5, 9], None: [5, 10, 15, 20, 23]}
    for phase, steps in expected.items():
        check_lines(run.metrics(phase), every_step.metrics(phase), steps)


@pytest.mark.parametrize("stop", [8, 13])
def test_means_are_right_when_a_run_is_prolonged_between_two_lines(tmp_path: Path, every_step: Run, stop: int) -> None:
    """The line at the stop and the one after it together hold the steps of one line, each its own."""
    run = train_tiny("mcq", tmp_path / "run", **{**PLAN, "steps": stop}, log_every=5)
    resume(run.path, steps=23)
    check_lines(run.metrics(), every_step.metrics(), sorted({5, 10, 15, 20, 23, stop}))
