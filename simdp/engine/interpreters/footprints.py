"""Memory of parameters, gradients and optimizer states on a rank, by partition.

All results are bytes of device memory as allocated; where ranks differ they are arrays of shape
`(world_size,)`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import prod

import numpy as np

from simdp.arrays import Floats
from simdp.scenario.root import Scenario
from simdp.steps.facts import Facts, trainable
from simdp.steps.partition import Partition, RowPartition
from simdp.strategies.memory import update_temporaries
from simdp.workload.optimizers.base import Optimizer
from simdp.workload.step_costs import (
    gradient_nbytes_moved,
    optimizer_flops,
    optimizer_launches,
    optimizer_list_launches,
    optimizer_nbytes_moved,
)

Amount = float | Floats


class Footprint:
    """Memory of plain replicas, and the work of their optimizer."""

    def __init__(self, scenario: Scenario, facts: Facts) -> None:
        self.scenario, self.facts, self.workload = scenario, facts, scenario.workload
        self._shapes = {parameter.name: parameter.shape for parameter in facts.parameters}
        self._learned = {name: facts.sizes[name] for name in facts.ready_order}

    def room(self, nbytes: Iterable[float]) -> float:
        """Device memory allocated for tensors of these sizes."""
        taken = self.scenario.cluster.allocator.taken
        return sum(taken(size) for size in nbytes)

    def parameters(self) -> Amount:
        """Parameters, from the setup on."""
        return self._of_all(self.workload.itemsize if self._casts else self.facts.weight_itemsize)

    @property
    def _casts(self) -> bool:
        """Whether parameters are kept only in 32 bits, and cast for each use."""
        return self.scenario.strategy.dtypes.parameters is not None

    def buffers(self) -> Amount:
        """Buffers of the model, and other constants of its layers."""
        itemsize_of = self.facts.itemsize_of
        beside = [layer.constant_nbytes for layer in self.facts.graph.registered]
        return self.room(
            [
                *(b.num_elements * itemsize_of(b) for b in self.facts.buffers),
                *(nbytes for nbytes in beside if nbytes),
            ]
        )

    def master(self) -> Amount:
        """Master weights, from the setup on."""
        if not self._has_master or self._casts:
            return 0.0
        return self.room(p.num_elements * self.workload.itemsize for p in trainable(self.facts))

    @property
    def _has_master(self) -> bool:
        return self.workload.precision.has_master and not self.facts.is_inference

    def gradient(self, name: str) -> Amount:
        """A parameter's gradient, from backward to the end of the update, or permanently."""
        return self.room([self.facts.sizes[name] * self.facts.itemsize])

    def state(self) -> Amount:
        """The optimizer's state, from the first update on."""
        return self._state_of(self._learned)  # parameters without a gradient have no state

    def on_host(self) -> Amount:
        """Bytes of host memory that offloaded tensors take."""
        return 0.0

    def temporaries(self) -> Amount:
        """Temporary memory of an update."""
        return update_temporaries(self.workload, self._learned, self.scenario.cluster.allocator)

    def moved_by_scaling(self) -> Amount:
        """Bytes of gradients that unscaling and clipping move."""
        return gradient_nbytes_moved(self.workload)

    def moved_by_optimizer(self) -> Amount:
        """Bytes that the optimizer reads and writes."""
        return optimizer_nbytes_moved(self.workload)

    def launched_by_optimizer(self) -> Amount:
        """Kernels that the optimizer's loop launches."""
        return float(optimizer_launches(self.workload))

    def launched_over_lists(self) -> Amount:
        """Launches of the optimizer's kernels over lists of tensors."""
        return float(optimizer_list_launches(self.workload))

    def flops_of_optimizer(self) -> Amount:
        """Arithmetic of the optimizer's matrix products [FLOP]."""
        return optimizer_flops(self.workload)

    def _of_all(self, itemsize: int) -> float:
        return self.room(elements * itemsize for elements in self.facts.sizes.values())

    def _state_of(self, sizes: Mapping[str, int]) -> float:
        optimizer, whole = self.workload.optimizer, self._shapes
        return self.room(
            kept * self.workload.itemsize
            for name, size in sizes.items()
            for kept in optimizer.for_parameter(name).state_elements(
                whole[name] if prod(whole[name]) == size else (size,)
            )
        )


