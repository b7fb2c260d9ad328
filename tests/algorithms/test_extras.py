"""Extras: a start at the level of the returns, returns in the targets, an anchor, and an averaged policy."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from conftest import OBSERVATIONS, make_batch, same, tiny, weights
from learners import DATA, batch_of, drawn_by, every_anchored, every_with_extras, slow_return, starting, with_gradient
from torch import Tensor

from mildly.data.batches import Buffer
from mildly.data.returns import discounted_returns

LEVEL, MIX, ANCHOR, AVERAGE = "extras.level_start", "extras.return_mix", "extras.bc_weight", "extras.policy_ema"
PREFERENCE, RISE = "extras.bc_preference", "extras.bc_rise"


# The level


@every_with_extras
def test_all_values_start_at_the_level_of_the_returns(name):
    """Nothing but the last offsets differs from a learner without it, and no step is spent."""
    value, weight = discounted_returns(DATA, 0.9)
    level = np.average(value, weights=weight)
    learner, plain = starting(name, **{LEVEL: True}), starting(name)
    assert abs(level) > 0.01
    for critics in (learner.critics, learner.target_critics):
        assert critics.biases[-1].flatten().tolist() == pytest.approx([level] * critics.ensemble, rel=1e-5)
    assert same(weights(learner.critics)[:-1], weights(plain.critics)[:-1])
    assert same(weights(learner.target_critics)[:-1], weights(plain.target_critics)[:-1])
    if name == "iql":
        assert list(learner.value.parameters())[-1].item() == pytest.approx(level, rel=1e-5)
        assert same(weights(learner.value)[:-1], weights(plain.value)[:-1])
    assert [phase.steps for phase in learner.phases()] == [phase.steps for phase in plain.phases()]
    assert learner.step(batch_of()).keys() == plain.step(batch_of()).keys()


def start_at(learner: Any, level: float) -> None:
    """Bring the offset of all values to a level, as the start does."""
    for network in learner.extras.values:
        list(network.parameters())[-1].data.fill_(level)


@pytest.mark.parametrize("name", ["mcq", "mcq-td3", "sac", "td3", "cql", "awac"])
def test_a_level_is_another_origin_of_the_rewards(name):
    """With r - (1 - gamma) b inside an episode and r - b at a terminal state, all values are lower by b."""
    rates = {"gamma": 0.9, "actor_lr": 0.01, "critic_lr": 0.01}
    shifted, centered = (tiny(name, seed=1, **rates) for _ in range(2))
    before = weights(centered.actor)
    start_at(shifted, 7.0)
    start_at(centered, 0.0)
    for step in range(40):
        batch = make_batch(seed=step)
        inner = 1 - batch.terminated
        rewards = batch.rewards - 7.0 * (1 - 0.9 * inner)
        first, second = shifted.step(batch), centered.step(batch._replace(rewards=rewards))
        assert first["q_data"].item() == pytest.approx(second["q_data"].item() + 7.0, abs=1e-3)
        assert first["loss_td"].item() == pytest.approx(second["loss_td"].item(), rel=1e-3)
    for mine, other in zip(weights(shifted.actor), weights(centered.actor), strict=True):
        torch.testing.assert_close(mine, other, atol=1e-2, rtol=0.0)
    moved = max((new - old).abs().max().item() for new, old in zip(weights(centered.actor), before, strict=True))
    assert moved > 0.1


# Returns in the critics' targets


def mixed(y: Tensor, rows: Tensor, mix: float, scale: float = 1.0) -> list[Any]:
    """(1 - k) y + k G, one number at a time; a return of which the log shows half counts half."""
    if y.ndim > 1:  # each critic has a target of its own
        return [mixed(own, rows, mix, scale) for own in y]
    found = []
    for own, row in zip(y.double().tolist(), rows.tolist(), strict=True):
        value, shown = slow_return(row, 0.9)
        found.append((1 - mix * shown) * own + mix * shown * scale * value)
    return found


@every_with_extras
@pytest.mark.parametrize("mix", [0.3, 1.0])
def test_the_critics_target_mixes_the_datas_returns_in_as_far_as_they_are_shown(name, mix):
    """By hand, from the method's own target of the same rows with the same draws."""
    learner, twin = tiny(name, gamma=0.9, **{MIX: mix}), tiny(name, gamma=0.9)
    batch, plain = drawn_by(learner), drawn_by(twin)
    assert torch.equal(batch.rows, plain.rows)
    assert len({slow_return(row, 0.9)[1] for row in batch.rows.tolist()}) > 2
    target = learner.td_target(batch)
    assert not target.requires_grad
    np.testing.assert_allclose(target.numpy(), mixed(twin.td_target(plain), plain.rows, mix), rtol=1e-4, atol=1e-5)
    assert not np.allclose(target.numpy(), tiny(name, gamma=0.9).td_target(plain).numpy(), atol=0.1)


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("sac", {"normalize_observations": True, LEVEL: True}),
        ("td3-bc", {"normalize_observations": True, "policy_noise": 0.4}),
        ("iql", {"reward_scaling": True}),
        ("awac", {"ignore_terminals": True}),
    ],
    ids=str,
)
def test_returns_are_mixed_in_with_the_units_and_the_ends_that_the_method_sees(name, fields):
    learner, twin = tiny(name, gamma=0.9, **{MIX: 0.4}, **fields), tiny(name, gamma=0.9, **fields)
    batch, plain = drawn_by(learner, rows=40), drawn_by(twin, rows=40)
    scale = twin.preprocessing.reward_scale
    assert (scale != 1) == (name == "iql")
    assert plain.terminated.any() == (name != "awac")
    expected = mixed(twin.td_target(plain), plain.rows, 0.4, scale)
    np.testing.assert_allclose(learner.td_target(batch).numpy(), expected, rtol=1e-4, atol=1e-5 * scale)


