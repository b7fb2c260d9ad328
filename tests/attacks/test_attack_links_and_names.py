"""Links in a run's folder, and names that are paths: nothing is ever written outside the folder that was meant."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from conftest import make_dataset, train_tiny

from mildly.cli import main
from mildly.data.dataset import Dataset
from mildly.errors import MildlyError
from mildly.files import plain_name
from mildly.training.offline import resume, train

NAMES = [
    "x/../../escaped",
    "..",
    ".hidden",
    "/etc/passwd",
    "line\nbreak",
    "n" * 300,
    "é" * 200,
    "\x1b]0;owned\x07",
    "a\\b",
]


@pytest.mark.parametrize(
    "name",
    [
        "metrics.jsonl",
        "evaluations.jsonl",
        "checkpoint.safetensors",
        "checkpoint.previous.safetensors",
        "timing.json",
        "run.json",
        "policy/policy.json",
        "policy/weights.safetensors",
        "policy",
        ".tmp-1-0123abcd-0123abcd-run.json",
        "policy/.tmp-1-0123abcd-0123abcd-policy.json",
        "tensorboard",
    ],
)
def test_a_link_in_a_run_s_folder_is_refused_and_what_it_points_to_is_not_touched(tmp_path: Path, name: str) -> None:
    run = train_tiny("bc", tmp_path / "run", steps=40, eval_every=20).path
    outside = tmp_path / "outside"
    path = run / name
    if path.exists():
        path.rename(outside)
    elif name == "tensorboard":
        outside.mkdir()
    else:
        outside.write_text("precious")
    path.symlink_to(outside)
    before = tree(outside)
    with pytest.raises(MildlyError, match="is a link"):
        resume(run, steps=60)
    assert tree(outside) == before
    assert path.is_symlink()


def tree(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(inner for inner in path.rglob("*") if inner.is_file())
    return {str(file): file.read_bytes() for file in files}


def test_links_at_the_names_of_temporary_files_are_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where an attacker could guess the random part of the name."""
    from mildly import files

    (tmp_path / "precious").write_text("precious")
    monkeypatch.setattr(files.secrets, "token_hex", lambda size: "0123abcd")
    files.temporary_path(tmp_path / "file.json").symlink_to(tmp_path / "precious")
    with pytest.raises(FileExistsError):
        files.write_json(tmp_path / "file.json", {"a": 1})
    assert (tmp_path / "precious").read_text() == "precious"


@pytest.mark.parametrize("name", NAMES)
def test_a_data_set_of_any_name_trains_inside_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    data = make_dataset()
    data = dataclasses.replace(data, meta=dataclasses.replace(data.meta, name=name, env_id=None)).save(
        tmp_path / "data"
    )
    assert Dataset.load(data).meta.name == name
    monkeypatch.chdir(home)
    before = set(tmp_path.rglob("*"))
    run = train("bc", data, steps=2, hidden_dims=(4,), batch_size=4, eval_every=0, threads=1).path
    assert run.parent == Path("runs")
    assert not run.name.startswith(".")
    assert run.name.isprintable()
    assert all(
        (home / "runs" / run.name) in (path, *path.parents) or path == home / "runs"
        for path in set(tmp_path.rglob("*")) - before
    )
    assert main(["report", "runs", "--output", "page.html", "--figures", "figures"]) == 0
    assert {path.name for path in home.iterdir()} <= {"runs", "page.html", "figures"}
    assert {path.name for path in tmp_path.iterdir()} == {"home", "data"}


@pytest.mark.parametrize("name", NAMES)
def test_a_plain_name_is_one_component_of_a_path(name: str) -> None:
    plain = plain_name(name)
    assert plain == os.path.basename(plain) != ""
    assert plain not in (".", "..")
    assert not plain.startswith(".")
    assert len(plain.encode()) < 200
    assert plain.isprintable()


def test_a_sweep_s_variants_and_data_stay_inside_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    home.mkdir()
    data = make_dataset().save(tmp_path / "data")
    monkeypatch.chdir(home)
    Path("spec.toml").write_text(
        f'algorithms = ["bc"]\ndatasets = ["{data}"]\nsteps = 2\neval_every = 0\n[fields]\nhidden_dims = [4]\n'
        '[variants."../../../escaped"]\nbatch_size = 4\n[variants.".hidden"]\nbatch_size = 8\n'
    )
    assert main(["sweep", "spec.toml", "--out", "sweep"]) == 0
    assert {path.name for path in home.iterdir()} == {"spec.toml", "sweep"}
    assert {path.name for path in tmp_path.iterdir()} == {"home", "data"}
    assert len(list(home.rglob("run.json"))) == 2
