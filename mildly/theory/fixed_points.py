"""Fixed points by iteration, each with a bound on its error that follows from the numbers at hand.

For a gamma-contraction T with fixed point Q*, Banach's theorem gives, for any Q and however it was found,

    ||TQ - Q*|| <= gamma / (1 - gamma) ||TQ - Q||.

All operators here are also monotone and carry a constant c to gamma c. Then Q* lies between TQ + c min(TQ - Q) and
TQ + c max(TQ - Q), c = gamma / (1 - gamma) (MacQueen 1966), so that the middle of the two is off by at most half their
distance. `extrapolate=True` uses that: on well-mixed processes tens of applications do what takes thousands without it.

To both, an allowance for the rounding of double precision is added: it is a bound on what was computed.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log

import numpy as np
from numpy.typing import ArrayLike

from mildly.errors import MildlyError
from mildly.theory.mdp import Array, Bools, Ints, TabularMDP, expect_shape
from mildly.theory.operator import MCB, Operator, PracticalMCB, per_mdp


@dataclass(frozen=True)
class FixedPoint:
    """A Q function, how far it can be from the true fixed point (sup norm, for each process), and what it took."""

    q: Array
    error: Array
    iterations: int


def fixed_point(
    operator: Operator,
    *,
    start: ArrayLike | None = None,
    tolerance: ArrayLike = 1e-8,
    extrapolate: bool = False,
    max_iterations: int = 100_000,
) -> FixedPoint:
    """Apply an operator until its certified error is at most `tolerance` in every process.

    Args:
        operator: such as `MCB(mdp, support, delta)`.
        start: the first Q function, zero if not given. Any will do: that is what a contraction means.
        tolerance: the error allowed, one number or one for each process.
        extrapolate: add a constant after each application, see above.
        max_iterations: applications after which to give up, with an error.
    """
    mdp = operator.mdp
    q = np.zeros(mdp.shape) if start is None else expect_shape("start", start, mdp.shape).copy()
    allowed = per_mdp("tolerance", tolerance, mdp)
    if (allowed <= 0).any() or max_iterations < 1:
        raise MildlyError("tolerance must be above 0, max_iterations at least 1.")
    if not mdp.batch:
        error, iterations = _iterate(operator, q, allowed, extrapolate, max_iterations)
        return FixedPoint(q, error, iterations)
    errors = np.zeros(mdp.batch)
    todo: Ints = np.arange(len(q))
    iterations = 0
    while todo.size:  # those that are done leave, so that the slow ones do not hold up the rest
        if (left := max_iterations - iterations) < 1:
            raise _unfinished(errors[todo])
        part = q[todo]
        error, taken = _iterate(operator.select(todo), part, allowed[todo], extrapolate, left, todo.size // 2)
        q[todo], errors[todo] = part, error
        todo = todo[error > allowed[todo]]
        iterations += taken
    return FixedPoint(q, errors, iterations)


def _iterate(
    operator: Operator, q: Array, allowed: Array, extrapolate: bool, max_iterations: int, leave: int = 0
) -> tuple[Array, int]:
    """Replace `q` by its images until at most `leave` processes are not done; their errors, and the applications."""
    mdp = operator.mdp
    ratio = mdp.gamma / (1 - mdp.gamma)
    for done in range(1, max_iterations + 1):
        image = operator(q)
        change = image - q
        low, high = change.min(axis=(-1, -2)), change.max(axis=(-1, -2))
        center = (low + high) / 2 if extrapolate else np.zeros_like(low)
        q[...] = image + (ratio * center)[..., None, None]
        rounding = _rounding(mdp, q, change)
        residual = ratio * np.maximum(high - center, center - low)
        error = residual + rounding
        if (error > allowed).sum() <= leave:
            return error, done
        if (hopeless := (error > allowed) & (rounding > allowed / 2) & (residual <= rounding)).any():
            raise MildlyError(
                f"a tolerance of {allowed[hopeless].min():.1g} is too fine: with values of this size and gamma, double "
                f"precision certifies about {4 * rounding[hopeless].max():.1g}."
            )
    raise _unfinished(error)


def _unfinished(error: Array) -> MildlyError:
    return MildlyError(
        f"the applications allowed leave an error of up to {error.max():.2g}. Allow more (max_iterations), a larger "
        "tolerance, or use extrapolate=True."
    )


def _rounding(mdp: TabularMDP, q: Array, change: Array) -> Array:
    """What rounding in one application, an inner product of so many terms and a few sums, can do to the fixed point."""
    size = np.abs(q).max(axis=(-1, -2)) + mdp.gamma * np.abs(change).max(axis=(-1, -2)) + mdp.r_max
    return np.asarray(_relative_rounding(mdp) * size)


def _relative_rounding(mdp: TabularMDP) -> Array:
    products = mdp.transitions.terms + mdp.actions + 6
    return np.asarray(products * np.finfo(np.float64).eps / (1 - mdp.gamma))


def fine_tolerance(mdp: TabularMDP, delta: ArrayLike = 0.0) -> Array:
    """An error that double precision can always certify: 2e-11, more as gamma nears 1, in units of the values' size.

    That size is r_max / (1 - gamma), and delta where one is subtracted.
    """
    size = np.where(mdp.value_bound > 0, mdp.value_bound, 1.0) + np.abs(delta)
    return np.asarray((2e-11 + 8 * _relative_rounding(mdp)) * size)


def mcb_fixed_point(
    mdp: TabularMDP,
    support: Bools,
    delta: ArrayLike = 1e-3,
    *,
    tolerance: ArrayLike = 1e-8,
    extrapolate: bool = True,
) -> FixedPoint:
    """Q_MCB, the fixed point of the MCB operator."""
    return fixed_point(MCB(mdp, support, delta), tolerance=tolerance, extrapolate=extrapolate)


def practical_fixed_point(
    mdp: TabularMDP,
    support: Bools,
    mu_hat: Array,
    n: ArrayLike = 10,
    *,
    tolerance: ArrayLike = 1e-8,
    extrapolate: bool = True,
) -> FixedPoint:
    """The fixed point of the practical operator."""
    return fixed_point(PracticalMCB(mdp, support, mu_hat, n), tolerance=tolerance, extrapolate=extrapolate)


def applications_needed(gamma: float, distance: float, tolerance: float) -> int:
    """How many applications are enough beforehand: the least k with gamma^k / (1 - gamma) * distance <= tolerance.

    `distance` is ||Q_1 - Q_0||, the first change.
    """
    if gamma == 0 or distance == 0:
        return 1
    return max(1, ceil(log(tolerance * (1 - gamma) / distance) / log(gamma)))
