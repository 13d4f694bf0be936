"""Recurrence: what LSTM, GRU and RNN do along a sequence, forward and backward; no parameters.

Arrays have the steps along their first axis, then the samples. Every step's part of the input is
one product ahead of the loop; so is every weight's gradient behind it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from simdp.arrays import Array
from simdp.workload.layers.activations.sigmoid import logistic

State = tuple[Array, ...]
"""What a step hands on, each of shape `(batch, hidden)`; what comes out is the first of them."""


class Weights(NamedTuple):
    """Of one layer in one direction, with G gates.

    Attributes
    ----------
    ih : ndarray, shape `(G * hidden, features)`
        For the input.
    hh : ndarray, shape `(G * hidden, hidden)`
        For the state.
    bias_ih, bias_hh : ndarray, shape `(G * hidden,)`, or None
        Added to each.
    hr : ndarray, shape `(projected, hidden)`, or None
        Maps each step's state; ``hh`` then has as many columns.
    """

    ih: Array
    hh: Array
    bias_ih: Array | None = None
    bias_hh: Array | None = None
    hr: Array | None = None


class Cell(ABC):
    """One step; ``given`` and ``hidden`` are the input and the state times their weights."""

    gates: ClassVar[int]
    """Rows of the weights for each hidden unit."""

    states: ClassVar[int] = 1
    """Arrays of a state."""

    @abstractmethod
    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, Any]:
        """Return the next state, and what `back` needs."""

    @abstractmethod
    def back(self, kept: Any, state: State, slope: State) -> tuple[Array, Array, State]:
        """Gradients of ``given``, of ``hidden``, and of the state but for its way through hidden.

        Parameters
        ----------
        kept : object
            From `step`.
        state : tuple of ndarray
            The state before it.
        slope : tuple of ndarray
            Gradient of the state behind it.
        """


class LSTMCell(Cell):
    """``c' = f c + i g``, ``h' = o tanh(c')`` with gates i, f, g, o (torch.nn.LSTM)."""

    gates, states = 4, 2

    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, Any]:
        a, b, c, d = np.split(given + hidden, 4, axis=1)
        i, f, g, o = logistic(a), logistic(b), np.tanh(c), logistic(d)
        cell = f * state[1] + i * g
        bent = np.tanh(cell)
        return (o * bent, cell), (i, f, g, o, bent)

    def back(self, kept: Any, state: State, slope: State) -> tuple[Array, Array, State]:
        (i, f, g, o, bent), (dh, dc) = kept, slope
        dc = dc + dh * o * (1 - bent * bent)
        parts = [
            dc * g * i * (1 - i),
            dc * state[1] * f * (1 - f),
            dc * i * (1 - g * g),
            dh * bent * o * (1 - o),
        ]
        both = np.concatenate(parts, axis=1)
        return both, both, (np.zeros_like(dh), dc * f)


class GRUCell(Cell):
    """``h' = (1 - z) n + z h``, ``n = tanh(given + r hidden)`` with gates r, z (torch.nn.GRU)."""

    gates = 3

    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, Any]:
        ours, theirs = np.split(given, 3, axis=1), np.split(hidden, 3, axis=1)
        r, z = logistic(ours[0] + theirs[0]), logistic(ours[1] + theirs[1])
        n = np.tanh(ours[2] + r * theirs[2])
        return ((1 - z) * n + z * state[0],), (r, z, n, theirs[2])

    def back(self, kept: Any, state: State, slope: State) -> tuple[Array, Array, State]:
        (r, z, n, inner), (dh,) = kept, slope
        dn = dh * (1 - z) * (1 - n * n)
        dz = dh * (state[0] - n) * z * (1 - z)
        dr = dn * inner * r * (1 - r)
        given = np.concatenate([dr, dz, dn], axis=1)
        return given, np.concatenate([dr, dz, dn * r], axis=1), (dh * z,)


class TanhCell(Cell):
    """``h' = tanh(given + hidden)`` (torch.nn.RNN)."""

    gates = 1

    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, Any]:
        h = np.tanh(given + hidden)
        return (h,), h

    def back(self, kept: Any, state: State, slope: State) -> tuple[Array, Array, State]:
        both = slope[0] * (1 - kept * kept)
        return both, both, (np.zeros_like(both),)


