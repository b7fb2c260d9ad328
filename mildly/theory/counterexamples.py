"""Small concrete processes, each refuting one sentence as it is printed, or showing that a condition is needed.

All have one state and two actions, `in` and `ood`: the data show the first, never the second. Each number is computed
by the operators of this package and can be followed by hand. None touches the method itself: the corrected statements,
in `propositions`, hold and are what an implementation relies on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np

from mildly.theory.evaluation import batch_optimal_q, expected_return
from mildly.theory.fixed_points import fixed_point
from mildly.theory.mdp import Array, TabularMDP
from mildly.theory.operator import MCB, PracticalMCB, expected_max, t1_hat, t2
from mildly.theory.policies import greedy_policy, kl_divergence, total_variation


@dataclass(frozen=True)
class Counterexample:
    """What a sentence demands of a number, and the number itself.

    `kind`: a sentence `printed` as part of a proposition, a step of its `proof`, or one that would be true only under a
    `condition` which it leaves out.
    """

    proposition: int
    kind: Literal["printed", "proof", "condition"]
    sentence: str
    setting: str
    demanded: float
    actual: float
    at: Literal["most", "least"]

    @property
    def gap(self) -> float:
        """How far the number is on the wrong side; above zero, the sentence is refuted."""
        return self.actual - self.demanded if self.at == "most" else self.demanded - self.actual

    def to_json(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return {
            "proposition": self.proposition,
            "kind": self.kind,
            "sentence": self.sentence,
            "setting": self.setting,
            f"at_{self.at}": self.demanded,
            "actual": self.actual,
        }


def one_state(rewards: tuple[float, float], gamma: float) -> TabularMDP:
    """A state that never changes, with two actions."""
    return TabularMDP(np.ones((1, 2, 1)), [rewards], gamma)


DATA = np.array([[1.0, 0.0]])
"""The behavior policy that shows only the first action."""
SEEN = DATA > 0


def contraction_on_the_support_alone() -> Counterexample:
    """Proposition 1: two Q functions that agree on the support; after T_MCB they do not, as T2's maximum is over A."""
    operator = MCB(one_state((0.0, 0.0), 0.9), SEEN, 1e-3)
    low, high = np.array([[0.0, 0.0]]), np.array([[0.0, 10.0]])
    after = np.abs(operator(high) - operator(low))[SEEN].max()
    return Counterexample(
        1,
        "printed",
        "T_MCB contracts by gamma in the sup norm over Support(mu) alone",
        "one state, r = 0, gamma = 0.9, Q1 = (0, 0), Q2 = (0, 10): equal on the support",
        demanded=0.9 * float(np.abs(high - low)[SEEN].max()),
        actual=float(after),
        at="most",
    )


def strictly_below_the_batch_optimum() -> Counterexample:
    """Proposition 2's proof: 'Q_MCB < Q_mu*' if a' is OOD, and a limit on delta; the operator needs neither."""
    mdp = one_state((1.0, 0.0), 0.9)
    delta = 50.0
    q = fixed_point(MCB(mdp, SEEN, delta), tolerance=1e-10).q
    best = batch_optimal_q(mdp, SEEN)
    return Counterexample(
        2,
        "proof",
        "where a' is OOD, Q_MCB = r + gamma (max_supp Q - delta), strictly below Q_mu*",
        "one state, r = (1, 0), gamma = 0.9, delta = 50, above the proof's limit, here 0",
        demanded=float(best[0, 0]) - 0.9 * delta,
        actual=float(q[0, 0]),
        at="most",
    )


def close_policy_that_is_worse(gamma: float = 0.0) -> Counterexample:
    """Proposition 3: a policy near mu in KL that leans to the worse action.

    The printed bound drops the advantage of pi_p over mu as if it were never negative. With one state it fails exactly
    if pi_p is worse than mu and epsilon < ((1 - gamma) / (sqrt(2) gamma))^2: of worse policies, those close to mu.
    """
    mdp = one_state((1.0, 0.0), gamma)
    mu, policy = np.array([[0.5, 0.5]]), np.array([[0.45, 0.55]])
    epsilon = max(kl_divergence(mu, policy)[0], kl_divergence(policy, mu)[0])
    advantage = abs(float(((policy - mu) * mdp.rewards).sum()))  # |E_{pi_p} A^mu|
    bound = float(expected_return(mdp, mu)) - sqrt(2) * gamma * advantage / (1 - gamma) ** 2 * sqrt(epsilon)
    return Counterexample(
        3,
        "printed",
        "J(pi_p) >= J(mu) - sqrt(2) gamma eps_mu / (1 - gamma)^2 sqrt(eps) for every pi_p close to mu",
        f"one state, r = (1, 0), gamma = {gamma:g}, mu = (0.5, 0.5), pi_p = (0.45, 0.55), eps = {epsilon:.4f}",
        demanded=bound,
        actual=float(expected_return(mdp, policy)),
        at="least",
    )


