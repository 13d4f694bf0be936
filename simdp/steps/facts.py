"""Facts that a strategy may read when it plans a step; never numbers or instants.

`Facts` hold for the whole run; a `Step` answers what may differ from step to step, and notes what
it was asked, so that steps with the same answers are known to be the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import inf
from typing import Any, NamedTuple, Protocol, TypeVar

from simdp.arrays import Ints
from simdp.cluster import Overheads
from simdp.moved import renamed
from simdp.steps.ops import Op, Quorum
from simdp.steps.partition import Bucket
from simdp.workload import Workload
from simdp.workload.layers import Buffer, Parameter
from simdp.workload.layers.base import Synchronised
from simdp.workload.lifetimes import recomputed
from simdp.workload.precision import numpy_dtype
from simdp.workload.sampling import Participants, StepBatches


def __getattr__(name: str) -> Any:
    return renamed(__name__, name)


Ops = Iterator[Op]
"""What a strategy's methods return: generators of operations."""

StateTensor = Parameter | Buffer
"""What torch's state_dict holds of a model: what it learns, and what it keeps beside that."""
T = TypeVar("T")


class Nominal(Protocol):
    """How long things take if nothing gets in the way: what a few strategies sort gradients by."""

    def ready_times(self, batches: StepBatches, micro: int) -> Sequence[float]:
        """When the gradients of `Graph.ready_order` become ready, from the start of backward [s].

        On the slowest device, with their hooks, without stragglers and collectives.
        """

    def all_reduce_seconds(self, nbytes: float) -> float:
        """How long an all_reduce takes that every rank enters at once [s]."""


class Exchanged(NamedTuple):
    """What a synchronised layer exchanges: bytes gathered in forward, and summed in backward."""

    gathered: float
    summed: float


