"""The machine of virtual devices: memory, links, streams, and tensors on them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.collectives.direct import copies_from, copies_to
from simdp.distributed.launch import find
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.programs.playing import GroupTimes
from simdp.engine.programs.runtime import Activity
from simdp.engine.slowdown import Slowdown
from simdp.errors import ProgramError, ScenarioError, joined
from simdp.results.trace import TraceBuilder
from simdp.torch.charging.speed import Speed
from simdp.torch.ranks import Rank, current

# Ledger -------------------------------------------------------------------------------------------

ROUND = 512
"""torch's allocator rounds each block up to a multiple of this [bytes] (kMinBlockSize)."""

SEGMENT = 2 * 2**20
"""The allocator requests multiples of this from the device [bytes] (kSmallBuffer)."""


class DeviceLedger:
    """Memory contents of one device of ``capacity`` bytes; ``index`` is its number in messages.

    ``allocated`` are bytes in tensors; ``reserved``, with the allocator's cache.
    """

    def __init__(self, index: int, capacity: float) -> None:
        self.index, self.capacity = index, int(capacity)
        self.fraction = 1.0
        self.allocated = self.peak = self.reserved = self.peak_reserved = 0
        self.num_allocs = self.num_frees = self.num_ooms = 0
        self.total_allocated = self.total_freed = 0

    def take(self, nbytes: int) -> None:
        """Allocate a tensor of rounded ``nbytes``.

        Raises
        ------
        torch.OutOfMemoryError
            If it does not fit.
        """
        self.check(nbytes)
        self.allocated = after = self.allocated + nbytes
        self.num_allocs += 1
        self.total_allocated += nbytes
        if after > self.peak:
            self.peak = after
        if after > self.reserved:
            self.reserved = min(-(-after // SEGMENT) * SEGMENT, self.capacity)
            self.peak_reserved = max(self.peak_reserved, self.reserved)

    def check(self, nbytes: int) -> None:
        """Check that ``nbytes`` fit.

        Raises
        ------
        torch.OutOfMemoryError
            If they do not.
        """
        if self.allocated + nbytes > self.capacity * self.fraction:
            self.num_ooms += 1
            held, whole = _size(self.allocated), _size(self.capacity)
            raise torch.OutOfMemoryError(
                f"CUDA out of memory. Tried to allocate {_size(nbytes)}. GPU {self.index} has a "
                f"total capacity of {whole} of which {_size(self.capacity - self.allocated)} is "
                f"free. Of the allocated memory {held} is allocated by PyTorch."
            )

    def give(self, nbytes: int) -> None:
        """Free a tensor."""
        self.allocated -= nbytes
        self.num_frees += 1
        self.total_freed += nbytes

    def trim(self) -> None:
        """Release the cache of the allocator: ``empty_cache``."""
        self.reserved = -(-self.allocated // SEGMENT) * SEGMENT

    def reset_peak(self) -> None:
        """Restart the peaks."""
        self.peak, self.peak_reserved = self.allocated, self.reserved

    @property
    def free(self) -> int:
        """Return free bytes."""
        return self.capacity - self.reserved


class Block:
    """Memory of a storage on device ``place``; an attribute of the storage, freed with it."""

    __slots__ = ("_ledger", "device", "nbytes", "place")

    def __init__(self, ledger: DeviceLedger, device: torch.device, nbytes: int) -> None:
        self.nbytes = 0
        self._ledger, self.device, self.place = ledger, device, ledger.index
        self.resize(nbytes)

    def resize(self, nbytes: int) -> None:
        """Change the size of the storage.

        Raises
        ------
        torch.OutOfMemoryError
            If it does not fit.
        """
        size = -(-nbytes // ROUND) * ROUND
        if size != self.nbytes:
            if self.nbytes:
                self._ledger.give(self.nbytes)
                self.nbytes = 0
            if size:
                self._ledger.take(size)
            self.nbytes = size

    def __del__(self) -> None:
        if self.nbytes:
            self._ledger.give(self.nbytes)


def _size(nbytes: int) -> str:
    return f"{nbytes / 2**30:.2f} GiB" if nbytes >= 2**30 else f"{nbytes / 2**20:.2f} MiB"


class NodeLinks:
    """Links between the ``count`` devices of a node, as used by one process, a rank of the cluster.

    Raises
    ------
    ProgramError
        If the cluster has no node of ``count`` devices.
    """

    def __init__(self, cluster: Cluster, count: int, collectives: Collectives) -> None:
        try:
            self._node = find(cluster, count).cluster
        except ScenarioError as error:
            raise ProgramError(
                f"a node of {count} devices for one process: "
                f"{joined([*error.problems, 'choose another --cluster.'])}"
            ) from None
        self._count, self._collectives = count, collectives
        self._groups: dict[tuple[int, ...], GroupTimes] = {}
        self._seconds: dict[tuple[str, tuple[int, ...], tuple[int, ...], float], float] = {}

    def copy(self, source: int, target: int, nbytes: float) -> float:
        """Return the time to copy from one device to another [s]."""
        pieces = [int(place == target) for place in range(self._count)]
        return self.spread(source, pieces, nbytes)

    def spread(self, root: int, pieces: Sequence[int], nbytes: float, back: bool = False) -> float:
        """Return the time in which a device sends all others their pieces of a buffer [s].

        ``pieces`` are the equal parts of ``nbytes`` that each device gets, one by one; with
        ``back``, it receives them.
        """
        key = ("gather" if back else "scatter", (root,), tuple(pieces), nbytes)
        if key not in self._seconds:
            plan = (copies_to if back else copies_from)(root, tuple(pieces))
            together = np.zeros(self._count)
            times = self._fabric().times(plan, nbytes, together) if plan.num_transfers else together
            self._seconds[key] = float(times.max())
        return self._seconds[key]

    def collective(self, name: str, root: int, places: Sequence[int], nbytes: float) -> float:
        """Return the time of a broadcast from, or a reduce to, a device, over some of them [s]."""
        members = (root, *[place for place in places if place != root])
        key = (name, members, (), nbytes)
        if key not in self._seconds:
            if members not in self._groups:
                self._groups[members] = GroupTimes(self._node, self._collectives, members)
            group = self._groups[members]
            served = group.served(name, nbytes, 0)
            self._seconds[key] = float(group.ends(served, nbytes, np.zeros(len(members))).max())
        return self._seconds[key]

    def _fabric(self) -> VectorFabric:
        everyone = tuple(range(self._count))
        if everyone not in self._groups:
            self._groups[everyone] = GroupTimes(self._node, self._collectives, everyone)
        network, nothing = self._groups[everyone].network, TraceBuilder(keep=False)
        return VectorFabric(network, Slowdown(self._node, 0), nothing, False)


# Machine ------------------------------------------------------------------------------------------

KEY = "cuda"
"""Key of a rank's machine."""


NOT_REQUESTED = object()
"""Value of `VirtualMachine.requested` outside of factory calls in Python."""


class Lane:
    """One stream's time line on device ``place``, up to the ``end`` of its last kernel [s].

    The end of the rank's home lane is the rank's clock.
    """

    __slots__ = ("end", "place", "priority")

    def __init__(self, place: int, priority: int = 0) -> None:
        self.place, self.priority, self.end = place, priority, 0.0


class VirtualDevice:
    """One device: its roofline, its memory, and its streams.

    ``default`` is the default stream, ``lane`` the current one.
    """

    def __init__(self, index: int, speed: Speed) -> None:
        self.index, self.speed = index, speed
        self.device = torch.device("cuda", index)
        self.ledger = DeviceLedger(index, speed.device.memory)
        self.default = self.lane = Lane(index)
        self.lanes = [self.default]

    def new_lane(self, priority: int = 0) -> Lane:
        """Add a stream."""
        self.lanes.append(Lane(self.index, priority))
        return self.lanes[-1]


class VirtualMachine:
    """Devices of a rank's process.

    Parameters
    ----------
    rank : Rank
        Its rank.
    fake : bool
        Whether tensors have no numbers.

    Attributes
    ----------
    devices : list of VirtualDevice
        Those of its node.
    place : int
        The current one.
    home : int
        The one with the rank's clock as its default stream: the first that the script sets, or
        uses for a tensor or a kernel; until then the first it asks about.
    settled : bool
        Whether ``home`` can no longer change.
    used : bool
        Whether the script has used any; until then CPU operators are charged to the rank's device.
    speed : Speed
        Of the rank's device.
    requested : object
        Device argument of the current factory call, None if left out, else `NOT_REQUESTED`.
    quiet : int
        Number of active requests to charge nothing.
    host : float
        When the host last waited for a device: it runs ahead of its launches [s].
    launches : float
        Current factor on the time of a launch, since threads wait for one another.
    casts : dict of int to (Tensor, Tensor)
        Weights cast by autocast, by identity, with the result.
    update : dict of int to float or None
        During an optimizer's step: its time on each device, instead of its operators [s].
    begun : object
        Result of `begin` of `simdp.torch.charging.updates` for it.
    turns : object
        State of `simdp.torch.charging.turns`, if layers take the times of a record.
    """

    def __init__(self, rank: Rank, fake: bool = False) -> None:
        self.fake = fake
        cluster = rank.runtime.cluster
        self.rank = rank
        first = rank.rank - rank.local_rank
        self.speed = _speed(cluster, rank.rank)
        # the node may have more devices than ranks
        own = min(cluster.local_size, cluster.world_size - first)
        self.devices = [
            VirtualDevice(index, _speed(cluster, first + index) if index < own else self.speed)
            for index in range(rank.device_count)
        ]
        self.place = 0
        self.home = min(rank.local_rank, max(len(self.devices) - 1, 0))
        self.used = self.settled = False
        self.requested: Any = NOT_REQUESTED
        self.quiet = 0
        self.update: dict[int, float] | None = None
        self.begun: Any = None
        self.turns: Any = None
        self.host = 0.0
        self.launches = 1.0
        self.casts: dict[int, tuple[Any, Any]] = {}
        self._links: NodeLinks | None = None

    # Devices ------------------------------------------------------------------------------------

    def use(self, place: int) -> VirtualDevice:
        """Return a device by its number.

        Raises
        ------
        RuntimeError
            As torch's, if there is no such device.
        """
        if not 0 <= place < len(self.devices):
            raise RuntimeError(
                "CUDA error: invalid device ordinal\n"
                f"cuda:{place} was asked for, and the node has {len(self.devices)} devices."
            )
        if not self.used:
            self.used, self.home = True, place
            self.follow()
        return self.devices[place]

    def settle(self, place: int) -> None:
        """Keep the rank's clock on a device, unless it already is on one."""
        if not self.settled:
            self.settled, self.home = True, place
            self.follow()

    def device_of(self, request: Any) -> torch.device:
        """Return the device that a script requests, with its number; None is the current one."""
        if request is None:
            return self.use(self.place).device
        if isinstance(request, int):
            return self.use(request).device
        device = torch.device(request)
        if device.type != "cuda":
            return device
        return self.use(self.place if device.index is None else device.index).device

    def hold(self, storage: Any, place: int) -> None:
        """Allocate a storage on a device."""
        device = self.use(place)
        self.settle(place)
        storage.block = Block(device.ledger, device.device, storage.nbytes())

    # Time ---------------------------------------------------------------------------------------

    def clock(self, lane: Lane) -> float:
        """Return when a stream finishes its queued work [s]."""
        if lane is self.devices[self.home].default:
            if self.rank.runtime.is_beside(self.rank.rank):
                self.rank.settle()
            return self.rank.clock
        return lane.end

    def copying(self, source: int, target: int, nbytes: float) -> float:
        """Return the time to copy between two places, -1 for the host [s]."""
        if source == target:
            return self.devices[target].speed.moving(2 * nbytes) if target >= 0 else 0.0
        if min(source, target) < 0:
            return self.rank.runtime.cluster.host.copying(nbytes)
        return self.links.copy(source, target, nbytes)

    @property
    def links(self) -> NodeLinks:
        """Links between the devices of the node."""
        if self._links is None:
            runtime = self.rank.runtime
            chosen = runtime.backends.get("nccl", Collectives())
            self._links = NodeLinks(runtime.cluster, len(self.devices), chosen)
        return self._links

    def charge(self, place: int, seconds: float, activity: Activity) -> None:
        """Run a kernel on the current stream of a device; -1 for a script without devices [s]."""
        if self.quiet or self.update is not None:
            return
        if place < 0:
            if not self.used:
                self.rank.charge(seconds, activity, activity)
            return
        self.settle(place)
        lane = self.devices[place].lane
        if lane is self.devices[self.home].default:
            self.rank.charge(seconds, activity, activity)
        else:
            lane.end = max(lane.end, self.host) + seconds

    def choose(self, lane: Lane) -> None:
        """Make a stream the current one of its device."""
        self.devices[lane.place].lane, self.place = lane, lane.place
        self.follow()

    def follow(self) -> None:
        """Set the stream of the rank's collectives."""
        lane = self.devices[self.place].lane
        self.rank.lane = None if lane is self.devices[self.home].default else lane

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Charge nothing within the context."""
        self.quiet += 1
        try:
            yield
        finally:
            self.quiet -= 1

    def hold_back(self, lane: Lane, until: float) -> None:
        """Let a stream wait until an instant [s]."""
        if lane is self.devices[self.home].default:
            if until > self.rank.clock:
                self.rank.idle(until)
        elif until > lane.end:
            lane.end = until

    def keep_busy(self, places: Iterable[int], seconds: float) -> None:
        """Keep the current streams of devices busy together, once all are ready [s]."""
        if not self.quiet:
            lanes = [self.devices[place].lane for place in sorted(set(places))]
            end = max(self.clock(lane) for lane in lanes) + seconds
            for lane in lanes:
                self.hold_back(lane, end)

    @property
    def now(self) -> float:
        """Return the host's time [s]."""
        self.rank.advance()
        return self.rank.runtime.now

    def reach(self, instant: float) -> None:
        """Let the host wait until an instant; its later launches begin no earlier [s]."""
        self.host = max(self.host, instant)
        self.rank.idle(instant)
        self.rank.runtime.reach(self.rank.rank, instant)

    def synchronize(self, place: int | None = None) -> None:
        """Let the host wait for all streams of a device."""
        device = self.devices[self.place if place is None else place]
        self.reach(max(self.clock(lane) for lane in device.lanes))


def machine() -> VirtualMachine | None:
    """Return the machine of the current thread's rank; None outside of ranks."""
    rank = current()
    return None if rank is None else rank.state.get(KEY)


def _speed(cluster: Cluster, rank: int) -> Speed:
    return Speed(cluster.devices()[rank], int(cluster.sharers()[rank]))


# Tensors ----------------------------------------------------------------------------------------

PLAIN = (torch.Tensor, torch.nn.Parameter)

CPU = torch.device("cpu")


class Unclaimed:
    """Of a storage created by autograd: it belongs to the first device that uses it."""

    place, device = -1, CPU
    nbytes = 0

    def resize(self, nbytes: int) -> None:
        """Do nothing; it is not counted yet."""


UNCLAIMED = Unclaimed()


def block_of(tensor: Any) -> Block | Unclaimed | None:
    """Return the block of the tensor's storage on a device; None on the CPU."""
    try:
        block: Block | Unclaimed | None = tensor.untyped_storage().block
    except NotImplementedError:  # sparse tensors have none; nor have wrappers
        block = None
    else:
        if block is not None or type(tensor) in PLAIN:
            return block
    inner = inner_of(tensor)
    return None if inner is None else block_of(inner)


def inner_of(tensor: Any) -> Any:
    """Return the plain tensor inside a wrapper of another class; None for all others."""
    if tensor.layout in (torch.sparse_coo,):
        return tensor._values()
    if tensor.layout in (torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        return tensor.values()
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None or type(tensor) in PLAIN:
        return None
    names, _ = flatten()
    return getattr(tensor, names[0]) if names else None


def device_of(tensor: Any) -> torch.device | None:
    """Return the virtual device of a tensor; None on the CPU."""
    block = block_of(tensor)
    return None if block is None or block.place < 0 else block.device


# Moving -------------------------------------------------------------------------------------------


class Moved(torch.autograd.Function):
    """A tensor on another device; its gradient is copied back."""

    @staticmethod
    def forward(ctx: Any, tensor: Any, machine: VirtualMachine, place: int, blocking: bool) -> Any:
        """Copy it."""
        ctx.machine, ctx.back, ctx.blocking = machine, place_of(tensor), blocking
        return copied(machine, tensor, place, blocking)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        """Copy its gradient."""
        return copied(ctx.machine, grads[0], ctx.back, ctx.blocking), None, None, None


def place_of(tensor: Any) -> int:
    """Return the number of a tensor's device; -1 for the CPU."""
    block = block_of(tensor)
    return -1 if block is None else block.place


def moved(machine: VirtualMachine, tensor: Any, place: int, blocking: bool = True) -> Any:
    """Return a copy of a tensor on another device, through which gradients flow."""
    if tensor.requires_grad and torch.is_grad_enabled():
        return Moved.apply(tensor, machine, place, blocking)
    return copied(machine, tensor, place, blocking)


def copied(machine: VirtualMachine, tensor: Any, place: int, blocking: bool = True) -> Any:
    """Return a copy of a tensor's numbers on another device, and its time."""
    before = place_of(tensor)
    if tensor.layout is not torch.strided:
        raise NotImplementedError(
            f"a tensor of layout {tensor.layout} cannot be moved between virtual devices; make it "
            "dense first, with to_dense()."
        )
    if inner_of(tensor) is not None:
        return _wrapper_copied(machine, tensor, place, blocking)
    with torch._C._DisableTorchDispatch(), torch.no_grad():
        copy = tensor.detach().clone()
    if place >= 0:
        machine.hold(copy.untyped_storage(), place)
    if machine.used and not machine.quiet and max(before, place) >= 0:
        _take_time(machine, before, place, copy.untyped_storage().nbytes(), blocking)
    return copy


def _wrapper_copied(machine: VirtualMachine, tensor: Any, place: int, blocking: bool) -> Any:
    """Return the same wrapper, as a DTensor, of copied tensors."""
    names, context = tensor.__tensor_flatten__()
    parts = {name: getattr(tensor, name) for name in names}  # a DTensor's mesh is one of them
    for name, part in parts.items():
        if isinstance(part, torch.Tensor):
            parts[name] = copied(machine, part, place, blocking)
    kind = type(tensor)
    return kind.__tensor_unflatten__(parts, context, tensor.shape, tensor.stride()).detach()


def _take_time(
    machine: VirtualMachine, source: int, target: int, nbytes: float, blocking: bool
) -> None:
    seconds = machine.copying(source, target, nbytes)
    busy = target if target >= 0 else source
    if min(source, target) < 0:
        machine.charge(busy, seconds, "compute")
        if blocking:
            machine.synchronize(busy)
        return
    machine.keep_busy((source, target), seconds)
