"""What policies are worth: V^pi, Q^pi, J(pi), and the best policy inside a support, Q_mu*.

For dense processes the values come from linear equations, exact up to rounding; for sparse ones from iteration to a
certified error (see `fixed_points`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from mildly.theory.fixed_points import fine_tolerance, fixed_point
from mildly.theory.mdp import Array, Bools, DenseTransitions, TabularMDP
from mildly.theory.operator import BatchOptimal, PolicyBackup, support_max
from mildly.theory.policies import greedy_policy, policy_for, support_for


def policy_value(mdp: TabularMDP, policy: ArrayLike, state_rewards: Array | None = None) -> Array:
    """V^pi = (I - gamma P_pi)^-1 r_pi for every state.

    With `state_rewards` g (..., S), g takes the place of r_pi: the discounted sum of g along the policy's path.
    """
    pi = policy_for(mdp, policy)
    rewards = (pi * mdp.rewards).sum(axis=-1) if state_rewards is None else state_rewards
    if isinstance(mdp.transitions, DenseTransitions):
        moves = (pi[..., None, :] @ mdp.transitions.probabilities)[..., 0, :]  # P_pi: (..., S, S)
        system = np.eye(mdp.states) - mdp.gamma[..., None, None] * moves
        return np.asarray(np.linalg.solve(system, rewards[..., None])[..., 0])
    paid = np.broadcast_to(rewards[..., None], mdp.shape)
    alike = TabularMDP(mdp.transitions, paid, mdp.gamma, mdp.initial)  # rewards by state are the same for all actions
    q = fixed_point(PolicyBackup(alike, pi), tolerance=fine_tolerance(alike), extrapolate=True).q
    return np.asarray((pi * q).sum(axis=-1))


def policy_q(mdp: TabularMDP, policy: ArrayLike) -> Array:
    """Q^pi(s, a) = r(s, a) + gamma E_{s'} V^pi(s'); for the behavior policy this is Q_mu."""
    return mdp.backup(policy_value(mdp, policy))


def expected_return(mdp: TabularMDP, policy: ArrayLike) -> Array:
    """J(pi): the expected discounted sum of rewards from the initial distribution."""
    return np.asarray((mdp.initial * policy_value(mdp, policy)).sum(axis=-1))


def batch_optimal_q(mdp: TabularMDP, support: Bools) -> Array:
    """Q_mu*: the Q function of the best policy that takes only actions of the support.

    Dense processes are solved by policy iteration, which shares no step with the iteration of the MCB operator: the two
    can check each other.
    """
    support = support_for(mdp, support)
    if not isinstance(mdp.transitions, DenseTransitions):
        return fixed_point(BatchOptimal(mdp, support), tolerance=fine_tolerance(mdp), extrapolate=True).q
    policy = greedy_policy(np.where(support, mdp.rewards, -np.inf))
    rounding = 1e-12 + 64 * np.finfo(np.float64).eps / (1 - mdp.gamma)
    hair = (rounding * mdp.value_bound)[..., None]  # a gain of rounding's size changes no action
    while True:
        q = policy_q(mdp, policy)
        better = support_max(q, support) > (policy * q).sum(axis=-1) + hair
        if not better.any():
            return q
        policy = np.where(better[..., None], greedy_policy(np.where(support, q, -np.inf)), policy)
