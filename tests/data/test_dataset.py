"""The schema: what enters it is checked, what is saved comes back, and a damaged folder never gets far."""

from __future__ import annotations

import dataclasses
import json
import pickle
import resource
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import unsealed
from hypothesis import assume, given, settings, strategies as st
from hypothesis.extra import numpy as hnp

from mildly.action_space import ActionSpace
from mildly.data.dataset import FIELDS, Dataset, Meta, normalized_score
from mildly.errors import MildlyError

QUICK = settings(max_examples=25, deadline=None)
FLOATS = ("observations", "actions", "rewards", "next_observations")


def arrays_of(rows: int = 12, seed: int = 0, ends: tuple[int, ...] = (4,)) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    terminated = np.zeros(rows, bool)
    terminated[list(ends)] = True
    return {
        "observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, 2)).astype(np.float32),
        "rewards": rng.normal(size=rows).astype(np.float32),
        "next_observations": rng.normal(size=(rows, 3)).astype(np.float32),
        "terminated": terminated,
        "truncated": np.zeros(rows, bool),
    }


def build(arrays: dict[str, np.ndarray], **meta: object) -> Dataset:
    return Dataset.from_arrays(**arrays, meta=Meta(name="little", **meta))


@st.composite
def raw_arrays(draw: st.DrawFn) -> dict[str, np.ndarray]:
    rows, width, actions = draw(st.integers(1, 30)), draw(st.integers(1, 4)), draw(st.integers(1, 3))

    def floats(shape: tuple[int, ...], bound: float) -> np.ndarray:
        return draw(hnp.arrays(np.float32, shape, elements=st.floats(-bound, bound, width=32)))

    return {
        "observations": floats((rows, width), 1e6),
        "actions": floats((rows, actions), 1.0),
        "rewards": floats((rows,), 1e6),
        "next_observations": floats((rows, width), 1e6),
        "terminated": draw(hnp.arrays(np.bool_, rows)),
        "truncated": draw(hnp.arrays(np.bool_, rows)),
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build(arrays_of()).save(tmp_path / "little")


# Building


def test_arrays_of_any_number_type_become_float32_and_bool() -> None:
    given_arrays = arrays_of()
    mixed = {name: value.astype(np.float64) for name, value in given_arrays.items()}
    dataset = build(mixed)
    for name in FIELDS:
        expected = np.bool_ if name in ("terminated", "truncated") else np.float32
        assert getattr(dataset, name).dtype == expected
    np.testing.assert_array_equal(dataset.observations, given_arrays["observations"])
    np.testing.assert_array_equal(dataset.terminated, given_arrays["terminated"])
    assert (len(dataset), dataset.observation_size, dataset.action_size) == (12, 3, 2)


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("terminated", ["False"] * 4, "'terminated' must be true or false, or 1 and 0"),
        ("truncated", [np.nan] * 4, "'truncated' must be true or false, or 1 and 0"),
        ("terminated", [0, 0.5, 2, 0], "'terminated' must be true or false, or 1 and 0"),
        ("observations", [["a"]] * 4, "'observations' must be numbers"),
        ("actions", [[1], [0, 0], [1], [0]], "'actions' must be numbers, with as many in each row"),
    ],
)
def test_what_is_no_flag_and_no_number_is_refused_with_its_field(field: str, values: Any, words: str) -> None:
    columns = {"observations": np.zeros((4, 1)), "actions": np.zeros((4, 1)), "rewards": np.zeros(4)}
    columns |= {"next_observations": np.zeros((4, 1)), "terminated": np.zeros(4), "truncated": np.ones(4)}
    with pytest.raises(MildlyError, match=f"plant: {words}"):
        Dataset.from_arrays(**{**columns, field: values}, meta=Meta("plant"))


def test_a_data_set_shows_itself_in_a_line() -> None:
    data = build(arrays_of(rows=2000))
    assert repr(data) == "<Dataset 'little': 2,000 transitions, 2 episodes, observation 3, action 2>"


