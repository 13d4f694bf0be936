"""Runs rank programs in threads, one at a time.

A program's calls block, as those of torch.distributed do. A rank runs until it must wait; then its
thread steps the loop until another rank is ready in virtual time, and passes control to its thread
directly. One thread runs at a time, and the loop alone determines the order of ranks, so that runs
are deterministic.

The user's API is in `simdp.distributed`.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from math import inf
from typing import Any, Literal, NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.cluster import Cluster
from simdp.cluster.hardware import DTYPES
from simdp.collectives import Collectives
from simdp.engine.clocks.flows import EventLoop
from simdp.engine.compute.roofline import Roofline
from simdp.engine.programs.groups import PointToPoint, ProgramGroup
from simdp.engine.programs.playing import GroupTimes, Playing
from simdp.engine.programs.records import (
    NOTHING,
    SHORT,
    CallSignature,
    Handle,
    ProgramRecords,
    Stretching,
)
from simdp.engine.slowdown import Slowdown
from simdp.errors import DeadlockError, ProgramError, SimdpError, unknown_name
from simdp.results.trace import Trace

PATIENCE = 1.0
"""Time for a thread to end [s]; after it, the thread is left to the process."""

STOPPING = 10.0
"""The same for a thread that computes, when a program is stopped [s]."""


def _imported() -> str | None:
    """Name of the module that this thread is importing; Python locks it for other threads."""
    frame = sys._getframe(1)
    while (outer := frame.f_back) is not None:
        if frame.f_code.co_name == "_find_and_load" and "importlib" in frame.f_code.co_filename:
            return str(frame.f_locals["name"])
        frame = outer
    return None


class Ended(BaseException):
    """Ends a rank's thread; not an `Exception`, so that programs do not catch it."""


_BATONS: list[Baton] = []
"""Those of running programs; a rank of one may start the next."""


class Baton:
    """Runs a function once per rank, in one thread each, one at a time.

    ``enter`` is called with a rank whenever it gets control; ``leave`` before another one gets
    control, unless the rank has ended. Ctrl-C ends all threads: ``stopped`` is then true.
    """

    def __init__(
        self,
        world_size: int,
        enter: Callable[[int], None],
        leave: Callable[[int], None] | None = None,
    ) -> None:
        self.loop = EventLoop()
        self._enter, self._leave = enter, leave
        self._ready: deque[int] = deque()
        self._locks = [threading.Lock() for _ in range(world_size)]
        self._threads: list[threading.Thread | None] = [None] * world_size
        self._alive = world_size
        self._body: Callable[[int], None] | None = None
        self._main = threading.Lock()
        self._stopping = self.stopped = False
        self._running = 0
        self._failure: BaseException | None = None
        for lock in (*self._locks, self._main):
            lock.acquire()

    def _next(self) -> int | None:
        """The rank that runs next; None if no rank can run again."""
        while not self._ready:
            if self.loop.peek() == inf:
                return None
            self.loop.step()
        return self._ready.popleft()

    # Ranks --------------------------------------------------------------------------------------

    def wake(self, rank: int) -> None:
        """Make a blocked rank ready at this instant, after those that are ready already."""
        self._ready.append(rank)

    def sleep(self, rank: int, instant: float) -> None:
        """Block the running rank until an instant [s]."""
        self.loop.at(instant, lambda now: self.wake(rank))
        self.block(rank)

    def block(self, rank: int) -> None:
        """Pass control on, and return once the running rank has been woken."""
        self.check()
        following = self._next()
        if following == rank:
            return
        if following is not None and (module := _imported()) is not None:
            self._ready.appendleft(following)
            raise ProgramError(
                f"the import of {module} waits for other ranks, but Python locks the module until "
                "the import ends; put the calls of the module into a function, and call it after "
                "the import."
            )
        if self._leave is not None:
            self._leave(rank)
        if following is None:
            self._main.release()
        else:
            self._hand(following)
        self._locks[rank].acquire()
        self.check()
        self._enter(rank)

    def check(self) -> None:
        """Raise `Ended` in the calling rank if the program is over."""
        if self._stopping:
            raise Ended

    def run(self, body: Callable[[int], None], stuck: Callable[[], SimdpError]) -> None:
        """Run ``body`` with every rank until all have returned, and end all threads.

        Raises
        ------
        BaseException
            The first one raised by a rank.
        SimdpError
            The result of ``stuck``, for ranks in a deadlock.
        """
        self._body = body
        self._ready.extend(range(len(self._locks)))
        error: BaseException | None = None
        _BATONS.append(self)
        try:
            following = self._next()
            assert following is not None
            self._hand(following)
            self._main.acquire()
            if self.stopped:
                return
            error = self._failure or (stuck() if self._alive else None)
        except KeyboardInterrupt:
            for started in reversed(_BATONS[_BATONS.index(self) :]):
                started._stop()
            raise
        finally:
            _BATONS.remove(self)
            self._end_all()
        if error is not None:
            raise error
        self.loop.run()  # calls that no rank waited for

    def _stop(self) -> None:
        """End all threads, the running one first, from a thread that runs none of the ranks."""
        self._stopping = self.stopped = True
        running = self._threads[self._running]
        if running is not None:
            running.join(STOPPING)
        self._end_all()
        self._main.release()

    def _hand(self, rank: int) -> None:
        self._running = rank
        if self._threads[rank] is not None:
            self._locks[rank].release()
            return
        thread = threading.Thread(target=self._live, args=(rank,), name=f"rank {rank}", daemon=True)
        self._threads[rank] = thread  # before it runs, and passes control on
        try:
            thread.start()
        except RuntimeError:
            self._threads[rank] = None
            raise ProgramError(
                f"cannot start a thread for rank {rank}; run the program on fewer ranks."
            ) from None

    def _live(self, rank: int) -> None:
        """Main function of a rank's thread."""
        assert self._body is not None
        try:
            self._enter(rank)
            self._body(rank)
            self._alive -= 1
            if self._stopping:
                return
            following = self._next()
            if following is not None:
                self._hand(following)
                return
        except Ended:
            return
        except BaseException as error:
            if self._stopping:
                return
            self._failure = error
        self._main.release()

    def _end_all(self) -> None:
        """Wake every thread in turn to end it."""
        self._stopping = True
        for thread, lock in zip(self._threads, self._locks, strict=True):
            if thread is not None and thread.is_alive():
                if lock.locked():
                    lock.release()
                thread.join(PATIENCE)


