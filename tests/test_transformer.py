"""The transformer beside a slow one of loops, and acting step by step beside acting on whole windows."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from mildly.errors import MildlyError
from mildly.transformer import Block, DecisionTransformerActor, Windowed, causal, dropout, keep

OBSERVATION, ACTION = 3, 2


def actor_of(seed: int = 0, **fields: object) -> DecisionTransformerActor:
    """A small transformer all of whose weights matter: none is near 0 or 1."""
    shape: dict[str, object] = {"width": 8, "layers": 3, "heads": 1, "context": 4, "max_timesteps": 12}
    torch.manual_seed(seed)
    actor = DecisionTransformerActor(
        OBSERVATION, ACTION, **{**shape, "return_scale": 50.0, "target_return": 70.0, **fields}
    )  # type: ignore[arg-type]
    for parameter in actor.parameters():
        parameter.data.add_(0.4 * torch.randn(parameter.shape))
    return actor.requires_grad_(False)


def windows(batch: int, length: int, seed: int = 1) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Observations, actions, returns to go, timesteps."""
    random = torch.Generator().manual_seed(seed)
    observations = torch.randn(batch, length, OBSERVATION, generator=random)
    actions = torch.rand(batch, length, ACTION, generator=random) * 2 - 1
    to_go = 50 * torch.randn(batch, length, generator=random)
    return observations, actions, to_go, torch.arange(length).expand(batch, length) + 2


# A slow transformer: one window, one token, one head at a time, in double precision.