@every_with_extras
def test_every_method_s_critics_learn_from_the_mixed_target(name):
    learner, twin = tiny(name, gamma=0.9, **{MIX: 0.3}), tiny(name, gamma=0.9)
    metrics = learner.step(drawn_by(learner))
    assert metrics["q_target"].item() != pytest.approx(twin.step(drawn_by(twin))["q_target"].item(), rel=1e-3)
    assert {key for key in metrics if key.startswith("loss_")} >= {"loss_td", "loss_critic"}


def test_with_returns_alone_the_values_are_the_datas_own():
    """Mixed in with weight 1, of episodes that end: the policy no longer matters, and TD errors are return errors."""
    learner = tiny("td3", gamma=0.9, **{MIX: 1.0})
    batch = drawn_by(learner)
    ended = torch.tensor([slow_return(row, 0.9)[1] == 1 for row in batch.rows.tolist()])
    assert ended.any()
    assert not ended.all()
    with torch.no_grad():
        learner.target_critics.biases[-1].add_(100.0)
    values = torch.tensor([slow_return(row, 0.9)[0] for row in batch.rows.tolist()])
    torch.testing.assert_close(learner.td_target(batch)[ended], values[ended], rtol=1e-5, atol=1e-5)
    assert (learner.td_target(batch)[~ended] - values[~ended]).abs().min() > 1


@every_anchored
def test_the_mixed_target_gives_gradients_to_the_critics_alone(name):
    learner = tiny(name, gamma=0.9, **{MIX: 0.5})
    learner.update_critics(drawn_by(learner))
    assert with_gradient(learner) == {"critics"}


@every_with_extras
def test_what_else_is_in_a_batch_is_as_without_returns(name):
    learner, twin = tiny(name, gamma=0.9, **{MIX: 0.3}), tiny(name, gamma=0.9)
    batch, plain = drawn_by(learner, rows=40), drawn_by(twin, rows=40)
    for column in ("observations", "actions", "next_observations", "rows"):
        assert torch.equal(getattr(batch, column), getattr(plain, column))
    assert ((batch.terminated > 0) & (batch.terminated < 1)).any()
    assert (batch.terminated[plain.terminated == 1] == 1).all()


