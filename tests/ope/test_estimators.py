"""The estimators on data whose answers are known; a policy judged from the command line; wrong uses."""

from __future__ import annotations

import dataclasses
import json
import shlex
import signal

import numpy as np
import pytest
import torch
from conftest import make_dataset
from tabular import GAMMA, MU, PI, PROCESS, TabularPolicy, exact_v, logged

from mildly.actors import TanhGaussianActor
from mildly.algorithms.bc import BC
from mildly.cli import main
from mildly.data.dataset import Meta
from mildly.data.findings import no_reward
from mildly.errors import MildlyError
from mildly.ope.coverage import coverage
from mildly.ope.estimators import Problem, estimate, logged_return
from mildly.ope.evaluate import judge
from mildly.ope.fqe import FQE
from mildly.ope.judged import JudgedPolicy, NoDensity
from mildly.ope.settings import Settings
from mildly.policy import Policy
from mildly.training.offline import train

TRUTH = exact_v(PI, steps=200)[PROCESS.start]
FEW = Settings(steps=30, density_steps=10, hidden_dims=(8,), replications=50)


def quiet(text):
    pass


def problem(tmp_path, data=None, judged=None, settings=FEW):
    data = logged(300, length=12) if data is None else data
    made = Problem(judged or TabularPolicy(), data, GAMMA, settings, tmp_path, quiet)
    density = TabularPolicy(MU).log_prob(data.observations, data.actions)
    vars(made)["behavior_log_prob"] = density  # exact, where a flow would have to learn it
    return made


def test_with_exact_densities_importance_sampling_and_doubly_robust_are_near_the_truth(tmp_path):
    settings = dataclasses.replace(FEW, steps=300, hidden_dims=(32,))
    made = problem(tmp_path, logged(1500, length=12), settings=settings)
    of_data = exact_v(MU, steps=200)[PROCESS.start]
    for name in ("wis", "dr"):
        found = estimate(name, made)
        assert found.low < TRUTH < found.high
        assert abs(found.value - TRUTH) < abs(of_data - TRUTH) / 4
        assert found.facts["effective episodes"] > 20
        assert not found.doubts
    assert not estimate("fqe", made).doubts


def test_a_discount_of_one_is_refused_whatever_the_estimator(tmp_path):
    data = logged(20, length=12)
    with pytest.raises(MildlyError, match=r"gamma must be in \[0, 1\), got 1.0"):
        Problem(TabularPolicy(), data, 1.0, FEW, tmp_path, quiet)


def test_the_anchor_is_the_data_s_discounted_return_from_the_starts(tmp_path):
    made = problem(tmp_path)
    found = logged_return(made)
    assert found.low < exact_v(MU, steps=200)[PROCESS.start] < found.high
    rewards = made.data.rewards.reshape(300, 12).astype(np.float64)
    by_hand = (rewards @ GAMMA ** np.arange(12)).mean() / (1 - GAMMA**12)  # as if the limit were none
    assert found.value == pytest.approx(by_hand)


def test_the_same_seed_gives_the_same_numbers(tmp_path):
    first, again = (estimate("dr", problem(tmp_path / name)) for name in ("one", "two"))
    assert first == again


def test_few_effective_episodes_are_a_doubt(tmp_path):
    far = TabularPolicy(np.array([[0.001, 0.999], [0.001, 0.999]]))
    made = problem(tmp_path, logged(40, length=20), far, dataclasses.replace(FEW, clip=1e6))
    found = estimate("wis", made)
    assert found.facts["effective episodes"] < 10
    assert "carry all of the weight" in found.doubts[0]


def test_a_fit_that_still_moves_is_a_doubt(tmp_path):
    data = logged(30)
    made = problem(tmp_path, data, settings=dataclasses.replace(FEW, steps=20))
    fqe, lines = made.fitted
    vars(made)["fitted"] = (fqe, [{**line, "v_start": 10.0 * line["step"]} for line in lines])
    assert "still moves" in estimate("fqe", made).doubts[0]


def fit_of(tmp_path, data, gamma, **work):
    settings = dataclasses.replace(FEW, **work)
    return Problem(TabularPolicy(), data, gamma, settings, tmp_path, quiet)


def test_a_fit_too_short_for_the_discount_to_leave_the_log_s_level_is_a_doubt(tmp_path):
    data = logged(30)
    of_data, truth = (exact_v(policy, 3000, 0.99)[PROCESS.start] for policy in (MU, PI))
    found = estimate("fqe", fit_of(tmp_path, data, 0.99, steps=200))
    assert abs(found.value - of_data) < abs(truth - of_data) / 2  # it has not come far, and stands still
    assert abs(found.facts["moved in the last fifth of the fit"]) < found.high - found.value
    (doubt,) = found.doubts
    assert "hardly begun" in doubt
    assert "about 6,000 steps" in doubt


def test_episodes_that_end_for_good_need_no_longer_fit_than_their_length_takes(tmp_path):
    data = logged(60, length=3, terminal=True)
    assert "hardly begun" not in str(estimate("fqe", fit_of(tmp_path, data, 0.99, steps=200)).doubts)