def slow_norm(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    scaled = (x - x.mean()) / np.sqrt(((x - x.mean()) ** 2).mean() + 1e-5)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def slow_linear(x: np.ndarray, weights: dict[str, np.ndarray], name: str) -> np.ndarray:
    return np.array([row @ x for row in weights[f"{name}.weight"]]) + weights[f"{name}.bias"]


def slow_relu(x: float) -> float:
    return max(x, 0.0)


def slow_gelu(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def slow_attention(x: list[np.ndarray], weights: dict[str, np.ndarray], name: str, heads: int) -> list[np.ndarray]:
    normed = [slow_norm(token, weights, f"{name}.norm_attention") for token in x]
    width = len(x[0])
    made_of = [slow_linear(token, weights, f"{name}.attention") for token in normed]
    queries, keys, values = ([one[i * width : (i + 1) * width] for one in made_of] for i in range(3))
    size = width // heads
    made = []
    for i, query in enumerate(queries):
        joined = np.zeros(width)
        for head in range(heads):
            part = slice(head * size, (head + 1) * size)
            scores = [query[part] @ keys[j][part] / math.sqrt(size) for j in range(i + 1)]  # itself and before
            shares = np.exp(np.array(scores) - max(scores))
            shares /= shares.sum()
            joined[part] = sum(share * values[j][part] for j, share in enumerate(shares))
        made.append(x[i] + slow_linear(joined, weights, f"{name}.merge"))
    return made


def slow_actions(
    actor: DecisionTransformerActor, window: list[np.ndarray], activation: Callable[[float], float]
) -> list:
    """What is predicted at every step of one window: observations, actions, returns to go, timesteps."""
    weights = {name: tensor.double().numpy() for name, tensor in actor.state_dict().items()}
    x = []
    for observation, action, to_go, step in zip(*window, strict=True):
        time = weights["embed_timestep.weight"][int(step)]
        scaled = np.array([to_go / actor.spec["return_scale"]])
        for name, numbers in (("return", scaled), ("observation", observation), ("action", action)):
            x.append(slow_norm(slow_linear(numbers, weights, f"embed_{name}") + time, weights, "norm_tokens"))
    for layer in range(actor.spec["layers"]):
        name = f"blocks.{layer}"
        x = slow_attention(x, weights, name, actor.spec["heads"])
        for i, token in enumerate(x):
            hidden = slow_linear(slow_norm(token, weights, f"{name}.norm_mlp"), weights, f"{name}.mlp.0")
            x[i] = token + slow_linear(np.array([activation(h) for h in hidden]), weights, f"{name}.mlp.2")
    return [np.tanh(slow_linear(slow_norm(x[i], weights, "norm_out"), weights, "head")) for i in range(1, len(x), 3)]


@pytest.mark.parametrize(("heads", "layers", "activation"), [(1, 3, "relu"), (2, 2, "gelu"), (4, 1, "relu")])
def test_the_transformer_is_that_of_slow_loops(heads: int, layers: int, activation: str) -> None:
    actor = actor_of(heads=heads, layers=layers, activation=activation)
    given = windows(3, 4)
    got = actor(*given)
    for i in range(3):
        one = [column[i].double().numpy() for column in given]
        slow = slow_actions(actor, one, slow_relu if activation == "relu" else slow_gelu)
        np.testing.assert_allclose(got[i].numpy(), slow, atol=2e-6)


# One head, folded


def block_of(width: int) -> Block:
    """A block of one head in double precision, all of whose weights matter."""
    torch.manual_seed(5)
    block = Block(width, 1, "relu").double()
    for parameter in block.parameters():
        parameter.data.add_(0.3 * torch.randn(parameter.shape))
    return block


def test_folded_attention_by_hand() -> None:
    """Tokens 1 and 2: queries are 1, keys n ln 3 + 4, values 5 n + 6, so that token 2 weighs them 1 : 3."""
    block = Block(1, 1, "relu").requires_grad_(False)
    block.attention.weight.copy_(torch.tensor([[0.0], [math.log(3)], [5.0]]))
    block.attention.bias.copy_(torch.tensor([1.0, 4.0, 6.0]))
    block.merge.weight.fill_(7.0)
    block.merge.bias.fill_(8.0)
    tokens = torch.tensor([[[1.0], [2.0]]])
    attended = block.attend_folded(tokens, tokens, causal(2, tokens), keep)
    assert attended.flatten().tolist() == pytest.approx([7 * 11 + 8, 7 * (0.25 * 11 + 0.75 * 16) + 8])
    halved = block.attend_folded(tokens, tokens, causal(2, tokens), lambda x: 0.5 * x)  # shares add up to 1/2
    assert halved.flatten().tolist() == pytest.approx([7 * 5.5 + 8, 7 * 0.5 * (0.25 * 11 + 0.75 * 16) + 8])


@pytest.mark.parametrize("asked", [slice(None), slice(1, None, 3)])
@pytest.mark.parametrize("share", [0.0, 0.3])
def test_folded_attention_and_its_gradients_are_those_of_queries_keys_and_values(asked: slice, share: float) -> None:
    block, x = block_of(6), torch.randn(4, 8, 6, dtype=torch.float64, requires_grad=True)

    def plain(drop: Callable[[Tensor], Tensor]) -> Tensor:
        normed = block.norm_attention(x)
        queries, keys, values = block.attention(normed).chunk(3, dim=-1)
        attended = block.attend(queries[:, asked], keys, values, causal(8, x)[asked], drop)
        return block.add(x[:, asked], attended, drop)

    of = [x, *block.parameters()]
    ways: list[Callable[..., Tensor]] = [plain, lambda drop: block(x, drop, asked)]
    outs = [way(dropout(share, torch.Generator().manual_seed(2))) for way in ways]
    torch.testing.assert_close(*outs, rtol=0, atol=1e-12)
    slow, fast = (torch.autograd.grad(out.square().sum(), of) for out in outs)
    for ours, theirs in zip(fast, slow, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-11 * max(1.0, float(theirs.abs().max())))


@pytest.mark.parametrize(("heads", "attention"), [(1, 2), (2, 4)])
def test_what_a_window_costs(heads: int, attention: int) -> None:
    """A token takes 8 products of the width squared in the network, 2 or 4 in attention; the last block has few."""
    batch, steps, width = 3, 4, 8
    actor, tokens = actor_of(heads=heads, layers=2), 3 * steps - 1
    with FlopCounterMode(display=False) as counted:
        actor(*windows(batch, steps))
    embedded = steps * width * (1 + OBSERVATION + ACTION) + steps * width * ACTION  # with the head
    first = tokens * (8 + attention) * width**2 + 2 * tokens * tokens * width
    of_keys = 0 if heads == 1 else tokens * 2 * width**2  # of which the last block needs all
    last = of_keys + steps * (8 + 2) * width**2 + 2 * steps * tokens * width
    folded = 2 * 2 * width**3 if heads == 1 else 0  # of weights, once for all windows
    offsets = 4 * width**2  # of which torch does not count all
    assert counted.get_total_flops() == pytest.approx(2 * (batch * (embedded + first + last) + folded), abs=2 * offsets)


def test_one_episode_acts_without_folding_since_its_tokens_are_fewer_than_the_width() -> None:
    actor = actor_of(width=16)
    with FlopCounterMode(display=False) as counted:
        actor(*windows(1, 4))  # 11 tokens
    tokens, steps, width = 11, 4, 16
    plain = 2 * tokens * 12 * width**2 + tokens * 2 * width**2 + steps * 10 * width**2
    attention = 2 * (2 * tokens * tokens + steps * tokens) * width
    small = steps * width * (1 + OBSERVATION + ACTION) + steps * width * ACTION
    assert counted.get_total_flops() == 2 * (plain + attention + small)


# Who sees whom


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("step", range(4))
def test_an_action_is_seen_after_its_step_and_return_and_observation_from_it_on(heads: int, step: int) -> None:
    actor, (observations, actions, to_go, times) = actor_of(heads=heads), windows(2, 4)
    given = {"observations": observations, "actions": actions, "returns_to_go": to_go}
    base = actor(**given, timesteps=times)

    def changed(name: str) -> list[bool]:
        column = given[name].clone()
        column[:, step] += 1.5
        return (actor(**{**given, name: column}, timesteps=times) != base).any(dim=-1).any(dim=0).tolist()

    assert changed("observations") == [i >= step for i in range(4)]
    assert changed("actions") == [i > step for i in range(4)]
    assert changed("returns_to_go") == [i >= step for i in range(4)]


def test_what_stands_behind_the_end_of_an_episode_changes_nothing_before_it() -> None:
    actor, given = actor_of(), windows(2, 4)
    short = actor(*(column[:, :2] for column in given))
    torch.testing.assert_close(actor(*given)[:, :2], short, rtol=0, atol=1e-6)
    padded = [column.clone() for column in given]
    for column in padded:
        column[:, 2:] = 0
    assert torch.equal(actor(*padded)[:, :2], actor(*given)[:, :2])


def test_timesteps_beyond_the_last_known_one_are_the_last() -> None:
    actor, (observations, actions, to_go, times) = actor_of(), windows(2, 4)
    late, last = actor(observations, actions, to_go, times + 500), actor(observations, actions, to_go, times * 0 + 11)
    assert torch.equal(late, last)
    assert not torch.equal(late, actor(observations, actions, to_go, times))


# Dropout


def test_dropout_keeps_the_mean_and_uses_the_generator_s_numbers_alone() -> None:
    own, x = torch.get_rng_state(), torch.ones(400, 501)
    drop = dropout(0.1, torch.Generator().manual_seed(3))
    one, other = drop(x), drop(x)
    assert torch.equal(torch.get_rng_state(), own)
    assert torch.equal(one, dropout(0.1, torch.Generator().manual_seed(3))(x))
    assert not torch.equal(one, other)
    assert one.unique().tolist() == pytest.approx([0.0, 1 / 0.9], rel=1e-4)
    for axis in (0, 1):  # no row and no column is favored, nor one of the four places in a draw
        assert (one == 0).float().mean(dim=axis).sub(0.1).abs().max() < 0.1
    for place in range(4):
        assert (one.flatten()[place::4] == 0).float().mean().item() == pytest.approx(0.1, abs=0.007)
    assert one.mean().item() == pytest.approx(1.0, abs=0.005)
    assert dropout(0.0, None) is keep


def test_gradients_pass_where_dropout_lets_numbers_pass() -> None:
    x = torch.ones(6, 7, requires_grad=True)
    out = dropout(0.5, torch.Generator().manual_seed(0))(x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, out.detach())


def test_dropout_reaches_embeddings_attention_and_what_blocks_add() -> None:
    actor, given, shapes = actor_of(heads=2), windows(2, 4), []

    def drop(x: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return x

    assert torch.equal(actor(*given, drop), actor(*given))
    block = [(4, 11, 11), (2, 11, 8), (2, 11, 8)]
    assert shapes == [(2, 11, 8), *block, *block, (4, 4, 11), (2, 4, 8), (2, 4, 8)]


# Acting


class Whole:
    """Acting by definition: each time the whole of the last K steps through the transformer, episode by episode."""

    def __init__(self, actor: DecisionTransformerActor, episodes: int, target: float) -> None:
        self.actor, self.target = actor, target
        self.episodes: list[list[tuple[Tensor, Tensor, float]]] = [[] for _ in range(episodes)]
        self.to_go = [target] * episodes

    def act(self, observations: Tensor, rows: list[int]) -> Tensor:
        made = []
        for row, observation in zip(rows, observations, strict=True):
            past = self.episodes[row]
            past.append((observation, torch.zeros(ACTION), self.to_go[row]))
            window, first = past[-self.actor.context :], max(len(past) - self.actor.context, 0)
            columns = [torch.stack([step[i] for step in window])[None] for i in range(2)]  # type: ignore[misc]
            to_go = torch.tensor([[step[2] for step in window]])
            action = self.actor(*columns, to_go, torch.arange(first, len(past))[None])[0, -1]
            past[-1] = (observation, action, self.to_go[row])
            made.append(action)
        return torch.stack(made)

    def observe(self, rewards: Tensor, rows: list[int]) -> None:
        for row, reward in zip(rows, rewards.tolist(), strict=True):
            self.to_go[row] -= reward

    def reset(self, rows: list[int]) -> None:
        for row in rows:
            self.episodes[row], self.to_go[row] = [], self.target


@pytest.mark.parametrize(
    "fields",
    [{}, {"heads": 2}, {"context": 1}, {"layers": 1, "context": 7}, {"activation": "gelu", "width": 16, "layers": 4}],
)
@torch.inference_mode()
def test_acting_step_by_step_equals_acting_on_whole_windows(fields: dict[str, object]) -> None:
    """Episodes of different lengths side by side, some of which pause, end, and begin again."""
    actor, random = actor_of(**fields), np.random.default_rng(0)
    kept, whole = actor.start(4, target_return=90.0), Whole(actor, 4, 90.0)
    largest = torch.zeros(())
    for step in range(40):
        rows = [[0, 1, 2, 3], [2], [3, 0], [0, 1, 3], [1, 2]][random.integers(5)]
        if step in (9, 23):
            for memory in (kept, whole):
                memory.reset([1, 3])
        observations = torch.tensor(random.normal(size=(len(rows), OBSERVATION)), dtype=torch.float32)
        ours, right = kept.act(observations, rows, True, None), whole.act(observations, rows)
        largest = torch.maximum(largest, (ours - right).abs().max())
        rewards = torch.tensor(random.normal(size=len(rows)) * 10, dtype=torch.float32)
        for memory in (kept, whole):
            memory.observe(rewards, rows)
    assert max(len(past) for past in whole.episodes) > actor.max_timesteps > actor.context
    assert largest < 1e-5


@torch.inference_mode()
def test_while_the_window_fills_a_step_computes_its_own_three_tokens_only() -> None:
    actor = actor_of()
    seen: list[int] = []
    for block in actor.blocks:
        block.norm_mlp.register_forward_hook(lambda _module, given, _out: seen.append(given[0].shape[1]))
    memory = actor.start(2)
    for step in range(6):
        seen.clear()
        memory.act(torch.randn(2, OBSERVATION), [0, 1], True, None)
        assert seen == ([3, 3, 3] if step < actor.context else [11, 11, 1])


@torch.inference_mode()
def test_rewards_lower_the_return_to_go_and_the_network_sees_it_scaled() -> None:
    actor = actor_of()
    memory = actor.start(2, target_return=80.0)
    assert isinstance(memory, Windowed)
    memory.act(torch.zeros(2, OBSERVATION), [0, 1], True, None)
    memory.observe(torch.tensor([30.0]), [1])
    assert memory.to_go.tolist() == [80.0, 50.0]
    seen = []
    actor.embed_return.register_forward_hook(lambda _module, given, _out: seen.append(given[0].flatten().tolist()))
    memory.act(torch.zeros(2, OBSERVATION), [0, 1], True, None)
    assert seen == [pytest.approx([80.0 / 50.0, 50.0 / 50.0])]
    memory.reset([1])
    assert memory.to_go.tolist() == [80.0, 80.0]


def test_episodes_aim_at_the_policy_s_own_target_unless_they_are_told_another() -> None:
    actor = actor_of()
    starts = [actor.start(1), actor.start(1, target_return=70.0), actor.start(1, target_return=-5.0)]
    one, same, other = (memory.act(torch.ones(1, OBSERVATION), [0], True, None) for memory in starts)
    assert torch.equal(one, same)
    assert not torch.equal(one, other)
    with pytest.raises(MildlyError, match="target_return must be a finite number, got nan"):
        actor.start(1, target_return=math.nan)
    with pytest.raises(MildlyError, match="knows no speed"):
        actor.start(1, speed=3.0)


@pytest.mark.parametrize(
    "fields", [{"heads": 3}, {"layers": 0}, {"activation": "tanh"}, {"context": 13}, {"width": 0}, {"context": -1}]
)
def test_a_transformer_that_cannot_be_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"no transformer of|a context of"):
        actor_of(**fields)