Activity = Literal["compute", "forward", "backward", "update"]


class ProgramOutput(NamedTuple):
    """Return value of each rank's function, end of each rank [s], and every span."""

    values: list[Any]
    clocks: Floats
    trace: Trace


class Runtime:
    """Simulates one program on a cluster; used once.

    Parameters
    ----------
    cluster : Cluster
        Its ranks are the program's. Its overheads are those of training scripts, and ignored.
    backends : mapping of str to Collectives
        Algorithms and costs of each backend's groups.
    seed : int
        Of random stragglers.
    enter : callable
        Called with a rank before its code continues.
    leave : callable, optional
        Called with a rank before another one continues, unless the rank has ended.
    slows : bool
        Whether work takes longer while a collective runs, by the cluster's overheads.

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
        slows: bool = False,
    ) -> None:
        n = cluster.world_size
        self._stretching = Stretching(n) if slows and cluster.overheads.compute_slowdown else None
        self.cluster, self.backends = cluster, backends
        self._values: list[Any] = [None] * n
        self.clock = [0.0] * n
        self.blocked: dict[int, Handle] = {}
        self.ended: dict[int, None] = {}
        self._baton = Baton(n, enter, leave)
        self._records = ProgramRecords(n)
        self._playing = Playing(self._baton.loop, cluster)
        self._slowdown = Slowdown(cluster, seed)
        self._slow: dict[int, tuple[Floats, Floats]] = {}
        self._worked = [0] * n
        self._roofline: Roofline | None = None
        self.messages = PointToPoint(self._playing, self._records, self._finish)
        self._times: dict[tuple[str, tuple[int, ...]], GroupTimes] = {}
        self._groups: dict[tuple[str, str], ProgramGroup] = {}

    # Running ------------------------------------------------------------------------------------

    def run(self, body: Callable[[int], object]) -> ProgramOutput:
        """Run a function on every rank.

        Raises
        ------
        DeadlockError
            If ranks wait for events that cannot happen.
        BaseException
            The first one raised by the function.
        """

        def whole(rank: int) -> None:
            self._values[rank] = body(rank)
            self.ended[rank] = None

        self._baton.run(whole, self._deadlock)
        return self.output()

    def output(self) -> ProgramOutput:
        """Return what has happened so far."""
        return ProgramOutput(list(self._values), np.array(self.clock), self._records.build())

    @property
    def stopped(self) -> bool:
        """Whether Ctrl-C ended it."""
        return self._baton.stopped

    def check(self) -> None:
        """Raise `Ended` in the calling rank if another one has failed."""
        self._baton.check()

    def wait(self, handle: Handle) -> None:
        """Block a rank until its call has ended; advance its compute stream to the end."""
        self.hear(handle)
        self.clock[handle.rank] = max(self.clock[handle.rank], handle.end)

    def hear(self, handle: Handle) -> float:
        """Block a rank until its call has ended; return the end [s], without moving its clock."""
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
        """Current virtual time of the running rank [s]."""
        return self._baton.loop.now

    def reach(self, rank: int, instant: float) -> float:
        """Block a rank until an instant, unless it is past; return the time then [s]."""
        if instant > self.now:
            self._baton.sleep(rank, instant)
        return self.now

    def finish(self, handle: Handle) -> None:
        """End a handle without a group's call, now."""
        self._finish(handle, self._baton.loop.now)

    def _finish(self, handle: Handle, end: float) -> None:
        handle.done, handle.end = True, end
        if handle.waiting:
            self._baton.wake(handle.rank)

    def _deadlock(self) -> DeadlockError:
        lines = [
            f"rank {rank} waits in {handle.signature} {handle.blockers()}"
            for rank, handle in sorted(self.blocked.items())
        ]
        lines += [f"rank {rank} has ended" for rank in sorted(self.ended)]
        return DeadlockError(lines)

    # Groups -------------------------------------------------------------------------------------

    def group(self, name: str, ranks: tuple[int, ...], backend: str) -> ProgramGroup:
        """The group of a name, created by its first member's call.

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
            self._groups[name, backend] = ProgramGroup(
                name, ranks, backend, self._times[key], self._playing, self._records, self._finish,
                self._stretching,
            )  # fmt: skip
        return self._groups[name, backend]

    def meet(self, rank: int, signature: CallSignature) -> None:
        """Block a rank until all others have made the same call, at no cost."""
        everyone = tuple(range(self.cluster.world_size))
        group = self.group("world", everyone, next(iter(self.backends)))
        self.wait(group.issue(rank, self.clock[rank], signature, NOTHING, None, blocked=True))

    # Work ---------------------------------------------------------------------------------------

    def compute(self, rank: int, seconds: float, activity: Activity, name: str) -> None:
        """Occupy a rank's compute stream, as `busy`, and block the rank until the end."""
        self.busy(rank, seconds, activity, name)
        self.reach(rank, self.clock[rank])

    def busy(self, rank: int, seconds: float, activity: Activity, name: str) -> None:
        """Occupy a rank's compute stream for a time, plus its stragglers' [s].

        Each call of a rank counts as a step of random stragglers.
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
        """Whether a concurrent collective may still lengthen a rank's work."""
        return self._stretching is not None and self._stretching.is_beside(rank)

    def catch_up(self, rank: int, activity: Activity, name: str) -> float:
        """Block a rank until its compute stream is idle; return the instant [s].

        The slowdown by collectives is added as a span of this activity and name.
        """
        now = self.reach(rank, self.clock[rank])
        while self._stretching is not None and (late := self._stretching.lacking(rank)):
            self._work(rank, activity, name, self.clock[rank] + late)
            now = self.reach(rank, self.clock[rank])
            if late < SHORT:
                self._stretching.lacking(rank)
        return now

    def pass_until(self, rank: int, instant: float) -> None:
        """Let a rank idle until an instant [s]."""
        if instant > self.clock[rank]:
            self.clock[rank] = instant
            self._baton.sleep(rank, instant)

    def seconds_for(self, rank: int, flops: float, dtype: str) -> float:
        """Time of one kernel on a rank's device by the roofline model [s].

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
