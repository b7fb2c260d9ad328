"""The report: what it says of runs is right, whatever state they are in and whatever they are called."""

from __future__ import annotations

import csv
import json
import re
import shutil
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import mildly, train_tiny

from mildly.cli import main
from mildly.errors import MildlyError
from mildly.report.charts import chart_specs
from mildly.report.comparison import Comparison, compare
from mildly.report.curves import mean_curve, thin
from mildly.report.export import write_csv, write_latex
from mildly.report.facts import dataset_facts, differences, duration, group_costs, version_counts
from mildly.report.page import make_report, render, write_page
from mildly.report.summary import score_text, sentences
from mildly.run import FORMAT
from mildly.training.finetune import finetune


def write_run(
    folder: Path,
    algorithm: str = "mcq",
    dataset: str = "pendulum-mixed",
    seed: int = 0,
    *,
    level: float = 50.0,
    scored: bool = True,
    reached: int = 1000,
    lines: int = 20,
    evaluations: int = 20,
    noise: float = 0.0,
    phase_lines: int = 0,
    config: dict[str, Any] | None = None,
    notes: tuple[str, ...] = (),
    **plan: Any,
) -> Path:
    """A run folder as training leaves it, with made-up numbers: evaluations score `level`, the first half 0.

    With `phase_lines`, a phase of so many lines comes before the main steps, whose numbers none of these have.
    """
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    data = {"name": dataset, "env_id": "Pendulum-v1", "reference_min": -1200.0, "reference_max": -200.0}
    data |= {"source": "made up", "notes": list(notes), "fingerprint": f"{len(dataset):064x}"}
    values = {
        "format": FORMAT, "algorithm": algorithm, "preset": "small",
        "config": {"lam": 0.7, "hidden_dims": [16, 16], **(config or {})},
        "dataset": dataset, "data": data, "steps": 1000, "seed": seed, "eval_every": 50, "episodes": 1,
        "env": "Pendulum-v1", "log_every": 50, "checkpoint_every": 50, "device": "cpu", "threads": 1,
        "versions": {"python": "3.11.7", "torch": "2.13.0"}, **plan,
    }  # fmt: skip
    (folder / "run.json").write_text(json.dumps(values))
    steps = np.linspace(0, reached, evaluations + 1)[1:].astype(int).tolist()
    said = []
    for i, step in enumerate(steps):
        score = (level if i >= evaluations // 2 else 0.0) + noise * random.normal()
        said.append({"step": step, "returns": [10 * score - 1200], "mean_return": 10 * score - 1200})
        said[-1] |= {"scores": [score] if scored else None, "score": score if scored else None}
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in said))
    steps = np.linspace(0, reached, lines + 1)[1:].astype(int).tolist()
    told = [
        {"step": step, "loss_actor": 1.0, "q_data": -step / 7, "q_ood": -step / 8, "q_target": -1.0} for step in steps
    ]
    for line in told if noise else []:
        line |= {name: value + noise * random.normal() for name, value in line.items() if name != "step"}
    before = [{"phase": "bc warm-up", "step": 50 * i + 50, "q_data": 1e6, "loss_bc": 2.0} for i in range(phase_lines)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [*before, *told]))
    timing = {
        "data": 1.0,
        "update": 8.0,
        "bookkeeping": 1.0,
        "evaluation": 5.0,
        "checkpoint": 1.0,
        "peak_megabytes": 321,
    } | ({"phases": 40.0} if phase_lines else {})
    (folder / "timing.json").write_text(json.dumps(timing))
    return folder


def page_of(*folders: Path) -> str:
    report = make_report(folders)
    return render(report, folders[0], compare(report))


def two_algorithms(folder: Path) -> Path:
    for seed, (bc, mcq) in enumerate([(10, 50), (20, 60), (30, 70)]):
        write_run(folder / f"bc-{seed}", "bc", seed=seed, level=bc)
        write_run(folder / f"mcq-{seed}", "mcq", seed=seed, level=mcq)
    return folder


def test_runs_that_differ_in_their_seed_alone_are_one_group_with_mean_and_deviation(tmp_path):
    report = make_report([two_algorithms(tmp_path)])
    assert [(group.label, group.seeds, group.mean, group.std) for group in report.groups] == [
        ("bc", 3, 20.0, 10.0),
        ("mcq", 3, 60.0, 10.0),
    ]
    assert [score_text(group) for group in report.groups] == ["20.0 ± 10.0", "60.0 ± 10.0"]
    assert [report.is_best(group) for group in report.groups] == [False, True]


