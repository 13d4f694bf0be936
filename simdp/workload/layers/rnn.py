"""Recurrent layers: RNN, LSTM and GRU.

The first axis of arrays is the step, the second the sample. The input's part of all steps is one
product before the loop; each weight's gradient is one product after it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from math import sqrt
from typing import ClassVar, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import DTypeLike
from pydantic import Field, model_validator

from simdp.arrays import Array, Bools
from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.activations import logistic
from simdp.workload.layers.base import (
    Gradients,
    Kept,
    Kernel,
    Layer,
    Needs,
    Parameter,
    Pass,
    Shape,
    ShapeError,
    sequence_shape,
    uniform,
)
from simdp.workload.layers.tensor_ops import dropout_cost, kept_elements, masked

State = tuple[Array, ...]
"""State after a step, each array `(batch, hidden)`; the first one is the output."""


class Weights(NamedTuple):
    """Weights of one layer in one direction, with G gates."""

    ih: Array
    """For the input; shape `(G * hidden, features)`."""
    hh: Array
    """For the state; shape `(G * hidden, hidden)`."""
    bias_ih: Array | None = None
    """Added to each; shape `(G * hidden,)`."""
    bias_hh: Array | None = None
    """Added to each; shape `(G * hidden,)`."""
    hr: Array | None = None
    """Projects each step's state; ``hh`` then has ``projected`` columns; shape `(projected,
    hidden)`."""


class Cell(ABC):
    """One recurrent step; ``given`` and ``hidden`` are input and state times their weights."""

    gates: ClassVar[int]
    """Rows of the weights for each hidden unit."""

    states: ClassVar[int] = 1
    """Arrays of a state."""

    @abstractmethod
    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, State]:
        """Return the next state, and the values that `back` needs."""

    @abstractmethod
    def back(self, kept: State, state: State, slope: State) -> tuple[Array, Array, State]:
        """Gradients of ``given``, of ``hidden``, and of the state except through ``hidden``.

        ``kept`` is the second result of `step`, ``state`` the state before it, ``slope`` the
        gradient of the state after it.
        """


class LSTMCell(Cell):
    """``c' = f c + i g``, ``h' = o tanh(c')`` with gates i, f, g, o (torch.nn.LSTM)."""

    gates, states = 4, 2

    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, State]:
        a, b, c, d = np.split(given + hidden, 4, axis=1)
        i, f, g, o = logistic(a), logistic(b), np.tanh(c), logistic(d)
        cell = f * state[1] + i * g
        bent = np.tanh(cell)
        return (o * bent, cell), (i, f, g, o, bent)

    def back(self, kept: State, state: State, slope: State) -> tuple[Array, Array, State]:
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

    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, State]:
        ours, theirs = np.split(given, 3, axis=1), np.split(hidden, 3, axis=1)
        r, z = logistic(ours[0] + theirs[0]), logistic(ours[1] + theirs[1])
        n = np.tanh(ours[2] + r * theirs[2])
        return ((1 - z) * n + z * state[0],), (r, z, n, theirs[2])

    def back(self, kept: State, state: State, slope: State) -> tuple[Array, Array, State]:
        (r, z, n, inner), (dh,) = kept, slope
        dn = dh * (1 - z) * (1 - n * n)
        dz = dh * (state[0] - n) * z * (1 - z)
        dr = dn * inner * r * (1 - r)
        given = np.concatenate([dr, dz, dn], axis=1)
        return given, np.concatenate([dr, dz, dn * r], axis=1), (dh * z,)


class TanhCell(Cell):
    """``h' = tanh(given + hidden)`` (torch.nn.RNN)."""

    gates = 1

    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, State]:
        h = np.tanh(given + hidden)
        return (h,), (h,)

    def back(self, kept: State, state: State, slope: State) -> tuple[Array, Array, State]:
        (h,), (dh,) = kept, slope
        both = dh * (1 - h * h)
        return both, both, (np.zeros_like(both),)


class ReLUCell(Cell):
    """``h' = max(given + hidden, 0)`` (torch.nn.RNN with ``nonlinearity="relu"``)."""

    gates = 1

    def step(self, given: Array, hidden: Array, state: State) -> tuple[State, State]:
        h = np.maximum(given + hidden, 0)
        return (h,), (h,)

    def back(self, kept: State, state: State, slope: State) -> tuple[Array, Array, State]:
        (h,), (dh,) = kept, slope
        both = dh * (h > 0)
        return both, both, (np.zeros_like(both),)


class Walked(NamedTuple):
    """For backward: the input, each step's kept values, and the states before the steps.

    ``wide``: the steps' states before projection, if any.
    """

    x: Array
    kept: list[State]
    states: list[State]
    order: Sequence[int]
    wide: list[Array]


def walk(
    cell: Cell, x: Array, weights: Weights, start: State, turned: bool = False
) -> tuple[Array, State, Walked]:
    """Run a cell along x, shape `(length, batch, features)`, or from its end if ``turned``.

    Returns the output, shape `(length, batch, hidden)`; the last state; and the values for
    `walk_back`.
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
    """Gradients of the input, of the weights and of the initial state of a `walk`.

    ``dy`` is the gradient of the output, ``end`` that of the last state.
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
        # A projected state acts only through hidden.
        slope = (through if projected is not None else slope[0] + through, *slope[1:])
    flat, inner = given.reshape(-1, shape[2]), hidden.reshape(-1, shape[2])
    gradients = Weights(
        flat.T @ x.reshape(-1, x.shape[2]),
        inner.T @ before.reshape(-1, dy.shape[2]),
        None if weights.bias_ih is None else flat.sum(axis=0),
        None if weights.bias_hh is None else inner.sum(axis=0),
        projected,
    )
    return given @ weights.ih, gradients, slope


class Below(NamedTuple):
    """For backward of one layer of the stack: its directions and the mask of dropout."""

    walked: list[Walked]
    mask: Bools | None


class Recurrent(Layer):
    """Base: a stack of recurrent layers; samples are `(length, input_size)`, states start at 0."""

    input_size: Int = Field(ge=1, le=10**8)
    """Features of a step's input, and of the state."""
    hidden_size: Int = Field(ge=1, le=10**8)
    """Features of a step's input, and of the state."""
    num_layers: Int = Field(1, ge=1, le=1000)
    """Layers; each takes the output of the one below."""
    bias: Bool = True
    """Whether layers have biases."""
    batch_first: Bool = True
    """Must be true: samples are the first axis everywhere in simdp."""
    dropout: Float = Field(0.0, ge=0, le=1)
    """Share of the output of each layer but the last that is dropped."""
    bidirectional: Bool = False
    """Whether each layer also runs from the end to the start; both outputs are concatenated."""

    family = "recurrent"
    autocast = "lower"
    uses_cudnn: ClassVar[bool] = True

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if not self.batch_first:
            raise problem(
                "batch_first: false puts the steps first, but samples come first here; write true, "
                "or leave it out."
            )
        if self.dropout and self.num_layers == 1:
            raise problem(
                f"dropout: {self.dropout} acts between layers, but num_layers is 1; leave it out, "
                "or write more layers."
            )
        return self

    @property
    @abstractmethod
    def cell(self) -> Cell:
        """The recurrent step."""

    @property
    def state_size(self) -> int:
        """Features of the state that is passed to the next step and layer."""
        return self.hidden_size

    @property
    def width(self) -> int:
        """Features of the output, of both directions."""
        return self.state_size * (1 + self.bidirectional)

    def _suffixes(self, number: int) -> list[str]:
        return [f"l{number}", f"l{number}_reverse"][: 1 + self.bidirectional]

    def _parts(self) -> dict[str, str]:
        """Field of `Weights` by name of parameter without layer number."""
        parts = ["ih", "hh"]
        parts_by_name = {part: f"weight_{part}" for part in parts}
        if self.bias:
            parts_by_name |= {f"bias_{part}": f"bias_{part}" for part in parts}
        if self.state_size != self.hidden_size:
            parts_by_name["hr"] = "weight_hr"
        return {name: part for part, name in parts_by_name.items()}

    def _fan_in(self, number: int) -> int:
        return self.width if number else self.input_size

    def parameters(self) -> list[Parameter]:
        rows = self.cell.gates * self.hidden_size
        start = uniform(1.0 / sqrt(self.hidden_size))
        parameters = []
        for number in range(self.num_layers):
            shapes: dict[str, Shape] = {
                "ih": (rows, self._fan_in(number)),
                "hh": (rows, self.state_size),
                "bias_ih": (rows,),
                "bias_hh": (rows,),
                "hr": (self.state_size, self.hidden_size),
            }
            for suffix in self._suffixes(number):
                parameters += [
                    Parameter(f"{self.name}.{name}_{suffix}", shapes[part], start)
                    for name, part in self._parts().items()
                ]
        return parameters

    def output_shape(self, *inputs: Shape) -> Shape:
        length, features = sequence_shape(inputs[0])
        if features != self.input_size:
            raise ShapeError(f"takes {self.input_size} features, but gets samples of {inputs[0]}")
        return (length, self.width)

    def _directions(self, run: Pass, number: int) -> Iterator[tuple[str, Weights]]:
        for suffix in self._suffixes(number):
            arrays = {
                part: run.parameters[f"{self.name}.{name}_{suffix}"]
                for name, part in self._parts().items()
            }
            yield suffix, Weights(**arrays)

    def _zeros(self, batch: int, dtype: DTypeLike) -> State:
        """A state of zeros; its first array is the one passed on."""
        sizes = [self.state_size, *[self.hidden_size] * (self.cell.states - 1)]
        return tuple(np.zeros((batch, size), dtype=dtype) for size in sizes)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, list[Below]]:
        h = np.ascontiguousarray(inputs[0].swapaxes(0, 1))
        cell, saved = self.cell, []
        zeros = self._zeros(h.shape[1], h.dtype)
        for number in range(self.num_layers):
            mask = None
            if number and self.dropout:
                shape = (len(h), h.shape[2])
                mask = kept_elements(run, f"{self.name}.{number}", self.dropout, shape)
                mask = mask.swapaxes(0, 1)
                h = masked(h, mask, self.dropout)
            made, walked = [], []
            for suffix, weights in self._directions(run, number):
                y, _, kept = walk(cell, h, weights, zeros, "reverse" in suffix)
                made.append(y)
                walked.append(kept)
            h = np.concatenate(made, axis=2)
            saved.append(Below(walked, mask))
        return np.ascontiguousarray(h.swapaxes(0, 1)), saved

    def backward(self, run: Pass, saved: list[Below], dy: Array, needs: Needs) -> Gradients:
        slope, cell = np.ascontiguousarray(dy.swapaxes(0, 1)), self.cell
        zeros = self._zeros(slope.shape[1], dy.dtype)
        for number in reversed(range(self.num_layers)):
            parts = np.split(slope, 1 + self.bidirectional, axis=2)
            below = saved[number]
            slope = np.zeros(below.walked[0].x.shape, dtype=dy.dtype)
            directions = zip(self._directions(run, number), below.walked, parts, strict=True)
            for (suffix, weights), walked, part in directions:
                dx, gradients, _ = walk_back(cell, walked, weights, part, zeros)
                slope += dx
                for name, part_of in self._parts().items():
                    run.add_gradient(f"{self.name}.{name}_{suffix}", getattr(gradients, part_of))
            if below.mask is not None:
                slope = masked(slope, below.mask, self.dropout)
        return (np.ascontiguousarray(slope.swapaxes(0, 1)) if needs[0] else None,)

    # Costs --------------------------------------------------------------------------------------

    def _products(self, number: int, length: int, itemsize: int) -> tuple[Kernel, Kernel]:
        """Kernels of the input of all steps, and of one step's state.

        The elementwise part is fused into the step (Appleyard, Kočiský and Blunsom, arXiv
        1604.01946).
        """
        hidden, fan_in, size = self.hidden_size, self._fan_in(number), self.state_size
        rows, projected = self.cell.gates * hidden, (size != hidden) * size * hidden
        given = Kernel(
            2.0 * length * rows * fan_in,
            float(length * (rows + fan_in) * itemsize),
            float(rows * (fan_in + self.bias) * itemsize),
        )
        step = Kernel(
            2.0 * (rows * size + projected),
            float((rows + 2 * self.cell.states * hidden) * itemsize),
            float((rows * (size + self.bias) + projected) * itemsize),
        )
        return given, step

    def _dropped(self, length: int, itemsize: int) -> list[Kernel]:
        return [dropout_cost(float(length * self.width), itemsize)] * bool(self.dropout)

    def forward_cost(self, inputs: Sequence[Shape], itemsize: int) -> list[Kernel]:
        length, kernels = inputs[0][0], []
        for number in range(self.num_layers):
            given, step = self._products(number, length, itemsize)
            kernels += self._dropped(length, itemsize) * bool(number)
            kernels += [given, *[step] * length] * (1 + self.bidirectional)
        return kernels

    def backward_cost(self, inputs: Sequence[Shape], itemsize: int, needs: Needs) -> list[Kernel]:
        """Each step's state; then, for all steps at once, the input and both weights."""
        length, kernels = inputs[0][0], []
        for number in reversed(range(self.num_layers)):
            given, step = self._products(number, length, itemsize)
            inner = Kernel(length * step.flops, length * step.nbytes, step.fixed)
            below = bool(number) or needs[0]
            per_direction = [*[step] * length, *[given] * below, given, inner]
            kernels += per_direction * (1 + self.bidirectional)
            kernels += self._dropped(length, itemsize) * bool(number)
        return kernels

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """Gates and states of all steps, outputs of the lower layers, masks of dropout."""
        length, hidden = inputs[0][0], self.hidden_size
        kept = self.cell.gates + self.cell.states - 1 + (self.state_size != hidden)
        per_layer = kept * hidden * (1 + self.bidirectional)
        below = self.width * (self.num_layers - 1)
        mask = float(length * below * bool(self.dropout))
        values = float(length * (per_layer * self.num_layers + below))
        return Kept(inputs=(0,), output=True, nbytes=values * itemsize + mask)

    def evaluated(self) -> Layer:
        return self.model_copy(update={"dropout": 0.0})


class RNN(Recurrent):
    """A stack of plain recurrent layers; the output is the last layer's states."""

    kind: Literal["rnn"] = "rnn"
    nonlinearity: Literal["tanh", "relu"] = "tanh"
    """Activation of the sum of input and state."""

    @property
    def cell(self) -> Cell:
        return TanhCell() if self.nonlinearity == "tanh" else ReLUCell()


class LSTM(Recurrent):
    """A stack of long short-term memory layers; the output is the last layer's states."""

    kind: Literal["lstm"] = "lstm"
    proj_size: Int = Field(0, ge=0, le=10**8)
    """Features that each step's state is projected to (Sak, Senior and Beaufays, arXiv 1402.1128);
    0 for no projection."""

    @model_validator(mode="after")
    def _projection_is_smaller(self) -> Self:
        if self.proj_size >= self.hidden_size:
            raise problem(
                f"proj_size: {self.proj_size} is not less than hidden_size, {self.hidden_size}; "
                "write less, or 0 for no projection."
            )
        return self

    @property
    def state_size(self) -> int:
        return self.proj_size or self.hidden_size

    @property
    def cell(self) -> Cell:
        return LSTMCell()


class GRU(Recurrent):
    """A stack of gated recurrent layers; the output is the last layer's states."""

    kind: Literal["gru"] = "gru"

    @property
    def cell(self) -> Cell:
        return GRUCell()