class Facts:
    """What holds for the whole run.

    Parameters
    ----------
    workload : Workload
        What is trained.
    world_size, local_size : int
        Ranks, and those of a node.
    overheads : Overheads
        What the software costs on the cluster.
    node_bandwidth : callable
        Tells what a node can send to others [bytes/s]; infinite with one node.
    nominal : Nominal, optional
        Left out where only the kind of operations is asked for: then nothing takes any time.
    buffer_dtype : str, optional
        That the strategy keeps the model's buffers in; the workload's if it is left out.
    casts : bool
        Whether weights are of the workload's dtype until the strategy rounds them for its layers.
    participants : Participants, optional
        Who takes part in every step, where not all ranks do.
    num_late : int
        How many ranks come too late in every step.

    Attributes
    ----------
    graph : Graph
        The model's calls, and what they learn.
    parameters, buffers : sequence of Parameter or Buffer
        In torch's order of registration.
    ready_order, unused : sequence of str
        Parameters in the order in which backward finishes their gradients; those without one,
        though they are not frozen.
    sizes : dict of str to int
        Elements of each parameter.
    itemsize : int
        Bytes per element of a gradient.
    foreseen : set of {"network", "compute", "collectives"}
        What has been asked for that depends on links or devices: what a node can send, when
        gradients are ready, and what collectives take.
    quorum : Quorum
        Who takes part, and how many gradients are averaged.
    """

    def __init__(
        self,
        workload: Workload,
        world_size: int,
        local_size: int,
        overheads: Overheads,
        node_bandwidth: Callable[[], float] = lambda: inf,
        nominal: Nominal | None = None,
        buffer_dtype: str | None = None,
        casts: bool = False,
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
        self._casts = casts
        self._buffer_itemsize = numpy_dtype(buffer_dtype or workload.dtype).itemsize
        self._made: dict[Any, Any] = {}
        count = world_size if participants is None else participants.num_counted
        self.quorum = Quorum(count - num_late, participants)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """Make something that follows from these facts when it is first asked for."""
        if key not in self._made:
            self._made[key] = make()
        found: T = self._made[key]
        return found

    @property
    def is_inference(self) -> bool:
        """Whether outputs alone are asked for, and nothing is learned."""
        return self.workload.mode == "inference"

    @cached_property
    def weight_itemsize(self) -> int:
        """Bytes per element of a parameter as it is stored, and sent."""
        precision = self.workload.precision
        return numpy_dtype(precision.weight_dtype(self.workload.dtype)).itemsize

    def itemsize_of(self, tensor: StateTensor) -> int:
        """Bytes per element of a parameter or buffer, as replicas are made alike."""
        if isinstance(tensor, Buffer):
            return 8 if tensor.integer else self._buffer_itemsize
        return self.workload.itemsize if self._casts else self.weight_itemsize

    def num_elements(self, names: Sequence[str]) -> int:
        """Elements of several parameters."""
        return sum(self.sizes[name] for name in names)

    def bucket(self, names: Sequence[str], dtype: str | None = None, **told: Any) -> Bucket:
        """Make a bucket of some gradients; ``dtype`` is theirs if it is left out.

        It takes room of its own, unless gradients live in it or ``room`` is told.
        """
        elements, held = self.num_elements(names), dtype or self._gradient_dtype
        nbytes = float(elements * numpy_dtype(held).itemsize)
        told.setdefault("room", 0.0 if told.get("is_view") else nbytes)
        return Bucket(tuple(names), elements, held, nbytes, **told)

    def node_bandwidth(self) -> float:
        """What a node can send to others [bytes/s]; infinite with one node."""
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

    # What follows from the graph ----------------------------------------------------------------

    @cached_property
    def exchanges(self) -> dict[int, Exchanged]:
        """What the calls of synchronised layers exchange, by their numbers."""
        itemsize, found = self.workload.itemsize, {}
        for number, call in enumerate(self.graph.calls):
            if isinstance(call.layer, Synchronised):
                gathered, summed = call.layer.exchanged_elements()
                whole = float(gathered * self.world_size * itemsize)
                found[number] = Exchanged(whole, float(summed * itemsize))
        return found

    @cached_property
    def recomputed(self) -> dict[int, tuple[int, ...]]:
        """Calls that run again before the backward of a call, with which their run ends."""
        return {run.calls[-1]: run.again for run in recomputed(self.workload)}

    @cached_property
    def tails(self) -> frozenset[int]:
        """Calls in which backward goes on when their gradients are ready."""
        if self.workload.compute.kind != "profile":
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
    """Elements of those."""
    return facts.num_elements([parameter.name for parameter in trainable(facts)])


def longest_period(number: int, lengths: tuple[int, ...], since: int) -> int | None:
    """The longest of some periods of which a step is the last; None if it ends none."""
    return next((n for n in reversed(lengths) if (number - since + 1) % n == 0), None)


class StepContext:
    """What may differ from step to step.

    Parameters
    ----------
    facts : Facts
        Of the run.
    number : int
        From 0.
    batches : StepBatches
        Who trains on what.

    Attributes
    ----------
    asked : dict
        What has been asked, and answered.
    """

    def __init__(self, facts: Facts, number: int, batches: StepBatches) -> None:
        self._facts, self._number, self._batches = facts, number, batches
        self.asked: dict[tuple[Any, ...], Any] = {}

    def ask(self, question: str, *about: Any) -> Any:
        """Answer one of the questions below, named as its method, and note the answer."""
        key = (question, *about)
        if key not in self.asked:
            self.asked[key] = self.answer(key)
        return self.asked[key]

    def answer(self, key: tuple[Any, ...]) -> Any:
        """Answer a question without taking note of it."""
        question, *about = key
        return getattr(self, f"_{question}")(*about)

    def answers(self, asked: dict[tuple[Any, ...], Any]) -> bool:
        """Whether it would give the same answers as another one has."""
        return all(self.answer(key) == known for key, known in asked.items())

    @property
    def num_micro_steps(self) -> int:
        """Micro-steps."""
        found: int = self.ask("micro_steps")
        return found

    @property
    def closes_epoch(self) -> bool:
        """Whether it is the last one of its epoch, or of the run."""
        return bool(self.ask("closing"))

    def active(self, micro: int | None = None) -> tuple[bool, ...]:
        """Which ranks have samples in a micro-step, or in any one of the step."""
        found: tuple[bool, ...] = self.ask("sampled", micro)
        return found

    def before(self, number: int) -> bool:
        """Whether it comes before the step of this number, from 0."""
        return bool(self.ask("earlier", number))

    def reduced_before(self, number: int) -> bool:
        """Whether fewer than so many steps have been reduced before it.

        A model of layer times begins with the second: its profile is of a step long after the
        first.
        """
        return self.before(number - self._facts.workload.model.timed)

    def ends_period(self, length: int, since: int) -> bool:
        """Whether it is the last of a period of so many steps, counted from the step ``since``."""
        return bool(self.ask("last_of_period", length, since))

    def longest_period(self, lengths: tuple[int, ...], since: int, first: int) -> int | None:
        """The longest of some periods of which it is the last step, counted as in `ends_period`.

        Parameters
        ----------
        lengths : tuple of int
            Of the periods [steps], rising.
        since : int
            The step from which all of them are counted.
        first : int
            The first step that may be asked about.
        """
        found: int | None = self.ask("longest_of_periods", lengths, since, first)
        return found

    def ready_times(self, micro: int) -> tuple[float, ...]:
        """See `Nominal`."""
        found: tuple[float, ...] = self.ask("nominal_times", micro)
        return found

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
