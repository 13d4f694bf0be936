"""Facts that a strategy may read when it plans a step; never numbers or instants.

`Facts` hold for the whole run. A `StepContext` records all queries about one step: steps with equal
answers have equal plans.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, Protocol, TypeVar

from simdp.arrays import Ints
from simdp.cluster.hardware import Overheads
from simdp.steps.ops import Op, Quorum
from simdp.steps.partition import Bucket
from simdp.workload import Workload
from simdp.workload.layers.base import Buffer, Parameter, Synchronised
from simdp.workload.lifetimes import recomputed
from simdp.workload.precision import numpy_dtype
from simdp.workload.sampling import Participants, StepBatches

Ops = Iterator[Op]
"""Generators of operations, returned by a strategy's methods."""

Tags = Iterator[int]
"""Numbers of the collectives of a step, in order."""

StateTensor = Parameter | Buffer
"""Tensors of a model in torch's state_dict."""
T = TypeVar("T")


class Nominal(Protocol):
    """Times without contention, by which a few strategies sort gradients."""

    def ready_times(self, batches: StepBatches, micro: int) -> Sequence[float]:
        """When the gradients of `Graph.ready_order` become ready, from the start of backward [s].

        On the slowest device, with their hooks, without stragglers and collectives.
        """

    def all_reduce_seconds(self, nbytes: float) -> float:
        """Time of an all_reduce that all ranks enter at the same instant [s]."""


class LayerDtypes(NamedTuple):
    """Dtypes of weights in forward and backward, of buffers, and of the outputs of units.

    None: the workload's.
    """

    parameters: str | None = None
    buffers: str | None = None
    outputs: str | None = None


class Exchanged(NamedTuple):
    """Bytes that a synchronised layer gathers in forward and sums in backward."""

    gathered: float
    summed: float


