"""The config of behavior models, and the learner that trains one and proposes its actions, fresh or kept."""

from __future__ import annotations

from dataclasses import fields
from itertools import pairwise
from typing import Any

import pytest
import torch
from conftest import ACTIONS, OBSERVATIONS, Refused, make_batch, make_dataset, replay, same, weights

from mildly.behavior import BEHAVIOR_MODELS, BehaviorConfig, BehaviorLearner, draw_sets, make_behavior
from mildly.data.batches import Transitions
from mildly.data.dataset import Dataset
from mildly.data.normalize import Normalizer
from mildly.optimizer import Adam, minimize

CPU = torch.device("cpu")
N = 3
KEPT = {"steps": 2, "cache": True}


def learner(seed: int = 0, stream: int = 7, **given: Any) -> BehaviorLearner:
    torch.manual_seed(seed)
    config = BehaviorConfig(**{"hidden_dims": (8, 6), **given})
    return BehaviorLearner(config, OBSERVATIONS, ACTIONS, CPU, torch.Generator().manual_seed(stream))


def keeping(data: Dataset, seed: int = 0, stream: int = 7, **given: Any) -> BehaviorLearner:
    made = learner(seed, stream, **{**KEPT, **given})
    made.keep_actions(data, N, CPU, None)
    assert made.cache is not None
    return made


def states_of(data: Dataset, rows: torch.Tensor) -> torch.Tensor:
    """s and then s' of these rows."""
    return torch.cat([torch.from_numpy(x)[rows] for x in (data.observations, data.next_observations)])


# The config


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "vae"}, "behavior.model must be one of cvae, cgan, flow, got vae."),
        ({"hidden_dims": (8, 0)}, "behavior.hidden_dims must be positive widths, got (8, 0)."),
        ({"lr": 0.0}, "behavior.lr must be positive, got 0.0."),
        ({"steps": 0}, "behavior.steps must be at least 1, got 0."),
        ({"cache": True}, "behavior.steps must be given where actions are kept, got None."),
        ({**KEPT, "cache_megabytes": 0.0}, "behavior.cache_megabytes must be positive, got 0.0."),
        ({**KEPT, "refresh_every": 0}, "behavior.refresh_every must be at least 1, got 0."),
        ({"steps": 2, "refresh_every": 5}, "behavior.refresh_every must be None where no actions are kept, got 5."),
        ({"latent_size": 0}, "behavior.latent_size must be at least 1, got 0."),
        ({"kl_weight": -0.1}, "behavior.kl_weight must be at least 0, got -0.1."),
        ({"latent_clip": 0.0}, "behavior.latent_clip must be positive, got 0.0."),
        ({"log_std_min": 15.0}, "behavior.log_std_min must be below behavior.log_std_max, got 15.0."),
        ({"log_std_max": -4.0}, "behavior.log_std_min must be below behavior.log_std_max, got -4.0."),
    ],
    ids=str,
)
def test_a_field_out_of_range_is_refused_by_its_dotted_name(
    given: dict[str, Any], words: str, refused: Refused
) -> None:
    assert refused(BehaviorConfig, **given) == words


def test_values_at_the_ends_of_their_ranges_are_taken() -> None:
    least = BehaviorConfig(
        hidden_dims=(1,),
        lr=1e-9,
        steps=1,
        cache=True,
        cache_megabytes=1e-9,
        refresh_every=1,
        latent_size=1,
        kl_weight=0.0,
    )
    assert least.refresh_every == 1
    assert BehaviorConfig(latent_clip=None, hidden_dims=()).hidden_dims == ()


def test_every_field_that_only_the_cvae_knows_reaches_it() -> None:
    config = BehaviorConfig(
        hidden_dims=(5, 4), latent_size=3, latent_clip=0.25, kl_weight=0.1, log_std_min=-1.0, log_std_max=2.0
    )
    assert {field.name for field in fields(config) if getattr(config, field.name) != field.default} == {
        *("hidden_dims", "latent_size", "latent_clip", "kl_weight", "log_std_min", "log_std_max"),
    }
    model = make_behavior(config, OBSERVATIONS, ACTIONS)
    assert type(model) is BEHAVIOR_MODELS["cvae"]
    assert [layer.out_features for layer in model.encoder[::2]] == [5, 4, 6]
    assert [layer.in_features for layer in model.decoder[::2]] == [OBSERVATIONS + 3, 5, 4]
    assert (model.latent_size, model.latent_clip, model.kl_weight) == (3, 0.25, 0.1)
    assert model.log_std_range == (-1.0, 2.0)


