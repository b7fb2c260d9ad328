"""The MCB term in a learner that is not ours: the example of docs/mcq.md, as it stands in examples/own_critic.py."""

import importlib.util
import math
import textwrap
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own_critic.py"
BEGIN, END = "# --- the MCB term ---\n", "# --- that was all ---"


@pytest.fixture
def example():
    spec = importlib.util.spec_from_file_location("own_critic", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def added_lines() -> str:
    """What stands between the two marked lines."""
    text = EXAMPLE.read_text()
    return textwrap.dedent(text[text.index(BEGIN) + len(BEGIN) : text.index(END)].rstrip())


def test_the_term_takes_at_most_ten_lines_and_the_page_shows_them():
    assert len(added_lines().splitlines()) <= 10
    assert added_lines() in (ROOT / "docs" / "mcq.md").read_text()


def test_the_users_critic_gives_what_the_term_asks_for(example):
    critic = example.MyCritic(3, 2)
    states, actions = torch.randn(5, 3), torch.rand(5, 4, 2)
    values = critic.many(states, actions)
    assert values.shape == (1, 5, 4)
    assert values[0, 2, 3].item() == pytest.approx(critic(states[2], actions[2, 3]).item(), abs=1e-6)


def test_the_example_takes_steps_with_and_without_the_term(example):
    alone, with_term = (example.learn("pendulum-mixed", 30, lam) for lam in (1.0, 0.7))
    assert all(math.isfinite(number) for number in (*alone, *with_term))
    assert alone[1] != with_term[1]


@pytest.mark.slow
def test_the_users_learner_learns_with_the_term(example):
    assert example.learn("pendulum-mixed", 4000, 0.7)[0] > 60