class Facts:
    """Properties of the whole run.

    Parameters
    ----------
    workload : Workload
        The training or inference job.
    world_size, local_size : int
        Number of ranks; ranks per node.
    overheads : Overheads
        Software overheads of the cluster.
    node_bandwidth : callable
        Returns a node's bandwidth to other nodes [bytes/s]; infinite with one node.
    nominal : Nominal, optional
        Default: ready times are 0 and the time of an all_reduce is its number of bytes.
    dtypes : LayerDtypes, optional
        With ``parameters``, weights have the workload's dtype until they are rounded for layers.
    participants : Participants, optional
        Ranks that take part in every step; default: all.
    num_late : int
        Ranks dropped as too late in every step.

    Attributes
    ----------
    graph : ModelGraph
        The model's calls and parameters.
    parameters, buffers : sequence of Parameter or Buffer
        In torch's order of registration.
    ready_order, unused : sequence of str
        Parameters in the order in which backward finishes their gradients; trainable parameters
        without a gradient.
    sizes : dict of str to int
        Elements of each parameter.
    itemsize : int
        Bytes per element of a gradient.
    foreseen : set of {"network", "compute", "collectives"}
        Queried properties that depend on links or devices: bandwidth of a node, ready times of
        gradients, durations of collectives.
    quorum : Quorum
        Participating ranks, and the number of gradients averaged.
    """

    def __init__(
        self,
        workload: Workload,
        world_size: int,
        local_size: int,
        overheads: Overheads,
        node_bandwidth: Callable[[], float] = lambda: inf,
        nominal: Nominal | None = None,
        dtypes: LayerDtypes | None = None,
        participants: Participants | None = None,
        num_late: int = 0,
    ) -> None:
        self.workload, self.world_size, self.local_size = workload, world_size, local_size
        self.overheads, self._node_bandwidth = overheads, node_bandwidth
        self.graph = workload.graph
        self.parameters, self.buffers = self.graph.parameters, self.graph.buffers
        self.ready_order, self.unused = self.graph.ready_order, self.graph.unused
        self.sizes = {parameter.name: parameter.num_elements for parameter in self.parameters}
        self.itemsize = workload.gradient_itemsize
        self._gradient_dtype = workload.precision.gradient_dtype(workload.dtype)
        self.foreseen, self._nominal = set[str](), nominal
        dtypes = dtypes or LayerDtypes()
        self._casts = dtypes.parameters is not None
        self._buffer_itemsize = numpy_dtype(dtypes.buffers or workload.dtype).itemsize
        self._made: dict[Any, Any] = {}
        count = world_size if participants is None else participants.num_counted
        self.quorum = Quorum(count - num_late, participants)

    def once(self, key: object, make: Callable[[], T]) -> T:
        """Call ``make`` on the first use of a key, and cache the result."""
        if key not in self._made:
            self._made[key] = make()
        cached: T = self._made[key]
        return cached

    @property
    def is_inference(self) -> bool:
        """Whether the workload runs forward only."""
        return self.workload.mode == "inference"

    @cached_property
    def weight_itemsize(self) -> int:
        """Bytes per element of a parameter in memory and in collectives."""
        precision = self.workload.precision
        return numpy_dtype(precision.weight_dtype(self.workload.dtype)).itemsize

    def itemsize_of(self, tensor: StateTensor) -> int:
        """Bytes per element of a tensor when replicas are synchronised at the start."""
        if isinstance(tensor, Buffer):
            return 8 if tensor.integer else self._buffer_itemsize
        return self.workload.itemsize if self._casts else self.weight_itemsize

    def num_elements(self, names: Sequence[str]) -> int:
        """Elements of several parameters."""
        return sum(self.sizes[name] for name in names)

    def bucket(self, names: Sequence[str], dtype: str | None = None, **options: Any) -> Bucket:
        """Make a bucket of some gradients; ``dtype`` defaults to theirs.

        It allocates its own memory, unless gradients are views of it or ``room`` is given.
        """
        elements, held = self.num_elements(names), dtype or self._gradient_dtype
        nbytes = float(elements * numpy_dtype(held).itemsize)
        options.setdefault("room", 0.0 if options.get("is_view") else nbytes)
        return Bucket(tuple(names), elements, held, nbytes, **options)

    def node_bandwidth(self) -> float:
        """Bandwidth of a node to other nodes [bytes/s]; infinite with one node."""
        self.foreseen.add("network")
        return self._node_bandwidth()

    def all_reduce_seconds(self, nbytes: float) -> float:
        """See `Nominal`."""
        self.foreseen.add("collectives")
        return nbytes if self._nominal is None else self._nominal.all_reduce_seconds(nbytes)

    def ready_times(self, batches: StepBatches, micro: int) -> Sequence[float]:
        """See `Nominal`."""
        self.foreseen.add("compute")
        if self._nominal is None:
            return [0.0] * len(self.ready_order)
        return self._nominal.ready_times(batches, micro)

    # Derived from the graph ---------------------------------------------------------------------

    @cached_property
    def exchanges(self) -> dict[int, Exchanged]:
        """Bytes exchanged by the calls of synchronised layers, by call number."""
        itemsize, exchanged = self.workload.itemsize, {}
        for number, call in enumerate(self.graph.calls):
            if isinstance(call.layer, Synchronised):
                gathered, summed = call.layer.exchanged_elements()
                whole = float(gathered * self.world_size * itemsize)
                exchanged[number] = Exchanged(whole, float(summed * itemsize))
        return exchanged

    @cached_property
    def recomputed(self) -> dict[int, tuple[int, ...]]:
        """Calls recomputed before the backward of the last call of their segment."""
        return {run.calls[-1]: run.again for run in recomputed(self.workload)}

    @cached_property
    def tails(self) -> frozenset[int]:
        """Calls with work in backward after their gradients are ready."""
        if self.workload.compute.source != "profile":
            return frozenset()
        return frozenset(
            number
            for number, call in enumerate(self.graph.calls)
            if getattr(call.layer, "input_time", 0.0) > 0
        )


