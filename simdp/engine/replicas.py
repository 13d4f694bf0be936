"""Replicas: the numbers of a run. Each rank has its own weights, gradients and optimizer state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from simdp.collectives import Plan
from simdp.engine import payload
from simdp.engine.threads import each_rank
from simdp.scenario import Scenario
from simdp.workload.layers.base import NO_ARRAYS, Parameters
from simdp.workload.sampling import StepBatches

Array = NDArray[Any]
T = TypeVar("T")


class Replicas:
    """Every rank's arrays.

    Parameters
    ----------
    scenario : Scenario
        One point, with numerics.
    world_size : int
        Number of ranks.

    Attributes
    ----------
    weights : list of dict of str to ndarray
        Of each rank, by torch name.
    gradients : list of dict of str to ndarray
        Of the current step; empty before its first backward.
    """

    def __init__(self, scenario: Scenario, world_size: int) -> None:
        workload = scenario.workload
        self.world_size = world_size
        self.dtype = np.dtype(workload.dtype)
        self.layers, self.loss = workload.model.layers(), workload.loss
        self.optimizer = workload.optimizer
        self._num_elements = workload.model.num_parameters()
        arrays = workload.dataset.arrays(workload.model, scenario.seed, scenario.base)
        self.x, self.y = (
            a.astype(self.dtype) if np.issubdtype(a.dtype, np.floating) else a
            for a in (arrays["x"], arrays["y"])
        )
        self.weights = self._each_rank(
            lambda rank: workload.initial_weights(scenario.seed, rank, scenario.base)
        )
        self.gradients: list[dict[str, Array]] = [{} for _ in range(world_size)]
        self._state = [
            {name: self.optimizer.new_state(w) for name, w in weights.items()}
            for weights in self.weights
        ]
        self._saved: list[tuple[list[Any], Array] | None] = [None] * world_size
        # Gradients are written over those of the step before, which saves the system from handing
        # out and clearing fresh memory; later micro-steps have arrays of their own, to be added.
        self._own = [
            {name: np.empty_like(w) for name, w in weights.items()} for weights in self.weights
        ]
        self._buffers: dict[tuple[str, ...], FlatBuffers] = {}

    def _each_rank(self, work: Callable[[int], T]) -> list[T]:
        return each_rank(work, self.world_size, self._num_elements)

    def counts(self, batches: StepBatches) -> NDArray[np.float64]:
        """How many things each loss averages, shape `(num_micro, world_size)`."""
        return np.array(
            [[self.loss.count(self.y[part]) for part in ranks] for ranks in batches.micro],
            dtype=float,
        )

    def forward(self, parts: Sequence[Array], scales: Array) -> NDArray[np.float64]:
        """Run every rank's model and loss on its samples.

        Parameters
        ----------
        parts : sequence of ndarray
            Sample indices of each rank.
        scales : ndarray, shape `(world_size,)`
            Factor on each rank's loss, for the gradients alone.

        Returns
        -------
        ndarray, shape `(world_size,)`
            The unscaled losses; nan where a rank has nothing to average.
        """
        losses = self._each_rank(
            lambda rank: self._forward_of(rank, parts[rank], float(scales[rank]))
        )
        return np.array(losses)

    def _forward_of(self, rank: int, part: Array, scale: float) -> float:
        self._saved[rank] = None
        target = self.y[part]
        if not self.loss.count(target):
            return np.nan
        out, saved = self.x[part], []
        for layer in self.layers:
            out, kept = layer.forward(self.weights[rank], out)
            saved.append(kept)
        loss, slope = self.loss.value_and_grad(out, target)
        if scale != 1.0:
            slope *= self.dtype.type(scale)
        self._saved[rank] = saved, slope
        return loss

    def backward(self) -> None:
        """Add the gradients of the last forward to those of the step."""
        self._each_rank(self._accumulate)

    def _accumulate(self, rank: int) -> None:
        total = self.gradients[rank]
        found = self._backward_of(rank, NO_ARRAYS if total else self._own[rank])
        for name, gradient in found.items():
            if name in total:
                total[name] += gradient
            else:
                total[name] = gradient
        self._saved[rank] = None

    def _backward_of(self, rank: int, into: Parameters) -> dict[str, Array]:
        weights, kept = self.weights[rank], self._saved[rank]
        if kept is None:  # nothing to learn from: a gradient of zero
            return {name: np.zeros_like(w) for name, w in weights.items()}
        saved, slope = kept
        found: dict[str, Array] = {}
        for number in reversed(range(len(self.layers))):
            layer, need_input_grad = self.layers[number], number > 0
            below, gradients = layer.backward(weights, saved[number], slope, need_input_grad, into)
            found.update(gradients)
            slope = below if below is not None else slope
        return found

    def forget_buffers(self) -> None:
        """Give back the memory of flat buffers; those still needed are made anew."""
        self._buffers.clear()

    def buffers(self, names: Sequence[str]) -> FlatBuffers:
        """Flat buffers, one per rank, with room for some parameters; kept until forgotten."""
        key = tuple(names)
        if key not in self._buffers:
            shapes = {name: self.weights[0][name].shape for name in names}
            self._buffers[key] = FlatBuffers(shapes, self.world_size, self.dtype)
        return self._buffers[key]

    def fill(self, views: Sequence[Array], name: str, factor: float) -> None:
        """Write every rank's gradient of a parameter, times a factor, to a place in its buffer."""
        scale = self.dtype.type(factor)
        self._each_rank(
            lambda rank: np.multiply(self.gradients[rank][name], scale, out=views[rank])
        )

    def update(self, step: int) -> float:
        """Let the optimizer change every rank's weights; forget the gradients.

        Returns
        -------
        float
            Norm of rank 0's gradient before.
        """
        norm = sqrt(sum(float(np.vdot(g, g)) for g in self.gradients[0].values()))
        self._each_rank(lambda rank: self._update_of(rank, step))
        return norm

    def _update_of(self, rank: int, step: int) -> None:
        gradients, state, optimizer = self.gradients[rank], self._state[rank], self.optimizer
        for name, weight in self.weights[rank].items():
            optimizer.step(weight, gradients[name], state[name], optimizer.lr, step + 1)
        self.gradients[rank] = {}

    def identical(self) -> bool:
        """Whether all ranks hold the same weights, bit for bit."""
        first = self.weights[0]
        return all(
            weights[name].tobytes() == first[name].tobytes()
            for weights in self.weights[1:]
            for name in first
        )


class FlatBuffers:
    """One contiguous buffer per rank that holds several tensors, one after the other.

    Parameters
    ----------
    shapes : dict of str to tuple
        Of the tensors, in order.
    world_size : int
        Number of ranks.
    dtype : numpy dtype
        Of the elements.
    """

    def __init__(
        self, shapes: dict[str, tuple[int, ...]], world_size: int, dtype: np.dtype[Any]
    ) -> None:
        sizes = [prod(shape) for shape in shapes.values()]
        ends = np.cumsum([0, *sizes]).tolist()
        self.flat = [np.empty(ends[-1], dtype) for _ in range(world_size)]
        self._places = {
            name: (slice(begin, end), shape)
            for (name, shape), begin, end in zip(shapes.items(), ends, ends[1:], strict=False)
        }

    def views(self, name: str) -> list[Array]:
        """One tensor's place in every rank's buffer, in the tensor's shape."""
        place, shape = self._places[name]
        return [flat[place].reshape(shape) for flat in self.flat]

    def names(self) -> list[str]:
        """The tensors, in order."""
        return list(self._places)

    def communicate(self, plan: Plan) -> None:
        """Carry out a collective on the buffers."""
        payload.run(plan, self.flat)