def test_the_cost_table_has_few_enough_columns_for_a_laptop_and_the_parts_have_their_own(tmp_path):
    write_run(tmp_path / "a")
    page = write_page(make_report([tmp_path]), tmp_path / "page.html").read_text()
    heads = {
        name: page.split(f'id="{name}"')[1].split("</thead>")[0].count("<th") - 1
        for name in ("cost-table", "seconds-table")
    }
    assert heads == {"cost-table": 6, "seconds-table": 7}


def test_a_score_leaves_out_the_first_half_of_a_run_in_which_the_policy_is_hardly_trained(tmp_path):
    write_run(tmp_path / "a", level=40.0, evaluations=16)  # the first 8 score 0, and 2 of these are among the last ten
    assert make_report([tmp_path]).groups[0].mean == pytest.approx(40.0)
    write_run(tmp_path / "b", level=40.0, evaluations=2)
    assert make_report([tmp_path / "b"]).groups[0].records[0].result.score == pytest.approx(40.0)


def test_groups_are_named_by_the_fields_that_set_them_apart(tmp_path):
    write_run(tmp_path / "a", config={"lam": 0.5})
    write_run(tmp_path / "b", config={"lam": 0.9})
    write_run(tmp_path / "c", "bc", config={"lam": 0.1})
    assert make_report([tmp_path]).labels == ["bc", "mcq lam=0.5", "mcq lam=0.9"]


def test_runs_of_a_sweep_have_the_names_that_its_file_gives_them(tmp_path):
    many = {f"field{j}": j for j in range(6)}
    write_run(tmp_path / "a", variant="printed")
    write_run(tmp_path / "b", variant="robust,lam=0.5", preset="robust", config=many)
    write_run(tmp_path / "c", "bc")
    assert make_report([tmp_path]).labels == ["bc", "mcq printed", "mcq robust lam=0.5"]
    write_run(tmp_path / "d", dataset="hopper-mixed", config={"lam": 0.3})  # its only setting there
    assert make_report([tmp_path]).labels == ["bc", "mcq", "mcq printed", "mcq robust lam=0.5"]


def test_runs_that_held_episodes_out_are_no_seeds_of_those_that_did_not(tmp_path):
    for folder, seed, level, held in (("a", 0, 10.0, []), ("b", 1, 30.0, [4, 7]), ("c", 2, 50.0, [0, 9])):
        write_run(tmp_path / folder, seed=seed, level=level, held_out=held)
    report = make_report([tmp_path])
    assert [(group.label, group.mean, group.seeds) for group in report.groups] == [
        ("mcq holdout=none", 10.0, 1),
        ("mcq holdout=2 episodes", 40.0, 2),
    ]
    (found,) = differences(report)
    assert [values for _, values in found.rows] == [["none"], ["2 episodes"]]


def test_fields_inside_groups_of_a_config_have_dotted_names(tmp_path):
    for kind in ("cvae", "flow"):
        write_run(tmp_path / kind, config={"behavior": {"model": kind, "hidden_dims": [8, 8]}})
    report = make_report([tmp_path])
    assert report.labels == ["mcq behavior.model=cvae", "mcq behavior.model=flow"]
    (found,) = differences(report)
    assert found.fields == ["behavior.model"]
    assert [values for _, values in found.rows] == [["cvae"], ["flow"]]
    assert found.shared["behavior.hidden_dims"] == "8x8"
    assert "behavior.hidden_dims" in page_of(tmp_path)


def test_names_of_two_sweeps_that_clash_are_made_of_the_fields(tmp_path):
    for sweep, lam in (("one", 0.5), ("two", 0.9)):
        write_run(tmp_path / sweep, variant="best", config={"lam": lam})
    assert make_report([tmp_path]).labels == ["mcq lam=0.5", "mcq lam=0.9"]
    write_run(tmp_path / "three", config={"lam": 0.7})  # from no sweep
    assert make_report([tmp_path]).labels == ["mcq lam=0.5", "mcq lam=0.7", "mcq lam=0.9"]
    assert make_report([tmp_path / "one", tmp_path / "three"]).labels == ["mcq lam=0.5", "mcq lam=0.7"]