class ReLUCell(Cell):
    """``h' = max(given + hidden, 0)`` (torch.nn.RNN with ``nonlinearity="relu"``)."""

    gates = 1

    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, Any]:
        h = np.maximum(given + hidden, 0)
        return (h,), h

    def back(self, kept: Any, state: State, slope: State) -> tuple[Array, Array, State]:
        both = slope[0] * (kept > 0)
        return both, both, (np.zeros_like(both),)


class Walked(NamedTuple):
    """What backward needs: the input, each step's kept values, and the states before the steps.

    ``wide`` are the steps' states before they are projected, where they are.
    """

    x: Array
    kept: list[Any]
    states: list[State]
    order: Sequence[int]
    wide: list[Array]


def walk(
    cell: Cell, x: Array, weights: Weights, start: State, turned: bool = False
) -> tuple[Array, State, Walked]:
    """Go along a sequence.

    Parameters
    ----------
    cell : Cell
        What a step does.
    x : ndarray, shape `(length, batch, features)`
        The input.
    weights : Weights
        Of this layer and direction.
    start : tuple of ndarray
        The first state.
    turned : bool
        Whether to begin at the end.

    Returns
    -------
    (ndarray, tuple of ndarray, Walked)
        What comes out, shape `(length, batch, hidden)`; the last state; and what `walk_back` needs.
    """
    given = x @ weights.ih.T
    if weights.bias_ih is not None:
        given += weights.bias_ih
    y = np.empty((*x.shape[:2], weights.hh.shape[1]), dtype=x.dtype)
    steps = range(len(x))
    order = steps[::-1] if turned else steps
    state, kept, states, wide = start, [], [], list[Array]()
    for at in order:
        hidden = state[0] @ weights.hh.T
        if weights.bias_hh is not None:
            hidden += weights.bias_hh
        states.append(state)
        state, more = cell.step(given[at], hidden, state)
        kept.append(more)
        if weights.hr is not None:
            wide.append(state[0])
            state = (state[0] @ weights.hr.T, *state[1:])
        y[at] = state[0]
    return y, state, Walked(x, kept, states, order, wide)


def walk_back(
    cell: Cell, saved: Walked, weights: Weights, dy: Array, end: State
) -> tuple[Array, Weights, State]:
    """Go back along a sequence.

    Parameters
    ----------
    cell, saved, weights
        As in `walk`, and what it returned.
    dy : ndarray, shape `(length, batch, hidden)`
        Gradient of what came out.
    end : tuple of ndarray
        Gradient of the last state.

    Returns
    -------
    (ndarray, Weights, tuple of ndarray)
        Gradients of the input, of the weights, and of the first state.
    """
    x, slope = saved.x, end
    shape = (*x.shape[:2], len(weights.hh))
    given, hidden = np.empty(shape, dtype=dy.dtype), np.empty(shape, dtype=dy.dtype)
    before = np.empty(dy.shape, dtype=dy.dtype)
    projected = None if weights.hr is None else np.zeros_like(weights.hr)
    for number in reversed(range(len(x))):
        at, state = saved.order[number], saved.states[number]
        before[at] = state[0]
        slope = (slope[0] + dy[at], *slope[1:])
        if projected is not None:
            projected += slope[0].T @ saved.wide[number]
            slope = (slope[0] @ weights.hr, *slope[1:])
        given[at], hidden[at], slope = cell.back(saved.kept[number], state, slope)
        through = hidden[at] @ weights.hh
        # Of a projected state there is no other way than through hidden.
        slope = (through if projected is not None else slope[0] + through, *slope[1:])
    flat, inner = given.reshape(-1, shape[2]), hidden.reshape(-1, shape[2])
    found = Weights(
        flat.T @ x.reshape(-1, x.shape[2]),
        inner.T @ before.reshape(-1, dy.shape[2]),
        None if weights.bias_ih is None else flat.sum(axis=0),
        None if weights.bias_hh is None else inner.sum(axis=0),
        projected,
    )
    return given @ weights.ih, found, slope
