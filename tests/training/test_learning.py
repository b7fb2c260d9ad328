"""Slow tests: does it learn, and at what cost? Run with `make slow`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import mildly
from mildly.data.dataset import Meta

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]


def test_mcq_beats_its_data_and_behavior_cloning_on_pendulum(tmp_path):
    data = mildly.load_dataset("pendulum-mixed")
    scores = {"data": float(data.score(data.episode_returns()).mean())}
    for algorithm, steps in (("bc", 4_000), ("mcq", 6_000)):
        run = mildly.train(algorithm, data, preset="small", steps=steps, eval_every=0, seed=7, out=tmp_path / algorithm)
        scores[algorithm] = mildly.evaluate(run).score
    assert scores["mcq"] > scores["data"] + 20
    assert scores["mcq"] > scores["bc"] + 20


def test_the_preset_default_rises_above_what_it_cloned(tmp_path):
    """Cloning and warm-up have steps of their own; the first main step shows what came of them."""
    run = mildly.train("mcq", "pendulum-mixed", steps=1, eval_every=1_000, out=tmp_path / "run")
    mildly.resume(run.path, steps=6_000)
    (_, cloned), *later = ((line["step"], line["score"]) for line in run.evaluations())
    assert [step for step, _ in later] == [1_000, 2_000, 3_000, 4_000, 5_000, 6_000]
    assert cloned > 50  # a clone of what went well; one of all data is at 6
    assert later[-1][1] > cloned + 10
    assert later[-1][1] > 75


def test_the_demo_ends_within_five_minutes_with_mcq_on_top(tmp_path):
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, ROOT / "examples" / "demo.py"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert time.monotonic() - began < 300
    assert (tmp_path / "demo" / "learning_curve.png").stat().st_size > 10_000
    scores = {
        line.split()[0].strip(":"): float(line.split()[-2])
        for line in done.stdout.splitlines()
        if line.strip().startswith(("the data itself", "BC", "MCQ"))
    }
    assert scores["MCQ"] > max(scores["the"], scores["BC"]) + 20


def test_training_on_a_million_hopper_sized_transitions_stays_under_one_and_a_half_gigabytes(tmp_path):
    rng = np.random.default_rng(0)
    n = 1_000_000
    observations = rng.standard_normal((n, 11), dtype=np.float32)
    mildly.Dataset.from_arrays(
        observations=observations,
        actions=rng.uniform(-1, 1, (n, 3)),
        rewards=rng.standard_normal(n),
        next_observations=observations[::-1],
        terminated=np.zeros(n, bool),
        truncated=np.arange(n) % 1000 == 999,
        meta=Meta(name="hopper-million", env_id="Hopper-v4"),
    ).save(tmp_path / "million")
    code = """
import json, pathlib, mildly
mildly.train("mcq", "million", steps=30, eval_every=30, episodes=2, out="run")
peak = next(l for l in pathlib.Path("/proc/self/status").read_text().splitlines() if l.startswith("VmHWM"))
print(json.dumps(int(peak.split()[1]) / 1e6))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) < 1.5


def test_loading_logging_and_bookkeeping_take_under_three_percent_of_a_paper_run(tmp_path):
    few = {"steps": 250, "eval_every": 0, "log_every": 50}
    run = mildly.train("mcq", "pendulum-mixed", preset="paper", **few, out=tmp_path / "run")
    seconds = run.timing()
    assert sum(seconds.values()) - seconds["update"] < 0.03 * sum(seconds.values())


def test_a_set_larger_than_the_memory_of_the_process_trains_at_four_fifths_of_the_speed(tmp_path):
    """Needs the right to make control groups, so root on Linux."""
    if not os.access("/proc/sys/vm/drop_caches", os.W_OK):
        pytest.skip("the memory of a process cannot be limited here")
    script, output = ROOT / "benchmarks" / "large_sets.py", tmp_path / "result.json"
    args = ["--rows", "12000000", "--memory", "1000", "--num-actions", "1", "--output", str(output)]
    subprocess.run([sys.executable, str(script), *args], check=True, capture_output=True)
    result = json.loads(output.read_text())
    assert result["set_megabytes"] > 1000
    assert result["speed_mapped_to_memory"] >= 0.8
