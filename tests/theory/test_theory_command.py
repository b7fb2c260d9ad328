"""The command `mildly theory`, and its figures."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from mildly.cli import main
from mildly.theory import (
    MCB,
    TabularMDP,
    batch_optimal_q,
    check_random,
    expected_return,
    greedy_policy,
    kl_divergence,
    random_problem,
    support_max,
)
from mildly.theory.figures import constrained_policy, contraction_errors, line_problem, penalized_values


def test_the_table_says_what_holds_as_printed_and_as_corrected(capsys):
    assert main(["theory", "--mdps", "20", "--states", "5", "--actions", "4"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0].split() == [
        *("proposition", "as", "printed", "worst", "margin"),
        *("as", "corrected", "worst", "margin", "MDPs"),
    ]
    for number in "12345":
        assert any(line.startswith(f"{number} ") for line in out.splitlines())
    (row,) = [line for line in out.splitlines() if "at most Q_mu*" in line]
    assert row.split()[-1] == "20"
    assert row.count("holds") == 2
    assert "fails on" in next(line for line in out.splitlines() if "one target, any Q" in line)
    assert "at most -0.25 demanded, -0.125 found" in " ".join(out.split())


def test_json_has_every_claim_with_its_numbers(capsys):
    assert main(["theory", "--mdps", "10", "--states", "4", "--actions", "3", "--seed", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [verdict["proposition"] for verdict in found] == [1, 2, 3, 4, 5]
    assert found == json.loads(json.dumps([v.to_json() for v in check_random(10, states=4, actions=3, seed=3)]))
    assert all(verdict["as_corrected"] for verdict in found)


def test_out_draws_three_figures_into_a_new_folder(tmp_path, capsys):
    folder = tmp_path / "new" / "figures"
    assert main(["theory", "--mdps", "2", "--states", "3", "--actions", "2", "--out", str(folder)]) == 0
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == [
        "theory-contraction.png",
        "theory-mildness.png",
        "theory-overestimation.png",
    ]
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    out = capsys.readouterr().out
    assert all(f"wrote {file}" in out for file in files)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--mdps", "0"], "mdps must be at least 1, got 0"),
        (["--states", "-3"], "states must be at least 1, got -3"),
        (["--seed", "-1"], "seed must be at least 0, got -1"),
        (["--mpds", "5"], "mdps"),
    ],
)
def test_a_wrong_option_is_one_message_and_code_2(args, message, capsys):
    try:
        code = main(["theory", *args])
    except SystemExit as ended:
        code = ended.code
    captured = capsys.readouterr()
    assert code == 2
    assert message in captured.err
    assert captured.out == ""


def test_a_violated_correction_gives_code_1(monkeypatch, capsys):
    monkeypatch.setattr(MCB, "__call__", lambda self, q: self.mdp.backup(q.max(axis=-1)))
    assert main(["theory", "--mdps", "5", "--states", "3", "--actions", "3"]) == 1
    assert "fails on" in next(line for line in capsys.readouterr().out.splitlines() if "at most Q_mu*" in line)


def test_without_matplotlib_the_command_says_what_to_install_before_it_computes(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["theory", "--out", str(tmp_path / "figures")]) == 2
    assert "pip install 'mildly[plot]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_the_theory_needs_neither_torch_nor_scipy():
    code = (
        "import sys; from mildly.cli import main; main(['theory', '--mdps', '1', '--states', '2', '--actions', '2']); "
        "print([name for name in ('torch', 'scipy', 'matplotlib') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_the_line_problem_shows_what_the_figure_says():
    line = line_problem()
    best = support_max(batch_optimal_q(line.mdp, line.support), line.support)
    np.testing.assert_allclose(line.mild[line.support], line.value[line.support], atol=1e-7)
    np.testing.assert_allclose(line.mild[~line.support], best[0] - line.delta, atol=1e-7)
    assert line.support[0, line.mild.argmax()]
    returns = [
        float(expected_return(line.mdp, policy))
        for policy in (line.mu, line.constrained, greedy_policy(line.penalized), greedy_policy(line.mild))
    ]
    assert returns == sorted(returns)
    assert returns[-1] == pytest.approx(float(best[0]))


@pytest.mark.parametrize("budget", [0.01, 0.2, 1.0])
def test_the_constrained_policy_uses_its_whole_budget_and_beats_others_within_it(budget):
    line = line_problem()
    policy = constrained_policy(line.mdp, line.mu, budget)
    assert kl_divergence(policy, line.mu)[0] == pytest.approx(budget, rel=1e-6)
    rng = np.random.default_rng(0)
    reached = float(expected_return(line.mdp, policy))
    for _ in range(50):
        mixed = 0.999 * policy + 0.001 * rng.dirichlet(line.mu[0] * 1000 + 1e-12)[None]
        if kl_divergence(mixed, line.mu)[0] <= budget:
            assert float(expected_return(line.mdp, mixed)) <= reached + 1e-12


def test_a_penalty_of_nothing_changes_nothing_and_a_larger_one_sinks_rare_actions_more():
    line = line_problem()
    everywhere = batch_optimal_q(line.mdp, np.ones_like(line.support))
    np.testing.assert_allclose(penalized_values(line.mdp, line.mu, 0.0), everywhere, atol=1e-7)
    rare = int(np.flatnonzero(line.support[0])[-1])
    dense = int(line.mu[0].argmax())
    gaps = [(q[0, dense] - q[0, rare]) for q in (penalized_values(line.mdp, line.mu, p) for p in (0.0, 0.1, 0.4))]
    assert gaps[0] < gaps[1] < gaps[2]


def test_errors_of_iteration_stay_under_gamma_to_the_k():
    problem = random_problem(30, states=6, actions=4, seed=2)
    mdp = TabularMDP(problem.mdp.transitions, problem.mdp.rewards, 0.8)
    errors = contraction_errors(MCB(mdp, problem.mu > 0, 0.1), np.full(mdp.shape, 7.0), 15)
    assert errors.shape == (16, 30)
    assert (errors <= 0.8 ** np.arange(16)[:, None] + 1e-9).all()
    assert errors[5].max() > 0.8**5 * 0.5