def test_a_seed_that_was_run_twice_counts_once(tmp_path):
    for folder, seed, level in (("a", 0, 10.0), ("b", 0, 30.0), ("c", 1, 40.0)):
        write_run(tmp_path / folder, seed=seed, level=level)
    (group,) = make_report([tmp_path]).groups
    assert sorted(group.scores) == [20.0, 40.0]
    assert (group.mean, group.seeds, len(group.evaluated())) == (30.0, 2, 3)
    shutil.rmtree(tmp_path / "c")
    (group,) = make_report([tmp_path]).groups
    assert (group.mean, group.std) == (20.0, None)


def test_fields_that_differ_only_between_data_sets_are_not_in_the_name(tmp_path):
    write_run(tmp_path / "a", dataset="hopper", config={"lam": 0.5})
    write_run(tmp_path / "b", dataset="walker2d", config={"lam": 0.9})
    assert make_report([tmp_path]).labels == ["mcq"]


def test_a_preset_stands_for_all_that_it_sets(tmp_path):
    write_run(tmp_path / "a", preset="small", config={"lam": 0.5, "hidden_dims": [8]})
    write_run(tmp_path / "b", preset="paper", config={"lam": 0.9, "hidden_dims": [400, 400]})
    assert make_report([tmp_path]).labels == ["mcq paper", "mcq small"]


def test_groups_with_too_many_differences_are_numbered_and_never_share_a_name(tmp_path):
    for i in range(12):
        write_run(tmp_path / f"{i}", config={f"field{j}": i + j for j in range(6)})
    labels = make_report([tmp_path]).labels
    assert labels == [f"mcq #{i}" for i in range(1, 13)]


def test_different_data_of_one_name_are_kept_apart(tmp_path):
    write_run(tmp_path / "a")
    other = write_run(tmp_path / "b") / "run.json"
    other.write_text(other.read_text().replace('"fingerprint": "0', '"fingerprint": "f'))
    assert len(make_report([tmp_path]).datasets) == 2


def test_without_reference_returns_the_return_itself_is_reported(tmp_path):
    write_run(tmp_path / "a", scored=False, level=50)
    report = make_report([tmp_path])
    assert report.groups[0].mean == pytest.approx(-700)
    assert "need normalized scores" in str(compare(report))
    assert chart_specs(report, "")["learning-0"]["yLabel"] == "return"


def test_a_curve_is_the_mean_over_runs_and_counts_those_that_came_so_far():
    curve = mean_curve([(np.array([0, 10, 20]), np.array([0.0, 10, 20])), (np.array([0, 10]), np.array([2.0, 20]))])
    assert curve is not None
    assert curve.steps.tolist() == [0, 10, 20]
    assert curve.mean.tolist() == [1, 15, 20]
    assert curve.std == pytest.approx([np.sqrt(2), np.sqrt(50), 0])
    assert (curve.low.tolist(), curve.high.tolist()) == ([0, 10, 20], [2, 20, 20])
    assert curve.runs.tolist() == [2, 2, 1]


def test_runs_evaluated_at_other_steps_are_interpolated():
    curve = mean_curve([(np.array([0, 10]), np.array([0.0, 10])), (np.array([0, 5, 10]), np.array([0.0, 15, 10]))])
    assert curve is not None
    assert curve.mean.tolist() == [0, 10, 10]


def test_thinning_keeps_the_ends_and_every_spike():
    steps = np.arange(100_000)
    values = np.sin(steps / 5_000)
    values[[777, 41_234, 99_000]] = [9, -9, 7]
    chosen = thin(steps, values, 300)
    assert len(chosen) <= 300
    assert {0, 777, 41_234, 99_000, 99_999} <= set(chosen.tolist())
    assert (np.diff(chosen) > 0).all()
    assert thin(steps[:300], values[:300], 300).tolist() == list(range(300))


def test_a_color_stands_for_one_label_in_all_charts(tmp_path):
    two_algorithms(tmp_path)
    report = make_report([tmp_path])
    specs = chart_specs(report, compare(report))
    rows = [row for panel in specs["aggregates"]["panels"] for row in panel["rows"]]
    pairs = [(part["label"], part["color"]) for part in [*rows, *specs["learning-0"]["series"]]]
    assert set(pairs) == {("bc", "s0"), ("mcq", "s1")}


