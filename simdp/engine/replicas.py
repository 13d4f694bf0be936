"""Replicas of the model, and their forward and backward through the graph."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from simdp.arrays import Array, Floats
from simdp.collectives import Plan
from simdp.engine import payload
from simdp.engine.payload import FlatBuffers, of_rank, without_repeats
from simdp.engine.samples import BatchSamples
from simdp.engine.threads import each_rank
from simdp.engine.trainer import Trainer, UpdateResult
from simdp.scenario.root import Scenario
from simdp.workload.execution import GraphExecutor, Kept, call_dtypes
from simdp.workload.layers.base import NO_ARRAYS, PAUSE, Exchange, Pass
from simdp.workload.precision import cast, numpy_dtype, rounded
from simdp.workload.sampling import Participants
from simdp.workload.schedules.base import Progress

T = TypeVar("T")
Answer = Callable[[list[Array]], list[Array]]
"""Takes a part from each rank, returns the reply to each."""


class Walk(Generic[T]):
    """Runs a generator from pause to pause; creation runs it to the first one."""

    def __init__(self, steps: Generator[None, None, T]) -> None:
        self._steps = steps
        self._result: T | None = None
        self.step()

    def step(self) -> None:
        """Continue to the next pause, or to the end; after the end, do nothing."""
        try:
            next(self._steps)
        except StopIteration as stop:
            if stop.value is not None:
                self._result = stop.value

    def result(self) -> T:
        """The generator's return value."""
        assert self._result is not None, "the generator has not ended"
        return self._result


def together(
    scripts: Sequence[Exchange[T]], answer: Answer, num_elements: int
) -> Generator[None, None, list[T]]:
    """Run every rank's script; parts that they yield are exchanged together by ``answer``.

    A script yields parts or `PAUSE`; this yields when the scripts pause. Finished ranks take part
    with zeros. Returns the scripts' return values, by rank.
    """
    results: list[Any] = [None] * len(scripts)
    waiting = set(range(len(scripts)))
    answers: list[Array | None] = [None] * len(scripts)

    def advance(rank: int) -> Array | None:
        if rank not in waiting:
            return None
        try:
            return scripts[rank].send(answers[rank])  # type: ignore[arg-type]  # None starts it
        except StopIteration as stop:
            results[rank] = stop.value
            return None

    while waiting:
        parts = each_rank(advance, len(scripts), num_elements)
        waiting = {rank for rank, part in enumerate(parts) if part is not None}
        if any(part is PAUSE for part in parts):
            yield
            answers = [None] * len(scripts)
        elif waiting:
            answers = list(answer(_filled(parts)))
    return results


def alone(script: Generator[Array | None, Array, T]) -> T:
    """Run a rank's script that exchanges nothing and does not pause."""
    try:
        next(script)
    except StopIteration as stop:
        returned: T = stop.value
        return returned
    raise AssertionError("the script exchanges with other ranks")


def _filled(parts: Sequence[Array | None]) -> list[Array]:
    """Fill in zeros for finished ranks."""
    there = next(part for part in parts if part is not None)
    return [np.zeros_like(there) if part is None else part for part in parts]


# Replicas -----------------------------------------------------------------------------------------


class Dealt(Protocol):
    """Pieces of weights and gradients on the ranks."""

    def take_gradients(self) -> list[dict[str, Array]]:
        """Return and drop each rank's gradients for its optimizer."""

    def whole_weights(self) -> list[dict[str, Array]]:
        """Whole weights of every rank."""

    @property
    def groups(self) -> list[list[int]]:
        """Groups of ranks that have all pieces together."""


class ForwardInProgress(NamedTuple):
    """A rank's forward, waiting for its backward."""

    run: Pass
    kept: Kept
    slopes: list[Array]