@every_with_extras
def test_transitions_that_are_no_rows_of_the_data_are_learned_from_by_the_methods_own_target(name):
    """As in online training, where there are no returns yet."""
    learner, twin = starting(name, **{MIX: 0.5}), starting(name)
    buffers = [Buffer(OBSERVATIONS, 2, 12, each.device, each.preprocessing) for each in (learner, twin)]
    for buffer in buffers:
        buffer.add(make_batch()._asdict())
    batches = [buffer.sample(torch.Generator().manual_seed(3)) for buffer in buffers]
    assert not len(batches[0].rows)
    assert torch.equal(learner.td_target(batches[0]), twin.td_target(batches[1]))


# The anchor


def actor_loss_of(learner: Any, batch: Any) -> Tensor:
    """The actor's loss, of the same draw for all learners."""
    if not hasattr(learner, "log_alpha"):
        return learner.actor_loss(batch)[0]
    drawn = learner.actor(batch.observations).rsample(torch.Generator().manual_seed(0))
    return learner.actor_loss(batch, drawn)[0]


@pytest.mark.parametrize("name", ["mcq", "mcq-td3", "sac", "td3", "cql"])  # TD3+BC weighs its values: see its tests
def test_an_anchor_adds_the_cloning_loss_in_its_unit(name):
    """By hand."""
    free, anchored = tiny(name), starting(name, **{ANCHOR: 0.3})
    batch = batch_of()
    anchored.extras.unit = torch.tensor(1.7)
    plain, got = actor_loss_of(free, batch), actor_loss_of(anchored, batch)
    cloning = free.bc_loss(batch)
    assert got.item() == pytest.approx(plain.item() + 0.3 * 1.7 * cloning.item(), rel=1e-4)
    both = [torch.autograd.grad(loss, list(free.actor.parameters()), retain_graph=True) for loss in (plain, cloning)]
    for whole, own, pull in zip(torch.autograd.grad(got, list(anchored.actor.parameters())), *both, strict=True):
        torch.testing.assert_close(whole, own + 0.3 * 1.7 * pull, atol=1e-5, rtol=1e-4)


@every_anchored
def test_the_anchor_s_unit_is_the_spread_of_returns_between_episodes(name):
    """A slow rule: how far the mean return of each episode is from that of all, weighted by what is known of them."""
    value, weight = discounted_returns(DATA, 0.9)
    level, squares = np.average(value, weights=weight), 0.0
    for episode in DATA.episodes():
        squares += weight[episode].sum() * (np.average(value[episode], weights=weight[episode]) - level) ** 2
    learner = starting(name, **{ANCHOR: 0.8})
    assert learner.extras.unit.item() == pytest.approx(np.sqrt(squares / weight.sum()), rel=1e-4)
    assert learner.extras.unit > 0.01
    assert not any("unit" in key for key in learner.state_dict())


@every_anchored
def test_rewards_of_another_scale_scale_the_anchor(name):
    other = dataclasses.replace(DATA, rewards=3 * np.asarray(DATA.rewards))
    learner, scaled = starting(name, **{ANCHOR: 0.8}), tiny(name, **{"gamma": 0.9, ANCHOR: 0.8})
    scaled.batches(other)
    assert scaled.extras.unit.item() == pytest.approx(3 * learner.extras.unit.item(), rel=1e-4)


@every_anchored
def test_an_anchor_holds_the_actor_nearer_to_the_data(name):
    distances = []
    for weight in (0.0, 20.0):
        learner = starting(name, actor_lr=0.01, **{ANCHOR: weight})
        for step in range(60):
            learner.step(batch_of(step))
        distances.append(learner.bc_loss(batch_of(99, rows=60)).item())
    assert distances[1] < distances[0] - 0.01


# What went well counts more in cloning


