"""The main table from a record."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "benchmarks" / "main_table.py"


def run_of(algorithm: str, dataset: str, scores: list[float]) -> dict[str, object]:
    evaluations = [{"step": step, "score": score} for step, score in enumerate(scores, 1)]
    return {"algorithm": algorithm, "dataset": dataset, "variant": None, "evaluations": evaluations}


def write_record(path: Path, runs: list[dict[str, object]]) -> None:
    path.write_text(json.dumps({"note": "", "runs": runs}))


def printed(folder: Path, runs: list[dict[str, object]], data: dict[str, float], *more: str) -> list[str]:
    """The table of some runs, and of those of further records."""
    write_record(folder / "record.json", runs)
    sets = [{"name": f"{name}-recollected", "score": score, "best_score": 2 * score} for name, score in data.items()]
    (folder / "sets.json").write_text(json.dumps({"sets": sets}))
    words = [sys.executable, str(SCRIPT), "--sets", "sets.json", "record.json", *more]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.fixture
def table(tmp_path: Path) -> list[str]:
    """Two sets: MCQ on both, with two seeds on the first; BC on the first alone."""
    runs = [
        run_of("mcq", "hopper-medium-recollected", [*[99.0] * 12, *[10.0] * 10]),  # the last ten count
        run_of("mcq", "hopper-medium-recollected", [99.0, 20.0, 20.0]),  # of the second half
        run_of("bc", "hopper-medium-recollected", [16.0]),
        run_of("mcq", "hopper-random-recollected", [3.0]),
    ]
    lines = printed(tmp_path, runs, {"hopper-medium": 39.04, "hopper-random": 1.2}, "--picture", "table.png")
    assert (tmp_path / "table.png").read_bytes().startswith(b"\x89PNG")
    return lines


def test_a_cell_is_the_mean_over_seeds_of_the_last_evaluations_and_the_best_is_bold(table):
    assert table[3] == "| hopper-medium | 39.0 | 78.1 | 15.0 ± 7.1 | **16.0** | 78.4 |"  # the last is the paper's


def test_the_heading_tells_of_how_many_seeds_a_method_s_scores_are_the_mean(table):
    assert table[0] == "| | the data | its best episode | MCQ (1 or 2 seeds) | BC | MCQ in the paper |"


def test_a_method_that_was_not_run_on_a_set_is_a_dash_there_and_in_the_means(table):
    assert table[2] == "| hopper-random | 1.2 | 2.4 | **3.0** | - | 31.8 |"
    assert table[4] == "| mean of 2 | 20.1 | 40.2 | 9.0 | - | 55.1 |"
    assert table[6].startswith("| interquartile mean of 2 | | | ")
    assert table[6].endswith(" | - | |")


def test_means_stand_beside_the_paper_s_of_the_same_method_and_sets(table):
    assert table[5] == "| mean of 2, in the paper | | | 55.1 | 28.9 | |"  # MCQ 31.8 and 78.4; BC 3.7 and 54.1


def test_several_records_make_one_table_and_variants_are_columns_of_their_own(tmp_path: Path) -> None:
    name = "hopper-medium-recollected"
    write_record(tmp_path / "more.json", [run_of("mcq", name, [11.0]) | {"variant": "no-term"}])
    one = run_of("mcq", name, [10.0]) | {"variant": "default"}  # as a sweep names what is the method itself
    table = printed(tmp_path, [one], {"hopper-medium": 39.0}, "more.json")
    assert table[0] == "| | the data | its best episode | MCQ | MCQ, λ = 1 | MCQ in the paper |"
    assert table[2] == "| hopper-medium | 39.0 | 78.0 | 10.0 | **11.0** | 78.4 |"


def test_columns_can_be_chosen_and_ordered(tmp_path: Path) -> None:
    runs = [run_of(name, "hopper-medium-recollected", [10.0]) for name in ("mcq", "bc", "iql")]
    runs.append(run_of("mcq", "hopper-medium-recollected", [9.0]) | {"variant": "sac"})
    table = printed(tmp_path, runs, {"hopper-medium": 39.0}, "--methods", "SAC", "MCQ", "BC")
    assert table[0] == "| | the data | its best episode | SAC | MCQ | BC | MCQ in the paper |"
    with pytest.raises(subprocess.CalledProcessError) as failure:
        printed(tmp_path, runs, {"hopper-medium": 39.0}, "--methods", "MPO")
    assert "no such method: MPO; there are MCQ, BC, IQL, SAC" in failure.value.stderr


def test_of_an_algorithm_the_first_steps_alone_may_count(tmp_path: Path) -> None:
    runs = [run_of(name, "hopper-medium-recollected", [10.0, 20.0, 30.0, 40.0]) for name in ("mcq", "bc")]
    table = printed(tmp_path, runs, {"hopper-medium": 39.0}, "--steps", "mcq", "2")
    assert table[2] == "| hopper-medium | 39.0 | 78.0 | 20.0 | **35.0** | 78.4 |"


def test_the_means_are_also_told_without_experts_and_the_interquartile_one_with_its_interval(tmp_path: Path) -> None:
    """Of four tasks with two runs each the two lowest and the two highest runs are cut off."""
    scores = {"expert": (100.0, 110.0), "medium-expert": (60.0, 70.0), "medium": (40.0, 50.0), "random": (0.0, 2.0)}
    runs = [run_of("mcq", f"hopper-{kind}-recollected", [one]) for kind, both in scores.items() for one in both]
    *_, every, _, others, theirs, middle = printed(tmp_path, runs, {f"hopper-{kind}": 10.0 for kind in scores})
    assert every == "| mean of 4 | 10.0 | 20.0 | 54.0 | 83.2 |"
    assert others == "| mean of the 3 that are not an expert's | 10.0 | 20.0 | 37.0 | 73.8 |"
    assert theirs == "| mean of the 3 that are not an expert's, in the paper | | | 73.8 | |"
    assert middle == "| interquartile mean of 4 | | | 55.0 [50.0, 60.0] | |"