class Replicas:
    """Every rank's arrays, by torch name.

    ``weights`` are those of forward; ``gradients`` are of the current step, and empty before its
    first backward.
    """

    def __init__(self, scenario: Scenario, samples: BatchSamples) -> None:
        workload, n = scenario.workload, scenario.cluster.world_size
        self.scenario, self.world_size, self.samples = scenario, n, samples
        self.graph, self._loss = workload.graph, workload.loss
        self._dtype = np.dtype(workload.dtype)
        self.shapes = {p.name: p.shape for p in self.graph.parameters}
        ran = call_dtypes(self.graph, workload.precision, workload.dtype)
        self.executor = GraphExecutor(self.graph, ran, workload.dtype)
        self._num_elements = workload.model.num_parameters()
        drawn = self._each_rank(
            lambda rank: workload.initial_weights(scenario.seed, rank, scenario.base)
        )
        kept = [buffer.name for buffer in self.graph.buffers]
        self.buffers = [{name: arrays.pop(name) for name in kept} for arrays in drawn]
        self._buffer_dtype = scenario.strategy.dtypes.buffers
        for rank in range(n):
            self._round_buffers(rank)
        self.trainer = Trainer(scenario, drawn)
        self.weights = self.trainer.weights
        self.gradients: list[dict[str, Array]] = [{} for _ in range(n)]
        self._begun: list[ForwardInProgress | None] = [None] * n
        # Gradients overwrite those of the step before, which saves allocation; later micro-steps
        # have arrays of their own, which are added.
        self._reuses_room = workload.mode == "training"
        self._own: list[dict[str, Array]] = [{} for _ in range(n)]
        self._buffers: dict[tuple[tuple[str, ...], str], FlatBuffers] = {}
        self._latest: tuple[Sequence[str], str, FlatBuffers] | None = None
        self._constant = {rank: frozenset(names) for rank, names in workload.unused.items()}
        self.step = 0
        self.shards: Dealt | None = None

    def _each_rank(self, work: Callable[[int], T]) -> list[T]:
        return each_rank(work, self.world_size, self._num_elements)

    # Forward and backward ----------------------------------------------------------------------

    def walk_forward(
        self,
        parts: Sequence[Array],
        scales: Array,
        gather: Answer,
        pauses: bool,
    ) -> Generator[None, None, Floats]:
        """Run every rank's model and loss on its samples; return the unscaled losses.

        Parameters
        ----------
        parts, scales
            Sample indices of each rank; factor on its loss, for the gradients only.
        gather : callable
            Exchanges parts during forward.
        pauses : bool
            Whether to yield before each call of the model.

        Returns
        -------
        ndarray, shape `(world_size,)`
            nan where a rank has no items.
        """
        self._begun = [None] * self.world_size
        scripts = [
            self._forward_of(rank, parts[rank], float(scales[rank]), pauses)
            for rank in range(self.world_size)
        ]
        losses = yield from together(scripts, gather, self._num_elements)
        return np.array(losses)

    def _forward_of(self, rank: int, part: Array, scale: float, pauses: bool) -> Exchange[float]:
        target = self.samples.target(part)
        if not self._loss.count(target):
            return np.nan
        run = Pass(
            parameters=self.weights[rank],
            buffers=self.buffers[rank],
            into=NO_ARRAYS if self.gradients[rank] else self._room(rank),
            samples=part,
            seed=self.scenario.seed,
            step=self.step,
            pauses=pauses,
        )
        outputs, kept = yield from self.executor.forward(run, self.samples.inputs(part))
        self._round_buffers(rank)
        total, slopes = 0.0, []
        for output, (_, weight) in zip(outputs, self.graph.outputs, strict=True):
            loss, slope = self._loss.value_and_grad(output, target)
            total += weight * loss
            factor = weight * scale * self.trainer.loss_scale(rank)
            if factor != 1.0:
                slope *= self._dtype.type(factor)
            slopes.append(slope)
        self._begun[rank] = ForwardInProgress(run, kept, slopes)
        return total

    def _round_buffers(self, rank: int) -> None:
        """Round a rank's float buffers if the strategy keeps them in another dtype."""
        for value in self.buffers[rank].values() if self._buffer_dtype else ():
            if value.dtype.kind == "f":
                value[...] = rounded(value, self._buffer_dtype)

    def walk_backward(self, add: Answer) -> Generator[None, None, None]:
        """Add the gradients of the last forward to those of the step.

        If forward paused, this yields before each call too, the last one first; the gradients that
        a call completes are available at the next pause. ``add`` exchanges parts as ``gather`` in
        forward.
        """
        scripts = [self._backward_of(rank) for rank in range(self.world_size)]
        yield from together(scripts, add, self._num_elements)

    def _backward_of(self, rank: int) -> Exchange[None]:
        begun, waiting = self._begun[rank], list(self.graph.ready_order)
        self._begun[rank] = None
        if begun is None:
            self._add_gradients(rank, waiting, {})
            return
        script, whole = self.executor.backward(begun.run, begun.kept, begun.slopes), None
        behind: tuple[str, ...] = ()
        calls = reversed(self.graph.ready_at)
        while True:
            try:
                part = script.send(whole)  # type: ignore[arg-type]  # None starts it
            except StopIteration:
                break
            if part is PAUSE:
                self._add_gradients(rank, behind, begun.run.gradients)
                waiting = waiting[len(behind) :]
                behind = next(calls)
            whole = yield part
        self._add_gradients(rank, waiting, begun.run.gradients)

    def _add_gradients(self, rank: int, names: Sequence[str], gradients: dict[str, Array]) -> None:
        total, constant = self.gradients[rank], self._constant.get(rank, frozenset())
        for name in [name for name in names if name not in constant]:
            if name not in gradients:  # no samples: a gradient of zero
                gradients[name] = np.zeros(self.shapes[name], self._dtype)
            if name in total:
                total[name] += gradients[name]
            else:
                total[name] = gradients[name]

    def run_one(self, rank: int, part: Array, scale: float) -> float:
        """Run forward and backward on one rank; its layers must exchange nothing.

        Parameters are as in `walk_forward`, for this rank. Returns the unscaled loss; nan without
        items.
        """
        loss = alone(self._forward_of(rank, part, scale, False))
        alone(self._backward_of(rank))
        return loss

    def inject(self, rank: int, value: float) -> None:
        """Write a value into the first element of a rank's gradient."""
        names = (name for name in self.graph.ready_order if name in self.gradients[rank])
        if (first := next(names, None)) is not None:
            self.gradients[rank][first].reshape(-1)[0] = value

    def _room(self, rank: int) -> dict[str, Array]:
        """Memory for a rank's gradients, from its first backward on."""
        if self._reuses_room and not self._own[rank]:
            learned = [p.name for p in self.graph.trainable]
            self._own[rank] = {name: np.empty_like(self.weights[rank][name]) for name in learned}
        return self._own[rank]

    def forget_room(self) -> None:
        """Allocate new memory for every step's gradients."""
        self._reuses_room = False
        self._own = [{} for _ in self.weights]

    # Buffers of collectives ----------------------------------------------------------------------

    def forget_flat_buffers(self) -> None:
        """Free all flat buffers."""
        self._buffers.clear()
        self._latest = None

    def flat_buffers(self, names: Sequence[str], dtype: str) -> FlatBuffers:
        """Flat buffers for some parameters, one per rank; kept until other buckets replace them."""
        if self._latest is not None and self._latest[0] is names and self._latest[1] == dtype:
            return self._latest[2]  # hashing all names for each parameter would be quadratic
        key = (tuple(names), dtype)
        if key not in self._buffers:
            held = sum(len(buffers.flat[0]) for buffers in self._buffers.values())
            if held >= self._num_elements:
                self._buffers.clear()
            shapes = {name: self.shapes[name] for name in names}
            self._buffers[key] = FlatBuffers(shapes, self.world_size, numpy_dtype(dtype))
        self._latest = (names, dtype, self._buffers[key])
        return self._buffers[key]

    def fill(self, views: Sequence[Array], name: str, divisor: float, compressed: bool) -> None:
        """Write every rank's gradient of a parameter, divided, into its buffer.

        torch multiplies by 1 / divisor in the gradient's dtype; its compression hooks round to 16
        bits first and then divide.
        """

        def write(rank: int) -> None:
            view, gradient = views[rank], self.gradients[rank].get(name)
            if gradient is None:  # a parameter that is never used
                view[...] = 0
            elif compressed:
                view[...] = cast(gradient, view.dtype)
                np.divide(view, view.dtype.type(divisor), out=view)
            elif view.dtype == gradient.dtype:
                np.multiply(gradient, view.dtype.type(1.0 / divisor), out=view)
            else:
                view[...] = cast(gradient * gradient.dtype.type(1.0 / divisor), view.dtype)

        each_rank(write, self.world_size, views[0].size)

    def empty(self, buffers: FlatBuffers, divisor: float = 1.0) -> None:
        """Replace gradients by the content of a buffer, divided."""
        for flat in buffers.flat if divisor != 1.0 else ():
            np.divide(flat, flat.dtype.type(divisor), out=flat)
        constant = [self._constant.get(rank, frozenset()) for rank in range(self.world_size)]
        used = set(self.graph.ready_order) - frozenset.intersection(*constant)
        for name in [name for name in buffers.names() if name in used]:
            for rank, view in enumerate(buffers.views(name)):
                own = view if view.dtype == self._dtype else view.astype(self._dtype)
                self.gradients[rank][name] = own

    def broadcast(self, names: Sequence[str], plan: Plan) -> None:
        """Replace weights or buffers of one dtype by those of the plan's root."""
        tensors = self.weights if names[0] in self.weights[0] else self.buffers
        own_dtype = tensors[0][names[0]].dtype
        dtype = numpy_dtype(self.trainer.stored) if tensors is self.weights else own_dtype
        shapes = {name: tensors[0][name].shape for name in names}
        buffers = FlatBuffers(shapes, self.world_size, dtype)
        for name in names:
            for view, own in zip(buffers.views(name), tensors, strict=True):
                view[...] = own[name]
        payload.run(plan, buffers.flat)
        for name in names:
            for view, own in zip(buffers.views(name), tensors, strict=True):
                own[name][...] = view
        if tensors is self.weights:
            self.trainer.follow(plan.root, names)

    def update(self, progress: Progress, active: Sequence[bool]) -> list[UpdateResult | None]:
        """Run the optimizer of every active rank, and drop the gradients.

        Returns each rank's result; None for inactive ranks.
        """
        gradients = self.gradients if self.shards is None else self.shards.take_gradients()
        done = self.trainer.update(gradients, progress, active)
        self.gradients = [{} for _ in range(self.world_size)]
        return done

    def state_dict(self) -> dict[str, Array]:
        """State that is kept from step to step: whole tensors, by rank and name."""
        groups = None if self.shards is None else self.shards.groups
        arrays = self.trainer.state_dict(groups)
        for rank, own in enumerate(self.buffers):
            arrays |= {f"{rank}/buffers/{name}": value for name, value in own.items()}
        return without_repeats(arrays)

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Load a state; a rank that is not in it gets rank 0's.

        Raises
        ------
        ScenarioError
            If an array is missing, or of another shape.
        """
        self.trainer.load_state_dict(arrays)
        for rank, own in enumerate(self.buffers):
            for name, value in own.items():
                value[...] = of_rank(arrays, rank, f"buffers/{name}", value.shape)


def state_dicts(replicas: Replicas) -> list[dict[str, Array]]:
    """Every rank's parameters and buffers, by torch name."""
    buffers, weights = replicas.buffers, whole_weights(replicas)
    if replicas.scenario.strategy.in_one_process:  # copies are temporary
        return [{**weights[0], **buffers[0]}] * replicas.world_size
    return [{**w, **b} for w, b in zip(weights, buffers, strict=True)]


def identical(replicas: Replicas, who: Participants | None = None) -> bool:
    """Whether all participating ranks have the same weights, bit for bit."""
    of_ranks = whole_weights(replicas)
    first, *others = of_ranks if who is None else [of_ranks[rank] for rank in who.ranks]
    return all(
        weights[name].tobytes() == first[name].tobytes() for weights in others for name in first
    )


def whole_weights(replicas: Replicas) -> list[dict[str, Array]]:
    """Whole weights of every rank, joined from their pieces.

    If the strategy rounds weights only for forward, these are the unrounded ones.
    """
    if replicas.shards is not None:
        return replicas.shards.whole_weights()
    if replicas.scenario.strategy.dtypes.parameters is not None:
        return [replicas.trainer.pieces(rank) for rank in range(replicas.world_size)]
    return replicas.weights
