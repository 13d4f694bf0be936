"""Compressed: what the operations of comm hooks do to the arrays of all ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from simdp.arrays import Array
from simdp.engine.buffers import FlatBuffers
from simdp.engine.compression import largest, quantized
from simdp.engine.compression.hooked import Hooked
from simdp.engine.compression.largest import Entries, Largest
from simdp.engine.compression.low_rank import LowRank, Thin
from simdp.scenario import Scenario
from simdp.steps import coded, ops, own_hook
from simdp.steps.bucket import Bucket


class Compressed:
    """What comm hooks keep, and what is on its way.

    Parameters
    ----------
    scenario : Scenario
        One point, with numerics.
    flat : callable
        Finds the buffers of a bucket.
    made : dict
        Buffers beside those of whole gradients, which it adds to and takes from.
    shapes : mapping of str to tuple
        Of the parameters.

    Attributes
    ----------
    acts : dict of type to callable
        Who does what.
    """

    def __init__(
        self,
        scenario: Scenario,
        flat: Callable[[Bucket], FlatBuffers],
        made: dict[Bucket, FlatBuffers],
        shapes: Mapping[str, tuple[int, ...]],
    ) -> None:
        self._world_size = scenario.cluster.world_size
        self._flat, self._made, self._shapes = flat, made, shapes
        self._thin: dict[str, Thin] = {}
        self._chosen: dict[str, list[Entries]] = {}
        self.acts: dict[type[Any], Callable[[Any], None]] = {
            ops.Split: self._split,
            ops.Join: self._join,
            ops.Select: self._select,
            ops.AddSelected: self._add_selected,
            coded.Dequantize: self._dequantize,
            own_hook.CallHook: self._call_hook,
            own_hook.EndHook: self._end_hook,
        }

    @cached_property
    def _low_rank(self) -> LowRank:
        return LowRank(self._world_size)

    @cached_property
    def _largest(self) -> Largest:
        return Largest()

    @cached_property
    def _hooked(self) -> Hooked:
        return Hooked(self._world_size)

    def state_dict(self) -> dict[str, Array]:
        """What is kept from step to step."""
        found: dict[str, Array] = {}
        if "_low_rank" in self.__dict__:
            found |= self._low_rank.state_dict()
        if "_largest" in self.__dict__:
            found |= self._largest.errors.state_dict()
        if "_hooked" in self.__dict__:
            found |= self._hooked.state_dict()
        return found

    def load_state_dict(self, arrays: Mapping[str, Array]) -> None:
        """Take up what was kept."""
        self._low_rank.load_state_dict(arrays)
        self._largest.errors.load_state_dict(arrays, self._world_size)
        self._hooked.load_state_dict(arrays)

    def turn(self, op: ops.Turn) -> None:
        """Make the sums of P orthonormal, and find Q."""
        taken = op.factoring
        self._low_rank.turn(self._flat(taken.bucket), taken, self._thin[taken.label])

    def _split(self, op: ops.Split) -> None:
        taken = op.factoring
        thin = self._low_rank.take(self._flat(taken.bucket), taken)
        self._thin[taken.label] = thin
        self._made |= {taken.rest: thin.rest, taken.p: thin.p, taken.q: thin.q}

    def _join(self, op: ops.Join) -> None:
        taken = op.factoring
        thin = self._thin.pop(taken.label)
        self._low_rank.join(self._flat(taken.bucket), taken, thin, op.divisor)
        for bucket in {taken.rest, taken.p, taken.q}:
            del self._made[bucket]

    def _select(self, op: ops.Select) -> None:
        asked = op.selection
        self._chosen[asked.label] = self._largest.select(
            self._flat(asked.bucket), asked.num_entries, asked.divisor, asked.error_feedback
        )

    def _add_selected(self, op: ops.AddSelected) -> None:
        asked = op.selection
        largest.add(self._chosen.pop(asked.label), self._flat(asked.bucket))

    def _dequantize(self, op: coded.Dequantize) -> None:
        quantized.average(self._flat(op.code.bucket), op.code, op.divisor)

    def _call_hook(self, op: own_hook.CallHook) -> None:
        handed = self._hooked.call(op.hook, self._flat(op.hook.bucket), self._shapes)
        if handed is not None and op.hook.sent is not None:
            self._made[op.hook.sent] = handed

    def _end_hook(self, op: own_hook.EndHook) -> None:
        assert op.hook.sent is not None, "its all_reduce is over"
        summed = self._made.pop(op.hook.sent)
        self._hooked.end(op.hook, self._flat(op.hook.bucket), summed)