def test_aggregates_come_from_the_scores_of_runs(tmp_path):
    comparison = compare(make_report([two_algorithms(tmp_path)]))
    assert isinstance(comparison, Comparison)
    assert comparison.aggregates["Mean"]["mcq"].value == pytest.approx(60)
    assert comparison.aggregates["Optimality gap (less is better)"]["bc"].value == pytest.approx(80)
    assert comparison.improvements["mcq", "bc"].value == 1.0
    assert comparison.profiles["bc"].value[[0, -1]].tolist() == [1, 0]


def test_aggregates_use_the_data_sets_that_the_algorithms_share(tmp_path):
    two_algorithms(tmp_path / "shared")
    for seed in range(2):
        write_run(tmp_path / f"alone-{seed}", dataset="hopper", seed=seed)
    comparison = compare(make_report([tmp_path]))
    assert isinstance(comparison, Comparison)
    assert (comparison.labels, comparison.datasets) == (["bc", "mcq"], ["pendulum-mixed"])


def test_single_seeds_give_a_sentence_in_the_place_of_intervals(tmp_path):
    write_run(tmp_path / "a", "bc")
    write_run(tmp_path / "b", "mcq")
    page = page_of(tmp_path)
    assert "need at least two seeds" in page
    assert 'data-chart="aggregates"' not in page


def test_the_summary_says_who_is_ahead_and_how_surely(tmp_path):
    assert "mcq is highest with 60.0 ± 10.0, against 20.0 ± 10.0 of bc." in _words(two_algorithms(tmp_path / "far"))
    for seed in range(2):
        write_run(tmp_path / f"close/a{seed}", "bc", seed=seed, level=10 + 20 * seed)
        write_run(tmp_path / f"close/b{seed}", "mcq", seed=seed, level=12 + 20 * seed)
    assert "less than one standard deviation apart" in _words(tmp_path / "close")
    write_run(tmp_path / "one/a", "bc", level=1)
    write_run(tmp_path / "one/b", "mcq", level=2, reached=500)
    assert "may be luck" in _words(tmp_path / "one")
    assert "1 run is unfinished" in _words(tmp_path / "one")


def test_one_run_is_of_one_seed_and_of_several_groups_each_has_its_own(tmp_path):
    write_run(tmp_path / "one/a", "bc")
    assert ", 1 seed. " in _words(tmp_path / "one")
    write_run(tmp_path / "one/b", "mcq")
    assert ", 1 seed each. " in _words(tmp_path / "one")


def _words(folder: Path) -> str:
    return " ".join(sentences(make_report([folder])))


def test_costs_leave_evaluations_out_of_the_speed(tmp_path):
    write_run(tmp_path / "a")
    (cost,) = group_costs(make_report([tmp_path]))
    assert (cost.total, cost.steps_per_second, cost.megabytes) == (16.0, 100.0, 321.0)
    assert [duration(s) for s in (4.24, 42, 252, 11_100)] == ["4.2 s", "42 s", "4 min 12 s", "3 h 05 min"]


def test_the_phases_of_a_run_are_in_no_curve_and_in_no_count_of_steps(tmp_path):
    write_run(tmp_path / "plain" / "a")
    write_run(tmp_path / "phases" / "a", phase_lines=5000)  # which must not take the place of the others
    plain, phases = (make_report([tmp_path / name]) for name in ("plain", "phases"))
    assert len(plain.records[0].metrics) == 20
    assert phases.records[0].metrics == plain.records[0].metrics
    assert (phases.records[0].step, phases.records[0].complete, phases.records[0].problems) == (1000, True, [])
    assert chart_specs(phases, "") == chart_specs(plain, "")


def test_a_run_that_has_come_no_further_than_a_phase_stands_at_step_0(tmp_path):
    write_run(tmp_path / "a", phase_lines=30, lines=0, evaluations=0, reached=0)
    report = make_report([tmp_path])
    assert (report.records[0].step, report.records[0].metrics, report.records[0].problems) == (0, [], [])
    assert "0 of 1,000" in page_of(tmp_path)
    assert "unfinished, 0 %" in page_of(tmp_path)