def counted(row: int) -> float:
    """exp(2 z) of the row's episode, z by a slow rule."""
    value, weight = discounted_returns(DATA, 0.9)
    level = np.average(value, weights=weight)
    off = [np.average(value[each], weights=weight[each]) - level for each in DATA.episodes()]
    squares = sum(weight[each].sum() * far**2 for each, far in zip(DATA.episodes(), off, strict=True))
    spread = np.sqrt(squares / weight.sum())
    (own,) = (far for each, far in zip(DATA.episodes(), off, strict=True) if each.start <= row < each.stop)
    return float(np.exp(2 * np.clip(own / spread, -3, 3)))


@every_with_extras
def test_cloning_counts_an_episode_by_its_return_if_asked_for(name):
    learner, plain = starting(name, **{PREFERENCE: 2.0}), starting(name)
    counts = np.array([counted(row) for row in range(len(DATA))])
    assert counts.max() > 2 * counts.min()
    for row in (0, 7, len(DATA) - 1):
        batch = drawn_by(learner)._replace(rows=torch.full((12,), row))
        learner.generator.manual_seed(0), plain.generator.manual_seed(0)  # of dropout
        got, alike = learner.bc_loss(batch), plain.bc_loss(batch)
        assert got.item() == pytest.approx(alike.item() * counts[row] / counts.mean(), rel=1e-4)
    assert not any("preferences" in key for key in learner.state_dict())


@every_with_extras
def test_transitions_that_are_no_rows_of_the_data_count_alike_in_cloning(name):
    learner, plain = starting(name, **{PREFERENCE: 2.0}), starting(name)
    batch = make_batch()
    assert not len(batch.rows)
    learner.generator.manual_seed(0), plain.generator.manual_seed(0)
    assert torch.equal(learner.bc_loss(batch), plain.bc_loss(batch))


def test_episodes_that_return_alike_count_alike():
    alike = dataclasses.replace(DATA, rewards=np.zeros(len(DATA), np.float32))
    learner = tiny("mcq", **{"gamma": 0.9, PREFERENCE: 2.0})
    learner.batches(alike)
    assert learner.extras.preferences.tolist() == [1.0] * (len(DATA) + 1)


def test_further_data_count_by_what_is_usual_in_the_first_and_new_transitions_count_one():
    learner = starting("mcq", **{PREFERENCE: 2.0})
    first = learner.extras.preferences.clone()
    better = dataclasses.replace(DATA, rewards=np.asarray(DATA.rewards) + 5.0)
    more = learner.more_batches(better)
    assert torch.equal(learner.extras.preferences[: len(DATA)], first[:-1])
    assert learner.extras.preferences[len(DATA) : -1].mean() > 2 * first[:-1].mean()
    rows = more.sample(torch.Generator().manual_seed(0)).rows
    assert len(DATA) <= rows.min() <= rows.max() < 2 * len(DATA)
    assert learner.extras.preferences[-1] == 1
    new = make_batch()._replace(rows=torch.full((len(make_batch().rewards),), -1))
    assert torch.equal(learner.bc_loss(new), learner.bc_loss(new._replace(rows=torch.empty(0, dtype=torch.int64))))


# The anchor holds on where returns rise


