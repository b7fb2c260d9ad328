import json
import math
from itertools import pairwise

import pytest
import torch

from mildly.bench import Candidate, bench, measure
from mildly.cli import main

KEYS = {"algorithm", "preset", "ms_median", "ms_best", "gflop", "gflops", "machine_gflops", "ratio", "speed"}
KEYS |= {"peak_memory_mb", "compared_with"}
SMALL = {"hidden_dims": (32, 32), "behavior.hidden_dims": (32, 32), "batch_size": 16}


def linear(rows: int, *sizes: int) -> float:
    """Floating-point operations of a forward pass."""
    return sum(2 * rows * i * o for i, o in pairwise(sizes))


def test_operations_of_behavior_cloning_are_those_counted_by_hand():
    row = bench("bc", hidden_dims=(32, 32), batch_size=16, repeats=1)
    forward = linear(16, 17, 32, 32, 12)
    weights_gradient, inputs_gradient = forward, forward - linear(16, 17, 32)
    assert row.gflop * 1e9 == pytest.approx(forward + weights_gradient + inputs_gradient)


def test_the_largest_product_of_a_paper_step_is_the_decoder_of_the_behavior_actions():
    row = bench("mcq", repeats=1, batch_size=8)
    assert row.largest_product == "160x750x750"


def test_the_numbers_of_a_row_fit_together():
    row = bench("mcq", repeats=3, **SMALL)
    assert 0 < row.ms_best <= row.ms_median
    assert row.gflops == pytest.approx(row.gflop / row.ms_median * 1e3)
    assert row.ratio == pytest.approx(row.gflops / row.machine_gflops)
    assert 50 < row.peak_memory_mb < 5000
    assert row.speed is None  # of nothing else that was measured


def test_speed_is_a_multiple_of_the_papers_preset():
    presets = [("mcq", "default"), ("mcq", "paper"), ("sac", "small"), ("mcq", "small")]
    candidates = [
        Candidate(name, preset, 3, 2, "cpu", {"batch_size": 4, "hidden_dims": (8,)}) for name, preset in presets
    ]
    default, paper, sac, small = measure(candidates, 2)
    assert default.speed == pytest.approx(paper.ms_median / default.ms_median)
    assert small.speed == pytest.approx(paper.ms_median / small.ms_median)
    assert (paper.speed, paper.compared_with, small.compared_with) == (1, "paper", "paper")
    assert sac.speed is None  # nothing else of it was measured


def test_sizes_beyond_memory_are_one_message(refused):
    large = "1" + 15 * "0"
    assert f"for networks with observation_size {large}" in refused.command("bench", "--observation-size", large)
    step = refused.command("bench", "--preset", "small", "--num-actions", large)
    assert "out of memory for a step of mcq (small). Lower the sizes, batch_size or num_actions." in step


def test_what_only_begins_a_training_is_behind_a_learner_when_it_is_measured():
    """Neither the start from the data nor the training of a behavior model with steps of its own is timed."""
    fields = {"batch_size": 4, "hidden_dims": (8,), "behavior.hidden_dims": (8,)}
    cached = {"behavior.steps": 5, "behavior.cache": True, "extras.level_start": True}
    fast, paper = (Candidate("mcq", "paper", 3, 2, "cpu", {**fields, **more}).learner for more in (cached, {}))
    assert [phase.name for phase in fast.phases()] == ["behavior model"]
    assert fast.behavior.cache.edition == 0
    assert (fast.behavior.updates, fast.behavior.draws) == (0, fast.extras.steps)
    assert paper.behavior.updates == paper.extras.steps > 0
    trained = "behavior.optimizer.0.step"
    assert trained in paper.state_dict()
    assert trained not in fast.state_dict()


def test_the_command_prints_json_rows_for_three_presets(capsys):
    threads = torch.get_num_threads()
    try:
        assert main(["bench", "--json", "--repeats", "1", "--batch-size", "4", "--num-actions", "2"]) == 0
    finally:
        torch.set_num_threads(threads)
    rows = json.loads(capsys.readouterr().out)
    assert [(row["algorithm"], row["preset"]) for row in rows] == [
        ("mcq", preset) for preset in ("paper", "official", "default")
    ]
    for row in rows:
        assert set(row) >= KEYS
        assert all(math.isfinite(row[key]) and row[key] > 0 for key in KEYS - {"algorithm", "preset", "compared_with"})


@pytest.mark.parametrize(
    ("flags", "names"),
    [
        (["--algorithm", "mqc"], "mqc"),
        (["--preset", "papr"], "papr"),
        (["--repeats", "0"], "repeats"),
        (["--device", "nonsense"], "nonsense"),
    ],
)
def test_bad_options_are_named(flags, names, capsys):
    assert main(["bench", *flags]) == 2
    assert names in capsys.readouterr().err


@pytest.mark.slow
def test_a_paper_step_reaches_at_least_seven_tenths_of_the_machine():
    torch.set_num_threads(2)
    assert max(bench("mcq", "paper", repeats=15).ratio for _ in range(3)) >= 0.7


def test_the_speed_is_compared_with_what_was_measured_and_with_nothing_else(capsys):
    few = ["--repeats", "1", "--batch-size", "4", "--observation-size", "2", "--action-size", "1"]
    assert main(["bench", "--algorithm", "bc", "--preset", "small", *few]) == 0
    said = capsys.readouterr().out
    assert "1.00" not in said
    assert "multiple" not in said
    assert main(["bench", "--algorithm", "bc", "--preset", "small", "default", *few]) == 0
    assert "as a multiple of those of bc (small)" in capsys.readouterr().out
