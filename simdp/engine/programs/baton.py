"""The baton: threads of ranks, of which one runs at a time, in the order of a virtual clock.

Whoever must wait steps the loop himself until a rank is ready, and hands the baton to it: no
thread stands between them. So that one thread runs at any time, and ranks become ready in an order
that the loop alone decides, the same program does the same every time.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable
from math import inf

from simdp.engine.clocks.loop import Loop
from simdp.errors import ProgramError, SimdpError

PATIENCE = 1.0
"""How long a thread that was told to end may take [s]; beyond this it is left to the process."""


def _imported() -> str | None:
    """The module that this thread is importing; no other thread can import it before it is done."""
    frame = sys._getframe(1)
    while (outer := frame.f_back) is not None:
        if frame.f_code.co_name == "_find_and_load" and "importlib" in frame.f_code.co_filename:
            return str(frame.f_locals["name"])
        frame = outer
    return None


class Ended(BaseException):
    """Unwinds a rank's thread; no `Exception`, so that programs that catch errors let it pass."""


class Baton:
    """Runs a function once per rank, each in a thread of its own, one at a time.

    Parameters
    ----------
    world_size : int
        Number of ranks.
    enter : callable
        Called with a rank whenever it gets the baton.
    leave : callable, optional
        Called with a rank before another one gets the baton, unless the rank has come to its end.

    Attributes
    ----------
    loop : Loop
        Where time passes.
    """

    def __init__(
        self,
        world_size: int,
        enter: Callable[[int], None],
        leave: Callable[[int], None] | None = None,
    ) -> None:
        self.loop = Loop()
        self._enter, self._leave = enter, leave
        self._ready: deque[int] = deque()
        self._locks = [threading.Lock() for _ in range(world_size)]
        self._threads: list[threading.Thread | None] = [None] * world_size
        self._alive = world_size
        self._body: Callable[[int], None] | None = None
        self._main = threading.Lock()
        self._stopping = False
        self._failure: BaseException | None = None
        for lock in (*self._locks, self._main):
            lock.acquire()

    def _next(self) -> int | None:
        """The rank that runs next; None if nobody ever will again."""
        while not self._ready:
            if self.loop.peek() == inf:
                return None
            self.loop.step()
        return self._ready.popleft()

    # Ranks --------------------------------------------------------------------------------------

    def wake(self, rank: int) -> None:
        """Let a rank that was blocked go on at this instant, after those who are ready already."""
        self._ready.append(rank)

    def sleep(self, rank: int, instant: float) -> None:
        """Let a rank, which has the baton, wait until an instant [s]."""
        self.loop.at(instant, lambda now: self.wake(rank))
        self.block(rank)

    def block(self, rank: int) -> None:
        """Hand the baton on, and come back once this rank, which has it, was woken."""
        self.check()
        following = self._next()
        if following == rank:
            return
        if following is not None and (module := _imported()) is not None:
            self._ready.appendleft(following)
            raise ProgramError(
                f"the import of {module} waits for other ranks, which Python does not let import "
                "it meanwhile; put the calls of the module into a function, and call it after the "
                "import."
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
        """End the calling rank if the program is over."""
        if self._stopping:
            raise Ended

    def run(self, body: Callable[[int], None], stuck: Callable[[], SimdpError]) -> None:
        """Run a function on every rank until all have returned; no thread is left.

        Parameters
        ----------
        body : callable
            Called with each rank, in its thread.
        stuck : callable
            Makes the error for ranks that wait for what will never happen.

        Raises
        ------
        BaseException
            What a rank raised first.
        SimdpError
            From ``stuck``.
        """
        self._body = body
        self._ready.extend(range(len(self._locks)))
        error: BaseException | None = None
        try:
            following = self._next()
            assert following is not None
            self._hand(following)
            self._main.acquire()
            error = self._failure or (stuck() if self._alive else None)
        finally:
            self._end_all()
        if error is not None:
            raise error
        self.loop.run()  # what nobody waited for

    def _hand(self, rank: int) -> None:
        if self._threads[rank] is not None:
            self._locks[rank].release()
            return
        thread = threading.Thread(target=self._live, args=(rank,), name=f"rank {rank}", daemon=True)
        self._threads[rank] = thread  # before it runs, and hands the baton on in its turn
        try:
            thread.start()
        except RuntimeError:
            self._threads[rank] = None
            raise ProgramError(
                f"there is no room for a thread of rank {rank}; run the program on fewer ranks."
            ) from None

    def _live(self, rank: int) -> None:
        """The whole life of a rank's thread."""
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
        """Wake every thread in turn, for its end."""
        self._stopping = True
        for thread, lock in zip(self._threads, self._locks, strict=True):
            if thread is not None and thread.is_alive():
                if lock.locked():
                    lock.release()
                thread.join(PATIENCE)