@pytest.mark.parametrize("name", sorted(BEHAVIOR_MODELS))
def test_models_have_their_own_widths_unless_others_are_given(name: str) -> None:
    kind = BEHAVIOR_MODELS[name]
    torch.manual_seed(1)
    expected = kind(OBSERVATIONS, ACTIONS)
    torch.manual_seed(1)
    made = make_behavior(BehaviorConfig(model=name), OBSERVATIONS, ACTIONS)  # type: ignore[arg-type]
    assert type(made) is kind
    assert same(weights(made), weights(expected))
    torch.manual_seed(1)
    narrow = make_behavior(BehaviorConfig(model=name, hidden_dims=(7,)), OBSERVATIONS, ACTIONS)  # type: ignore[arg-type]
    torch.manual_seed(1)
    assert same(weights(narrow), weights(kind(OBSERVATIONS, ACTIONS, (7,))))


# Sets of draws


@pytest.mark.parametrize("sets", [1, 2, 3])
def test_sets_are_drawn_one_after_the_other_and_one_has_no_dimension_of_its_own(sets: int) -> None:
    made: list[torch.Tensor] = []

    def draw() -> torch.Tensor:
        made.append(torch.full((4, 5, 2), float(len(made))))
        return made[-1]

    drawn = draw_sets(sets, draw)
    assert len(made) == sets
    assert drawn.shape == ((4, 5, 2) if sets == 1 else (sets, 4, 5, 2))
    assert torch.equal(drawn.reshape(sets, 4, 5, 2), torch.stack(made))


# Training


@pytest.mark.parametrize("name", sorted(BEHAVIOR_MODELS))
@pytest.mark.parametrize("lr", [None, 0.02])
def test_an_update_is_a_step_of_adam_down_the_models_loss_with_its_number(name: str, lr: float | None) -> None:
    one = learner(model=name, lr=lr)
    other = learner(model=name).model
    random = replay(one.generator)
    optimizer = Adam(other.parameters(), **(other.ADAM | ({"lr": lr} if lr else {})))
    for step in range(3):  # the CGAN's networks take turns
        batch = make_batch(seed=step)
        loss = other.loss(batch.observations, batch.actions, random, step)
        minimize(loss, optimizer)
        metrics = one.update(batch)
        assert metrics.keys() == {"loss_behavior"}
        assert torch.equal(metrics["loss_behavior"], loss.detach())
        assert not metrics["loss_behavior"].requires_grad
        assert same(weights(one.model), weights(other))
        assert one.updates == step + 1
    assert one.draws == 0


# Fresh actions


@pytest.mark.parametrize("sets", [1, 2])
def test_fresh_actions_are_the_models_draws_from_the_learners_generator(sets: int) -> None:
    made, states = learner(), make_batch(8).observations
    random = replay(made.generator)
    drawn = made.actions(states, torch.empty(0, dtype=torch.int64), N, sets)
    expected = draw_sets(sets, lambda: made.model.sample(states, N, random))
    assert drawn.shape == ((8, N, ACTIONS) if sets == 1 else (sets, 8, N, ACTIONS))
    assert torch.equal(drawn, expected)
    assert torch.equal(made.generator.get_state(), random.get_state())
    assert made.draws == 1
    if sets == 2:
        assert (drawn[0] - drawn[1]).abs().max() > 0.01


def test_without_a_cache_rows_of_the_data_have_fresh_actions_too() -> None:
    data, rows = make_dataset(), torch.tensor([4, 0, 31])
    made = learner(steps=2)
    made.keep_actions(data, N, CPU, None)  # which the config does not ask for
    assert made.cache is None
    random = replay(made.generator)
    states = states_of(data, rows)
    assert torch.equal(made.actions(states, rows, N), made.model.sample(states, N, random))


# Kept actions


