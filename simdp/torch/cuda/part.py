"""The part of each rank that is its devices."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from torch.utils._python_dispatch import _pop_mode, _push_mode

from simdp.torch.charging import updates
from simdp.torch.charging.mode import Charging
from simdp.torch.cuda import (
    accelerators,
    autocast,
    comm,
    factories,
    faking,
    memory,
    queries,
    refusals,
    saving,
    several,
    streams,
    sync_batch_norm,
    tensors,
)
from simdp.torch.cuda.machine import KEY, Machine
from simdp.torch.cuda.patches import Patches
from simdp.torch.parts import Part
from simdp.torch.ranks import Rank

PATCHES = (
    tensors.patch,
    factories.patch,
    saving.patch,
    queries.patch,
    memory.patch,
    streams.patch,
    accelerators.patch,
    autocast.patch,
    comm.patch,
    faking.patch,
    refusals.patch,
    updates.patch,
    several.patch,
    sync_batch_norm.patch,
)
"""Replace functions of torch, in this order."""


class Devices(Part):
    """Virtual devices of each rank, and the mode that charges them."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Let torch see virtual devices on the threads of ranks, and its own elsewhere."""
        with ExitStack() as stack:
            patches = Patches(stack)
            for patch in PATCHES:
                patch(patches)
            yield

    def begin(self, rank: Rank) -> None:
        """Give a rank its machine; from now on what its thread computes is charged."""
        machine = rank.state[KEY] = Machine(rank, faking.is_chosen())
        _push_mode(Charging(machine))
        autocast.listen(True)

    def end(self, rank: Rank) -> None:
        """Take the mode away; the rank ends when all of its streams are through."""
        machine: Machine | None = rank.state.get(KEY)
        if machine is not None:
            lanes = [lane for device in machine.devices for lane in device.lanes]
            rank.idle(max((machine.clock(lane) for lane in lanes), default=0.0))
            autocast.listen(False)
            _pop_mode()
