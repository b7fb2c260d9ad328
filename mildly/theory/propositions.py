"""The paper's five propositions as functions: a process (or a batch) and a behavior policy in, a `Verdict` out.

Each says what the paper prints and, where that is loose or false, what is true instead. A statement about all Q
functions is tried on random ones and on the worst ones we know; the corrected statements have short proofs, given in
the docstrings, so that the numbers confirm rather than replace them. ||.|| is the sup norm over S x A, ||.||_supp that
over the support of mu alone, M = r_max / (1 - gamma).
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from mildly.errors import MildlyError
from mildly.theory.evaluation import batch_optimal_q, policy_value
from mildly.theory.fixed_points import fine_tolerance, fixed_point
from mildly.theory.mdp import Array, Bools, TabularMDP, first, stream
from mildly.theory.operator import MCB, Operator, PracticalMCB, expected_max, support_max, t2
from mildly.theory.policies import (
    greedy_policy,
    kl_divergence,
    policy_for,
    support_of,
    tilted_policy,
    total_variation,
)
from mildly.theory.verdict import Claim, Verdict, claim

_STEPS = 12
"""Applications along which the rate of convergence is checked."""


def proposition_1(mdp: TabularMDP, mu: ArrayLike, *, delta: ArrayLike = 1e-3, seed: int = 0) -> Verdict:
    """Printed: in the support region T_MCB is a gamma-contraction in the sup norm, with a unique fixed point.

    With the norm over the support on both sides, which is how `printed` is read here and in Proposition 4, this fails
    for arbitrary Q, since T2's maximum reads the values outside. Corrected: it is a gamma-contraction over all of
    S x A, which is more. Proof: |max Q1 - max Q2| <= ||Q1 - Q2|| on the support; outside, T1 copies a maximum of such
    values. After one application values outside are tied to those inside, and then it contracts over the support alone
    as well. Convergence to a unique fixed point follows, as printed.
    """
    support = support_of(policy_for(mdp, mu, "mu"))
    operator = MCB(mdp, support, delta)
    pairs = _pairs(mdp, support, seed)
    applied = [(operator(q1), operator(q2)) for q1, q2 in pairs]
    slack = _slack(mdp, delta)
    limit = fixed_point(operator, tolerance=slack / 5, extrapolate=True).q
    once = "||T Q1 - T Q2||_supp <= gamma ||Q1 - Q2||_supp for Q1, Q2 to which T was applied before"
    return Verdict(
        1,
        "T_MCB is a contraction",
        (
            *_contraction(operator, pairs, support, "T"),
            claim("contraction, later", "corrected", once, _shrinks(operator, applied, support), mdp, _RATIO_SLACK),
            _convergence(operator, pairs[0][0], limit, slack),
        ),
        note="Read over S x A the statement is true and stronger; over the support alone it needs one application.",
    )


def proposition_2(mdp: TabularMDP, mu: ArrayLike, *, delta: ArrayLike = 1e-3) -> Verdict:
    """Printed: Q_mu <= Q_MCB <= Q_mu* on the support.

    True, and the right side is an equality for every delta >= 0, however large; outside, Q_MCB is max_supp Q_mu* less
    delta. Why: at the fixed point values outside are not above the best inside, so the maximum over A is that over the
    support, and there the equation is that of Q_mu*. The printed proof's strict case and its limit on delta come from
    placing -delta inside the backup at s', where the defined operator never has it.
    """
    pi = policy_for(mdp, mu, "mu")
    support = support_of(pi)
    delta = _not_negative("delta", delta)
    slack = _slack(mdp, delta)
    q = fixed_point(MCB(mdp, support, delta), tolerance=slack / 5, extrapolate=True).q
    q_mu, best = mdp.backup(policy_value(mdp, pi)), batch_optimal_q(mdp, support)
    outside = support_max(best, support)[..., None] - np.asarray(delta)[..., None, None]
    expected = np.where(support, best, outside)
    says = partial(claim, mdp=mdp, tolerance=slack, unit=mdp.value_bound)
    equal = "Q_MCB = Q_mu* on the support, max_supp Q_mu* - delta outside, for every delta >= 0"
    return Verdict(
        2,
        "Q_mu <= Q_MCB <= Q_mu*",
        (
            says("at least Q_mu", "printed", "Q_mu <= Q_MCB on the support", _on(support, q - q_mu)),
            says("at most Q_mu*", "printed", "Q_MCB <= Q_mu* on the support", _on(support, best - q)),
            says("at most Q_mu*", "corrected", equal, -np.abs(q - expected)),
        ),
        note="True as printed; the right inequality is an equality for every delta, small or large.",
    )


def proposition_3(
    mdp: TabularMDP,
    mu: ArrayLike,
    policy: ArrayLike | None = None,
    *,
    delta: ArrayLike = 1e-3,
    seed: int = 0,
) -> Verdict:
    """Printed: a policy pi_p within KL eps of mu has J(pi_p) >= J(mu) - C, while J(pi_MCB) >= J(mu).

    Here C = sqrt(2) gamma eps_mu sqrt(eps) / (1-gamma)^2 with eps_mu = max_s |E_{a~pi_p} A^mu|. The first half drops
    the term D = E_{s~d_mu} E_{a~pi_p} A^mu(s,a) / (1-gamma) as if it were never negative, which closeness does not give
    (d_mu is the discounted distribution of mu's states). Corrected: J(pi_p) >= J(mu) + D - C (Achiam et al. 2017,
    Corollary 1, and Pinsker), which is the printed bound wherever D >= 0; and with no condition J(pi_p) >= J(mu) -
    sqrt(eps/2) max_s span(A^mu) / (1-gamma), by the performance difference lemma. The second half is true, and in every
    state, not only on average.

    Args:
        mdp: one process or a batch.
        mu: the behavior policy.
        policy: pi_p, with the support of mu; if not given, mu leaning at random.
        delta: above zero; at zero, ties void the second half.
        seed: of the leaning.
    """
    behavior = policy_for(mdp, mu, "mu")
    support = support_of(behavior)
    if policy is None:
        policy = tilted_policy(behavior, stream(seed, "tilt").normal(size=mdp.shape), 0.2)
    return Verdict(
        3,
        "milder pessimism",
        (
            *_policy_constraint(mdp, behavior, policy_for(mdp, policy)),
            *_mcb_policy(mdp, behavior, support, _not_negative("delta", delta, zero=False)),
        ),
        note="The bound for policy constraints needs the advantage term its proof drops; J(pi_MCB) >= J(mu) holds.",
    )


def proposition_4(mdp: TabularMDP, mu: ArrayLike, mu_hat: ArrayLike, *, n: ArrayLike = 10, seed: int = 0) -> Verdict:
    """Printed: Proposition 1 holds for the practical operator.

    As there: over all of S x A it is a gamma-contraction (E[max] moves by no more than its arguments, and T2 shrinks
    those by gamma, outside the support too), over the support alone it is not. If mu_hat draws only actions of the
    support, its fixed point is Q_mu* on the support; if not, it can only lie above.
    """
    behavior, model = policy_for(mdp, mu, "mu"), policy_for(mdp, mu_hat, "mu_hat")
    support = support_of(behavior)
    operator = PracticalMCB(mdp, support, model, n)
    pairs = _pairs(mdp, support, seed)
    slack = _slack(mdp)
    inside = np.where(support, model, 0.0)
    inside = np.where(inside.sum(axis=-1, keepdims=True) > 0, inside, behavior)
    inside = inside / inside.sum(axis=-1, keepdims=True)
    kept = fixed_point(PracticalMCB(mdp, support, inside, n), tolerance=slack / 5, extrapolate=True).q
    leaky = fixed_point(operator, tolerance=slack / 5, extrapolate=True).q
    best = batch_optimal_q(mdp, support)
    says = partial(claim, mdp=mdp, tolerance=slack, unit=mdp.value_bound)
    equal = "on the support the fixed point is Q_mu* if mu_hat stays in the support"
    above = "on the support the fixed point is at least Q_mu*, whatever mu_hat"
    return Verdict(
        4,
        "the practical operator is a contraction",
        (
            *_contraction(operator, pairs, support, "T^"),
            _convergence(operator, pairs[0][0], leaky, slack),
            says("fixed point, no leak", "corrected", equal, _on(support, -np.abs(kept - best))),
            says("fixed point", "corrected", above, _on(support, leaky - best)),
        ),
        note="True over S x A with T2 as corrected in 2024; without delta, ties with the best action remain possible.",
    )


def proposition_5(mdp: TabularMDP, mu: ArrayLike, mu_hat: ArrayLike, *, n: ArrayLike = 10, seed: int = 0) -> Verdict:
    """Printed: if D_TV(mu_hat, mu) <= eps < 1/2, then E[max of N draws] <= max_supp Q + (1 - (1-2 eps)^N) M.

    Tried on Q functions between -M and M, as the proof assumes, the fixed point's own among them. The proof needs
    max_supp Q >= 0. Corrected, with L = 1 - (1-eps)^N, the largest chance that any draw is OOD (the mass outside is at
    most eps, not 2 eps): E[max] <= max_supp Q + L (M - max_supp Q) always, and max_supp Q + L M if max_supp Q >= 0.
    It bounds one target; for the fixed point Q^ it gives Q^ - Q_mu* <= gamma L G / (1 - gamma (1 - L)) on the support,
    G = max_s (M - max_supp Q_mu*).
    """
    behavior, model = policy_for(mdp, mu, "mu"), policy_for(mdp, mu_hat, "mu_hat")
    support = support_of(behavior)
    epsilon = _epsilon(behavior, model)
    slack, bound = _slack(mdp), mdp.value_bound
    fixed = fixed_point(PracticalMCB(mdp, support, model, n), tolerance=slack / 5, extrapolate=True).q
    trials = _bounded_qs(mdp, support, t2(mdp, fixed, support), seed)
    tops = [support_max(q, support) for q in trials]
    excess = [expected_max(q, model, n) - top for q, top in zip(trials, tops, strict=True)]
    both = list(zip(excess, tops, strict=True))
    leak = 1 - (1 - epsilon) ** np.asarray(n)
    allowed = _state((1 - (1 - 2 * epsilon) ** np.asarray(n)) * bound)
    always = [_state(leak) * (_state(bound) - top) - over for over, top in both]
    positive = [np.where(top >= 0, _state(leak * bound) - over, np.inf) for over, top in both]
    says = partial(claim, mdp=mdp, tolerance=slack, unit=bound)
    text = "E[max] <= max_supp Q + (1 - (1 - 2 eps)^N) M"
    limit = "Q^ - Q_mu* <= gamma L G / (1 - gamma (1 - L)) on the support"
    return Verdict(
        5,
        "no erroneous over-estimation",
        (
            says("one target, any Q", "printed", f"{text} for |Q| <= M", [allowed - over for over in excess]),
            says("one target, any Q", "corrected", "E[max] <= max_supp Q + L (M - max_supp Q)", always),
            says("one target, max_supp Q >= 0", "corrected", "E[max] <= max_supp Q + L M if max_supp Q >= 0", positive),
            says("one target, at the fixed point", "printed", f"{text} for Q = T2 Q^", allowed - excess[0]),
            says("the fixed point", "corrected", limit, _fixed_point_room(mdp, support, fixed, leak)),
        ),
        note="True where the best value of the support is not negative; the general form has M - max_supp Q.",
    )


# What the propositions share.


def _slack(mdp: TabularMDP, delta: ArrayLike = 0.0) -> Array:
    """What rounding and unfinished iteration may do to differences of values, both sides of which are approximate."""
    return np.asarray(5 * fine_tolerance(mdp, delta))


def _size(mdp: TabularMDP) -> Array:
    """M, or 1 where all rewards are zero."""
    return np.where(mdp.value_bound > 0, mdp.value_bound, 1.0)


_RATIO_SLACK = np.asarray(1e-9)
"""The same for margins in units of ||Q1 - Q2||."""


def _on(support: Bools, margins: Array) -> Array:
    """Margins on the support; nothing is said outside."""
    return np.where(support, margins, np.inf)


def _state(per_process: Array) -> Array:
    return np.asarray(per_process)[..., None]


def _pairs(mdp: TabularMDP, support: Bools, seed: int) -> list[tuple[Array, Array]]:
    """Pairs of Q functions: two at random; equal on the support; equal but for a constant (where gamma is attained)."""
    rng = stream(seed, "pairs")
    size = _size(mdp)[..., None, None]
    q1, q2 = (rng.uniform(-1, 1, mdp.shape) * size for _ in range(2))
    return [(q1, q2), (q1, np.where(support, q1, q1.max(axis=(-1, -2), keepdims=True) + size)), (q1, q1 + size)]


def _shrinks(operator: Operator, pairs: list[tuple[Array, Array]], region: Bools) -> list[Array]:
    """gamma ||Q1 - Q2|| - |TQ1 - TQ2|, norm and entries over a region, in units of ||Q1 - Q2|| over S x A."""
    margins = []
    for q1, q2 in pairs:
        before, after = np.abs(q1 - q2), np.abs(operator(q1) - operator(q2))
        unit = before.max(axis=(-1, -2), keepdims=True)
        size = np.where(region, before, 0.0).max(axis=(-1, -2), keepdims=True)
        gap = operator.mdp.gamma[..., None, None] * size - after
        margins.append(_on(region, gap / np.where(unit > 0, unit, 1.0)))
    return margins


def _contraction(
    operator: Operator, pairs: list[tuple[Array, Array]], support: Bools, name: str
) -> tuple[Claim, Claim]:
    mdp, everywhere = operator.mdp, np.ones_like(support)
    printed = f"||{name} Q1 - {name} Q2||_supp <= gamma ||Q1 - Q2||_supp for all Q1, Q2"
    corrected = f"||{name} Q1 - {name} Q2|| <= gamma ||Q1 - Q2|| over S x A for all Q1, Q2"
    return (
        claim("contraction", "printed", printed, _shrinks(operator, pairs, support), mdp, _RATIO_SLACK),
        claim("contraction", "corrected", corrected, _shrinks(operator, pairs, everywhere), mdp, _RATIO_SLACK),
    )


def _convergence(operator: Operator, start: Array, limit: Array, slack: Array) -> Claim:
    """||Q_k - Q*|| <= gamma^k ||Q_0 - Q*|| along the first applications, in units of ||Q_0 - Q*||."""
    mdp = operator.mdp
    distance = np.maximum(np.abs(start - limit).max(axis=(-1, -2), keepdims=True), slack[..., None, None])
    margins, q = [], start
    for k in range(1, _STEPS + 1):
        q = operator(q)
        margins.append((mdp.gamma[..., None, None] ** k * distance - np.abs(q - limit)) / distance)
    text = "||Q_k - Q*|| <= gamma^k ||Q_0 - Q*||: one fixed point, reached from anywhere"
    return claim("convergence", "printed", text, margins, mdp, slack / distance.reshape(mdp.batch))


def _policy_constraint(mdp: TabularMDP, mu: Array, policy: Array) -> tuple[Claim, ...]:
    """The three bounds on J(pi_p) - J(mu)."""
    divergence = np.maximum(kl_divergence(mu, policy), kl_divergence(policy, mu))
    if not np.isfinite(divergence).all():
        where = first(~np.isfinite(divergence), ("state",))[1]
        raise MildlyError(f"policy: {where} has not the support of mu, so that its KL divergence is infinite.")
    epsilon = divergence.max(axis=-1)
    value = policy_value(mdp, mu)
    advantage = mdp.backup(value) - value[..., None]  # A^mu
    gain = (policy * advantage).sum(axis=-1)  # E_{a~pi_p} A^mu(s, a)
    dropped = (mdp.initial * policy_value(mdp, mu, gain)).sum(axis=-1)  # D: the discounted sum of gains along mu
    difference = (mdp.initial * (policy_value(mdp, policy) - value)).sum(axis=-1)
    horizon = 1 / (1 - mdp.gamma)
    penalty = np.sqrt(2 * epsilon) * mdp.gamma * np.abs(gain).max(axis=-1) * horizon**2
    seen = np.where(mu > 0, advantage, np.nan)
    span = (np.nanmax(seen, axis=-1) - np.nanmin(seen, axis=-1)).max(axis=-1)
    says = partial(claim, mdp=mdp, tolerance=_slack(mdp), unit=mdp.value_bound)
    bound, part = difference + penalty, "policy constraint"
    by_kl = "J(pi_p) >= J(mu) - sqrt(eps / 2) max_s span(A^mu) / (1 - gamma)"
    return (
        says(part, "printed", "J(pi_p) >= J(mu) - C", bound),
        says(part, "corrected", "J(pi_p) >= J(mu) + D - C", bound - dropped),
        says(f"{part}, D >= 0", "corrected", "J(pi_p) >= J(mu) - C if D >= 0", bound, applies=dropped >= 0),
        says(f"{part}, by KL", "corrected", by_kl, difference + np.sqrt(epsilon / 2) * span * horizon),
    )


def _mcb_policy(mdp: TabularMDP, mu: Array, support: Bools, delta: Array) -> tuple[Claim, ...]:
    """The greedy policy of Q_MCB is never below mu, on average or in any state; ties are broken against us."""
    slack = _slack(mdp, delta)
    q = fixed_point(MCB(mdp, support, delta), tolerance=slack / 5, extrapolate=True).q
    gain = policy_value(mdp, greedy_policy(q, support, ties="outside")) - policy_value(mdp, mu)
    average = (mdp.initial * gain).sum(axis=-1)
    says = partial(claim, mdp=mdp, tolerance=slack, unit=mdp.value_bound)
    return (
        says("MCB's policy", "printed", "J(pi_MCB) >= J(mu)", average),
        says("MCB's policy", "corrected", "V of pi_MCB >= V of mu in every state", gain),
    )


def _fixed_point_room(mdp: TabularMDP, support: Bools, fixed: Array, leak: Array) -> Array:
    """How far the practical fixed point stays below the bound that follows for it from Proposition 5.

    V = max_A Q^ of a state is at most (1 - L) max_supp Q^ + L M. With D the largest V - V*, V* = max_supp Q_mu*, this
    means D <= (1 - L) gamma D + L G; and on the support Q^ - Q_mu* <= gamma D.
    """
    best = batch_optimal_q(mdp, support)
    room = (_state(mdp.value_bound) - support_max(best, support)).max(axis=-1)  # G
    limit = mdp.gamma * leak * room / (1 - mdp.gamma * (1 - leak))
    return _on(support, limit[..., None, None] - (fixed - best))


def _bounded_qs(mdp: TabularMDP, support: Bools, own: Array, seed: int) -> list[Array]:
    """Q functions between -M and M: the fixed point's own targets, random ones, and the worst: -M inside, M outside."""
    bound = np.broadcast_to(mdp.value_bound[..., None, None], mdp.shape)
    random = stream(seed, "bounded").uniform(-1, 1, mdp.shape) * bound
    return [own, random, np.abs(random), np.where(support, -bound, bound), np.where(support, 0.0, bound)]


def _epsilon(mu: Array, mu_hat: Array) -> Array:
    distance = total_variation(mu_hat, mu)
    if (distance >= 0.5).any():
        at, where = first(distance >= 0.5, ("state",))
        raise MildlyError(
            f"mu_hat: {where} is {distance[at]:.3g} from mu in total variation; Proposition 5 asks for below 1/2."
        )
    return np.asarray(distance.max(axis=-1))


def _not_negative(name: str, given: ArrayLike, zero: bool = True) -> Array:
    array = np.asarray(given, dtype=np.float64)
    if (array < 0).any() or (not zero and (array == 0).any()):
        raise MildlyError(f"{name} must be {'at least' if zero else 'above'} 0, got {array.min():g}.")
    return array