def cost_row(page: str) -> dict[str, str]:
    """The first rows of the tables of costs, by their heads."""
    found: dict[str, str] = {}
    for table in re.findall(r'<table id="(?:cost|seconds)-table".*?</table>', page, re.DOTALL):
        head, row = (re.findall(r"<t[hd].*?</t[hd]>", line, re.DOTALL) for line in table.split("</tr>")[:2])
        texts = [[re.sub(r"<[^>]*>", "", cell).strip() for cell in cells] for cells in (head, row)]
        found |= dict(zip(*texts, strict=True))
    return found


def test_the_time_of_phases_is_a_part_of_its_own_and_the_speed_is_that_of_the_main_steps(tmp_path):
    write_run(tmp_path / "a", phase_lines=10)
    (cost,) = group_costs(make_report([tmp_path]))
    assert (cost.seconds["phases"], cost.total, cost.steps_per_second) == (40.0, 56.0, 100.0)
    page = page_of(tmp_path)
    row = cost_row(page)
    assert (row["phases"], row["steps/s"], row["time per run"]) == ("40.0", "100", "56 s")
    assert "phases 71 %" in page
    (key,) = re.findall(r'<p class="key">(.*?)</p>', page, re.DOTALL)
    colors = re.findall(r"var\(--(\w+)\)", key)
    assert len(colors) == len(set(colors)) == 6
    assert "phases" not in cost_row(page_of(write_run(tmp_path / "other" / "b")))


def test_a_real_run_with_phases_is_reported_by_its_main_steps(tmp_path):
    own = {"behavior.steps": 20, "extras.bc_warmup_steps": 30, "extras.level_start": True}
    run = train_tiny("mcq", tmp_path / "run", steps=50, **own)
    assert [line["step"] for line in run.metrics("bc warm-up")] == list(range(5, 35, 5))
    assert all("q_data" in line for line in run.metrics("bc warm-up"))  # so that it would show
    report = make_report([tmp_path])
    (record,) = report.records
    assert (
        [line["step"] for line in record.metrics] == [line["step"] for line in run.metrics()] == list(range(5, 55, 5))
    )
    assert (record.step, record.complete) == (50, True)
    for series in chart_specs(report, "")["values-0"]["series"]:
        assert (series["x"][0], series["x"][-1]) == (5, 50)
    (cost,) = group_costs(report)
    timing = run.timing()
    assert cost.seconds["phases"] == timing["phases"] > 0
    spent = timing["update"] + timing["data"] + timing["bookkeeping"]
    assert cost.steps_per_second == pytest.approx(50 / spent)
    assert float(cost_row(page_of(tmp_path))["phases"]) == pytest.approx(timing["phases"], abs=0.05)


def test_a_fine_tuned_run_is_one_curve_with_a_mark_where_it_begins_to_act(tmp_path):
    run = train_tiny("td3", tmp_path / "runs/a", steps=20, eval_every=10)
    train_tiny("td3", tmp_path / "runs/b", steps=20, eval_every=10)
    finetune(run, steps=10, quiet=True)
    report = make_report([tmp_path / "runs"])
    assert sorted(group.label for group in report.groups) == [
        "td3 steps=20 further=none",
        "td3 steps=30 further=10 online",
    ]
    assert all(group.complete for group in report.groups)
    spec = chart_specs(report, "")["learning-0"]
    assert sorted(series["x"] for series in spec["series"]) == [[10, 20], [10, 20, 30]]
    assert spec["marks"] == [{"x": 20, "label": "online from here"}]
    assert "online from here" in page_of(tmp_path / "runs")


def test_only_settings_that_differ_are_set_side_by_side(tmp_path):
    write_run(tmp_path / "a", config={"lam": 0.5})
    write_run(tmp_path / "b", config={"lam": 0.9}, threads=4)
    (found,) = differences(make_report([tmp_path]))
    assert found.fields == ["lam", "threads"]
    assert [values for _, values in found.rows] == [["0.5", "1"], ["0.9", "4"]]
    assert found.shared["hidden_dims"] == "16x16"


