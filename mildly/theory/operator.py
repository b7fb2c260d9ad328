"""The MCB operator, Definition 1 and 2 of the paper, and its relatives as objects that can be applied.

With supp(s) = {a : mu(a|s) > 0}:

                        if a in supp(s)                              else
    T1 Q(s,a)     =     Q(s,a)                                       max_{supp(s)} Q(s,.) - delta
    T2 Q(s,a)     =     r(s,a) + gamma E_{s'} max_{A} Q(s',.)        r(s,a) + gamma Q(s,a)
    T1^ Q(s,a)    =     Q(s,a)                                       E max_{i <= N} Q(s,a_i), a_i ~ mu_hat(.|s)

    T_MCB = T1 T2, and the practical operator T_MCB^ = T1^ T2, with mu_hat a model of mu.

The maximum in T2 runs over all actions, as printed. T2's second branch is the paper's, as corrected in February 2024
(the E_{s'} there is of a quantity without s'). T_MCB overwrites that branch, so it never matters there; T_MCB^ may draw
actions outside the support, and then it does.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from mildly.errors import MildlyError
from mildly.theory.mdp import Array, Bools, Ints, TabularMDP, first
from mildly.theory.policies import policy_for, support_for


def support_max(q: Array, support: Bools) -> Array:
    """max_{a in supp(s)} Q(s, a) for every state."""
    return np.asarray(np.where(support, q, -np.inf).max(axis=-1))


def t1(q: Array, support: Bools, delta: ArrayLike) -> Array:
    """Equation (4): the value of an OOD action becomes the best value in the support, less delta."""
    pseudo_target = support_max(q, support)[..., None] - np.asarray(delta)[..., None, None]
    return np.where(support, q, pseudo_target)


def t2(mdp: TabularMDP, q: Array, support: Bools) -> Array:
    """Equation (5): the optimal backup over all actions in the support; r + gamma Q(s, a) outside it."""
    outside = mdp.rewards + mdp.gamma[..., None, None] * q
    return np.where(support, mdp.backup(q.max(axis=-1)), outside)


def expected_max(q: Array, mu_hat: Array, n: ArrayLike) -> Array:
    """E[max_i Q(s, a_i)] over N independent draws from mu_hat(.|s), exactly and for every state.

    With values q_1 <= ... <= q_A in ascending order and F_k = P(one draw is among the first k), the maximum is at most
    q_k with probability F_k^N, so that E[max] = q_A - sum_k (q_{k+1} - q_k) F_k^N. Every term is non-negative.
    """
    order = q.argsort(axis=-1)
    values = np.take_along_axis(q, order, axis=-1)
    weights = np.take_along_axis(mu_hat, order, axis=-1)
    above = weights[..., :0:-1].cumsum(axis=-1)[..., ::-1]  # P(a draw beats the first k); exactly 0 where none can
    none_above = np.maximum(1 - above, 0.0) ** np.asarray(n)[..., None, None]
    return np.asarray(values[..., -1] - (np.diff(values, axis=-1) * none_above).sum(axis=-1))


def t1_hat(q: Array, support: Bools, mu_hat: Array, n: ArrayLike) -> Array:
    """Equation (6)'s inner half: an OOD action's value becomes the expected best of N draws from mu_hat."""
    return np.where(support, q, expected_max(q, mu_hat, n)[..., None])


class Operator(Protocol):
    """A map of Q functions, monotone, with T(Q + c) = TQ + gamma c for a constant c: a gamma-contraction therefore."""

    @property
    def mdp(self) -> TabularMDP:
        """The process it belongs to."""

    def __call__(self, q: Array) -> Array:
        """Apply it once."""

    def select(self, index: Ints) -> Operator:
        """The operator of some processes of a batch."""


@dataclass(frozen=True)
class MCB:
    """T_MCB = T1 T2 with a support and delta (one number, or one for each process)."""

    mdp: TabularMDP
    support: Bools
    delta: ArrayLike = 1e-3

    def __post_init__(self) -> None:
        support_for(self.mdp, self.support)
        object.__setattr__(self, "delta", per_mdp("delta", self.delta, self.mdp))

    def __call__(self, q: Array) -> Array:
        """T1 T2 Q."""
        return t1(t2(self.mdp, q, self.support), self.support, self.delta)

    def select(self, index: Ints) -> MCB:
        """The operator of some processes of a batch."""
        return replace(
            self, mdp=self.mdp.select(index), support=self.support[index], delta=np.asarray(self.delta)[index]
        )


@dataclass(frozen=True)
class PracticalMCB:
    """The practical operator, T1^ T2, with a model mu_hat of the behavior policy and N draws."""

    mdp: TabularMDP
    support: Bools
    mu_hat: Array
    n: ArrayLike = 10

    def __post_init__(self) -> None:
        support_for(self.mdp, self.support)
        object.__setattr__(self, "mu_hat", policy_for(self.mdp, self.mu_hat, "mu_hat"))
        n = per_mdp("n", self.n, self.mdp)
        wrong = (n < 1) | (n != np.round(n))
        if wrong.any():
            raise MildlyError(f"n must be a whole number of draws, at least 1; got {n[wrong].flat[0]:g}.")
        object.__setattr__(self, "n", n)

    def __call__(self, q: Array) -> Array:
        """T1^ T2 Q."""
        return t1_hat(t2(self.mdp, q, self.support), self.support, self.mu_hat, self.n)

    def pseudo_target(self, q: Array) -> Array:
        """E[max_i T2 Q(s, a_i)]: what every OOD action of a state is given."""
        return expected_max(t2(self.mdp, q, self.support), self.mu_hat, self.n)

    def select(self, index: Ints) -> PracticalMCB:
        """The operator of some processes of a batch."""
        return replace(
            self,
            mdp=self.mdp.select(index),
            support=self.support[index],
            mu_hat=self.mu_hat[index],
            n=np.asarray(self.n)[index],
        )


@dataclass(frozen=True)
class BatchOptimal:
    """T Q(s,a) = r + gamma E max_{a' in supp(s')} Q(s',a'): its fixed point is Q_mu* (the paper's Observation 2)."""

    mdp: TabularMDP
    support: Bools

    def __call__(self, q: Array) -> Array:
        """Apply it once."""
        return self.mdp.backup(support_max(q, self.support))

    def select(self, index: Ints) -> BatchOptimal:
        """The operator of some processes of a batch."""
        return BatchOptimal(self.mdp.select(index), self.support[index])


@dataclass(frozen=True)
class PolicyBackup:
    """T^pi Q(s,a) = r + gamma E_{s'} E_{a'~pi} Q(s',a'): its fixed point is Q^pi (the paper's equation 1)."""

    mdp: TabularMDP
    policy: Array

    def __call__(self, q: Array) -> Array:
        """Apply it once."""
        return self.mdp.backup((self.policy * q).sum(axis=-1))

    def select(self, index: Ints) -> PolicyBackup:
        """The operator of some processes of a batch."""
        return PolicyBackup(self.mdp.select(index), self.policy[index])


def per_mdp(name: str, given: ArrayLike, mdp: TabularMDP) -> Array:
    """One finite number for each process, from one for all or one for each."""
    array = np.asarray(given, dtype=np.float64)
    if array.shape not in ((), mdp.batch):
        raise MildlyError(f"{name}: shape {array.shape} is neither () nor the batch's {mdp.batch}.")
    if not np.isfinite(array).all():
        at, where = first(~np.isfinite(array), ())
        raise MildlyError(f"{name}{f' of {where}' if where else ''} is {array[at]}, not a finite number.")
    return np.broadcast_to(array, mdp.batch)