def test_actions_are_kept_only_where_rows_are_given() -> None:
    data, rows = make_dataset(), torch.tensor([4, 0, 31])
    made, states = keeping(data), states_of(make_dataset(), torch.tensor([4, 0, 31]))
    fresh = made.actions(states, torch.empty(0, dtype=torch.int64), N)
    assert made.cache.actions is None  # nothing was asked of it
    before = made.generator.get_state()
    kept, again = made.actions(states, rows, N), made.actions(states, rows, N)
    assert torch.equal(made.generator.get_state(), before)
    assert torch.equal(kept, again)
    assert torch.equal(kept, made.cache.gather(rows))
    assert kept.shape == fresh.shape == (6, N, ACTIONS)
    assert (kept - fresh).abs().max() > 0.01
    assert made.draws == 3


def test_kept_actions_are_those_of_normalized_states() -> None:
    data, rows = make_dataset(), torch.arange(20)
    normalizer = Normalizer.of(data, CPU)
    made = learner(**KEPT, latent_clip=1e-6)  # an action tells the state it was drawn in
    made.keep_actions(data, N, CPU, normalizer)
    states = normalizer.apply(states_of(data, rows))
    torch.testing.assert_close(made.actions(states, rows, N), made.model.sample(states, N), atol=1e-3, rtol=0)


def test_kept_actions_are_drawn_anew_after_so_many_draws_with_or_without_rows() -> None:
    data, rows = make_dataset(), torch.tensor([4, 0, 31])
    made, states = keeping(data, refresh_every=4), states_of(make_dataset(), torch.tensor([4, 0, 31]))
    drawn = []
    for number in range(1, 10):
        if number == 2:
            made.actions(states, torch.empty(0, dtype=torch.int64), N)
        else:
            drawn.append(made.actions(states, rows, N))
            assert made.cache.edition == number // 4
    changed = [not torch.equal(one, other) for one, other in pairwise(drawn)]
    assert changed == [False, True, False, False, False, True, False]  # the draws 1, 3 | 4, 5, 6, 7 | 8, 9


def test_kept_actions_are_refused_where_they_take_more_memory_than_allowed() -> None:
    data = make_dataset()  # no successor is the next row's observation: 120 states
    size = 120 * N * ACTIONS * 2 / 1e6
    for allowed, kept in ((0.99 * size, False), (1.01 * size, True)):
        made = learner(**KEPT, cache_megabytes=allowed)
        made.keep_actions(data, N, CPU, None)
        assert (made.cache is not None) == kept


# State


def test_the_state_is_the_model_its_optimizer_and_the_counts() -> None:
    data = make_dataset()
    made = keeping(data)
    batch = Transitions(data, 12, CPU).sample(torch.Generator().manual_seed(0))
    made.update(batch)
    made.actions(torch.cat([batch.observations, batch.next_observations]), batch.rows, N)
    state = made.state_dict()
    assert {name.split(".")[0] for name in state} == {"model", "optimizer", "updates", "draws"}
    assert (state["updates"].item(), state["draws"].item()) == (1, 1)
    assert sum(name.startswith("optimizer.") for name in state) == 3 * len(list(made.model.parameters()))


def test_a_restored_learner_goes_on_to_the_bit_and_keeps_none_of_its_old_actions() -> None:
    data, rows = make_dataset(), torch.tensor([4, 0, 31])
    states = states_of(data, rows)
    straight, other = keeping(data, refresh_every=3), keeping(data, seed=9, refresh_every=3)
    for step in range(2):
        straight.update(make_batch(seed=step))
        straight.actions(states, rows, N)
        other.update(make_batch(seed=50 + step))
        other.actions(states, rows, N)
    old = other.cache.actions.clone()
    edition = straight.cache.edition
    assert other.cache.edition == edition  # so that only the restoring can tell that these are of other weights
    other.load_state_dict(straight.state_dict())
    assert other.cache.edition == -1
    other.generator.set_state(straight.generator.get_state())  # the algorithm's, which it saves itself
    for step in range(3):
        assert torch.equal(other.actions(states, rows, N), straight.actions(states, rows, N))
        assert not torch.equal(other.cache.actions, old)
        for each in (straight, other):
            each.update(make_batch(seed=100 + step))
    assert same(weights(straight.model), weights(other.model))
    assert (other.updates, other.draws) == (straight.updates, straight.draws) == (5, 5)


def test_a_state_of_another_model_is_refused() -> None:
    state = learner().state_dict()
    with pytest.raises(RuntimeError, match="size mismatch"):
        learner(hidden_dims=(8, 7)).load_state_dict(state)
    with pytest.raises(RuntimeError, match="Missing key"):
        learner(model="flow").load_state_dict(state)