def test_the_given_arrays_are_copied_and_left_alone() -> None:
    arrays = arrays_of()
    arrays["actions"][0, 0] = 1.0005
    kept = {name: value.copy() for name, value in arrays.items()}
    dataset = build(arrays)
    for name in FIELDS:
        np.testing.assert_array_equal(arrays[name], kept[name])
        assert not np.shares_memory(arrays[name], getattr(dataset, name))


def test_actions_beyond_the_bounds_by_rounding_are_clipped() -> None:
    arrays = arrays_of()
    arrays["actions"][3] = (1.0005, -1.0005)
    assert build(arrays).actions[3].tolist() == [1.0, -1.0]


@pytest.mark.parametrize("value", [1.01, -1.01, 30.0])
def test_actions_far_out_of_bounds_are_refused_with_their_place(value: float) -> None:
    arrays = arrays_of()
    arrays["actions"][7, 1] = value
    with pytest.raises(MildlyError, match=rf"little: 'actions'.*row 7, column 1 is {value:g}"):
        build(arrays)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("field", FLOATS)
def test_values_that_are_not_finite_are_refused_with_field_and_row(field: str, value: float) -> None:
    arrays = arrays_of()
    arrays[field][9] = value
    with pytest.raises(MildlyError, match=rf"little: '{field}'.*row 9"):
        build(arrays)


def test_the_row_named_in_a_large_set_is_the_set_s_own() -> None:
    arrays = {name: np.zeros((300_000, 1) if value.ndim == 2 else 300_000) for name, value in arrays_of().items()}
    arrays["observations"][290_000] = np.nan
    with pytest.raises(MildlyError, match="row 290000"):
        build(arrays)
    arrays["observations"][290_000], arrays["actions"][280_000] = 0.0, 2.0
    with pytest.raises(MildlyError, match="row 280000, column 0"):
        build(arrays)


@pytest.mark.parametrize("field", FIELDS)
def test_a_column_with_too_few_rows_is_refused(field: str) -> None:
    arrays = arrays_of()
    arrays[field] = arrays[field][:-1]
    with pytest.raises(MildlyError, match=r"little: '\w+' has 1[12] rows, but 'observations' has 1[12]"):
        build(arrays)


@pytest.mark.parametrize("field", FIELDS)
def test_a_column_with_a_dimension_too_many_is_refused(field: str) -> None:
    arrays = arrays_of()
    arrays[field] = arrays[field][..., None]
    with pytest.raises(MildlyError, match=f"little: '{field}' has shape"):
        build(arrays)


def test_next_observations_of_another_width_are_refused() -> None:
    arrays = arrays_of()
    arrays["next_observations"] = arrays["next_observations"][:, :2]
    with pytest.raises(MildlyError, match="'next_observations' is"):
        build(arrays)


def test_no_rows_and_no_columns_are_refused() -> None:
    with pytest.raises(MildlyError, match="little: holds no transitions"):
        build({name: value[:0] for name, value in arrays_of().items()})
    with pytest.raises(MildlyError, match="at least one column"):
        build(arrays_of() | {"actions": np.zeros((12, 0))})


def test_the_last_row_ends_an_episode_as_a_truncation_unless_it_is_terminal() -> None:
    assert build(arrays_of(ends=(4,))).truncated.tolist() == [False] * 11 + [True]
    assert not build(arrays_of(ends=(4, 11))).truncated.any()


# Episodes and scores


@QUICK
@given(raw_arrays())
def test_episodes_partition_the_rows_and_their_returns_are_sums_of_rewards(arrays: dict[str, np.ndarray]) -> None:
    dataset = build(arrays)
    episodes = dataset.episodes()
    rows = [row for episode in episodes for row in range(episode.start, episode.stop)]
    assert rows == list(range(len(dataset)))
    ended = dataset.terminated | dataset.truncated
    for episode in episodes:
        assert ended[episode.stop - 1]
        assert not ended[episode.start : episode.stop - 1].any()
    by_hand = [sum(float(reward) for reward in dataset.rewards[episode]) for episode in episodes]
    np.testing.assert_allclose(dataset.episode_returns(), by_hand, rtol=1e-9, atol=1e-6)


