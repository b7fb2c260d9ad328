"""Specs: a TOML file expands to the jobs that it says, and mistakes in it are found before anything runs."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest
from conftest import Refused, make_dataset
from sweeps import BOTH, jobs_of, parsed, write_spec

from mildly.cli import main
from mildly.data.registry import builtin_names
from mildly.errors import MildlyError
from mildly.experiments.spec import expand, read_spec, train_options


def test_a_spec_means_every_combination_and_names_only_what_is_crossed(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "seeds = 2\n[fields]\nlam = [0.5, 0.7]\nbatch_size = 64\n"))
    names = [job.name for job in jobs]
    assert len(names) == 2 * 2 + 2 * 2 * 2
    assert names[:2] == ["bc/pendulum-mixed/seed-0", "bc/hopper-mixed/seed-0"]
    assert [job.seed for job in jobs] == [0] * 6 + [1] * 6  # the picture is whole before it is sharp
    assert "mcq/hopper-mixed/lam=0.7/seed-1" in names
    assert {job.plan.config["batch_size"] for job in jobs} == {64}
    assert {(job.variant, job.plan.config["lam"]) for job in jobs if job.algorithm == "mcq"} == {
        ("lam=0.5", 0.5),
        ("lam=0.7", 0.7),
    }
    assert all("lam" not in job.options for job in jobs if job.algorithm == "bc")


def test_what_is_below_an_algorithm_is_for_it_alone_and_wins(tmp_path: Path) -> None:
    text = "preset = 'small'\nsteps = 60\n[fields]\nactor_lr = 0.1\n[mcq]\nsteps = 80\nactor_lr = [0.2, 0.3]\n"
    jobs = expand(parsed(tmp_path, BOTH + text))
    told = {(job.algorithm, job.plan.steps, job.plan.config["actor_lr"]) for job in jobs}
    assert told == {("bc", 60, 0.1), ("mcq", 80, 0.2), ("mcq", 80, 0.3)}
    assert {job.plan.preset for job in jobs} == {"small"}


VARIANTS = "[variants.plain]\n[variants.wide]\nhidden_dims = [64, 64]\nsteps = 90\n"


def test_variants_are_compared_with_one_another_and_name_their_folders(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "steps = 60\n[mcq]\nlam = [0.5, 0.7]\nsteps = 80\n" + VARIANTS))
    told = {(job.algorithm, job.variant, job.plan.steps, job.plan.config["hidden_dims"]) for job in jobs}
    assert told == {
        ("bc", "plain", 60, (256, 256)),
        ("bc", "wide", 90, (64, 64)),
        ("mcq", "plain,lam=0.5", 80, (256, 256)),
        ("mcq", "plain,lam=0.7", 80, (256, 256)),
        ("mcq", "wide,lam=0.5", 90, (64, 64)),
        ("mcq", "wide,lam=0.7", 90, (64, 64)),
    }
    assert "mcq/pendulum-mixed/wide,lam=0.5/seed-0" in [job.name for job in jobs]


@pytest.mark.parametrize("shared", ["", VARIANTS])
def test_an_algorithm_s_own_variants_replace_the_shared_ones(tmp_path: Path, shared: str) -> None:
    own = "[bc]\nactor_lr = 0.1\n[bc.variants.all]\n[bc.variants.best]\nbest_episodes = 0.1\npreset = 'small'\n"
    jobs = expand(parsed(tmp_path, BOTH + own + shared))
    told = {
        (job.variant, job.plan.preset, job.plan.config["best_episodes"], job.plan.config["actor_lr"])
        for job in jobs
        if job.algorithm == "bc"
    }
    assert told == {("all", "default", None, 0.1), ("best", "small", 0.1, 0.1)}
    assert {job.variant for job in jobs if job.algorithm == "mcq"} == ({"plain", "wide"} if shared else {""})


def test_shared_variants_that_mean_the_same_for_an_algorithm_are_run_once(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "[variants.a]\nlam = 0.5\n[variants.b]\nlam = 0.7\n"))
    assert {job.variant for job in jobs if job.algorithm == "mcq"} == {"a", "b"}
    assert [job.name for job in jobs if job.algorithm == "bc"] == ["bc/pendulum-mixed/seed-0", "bc/hopper-mixed/seed-0"]
    wide = "[variants.a]\nlam = 0.5\n[variants.b]\nlam = 0.7\n[variants.wide]\nhidden_dims = [64, 64]\n"
    jobs = expand(parsed(tmp_path, BOTH + wide))
    assert {job.variant for job in jobs if job.algorithm == "bc"} == {"a", "wide"}


def test_none_is_written_as_text_where_a_field_may_be_none(tmp_path: Path) -> None:
    jobs = expand(parsed(tmp_path, BOTH + "[bc]\nbest_episodes = [0.1, 'None']\n"))
    told = {(job.variant, job.plan.config["best_episodes"]) for job in jobs if job.algorithm == "bc"}
    assert told == {("best_episodes=0.1", 0.1), ("best_episodes=None", None)}


KEPT = sorted((Path(__file__).parents[2] / "benchmarks" / "sweeps").glob("*.toml"))


@pytest.mark.parametrize("path", KEPT, ids=lambda path: path.stem)
def test_the_specs_that_are_kept_can_be_expanded(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILDLY_DATA", str(tmp_path))
    spec = read_spec(path)
    for name in set(spec.datasets) - set(builtin_names()):  # collected by whoever runs it
        made = make_dataset()
        dataclasses.replace(made, meta=dataclasses.replace(made.meta, name=name)).save(tmp_path / name)
    assert len(expand(spec)) >= len(spec.algorithms) * len(spec.datasets) * len(spec.seeds)


def test_a_field_that_is_a_list_itself_is_crossed_by_a_list_of_lists(tmp_path: Path) -> None:
    one = expand(parsed(tmp_path, BOTH + "[fields]\nhidden_dims = [64, 32]\n"))
    assert {(job.variant, job.plan.config["hidden_dims"]) for job in one} == {("", (64, 32))}
    two = expand(parsed(tmp_path, BOTH + "[fields]\nhidden_dims = [[64, 32], [8]]\n[mcq]\none_sided = [true]\n"))
    assert {job.variant for job in two} == {
        "hidden_dims=64x32",
        "hidden_dims=8",
        "hidden_dims=64x32,one_sided=true",
        "hidden_dims=8,one_sided=true",
    }


def test_a_spec_may_say_whatever_train_takes(tmp_path: Path) -> None:
    values = {name: "Pendulum-v1" if default is None else default for name, default in train_options().items()}
    values["steps"] = 70
    (job, *_) = jobs_of(tmp_path, **{**values, "device": "cpu"})
    assert {"steps", "eval_every", "episodes", "env", "log_every", "checkpoint_every", "check"} <= job.options.keys()
    assert job.plan.env == "Pendulum-v1"
    assert job.plan.steps == 70


def test_steps_that_a_spec_does_not_say_are_the_preset_s(tmp_path: Path) -> None:
    for preset, steps in {"small": {20_000}, "default": {100_000, 15_000}, "paper": {1_000_000}}.items():
        assert {job.plan.steps for job in expand(parsed(tmp_path, BOTH + f"preset = '{preset}'\n"))} == steps


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stepz = 5", "unknown key 'stepz'. Did you mean 'steps'?"),
        ("lam = 0.5", "'lam' is a field of mcq, mcq-td3: write it below [fields]"),
        ("[fields]\nlamb = 0.5", "unknown field 'lamb'. Did you mean 'lam'?"),
        ("[fields]\nsteps = 5", "'steps' is no field of an algorithm's config: write it above [fields]"),
        ("[fields]\nlam = [0.5, 1.5]", "lam must be in (0, 1] or 'auto', got 1.5"),
        ("[fields]\nlam = [0.5, 0.5]", "two jobs would be called mcq/pendulum-mixed/lam=0.5/seed-0"),
        ("[fields]\nbatch_size = 'x'", "batch_size must be a whole number"),
        ("[bc]\nlam = 0.5", "unknown key below [bc] 'lam'"),
        ("[bcc]\nsteps = 5", "unknown key 'bcc'"),
        ("mcq = 3", "'mcq' must be a table"),
        ("variants = 3", "'variants' must be a table"),
        ("[variants]\nwide = 3", "'wide' below [variants] must be a table: write [variants.wide]"),
        ("[variants.wide]\nwidth = 3", "unknown key below [variants.wide] 'width'"),
        ("[variants.wide]\nlam = []", "'lam' is an empty list"),
        ("[mcq]\nvariants = 3", "'mcq.variants' must be a table"),
        ("[bc.variants.mild]\nlam = 0.5", "unknown key below [bc.variants.mild] 'lam'"),
        ("[bc.variants.mild]\nsteps = 'x'", "steps must be a whole number"),
        ("[bc.variants.'..']\nsteps = 5", "'..' below [bc.variants] cannot be the name of a folder"),
        ("[bc.variants.'a b']\n[bc.variants.'a/b']", "two jobs would be called bc/pendulum-mixed/a_b/seed-0"),
        ("[fields]\nlam = 'None'", "lam must be a number or 'auto', got 'None'"),
        ("steps = 0", "steps must be at least 1"),
        ("steps = 6e3", "steps must be a whole number, got 6000.0"),
        ("check = 1", "check must be true or false"),
        ("holdout = 'x'", "holdout must be a number, got 'x'"),
        ("holdout = true", "holdout must be a number, got True"),
        ("seeds = 0", "seeds must be a number of seeds"),
        ("seeds = [0, -1]", "seed must be at least 0"),
        ("seeds = true", "seeds must be a number of seeds"),
        ("preset = 'smal'", "unknown preset 'smal'. Did you mean 'small'?"),
        ("device = 'gpu9'", "device 'gpu9' cannot be used here"),
        ("steps = ", "not a TOML file"),
        ("seed = [", "not a TOML file"),
    ],
)
def test_a_mistake_in_a_spec_is_told_before_anything_runs(
    tmp_path: Path, text: str, message: str, refused: Refused
) -> None:
    refused(lambda: expand(parsed(tmp_path, BOTH + text)), message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithms = 'mcq'", "'datasets' is missing"),
        ("algorithms = ['mcp']\ndatasets = 'pendulum-mixed'", "unknown algorithm 'mcp'. Did you mean 'mcq'?"),
        ("algorithms = []\ndatasets = 'pendulum-mixed'", "algorithms must be a list of names"),
        ("algorithms = 'bc'\ndatasets = ['pendulum-mixd']", "Did you mean 'pendulum-mixed'?"),
        ("algorithms = 'bc'\ndatasets = ['there/is/none.csv']", "no such file or folder"),
    ],
)
def test_unknown_algorithms_and_data_sets_are_told(tmp_path: Path, text: str, message: str, refused: Refused) -> None:
    refused(lambda: expand(parsed(tmp_path, text)), message)


def test_a_dry_run_lists_the_jobs_and_makes_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = write_spec(tmp_path / "spec.toml", seeds=3)
    assert main(["sweep", str(spec), "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines == [f"bc/pendulum-mixed/seed-{seed}  300 steps" for seed in range(3)] + ["3 jobs"]
    assert not (tmp_path / "out").exists()


def test_the_spec_of_the_guide_can_be_expanded(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "experiments.md").read_text()
    first, groups, named = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(expand(parsed(tmp_path, first))) == 18
    jobs = expand(parsed(tmp_path, BOTH + groups))  # a piece of a spec
    told = {
        (job.variant, *(job.plan.flat_config[f"behavior.{name}"] for name in ("model", "hidden_dims")))
        for job in jobs
        if job.algorithm == "mcq"
    }
    assert told == {(f"behavior.model={model}", model, (256, 256)) for model in ("cvae", "flow")}
    assert {job.variant for job in jobs if job.algorithm == "bc"} == {""}
    assert [job.variant for job in expand(parsed(tmp_path, named))] == ["all", "best-tenth", "careful", "printed"]


def test_the_spec_of_the_help_can_be_expanded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["sweep", "--help"])
    shown = capsys.readouterr().out.split("\nArguments\n")[0]
    assert max(map(len, shown.splitlines())) <= 80
    jobs = expand(parsed(tmp_path, "\n".join(re.findall(r"^  (.*)", shown, re.MULTILINE))))
    variants = {"", "careful", "printed,lam=0.5", "printed,lam=0.7"}
    assert {(job.variant, job.plan.steps) for job in jobs} == {(name, 8000 if name else 6000) for name in variants}
    assert {job.plan.config["behavior"]["model"] for job in jobs if job.algorithm == "mcq"} == {"flow"}


@pytest.mark.parametrize(
    ("text", "message"), [("[mcq]\nlam = 0.5", "not in 'algorithms'"), ("[fields]\nhidden_dims = []", "an empty list")]
)
def test_what_would_run_nothing_is_told(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "spec.toml").write_text(f'algorithms = "bc"\ndatasets = "pendulum-mixed"\n{text}\n')
    with pytest.raises(MildlyError, match=message):
        read_spec(tmp_path / "spec.toml")
