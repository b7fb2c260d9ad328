"""A causal transformer over (return-to-go, observation, action) tokens, and a policy that acts with it.

Tokens stand in the order R_1, s_1, a_1, R_2, s_2, a_2, ... Each is a linear map of its numbers plus a learned embedding
of its step's number within the episode; there are no positions within the window. A block is GPT-2's:

    x <- x + attention(norm(x)),   x <- x + mlp(norm(x)),   each token attending to itself and to those before it

What is predicted at s_t is a_t. Windows are padded behind their last step, where no token before can see it, so that
neither attention nor weights know of padding: only the loss does. A block with one head takes products of its weights
before tokens come in (`attend_folded`), which in training saves a fifth of all arithmetic.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from mildly.actors import Actor, Memory
from mildly.errors import MildlyError

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {"relu": partial(nn.ReLU, inplace=True), "gelu": nn.GELU}
Drop = Callable[[Tensor], Tensor]
"""Dropout of a tensor, or nothing."""
_INITIAL_STD = 0.02  # GPT-2's, of the blocks' weights
_OBSERVATION, _EVERY = 1, 3  # tokens: the observation is the second of each step's three


def keep(x: Tensor) -> Tensor:
    """No dropout."""
    return x


def dropout(share: float, generator: torch.Generator | None) -> Drop:
    """Dropout by draws of an explicit generator.

    A number is decided by 16 random bits, so that one draw of a generator serves four numbers: Bernoulli draws of
    their own would take a third of a step's time. The share is exact to 1/65536.
    """
    if not share:
        return keep
    dropped = round(share * 2**16)
    scale = 2**16 / (2**16 - dropped)

    def drop(x: Tensor) -> Tensor:
        size = x.numel()
        bits = torch.randint(-(2**63), 2**63 - 1, (-(-size // 4),), generator=generator, device=x.device)
        kept = torch.empty(size, dtype=x.dtype, device=x.device)
        torch.ge(bits.view(torch.int16)[:size], dropped - 2**15, out=kept)
        return x * kept.mul_(scale).view(x.shape)

    return drop


def causal(tokens: int, like: Tensor) -> Tensor:
    """What is added to attention scores, (tokens, tokens): 0 for tokens that are seen, minus infinity for others."""
    return torch.full((tokens, tokens), -math.inf, device=like.device, dtype=like.dtype).triu_(1)


class Block(nn.Module):
    """Attention and a network of one hidden layer, each on normalized tokens and added to them."""

    def __init__(self, width: int, heads: int, activation: str) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)  # queries, keys and values
        self.merge = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), ACTIVATIONS[activation](), nn.Linear(4 * width, width))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=_INITIAL_STD)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, drop: Drop = keep, asked: slice = slice(None)) -> Tensor:
        """What the block makes of tokens (batch, n, width), or of those among them alone that are asked for."""
        batch, tokens, width = x.shape
        normed, unseen = self.norm_attention(x), causal(tokens, x)[asked]
        if self.heads == 1 and batch * tokens > width:
            return self.add(x[:, asked], self.attend_folded(normed[:, asked], normed, unseen, drop), drop)
        weight, bias = self.attention.weight, self.attention.bias
        keys, values = nn.functional.linear(normed, weight[width:], bias[width:]).chunk(2, dim=-1)
        queries = nn.functional.linear(normed[:, asked], weight[:width], bias[:width])
        return self.add(x[:, asked], self.attend(queries, keys, values, unseen, drop), drop)

    def attend_folded(self, asking: Tensor, normed: Tensor, unseen: Tensor, drop: Drop) -> Tensor:
        """What `attend` gives with one head, in half the products: normalized tokens n are keys and values themselves.

        With W_q, W_k, W_v and W_m the weights of queries, keys, values and of the merging, and P those of attention:

            scores   (n_i W_q' + b_q) (n_j W_k' + b_k)'  =  (n_i (W_q' W_k) + b_q W_k) n_j' + what does not depend on j
            merged   P (n W_v' + b_v) W_m' + b_m  =  (P n) (W_m W_v)' + (P 1) (W_m b_v)' + b_m

        A softmax over j does not see the former's last term. Products of weights cost as much as `width` tokens do, so
        that this is for more tokens than that.
        """
        width = normed.shape[-1]
        of_queries, of_keys, of_values = self.attention.weight.chunk(3)
        bias, merge = self.attention.bias, self.merge
        queries = torch.addmm(bias[:width] @ of_keys, asking.flatten(0, 1), of_queries.t() @ of_keys).view_as(asking)
        scores = torch.baddbmm(unseen, queries, normed.transpose(1, 2), alpha=1 / math.sqrt(width))
        shares = drop(scores.softmax(dim=-1))  # (batch, asked, n)
        seen = torch.bmm(shares, normed).flatten(0, 1)
        merged = torch.addmm(merge.bias, seen, (merge.weight @ of_values).t())
        offset = merge.weight @ bias[2 * width :]
        return torch.addcmul(merged, shares.sum(-1).view(-1, 1), offset).view_as(asking)

    def attend(self, queries: Tensor, keys: Tensor, values: Tensor, unseen: Tensor, drop: Drop) -> Tensor:
        """What tokens with these queries take from keys and values, of which `unseen` hides a part."""
        batch, tokens, width = queries.shape
        split = [self._split(part) for part in (queries, keys, values)]
        unseen = unseen.expand(batch, tokens, -1).repeat_interleave(self.heads, 0) if self.heads > 1 else unseen
        scores = torch.baddbmm(unseen, split[0], split[1].transpose(1, 2), alpha=math.sqrt(self.heads / width))
        merged = torch.bmm(drop(scores.softmax(dim=-1)), split[2])  # (batch * heads, tokens, width / heads)
        if self.heads > 1:
            merged = merged.view(batch, self.heads, tokens, -1).transpose(1, 2).reshape(queries.shape)
        attended: Tensor = self.merge(merged)
        return attended

    def add(self, x: Tensor, attended: Tensor, drop: Drop) -> Tensor:
        """Tokens with what they took from others, and what the network then makes of them."""
        x = x + drop(attended)
        made = self.mlp(self.norm_mlp(x).flatten(0, 1))  # in rows: a ReLU in place of a view would copy its gradient
        return x + drop(made.view_as(x))

    def _split(self, x: Tensor) -> Tensor:
        """The heads' parts as rows of their own, (batch * heads, n, width / heads)."""
        if self.heads == 1:
            return x
        batch, tokens, _ = x.shape
        return x.view(batch, tokens, self.heads, -1).transpose(1, 2).reshape(batch * self.heads, tokens, -1)


class DecisionTransformerActor(Actor):
    """pi(s | what was before, return to aim at): the transformer, its embeddings, and tanh of a linear map of s_t."""

    kind: ClassVar[str] = "decision-transformer"

    def __init__(
        self,
        observation_size: int,
        action_size: int,
        width: int = 128,
        layers: int = 3,
        heads: int = 1,
        context: int = 20,
        max_timesteps: int = 1000,
        activation: str = "relu",
        return_scale: float = 1.0,
        target_return: float = 0.0,
    ) -> None:
        if activation not in ACTIVATIONS or min(width, layers, heads, context, max_timesteps) < 1 or width % heads:
            raise ValueError(f"no transformer of width {width}, {layers} layers, {heads} heads and '{activation}'")
        if context > max_timesteps:
            raise ValueError(f"a context of {context} steps, but {max_timesteps} timesteps")
        super().__init__(
            observation_size,
            action_size,
            width=width,
            layers=layers,
            heads=heads,
            context=context,
            max_timesteps=max_timesteps,
            activation=activation,
            return_scale=return_scale,
            target_return=target_return,
        )
        self.context, self.max_timesteps = context, max_timesteps
        self.embed_return = nn.Linear(1, width)
        self.embed_observation = nn.Linear(observation_size, width)
        self.embed_action = nn.Linear(action_size, width)
        self.embed_timestep = nn.Embedding(max_timesteps, width)
        self.norm_tokens = nn.LayerNorm(width)
        self.blocks = nn.ModuleList(Block(width, heads, activation) for _ in range(layers))
        self.norm_out = nn.LayerNorm(width)
        self.head = nn.Linear(width, action_size)

    def aim(self, target_return: float, return_scale: float) -> None:
        """Set the return that episodes aim at unless told otherwise, and what returns are divided by."""
        self.spec |= {"target_return": target_return, "return_scale": return_scale}

    def forward(
        self, observations: Tensor, actions: Tensor, returns_to_go: Tensor, timesteps: Tensor, drop: Drop = keep
    ) -> Tensor:
        """The action predicted at every step of some windows, (batch, length, a), from what is known before it."""
        x = self.tokens(returns_to_go, observations, actions, timesteps).flatten(1, 2)[:, :-1]  # nobody sees the last
        x = self.through_blocks(drop(x), drop, slice(_OBSERVATION, None, _EVERY))
        return self.predict(x)

    def tokens(self, returns_to_go: Tensor, observations: Tensor, actions: Tensor, timesteps: Tensor) -> Tensor:
        """R, s and a of every step, (batch, length, 3, width)."""
        parts = self.embed_returns(returns_to_go), self.embed_observation(observations), self.embed_action(actions)
        return self.placed(torch.stack(parts, dim=-2), timesteps.unsqueeze(-1))

    def embed_returns(self, returns_to_go: Tensor) -> Tensor:
        """Returns in the environment's units, scaled and embedded."""
        embedded: Tensor = self.embed_return(returns_to_go.unsqueeze(-1) / self.spec["return_scale"])
        return embedded

    def placed(self, embedded: Tensor, timesteps: Tensor) -> Tensor:
        """Embedded numbers as tokens of their timesteps; the last one known stands for all later ones."""
        times = self.embed_timestep(timesteps.clamp(0, self.max_timesteps - 1))
        normed: Tensor = self.norm_tokens(embedded + times)
        return normed

    def through_blocks(self, x: Tensor, drop: Drop, asked: slice) -> Tensor:
        """Tokens after all blocks, those alone that are asked for: the last block need not compute the others."""
        *blocks, last = self.blocks
        for block in blocks:
            x = block(x, drop)
        asked_for: Tensor = last(x, drop, asked)
        return asked_for

    def predict(self, x: Tensor) -> Tensor:
        """Actions from what became of observation tokens."""
        return torch.tanh(self.head(self.norm_out(x)))

    def start(self, episodes: int, target_return: float | None = None, **conditions: float) -> Memory:
        """Episodes that aim at a return in the environment's units, by default at that of the spec."""
        super().start(episodes, **conditions)  # refuses others
        target = self.spec["target_return"] if target_return is None else target_return
        if not math.isfinite(target):
            raise MildlyError(f"target_return must be a finite number, got {target}.")
        return Windowed(self, episodes, target)


class Windowed(Memory):
    """The last K steps of n episodes side by side, each with its return to go.

    A step's tokens are kept as (a_{t-1}, R_t, s_t), in the order in which they become known. While the window fills,
    every block keeps the keys and values of its tokens, and a step computes its own three tokens only. Once the window
    is full, its oldest step leaves. Then all tokens of the upper blocks change, since they had attended to it, and the
    window is computed again from its kept tokens: what is acted on is always that of the whole window.
    """

    def __init__(self, actor: DecisionTransformerActor, episodes: int, target: float) -> None:
        self.actor, self.target = actor, target
        like, slots, spec = actor.head.weight, _EVERY * actor.context, actor.spec
        self.window = like.new_zeros(episodes, slots, spec["width"])
        """Tokens; the first of a window, an action before its first step, is no part of it."""
        self.kept = like.new_zeros(spec["layers"], 2, episodes, slots, spec["width"])
        """Keys and values, as long as the window is not full."""
        self.steps = torch.zeros(episodes, dtype=torch.int64)
        self.to_go = like.new_full((episodes,), target)
        self.last_actions = like.new_zeros(episodes, spec["action_size"])

    def act(
        self, observations: Tensor, rows: Sequence[int], deterministic: bool, generator: torch.Generator | None
    ) -> Tensor:
        """The actions predicted for the newest observations; there is nothing to draw."""
        here = torch.as_tensor(list(rows))
        steps = self.steps[here]
        new = self._new_tokens(observations, here, steps)
        growing = steps < self.actor.context
        x = torch.empty_like(new[:, 0])
        if growing.any():
            x[growing] = self._extend(here[growing], steps[growing], new[growing])
        if not growing.all():
            x[~growing] = self._slide(here[~growing], new[~growing])
        actions = self.actor.predict(x)
        self.last_actions[here] = actions
        self.steps[here] += 1
        return actions

    def observe(self, rewards: Tensor, rows: Sequence[int]) -> None:
        """What has been earned is no longer to go."""
        self.to_go[list(rows)] -= rewards

    def reset(self, rows: Sequence[int]) -> None:
        """Empty windows; what they held is overwritten before it is read."""
        here = list(rows)
        self.steps[here], self.to_go[here], self.last_actions[here] = 0, self.target, 0.0

    def _new_tokens(self, observations: Tensor, here: Tensor, steps: Tensor) -> Tensor:
        """The tokens a_{t-1}, R_t and s_t, (rows, 3, width)."""
        actor = self.actor
        returns, actions = actor.embed_returns(self.to_go[here]), actor.embed_action(self.last_actions[here])
        parts = torch.stack([actions, returns, actor.embed_observation(observations)], dim=1)
        return actor.placed(parts, torch.stack([steps - 1, steps, steps], dim=1).to(parts.device))

    def _extend(self, here: Tensor, steps: Tensor, new: Tensor) -> Tensor:
        """Three more tokens in windows that are not full, by the keys and values of those before them."""
        slots = _EVERY * steps.unsqueeze(1) + torch.arange(_EVERY)  # (rows, 3)
        self.window[here.unsqueeze(1), slots] = new
        length = int(slots.max()) + 1
        seen = torch.arange(length) <= slots.unsqueeze(-1)
        seen[..., 0] &= slots == 0  # there is no action before the first step
        unseen = torch.zeros(seen.shape).masked_fill_(~seen, -math.inf).to(new)
        x = new
        for block, kept in zip(self.actor.blocks, self.kept, strict=True):
            assert isinstance(block, Block)
            queries, *of_new = block.attention(block.norm_attention(x)).chunk(3, dim=-1)
            for part, own in zip(kept, of_new, strict=True):
                part[here.unsqueeze(1), slots] = own
            keys, values = kept[:, here, :length]
            x = block.add(x, block.attend(queries, keys, values, unseen, keep), keep)
        return x[:, -1]

    def _slide(self, here: Tensor, new: Tensor) -> Tensor:
        """Full windows without their oldest step and with a new one."""
        self.window[here] = torch.cat([self.window[here, _EVERY:], new], dim=1)
        return self.actor.through_blocks(self.window[here, 1:], keep, slice(-1, None))[:, 0]
