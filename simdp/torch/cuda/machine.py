"""Machine: the virtual devices that one rank's process sees, their streams and their memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.engine.programs.runtime import Activity
from simdp.torch.charging.speed import Speed
from simdp.torch.cuda.ledger import Block, Ledger
from simdp.torch.cuda.links import Links
from simdp.torch.ranks import Rank, current

KEY = "cuda"
"""Under which a rank keeps its machine."""


NOBODY = object()
"""Who asks for a tensor if no Python code does."""


class Lane:
    """One stream's time line.

    Attributes
    ----------
    place : int
        The device's number.
    end : float
        When its last kernel ends [s]; of the rank's home lane the rank's clock tells.
    """

    __slots__ = ("end", "place", "priority")

    def __init__(self, place: int, priority: int = 0) -> None:
        self.place, self.priority, self.end = place, priority, 0.0


class VirtualDevice:
    """One device: its catalogue figures, its memory, and the streams on it.

    Attributes
    ----------
    device : torch.device
        With its number.
    speed : Speed
        Its roofline.
    ledger : Ledger
        Its memory.
    default, lane : Lane
        The stream that it begins with, and the one that kernels go to now.
    lanes : list of Lane
        All of them.
    """

    def __init__(self, index: int, speed: Speed) -> None:
        self.index, self.speed = index, speed
        self.device = torch.device("cuda", index)
        self.ledger = Ledger(index, speed.device.memory)
        self.default = self.lane = Lane(index)
        self.lanes = [self.default]

    def new_lane(self, priority: int = 0) -> Lane:
        """One more stream."""
        self.lanes.append(Lane(self.index, priority))
        return self.lanes[-1]


class Machine:
    """What a rank's process knows of devices.

    Parameters
    ----------
    rank : Rank
        Whose.
    fake : bool
        Whether tensors have no numbers.

    Attributes
    ----------
    devices : list of VirtualDevice
        Those of its node.
    place : int
        The current one.
    home : int
        The one whose default stream is the rank's own clock: the first that the script uses.
    used : bool
        Whether the script has used any; until then the rank's device is charged for what runs on
        the CPU.
    speed : Speed
        Of the rank's device.
    asked : object
        For which device the script is asking a factory, None if it does not say; `NOBODY` if it is
        not asking.
    quiet : int
        How many have asked that nothing be charged, and did not take it back yet.
    host : float
        When the host last waited for a device: it runs ahead of what it launches [s].
    launches : float
        How many times as long a launch takes now, since threads wait for one another.
    casts : dict of int to (Tensor, Tensor)
        Weights that autocast has cast, by their identity, with what it made of them.
    update : dict of int to float or None
        While an optimizer steps: what that takes on each device, in place of its operators [s].
    begun : object
        And what `simdp.torch.charging.settled` began with that.
    turns : object
        What `simdp.torch.charging.turns` knows, where layers take what a record says.
    """

    def __init__(self, rank: Rank, fake: bool = False) -> None:
        self.fake = fake
        cluster = rank.runtime.cluster
        self.rank = rank
        self.speed = _speed(cluster, rank.rank)
        first = rank.rank - rank.local_rank
        self.devices = [
            VirtualDevice(index, self._speed_at(cluster, first, index, rank))
            for index in range(rank.device_count)
        ]
        self.place = 0
        self.home = min(rank.local_rank, max(len(self.devices) - 1, 0))
        self.used = False
        self.asked: Any = NOBODY
        self.quiet = 0
        self.update: dict[int, float] | None = None
        self.begun: Any = None
        self.turns: Any = None
        self.host = 0.0
        self.launches = 1.0
        self.casts: dict[int, tuple[Any, Any]] = {}
        self._links: Links | None = None

    def _speed_at(self, cluster: Cluster, first: int, index: int, rank: Rank) -> Speed:
        """Roofline of a device of the node; the node may have more than ranks."""
        if index < cluster.local_size and first + index < cluster.world_size:
            return _speed(cluster, first + index)
        return self.speed

    # Devices ------------------------------------------------------------------------------------

    def use(self, place: int) -> VirtualDevice:
        """A device by its number.

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

    def device_of(self, asked: Any) -> torch.device:
        """The device that a script means, with its number.

        Parameters
        ----------
        asked : torch.device, str, int or None
            None is the current device.
        """
        if asked is None:
            return self.use(self.place).device
        if isinstance(asked, int):
            return self.use(asked).device
        found = torch.device(asked)
        if found.type != "cuda":
            return found
        return self.use(self.place if found.index is None else found.index).device

    def hold(self, storage: Any, place: int) -> None:
        """Put a storage onto a device."""
        found = self.use(place)
        storage.block = Block(found.ledger, found.device, storage.nbytes())

    # Time ---------------------------------------------------------------------------------------

    def clock(self, lane: Lane) -> float:
        """When a stream is through with what it was given [s]."""
        if lane is self.devices[self.home].default:
            if self.rank.runtime.is_beside(self.rank.rank):
                self.rank.settle()
            return self.rank.clock
        return lane.end

    def copying(self, source: int, target: int, nbytes: float) -> float:
        """Time to copy between two places, -1 the host [s]."""
        if source == target:
            return self.devices[target].speed.moving(2 * nbytes) if target >= 0 else 0.0
        if min(source, target) < 0:
            return self.rank.runtime.cluster.host.copying(nbytes)
        return self.links.copy(source, target, nbytes)

    @property
    def links(self) -> Links:
        """What lies between the devices of the node."""
        if self._links is None:
            runtime = self.rank.runtime
            chosen = runtime.backends.get("nccl", Collectives())
            self._links = Links(runtime.cluster, len(self.devices), chosen)
        return self._links

    def charge(self, place: int, seconds: float, activity: Activity) -> None:
        """Let a kernel run on the current stream of a device [s]."""
        if self.quiet or self.update is not None:
            return
        lane = self.devices[place].lane
        if lane is self.devices[self.home].default:
            self.rank.charge(seconds, activity, activity)
        else:
            lane.end = max(lane.end, self.host) + seconds

    def choose(self, lane: Lane) -> None:
        """Give what comes next on a stream's device to this stream, and make it the current one."""
        self.devices[lane.place].lane, self.place = lane, lane.place
        self.follow()

    def follow(self) -> None:
        """Tell the rank which stream its collectives are on now."""
        lane = self.devices[self.place].lane
        self.rank.lane = None if lane is self.devices[self.home].default else lane

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Charge nothing for a while."""
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

    @property
    def now(self) -> float:
        """The host's own time [s]."""
        self.rank.advance()
        return self.rank.runtime.now

    def reach(self, instant: float) -> None:
        """Let the host wait until an instant; nothing that it launches begins before [s]."""
        self.host = max(self.host, instant)
        self.rank.idle(instant)
        self.rank.runtime.reach(self.rank.rank, instant)

    def synchronize(self, place: int | None = None) -> None:
        """Let the host wait for all streams of a device."""
        found = self.devices[self.place if place is None else place]
        self.reach(max(self.clock(lane) for lane in found.lanes))


def machine() -> Machine | None:
    """That of the rank whose thread this is; None off all ranks."""
    rank = current()
    return None if rank is None else rank.state.get(KEY)


def _speed(cluster: Cluster, rank: int) -> Speed:
    return Speed(cluster.devices()[rank], int(cluster.sharers()[rank]))