def test_a_movement_that_promises_a_long_way_is_a_doubt(tmp_path):
    """Of a level that is approached at the pace of the target network, one and a half horizons leave 0.22."""
    made = fit_of(tmp_path, logged(30), GAMMA, steps=150)
    fqe, _ = made.fitted
    still = estimate("fqe", made)
    far = 2 * max(0.1 * abs(still.value), still.high - still.value)

    def approaching(way):
        values = way * (1 - np.exp(-1.5 * np.arange(1, 151) / 150))
        vars(made)["fitted"] = (fqe, [{"v_start": value} for value in values])
        return estimate("fqe", made)

    found = approaching(far / 0.22)
    assert found.facts["moved in the last fifth of the fit"] == pytest.approx(far * (np.exp(0.3) - 1), rel=0.1)
    assert "still to come" in found.doubts[0]
    assert not approaching(far / 0.22 / 3).doubts


def test_an_estimator_that_cannot_be_used_says_why(tmp_path):
    class NoDensityPolicy(TabularPolicy):
        def log_prob(self, observations, actions):
            raise NoDensity("it has none")

    found = estimate("wis", problem(tmp_path, logged(5), NoDensityPolicy()))
    assert np.isnan(found.value)
    assert found.doubts == ("it has none",)
    assert found.to_json()["value"] is None


# Coverage


class Shifted:
    """Logged actions, moved."""

    density = ""

    def __init__(self, data, by):
        self.known = {row.tobytes(): action for row, action in zip(data.observations, data.actions, strict=True)}
        self.by = by

    def actions(self, observations, seed):
        return np.stack([self.known[row.tobytes()] for row in observations])[:, None] + np.float32(self.by)

    def log_prob(self, observations, actions):
        raise NotImplementedError


def test_the_log_covers_its_own_actions_and_not_those_far_away():
    data = make_dataset(rows=2000)
    near = dataclasses.replace(data, actions=0.3 * data.actions)
    assert coverage(Shifted(near, 0.0), near).share == pytest.approx(0.95, abs=0.01)
    assert coverage(Shifted(near, 5.0), near).share == 0.0


# From the command line


@pytest.fixture
def saved(tmp_path):
    """A policy and a data set on disk."""
    torch.manual_seed(0)
    Policy(TanhGaussianActor(2, 1, (8,)), action_space=None).save(tmp_path / "policy")
    logged(12).save(tmp_path / "log")
    return str(tmp_path / "policy"), str(tmp_path / "log")


SHORT = ("--steps", "20", "--density-steps", "5", "--hidden-dims", "8")


def test_a_policy_is_judged_by_one_command(saved, capsys):
    policy, log = saved
    assert main(["ope", policy, "--dataset", log, *SHORT]) == 0
    out = capsys.readouterr().out
    for word in ("fqe", "dr", "wis", "model", "the log", "its clone", "discounted", "gamma 0.99", "Coverage", "kernel"):
        assert word in out


@pytest.mark.parametrize(
    "command", [["ope"], ["choose", "--no-grade"], ["ope", "grade", "--groups", "3"]], ids=" ".join
)
def test_the_fits_of_a_command_take_so_many_threads(saved, capsys, monkeypatch, command):
    policy, log = saved
    seen, step = set(), FQE.update

    def update(self, batch):
        seen.add(torch.get_num_threads())
        return step(self, batch)

    monkeypatch.setattr(FQE, "update", update)
    words = [log, "--estimators", "fqe"] if "grade" in command else ["--dataset", log, policy]
    assert main([*command, *words, "--steps", "2", "--density-steps", "2", "--hidden-dims", "4", "--threads", "2"]) == 0
    assert seen == {2}


def test_json_holds_every_number_and_a_kept_fit_is_not_made_again(saved, tmp_path, capsys):
    policy, log = saved
    command = ["ope", policy, "--dataset", log, *SHORT, "--json", "--stochastic", "--out", str(tmp_path / "kept")]
    assert main(command) == 0
    first = capsys.readouterr()
    assert main(command) == 0
    again = capsys.readouterr()
    assert json.loads(first.out) == json.loads(again.out)
    assert "fqe: 20 steps" in first.err
    assert "steps" not in again.err
    found = json.loads(first.out)
    assert found["estimates"].keys() == {"fqe", "dr", "wis", "model"}
    assert found["density"] == "its own"
    assert found["anchors"]["the log"]["facts"]["episodes"] == 12


@pytest.fixture
def stopping(monkeypatch):
    """Ctrl-C in the middle of every fit of fitted Q evaluation."""
    step = FQE.update

    def update(self, batch):
        signal.raise_signal(signal.SIGINT)
        return step(self, batch)

    monkeypatch.setattr(FQE, "update", update)


@pytest.mark.parametrize("command", [["ope"], ["choose"], ["ope", "grade"]], ids=" ".join)
def test_who_stops_the_work_is_told_that_nothing_was_kept_and_how_to_keep_it(saved, capsys, stopping, command):
    policy, log = saved
    words = [log, "--by", "cluster"] if "grade" in command else [policy, "--dataset", log]
    assert main([*command, *words, *SHORT]) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == "stopped; nothing was kept. With --out DIR the same command goes on where it was stopped."