def test_scores_put_the_reference_returns_at_0_and_100() -> None:
    dataset = build(arrays_of(), reference_min=-50.0, reference_max=150.0)
    score = dataset.score(np.array([-50.0, 50.0, 150.0, 250.0]))
    assert score is not None
    assert score.tolist() == [0.0, 50.0, 100.0, 150.0]


@pytest.mark.parametrize("missing", ["reference_min", "reference_max"])
def test_there_is_no_score_without_both_references(missing: str) -> None:
    meta = Meta(name="little", reference_min=0.0, reference_max=1.0)
    assert normalized_score(0.5, meta) == 50.0
    assert normalized_score(0.5, dataclasses.replace(meta, **{missing: None})) is None


# Fingerprint


@QUICK
@given(raw_arrays(), st.data())
def test_the_fingerprint_changes_with_any_value(arrays: dict[str, np.ndarray], data: st.DataObject) -> None:
    before = build(arrays)
    assert build(arrays).meta.fingerprint == before.meta.fingerprint
    field = data.draw(st.sampled_from(FIELDS))
    stored = {name: getattr(before, name).copy() for name in FIELDS}
    place = data.draw(st.integers(0, stored[field].size - 1))
    flat = stored[field].reshape(-1)
    if flat.dtype == np.bool_:
        flat[place] = not flat[place]
        assume(field == "terminated" or place < len(before) - 1 or stored["terminated"][-1] or flat[-1])
    else:
        flat[place] = -0.5 if flat[place] > 0 else 0.5
    assert build(stored).meta.fingerprint != before.meta.fingerprint


def test_the_fingerprint_is_of_the_content_and_not_of_the_name() -> None:
    one, other = arrays_of(), arrays_of()
    renamed = Dataset.from_arrays(**other, meta=Meta(name="else", env_id="Pendulum-v1", source="elsewhere"))
    assert build(one).meta.fingerprint == renamed.meta.fingerprint
    swapped = one | {"observations": one["next_observations"], "next_observations": one["observations"]}
    assert build(swapped).meta.fingerprint != renamed.meta.fingerprint


def test_the_same_bytes_in_other_shapes_have_another_fingerprint() -> None:
    def zeros(width: int, actions: int) -> Dataset:
        observations = np.zeros((4, width))
        flags = np.zeros(4)
        return Dataset.from_arrays(
            observations, np.zeros((4, actions)), flags, observations, flags, flags, Meta(name="zeros")
        )

    assert zeros(1, 3).meta.fingerprint != zeros(2, 1).meta.fingerprint


def test_the_fingerprint_does_not_depend_on_memory_layout() -> None:
    arrays = arrays_of()
    fortran = {name: np.asfortranarray(value) for name, value in arrays.items()}
    assert build(fortran).meta.fingerprint == build(arrays).meta.fingerprint


def test_an_action_space_of_another_size_is_refused() -> None:
    with pytest.raises(MildlyError, match="its action space has 7 dimensions, 'actions' 2"):
        build(arrays_of(), action_space=ActionSpace.unit(7))


# Saving and loading


@QUICK
@given(raw_arrays(), st.text(max_size=10), st.none() | st.floats(-9, 9))
def test_a_saved_set_comes_back_with_content_meta_and_fingerprint(
    arrays: dict[str, np.ndarray], source: str, low: float | None
) -> None:
    meta = Meta(name="little", env_id="Pendulum-v1", reference_min=-3.5, source=source)
    if low is not None:
        size = arrays["actions"].shape[1]
        meta = dataclasses.replace(meta, action_space=ActionSpace((low,) * size, (9.5,) * size))
    dataset = Dataset.from_arrays(**arrays, meta=meta)
    with tempfile.TemporaryDirectory() as parent:
        loaded = Dataset.load(dataset.save(Path(parent) / "deep" / "little"))
        assert loaded.meta == dataset.meta
        for name in FIELDS:
            np.testing.assert_array_equal(getattr(loaded, name), getattr(dataset, name))
            assert getattr(loaded, name).dtype == getattr(dataset, name).dtype
        again = Dataset.from_arrays(**{name: getattr(loaded, name) for name in FIELDS}, meta=meta)
        assert again.meta.fingerprint == dataset.meta.fingerprint