def test_facts_about_data_and_versions_are_gathered(tmp_path):
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", dataset="nowhere", versions={"python": "3.12.0"})
    report = make_report([tmp_path])
    assert [(facts.name, facts.transitions) for facts in dataset_facts(report)] == [
        ("nowhere", None),
        ("pendulum-mixed", 19_400),
    ]
    assert version_counts(report.records)["python"] == {"3.11.7": 1, "3.12.0": 1}


DAMAGES = {
    "run.json": ('{"format": 2, "algo', "cannot be read"),
    "evaluations.jsonl": ('{"step": 1}\n', "no mean_return"),
    "metrics.jsonl": ("no json\n", "metrics.jsonl: damaged"),
    "timing.json": ("[", "timing.json: damaged"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_run_is_listed_with_its_problem(tmp_path, name):
    two_algorithms(tmp_path)
    text, said = DAMAGES[name]
    (tmp_path / "mcq-1" / name).write_text(text)
    page = page_of(tmp_path)
    assert said in page
    assert 'href="./mcq-1/"' in page


def test_a_run_of_another_version_is_listed_with_what_to_do(tmp_path):
    two_algorithms(tmp_path)
    write_run(tmp_path / "old", format=FORMAT - 1)
    page = page_of(tmp_path)
    assert f"run.json: of another version of mildly (format {FORMAT - 1}; this one reads {FORMAT})" in page
    assert "Train it again, or use that version." in page


def test_a_run_that_has_just_begun_is_listed(tmp_path):
    folder = write_run(tmp_path / "a")
    for name in ("evaluations.jsonl", "metrics.jsonl", "timing.json"):
        (folder / name).unlink()
    assert "unfinished, 0 %" in page_of(tmp_path)


def test_logs_without_a_plan_are_listed(tmp_path):
    two_algorithms(tmp_path)
    (tmp_path / "bc-0" / "run.json").unlink()
    assert "cannot be read: no run.json" in page_of(tmp_path)


def test_a_half_written_last_line_is_passed_over(tmp_path):
    folder = write_run(tmp_path / "a")
    for name in ("evaluations.jsonl", "metrics.jsonl"):
        with (folder / name).open("a") as file:
            file.write('{"step": 1050, "sco')
    (record,) = make_report([tmp_path]).records
    assert (record.problems, record.step) == ([], 1000)


def test_no_runs_is_a_clear_error(tmp_path, capsys):
    with pytest.raises(MildlyError, match="no run to report on"):
        make_report([tmp_path])
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "page.html")]) == 2
    assert main(["report", str(tmp_path / "absent")]) == 2
    assert "no such folder" in capsys.readouterr().err
    assert main(["report", "-o", str(tmp_path / "page.html")]) == 2
    assert "no folder given" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_told_before_runs_are_read(tmp_path, capsys):
    assert main(["report", str(tmp_path), "-o", str(tmp_path / "no" / "page.html")]) == 2
    assert "there is no folder" in capsys.readouterr().err