def no_delta_and_a_tie() -> Counterexample:
    """Proposition 3 needs delta > 0: at delta = 0 an OOD action ties with the best, and may be taken."""
    mdp = one_state((1.0, -1.0), 0.9)
    q = fixed_point(MCB(mdp, SEEN, 0.0), tolerance=1e-10).q
    policy = greedy_policy(q, SEEN, ties="outside")
    return Counterexample(
        3,
        "condition",
        "J(pi_MCB) >= J(mu) even with delta = 0 (the paper asks for delta > 0, and rightly)",
        "one state, r = (1, -1), gamma = 0.9, ties broken towards the OOD action",
        demanded=float(expected_return(mdp, DATA)),
        actual=float(expected_return(mdp, policy)),
        at="least",
    )


def practical_contraction_on_the_support_alone() -> Counterexample:
    """Proposition 4: as Proposition 1; and where mu_hat draws OOD actions, even after the operator was applied once."""
    operator = PracticalMCB(one_state((0.0, 1.0), 0.9), SEEN, np.array([[0.75, 0.25]]), 2)
    low, high = operator(np.array([[10.0, 0.0]])), operator(np.array([[10.0, 10.0]]))  # (9, 8.5) and (9, 9.4375)
    after = np.abs(operator(high) - operator(low))[SEEN].max()
    return Counterexample(
        4,
        "printed",
        "the practical operator contracts by gamma in the sup norm over Support(mu) alone",
        "one state, r = (0, 1), gamma = 0.9, mu_hat = (0.75, 0.25), N = 2, Q1 = T^ (10, 0), Q2 = T^ (10, 10)",
        demanded=0.9 * float(np.abs(high - low)[SEEN].max()),
        actual=float(after),
        at="most",
    )


def identity_outside_the_support() -> Counterexample:
    """Proposition 4 needs T2's corrected branch: with Q(s, a) itself outside the support the modulus exceeds gamma."""
    mdp, mu_hat = one_state((0.0, 0.0), 0.0), np.array([[0.5, 0.5]])

    def with_identity(q: Array) -> Array:
        return t1_hat(np.where(SEEN, t2(mdp, q, SEEN), q), SEEN, mu_hat, 2)

    low, high = np.array([[0.0, 0.0]]), np.array([[0.0, 1.0]])
    return Counterexample(
        4,
        "condition",
        "the practical operator contracts by gamma even if T2 leaves OOD values as they are (the paper's does not)",
        "one state, r = 0, gamma = 0, mu_hat = (0.5, 0.5), N = 2, Q1 = (0, 0), Q2 = (0, 1)",
        demanded=0.0,
        actual=float(np.abs(with_identity(high) - with_identity(low)).max()),
        at="most",
    )


def practical_tie() -> Counterexample:
    """The remark at Definition 2, 'no need to subtract delta': a behavior policy with one action leaves a tie."""
    mdp = one_state((1.0, -1.0), 0.9)
    q = fixed_point(PracticalMCB(mdp, SEEN, DATA, 10), tolerance=1e-10).q
    policy = greedy_policy(q, SEEN, ties="outside", within=1e-12)
    return Counterexample(
        4,
        "condition",
        "J(pi) >= J(mu) for the greedy policy of the practical operator, as it needs no delta 'generally'",
        "one state, r = (1, -1), gamma = 0.9, mu_hat = mu = (1, 0), N = 10, ties broken towards the OOD action",
        demanded=float(expected_return(mdp, DATA)),
        actual=float(expected_return(mdp, policy)),
        at="least",
    )


def negative_best_value() -> Counterexample:
    """Proposition 5 needs max_supp Q >= 0: its proof replaces P(all draws are seen) * max_supp Q by max_supp Q."""
    mdp, mu_hat, n = one_state((-1.0, 1.0), 0.0), np.array([[0.75, 0.25]]), 2
    q = t2(mdp, np.zeros((1, 2)), SEEN)  # gamma = 0: T2 of any Q function, the fixed point's too
    epsilon = float(total_variation(mu_hat, DATA).max())
    return Counterexample(
        5,
        "printed",
        "E[max of N draws] <= max_supp Q + (1 - (1 - 2 eps)^N) r_max / (1 - gamma)",
        "one state, r = (-1, 1), gamma = 0, mu = (1, 0), mu_hat = (0.75, 0.25), N = 2, Q = r",
        demanded=float(q[0, 0]) + (1 - (1 - 2 * epsilon) ** n) * float(mdp.value_bound),
        actual=float(expected_max(q, mu_hat, n)[0]),
        at="most",
    )


COUNTEREXAMPLES: dict[int, tuple[Callable[[], Counterexample], ...]] = {
    1: (contraction_on_the_support_alone,),
    2: (strictly_below_the_batch_optimum,),
    3: (close_policy_that_is_worse, lambda: close_policy_that_is_worse(0.9), no_delta_and_a_tie),
    4: (practical_contraction_on_the_support_alone, identity_outside_the_support, practical_tie),
    5: (negative_best_value,),
}
"""By proposition."""