def held(data: Any, rate: float) -> list[float]:
    """exp(rate z) of each row by a slow rule: z is by how much its return rises in the next 2 steps.

    At least 1, or twice the share of the rows that are of episodes that do not terminate; or 0, if none terminates.
    """
    value, _ = discounted_returns(data, 0.9)
    rises, going = np.empty(len(data)), 0
    for episode in data.segments():
        for row in range(episode.start, episode.stop):
            last = episode.stop - 1
            later = 0.0 if row + 2 > last and data.terminated[last] else value[min(row + 2, last)]
            rises[row] = later - value[row]
            going += not data.terminated[last]
    middle = np.sort(rises)[(len(rises) - 1) // 2]  # torch's median: the lower of two in the middle
    least = min(1.0, 2 * going / len(data)) if going < len(data) else 0.0
    return [max(least, float(np.exp(rate * np.clip((rise - middle) / rises.std(), -3, 3)))) for rise in rises]


@pytest.mark.parametrize("name", ["mcq", "mcq-td3", "sac", "td3", "cql"])
def test_the_anchor_counts_a_transition_by_how_its_return_rises_if_asked_for(name):
    """By hand, in loss and gradient; together with the preference for good episodes."""
    free, anchored = tiny(name), starting(name, **{ANCHOR: 0.3, RISE: 2.0, PREFERENCE: 2.0})
    counts, liked = held(DATA, 2.0), [counted(row) for row in range(len(DATA))]
    assert max(counts) > 2 * min(counts)
    for row in (0, counts.index(1), counts.index(max(counts))):
        batch = drawn_by(anchored)._replace(rows=torch.full((12,), row))
        plain, got, cloning = actor_loss_of(free, batch), actor_loss_of(anchored, batch), free.bc_losses(batch).mean()
        weight = 0.3 * anchored.extras.unit.item() * counts[row] * liked[row] / np.mean(liked)
        assert got.item() == pytest.approx(plain.item() + weight * cloning.item(), rel=1e-3, abs=1e-4)
        both = [torch.autograd.grad(x, list(free.actor.parameters()), retain_graph=True) for x in (plain, cloning)]
        for whole, own, pull in zip(torch.autograd.grad(got, list(anchored.actor.parameters())), *both, strict=True):
            torch.testing.assert_close(whole, own + weight * pull, atol=1e-4, rtol=1e-3)
    assert not any("holds" in key for key in anchored.state_dict())


@pytest.mark.parametrize("name", ["mcq", "sac"])
def test_the_anchor_takes_the_policy_that_actions_were_drawn_from_instead_of_running_the_actor_again(name):
    learner = starting(name, **{ANCHOR: 0.3, RISE: 1.0})
    batch, parameters = drawn_by(learner), list(learner.actor.parameters())
    pi = learner.distribution(batch.observations)
    drawn = pi.rsample(torch.Generator().manual_seed(0))
    once, twice = learner.actor_loss(batch, drawn, pi)[0], learner.actor_loss(batch, drawn)[0]
    assert once.item() == twice.item()
    gradients = (torch.autograd.grad(loss, parameters, retain_graph=True) for loss in (once, twice))
    for one, two in zip(*gradients, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)
    runs: list[bool] = []  # of the actor on the batch's states: the others are of successors, or of both
    learner.actor.register_forward_hook(lambda _, inputs, __: runs.append(torch.equal(inputs[0], batch.observations)))
    learner.update(batch)
    assert sum(runs) == 1


@pytest.mark.parametrize(("falling", "least"), [(0, None), (1, 1.0), (3, 1.0), (5, 1 / 3), (6, None)])
def test_the_anchor_lets_go_where_returns_fall_unless_a_fall_is_bad_luck(falling, least):
    terminated = np.zeros(len(DATA), dtype=bool)
    terminated[[episode.stop - 1 for episode in DATA.segments()][:falling]] = True
    data = dataclasses.replace(DATA, terminated=terminated, truncated=np.asarray(DATA.truncated) & ~terminated)
    learner = tiny("mcq", **{"gamma": 0.9, ANCHOR: 0.3, RISE: 2.0})
    learner.batches(data)
    *counts, new = learner.extras.holds.tolist()
    assert counts == pytest.approx(held(data, 2.0), rel=1e-3)
    assert min(counts) == pytest.approx(least) if least else min(counts) < 0.1
    assert new == 1


@every_anchored
def test_cloning_itself_does_not_look_at_how_returns_rise(name):
    learner, plain = starting(name, **{ANCHOR: 0.3, RISE: 2.0}), starting(name, **{ANCHOR: 0.3})
    assert torch.equal(learner.bc_loss(batch_of()), plain.bc_loss(batch_of()))
    learner.clone(batch_of()), plain.clone(batch_of())
    assert same(weights(learner.actor), weights(plain.actor))


def test_without_an_anchor_no_row_is_counted_by_its_rise():
    assert starting("mcq", **{RISE: 2.0}).extras.holds is None


def test_rises_of_further_data_are_in_deviations_of_the_first_and_new_transitions_count_one():
    learner = starting("mcq", **{ANCHOR: 0.3, RISE: 1.0})
    first = learner.extras.holds.clone()
    steeper = dataclasses.replace(DATA, rewards=10 * np.asarray(DATA.rewards))
    learner.more_batches(steeper)
    holds = learner.extras.holds
    assert torch.equal(holds[: len(DATA)], first[:-1])
    assert holds[len(DATA) : -1].log().std() > 1.5 * first[:-1].log().std()
    assert holds[-1] == 1


def test_returns_that_all_rise_alike_are_held_alike():
    alike = dataclasses.replace(DATA, rewards=np.zeros(len(DATA), np.float32))
    learner = tiny("mcq", **{"gamma": 0.9, ANCHOR: 0.3, RISE: 2.0})
    learner.batches(alike)
    assert learner.extras.holds.tolist() == [1.0] * (len(DATA) + 1)


# The average


@every_with_extras
def test_the_policy_is_a_running_average_of_the_actor(name):
    learner, plain = tiny(name, actor_lr=0.01, **{AVERAGE: 0.7}), tiny(name, actor_lr=0.01)
    expected = weights(plain.actor)
    for step, rate in enumerate((1, 1, 1, 1, 1, 5 / 6, 5 / 7, 0.7, 0.7)):
        learner.step(batch_of(step))
        plain.step(batch_of(step))
        expected = [rate * new + (1 - rate) * old for new, old in zip(weights(plain.actor), expected, strict=True)]
    assert same(weights(learner.actor), weights(plain.actor))  # the training knows nothing of it
    for own, expected_actor in ((learner, learner.extras.average), (plain, plain.actor)):
        acting = own.policy().actor
        assert getattr(acting, "policy", acting) is expected_actor  # alone, or as what draws candidates
    for got, by_hand in zip(weights(learner.extras.average), expected, strict=True):
        torch.testing.assert_close(got, by_hand)
    states = np.zeros((2, OBSERVATIONS), np.float32)
    assert not np.array_equal(learner.policy(DATA.meta).act(states), plain.policy(DATA.meta).act(states))
    assert not any(parameter.requires_grad for parameter in learner.extras.average.parameters())


@pytest.mark.parametrize(("rate", "sooner"), [(1e-4, 1e-3), (0.7, 0.7)])
def test_while_fine_tuning_the_average_follows_its_actor_sooner(rate, sooner):
    learner = tiny("sac", actor_lr=1.0, **{AVERAGE: rate})
    learner.extras.steps = 10**6
    learner.begin_finetuning()
    before = weights(learner.extras.average)
    learner.step(batch_of())
    for got, old, new in zip(weights(learner.extras.average), before, weights(learner.actor), strict=True):
        torch.testing.assert_close(got - old, sooner * (new - old), rtol=0.01, atol=1e-6)


@every_with_extras
def test_a_restored_learner_has_the_average_too(name):
    learner, other = tiny(name, **{AVERAGE: 0.1}), tiny(name, seed=5, **{AVERAGE: 0.1})
    for step in range(3):
        learner.step(batch_of(step))
    other.load_state_dict(learner.state_dict())
    assert same(weights(other.policy().actor), weights(learner.policy().actor))
    assert other.extras.steps == 3


def test_returns_of_terminated_episodes_alone_are_mixed_if_asked_for():
    """In the rows of episodes that were cut off, rewards and ends stay as they are logged."""
    learner = starting("sac", **{MIX: 0.5, "extras.return_mix_ends": "terminated"})
    columns = learner.batches(DATA).columns
    value, _ = discounted_returns(DATA, 0.9)
    for segment in DATA.segments():
        ends = bool(DATA.terminated[segment.stop - 1])
        rewards = 0.5 * DATA.rewards[segment] + 0.5 * value[segment] if ends else DATA.rewards[segment]
        np.testing.assert_allclose(columns["rewards"][segment], rewards, rtol=1e-5)
        own = DATA.terminated[segment].astype(float)
        np.testing.assert_allclose(columns["terminated"][segment], 1 - 0.5 * (1 - own) if ends else own, rtol=1e-5)
    assert 0 < sum(DATA.terminated) < len(DATA.segments())
