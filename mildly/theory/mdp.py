"""Finite Markov decision processes, one or a batch of them: everything else in this package works on these.

A `TabularMDP` holds what the paper's tuple <S, A, r, rho_0, p, gamma> holds. Arrays may have a leading batch dimension:
a batch of M processes with S states and A actions has transitions (M, S, A, S), rewards (M, S, A), gamma (M,) and
initial distributions (M, S). Without it, the same arrays describe one process, and every function works alike.

Transitions are dense, an array (..., S, A, S) of probabilities, or sparse: `SparseTransitions` lists for each state and
action K possible successors and their probabilities, so that ten thousand states need no array of 10,000 x 10,000.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mildly.errors import MildlyError

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.intp]
T = TypeVar("T")

SUM_TOLERANCE = 1e-6
"""How far probabilities may be from summing to one (single precision is enough); they are then divided by their sum."""


class DenseTransitions:
    """p(s'|s, a) as an array (..., S, A, S)."""

    def __init__(self, probabilities: ArrayLike) -> None:
        """Check the probabilities; a `MildlyError` names the first entry that is wrong."""
        given = finite("transitions", probabilities)
        if given.ndim not in (3, 4) or given.shape[-1] != given.shape[-3] or 0 in given.shape:
            raise MildlyError(
                f"transitions: shape {given.shape} is not (states, actions, states), nor that after a batch dimension."
            )
        self.probabilities = distribution("transitions", given, ("state", "action"), "next state")

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., S, A)."""
        return self.probabilities.shape[:-1]

    @property
    def terms(self) -> int:
        """How many products an expectation adds up: the states."""
        return int(self.probabilities.shape[-1])

    def expect(self, values: Array) -> Array:
        """E_{s'}[values(s')] for every state and action: (..., S) in, (..., S, A) out."""
        *batch, states, actions = self.shape
        rows = self.probabilities.reshape(*batch, states * actions, states)
        return np.asarray((rows @ values[..., None]).reshape(self.shape))

    def select(self, index: Ints) -> DenseTransitions:
        """Some processes of a batch."""
        return _unchecked(DenseTransitions, probabilities=self.probabilities[index])


class SparseTransitions:
    """p(s'|s, a) as K successors and their probabilities for each state and action, both (..., S, A, K).

    Where there are fewer than K successors, fill up with any state and probability zero.
    """

    def __init__(self, successors: ArrayLike, probabilities: ArrayLike) -> None:
        """Check both arrays; a `MildlyError` names the first entry that is wrong."""
        given = finite("transitions", probabilities)
        states = np.asarray(successors)
        if given.ndim not in (3, 4) or 0 in given.shape:
            raise MildlyError(
                f"transitions: shape {given.shape} is not (states, actions, successors), "
                "nor that after a batch dimension."
            )
        if states.shape != given.shape:
            raise MildlyError(f"successors: shape {states.shape} differs from their probabilities' {given.shape}.")
        if not np.issubdtype(states.dtype, np.integer):
            raise MildlyError(f"successors: must be whole numbers of states, not {states.dtype}.")
        wrong = (states < 0) | (states >= given.shape[-3])
        if wrong.any():
            at, name = first(wrong, ("state", "action", "successor"))
            raise MildlyError(f"successors: {name} is state {states[at]}; there are states 0 to {given.shape[-3] - 1}.")
        self.successors: Ints = np.ascontiguousarray(states, dtype=np.intp)
        self.probabilities = distribution("transitions", given, ("state", "action"), "successor")

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., S, A)."""
        return self.probabilities.shape[:-1]

    @property
    def terms(self) -> int:
        """How many products an expectation adds up: the successors listed."""
        return int(self.probabilities.shape[-1])

    def expect(self, values: Array) -> Array:
        """E_{s'}[values(s')] for every state and action: (..., S) in, (..., S, A) out."""
        flat = self.successors.reshape(*values.shape[:-1], -1)
        next_values = np.take_along_axis(values, flat, axis=-1) if values.ndim > 1 else values.take(flat)
        return np.asarray(
            np.einsum("...k,...k->...", self.probabilities, next_values.reshape(self.probabilities.shape))
        )

    def select(self, index: Ints) -> SparseTransitions:
        """Some processes of a batch."""
        return _unchecked(SparseTransitions, successors=self.successors[index], probabilities=self.probabilities[index])


class TabularMDP:
    """A finite Markov decision process, or a batch of them with the same numbers of states and actions.

    Attributes:
        transitions: `DenseTransitions` or `SparseTransitions`.
        rewards: r(s, a), (..., S, A).
        gamma: the discount, (...,): one number for each process.
        initial: rho_0, (..., S).
    """

    transitions: DenseTransitions | SparseTransitions
    rewards: Array
    gamma: Array
    initial: Array

    def __init__(
        self,
        transitions: ArrayLike | DenseTransitions | SparseTransitions,
        rewards: ArrayLike,
        gamma: ArrayLike,
        initial: ArrayLike | None = None,
    ) -> None:
        """Check everything; a `MildlyError` names the first entry that is wrong.

        Args:
            transitions: dense as an array, or sparse.
            rewards: of either sign, finite.
            gamma: in [0, 1), one number or one for each process of the batch.
            initial: the distribution of the first state; uniform if not given.
        """
        known = isinstance(transitions, DenseTransitions | SparseTransitions)
        self.transitions = transitions if known else DenseTransitions(transitions)  # type: ignore[assignment, arg-type]
        shape = self.transitions.shape
        self.rewards = expect_shape("rewards", rewards, shape)
        discount = finite("gamma", gamma)
        if discount.shape not in ((), shape[:-2]):
            raise MildlyError(f"gamma: shape {discount.shape} is neither () nor the batch's {shape[:-2]}.")
        wrong = (discount < 0) | (discount >= 1)
        if wrong.any():
            at, name = first(wrong, ())
            raise MildlyError(f"gamma{f' of {name}' if name else ''} is {discount[at]:g}; it must be in [0, 1).")
        self.gamma = np.broadcast_to(discount, shape[:-2])
        if initial is None:
            self.initial = np.full(shape[:-1], 1 / shape[-2])
        else:
            self.initial = distribution("initial", expect_shape("initial", initial, shape[:-1]), (), "state")

    @property
    def shape(self) -> tuple[int, ...]:
        """(..., S, A), the shape of a Q function."""
        return self.rewards.shape

    @property
    def batch(self) -> tuple[int, ...]:
        """The leading shape: () for one process, (M,) for a batch of M."""
        return self.rewards.shape[:-2]

    @property
    def states(self) -> int:
        """The number of states."""
        return int(self.rewards.shape[-2])

    @property
    def actions(self) -> int:
        """The number of actions."""
        return int(self.rewards.shape[-1])

    @property
    def r_max(self) -> Array:
        """The largest |r(s, a)| of each process."""
        return np.asarray(np.abs(self.rewards).max(axis=(-1, -2)))

    @property
    def value_bound(self) -> Array:
        """r_max / (1 - gamma): no value of any policy is larger in size. The propositions' natural unit."""
        return np.asarray(self.r_max / (1 - self.gamma))

    def backup(self, values: Array) -> Array:
        """r(s, a) + gamma E_{s'}[values(s')]: (..., S) in, (..., S, A) out."""
        return self.rewards + self.gamma[..., None, None] * self.transitions.expect(values)

    def select(self, index: Ints) -> TabularMDP:
        """Some processes of a batch, as a smaller batch."""
        return _unchecked(
            TabularMDP,
            transitions=self.transitions.select(index),
            rewards=self.rewards[index],
            gamma=self.gamma[index],
            initial=self.initial[index],
        )


def finite(name: str, given: ArrayLike) -> Array:
    """A float array without NaN or infinity."""
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise MildlyError(f"{name}: not an array of numbers ({error}).") from error
    if not np.isfinite(array).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise MildlyError(f"{name}: entry {list(at)} is {array[at]}, not a finite number.")
    return array


def expect_shape(name: str, given: ArrayLike, shape: tuple[int, ...]) -> Array:
    """A finite float array of exactly this shape."""
    array = finite(name, given)
    if array.shape != shape:
        raise MildlyError(f"{name}: shape {array.shape} does not agree with the transitions, which ask for {shape}.")
    return array


def distribution(name: str, given: Array, places: Sequence[str], last: str) -> Array:
    """Probabilities along the last axis, divided by their sum; an error names the row or entry that is none."""
    if (given < 0).any():
        at, where = first(given < 0, (*places, last))
        raise MildlyError(f"{name}: {where} has probability {given[at]:g}, below zero.")
    sums = given.sum(axis=-1)
    wrong = np.abs(sums - 1) > SUM_TOLERANCE
    if wrong.any():
        at, where = first(wrong, places)
        raise MildlyError(f"{name}: the probabilities{f' of {where}' if where else ''} sum to {sums[at]:.9g}, not 1.")
    return np.asarray(given / sums[..., None])


def first(wrong: Bools, places: Sequence[str]) -> tuple[tuple[int, ...], str]:
    """The first entry that is wrong: its index, and its name, such as 'MDP 3, state 0, action 2'."""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    names = ["MDP"] * (len(at) - len(places)) + list(places)
    return at, ", ".join(f"{name} {i}" for name, i in zip(names, at, strict=True))


def stream(seed: int | np.random.Generator, purpose: str) -> np.random.Generator:
    """Random numbers for a purpose; the same seed gives unrelated numbers to different purposes."""
    if isinstance(seed, np.random.Generator):
        return seed
    if seed < 0:
        raise MildlyError(f"seed must be at least 0, got {seed}.")
    return np.random.default_rng([seed, *purpose.encode()])


def _unchecked(kind: type[T], **attributes: Any) -> T:
    """An object from parts that were checked before."""
    made = object.__new__(kind)
    vars(made).update(attributes)
    return made