def trainable(facts: Facts) -> list[Parameter]:
    """Parameters that are not frozen, in torch's order of registration."""
    return [p for p in facts.parameters if p.name not in facts.graph.frozen]


def num_trainable(facts: Facts) -> int:
    """Elements of the parameters that are not frozen."""
    return facts.num_elements([parameter.name for parameter in trainable(facts)])


def longest_period(number: int, lengths: tuple[int, ...], since: int) -> int | None:
    """Return the longest of the periods that a step ends; None if it ends none."""
    return next((n for n in reversed(lengths) if (number - since + 1) % n == 0), None)


class StepContext:
    """Properties of one step, recorded as they are queried; ``number`` is counted from 0.

    Attributes
    ----------
    asked : dict
        Answers by query.
    """

    def __init__(self, facts: Facts, number: int, batches: StepBatches) -> None:
        self._facts, self._number, self._batches = facts, number, batches
        self.asked: dict[tuple[Any, ...], Any] = {}

    def ask(self, question: str, *about: object) -> Any:
        """Answer a query, named as its method below, and record the answer."""
        key = (question, *about)
        if key not in self.asked:
            self.asked[key] = self.answer(key)
        return self.asked[key]

    def answer(self, key: tuple[object, ...]) -> Any:
        """Answer a query without recording it."""
        question, *about = key
        return getattr(self, f"_{question}")(*about)

    def answers(self, queries: dict[tuple[object, ...], object]) -> bool:
        """Whether this step's answers equal the recorded ones of another."""
        return all(self.answer(key) == known for key, known in queries.items())

    @property
    def num_micro_steps(self) -> int:
        """Number of micro-steps."""
        number: int = self.ask("micro_steps")
        return number

    @property
    def closes_epoch(self) -> bool:
        """Whether the step is the last of its epoch or of the run."""
        return bool(self.ask("closing"))

    def active(self, micro: int | None = None) -> tuple[bool, ...]:
        """Which ranks have samples in a micro-step; with None, in any micro-step."""
        active: tuple[bool, ...] = self.ask("sampled", micro)
        return active

    def before(self, number: int) -> bool:
        """Whether the step precedes step ``number``, counted from 0."""
        return bool(self.ask("earlier", number))

    def reduced_before(self, number: int) -> bool:
        """Whether fewer than ``number`` steps have been reduced before.

        A model of layer times starts with the second step, as its profile does.
        """
        return self.before(number - self._facts.workload.model.timed)

    def ends_period(self, length: int, since: int) -> bool:
        """Whether the step ends a period of ``length`` steps, counted from step ``since``."""
        return bool(self.ask("last_of_period", length, since))

    def longest_period(self, lengths: tuple[int, ...], since: int, first: int) -> int | None:
        """Return the longest of the periods that the step ends, counted as in `ends_period`.

        ``lengths`` are ascending [steps]; ``first`` is the first step that may be queried.
        """
        period: int | None = self.ask("longest_of_periods", lengths, since, first)
        return period

    def ready_times(self, micro: int) -> tuple[float, ...]:
        """See `Nominal`."""
        instants: tuple[float, ...] = self.ask("nominal_times", micro)
        return instants

    # Answers ------------------------------------------------------------------------------------

    def _micro_steps(self) -> int:
        return len(self._batches.micro)

    def _closing(self) -> bool:
        return self._batches.closes_epoch

    def _sampled(self, micro: int | None) -> tuple[bool, ...]:
        sizes: Ints = self._batches.sizes
        there = (sizes.sum(axis=0) if micro is None else sizes[micro]) > 0
        return tuple(there.tolist())

    def _earlier(self, number: int) -> bool:
        return self._number < number

    def _last_of_period(self, length: int, since: int) -> bool:
        return (self._number - since + 1) % length == 0

    def _longest_of_periods(self, lengths: tuple[int, ...], since: int, first: int) -> int | None:
        return longest_period(self._number, lengths, since)

    def _nominal_times(self, micro: int) -> tuple[float, ...]:
        return tuple(self._facts.ready_times(self._batches, micro))
