"""OneProcess: the model on device 0, copied out to others, whose gradients are summed there."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from simdp.arrays import Bools, Floats
from simdp.collectives import Plan
from simdp.engine.cohort.base import Ranks
from simdp.engine.launcher import Launched
from simdp.engine.scattered import Scattered
from simdp.strategies.base import Script, Tensor


class OneProcess(Ranks):
    """Device 0, which has what lasts, and the others, which borrow what they need."""

    def _prepare_keeping(self) -> None:
        super()._prepare_keeping()
        self._is_root = np.arange(self.world_size) == 0
        self._borrowed: dict[str, Floats] = {}

    @property
    def infers(self) -> bool:
        """See `simdp.strategies.base.Rank`."""
        return self.scenario.workload.mode == "inference"

    def _lasting(self, nbytes: float | Floats) -> float | Floats:
        """What every replica would keep: device 0 alone, where the process has one model."""
        return nbytes * self._is_root if self.scenario.strategy.one_process else nbytes

    def kept_parameters(self) -> float | Floats:
        return self._lasting(super().kept_parameters())

    def kept_buffers(self) -> float | Floats:
        return self._lasting(super().kept_buffers())

    def kept_master(self) -> float | Floats:
        return 0.0 if self.infers else self._lasting(super().kept_master())

    def kept_buckets(self) -> float | Floats:
        return 0.0 if self.infers else super().kept_buckets()

    def kept_gradient(self, name: str) -> float | Floats:
        return self._lasting(super().kept_gradient(name))

    def kept_state(self) -> float | Floats:
        return self._lasting(super().kept_state())

    def update_temporaries(self) -> float | Floats:
        return self._lasting(super().update_temporaries())

    def borrow(self, part: str, nbytes: float | Floats) -> Script:
        """Let ranks take memory that they give back together, with `give_back`."""
        if self.observed:
            self._borrowed[part] = self._borrowed.get(part, np.zeros(self.world_size)) + nbytes
            yield from self.hold(part, nbytes)

    def give_back(self, part: str) -> Script:
        """Give back all that has been borrowed for a part."""
        if part in self._borrowed:
            yield from self.hold(part, -self._borrowed.pop(part))

    # Copies of the model and its gradients ------------------------------------------------------

    @cached_property
    def _scattered(self) -> Scattered | None:
        return Scattered(self.replicas) if self.replicas else None

    def replicate(self, tensors: Sequence[Tensor], active: Sequence[bool], label: str) -> Script:
        """See `simdp.strategies.base.Rank`."""
        ranks, there = _with_root(active)
        nbytes = float(sum(tensor.num_elements * self.itemsize_of(tensor) for tensor in tensors))
        if len(ranks) == 1:
            return
        others: Floats = self.room([nbytes]) * (there & ~self._is_root)
        yield from self.borrow("gathered", others)
        group = self.launcher.among(ranks)
        plan = self.launcher.plan("broadcast", nbytes, 0, group)
        if self.replicas:
            self.replicas.broadcast([tensor.name for tensor in tensors], plan)
        yield from self.wait([(yield from self._launch_in(group, plan, nbytes, label))])

    def _launch_in(
        self, group: str | None, plan: Plan, nbytes: float, label: str
    ) -> Generator[Any, None, Launched]:
        """Start a collective of the process group that a launcher has named."""
        if self.overheads.launch:
            yield self._host("launch", self._per_launch)
        return (yield from self.launcher.launch(self.step, plan, nbytes, label, group=group))

    def reduce_gradients(
        self, names: Sequence[str], micro_step: int, label: str
    ) -> Generator[Any, None, Launched | None]:
        """See `simdp.strategies.base.Rank`."""
        ranks, there = _with_root(self.active(micro_step))
        nbytes = float(sum(self._sizes[name] for name in names) * self.itemsize)
        group = self.launcher.among(ranks)
        plan = self.launcher.plan("reduce", nbytes, 0, group)
        if self._scattered:
            self._scattered.reduce(names, plan)
        if len(ranks) == 1:
            return None
        flat: Floats = self.room([nbytes]) * there.astype(float)
        yield from self.hold("buckets", flat)
        call = yield from self._launch_in(group, plan, nbytes, label)
        yield from self.hold("buckets", -flat)
        learned = [name for name in names if name in self._learned]
        yield from self.borrow("gradients", self._is_root * self._of_gradients(learned))
        return call

    @cached_property
    def _learned(self) -> set[str]:
        return set(self.ready_order)

    def take_sums(self, micro_step: int) -> Script:
        """See `simdp.strategies.base.Rank`."""
        if self._scattered:
            self._scattered.take_sums()
        if self.observed:
            self._has_gradient.update(self.ready_order)
            stays = self._is_root * self._of_gradients(self.ready_order) * (micro_step == 0)
            yield from self.hold("gradients", stays - self._borrowed.pop("gradients"))
            yield from self.give_back("gathered")
            yield from self.give_back("inputs")

    def _of_gradients(self, names: Sequence[str]) -> float:
        itemsize = self.scenario.workload.gradient_itemsize
        return self.room(self._sizes[name] * itemsize for name in names)


def _with_root(active: Sequence[bool]) -> tuple[tuple[int, ...], Bools]:
    """The ranks that are active, and rank 0, which is there in any case."""
    there = np.array(active, dtype=bool)
    there[0] = True
    return tuple(np.flatnonzero(there).tolist()), there
