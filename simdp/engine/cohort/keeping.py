"""Keeping: what ranks have in device memory while they train, and when it comes and goes.

The sizes are those of plain replicas. What a strategy keeps differently stands in its own room,
which overrides the ``kept_...`` methods; the scripts that tell the ledger stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from functools import cached_property, partial
from hashlib import sha256
from typing import Any

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.cohort.memory import Ledger
from simdp.engine.ops import Hold
from simdp.scenario import Scenario
from simdp.strategies.base import Script
from simdp.strategies.memory import INTEGER_ITEMSIZE, sample_nbytes, update_temporaries
from simdp.workload.graph import Graph
from simdp.workload.lifetimes import Lifetimes, Stage, Tensor, lifetimes, recomputed
from simdp.workload.precision.rounding import numpy_dtype
from simdp.workload.sampling import StepBatches

OBSERVED_STEPS = 2
"""Memory is accounted for in the setup and in the first steps; all later ones are like the last."""


class Keeping:
    """What every rank keeps; the base of `Ranks`, whose state it reads.

    Attributes
    ----------
    ledger : Ledger
        What every rank keeps in memory.
    shows_memory : bool
        Whether the script tells the clock too, which knows when. An op passes through all of the
        script's generators: of thousands of ranks nobody looks at memory that closely.
    observed_steps : int
        In how many steps memory is accounted for.
    """

    scenario: Scenario
    world_size: int
    step: int
    graph: Graph
    ledger: Ledger
    shows_memory: bool
    observed_steps: int
    _batches: StepBatches
    _sizes: dict[str, int]

    def _prepare_keeping(self) -> None:
        self.ledger, self.shows_memory = Ledger(self.world_size), True
        self.observed_steps = OBSERVED_STEPS
        self._has_gradient: set[str] = set()
        self._has_state = False
        self._temporaries: float | Floats = 0.0
        self._samples: dict[tuple[int, int], int | bytes] = {}
        self._known: dict[tuple[int, int | bytes], list[tuple[str, float | Floats]]] = {}

    @cached_property
    def lifetimes(self) -> Lifetimes:
        """What comes and goes with the calls of a micro-step."""
        workload = self.scenario.workload
        return lifetimes(workload, recomputed(workload), workload.mode == "training")

    @cached_property
    def _blocks(self) -> dict[int, range]:
        """Runs of calls that are computed again, by the number of their last one."""
        return {run[-1]: run for run in recomputed(self.scenario.workload)}

    @property
    def observed(self) -> bool:
        """Whether memory is accounted for in the current step."""
        return self.step < self.observed_steps

    def hold(self, part: str, nbytes: float | Floats) -> Script:
        """See `simdp.strategies.base.Rank`."""
        if self.observed and (nbytes.any() if isinstance(nbytes, np.ndarray) else nbytes):
            self.ledger.hold(part, nbytes)
            if self.shows_memory:
                yield Hold(self.step, part, nbytes)

    def room(self, nbytes: Iterable[float]) -> float:
        """Device memory that tensors of these sizes take, as the allocator hands it out [bytes]."""
        taken = self.scenario.cluster.allocator.taken
        return sum(taken(size) for size in nbytes)

    # What plain replicas keep -------------------------------------------------------------------

    def kept_parameters(self) -> float | Floats:
        """Parameters that a rank has from the setup on [bytes], or shape `(world_size,)`."""
        workload = self.scenario.workload
        stored = workload.precision.weight_dtype(workload.dtype)
        return self._room_of_parameters(numpy_dtype(stored).itemsize)

    def kept_buffers(self) -> float | Floats:
        """Tensors of the model that are not learned [bytes], or shape `(world_size,)`."""
        itemsize = self.scenario.workload.itemsize
        return self.room(
            buffer.num_elements * (INTEGER_ITEMSIZE if buffer.integer else itemsize)
            for buffer in self.graph.buffers
        )

    def kept_master(self) -> float | Floats:
        """Master weights, from the setup on [bytes], or shape `(world_size,)`."""
        workload = self.scenario.workload
        if not workload.precision.has_master:
            return 0.0
        return self._room_of_parameters(workload.itemsize)

    def kept_buckets(self) -> float | Floats:
        """Flat buffers of gradients, from the setup on [bytes], or shape `(world_size,)`."""
        workload, graph = self.scenario.workload, self.graph
        itemsize = workload.gradient_itemsize
        strategy = self.scenario.strategy
        return self.room([strategy.bucket_memory(graph.parameters, graph.ready_order, itemsize)])

    def kept_gradient(self, name: str) -> float | Floats:
        """A parameter's gradient, once it is there [bytes], or shape `(world_size,)`.

        It comes with backward and goes at the end of the update; where
        ``strategy.gradients_stay()``, it is there from the setup on.
        """
        return self.room([self._sizes[name] * self.scenario.workload.gradient_itemsize])

    def kept_state(self) -> float | Floats:
        """The optimizer's state, from the first update on [bytes], or shape `(world_size,)`."""
        workload = self.scenario.workload
        return self.room(
            self._sizes[name] * workload.itemsize
            for name in self.graph.ready_order  # a parameter without a gradient gets no state
            for _ in workload.optimizer.for_parameter(name).state_names()
        )

    def kept_inputs(self, micro_step: int) -> float | Floats:
        """The samples of a micro-step with their targets [bytes], or shape `(world_size,)`."""
        per_sample = sample_nbytes(self.scenario.workload)
        sizes = self._batches.sizes[micro_step]
        return self._for_each(sizes, lambda n: self.room(n * size for size in per_sample))

    def update_temporaries(self) -> float | Floats:
        """What the optimizer needs while it works [bytes], or shape `(world_size,)`."""
        workload = self.scenario.workload
        sizes = {name: self._sizes[name] for name in self.graph.ready_order}
        return update_temporaries(workload, sizes, self.scenario.cluster.allocator)

    # When it comes and goes ---------------------------------------------------------------------

    def keep_model(self) -> Script:
        """Take what is there before the first step, apart from buckets."""
        yield from self.hold("parameters", self.kept_parameters())
        yield from self.hold("buffers", self.kept_buffers())
        yield from self.hold("optimizer_state", self.kept_master())

    def keep_buckets(self) -> Script:
        """Take the buckets, and gradients that live in them for good."""
        yield from self.hold("buckets", self.kept_buckets())
        if self.scenario.strategy.gradients_stay():
            yield from self.hold("gradients", self._gradients(self.graph.ready_order))

    def take(self, stage: Stage, micro_step: int) -> Script:
        """Take what a stage of a micro-step makes."""
        if self.observed:
            for part, nbytes in self._by_part(stage.taken, micro_step):
                self.ledger.hold(part, nbytes)
                if self.shows_memory:
                    yield Hold(self.step, part, nbytes)

    def give(self, stage: Stage, micro_step: int) -> Script:
        """Give back what nothing needs after a stage of a micro-step."""
        if self.observed:
            for part, nbytes in self._by_part(stage.given, micro_step):
                self.ledger.hold(part, -nbytes)
                if self.shows_memory:
                    yield Hold(self.step, part, -nbytes)

    def take_gradients(self, names: Sequence[str]) -> Generator[Any, None, float]:
        """Take the gradients that a call's backward makes.

        Returns
        -------
        float
            What is made of gradients that have a place already, to be added to them and then given
            back [bytes].
        """
        if not self.observed:
            return 0.0
        stay = self.scenario.strategy.gradients_stay()
        there = set(self.graph.ready_order) if stay else self._has_gradient
        again = [name for name in names if name in there]
        fresh = [name for name in names if name not in there]
        self._has_gradient.update(fresh)
        yield from self.hold("gradients", self._gradients(fresh))
        itemsize = self.scenario.workload.gradient_itemsize
        passing = self.room(self._sizes[name] * itemsize for name in again)
        yield from self.hold("temporary", passing)
        return passing

    def begin_update(self) -> Script:
        """Take the optimizer's temporaries, and its state where this is the first update."""
        if self.observed:
            if not self._has_state:
                yield from self.hold("optimizer_state", self.kept_state())
            self._has_state = True
            self._temporaries = self.update_temporaries()
            yield from self.hold("temporary", self._temporaries)

    def end_update(self) -> Script:
        """Give temporaries and gradients back."""
        if self.observed:
            yield from self.hold("temporary", -self._temporaries)
            mine = [name for name in self.graph.ready_order if name in self._has_gradient]
            yield from self.hold("gradients", -self._gradients(mine))
            self._has_gradient.clear()

    # Counting -----------------------------------------------------------------------------------

    def _gradients(self, names: Iterable[str]) -> float | Floats:
        return sum((self.kept_gradient(name) for name in names), 0.0)

    def _room_of_parameters(self, itemsize: int) -> float:
        return self.room(elements * itemsize for elements in self._sizes.values())

    def _by_part(
        self, tensors: tuple[Tensor, ...], micro_step: int
    ) -> list[tuple[str, float | Floats]]:
        """What tensors of a micro-batch take, part by part."""
        if not tensors:
            return []
        samples = self._samples_of(micro_step)
        key = (id(tensors), samples)
        if key not in self._known:
            sizes, found = self._batches.sizes[micro_step], list[tuple[str, float | Floats]]()
            for part in dict.fromkeys(tensor.part for tensor in tensors):
                mine = [tensor for tensor in tensors if tensor.part == part]
                count = partial(self._room_of, mine)
                alike = isinstance(samples, int)
                nbytes = count(int(sizes[0])) if alike else self._for_each(sizes, count)
                if np.any(nbytes):
                    found.append((part, nbytes))
            self._known[key] = found
        return self._known[key]

    def _samples_of(self, micro_step: int) -> int | bytes:
        """Something small that tells the ranks' numbers of samples from others."""
        place = (self.step, micro_step)
        if place not in self._samples:
            sizes = self._batches.sizes[micro_step]
            alike = bool((sizes == sizes[0]).all())
            self._samples[place] = int(sizes[0]) if alike else sha256(sizes.tobytes()).digest()
        return self._samples[place]

    def _room_of(self, tensors: Sequence[Tensor], num_samples: int) -> float:
        if not num_samples:
            return 0.0
        return self.room(num_samples * t.per_sample + t.fixed for t in tensors)

    def _for_each(self, sizes: Ints, count: Callable[[int], float]) -> float | Floats:
        """Count for the samples of every rank; one number where all have as many."""
        if (sizes == sizes[0]).all():
            return count(int(sizes[0]))
        different, which = np.unique(sizes, return_inverse=True)
        found: Floats = np.array([count(int(n)) for n in different])[which]
        return found