@pytest.mark.parametrize("command", [["ope"], ["choose", "--no-grade"], ["ope", "grade"]], ids=" ".join)
def test_who_stops_work_that_is_kept_is_given_the_command_that_goes_on(
    saved, tmp_path, capsys, monkeypatch, stopping, command
):
    policy, log = saved
    words = [log, "--estimators", "fqe"] if "grade" in command else ["--dataset", log, policy]
    whole = [*command, *words, *SHORT, "--out", str(tmp_path / "kept here")]
    assert main(whole) == 130
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(f"stopped; the fits so far are kept in {tmp_path / 'kept here'}. Go on with: mildly ")
    monkeypatch.undo()
    assert main(shlex.split(said.split("Go on with: mildly ")[1])) == 0
    assert "from step 1" in capsys.readouterr().err


def test_a_stopped_clone_is_no_run_to_resume(saved, capsys, monkeypatch):
    policy, log = saved
    step = BC.update

    def update(self, batch):
        signal.raise_signal(signal.SIGINT)
        return step(self, batch)

    monkeypatch.setattr(BC, "update", update)
    assert main(["ope", policy, "--dataset", log, *SHORT, "--estimators", "fqe"]) == 130
    assert capsys.readouterr().err.splitlines()[-1].startswith("stopped; nothing was kept.")


def test_another_policy_does_not_go_on_with_a_kept_fit(saved, tmp_path, refused):
    _, log = saved
    kept = str(tmp_path / "kept")
    main(["ope", saved[0], "--dataset", log, *SHORT, "--out", kept, "--no-clone", "--estimators", "fqe"])
    torch.manual_seed(1)
    Policy(TanhGaussianActor(2, 1, (8,))).save(tmp_path / "other")
    words = ["ope", str(tmp_path / "other"), "--dataset", log, *SHORT, "--out", kept]
    assert "other settings (policy)" in refused.command(*words)


def test_the_discount_is_that_of_the_policy_s_run(tmp_path):
    data = logged(6)
    fields = {"hidden_dims": (8, 8), "batch_size": 8, "gamma": 0.7}
    run = train("td3-bc", data, steps=2, out=tmp_path / "run", quiet=True, eval_every=0, check=False, **fields)
    found = judge(run.path, data, settings=FEW, estimators=["fqe"], clone=False)
    assert found.gamma == 0.7
    assert "trained on all 6 episodes that it is judged by" in found.notes[0]


def test_a_policy_is_judged_by_what_its_training_held_out(tmp_path):
    data = logged(10)
    fields = {"hidden_dims": (8, 8), "batch_size": 8, "holdout": 0.4}
    run = train("bc", data, steps=2, out=tmp_path / "run", quiet=True, eval_every=0, check=False, **fields)
    found = judge(run.path, data, settings=FEW, estimators=["fqe"], clone=False)
    assert found.episodes == 4
    assert found.notes == ("judged by the 4 episodes that were held out of training",)


# Wrong uses


def test_a_single_episode_is_refused(saved, tmp_path, refused):
    logged(1, length=50).save(tmp_path / "one")
    said = refused.command("ope", saved[0], "--dataset", str(tmp_path / "one"))
    assert "one single episode" in said
    assert "--episode" in said


def test_data_of_terminal_rows_alone_are_refused(saved, tmp_path, refused):
    logged(20, length=1, terminal=True).save(tmp_path / "ends")
    assert "every row is terminal" in refused.command("ope", saved[0], "--dataset", str(tmp_path / "ends"))


def test_data_without_a_reward_are_refused(refused):
    data = dataclasses.replace(logged(3), meta=Meta("silent", notes=(no_reward().note(),)))
    refused(lambda: logged_return(Problem(TabularPolicy(), data, 0.9, FEW, None, quiet)), "'silent' has no reward")


def test_a_policy_of_another_task_is_refused(saved, refused):
    assert "observations of 2 numbers" in refused.command("ope", saved[0], "--dataset", "pendulum-mixed")


def test_wrong_words_are_refused(saved, refused):
    policy, log = saved
    assert "unknown estimator 'fqa'. Did you mean 'fqe'?" in refused.command(
        "ope", policy, "--dataset", log, "--estimators", "fqa"
    )
    assert "no policy here" in refused.command("ope", "nowhere", "--dataset", log)
    assert "--threads must be at least 1" in refused.command("ope", policy, "--dataset", log, "--threads", "0")
    assert "steps must be at least 1" in refused.command("ope", policy, "--dataset", log, "--steps", "0")
    assert "gamma must be in [0, 1)" in refused.command("ope", policy, "--dataset", log, "--gamma", "1")


def test_draws_of_a_judged_policy_fit_the_protocol():
    torch.manual_seed(0)
    judged = JudgedPolicy.of(Policy(TanhGaussianActor(2, 1, (8,))), logged(3), "it", stochastic=True)
    assert judged.actions(logged(3).observations, 0).shape == (60, 10, 1)
