"""The runtime: the ranks of one program, their clocks, their groups, and what they wait for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.cluster import Cluster
from simdp.cluster.device import DTYPES
from simdp.collectives import Collectives
from simdp.engine.compute.roofline import Roofline
from simdp.engine.programs.baton import Baton
from simdp.engine.programs.calls import NOTHING, Asked, Handle
from simdp.engine.programs.groups import Group
from simdp.engine.programs.playing import Playing
from simdp.engine.programs.point_to_point import PointToPoint
from simdp.engine.programs.records import Records
from simdp.engine.programs.stretching import SHORT, Stretching
from simdp.engine.programs.timing import GroupTimes
from simdp.engine.slowdown import Slowdown
from simdp.errors import DeadlockError, ProgramError, unknown_name
from simdp.results.trace import Trace

Activity = Literal["compute", "forward", "backward", "update"]


class Played(NamedTuple):
    """What a program did.

    Attributes
    ----------
    values : list
        What each rank's function returned.
    clocks : ndarray, shape `(world_size,)`
        When each rank ended [s].
    trace : Trace
        Every span.
    """

    values: list[Any]
    clocks: Floats
    trace: Trace


class Runtime:
    """Plays one program on a cluster; used once.

    Parameters
    ----------
    cluster : Cluster
        Its ranks are the program's. Its overheads are those of training scripts, and not charged.
    backends : mapping of str to Collectives
        Which algorithms and costs serve the groups of each backend.
    seed : int
        Of what stragglers draw.
    enter : callable
        Called with a rank whenever it goes on, before its code does.
    leave : callable, optional
        Called with a rank before another one goes on, unless the rank has come to its end.
    compute_slowdown : float
        The part by which work takes longer while a collective is under way.

    Attributes
    ----------
    clock : list of float
        Of every rank's compute stream [s].
    """

    def __init__(
        self,
        cluster: Cluster,
        backends: Mapping[str, Collectives],
        seed: int,
        enter: Callable[[int], None],
        leave: Callable[[int], None] | None = None,
        compute_slowdown: float = 0.0,
    ) -> None:
        n = cluster.world_size
        self._stretching = Stretching(compute_slowdown, n) if compute_slowdown else None
        self.cluster, self.backends = cluster, backends
        self.clock = [0.0] * n
        self.blocked: dict[int, Handle] = {}
        self.ended: dict[int, None] = {}
        self._baton = Baton(n, enter, leave)
        self._records = Records(n)
        self._playing = Playing(self._baton.loop, cluster)
        self._slowdown = Slowdown(cluster, seed)
        self._slow: dict[int, tuple[Floats, Floats]] = {}
        self._worked = [0] * n
        self._roofline: Roofline | None = None
        self.messages = PointToPoint(self._playing, self._records, self._finish)
        self._times: dict[tuple[str, tuple[int, ...]], GroupTimes] = {}
        self._groups: dict[tuple[str, str], Group] = {}

    # Running ------------------------------------------------------------------------------------

    def run(self, body: Callable[[int], Any]) -> Played:
        """Run a function on every rank.

        Raises
        ------
        DeadlockError
            If ranks wait for what never comes.
        BaseException
            What the function raised first.
        """
        values: list[Any] = [None] * self.cluster.world_size

        def whole(rank: int) -> None:
            values[rank] = body(rank)
            self.ended[rank] = None

        self._baton.run(whole, self._deadlock)
        return Played(values, np.array(self.clock), self._records.build())

    def check(self) -> None:
        """End the calling rank if another one has failed."""
        self._baton.check()

    def wait(self, handle: Handle) -> None:
        """Let a rank wait until its call is over."""
        self.hear(handle)
        self.clock[handle.rank] = max(self.clock[handle.rank], handle.end)

    def hear(self, handle: Handle) -> float:
        """Let a rank go on when its call is over, and not its compute stream; when that was [s]."""
        rank = handle.rank
        if handle.waiting or not handle.done:
            handle.waiting = True
            self.blocked[rank] = handle
            self._baton.block(rank)
            del self.blocked[rank]
            handle.waiting = False
        return handle.end

    @property
    def now(self) -> float:
        """The instant at which the rank that runs has come to be [s]."""
        return self._baton.loop.now

    def reach(self, rank: int, instant: float) -> float:
        """Let a rank go on at an instant, or now if that is past; when it is then [s]."""
        if instant > self.now:
            self._baton.sleep(rank, instant)
        return self.now

    def finish(self, handle: Handle) -> None:
        """End what a rank waits for, now: of a handle that belongs to no call of a group."""
        self._finish(handle, self._baton.loop.now)

    def _finish(self, handle: Handle, end: float) -> None:
        handle.done, handle.end = True, end
        if handle.waiting:
            self._baton.wake(handle.rank)

    def _deadlock(self) -> DeadlockError:
        lines = [
            f"rank {rank} waits in {handle.asked} {handle.blockers()}"
            for rank, handle in sorted(self.blocked.items())
        ]
        lines += [f"rank {rank} has ended" for rank in sorted(self.ended)]
        return DeadlockError(lines)

    # Groups -------------------------------------------------------------------------------------

    def group(self, name: str, ranks: tuple[int, ...], backend: str) -> Group:
        """The group of a name; made when its first member asks.

        Raises
        ------
        ProgramError
            If there is no such backend.
        """
        if backend not in self.backends:
            raise ProgramError(unknown_name("backend", backend, sorted(self.backends)))
        if (name, backend) not in self._groups:
            key = (backend, ranks)
            if key not in self._times:
                self._times[key] = GroupTimes(self.cluster, self.backends[backend], ranks)
            self._groups[name, backend] = Group(
                name, ranks, backend, self._times[key], self._playing, self._records, self._finish,
                self._stretching,
            )  # fmt: skip
        return self._groups[name, backend]

    def meet(self, rank: int, asked: Asked) -> None:
        """Let a rank wait for all others to make the same call, at no cost."""
        everyone = tuple(range(self.cluster.world_size))
        group = self.group("world", everyone, next(iter(self.backends)))
        self.wait(group.issue(rank, self.clock[rank], asked, NOTHING, None, blocked=True))

    # Work ---------------------------------------------------------------------------------------

    def compute(self, rank: int, seconds: float, activity: Activity, name: str) -> None:
        """Keep a rank's compute stream busy, and let the rank go on when that is done.

        As `busy`.
        """
        self.busy(rank, seconds, activity, name)
        self.reach(rank, self.clock[rank])

    def busy(self, rank: int, seconds: float, activity: Activity, name: str) -> None:
        """Keep a rank's compute stream busy; stragglers make it longer [s].

        What stragglers draw anew for every step, they draw for every such call of a rank.
        """
        number = self._worked[rank]
        self._worked[rank] += 1
        if number not in self._slow:
            self._slow[number] = self._slowdown.factors(number), self._slowdown.lost(number)
        factors, lost = self._slow[number]
        start = self.clock[rank]
        length = np.array([seconds * float(factors[rank]) + float(lost[rank])])
        end = float(self._slowdown.finish(np.array([start]), length, np.array([rank]))[0])
        if end > start:
            self._work(rank, activity, name, end)

    def _work(self, rank: int, activity: Activity, name: str, end: float) -> None:
        self._records.compute(rank, activity, name, self.clock[rank], end)
        if self._stretching is not None:
            self._stretching.worked(rank, self.clock[rank], end)
        self.clock[rank] = end

    def is_beside(self, rank: int) -> bool:
        """Whether a rank's work may yet turn out to have taken longer, beside a collective."""
        return self._stretching is not None and self._stretching.is_beside(rank)

    def catch_up(self, rank: int, activity: Activity, name: str) -> float:
        """Let a rank go on when its compute stream is through with all work; when that is [s].

        Beside collectives it has taken longer; what that adds is a span of this activity and name.
        """
        now = self.reach(rank, self.clock[rank])
        while self._stretching is not None and (late := self._stretching.lacking(rank)):
            self._work(rank, activity, name, self.clock[rank] + late)
            now = self.reach(rank, self.clock[rank])
            if late < SHORT:
                self._stretching.lacking(rank)
        return now

    def pass_until(self, rank: int, instant: float) -> None:
        """Let a rank do nothing until an instant [s]."""
        if instant > self.clock[rank]:
            self.clock[rank] = instant
            self._baton.sleep(rank, instant)

    def seconds_for(self, rank: int, flops: float, dtype: str) -> float:
        """Time that a rank's device needs for one kernel, by the roofline [s].

        Raises
        ------
        ProgramError
            If the device has no peak in this dtype.
        """
        device = self.cluster.devices()[rank]
        if dtype not in device.peak:
            known = [known for known in DTYPES if known in device.peak]
            raise ProgramError(unknown_name("dtype", dtype, known))
        if self._roofline is None:
            self._roofline = Roofline(self.cluster.devices(), sharers=self.cluster.sharers())
        roof = self._roofline
        work = (flops + float(roof.half_work[rank])) / float(roof.flops(dtype)[rank])
        return work + float(roof.launch[rank])
