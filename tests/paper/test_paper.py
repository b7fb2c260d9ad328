"""The paper's tables and figures as commands: what they expand to, and what they show of the runs there are."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import Refused, run_fields, train_tiny, unsealed

from mildly.algorithms import ALGORITHMS
from mildly.cli import main
from mildly.collect.rollouts import collect, describe, uniform
from mildly.data.dataset import Meta
from mildly.data.tasks import PAPER_DATASETS
from mildly.errors import MildlyError
from mildly.evaluation.results import FINAL, Result, find_runs, load_results
from mildly.paper.jobs import jobs_of, parse_fields, resolve_names, source_of
from mildly.paper.matching import changes, closest_to_paper, official_name
from mildly.paper.reproductions import METHODS, REPRODUCTIONS, published_scores
from mildly.paper.score_table import score_table, to_csv, to_latex, to_markdown
from mildly.paper.settings import settings
from mildly.run import Plan, Run
from mildly.training.finetune import finetune

TABLE = REPRODUCTIONS["table1"]


def result(
    algorithm: str, dataset: str, scores: list[float], seed: int = 0, steps: int = 1000, **config: object
) -> Result:
    """A run as its folder would tell it."""
    plan = Plan(
        algorithm=algorithm,
        preset="paper",
        config=dict(config),
        dataset=None,
        data=Meta(dataset),
        steps=steps,
        seed=seed,
        eval_every=100,
        episodes=1,
        env=None,
        log_every=100,
        checkpoint_every=100,
        device="cpu",
        threads=1,
    )
    lines = [{"step": 100 * (i + 1), "score": score, "mean_return": 10 * score} for i, score in enumerate(scores)]
    return Result(Path("nowhere"), plan, lines)


# The paper's numbers


def test_the_paper_has_285_scores_and_every_table_finds_its_cells() -> None:
    scores = published_scores()
    assert len(scores) == 285
    assert scores["halfcheetah-random-v2", "BC"] == (2.2, 0.0)
    assert scores["hopper-medium-v2", "MCQ"] == (78.4, 4.3)
    assert {method for _, method in scores} == set(METHODS) - {"AWAC"}  # of which the paper draws curves alone
    for reproduction in (each for each in REPRODUCTIONS.values() if each.name != "fig-online"):
        missing = [cell for d in reproduction.datasets for m in reproduction.methods if (cell := (d, m)) not in scores]
        assert all(method == "DT" for _, method in missing), reproduction.name  # printed as "-" for random and expert
    shown = {name for e in REPRODUCTIONS.values() for name in e.datasets if e.label}
    assert shown == set(PAPER_DATASETS)


@pytest.mark.parametrize(
    ("name", "words", "method", "printed"),
    [
        ("table1", "average", "BC", 49.6),
        ("table1", "average", "MCQ", 79.2),
        ("table1", "average without experts' sets", "IQL", 59.9),
        ("table1", "average without experts' sets", "MCQ", 72.8),
        ("table-deterministic", "average", "CQL", 59.1),
        ("table-deterministic", "average", "MCQ-TD3", 68.4),
        ("table-more", "average without experts' sets", "PBRL", 67.1),
        ("table-more", "average", "PBRL", 74.4),
        ("table-other", "average of maze2d", "BCQ", 38.9),
        ("table-other", "average of maze2d", "IQL", 43.7),  # where the paper prints 37.2
        ("table-other", "average", "MCQ", 44.3),
    ],
)
def test_the_paper_s_own_averages_follow_from_its_cells(name: str, words: str, method: str, printed: float) -> None:
    assert score_table(REPRODUCTIONS[name], []).averages()[words][method][1] == pytest.approx(printed, abs=0.06)


def test_averages_are_of_the_rows_that_are_shown() -> None:
    def words(*datasets: str) -> list[str]:
        return list(score_table(TABLE, [], datasets=datasets).averages())

    assert words() == ["average without experts' sets", "average"]
    assert words("hopper-medium-v2", "hopper-expert-v2") == ["average"]


# What is run


def test_table_1_is_a_million_steps_of_four_seeds_with_the_paper_s_lambda() -> None:
    jobs = jobs_of(TABLE)
    assert len(jobs) == 15 * 4 * len([m for m in TABLE.methods if METHODS[m] in ALGORITHMS])
    (job,) = [j for j in jobs if j.algorithm == "mcq" and j.dataset == "walker2d-expert-v2" and j.seed == 3]
    assert (job.plan.steps, job.plan.eval_every, job.plan.preset) == (1_000_000, 5_000, "paper")
    assert (job.plan.config["lam"], job.plan.config["num_actions"]) == (0.3, 10)
    cql = [job.plan for job in jobs if job.algorithm == "cql"]
    assert {(plan.steps, plan.flat_config["extras.bc_warmup_steps"]) for plan in cql} == {(1_000_000, 40_000)}


def test_each_method_has_its_paper_s_steps_and_values_without_a_bound() -> None:
    plans = [job.plan for job in jobs_of(REPRODUCTIONS["table-more"], seeds=1)]
    assert {plan.steps for plan in plans if plan.algorithm != "decision-transformer"} == {1_000_000}
    assert {plan.steps for plan in plans if plan.algorithm == "decision-transformer"} == {100_000}
    assert {plan.steps for plan in [job.plan for job in jobs_of(REPRODUCTIONS["table-more"], steps=70)]} == {70}
    assert not any(plan.watch_values for plan in plans)


def test_the_parameter_study_varies_lambda_and_then_n_at_lambda_095() -> None:
    jobs = jobs_of(REPRODUCTIONS["fig-parameters"], seeds=1)
    settings = {(job.plan.config["lam"], job.plan.config["num_actions"]) for job in jobs}
    assert {lam for lam, n in settings if n == 10} >= {0.3, 0.5, 0.95}
    assert {lam for lam, n in settings if n != 10} == {0.95}
    assert len({job.name for job in jobs}) == len(jobs)


def test_the_deterministic_table_is_mcq_on_td3_with_its_own_lambda_on_one_set() -> None:
    jobs = jobs_of(REPRODUCTIONS["table-deterministic"], seeds=1, methods=["MCQ-TD3"])
    assert {job.algorithm for job in jobs} == {"mcq-td3"}
    lams = {job.dataset: job.plan.config["lam"] for job in jobs}
    assert len(lams) == len(jobs) == 12
    assert (lams["hopper-medium-expert-v2"], lams["hopper-medium-v2"]) == (0.4, 0.7)
    assert {job.plan.config["policy_noise"] for job in jobs} == {0.0}


def test_what_is_cut_down_is_cut_down() -> None:
    datasets, methods = resolve_names(TABLE, ["hopper-medium", "walker2d-medium-v2"], ["bc", "MCQ"])
    assert (datasets, methods) == (["hopper-medium-v2", "walker2d-medium-v2"], ["BC", "MCQ"])
    fields = parse_fields(["num_actions=1", "hidden_dims=[8, 8]"])
    jobs = jobs_of(TABLE, steps=50, seeds=2, datasets=datasets, methods=methods, fields=fields)
    assert {(j.algorithm, j.dataset, j.seed) for j in jobs} == {
        (algorithm, dataset, seed) for algorithm in ("bc", "mcq") for dataset in datasets for seed in (0, 1)
    }
    assert {tuple(job.plan.config["hidden_dims"]) for job in jobs} == {(8, 8)}
    assert {job.plan.config["num_actions"] for job in jobs if job.algorithm == "mcq"} == {1}
    with pytest.raises(MildlyError, match="Did you mean 'hopper-medium-v2'"):
        resolve_names(TABLE, ["hopper-mediun-v2"], [])
    with pytest.raises(MildlyError, match="unknown algorithm of table1 'bcq'"):
        resolve_names(TABLE, [], ["bcq"])
    with pytest.raises(MildlyError, match="num_actions=1"):
        parse_fields(["num_actions"])
    with pytest.raises(MildlyError, match="Did you mean 'num_actions'"):
        jobs_of(TABLE, methods=["MCQ"], fields={"num_action": 1})
    studied = jobs_of(REPRODUCTIONS["fig-parameters"], seeds=1, fields={"num_actions": 1})
    assert len({job.name for job in studied}) == len(studied)


def test_recollected_data_are_used_only_where_the_official_file_is_absent(tmp_path: Path) -> None:
    name = "hopper-medium-v2"
    assert source_of(name, tmp_path) == name
    data = collect("Hopper-v4", uniform(3), 20, describe("hopper-medium-recollected", "Hopper-v4"))
    data.save(tmp_path / "hopper-medium-recollected")
    assert source_of(name, tmp_path) == str(tmp_path / "hopper-medium-recollected")
    assert source_of("hopper-expert-v2", tmp_path) == "hopper-expert-v2"
    data.save(tmp_path / name)
    assert source_of(name, tmp_path) == str(tmp_path / name)


# What is shown


def test_a_score_is_the_mean_of_the_last_ten_evaluations() -> None:
    run = result("mcq", "hopper-medium-v2", [0.0, *range(1, 23)])
    assert run.score == pytest.approx(np.mean(range(13, 23)))
    assert run.mean_return == pytest.approx(10 * np.mean(range(13, 23)))
    assert len(run.evaluations) > FINAL
    assert result("mcq", "hopper-medium-v2", []).score is None
    assert (run.step, run.complete) == (2300, True)
    assert not result("mcq", "hopper-medium-v2", [1.0], steps=2000).complete


def test_a_cell_has_mean_and_deviation_over_seeds_and_the_best_is_told() -> None:
    results = [
        result("mcq", "hopper-medium-v2", [10.0], seed=0),
        result("mcq", "hopper-medium-v2", [20.0, 20.0], seed=1),
        result("bc", "hopper-medium-v2", [12.0]),
        result("mcq", "pendulum-mixed", [99.0]),
        result("iql", "hopper-medium-v2", []),
    ]
    table = score_table(TABLE, results, implemented=["bc", "mcq"])
    cell = table.cell("hopper-medium-v2", "MCQ")
    assert cell is not None
    assert (cell.mean, cell.std, cell.steps, str(cell)) == (15.0, pytest.approx(50**0.5), 100, "15.0 ± 7.1")
    assert str(table.cell("hopper-medium-v2", "BC")) == "12.0"
    assert table.best("hopper-medium-v2") == "MCQ"
    assert table.best("hopper-random-v2") is None
    assert set(table.cells) == {("hopper-medium-v2", "MCQ"), ("hopper-medium-v2", "BC")}
    assert table.not_implemented == ("SAC", "CQL", "UWAC", "TD3+BC", "IQL")
    notes = " ".join(table.footnotes())
    assert "100 steps, 1 to 2 seeds" in notes
    assert "Not implemented yet: SAC, CQL" in notes
    assert f"Without a run yet (—): {2 * 15 - 2} cells" in notes


def test_of_two_runs_with_one_seed_the_longer_counts() -> None:
    results = [result("bc", "hopper-medium-v2", [1.0, 2.0]), result("bc", "hopper-medium-v2", [9.0])]
    for order in (results, results[::-1]):
        cell = score_table(TABLE, order).cell("hopper-medium-v2", "BC")
        assert cell is not None
        assert (cell.mean, cell.steps) == (2.0, 200)


def test_recollecteds_and_settings_that_are_not_the_paper_s_are_named() -> None:
    known = TABLE.datasets
    assert official_name("hopper-medium-v2", known) == "hopper-medium-v2"
    assert official_name("hopper-medium-recollected", known) == "hopper-medium-v2"
    assert official_name("hopper-medium-collected", known) == "hopper-medium-v2"
    assert official_name("hopper-medium", known) is None
    assert official_name("hopper-medium-v0", known) is None
    run = result("mcq", "hopper-medium-recollected", [5.0], num_actions=1, lam=0.7)
    assert changes(run.plan) == ["num_actions 1"]
    table = score_table(TABLE, [run], datasets=["hopper-medium-v2"], methods=["MCQ"], implemented=["mcq"])
    assert table.label("hopper-medium-v2") == "hopper-medium-v2 (re-collected)"
    assert "MCQ: num_actions 1." in " ".join(table.footnotes())
    assert "orientation" in " ".join(table.footnotes())


def test_runs_with_other_settings_or_data_are_never_mixed_and_the_nearest_to_the_paper_count() -> None:
    name = "hopper-medium-v2"
    runs = [
        result("mcq", name, [10.0] * 9, lam=0.5),
        result("mcq", name, [90.0], lam=0.7),
        result("mcq", "hopper-medium-recollected", [40.0], lam=0.7, seed=1),
    ]
    for order in (runs, runs[::-1]):
        table = score_table(TABLE, order, datasets=[name], methods=["MCQ"], implemented=["mcq"])
        cell = table.cell(name, "MCQ")
        assert cell is not None
        assert (cell.scores, cell.changes, cell.recollected, cell.left_out) == ((90.0,), (), False, 2)
        assert "2 further runs" in " ".join(table.footnotes())
    assert closest_to_paper([]) == []


def test_a_run_that_held_episodes_out_is_no_seed_of_the_paper_s_setting() -> None:
    name = "hopper-medium-v2"
    whole, part = result("bc", name, [10.0], seed=0), result("bc", name, [90.0, 90.0], seed=1)
    part = replace(part, plan=replace(part.plan, held_out=[3, 5, 8]))
    assert changes(part.plan) == ["3 episodes held out"]
    for order in ([whole, part], [part, whole]):
        cell = score_table(TABLE, order).cell(name, "BC")
        assert cell is not None
        assert (cell.scores, cell.changes, cell.left_out) == ((10.0,), (), 1)


def test_the_table_as_markdown_latex_and_csv_holds_both_numbers() -> None:
    results = [result("bc", "hopper-medium-v2", [50.0]), result("mcq", "hopper-medium-v2", [60.0])]
    table = score_table(TABLE, results, datasets=["hopper-medium-v2"], methods=["BC", "CQL", "MCQ"])
    assert "| hopper-medium-v2 | 50.0 (54.1 ± 3.8) | — (53.0 ± 28.5) | **60.0** (78.4 ± 4.3) |" in to_markdown(table)
    assert r"hopper-medium-v2 & 50.0 (54.1$\pm$3.8) & -- (53.0$\pm$28.5) & \textbf{60.0}" in to_latex(table)
    rows = list(csv.DictReader(to_csv(table).splitlines()))
    assert [row["mean"] for row in rows] == ["50.0", "", "60.0"]
    assert [row["paper_mean"] for row in rows] == ["54.1", "53.0", "78.4"]


# The command


@pytest.fixture
def hopper(tmp_path: Path) -> Path:
    """A data folder with a small re-collected set."""
    data = collect("Hopper-v4", uniform(3), 2000, describe("hopper-medium-recollected", "Hopper-v4"))
    data.save(tmp_path / "data" / "hopper-medium-recollected")
    return tmp_path / "data"


def test_table_1_cut_down_runs_and_is_shown_and_runs_nothing_twice(
    hopper: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, text = tmp_path / "out", tmp_path / "table.md"
    args = ["paper", "table1", "--data-dir", str(hopper), "--datasets", "hopper-medium", "--algorithms", "bc", "sac"]
    args += ["--steps", "20", "--seeds", "1", "--eval-every", "10", "--fields", "hidden_dims=[8, 8]", "--out", str(out)]
    assert main([*args, "--markdown", str(text)]) == 0
    shown = capsys.readouterr().out
    assert "hopper-medium-v2 (re-collected)" in shown
    assert "20 steps, 1 seed;" in shown
    assert "BC: hidden_dims [8, 8]; SAC: hidden_dims [8, 8]" in shown
    assert "54.1 ± 3.8" in shown
    assert text.read_text().startswith("| | BC | SAC |")
    runs = find_runs([out])
    assert len(runs) == 2
    before = {run: (run / "checkpoint.safetensors").stat().st_mtime_ns for run in runs}
    assert main(args) == 0
    assert {run: (run / "checkpoint.safetensors").stat().st_mtime_ns for run in runs} == before


def test_unknown_names_and_tables_without_runs_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(ALGORITHMS, "decision-transformer")  # as if it were not there
    assert main(["paper"]) == 2
    assert main(["paper", "--help"]) == 0
    assert "table-deterministic" in capsys.readouterr().out
    assert main(["paper", "table2"]) == 2
    assert "Did you mean 'table1'" in capsys.readouterr().err
    absent = ["paper", "table-more", "--algorithms", "DT", "--out", str(tmp_path / "out")]
    assert main(absent) == 2
    assert "none of its algorithms exists here yet (DT)" in capsys.readouterr().err
    assert main([*absent, "--render-only"]) == 0
    assert "Not implemented yet: DT" in capsys.readouterr().out
    assert main(["paper", "fig-values", "--render-only", "--out", str(tmp_path / "out")]) == 2
    assert "nothing to draw" in capsys.readouterr().err


def test_numbers_that_make_no_runs_are_refused(refused: Refused) -> None:
    for seeds in ("0", "-1", "100000000000"):
        assert "seeds must be" in refused.command("paper", "table1", "--seeds", seeds, "--dry-run")
    online = refused.command("paper", "fig-online", "--online-steps", "0", "--dry-run")
    assert "steps must be a whole number from 1" in online


def pretend(run: Run, name: str) -> None:
    """Let a run be one on another data set."""
    path = run.path / "run.json"
    values = unsealed(path)
    values["data"]["name"] = name
    path.write_text(json.dumps(values))


def test_figures_are_drawn_from_the_runs_there_are(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for lam in (0.5, 0.95, "auto"):
        fields = {**run_fields("mcq"), "num_actions": 10, "lam": lam}
        run = train_tiny("mcq", tmp_path / f"runs/lam-{lam}", **{**fields, "steps": 40})
        pretend(run, "halfcheetah-medium-recollected")
    run = train_tiny("mcq", tmp_path / "runs/values", steps=40)
    pretend(run, "walker2d-random-v2")
    for name in ("fig-parameters", "fig-values"):
        picture = tmp_path / f"{name}.png"
        args = ["paper", name, "--render-only", "--out", str(tmp_path / "none"), "--runs", str(tmp_path / "runs")]
        assert main([*args, "--plot", str(picture)]) == 0
        assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_figure_from_offline_to_online_is_of_six_sets_and_five_methods_and_fine_tunes_them() -> None:
    jobs = jobs_of(REPRODUCTIONS["fig-online"])
    assert len(jobs) == 6 * 5 * 4
    assert {job.algorithm for job in jobs} == {"mcq", "cql", "td3-bc", "iql", "awac"}
    assert {job.plan.data.name.removesuffix("-v2") for job in jobs} == {
        f"{task}-{kind}" for task in ("hopper", "halfcheetah", "walker2d") for kind in ("random", "medium-replay")
    }
    assert {(job.plan.steps, job.finetune["steps"], job.steps) for job in jobs} == {(1_000_000, 100_000, 1_100_000)}
    few = jobs_of(REPRODUCTIONS["fig-online"], steps=30, online_steps=20, preset="small", datasets=["hopper-random-v2"])
    assert {(job.steps, job.plan.preset) for job in few} == {(50, "small")}
    assert not any(job.finetune for job in jobs_of(TABLE))


def test_the_figure_from_offline_to_online_is_drawn_of_fine_tuned_runs_which_no_table_takes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "online.png"
    args = ["paper", "fig-online", "--render-only", "--out", str(tmp_path / "none"), "--runs", str(tmp_path / "runs")]
    run = train_tiny("td3-bc", tmp_path / "runs/a", steps=20, eval_every=10)
    pretend(run, "hopper-random-recollected")
    assert main([*args, "--plot", str(picture)]) == 2
    assert "no run has been fine-tuned" in capsys.readouterr().err
    finetune(run, env="Pendulum-v1", steps=10, quiet=True)
    assert changes(run.plan())[-1] == "fine-tuned, 10 online"
    assert main([*args, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_cost_table_counts_main_steps_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = train_tiny("mcq", tmp_path / "runs/a", steps=40)
    pretend(run, "halfcheetah-medium-recollected")
    values = {"update": 3.0, "data": 0.5, "bookkeeping": 0.5, "evaluation": 100.0, "checkpoint": 9.0, "phases": 70.0}
    (run.path / "timing.json").write_text(json.dumps({**values, "peak_megabytes": 321}))
    run.append("metrics.jsonl", {"step": 4000})  # lines run ahead of the checkpoint that the timing belongs to
    assert main(["paper", "table-cost", "--render-only", "--runs", str(tmp_path / "runs")]) == 0
    shown = {line.split()[0]: line.split() for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert shown["MCQ"] == ["MCQ", "100.0", "321", "1", "30.3", "1200"]
    assert shown["CQL"][1:4] == ["no", "run", "yet"]


def test_runs_are_found_below_folders_and_hidden_ones_are_not(tmp_path: Path) -> None:
    train_tiny("bc", tmp_path / "a" / "deep" / "run", steps=20)
    train_tiny("bc", tmp_path / ".hidden" / "run", steps=20)
    assert [found.path for found in load_results([tmp_path])] == [tmp_path / "a" / "deep" / "run"]
    with pytest.raises(MildlyError, match="no such folder"):
        find_runs([tmp_path / "absent"])


def test_a_dry_run_lists_the_jobs_and_runs_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    args = ["--datasets", "hopper-medium", "--algorithms", "bc", "mcq", "--seeds", "2", "--steps", "300"]
    assert main(["paper", "table1", *args, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    *jobs, total = capsys.readouterr().out.splitlines()
    assert total == "4 jobs"
    assert all(line.endswith("  300 steps") for line in jobs)
    assert [line.split("/")[0] for line in jobs] == ["bc", "mcq", "bc", "mcq"]
    assert not (tmp_path / "out").exists()


def test_the_settings_are_the_paper_s_own_tables(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "settings"]) == 0
    shown = {cells[0]: cells[1:] for line in capsys.readouterr().out.splitlines() if len(cells := line.split()) > 1}
    assert shown["hopper-medium-expert-v2"] == ["0.5", "0.4", "10", "-20.27", "3234.30", "1,000"]  # 0.4 on TD3
    tex = Path(__file__).resolve().parents[3] / "shared/paper/mcq.tex"
    if not tex.is_file():
        pytest.skip("the paper is not here (looked in ../shared/paper of the project's root)")
    printed = re.findall(r"^ *([a-z2]+-[a-z0-9-]+) & (0\.\d+) & (10) \\\\$", tex.read_text(), re.MULTILINE)
    assert len(printed) == 27
    found = {each.dataset.removesuffix("-v1").removesuffix("-v0"): each for each in settings()}
    for name, lam, number in printed:
        assert (found[name].lam, found[name].num_actions) == (float(lam), int(number)), name
