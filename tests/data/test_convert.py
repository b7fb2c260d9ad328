"""Conversion: the same content in every format, whole files or none, and the command that does it."""

from __future__ import annotations

import dataclasses
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest

from mildly.action_space import ActionSpace
from mildly.cli import main
from mildly.data.convert import convert, export
from mildly.data.dataset import Dataset, Meta
from mildly.data.options import COLUMN_OPTIONS, ImportOptions
from mildly.data.registry import load_dataset
from mildly.errors import MildlyError

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
FILES = ("npz", "hdf5", "h5", "parquet", "pq", "csv", "tsv", "csv.gz", "tsv.gz")
DESCRIBED = ("npz", "hdf5", "h5", "parquet", "pq")  # formats that carry the description


@pytest.fixture(autouse=True)
def minari_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    return tmp_path / "minari"


def walk(rows: int, terminal: bool, meta: Meta, seed: int = 0) -> Dataset:
    """Episodes of uneven lengths whose steps join; every second one ends for good, if any does."""
    random = np.random.default_rng(seed)
    ends = np.zeros(rows, bool)
    ends[np.cumsum(random.integers(1, 40, rows)).clip(max=rows - 1)] = True
    observations = random.normal(size=(rows, 3)) * [1, 1e-7, 1e7]
    following = np.where(ends[:, None], random.normal(size=(rows, 3)), np.roll(observations, -1, axis=0))
    terminated = ends & (np.cumsum(ends) % 2 == 0) & terminal
    actions = random.uniform(-1, 1, (rows, 2)) ** 9  # some of them tiny, to the last bit
    actions[:2] = [[-1, 1], [1, -1]]
    rewards = random.normal(size=rows)
    return Dataset.from_arrays(observations, actions, rewards, following, terminated, ends & ~terminated, meta)


def pendulum_like(rows: int = 500) -> Dataset:
    space = ActionSpace((-2.0, -2.0), (2.0, 2.0))
    return walk(
        rows, False, Meta("swing-v0", action_space=space, source="by hand", notes=("a note", "another, with 'quotes'"))
    )


def hopper_like(rows: int = 500) -> Dataset:
    return walk(rows, True, Meta("hop-v0", reference_min=-20.5, reference_max=3234.3, source="by hand, ümlaut"))


both = pytest.mark.parametrize("make", [pendulum_like, hopper_like])