def test_a_loaded_set_is_mapped_and_cannot_be_written_to(folder: Path) -> None:
    before = (folder / "rewards.npy").read_bytes()
    loaded = Dataset.load(folder)
    assert all(isinstance(getattr(loaded, name), np.memmap) for name in FIELDS)
    with pytest.raises(ValueError, match="read-only"):
        loaded.rewards[:] = 7.0
    assert (folder / "rewards.npy").read_bytes() == before


def test_unknown_keys_in_the_description_are_ignored(folder: Path) -> None:
    description = unsealed(folder / "dataset.json")
    assert description["transitions"] == 12
    description["meta"]["color"] = "green"
    (folder / "dataset.json").write_text(json.dumps(description))
    assert Dataset.load(folder).meta.name == "little"


def test_saving_over_an_existing_folder_is_refused_and_changes_nothing(folder: Path) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(MildlyError, match=f"{folder}: exists already"):
        build(arrays_of(seed=1)).save(folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_nothing_is_left_behind_when_an_array_cannot_be_saved(tmp_path: Path) -> None:
    broken = dataclasses.replace(build(arrays_of()), truncated=np.zeros(3, bool))
    with pytest.raises(ValueError, match="do not fit each other"):
        broken.save(tmp_path / "little")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_left_behind_when_the_disk_refuses(tmp_path: Path) -> None:
    dataset = build(arrays_of(rows=5000))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (45_000, limits[1]))  # observations alone need 60 kB
    try:
        with pytest.raises(MildlyError, match=f"{tmp_path / 'little'}: cannot be written"):
            dataset.save(tmp_path / "little")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []


def test_saving_below_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(MildlyError, match="cannot be written"):
        build(arrays_of()).save(tmp_path / "file" / "little")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# Damaged folders


def test_a_folder_that_is_not_there_or_no_data_set_is_refused(tmp_path: Path) -> None:
    for place in (tmp_path / "absent", tmp_path):
        with pytest.raises(MildlyError, match=r"no dataset\.json"):
            Dataset.load(place)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '"text"',
        "{}",
        '{"format": 1}',
        '{"format": 1, "meta": null}',
        '{"format": 1, "meta": []}',
        '{"format": 1, "meta": {}}',
        '{"format": 1, "meta": {"name": "x", "action_low": 3}}',
        '{"format": 1, "meta": {"name": "x", "action_high": ["high"]}}',
        '{"format": 1, "meta": {"name": "x", "action_low": [1], "action_high": [1]}}',
        '{"format": 1, "meta": {"name": "x", "action_low": [1], "action_high": null}}',
        '{"format": 1, "meta": {"name": "x", "action_kind": "discrete"}}',
    ],
)
def test_a_damaged_description_is_named(folder: Path, text: str) -> None:
    (folder / "dataset.json").write_text(text)
    with pytest.raises(MildlyError, match=r"dataset\.json: damaged"):
        Dataset.load(folder)


def test_a_description_that_is_not_text_or_not_a_file_is_named(folder: Path) -> None:
    (folder / "dataset.json").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MildlyError, match=r"dataset\.json: damaged"):
        Dataset.load(folder)
    (folder / "dataset.json").unlink()
    (folder / "dataset.json").mkdir()
    with pytest.raises(MildlyError, match=r"dataset\.json: damaged"):
        Dataset.load(folder)


def test_a_later_format_is_refused_with_both_numbers(folder: Path) -> None:
    text = (folder / "dataset.json").read_text()
    (folder / "dataset.json").write_text(text.replace('"format": 1', '"format": 2'))
    with pytest.raises(MildlyError, match="format 2; this version of mildly reads format 1"):
        Dataset.load(folder)