class Elements(HTMLParser):
    """The elements of a page, and whether each is closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: list[str] = []
        self.addresses: list[str] = []
        self.handlers: list[str] = []
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.append(tag)
        self.addresses += [value or "" for name, value in attrs if name in ("href", "src")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>\"'&amp;</script>"


def test_nothing_that_a_run_says_becomes_markup(tmp_path):
    evil_name = "<script>alert('run')<!--"
    plain = Elements(page_of(write_run(tmp_path / "plain")))
    write_run(tmp_path / "evil" / evil_name, dataset=EVIL, notes=(EVIL,), preset=EVIL, env=EVIL, versions={EVIL: EVIL})
    write_run(tmp_path / "evil" / "b", EVIL, config={EVIL: EVIL}, dataset=EVIL)
    (write_run(tmp_path / "evil" / "c") / "metrics.jsonl").write_text("<script>\n")
    (write_run(tmp_path / "evil" / "d") / "run.json").write_text('{"format": "<script>"}')
    page = page_of(tmp_path / "evil")
    evil = Elements(page)
    assert evil.names.count("script") == plain.names.count("script") == 2
    assert "img" not in evil.names
    assert not evil.handlers
    assert evil.open == []
    data = re.search(r'<script type="application/json" id="chart-data">(.*?)</script>', page, re.DOTALL)
    assert data is not None
    assert any(EVIL in spec["title"] for spec in json.loads(data[1]).values())


def test_the_page_asks_for_nothing_from_elsewhere(tmp_path):
    page = page_of(two_algorithms(tmp_path))
    assert all(address.startswith(("#", "./")) for address in Elements(page).addresses)
    assert "@import" not in page
    assert "default-src 'none'" in page


def test_links_to_runs_are_relative_to_the_page(tmp_path):
    write_run(tmp_path / "runs" / "a b")
    (tmp_path / "pages").mkdir()
    page = write_page(make_report([tmp_path / "runs"]), tmp_path / "pages" / "report.html").read_text()
    assert 'href="./../runs/a%20b/"' in page


def test_csv_holds_the_summary_and_the_curves(tmp_path):
    report = make_report([two_algorithms(tmp_path / "runs")])
    assert [path.name for path in write_csv(report, tmp_path / "tables")] == ["summary.csv", "curves.csv"]
    summary, curves = write_csv(report, tmp_path / "my.csv")
    assert (summary.name, curves.name) == ("my.csv", "my-curves.csv")
    rows = list(csv.DictReader(summary.open()))
    assert [(row["group"], float(row["mean"]), float(row["std"]), row["runs"]) for row in rows] == [
        ("bc", 20, 10, "3"),
        ("mcq", 60, 10, "3"),
    ]
    last = list(csv.DictReader(curves.open()))[-1]
    assert (last["group"], last["step"], float(last["mean"]), float(last["min"])) == ("mcq", "1000", 60, 50)


def test_latex_is_a_booktabs_table_with_the_best_in_bold(tmp_path):
    two_algorithms(tmp_path / "runs")
    write_run(tmp_path / "runs" / "other", dataset="a_b%", level=-5)
    lines = write_latex(make_report([tmp_path / "runs"]), tmp_path / "table.tex").read_text().splitlines()
    assert lines[1:4] == [r"\begin{tabular}{lrr}", r"\toprule", r"data set & bc & mcq \\"]
    assert r"a\_b\% & -- & $-$5.0 \\" in lines
    assert r"pendulum-mixed & 20.0 $\pm$ 10.0 & \textbf{60.0 $\pm$ 10.0} \\" in lines


def test_real_runs_become_a_page_tables_and_figures(tmp_path):
    pytest.importorskip("matplotlib")
    for seed in range(2):
        train_tiny("mcq", tmp_path / "runs" / f"mcq-{seed}", seed=seed, steps=100)
        train_tiny("bc", tmp_path / "runs" / f"bc-{seed}", seed=seed, steps=100)
    args = ("report", "runs", "-o", "page.html", "--csv", "tables", "--latex", "table.tex", "--figures", "figures")
    done = mildly(*args, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "written: page.html" in done.stdout
    assert re.search(r"pendulum-mixed +mcq +-?[\d.]+ ± [\d.]+", done.stdout)
    figures = {path.name for path in (tmp_path / "figures").iterdir()}
    assert {"learning-pendulum-mixed.png", "values-pendulum-mixed-mcq.svg", "aggregates.png", "profiles.svg"} <= figures
    assert "values-pendulum-mixed-bc.png" not in figures  # it has no critics
    page = (tmp_path / "page.html").read_text()
    assert all(text in page for text in ("pseudo target", "19,400", "peak MB", "complete"))


@pytest.mark.slow
def test_a_thousand_runs_of_full_length_take_less_than_half_a_minute(tmp_path):
    for i in range(1000):
        algorithm, dataset, seed = ("mcq", "bc", "sac", "td3bc")[i % 4], f"set-{i // 4 % 25}", i // 100
        folder = tmp_path / "runs" / f"{i}"
        extent: dict[str, Any] = {
            "lines": 5000,
            "evaluations": 200,
            "steps": 1_000_000,
            "reached": 1_000_000,
            "noise": 5.0,
        }
        write_run(folder, algorithm, dataset, seed, level=i / 10, **extent)
    start = time.perf_counter()
    report = make_report([tmp_path / "runs"])
    page = write_page(report, tmp_path / "page.html")
    seconds, size = time.perf_counter() - start, page.stat().st_size
    print(f"{seconds:.1f} s, {size / 1e6:.1f} MB")
    assert len(report.groups) == 100
    assert seconds < 30
    assert size < 8e6
