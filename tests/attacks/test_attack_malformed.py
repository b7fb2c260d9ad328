"""JSON that is deep, endless or of other types, and absurd sizes: one clear message, never a traceback."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from carriers import policy_arrays
from conftest import make_dataset, train_tiny, unsealed
from mutations import DEEP, DIGITS, SURROGATE, damaged, json_mutant, lines_mutant, npz_mutant

from mildly.cli import main
from mildly.collect.rollouts import ArrayPolicy
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError
from mildly.files import parse_json
from mildly.policy import load_policy
from mildly.run import Run
from mildly.training.offline import resume

FILES = ("run.json", "metrics.jsonl", "evaluations.jsonl", "timing.json", "policy/policy.json")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny("td3-bc", tmp_path_factory.mktemp("sound") / "run", steps=10, eval_every=5).path


@pytest.mark.parametrize("text", [DEEP, DIGITS, SURROGATE, "{", "\ufeff{}", "nul", "[1,]", '{"a": 1e', "\x00", "\xff"])
def test_the_reader_refuses_with_a_value_error(text: str) -> None:
    for given in (text, text.encode("utf-8"), text.encode("utf-16")):
        with pytest.raises(ValueError, match=r"."):
            parse_json(given)


def everything(run: Path, page: Path) -> None:
    """Read a run in every way; only our own errors may come of it."""
    assert main(["report", str(run), "--output", str(page), "--csv", str(page.parent / "tables")]) in (0, 2)
    assert main(["evaluate", str(run), "--episodes", "1"]) in (0, 2)
    for read in (load_policy, lambda path: Run.open(path).plan(), lambda path: Run(path).timing()):
        try:
            read(run)
        except MildlyError:
            continue


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("text", [DEEP, DIGITS, SURROGATE, "[]", "3", "null", f'{{"step": {DIGITS}}}'])
def test_a_file_of_a_run_that_is_no_sound_json_gives_no_traceback(
    tmp_path: Path, run: Path, name: str, text: str
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / name).write_text(text + "\n")
    everything(copy, tmp_path / "page.html")
    if name == "run.json":
        with pytest.raises(MildlyError):
            resume(copy, steps=20)


@pytest.mark.parametrize("count", [8, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", FILES)
def test_wrong_types_anywhere_give_no_traceback(tmp_path: Path, run: Path, name: str, count: int) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    draw = random.Random(name)
    for _ in range(count):
        lines = name.endswith(".jsonl")
        sound = (run / name).read_bytes()
        (copy / name).write_bytes(lines_mutant(sound, draw) if lines else json_mutant(unsealed(run / name), draw))
        everything(copy, tmp_path / "page.html")
        try:
            if name == "run.json":
                resume(copy)
        except MildlyError:
            pass


@pytest.mark.parametrize("count", [60, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_mutated_description_of_data_gives_no_traceback(tmp_path: Path, count: int) -> None:
    folder = make_dataset().save(tmp_path / "data")
    sound, draw = unsealed(folder / "dataset.json"), random.Random(0)
    texts = (text.encode() for text in (DEEP, DIGITS, SURROGATE))
    for text in (*texts, *(json_mutant(sound, draw) for _ in range(count))):
        (folder / "dataset.json").write_bytes(text)
        try:
            Dataset.load(folder)
        except MildlyError:
            continue
    assert main(["data", "info", str(folder)]) in (0, 2)


@pytest.mark.parametrize("widths", [[10**9], [10**9, 10**9], [2**62], [1] * 100_000, [-1], [0], ["many"], "wide", None])
def test_absurd_sizes_in_a_policy_are_refused_before_anything_is_allocated(
    tmp_path: Path, run: Path, widths: object
) -> None:
    copy = Path(shutil.copytree(run / "policy", tmp_path / "policy"))
    values = unsealed(copy / "policy.json")
    values["spec"]["hidden_dims"] = widths
    (copy / "policy.json").write_text(json.dumps(values))
    with pytest.raises(MildlyError, match="the policy is damaged"):
        load_policy(copy)


@pytest.mark.parametrize("widths", [[10**9], [65_536, 65_536], [30_000, 100], [1] * 100])
def test_absurd_sizes_in_a_plan_are_refused_before_anything_is_allocated(
    tmp_path: Path, run: Path, widths: list[int]
) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    plan = unsealed(copy / "run.json")
    plan["config"]["hidden_dims"] = widths
    (copy / "run.json").write_text(json.dumps(plan))
    with pytest.raises(MildlyError, match="hidden_dims"):
        resume(copy, steps=20)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--hidden-dims", "1000000000"], "hidden_dims must be at most 65,536 each"),
        (["--hidden-dims", *["65536"] * 9], "of memory, but this machine has"),
        (["--ensemble", "1000000"], "ensemble 1,000,000 and batch_size 256 need at least"),
        (["--threads", "100000"], "threads must be at most 1,024, got 100,000"),
        (["--batch-size", str(10**12)], "batch_size must be at most 16,777,216"),
        (["--steps", str(10**30)], "steps must be at most"),
    ],
)
def test_absurd_sizes_on_the_command_line_get_a_clear_message(refused: Any, flags: list[str], words: str) -> None:
    assert words in refused.command("train", "td3-bc", "--dataset", "pendulum-mixed", *flags)


@pytest.mark.parametrize("count", [150, pytest.param(2000, marks=pytest.mark.slow)])
def test_mutated_arrays_of_a_policy_give_no_traceback(tmp_path: Path, count: int) -> None:
    draw, path = random.Random(0), tmp_path / "policy.npz"
    for number in range(count):
        content = npz_mutant(policy_arrays(action_size=2), draw, ("Wls", "W2", "W9"))
        path.write_bytes(damaged(content, draw) if number % 3 == 0 else content)
        try:
            policy = ArrayPolicy(path, deterministic=bool(number % 2))
            if policy.observation_size == 3:
                policy(np.zeros((5, 3), np.float32), np.random.default_rng(0))
        except MildlyError:
            continue
