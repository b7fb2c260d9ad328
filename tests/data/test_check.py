"""The checks of a data set: each one fires on data with its fault, and stays silent on data without."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked import changed, codes, found, made, problem
from hypothesis import given, strategies as st

from mildly.algorithms import ALGORITHMS
from mildly.algorithms.config import make_config
from mildly.cli import main
from mildly.data.check import Finding, check
from mildly.data.check.checks import QUICK, THOROUGH
from mildly.data.check.inspection import Inspection, figure, named, percent
from mildly.data.dataset import FIELDS, Dataset, Meta
from mildly.data.origin import Place, worded
from mildly.data.registry import builtin_names, load_dataset

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
REAL = sorted([*DATA.glob("d4rl_slices/*/*.hdf5"), *DATA.glob("maze2d/*.hdf5"), *DATA.glob("pendulum/*.npz")])


def test_healthy_data_have_no_errors_and_no_warnings() -> None:
    """Every test below that makes a check fire changes one thing about these."""
    assert codes(made(), "error", "warning") == set()
    assert codes(made(np.random.default_rng(0).integers(20, 90, 50), terminated=True), "error", "warning") == set()


def test_errors_come_before_warnings_and_these_before_notes() -> None:
    data = made()
    data.rewards[:] = 1.0
    data.actions[3] = np.nan
    severities = [finding.severity for finding in check(data)]
    assert severities == sorted(severities, key=("error", "warning", "info").index)
    assert set(severities) == {"error", "warning", "info"}


# Numbers and observations


@pytest.mark.parametrize("field", ["observations", "actions", "rewards", "next_observations"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_infinities_are_told_with_field_rows_and_columns(field: str, value: float) -> None:
    data = made()
    assert found(data, "nan") is None
    for row in (7, 19):
        getattr(data, field)[row, ...] = value
    finding = problem(data, "nan")
    assert finding.severity == "error"
    assert finding.evidence.startswith(f"{field}: ")
    assert "first in rows 7, 19" in finding.evidence
    assert ("columns 0, 1" in finding.evidence) == (field != "rewards")
    assert "--drop-bad-rows" in finding.advice


@given(seed=st.integers(0, 10_000), share=st.sampled_from([0.001, 0.2, 1.0]))
def test_any_content_is_checked_without_failing(seed: int, share: float) -> None:
    """Shapes and types are right; numbers may be anything, flags anywhere."""
    random = np.random.default_rng(seed)
    rows = int(random.choice([1, 2, 30, 1500]))
    data = made([rows], seed=seed)
    strange = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, 0.0], np.float32)
    for name in FIELDS[:4]:
        array = getattr(data, name)
        where = random.random(array.shape) < share
        array[where] = random.choice(strange, int(where.sum()))
    flags = {name: random.random(rows) < random.choice([0.0, 0.1, 1.0]) for name in ("terminated", "truncated")}
    for thorough in (False, True):
        assert isinstance(found(changed(data, **flags), "nan", thorough=thorough), Finding | None)


def test_large_and_uneven_observations_are_told_by_column() -> None:
    data = made()
    shifted, wide, uneven = (np.array(data.observations) for _ in range(3))
    shifted[:, 2] += 5_000
    wide[:, 1] *= 3_000
    uneven[:, 0] *= 500
    uneven[:, 3] *= 0.001
    for observations, column in ((shifted, 2), (wide, 1), (uneven, 3)):
        finding = problem(changed(data, observations=observations), "observation-scale")
        assert finding.severity == "info"
        assert f"column {column}" in finding.evidence.lower()
        assert "--normalize-observations" in finding.advice
    for kind in ALGORITHMS.values():  # what the advice says of them
        for preset in {"default", "small"} & set(kind.PRESETS):
            assert make_config(kind, preset, "made", {}).normalize_observations


def test_constant_columns_are_a_note_and_a_constant_observation_a_warning() -> None:
    data = made()
    assert found(data, "observation-constant") is None
    data.observations[:, [1, 3]] = 7.0
    finding = problem(data, "observation-constant")
    assert (finding.severity, "Columns 1, 3 of 4" in finding.evidence) == ("info", True)
    data.observations[:] = 7.0
    assert problem(data, "observation-constant").severity == "warning"


def test_copied_columns_are_told_and_constant_ones_are_not_copies() -> None:
    data = made()
    data.observations[:, [0, 2]] = 1.0
    assert found(data, "observation-duplicated") is None
    data.observations[:, 3] = data.observations[:, 1]
    assert "Column 3 repeats column 1" in problem(data, "observation-duplicated").evidence
    swapped = np.array(data.observations)
    swapped[[0, 1], 3] = swapped[[1, 0], 3]  # same numbers in another order
    assert found(changed(data, observations=swapped), "observation-duplicated") is None


# Actions


def test_actions_beyond_their_bounds_are_an_error_but_rounding_is_not() -> None:
    data = made()
    data.actions[4, 1] = 1.0005
    assert found(data, "action-out-of-bounds") is None
    data.actions[5, 1] = -2.5
    finding = problem(data, "action-out-of-bounds")
    assert finding.severity == "error"
    assert "1 value in column 1" in finding.evidence
    assert "row 5" in finding.evidence
    assert "-2.5" in finding.evidence
    assert "--action-low" in finding.advice


def test_a_constant_action_is_a_warning() -> None:
    data = made()
    data.actions[:, 1] = 1.0
    finding = problem(data, "action-constant")
    assert (finding.severity, "Column 1 of 2" in finding.evidence) == ("warning", True)
    assert found(data, "action-saturated") is None  # said once is enough


@pytest.mark.parametrize(("share", "fires"), [(0.1, False), (0.3, True)])
def test_saturated_actions_are_told_above_a_fifth(share: float, fires: bool) -> None:
    data = made()
    at = np.random.default_rng(1).random(len(data)) < share
    data.actions[at, 0] = np.sign(data.actions[at, 0])
    finding = found(data, "action-saturated")
    assert (finding is not None) == fires
    if finding:
        assert finding.evidence.startswith("Share of rows at a bound: 29 % in column 0 ")
        assert "bang-bang" not in finding.what


def test_actions_that_are_all_saturated_are_explained() -> None:
    data = made()
    finding = problem(changed(data, actions=np.sign(data.actions)), "action-saturated")
    assert "bang-bang" in finding.what
    assert "100 %" in finding.evidence


def test_actions_in_a_small_part_of_the_range_ask_for_bounds() -> None:
    data = made()
    assert found(data, "action-narrow") is None
    finding = problem(changed(data, actions=data.actions * np.float32([0.05, 1])), "action-narrow")
    assert "Column 0 of 2" in finding.evidence
    assert "--action-high" in finding.advice
    at_a_bound = data.actions * np.float32([0.05, 1]) + np.float32([0.95, 0])
    assert found(changed(data, actions=at_a_bound), "action-narrow") is None  # wide bounds do not explain that


# Rewards


def test_rewards_above_a_million_are_an_error() -> None:
    data = made()
    data.rewards[11] = 9e5
    assert found(data, "reward-huge") is None
    data.rewards[12] = -2e6
    finding = problem(data, "reward-huge")
    assert finding.severity == "error"
    assert "1 reward," in finding.evidence
    assert "row 12" in finding.evidence


def test_rewards_far_from_all_others_are_a_warning_with_rows() -> None:
    data = made()
    assert found(data, "reward-outlier") is None
    data.rewards[[5, 90]] = -875.0
    finding = problem(data, "reward-outlier")
    assert finding.severity == "warning"
    assert "2 rewards" in finding.evidence
    assert "rows 5, 90" in finding.evidence
    assert "-875" in finding.evidence


def test_bonuses_sparse_rewards_and_heavy_tails_are_no_outliers() -> None:
    data = made()
    bonus = np.where(data.truncated, 100.0, data.rewards * 0.01).astype(np.float32)
    assert found(changed(data, rewards=bonus), "reward-outlier") is None
    sparse = np.zeros(len(data), np.float32)
    sparse[[3, 400, 900]] = 1.0
    assert found(changed(data, rewards=sparse), "reward-outlier") is None
    tails = np.random.default_rng(2).exponential(size=len(data)).astype(np.float32) ** 2
    assert found(changed(data, rewards=tails), "reward-outlier") is None


def test_one_glitch_among_sparse_rewards_is_an_outlier() -> None:
    data = made()
    data.rewards[:] = 0.0
    data.rewards[[3, 400, 900]] = 1.0
    data.rewards[700] = 500.0
    assert "row 700" in problem(data, "reward-outlier").evidence


def test_constant_rewards_leave_nothing_to_learn_unless_the_length_tells() -> None:
    endless, falling = made(), made(np.arange(20, 70), terminated=True)
    assert found(falling, "reward-constant") is None
    ones = changed(endless, rewards=np.ones(len(endless), np.float32))
    assert problem(ones, "reward-constant").severity == "warning"
    per_step = changed(falling, rewards=np.ones(len(falling), np.float32))
    assert problem(per_step, "reward-constant").severity == "info"
    zeros = changed(falling, rewards=np.zeros(len(falling), np.float32))
    assert problem(zeros, "reward-constant").severity == "warning"


def test_values_above_a_hundred_thousand_ask_for_a_scale() -> None:
    data = made()
    for factor, fires in ((800.0, False), (1200.0, True)):
        constant_size = changed(data, rewards=(np.sign(data.rewards) * factor).astype(np.float32))
        finding = found(constant_size, "value-scale")
        assert (finding is not None) == fires
    assert finding is not None
    assert "1.2e+05" in finding.evidence


# Episodes


def test_time_limits_stored_as_terminals_are_an_error() -> None:
    finding = problem(made([50] * 30, terminated=True), "time-limit-as-terminal")
    assert finding.severity == "error"
    assert "30 of 30 terminated episodes last exactly 50 steps" in finding.evidence
    assert "--time-limit 50" in finding.advice


def test_time_limits_stored_as_terminals_are_seen_beside_a_few_real_ends_and_a_cut_off_log() -> None:
    lengths = [50] * 28 + [13, 31, 22]
    ends = [True] * 30 + [False]
    assert problem(made(lengths, terminated=ends), "time-limit-as-terminal").severity == "error"


def test_the_time_limit_that_the_finding_names_mends_the_data(tmp_path: Path) -> None:
    made([50] * 30, terminated=True).save(tmp_path / "set")
    mended = load_dataset(tmp_path / "set", time_limit=50)
    assert mended.truncated.sum() == 30
    assert found(mended, "time-limit-as-terminal") is None


@pytest.mark.parametrize(
    ("lengths", "terminated"),
    [
        ([50] * 30, False),  # stored as what they are
        ([1] * 500, True),  # a bandit
        ([50] * 2, True),  # too few to tell
        ([50, 50, 60], [True, True, False]),  # not the longest
        ([50] * 10, [True] * 5 + [False] * 5),  # the log tells time limits from real ends
        (np.random.default_rng(0).integers(20, 200, 300), True),  # falls, spread as hopper's are
        (np.random.default_rng(1).geometric(0.05, 500), True),
        (np.random.default_rng(2).integers(1, 6, 500), True),  # short games, many of the longest length
        (np.random.default_rng(3).integers(95, 101, 100), True),  # long ones of nearly the same length
    ],
)
def test_other_terminals_are_no_time_limits(lengths: Any, terminated: Any) -> None:
    assert found(made(lengths, terminated=terminated), "time-limit-as-terminal") is None


@given(seed=st.integers(0, 1000), spread=st.integers(3, 300), episodes=st.integers(3, 200))
def test_uniformly_spread_lengths_are_never_called_a_time_limit(seed: int, spread: int, episodes: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, spread, episodes)
    if len(np.unique(lengths)) > 2:
        finding = found(made(lengths, terminated=True), "time-limit-as-terminal", thorough=False)
        assert finding is None or (lengths == lengths.max()).mean() > 0.5


def test_very_short_equal_episodes_are_only_a_warning() -> None:
    assert problem(made([5] * 300, terminated=True), "time-limit-as-terminal").severity == "warning"


def test_a_pile_of_episodes_at_the_longest_length_is_a_warning() -> None:
    """An agent that mostly falls and sometimes reaches the limit, in a log that knows one flag."""
    falls = np.random.default_rng(0).integers(20, 300, 200)
    finding = problem(made([*falls, *[300] * 40], terminated=True), "time-limit-as-terminal")
    assert finding.severity == "warning"
    assert "40 of 240" in finding.evidence


def test_the_horizon_of_a_known_task_makes_a_few_episodes_certain() -> None:
    lengths = [310, 1000, 420, 1000]
    assert found(made(lengths, terminated=True), "time-limit-as-terminal") is None
    known = made(lengths, terminated=True, meta=Meta("hopper-medium-v2"))
    finding = problem(known, "time-limit-as-terminal")
    assert (finding.severity, "horizon" in finding.evidence) == ("error", True)


def test_equal_lengths_are_right_where_the_observation_tells_the_time() -> None:
    data = made([50] * 30, terminated=True)
    data.observations[:, 3] = np.tile(np.arange(50), 30) / 50
    assert found(data, "time-limit-as-terminal") is None


def test_data_without_terminals_or_without_ends_are_told() -> None:
    assert problem(made(), "no-terminals").severity == "info"
    assert found(made(terminated=[True] + [False] * 49), "no-terminals") is None
    assert found(made(), "one-episode") is None
    whole = made([2000])
    assert problem(whole, "one-episode").severity == "warning"
    assert "--episode" in problem(whole, "one-episode").advice
    assert found(whole, "little-data") is None  # said once is enough
    assert problem(changed(whole, meta=Meta("maze2d-umaze-v1")), "one-episode").severity == "info"


def test_a_last_row_without_a_flag_still_ends_the_last_episode() -> None:
    data = made([30, 30])
    data.truncated[-1] = False
    assert list(Inspection(data, thorough=True).lengths) == [30, 30]
    assert "2 episodes" in problem(data, "little-data").evidence


def test_single_steps_are_a_warning_unless_all_are() -> None:
    finding = problem(made([1, 40, 40, 1, 40] * 10), "single-steps")
    assert finding.severity == "warning"
    assert "20 of 50 episodes" in finding.evidence
    assert "rows 0, 81, 122" in finding.evidence
    assert problem(made([1] * 2000), "single-steps").severity == "info"
    assert found(made([40] * 50 + [1]), "single-steps") is None  # where the log stops


def test_a_shift_of_rows_is_told_for_what_it_is() -> None:
    data = made()
    assert not codes(data, "error", "warning") & {"episode-jumps", "rows-shuffled", "next-is-observation"}
    still = changed(data, next_observations=data.observations)
    assert problem(still, "next-is-observation").severity == "error"
    order = np.random.default_rng(0).permutation(len(data))
    shuffled = changed(data, **{name: getattr(data, name)[order] for name in FIELDS})
    assert problem(shuffled, "rows-shuffled").severity == "warning"
    lost = changed(data, truncated=data.truncated & (np.arange(len(data)) % 80 == 79))
    finding = problem(lost, "episode-jumps")
    assert finding.severity == "warning"
    assert "In 25 of 1,975 steps" in finding.evidence
    assert "rows 39, 119" in finding.evidence


def test_rounding_and_standing_still_are_no_jumps() -> None:
    data = made()
    rounded = data.next_observations * np.float32(1 + 3e-7)
    assert found(changed(data, next_observations=rounded), "episode-jumps") is None
    same = np.ones_like(data.observations)
    assert "next-is-observation" not in codes(
        changed(data, observations=same, next_observations=same), "error", "warning"
    )


@pytest.mark.parametrize(("lengths", "fires"), [([400] * 9, True), ([40] * 24, True), ([100] * 10, False)])
def test_little_data_is_a_warning(lengths: list[int], fires: bool) -> None:
    assert (found(made(lengths), "little-data") is not None) == fires


# Learning


def test_the_spread_of_returns_tells_whether_imitation_suffices() -> None:
    data = made()
    assert found(data, "returns-alike") is None
    assert problem(data, "returns-differ").severity == "info"
    alike = changed(data, rewards=data.rewards * np.float32(0.01) + np.float32(5))
    assert found(alike, "returns-differ") is None
    assert "mildly train bc" in problem(alike, "returns-alike").advice
    assert found(made([500] * 9), "returns-alike") is found(made([500] * 9), "returns-differ") is None


def test_the_spread_of_returns_is_measured_in_scores_where_there_are_references() -> None:
    data = made()
    best, mean = np.sort(data.episode_returns())[-5:].mean(), data.episode_returns().mean()
    scored = changed(data, meta=Meta("scored", reference_min=float(mean), reference_max=float(best)))
    assert "normalized score 100.0 against 0.0" in problem(scored, "returns-differ").evidence
    far = changed(data, meta=Meta("scored", reference_min=0.0, reference_max=100 * float(best - mean)))
    assert found(far, "returns-alike") is not None


def policy(data: Dataset, noise: float) -> Dataset:
    """The same states with the actions of one policy, and noise around them."""
    smooth = np.tanh(data.observations[:, :2] @ np.array([[1.0, -0.5], [0.4, 1.2]]))
    actions = smooth + noise * np.random.default_rng(9).normal(size=smooth.shape)
    return changed(data, actions=np.clip(actions, -1, 1).astype(np.float32))


def test_a_deterministic_behavior_is_told_and_a_noisy_one_is_not() -> None:
    data = made([40] * 200)
    finding = problem(policy(data, 0.0), "deterministic-behavior")
    assert finding.severity == "warning"
    assert found(policy(data, 0.0), "deterministic-behavior", thorough=False) is None
    for other in (policy(data, 0.3), data):
        assert found(other, "deterministic-behavior") is None


def test_the_share_that_states_explain_is_never_overstated() -> None:
    """Actions with noise of a known share of their variance, where states hardly differ: the estimate meets it."""
    data = made([40] * 200)
    signs = np.sign(data.observations[:, :1])
    noise = np.random.default_rng(5).normal(size=(len(data), 2)) * 0.1
    two_states = changed(
        data, observations=signs.repeat(4, 1).astype(np.float32), actions=(0.7 * signs + noise).astype(np.float32)
    )
    explained = 0.7**2 / (0.7**2 + 0.1**2)  # 98 %
    told = float(problem(two_states, "deterministic-behavior").evidence.split("at least ")[1].split(" %")[0]) / 100
    assert told == pytest.approx(explained, abs=0.003)


def test_copied_rows_are_told_above_a_tenth() -> None:
    data = made([40] * 50)
    for copies, fires in ((4, False), (8, True)):  # of 50 episodes
        rows = np.concatenate([np.arange(len(data)), np.arange(40 * copies)])
        joined = changed(data, **{name: getattr(data, name)[rows] for name in FIELDS})
        finding = found(joined, "duplicated-rows")
        assert (finding is not None) == fires
        assert found(joined, "duplicated-rows", thorough=False) is None
    assert finding is not None
    assert "320 of 2,320 transitions" in finding.evidence


def test_copies_in_a_large_set_are_counted_in_a_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mildly.data.check.learning._HASHED", 500)
    data = made([40] * 50)
    twice = changed(data, **{name: np.concatenate([getattr(data, name)] * 2) for name in FIELDS})
    finding = problem(twice, "duplicated-rows")
    assert "looked at (50 %)" in finding.evidence


def test_notes_of_the_import_are_shown() -> None:
    findings = check(made(meta=Meta("noted", notes=("Rows were dropped.", "Columns were guessed."))))
    assert [f.what for f in findings if f.code == "import"] == ["Rows were dropped.", "Columns were guessed."]
    assert all(finding.code != "import" for finding in check(made()))


# The look at the data


def test_a_quick_look_reads_a_sample_of_contents_but_all_rewards_and_flags() -> None:
    data = made([100] * 2500)
    look = Inspection(data, thorough=False)
    assert look.looked_at == 100_000
    sampled = np.zeros(len(data), bool)
    for piece in look.pieces():
        sampled[piece] = True
    unseen = int(np.flatnonzero(~sampled)[0])
    data.observations[unseen] = np.nan
    assert found(data, "nan", thorough=False) is None
    data.rewards[unseen] = np.nan
    assert problem(data, "nan", thorough=False).evidence.startswith("rewards: 1 value")
    assert problem(data, "nan").evidence.startswith("observations: 4 values in columns 0, 1, 2, 3")
    data.actions[0] = 3.0
    assert "of 100,000 rows looked at" in problem(data, "action-out-of-bounds", thorough=False).evidence


def test_facts_about_columns_are_those_of_numpy_however_the_rows_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mildly.data.check.inspection._NUMBERS", 300)
    data = made()
    values = np.array(data.observations) * 3 + 1000
    look = Inspection(changed(data, observations=values), thorough=True)
    facts = look.observations
    np.testing.assert_allclose(facts.mean, values.mean(axis=0, dtype=np.float64))
    np.testing.assert_allclose(facts.std, values.std(axis=0, dtype=np.float64))
    np.testing.assert_array_equal(facts.low, values.min(axis=0))
    np.testing.assert_array_equal(facts.high, values.max(axis=0))
    np.testing.assert_allclose(look.returns, data.episode_returns())
    assert [piece.stop for piece in look.pieces(4)][:2] == [75, 150]


def test_texts_name_no_more_than_five() -> None:
    assert named("row", [4]) == "row 4"
    assert named("column", range(7)) == "columns 0, 1, 2, 3, 4 and 2 more"
    assert worded([Place("", "row", row) for row in (1, 2, 3)], 1003) == "rows 1, 2, 3 and 1,000 more"
    places = [Place("a.csv", "line", 3), Place("a.csv", "line", 8), Place("b.csv", "line", 2)]
    assert worded(places, 5) == "a.csv lines 3, 8, b.csv line 2 and 2 more"
    assert [percent(share) for share in (0.00123, 0.5, 0.9971, 1.0)] == ["0.123 %", "50 %", "99.7 %", "100 %"]
    assert [figure(number) for number in (-1234.5, 12.3456, 1e9)] == ["-1,234", "12.35", "1e+09"]


def test_every_check_stands_in_one_table() -> None:
    assert len({*QUICK, *THOROUGH}) == len(QUICK) + len(THOROUGH)
    assert all(one.__doc__ for one in (*QUICK, *THOROUGH))


# Real data


@pytest.mark.parametrize("name", builtin_names())
def test_the_built_in_sets_have_no_errors_and_no_warnings(name: str) -> None:
    assert codes(load_dataset(name), "error", "warning") == set()


ALLOWED = {"little-data", "action-saturated"}
"""What is true of the real files: cut to two episodes; and hands and mazes are steered to the bounds."""


@pytest.mark.skipif(not REAL, reason="the real files are not here (looked in ../shared/data of the project's root)")
@pytest.mark.parametrize("path", REAL, ids=lambda path: path.stem)
def test_real_files_have_no_errors_and_no_warning_that_is_not_true(path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data = load_dataset(path, verify=False)
        assert codes(data, "error") == set()
        assert codes(data, "warning") <= ALLOWED


# The command


Shown = Callable[..., tuple[int, str]]


@pytest.fixture
def shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Shown:
    """Runs `mildly data check` on a set; gives exit code and output."""

    def run(data: Dataset, *flags: str) -> tuple[int, str]:
        folder = data.save(tmp_path / "set")
        capsys.readouterr()
        code = main(["data", "check", str(folder), *flags])
        return code, capsys.readouterr().out

    return run


def test_the_command_shows_findings_and_ends_with_1_on_an_error(shown: Shown) -> None:
    data = made([50] * 30, terminated=True, meta=Meta("logged"))
    data.actions[5] = np.nan
    code, text = shown(data)
    lines = text.splitlines()
    assert code == 1
    assert lines[0] == "logged: 1,500 transitions"
    assert "\x1b" not in text
    start = next(i for i, line in enumerate(lines) if line.endswith("(time-limit-as-terminal)"))
    assert lines[start].startswith("error    Episodes")
    assert lines[start + 1].startswith("         30 of 30")
    assert lines[start + 2].startswith("         -> Mark them as cut off")
    assert lines[-1] == "2 errors, no warnings, 1 note"


def test_how_rows_are_counted_is_not_told_where_none_is_cited(shown: Shown) -> None:
    assert "counted from" not in shown(made())[1]


def test_how_rows_are_counted_is_told_of_a_row_that_is_cited(shown: Shown) -> None:
    data = made()
    data.actions[5] = np.nan
    assert "first in row 5" in (text := shown(data)[1])
    assert "Lines of a file are counted from 1, rows and columns from 0." in text


def test_the_command_ends_with_0_and_the_next_step_without_an_error(shown: Shown, tmp_path: Path) -> None:
    code, text = shown(made([1, 39] * 30))
    assert code == 0
    *_, counts, then = text.splitlines()
    assert counts == "no errors, 1 warning, 2 notes"
    assert then == f"next: mildly train mcq --dataset {tmp_path / 'set'}"


def test_the_command_gives_json_to_programs(shown: Shown) -> None:
    data = made([50] * 30, terminated=True)
    code, text = shown(data, "--json")
    assert code == 1
    assert [Finding(**row) for row in json.loads(text)] == check(data)


def test_a_set_that_cannot_be_read_is_an_error_of_the_usual_kind(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "no-such-set.csv"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.startswith("error: ")) == ("", True)
