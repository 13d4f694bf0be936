"""Forward and backward of a graph on one rank, in NumPy, without a clock.

Both are generators, since layers such as SyncBatchNorm exchange numbers with other ranks: a
generator yields a rank's part and receives the answer. Most models never yield.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from simdp.arrays import Array
from simdp.workload.layers.base import (
    PAUSE,
    Exchange,
    ModelGraph,
    Parameters,
    Pass,
    Synchronised,
    within,
)
from simdp.workload.precision import Precision, rounded

Kept = list[Any]
"""Values that each call keeps from forward for backward."""


def call_dtypes(graph: ModelGraph, precision: Precision, dtype: str) -> tuple[str, ...]:
    """Dtype in which each call runs; ``dtype`` is that of parameters and inputs."""
    if precision.wide_units and precision.low is not None:
        return widened(graph, precision.wide_units, precision.low, dtype).dtypes
    flowing = [dtype for _ in graph.inputs]
    for call in graph.calls:
        given = [flowing[value] for value in call.inputs]
        flowing.append(precision.compute_dtype(call.layer.autocast, given, dtype))
    return tuple(flowing[len(graph.inputs) :])


class Widened(NamedTuple):
    """Dtypes if modules compute in 16 bits and return 32 bits."""

    dtypes: tuple[str, ...]
    """Of each call."""
    leaves: tuple[int, ...]
    """Values that are cast to full precision as they leave a module."""
    enters: tuple[tuple[int, int], ...]
    """Values that are cast back, and the call of another module that takes them."""
    mixes: int | None
    """The first call outside of modules that torch rejects: 32-bit values meet 16-bit weights."""


def widened(graph: ModelGraph, units: Sequence[str], low: str, full: str) -> Widened:
    """Follow values out of ``units``, computed in ``low``, and into others, in ``full``.

    For units see `simdp.workload.layers.base.within`.
    """
    places = within([call.layer for call in graph.calls], units)
    first, dtypes, mixes = len(graph.inputs), list[str](), None
    leaves = dict[int, None]()
    enters = dict[tuple[int, frozenset[str]], int]()
    for number, call in enumerate(graph.calls):
        here, wide = places[number], list[bool]()
        for value in call.inputs:
            if value < first:  # the root casts its inputs
                continue
            made_in = places[value - first]
            if made_in - here:
                leaves[value] = None
            is_wide = bool(made_in - here) or dtypes[value - first] == full
            if is_wide and here - made_in:
                enters.setdefault((value, here), number)
            wide.append(is_wide and not here - made_in)
        if any(wide) and mixes is None:
            product = call.layer.autocast == "lower" and not all(wide)
            mixes = number if call.layer.parameters() or product else None
        dtypes.append(full if any(wide) else low)
    entering = tuple((value, number) for (value, _), number in enters.items())
    return Widened(tuple(dtypes), tuple(leaves), entering, mixes)


class GraphExecutor:
    """Runs a graph's calls, rounding inputs and outputs of those in 16 bits.

    Rounded values stay in arrays of the full dtype: NumPy's 16-bit products are far slower.
    ``dtypes`` is the result of `call_dtypes`, ``dtype`` that of the arrays.
    """

    def __init__(self, graph: ModelGraph, dtypes: Sequence[str], dtype: str) -> None:
        self.graph, self.dtype = graph, dtype
        self.low = [None if name == dtype else name for name in dtypes]
        last = {v: number for number, call in enumerate(graph.calls) for v in call.inputs}
        kept = {value for value, _ in graph.outputs}
        self._done: list[list[int]] = [[] for _ in graph.calls]
        for value, number in last.items():
            if value not in kept:
                self._done[number].append(value)

    def forward(
        self, run: Pass, inputs: Sequence[Array], keeps: bool = True
    ) -> Exchange[tuple[list[Array], Kept]]:
        """Run the calls; yields and receives as `Synchronised.exchanged_forward`.

        Parameters
        ----------
        run : Pass
            The rank's arrays.
        inputs : sequence of ndarray
            The graph's inputs, each with the samples along its first axis.
        keeps : bool
            False keeps nothing for `backward`.

        Returns
        -------
        (list of ndarray, list)
            The graph's outputs, and the kept values for `backward`.
        """
        values: list[Any] = list(inputs)
        kept: Kept = []
        rounds = _Rounding(run)
        for number, call in enumerate(self.graph.calls):
            if run.pauses:
                yield PAUSE
            given, low = [values[value] for value in call.inputs], self.low[number]
            here = rounds.of(low)
            if low is not None:
                given = [_rounded(value, low) for value in given]
            if isinstance(call.layer, Synchronised):
                y, saved = yield from call.layer.exchanged_forward(here, *given)
            else:
                y, saved = call.layer.forward(here, *given)
            values.append(y if low is None else rounded(y, low))
            if keeps:
                kept.append((here, saved))
            for value in self._done[number]:
                values[value] = None
            del given, saved, y  # free them before the next call
        return [values[value] for value, _ in self.graph.outputs], kept

    def backward(self, run: Pass, kept: Kept, slopes: Sequence[Array]) -> Exchange[None]:
        """Add the gradients of the parameters to the pass, the last call first.

        Parameters
        ----------
        run : Pass
            The same as in forward.
        kept : list
            Result of forward; emptied meanwhile.
        slopes : sequence of ndarray
            Gradients of the graph's outputs.
        """
        first, frozen = len(self.graph.inputs), self.graph.frozen
        flowing: dict[int, Array] = {}
        for (value, _), slope in zip(self.graph.outputs, slopes, strict=True):
            flowing[value] = slope
        for number in reversed(range(len(self.graph.calls))):
            if run.pauses:
                yield PAUSE
            call, low, needs = self.graph.calls[number], self.low[number], self.graph.needs[number]
            (here, saved), dy = kept.pop(), flowing.pop(first + number, None)
            if dy is None:  # the loss does not depend on it
                continue
            if low is not None:
                dy = rounded(dy, low)
            if isinstance(call.layer, Synchronised):
                below = yield from call.layer.exchanged_backward(here, saved, dy, needs)
            else:
                below = call.layer.backward(here, saved, dy, needs)
            if low is not None:
                for name in call.layer.ready_order():
                    if name in run.gradients:
                        run.gradients[name][...] = rounded(run.gradients[name], low)
            for name in frozen.intersection(call.layer.ready_order()) if frozen else ():
                run.gradients.pop(name, None)
            for value, part in zip(call.inputs, below, strict=True):
                if part is None:
                    continue
                more = part if low is None else rounded(part, low)
                known = flowing.get(value)
                flowing[value] = more if known is None else known + more


class _Rounding:
    """Passes with rounded weights, made once per forward and dtype."""

    def __init__(self, run: Pass) -> None:
        self._passes: dict[str | None, Pass] = {None: run}

    def of(self, low: str | None) -> Pass:
        """The pass for calls of this dtype; all share gradients and buffers."""
        if low not in self._passes:
            run = self._passes[None]
            assert low is not None
            self._passes[low] = replace(run, parameters=_Rounded(run.parameters, low))
        return self._passes[low]


class _Rounded(Mapping[str, Array]):
    """Weights, each rounded at its first use."""

    def __init__(self, weights: Parameters, low: str) -> None:
        self._weights, self._low = weights, low
        self._found: dict[str, Array] = {}

    def __getitem__(self, name: str) -> Array:
        if name not in self._found:
            self._found[name] = rounded(self._weights[name], self._low)
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def _rounded(value: Array, low: str) -> Array:
    return rounded(value, low) if value.dtype.kind == "f" else value