class OuterFootprint(Footprint):
    """Memory and work of an outer optimizer: a copy of the weights besides the replicas."""

    def __init__(self, scenario: Scenario, facts: Facts, optimizer: Optimizer) -> None:
        workload = scenario.workload.model_copy(update={"optimizer": optimizer})
        super().__init__(scenario.model_copy(update={"workload": workload}), facts)
        self._learned = {parameter.name: parameter.num_elements for parameter in trainable(facts)}

    def weights(self) -> float:
        """The copy of the weights; their gradient takes as much."""
        return self.room(size * self.workload.itemsize for size in self._learned.values())

    def moved_by_optimizer(self) -> float:
        """Bytes of the update, of the gradient, and of the copy back into the ranks' weights."""
        passes = 3 + 2  # weights, their copy, the gradient; and the copy, the weights
        whole = float(sum(self._learned.values()) * self.workload.itemsize)
        return optimizer_nbytes_moved(self.workload, self._learned) + passes * whole


class OnRoot(Footprint):
    """One process: permanent memory is on device 0."""

    def __init__(self, scenario: Scenario, facts: Facts) -> None:
        super().__init__(scenario, facts)
        self._is_root = np.arange(facts.world_size) == 0

    def _on_root(self, nbytes: Amount) -> Floats:
        nbytes_of_ranks: Floats = nbytes * self._is_root
        return nbytes_of_ranks

    def parameters(self) -> Amount:
        return self._on_root(super().parameters())

    def buffers(self) -> Amount:
        return self._on_root(super().buffers())

    def master(self) -> Amount:
        return self._on_root(super().master())

    def gradient(self, name: str) -> Amount:
        return self._on_root(super().gradient(name))

    def state(self) -> Amount:
        return self._on_root(super().state())

    def temporaries(self) -> Amount:
        return self._on_root(super().temporaries())


class InPieces(Footprint):
    """Each rank keeps its pieces of a partition, and the parts that are not partitioned."""

    def __init__(self, scenario: Scenario, facts: Facts, partition: Partition) -> None:
        super().__init__(scenario, facts)
        self._dealt = partition

    def _by_place(
        self, count: Callable[[dict[str, int]], float], all_of_it: bool = False
    ) -> Floats:
        """Apply a count to each place's trainable pieces, or to all of its pieces."""
        counted: dict[int, float] = {}  # many places share one mapping
        for mine in self._dealt.owned:
            if id(mine) not in counted:
                learned = {n: size for n, size in mine.items() if all_of_it or n in self._learned}
                counted[id(mine)] = count(learned)
        return self._dealt.by_rank([counted[id(mine)] for mine in self._dealt.owned])

    def _of_pieces(self, itemsize: int) -> float:
        dealt = self._dealt
        return self.room(dealt.piece_elements(unit) * itemsize for unit in range(len(dealt.units)))

    @property
    def _casts(self) -> bool:
        return isinstance(self._dealt, RowPartition) or super()._casts

    def parameters(self) -> Amount:
        if self._dealt.kept.weights:
            return super().parameters()
        itemsize = self.workload.itemsize if self._casts else self.facts.weight_itemsize
        return self._of_pieces(itemsize)

    def master(self) -> Amount:
        itemsize = self.workload.itemsize
        if not self._has_master or self._casts:
            return 0.0
        frozen = self.facts.graph.frozen
        if self._dealt.owners is None and not frozen:
            return self._of_pieces(itemsize)
        return self._by_place(
            lambda mine: self.room(
                size * itemsize for name, size in mine.items() if name not in frozen
            ),
            all_of_it=True,
        )

    def gradient(self, name: str) -> Amount:
        if self._dealt.kept.gradients:
            return super().gradient(name)
        if isinstance(self._dealt, RowPartition):
            return self.room([self._dealt.lengths[name] * self.workload.itemsize])
        itemsize = self.workload.itemsize if self._casts else self.facts.itemsize  # as .grad is
        return self.facts.sizes[name] * itemsize / self._dealt.num_places

    def state(self) -> Amount:
        return self._by_place(self._state_of)

    def temporaries(self) -> Amount:
        allocator = self.scenario.cluster.allocator
        return self._by_place(lambda sizes: update_temporaries(self.workload, sizes, allocator))

    def moved_by_scaling(self) -> Amount:
        if self._dealt.owners is not None:
            return super().moved_by_scaling()
        return self._by_place(lambda sizes: gradient_nbytes_moved(self.workload, sizes))

    def moved_by_optimizer(self) -> Amount:
        return self._by_place(lambda sizes: optimizer_nbytes_moved(self.workload, sizes))

    def launched_by_optimizer(self) -> Amount:
        return self._by_place(lambda sizes: optimizer_launches(self.workload, sizes))

    def launched_over_lists(self) -> Amount:
        return self._by_place(lambda sizes: optimizer_list_launches(self.workload, sizes))

    def flops_of_optimizer(self) -> Amount:
        return self._by_place(lambda sizes: optimizer_flops(self.workload, sizes))