@pytest.mark.parametrize("field", FIELDS)
def test_a_missing_array_is_named(folder: Path, field: str) -> None:
    (folder / f"{field}.npy").unlink()
    with pytest.raises(MildlyError, match=rf"{field}\.npy: missing"):
        Dataset.load(folder)


@pytest.mark.parametrize("kept", [0, 5, 40, 127, 128, 130, -1])
def test_an_array_cut_short_is_named(folder: Path, kept: int) -> None:
    path = folder / "actions.npy"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(MildlyError, match=r"actions\.npy: damaged or cut short"):
        Dataset.load(folder)


@pytest.mark.parametrize(
    ("field", "dtype"),
    [
        ("observations", np.float64),
        ("actions", np.int32),
        ("rewards", ">f4"),
        ("terminated", np.uint8),
        ("truncated", np.float32),
    ],
)
def test_an_array_of_another_type_is_named_with_both_types(folder: Path, field: str, dtype: object) -> None:
    path = folder / f"{field}.npy"
    np.save(path, np.load(path).astype(dtype))
    with pytest.raises(MildlyError, match=rf"{field}\.npy: has type .*, expected (float32|bool)"):
        Dataset.load(folder)


@pytest.mark.parametrize("field", FLOATS)
def test_values_that_are_not_finite_are_found_on_loading(folder: Path, field: str) -> None:
    path = folder / f"{field}.npy"
    array = np.load(path)
    array[5] = np.nan
    np.save(path, array)
    with pytest.raises(MildlyError, match=f"{folder}: '{field}'.*row 5"):
        Dataset.load(folder)


def test_columns_that_disagree_are_found_on_loading(folder: Path) -> None:
    np.save(folder / "rewards.npy", np.zeros(11, np.float32))
    with pytest.raises(MildlyError, match=f"{folder}: 'rewards' has 11 rows"):
        Dataset.load(folder)


def test_a_set_whose_last_episode_has_no_end_is_refused_on_loading(folder: Path) -> None:
    np.save(folder / "truncated.npy", np.zeros(12, bool))
    with pytest.raises(MildlyError, match=f"{folder}: 'truncated'.*last row"):
        Dataset.load(folder)


class Hostile:
    """A pickle that leaves a file behind if anything ever unpickles it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


@pytest.mark.parametrize("kind", ["bare pickle", "object array", "archive"])
def test_a_hostile_pickle_is_refused_and_never_runs(folder: Path, tmp_path: Path, kind: str) -> None:
    trace, path = tmp_path / "trace", folder / "rewards.npy"
    hostile = np.array([Hostile(trace)], dtype=object)
    if kind == "bare pickle":
        path.write_bytes(pickle.dumps(Hostile(trace)))
    elif kind == "object array":
        np.save(path, hostile, allow_pickle=True)
    else:
        with path.open("wb") as file:
            np.savez(file, rewards=hostile)
    with pytest.raises(MildlyError, match=r"rewards\.npy: damaged"):
        Dataset.load(folder)
    assert not trace.exists()
    if kind == "bare pickle":  # the trap does work
        pickle.loads(path.read_bytes())
        assert trace.exists()


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 127), st.integers(0, 255), st.integers(0, 300))
def test_a_damaged_header_gives_a_clear_error_or_the_same_array(place: int, byte: int, cut: int) -> None:
    with tempfile.TemporaryDirectory() as parent:
        dataset = build(arrays_of())
        folder = dataset.save(Path(parent) / "little")
        path = folder / "observations.npy"
        content = bytearray(path.read_bytes())
        content[place] = byte
        path.write_bytes(content[:-cut] if cut % 3 == 1 else content)
        message = ""
        try:
            shape = Dataset.load(folder).observations.shape
        except MildlyError as error:
            message = str(error)
        assert "observations" in message or shape == dataset.observations.shape
