"""The devices of each rank as a part."""

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
    dtensors,
    faking,
    queries,
    streams,
    tensors,
)
from simdp.torch.cuda.machine import KEY, Patches, VirtualMachine
from simdp.torch.ranks import Rank, RankLocal

PATCHES = (
    tensors.patch,
    tensors.patch_factories,
    tensors.patch_saving,
    dtensors.patch,
    queries.patch,
    streams.patch_memory,
    streams.patch,
    accelerators.patch,
    autocast.patch,
    comm.patch,
    faking.patch,
    queries.patch_refusals,
    updates.patch,
    comm.patch_several,
    comm.patch_sync_batch_norm,
)
"""Functions that replace torch's, in this order."""


class Devices(RankLocal):
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
        """Create a rank's machine; from now on its thread's compute is charged."""
        machine = rank.state[KEY] = VirtualMachine(rank, faking.is_chosen())
        _push_mode(Charging(machine))
        autocast.listen(True)

    def end(self, rank: Rank) -> None:
        """Remove the mode; the rank ends when all of its streams are finished."""
        machine: VirtualMachine | None = rank.state.get(KEY)
        if machine is not None:
            lanes = [lane for device in machine.devices for lane in device.lanes]
            rank.idle(max((machine.clock(lane) for lane in lanes), default=0.0))
            autocast.listen(False)
            _pop_mode()