class OnHost(InPieces):
    """Master weights, optimizer state, temporaries and pieces of gradients are on the host.

    With offloaded parameters their pieces too.
    """

    def __init__(self, scenario: Scenario, facts: Facts, partition: Partition) -> None:
        super().__init__(scenario, facts, partition)
        self._has_parameters = not scenario.strategy.keeps_parameters_on_host

    def parameters(self) -> Amount:
        return super().parameters() if self._has_parameters else 0.0

    def master(self) -> Amount:
        return 0.0

    def gradient(self, name: str) -> Amount:
        return super().gradient(name) if self._dealt.kept.gradients else 0.0

    def state(self) -> Amount:
        return 0.0

    def temporaries(self) -> Amount:
        return 0.0

    def on_host(self) -> Amount:
        """Bytes of what is not on the device, without temporaries."""
        gradients = sum(super(OnHost, self).gradient(name) for name in self.facts.ready_order)
        if self._dealt.kept.gradients:  # whole on the device; their owners copy their pieces
            gradients = gradients / self._dealt.num_places
        parameters = 0.0 if self._has_parameters else super().parameters()
        return parameters + super().master() + super().state() + gradients


def offloaded_nbytes(scenario: Scenario) -> float:
    """Host memory of the fullest node that offloaded tensors take [bytes]; 0 without offloading.

    A lower bound: processes, data loading and rounded pinned buffers come on top of it.
    """
    if not scenario.strategy.updates_on_host:
        return 0.0
    program, cluster = scenario.program, scenario.cluster
    per_rank = footprint_of(scenario, program.facts, program.partition).on_host()
    every = np.broadcast_to(per_rank, (cluster.world_size,))
    return float(every.reshape(cluster.num_nodes, -1).sum(axis=1).max())


def fits_host(scenario: Scenario) -> bool:
    """Whether offloaded tensors fit the host memory of every node, or it is unknown."""
    there = scenario.cluster.host_memory
    return there is None or offloaded_nbytes(scenario) <= there


def footprint_of(scenario: Scenario, facts: Facts, partition: Partition | None) -> Footprint:
    """The footprint of a scenario's ranks."""
    if scenario.strategy.in_one_process:
        return OnRoot(scenario, facts)
    if partition is None:
        return Footprint(scenario, facts)
    pieces = OnHost if scenario.strategy.updates_on_host else InPieces
    return pieces(scenario, facts, partition)
