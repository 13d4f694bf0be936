"""Recurrent: base of torch.nn.LSTM, GRU and RNN, which go along a sequence step by step."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from math import sqrt
from typing import Any, ClassVar, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator

from simdp.arrays import Array, Bools
from simdp.spec import Bool, Float, Int, problem
from simdp.workload.layers.arrays.recurrence import Cell, State, Walked, Weights, walk, walk_back
from simdp.workload.layers.base import Kept, Kernel, Layer, Pass, Shape, ShapeError
from simdp.workload.layers.dropout import dropout_cost, kept_elements, masked
from simdp.workload.layers.parameter import Parameter, uniform
from simdp.workload.layers.shapes import sequence_shape


class Below(NamedTuple):
    """What a layer of the stack leaves for backward: its directions, and what dropout kept."""

    walked: list[Walked]
    mask: Bools | None


class Recurrent(Layer):
    """Base: a stack of recurrent layers; samples are `(length, input_size)`, zeros come first.

    Attributes
    ----------
    input_size, hidden_size : int
        Features of a step that comes in, and of the state.
    num_layers : int
        Layers; each goes along what the one below has made.
    bias : bool
        Whether there are any.
    batch_first : bool
        True: the samples come first, as everywhere here.
    dropout : float
        Share of what each layer but the last makes that is dropped.
    bidirectional : bool
        Whether each layer also goes along the sequence from its end; both parts lie side by side.
    """

    input_size: Int = Field(ge=1, le=10**8)
    hidden_size: Int = Field(ge=1, le=10**8)
    num_layers: Int = Field(1, ge=1, le=1000)
    bias: Bool = True
    batch_first: Bool = True
    dropout: Float = Field(0.0, ge=0, le=1)
    bidirectional: Bool = False

    autocast: ClassVar[Literal["lower"]] = "lower"

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
        """What a step does."""

    @property
    def state_size(self) -> int:
        """Features of the state that goes on to the next step and layer."""
        return self.hidden_size

    @property
    def width(self) -> int:
        """Features that come out, of both directions."""
        return self.state_size * (1 + self.bidirectional)

    def _suffixes(self, number: int) -> list[str]:
        return [f"l{number}", f"l{number}_reverse"][: 1 + self.bidirectional]

    def _parts(self) -> dict[str, str]:
        """Names of the parameters of a layer, without its number, and what `Weights` call them."""
        parts = ["ih", "hh"]
        found = {part: f"weight_{part}" for part in parts}
        if self.bias:
            found |= {f"bias_{part}": f"bias_{part}" for part in parts}
        if self.state_size != self.hidden_size:
            found["hr"] = "weight_hr"
        return {name: part for part, name in found.items()}

    def _fan_in(self, number: int) -> int:
        return self.width if number else self.input_size

    def parameters(self) -> list[Parameter]:
        rows = self.cell.gates * self.hidden_size
        start = uniform(1.0 / sqrt(self.hidden_size))
        found = []
        for number in range(self.num_layers):
            shapes: dict[str, Shape] = {
                "ih": (rows, self._fan_in(number)),
                "hh": (rows, self.state_size),
                "bias_ih": (rows,),
                "bias_hh": (rows,),
                "hr": (self.state_size, self.hidden_size),
            }
            for suffix in self._suffixes(number):
                found += [
                    Parameter(f"{self.name}.{name}_{suffix}", shapes[part], start)
                    for name, part in self._parts().items()
                ]
        return found

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

    def _zeros(self, batch: int, dtype: np.dtype[Any]) -> State:
        """A state of zeros, of which the first array is what goes on."""
        sizes = [self.state_size, *[self.hidden_size] * (self.cell.states - 1)]
        return tuple(np.zeros((batch, size), dtype=dtype) for size in sizes)

    def forward(self, run: Pass, *inputs: Array) -> tuple[Array, Any]:
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

    def backward(
        self, run: Pass, saved: Any, dy: Array, needs: Sequence[bool]
    ) -> tuple[Array | None, ...]:
        slope, cell = np.ascontiguousarray(dy.swapaxes(0, 1)), self.cell
        zeros = self._zeros(slope.shape[1], dy.dtype)
        for number in reversed(range(self.num_layers)):
            parts = np.split(slope, 1 + self.bidirectional, axis=2)
            slope = np.zeros(saved[number].walked[0].x.shape, dtype=dy.dtype)
            directions = zip(
                self._directions(run, number), saved[number].walked, parts, strict=True
            )
            for (suffix, weights), walked, part in directions:
                dx, found, _ = walk_back(cell, walked, weights, part, zeros)
                slope += dx
                for name, part_of in self._parts().items():
                    gradient = getattr(found, part_of)
                    run.add_gradient(f"{self.name}.{name}_{suffix}", gradient)
            if saved[number].mask is not None:
                slope = masked(slope, saved[number].mask, self.dropout)
        return (np.ascontiguousarray(slope.swapaxes(0, 1)) if needs[0] else None,)

    # Costs --------------------------------------------------------------------------------------

    def _products(self, number: int, length: int, itemsize: int) -> tuple[Kernel, Kernel]:
        """Of the input of all steps at once, and of one step's state.

        Appleyard, Kočiský and Blunsom, arXiv 1604.01946: the elementwise part is joined to a step.
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
        length, found = inputs[0][0], []
        for number in range(self.num_layers):
            given, step = self._products(number, length, itemsize)
            found += self._dropped(length, itemsize) * bool(number)
            found += [given, *[step] * length] * (1 + self.bidirectional)
        return found

    def backward_cost(
        self, inputs: Sequence[Shape], itemsize: int, needs: Sequence[bool]
    ) -> list[Kernel]:
        """Each step's state; then, of all steps at once, the input and both weights."""
        length, found = inputs[0][0], []
        for number in reversed(range(self.num_layers)):
            given, step = self._products(number, length, itemsize)
            inner = Kernel(length * step.flops, length * step.nbytes, step.fixed)
            below = bool(number) or needs[0]
            each = [*[step] * length, *[given] * below, given, inner]
            found += each * (1 + self.bidirectional)
            found += self._dropped(length, itemsize) * bool(number)
        return found

    def kept(self, inputs: Sequence[Shape], itemsize: int) -> Kept:
        """The gates and the states of every step, the output of layers below, dropout's masks."""
        length, hidden = inputs[0][0], self.hidden_size
        kept = self.cell.gates + self.cell.states - 1 + (self.state_size != hidden)
        each = kept * hidden * (1 + self.bidirectional)
        below = self.width * (self.num_layers - 1)
        mask = float(length * below * bool(self.dropout))
        values = float(length * (each * self.num_layers + below))
        return Kept(inputs=(0,), output=True, nbytes=values * itemsize + mask)

    def evaluated(self) -> Layer:
        return self.model_copy(update={"dropout": 0.0})