@contextmanager
def disk_of(size: int) -> Iterator[None]:
    """No file can be larger."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


# Equal content


@both
def test_a_set_survives_a_journey_through_every_format(tmp_path: Path, make: Any) -> None:
    original = make()
    original.save(tmp_path / "native")
    stations = ["a.npz", "b.hdf5", "c.parquet", "d.csv", "e.tsv.gz", "minari:trip/all-v0", "again"]
    place: str | Path = tmp_path / "native"
    for station in stations:
        target = station if station.startswith("minari:") else tmp_path / station
        scaled = str(place).endswith((".csv", ".tsv.gz"))
        made = convert(place, target, ImportOptions(scaled=scaled))
        assert made.meta.fingerprint == original.meta.fingerprint, station
        loaded = load_dataset(target, scaled=scaled or str(target).endswith((".csv", ".tsv.gz")))
        assert loaded.meta.fingerprint == original.meta.fingerprint, station
        if str(target).endswith(DESCRIBED):
            assert loaded.meta == original.meta, station
        place = target


@both
@pytest.mark.parametrize("ending", FILES)
def test_each_format_carries_the_set_and_most_the_description(tmp_path: Path, make: Any, ending: str) -> None:
    original = make()
    export(original, tmp_path / f"set.{ending}")
    if ending in DESCRIBED:
        assert load_dataset(tmp_path / f"set.{ending}").meta == original.meta
        return
    loaded = load_dataset(tmp_path / f"set.{ending}", scaled=True)
    assert loaded.meta.fingerprint == original.meta.fingerprint
    assert loaded.meta.name == "set"


def test_the_last_row_of_an_open_end_survives_in_a_table(tmp_path: Path) -> None:
    data = walk(40, True, Meta("x"))
    for rows in range(1, 40):
        part = Dataset.from_arrays(*(getattr(data, name)[:rows] for name in _FIELDS), meta=data.meta)
        export(part, tmp_path / f"{rows}.parquet")
        assert load_dataset(tmp_path / f"{rows}.parquet").meta.fingerprint == part.meta.fingerprint


_FIELDS = ("observations", "actions", "rewards", "next_observations", "terminated", "truncated")


def test_large_sets_are_written_in_blocks_that_join(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mildly.data.content.BLOCK", 64)
    monkeypatch.setattr("mildly.data.formats.table_writer._ROWS_WRITTEN", 17)
    monkeypatch.setattr("mildly.data.formats.table_file._PARQUET_BLOCK", 50)
    original = hopper_like(300)
    for ending in FILES:
        export(original, tmp_path / f"set.{ending}")
        loaded = load_dataset(tmp_path / f"set.{ending}", scaled=ending not in DESCRIBED)
        assert loaded.meta.fingerprint == original.meta.fingerprint, ending


def test_other_tools_can_read_what_we_write(tmp_path: Path) -> None:
    original = hopper_like(50)
    for name in ("set.npz", "set.hdf5", "set.parquet", "set.tsv"):
        export(original, tmp_path / name)
    with np.load(tmp_path / "set.npz") as arrays:
        np.testing.assert_array_equal(arrays["next_observations"], original.next_observations)
    with h5py.File(tmp_path / "set.hdf5") as file:
        assert {"observations", "actions", "rewards", "next_observations", "terminals", "timeouts"} == set(file)
        np.testing.assert_array_equal(file["terminals"][()], original.terminated)
    table = pq.read_table(tmp_path / "set.parquet").to_pydict()
    assert table["obs_1"] == original.observations[:, 1].tolist()
    assert max(table["episode"]) + 1 == len(original.episodes())
    header, first = (tmp_path / "set.tsv").read_text().split("\n")[:2]
    assert header.replace('"', "").split("\t")[:4] == ["obs_0", "obs_1", "obs_2", "action_0"]
    assert float(first.split("\t")[0]) == pytest.approx(float(original.observations[0, 0]))


def test_options_are_applied_to_a_native_set_too(tmp_path: Path) -> None:
    pendulum_like().save(tmp_path / "native")
    made = convert(
        tmp_path / "native", tmp_path / "renamed", ImportOptions(name="renamed", reference_min=0, reference_max=1)
    )
    assert (made.meta.name, made.meta.reference_max) == ("renamed", 1)
    assert made.meta.action_space == ActionSpace((-2.0, -2.0), (2.0, 2.0))
    assert made.meta.fingerprint == pendulum_like().meta.fingerprint


@pytest.mark.parametrize("option", [*COLUMN_OPTIONS, "cost", "time"])
def test_columns_cannot_be_named_of_a_set_whose_fields_are_known(tmp_path: Path, option: str) -> None:
    pendulum_like().save(tmp_path / "native")
    export(pendulum_like(), "minari:mine/set-v0")
    for source in (tmp_path / "native", "pendulum-mixed", "minari:mine/set-v0"):
        with pytest.raises(MildlyError, match=rf"no raw log .* --{option.replace('_', '-')} would have no effect"):
            load_dataset(source, **{option: "x"})
    with pytest.raises(MildlyError, match="is in memory already"):
        load_dataset(pendulum_like(), **{option: "x"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"time": "t"}, "is no table: --time would"),
        ({"cost": "c", "max_gap": 3.0}, "is no table: --cost, --max-gap would"),
    ],
)
def test_an_option_that_has_no_effect_on_arrays_is_refused(tmp_path: Path, options: Any, words: str) -> None:
    export(pendulum_like(), tmp_path / "set.npz")
    export(pendulum_like(), tmp_path / "set.hdf5")
    for name in ("set.npz", "set.hdf5"):
        with pytest.raises(MildlyError, match=words):
            load_dataset(tmp_path / name, **options)


def test_bounds_given_to_a_scaled_set_say_what_its_actions_mean(tmp_path: Path) -> None:
    pendulum_like().save(tmp_path / "native")
    data = load_dataset(tmp_path / "native", action_low=0, action_high=100)
    assert data.meta.action_space == ActionSpace((0.0, 0.0), (100.0, 100.0))
    assert data.actions.tolist() == pendulum_like().actions.tolist()
    assert data.meta.notes[-1] == "The actions are in [-1, 1] already; -1 and +1 now mean 0 to 100."


# The command


def run(capsys: pytest.CaptureFixture[str], *args: str | Path) -> tuple[int, str, str]:
    code = main(["data", "convert", *map(str, args)])
    out, err = capsys.readouterr()
    return code, out, err


TABLE = "episode,x,v,u,reward,done\n0,1,2,-3,1,0\n0,2,3,5,2,0\n0,3,4,1,4,1\n1,4,5,1,8,0\n1,5,6,1,16,0\n"


def test_the_command_converts_explains_and_says_what_is_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log.csv").write_text(TABLE)
    code, out, err = run(capsys, tmp_path / "log.csv", tmp_path / "set", "--name", "mine")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("- Columns as guessed from their names: observation = x, v; action = u;")
    assert any("found in the data: -3 to 5" in line for line in lines)
    assert lines[-2] == (
        f"{tmp_path / 'set'}: 4 transitions, 2 episodes, 2 observation and 1 action column, mean return 7.5"
    )
    assert lines[-1] == f"next: mildly data check {tmp_path / 'set'}"
    assert Dataset.load(tmp_path / "set").meta.name == "mine"


@both
def test_the_command_goes_through_every_format(tmp_path: Path, capsys: pytest.CaptureFixture[str], make: Any) -> None:
    original = make()
    place = str(original.save(tmp_path / "native"))
    for station in ("a.npz", "b.h5", "c.pq", "d.csv", "e.tsv.gz", "minari:trip/all-v0", "again"):
        target = station if station.startswith("minari:") else str(tmp_path / station)
        scaled = ["--scaled"] if place.endswith((".csv", ".tsv.gz")) else []
        code, out, err = run(capsys, place, target, *scaled)
        assert (code, err) == (0, ""), station
        assert f"{target}: 500 transitions" in out
        place = target
    assert Dataset.load(tmp_path / "again").meta.fingerprint == original.meta.fingerprint


def test_the_command_takes_bounds_columns_and_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text(TABLE)
    code, _, err = run(
        *(capsys, tmp_path / "log.csv", tmp_path / "set", "--obs", "x", "--action", "v,u", "--reward", "reward"),
        *("--action-low", "0", "-10", "--action-high", "8", "10", "--time-limit", "3"),
    )
    assert (code, err) == (0, "")
    made = Dataset.load(tmp_path / "set")
    np.testing.assert_allclose(made.actions[0], [-0.5, -0.3], rtol=1e-6)
    assert not made.terminated.any()  # the end after three steps was the time limit


@pytest.mark.parametrize("ending", ["csv", "tsv.gz"])
@pytest.mark.parametrize(
    ("space", "words"),
    [
        (None, "--scaled"),
        (ActionSpace((0.0, 0.0), (100.0, 100.0)), "--scaled --action-low 0 --action-high 100"),
        (ActionSpace((-1e-6, -2.5), (0.1, 3e7)), "--scaled --action-low -0.000001 -2.5 --action-high 0.1 30000000"),
        (ActionSpace((-2.0, -2.0), (1.0, 2.0)), "--scaled --action-low -2 --action-high 1 2"),
    ],
)
def test_a_table_of_text_comes_with_the_options_that_read_it_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ending: str, space: ActionSpace | None, words: str
) -> None:
    original = walk(50, True, Meta("set", action_space=space))
    original.save(tmp_path / "native")
    code, out, _ = run(capsys, tmp_path / "native", tmp_path / f"set.{ending}")
    assert code == 0
    told = next(line for line in out.splitlines() if "read it back with" in line)
    assert told == f"- set.{ending} cannot say what its actions mean: read it back with {words}"
    code, _, _ = run(capsys, tmp_path / f"set.{ending}", tmp_path / "again", *words.split())
    again = load_dataset(tmp_path / "again")
    assert again.meta.action_space == space
    assert again.meta.fingerprint == original.meta.fingerprint


def test_old_notes_are_kept_and_not_told_as_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.csv").write_text(TABLE)
    run(capsys, tmp_path / "log.csv", tmp_path / "set")
    notes = Dataset.load(tmp_path / "set").meta.notes
    for source, target in (
        ("set", "set.npz"),
        ("set.npz", "set.parquet"),
        ("set.parquet", "set.h5"),
        ("set.h5", "new"),
    ):
        code, out, _ = run(capsys, tmp_path / source, tmp_path / target)
        assert (code, "- " in out) == (0, False)
    assert Dataset.load(tmp_path / "new").meta.notes == notes
    _, out, _ = run(capsys, tmp_path / "set", tmp_path / "other", "--action-low", "0", "--action-high", "1")
    assert out.count("- ") == 1
    assert Dataset.load(tmp_path / "other").meta.notes[:-1] == notes


@pytest.mark.parametrize("target", ["set.xlsx", "set.txt", "set.JSON", "set.pkl", "set.mat", "set.parquet.zip"])
def test_a_target_of_a_kind_that_cannot_be_written_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    code, _, err = run(capsys, "pendulum-mixed", tmp_path / target)
    assert code == 2
    assert f"{target}: cannot write {Path(target).suffix} files. Known endings are .hdf5" in err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("target", ["hopper-v2.1", "run.2024", "a.b.c"])
def test_a_folder_s_name_may_have_points(tmp_path: Path, target: str) -> None:
    hopper_like(20).save(tmp_path / "native")
    convert(tmp_path / "native", tmp_path / target)
    assert len(Dataset.load(tmp_path / target)) == 20


@pytest.mark.parametrize("target", ["set", "set.npz", "set.parquet"])
def test_an_existing_target_is_refused_and_left_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str
) -> None:
    (tmp_path / "log.csv").write_text(TABLE)
    (tmp_path / target).write_text("mine")
    code, out, err = run(capsys, tmp_path / "log.csv", tmp_path / target)
    assert (code, out) == (2, "")
    assert err.startswith(f"error: {tmp_path / target}: exists already")
    assert (tmp_path / target).read_text() == "mine"


@pytest.mark.parametrize("target", ["set", "set.npz", "set.csv", "set.hdf5"])
def test_a_data_set_is_replaced_if_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    (tmp_path / "log.csv").write_text(TABLE)
    hopper_like(50).save(tmp_path / "old")
    convert(tmp_path / "old", tmp_path / target)
    code, _, err = run(capsys, tmp_path / "log.csv", tmp_path / target)
    assert (code, "--overwrite" in err) == (2, True)
    before = sorted(path.name for path in tmp_path.iterdir())
    code, _, _ = run(capsys, tmp_path / "log.csv", tmp_path / target, "--overwrite")
    assert code == 0
    assert len(load_dataset(tmp_path / target)) == len(load_dataset(tmp_path / "log.csv"))
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_a_set_may_be_replaced_by_itself_changed(tmp_path: Path) -> None:
    hopper_like(50).save(tmp_path / "set")
    convert(tmp_path / "set", tmp_path / "set", ImportOptions(reference_min=1, reference_max=2), overwrite=True)
    made = Dataset.load(tmp_path / "set")
    assert (len(made), made.meta.reference_max) == (50, 2)


@pytest.mark.parametrize("target", ["folder", "mixed", "set.npz", "link", "minari:a/b-v0"])
def test_what_is_no_data_set_is_never_overwritten(tmp_path: Path, target: str) -> None:
    hopper_like(20).save(tmp_path / "source")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "letters.txt").write_text("mine")
    hopper_like(20).save(tmp_path / "mixed")
    (tmp_path / "mixed" / "letters.txt").write_text("mine")
    (tmp_path / "set.npz").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "source")
    name = target if target.startswith("minari:") else tmp_path / target
    with pytest.raises(MildlyError, match=r"not overwritten|--overwrite is for files"):
        convert(tmp_path / "source", name, overwrite=True)
    assert (tmp_path / "mixed" / "letters.txt").read_text() == "mine"
    assert (tmp_path / "folder" / "letters.txt").read_text() == "mine"


def test_the_old_set_stays_if_the_new_one_cannot_be_made(tmp_path: Path) -> None:
    hopper_like(20).save(tmp_path / "set")
    (tmp_path / "log.csv").write_text("obs,action,reward\n1,2,3\nx,y,z\n")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(MildlyError):
        convert(tmp_path / "log.csv", tmp_path / "set", overwrite=True)
    assert len(Dataset.load(tmp_path / "set")) == 20
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("source", "target", "words"),
    [
        ("absent.csv", "set", "absent.csv: no such file"),
        ("log.xlsx", "set", "log.xlsx: do not know this kind of file. Known endings are .hdf5"),
        ("minari:no/such-v0", "set", "not on this machine"),
        ("log.csv", "log.csv/set", "cannot be written"),
        ("log.csv", "minari:noversion", "Minari's names look like"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    source: str,
    target: str,
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "log.csv").write_text(TABLE)
    (tmp_path / "log.xlsx").write_text("no")
    code, out, err = run(capsys, source, target)
    assert (code, out) == (2, "")
    assert words in err
    assert err.count("\n") == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"log.csv", "log.xlsx", "minari"}


def test_the_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["data", "convert", "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    for field in dataclasses.fields(ImportOptions):
        assert f"--{field.name.replace('_', '-')}" in out


# Whole or not at all


TARGETS = ["set", *(f"set.{ending}" for ending in FILES)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("bad", ["x", "nan", "ragged"])
def test_nothing_is_half_written_when_the_last_row_is_bad(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str, bad: str
) -> None:
    monkeypatch.setattr("mildly.data.formats.table_file._CSV_BLOCK", 1 << 12)
    last = {"x": "1,2,two", "nan": "1,nan,1", "ragged": "1,2"}[bad]
    (tmp_path / "log.csv").write_text("x,u,r\n" + "1,-1,1\n2,1,1\n" * 2000 + last + "\n3,1,1\n")
    with pytest.raises(MildlyError, match=r"log\.csv: "):
        convert(tmp_path / "log.csv", tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == ["log.csv"]


@pytest.mark.parametrize("target", TARGETS)
def test_nothing_is_half_written_when_the_disk_is_full(tmp_path: Path, target: str) -> None:
    pendulum_like(20_000).save(tmp_path / "native")
    with disk_of(30_000), pytest.raises(MildlyError, match="cannot be written"):
        convert(tmp_path / "native", tmp_path / target)
    if target != "set":  # written from a copy, which was too large already
        data = load_dataset(tmp_path / "native")
        with disk_of(30_000), pytest.raises(MildlyError, match=rf"^{tmp_path / target}: cannot be written"):
            export(data, tmp_path / target)
    assert [path.name for path in tmp_path.iterdir()] == ["native"]


@pytest.mark.parametrize("target", ["set.npz", "set.parquet", "set.csv"])
def test_nothing_is_half_written_when_the_user_stops_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def stop(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("mildly.files.os.fsync", stop)
    with pytest.raises(KeyboardInterrupt):
        export(hopper_like(), tmp_path / target)
    assert list(tmp_path.iterdir()) == []


# Everything that is at hand


def test_arrays_that_are_no_log_are_refused() -> None:
    policies = sorted(SHARED.glob("policies/*.npz"))
    if not policies:
        pytest.skip("no policy files here (looked in ../shared/data of the project's root)")
    for path in policies:
        with pytest.raises(MildlyError, match=r"lacks observations.*found .*W0"):
            load_dataset(path)


def real_files() -> list[Path]:
    return sorted(
        [
            *SHARED.glob("d4rl_slices/*/*.hdf5"),
            *SHARED.glob("maze2d/*.hdf5"),
            *SHARED.glob("adroit_human/*.npz"),
            *SHARED.glob("pendulum/*.npz"),
        ]
    )


@pytest.mark.parametrize("path", real_files() or [None], ids=lambda path: path.stem if path else "absent")
def test_every_real_file_is_read_checked_and_learnt_from(tmp_path: Path, path: Path | None) -> None:
    if path is None:
        pytest.skip("no real files here (looked in ../shared/data of the project's root)")
    from mildly.data.check import check
    from mildly.training.offline import train

    dataset = load_dataset(path)
    errors = [finding for finding in check(dataset, thorough=False) if finding.severity == "error"]
    assert errors == []
    fields = {"hidden_dims": (8, 8), "batch_size": 16}
    run = train("bc", dataset, steps=20, eval_every=100, out=tmp_path / "run", threads=1, **fields)
    assert (run.path / "policy" / "policy.json").is_file()
