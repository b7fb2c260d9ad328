"""Policies as arrays (..., S, A) of probabilities: behavior policies with a given support, greedy ones, distances.

The support of a behavior policy mu is where mu(a|s) > 0: the actions that the data show in that state. Everything
else is out of distribution, OOD for short.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from mildly.errors import MildlyError, unknown_name
from mildly.theory.mdp import Array, Bools, TabularMDP, distribution, expect_shape, first, stream

Ties = Literal["first", "support", "outside"]


def policy_for(mdp: TabularMDP, policy: ArrayLike, name: str = "policy") -> Array:
    """A policy checked against a process; an error names the state whose probabilities are wrong."""
    return distribution(name, expect_shape(name, policy, mdp.shape), ("state",), "action")


def support_of(mu: ArrayLike) -> Bools:
    """Where mu(a|s) > 0; every state must have such an action."""
    return _nonempty(np.asarray(mu) > 0)


def support_for(mdp: TabularMDP, support: ArrayLike) -> Bools:
    """A support given as true and false, checked against a process."""
    given = np.asarray(support)
    if given.dtype != np.bool_:
        raise MildlyError(f"support: must be true and false, not {given.dtype}; support_of(mu) makes one.")
    if given.shape != mdp.shape:
        raise MildlyError(f"support: shape {given.shape} does not agree with the process, which asks for {mdp.shape}.")
    return _nonempty(given)


def _nonempty(support: Bools) -> Bools:
    empty = np.asarray(~support.any(axis=-1))
    if empty.any():
        raise MildlyError(f"support: {first(empty, ('state',))[1]} has no action; the data must show at least one.")
    return support


def uniform_policy(support: Bools) -> Array:
    """Every action of the support alike."""
    return np.asarray(_nonempty(support) / support.sum(axis=-1, keepdims=True))


def random_support(shape: tuple[int, ...], *, seed: int | np.random.Generator = 0, share: float = 0.5) -> Bools:
    """Each action is in the support with probability `share`; at least one is, and, of several, one is not."""
    rng = stream(seed, "support")
    support = rng.random(shape) < share
    order = rng.permuted(np.broadcast_to(np.arange(shape[-1]), shape), axis=-1)
    np.put_along_axis(support, order[..., :1], True, axis=-1)
    if shape[-1] > 1:
        np.put_along_axis(support, order[..., 1:2], False, axis=-1)
    return np.asarray(support)


def random_policy(support: Bools, *, seed: int | np.random.Generator = 0) -> Array:
    """Probabilities drawn uniformly from all distributions with this support."""
    weights = stream(seed, "policy").exponential(size=support.shape) + 1e-6
    weights = np.where(_nonempty(support), weights, 0.0)
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def tilted_policy(policy: Array, scores: Array, strength: ArrayLike = 1.0) -> Array:
    """policy(a|s) exp(strength * scores(s, a)), normalized: the same support, leaning towards high scores."""
    exponent = np.asarray(strength)[..., None, None] * scores
    weights = policy * np.exp(exponent - exponent.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def leaking_policy(mu: Array, leak: ArrayLike, *, seed: int | np.random.Generator = 0) -> Array:
    """A model of mu that errs: (1 - leak) mu + leak * a random policy outside mu's support.

    Its total variation from mu is `leak`, in states where every action is in the support 0.
    """
    outside = mu == 0
    weights = np.where(outside, stream(seed, "leak").exponential(size=mu.shape) + 1e-6, 0.0)
    total = weights.sum(axis=-1, keepdims=True)
    share = np.where(total > 0, np.asarray(leak)[..., None, None], 0.0)
    return np.asarray((1 - share) * mu + share * weights / np.where(total > 0, total, 1.0))


def total_variation(p: Array, q: Array) -> Array:
    """D_TV(p(.|s), q(.|s)) = 1/2 sum_a |p(a|s) - q(a|s)| for every state."""
    return np.asarray(0.5 * np.abs(p - q).sum(axis=-1))


def kl_divergence(p: Array, q: Array) -> Array:
    """KL(p(.|s), q(.|s)) = sum_a p log(p / q) for every state; infinite where p has an action that q lacks."""
    both = (p > 0) & (q > 0)
    terms = np.where(both, p * np.log(np.where(both, p, 1.0) / np.where(both, q, 1.0)), 0.0)
    lacking = ((p > 0) & (q == 0)).any(axis=-1)
    return np.asarray(np.where(lacking, np.inf, np.maximum(terms.sum(axis=-1), 0.0)))


def greedy_policy(q: Array, support: Bools | None = None, *, ties: Ties = "first", within: float = 0.0) -> Array:
    """The policy that always takes the best action, argmax_a Q(s, a) over all of A.

    Actions whose values are within `within` of the best (0: equal to the bit) are tied. Of tied actions it takes the
    one with the lowest number: of all (`first`), of those in the support if there are any (`support`), or of those
    outside it if there are any (`outside`, the most adversarial choice). The last two need `support`.
    """
    if ties not in ("first", "support", "outside"):
        raise unknown_name("tie rule", ties, ("first", "support", "outside"))
    best = q >= q.max(axis=-1, keepdims=True) - within
    if ties != "first":
        if support is None:
            raise MildlyError(f"the tie rule '{ties}' needs the support.")
        wanted = best & (support if ties == "support" else ~support)
        best = np.where(wanted.any(axis=-1, keepdims=True), wanted, best)
    return one_hot(best.argmax(axis=-1), q.shape[-1])


def one_hot(chosen: ArrayLike, actions: int) -> Array:
    """The deterministic policy that takes `chosen[s]` in state s."""
    return np.asarray(np.eye(actions)[np.asarray(chosen)])
