"""Virtual ranks of a torch script.

Code that charges operators, or implements a device, calls `current` for the running rank.

A part is one kind of state: the generators, the process groups, the devices. The launcher calls all
of them, in the order of `PARTS`, whenever a rank begins, resumes, pauses, or ends.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial, wraps
from typing import Any, Protocol

from simdp.engine.programs.records import Handle
from simdp.engine.programs.runtime import Activity, Runtime
from simdp.errors import ProgramError

# Ranks --------------------------------------------------------------------------------------------

_LOCAL = threading.local()


class Lane(Protocol):
    """A stream in addition to the compute stream; ``end`` is that of its queued work [s]."""

    end: float


class Rank:
    """A rank of a running script, like a separate process.

    Parameters
    ----------
    runtime : Runtime
        Simulator of the program. Its cluster has a device for each rank.
    device_count : int
        Devices of a node, the value of ``torch.cuda.device_count()``; may exceed the program's
        ranks of the node.

    Attributes
    ----------
    state : dict
        State of the parts for each rank, each under its name.
    waits : dict
        Pending works with possible waiters, in call order.
    lane : Lane or None
        The stream that the script currently queues work on, if not the compute stream.
    """

    def __init__(
        self,
        rank: int,
        runtime: Runtime,
        device_count: int,
        environ: dict[str, str],
        arguments: list[str],
        seed: int = 0,
    ) -> None:
        self.seed = seed
        self.rank, self.runtime, self.device_count = rank, runtime, device_count
        self.environ, self.arguments = environ, arguments
        self.state: dict[str, Any] = {}
        self.waits: dict[Any, None] = {}
        self.lane: Lane | None = None
        self._due = 0.0
        self._activity: Activity = "compute"
        self._name = "compute"

    @property
    def local_rank(self) -> int:
        """Its rank within the node; its device, if the script uses the usual one."""
        return self.rank % self.runtime.cluster.local_size

    @property
    def clock(self) -> float:
        """Virtual time of the rank's compute stream, with all charged work [s]."""
        return self.runtime.clock[self.rank] + self._due

    def charge(self, seconds: float, activity: Activity = "compute", name: str = "compute") -> None:
        """Keep the rank's compute stream busy after its current work, ``seconds`` long.

        Only adds to a sum: time passes at the rank's next call of another rank, and consecutive
        charges of one activity and name become one span. Slowdowns of the rank come on top.
        """
        if activity != self._activity or name != self._name:
            self.advance()
            self._activity, self._name = activity, name
        self._due += seconds

    def advance(self) -> float:
        """Queue all charged work on the compute stream, and return its end [s]."""
        if self._due:
            due, self._due = self._due, 0.0
            self.runtime.busy(self.rank, due, self._activity, self._name)
        return self.runtime.clock[self.rank]

    def settle(self) -> float:
        """Let time pass for all charged work, and return the rank's clock [s]."""
        self.advance()
        return self.runtime.catch_up(self.rank, self._activity, self._name)

    def idle(self, until: float) -> None:
        """Keep the compute stream idle until an instant [s]."""
        self.runtime.clock[self.rank] = max(self.advance(), until)

    def issue(self) -> float:
        """Let time pass until a call made now takes part, and return when that is [s]."""
        if self.lane is None:
            return self.settle()
        return self.runtime.reach(self.rank, self.lane.end)

    def wait(self, handles: Sequence[Handle]) -> None:
        """Let later work wait for calls: on the compute stream, or on another one."""
        if self.lane is None:
            self.settle()
            for handle in handles:
                self.runtime.wait(handle)
            return
        for handle in handles:
            self.lane.end = max(self.lane.end, self.runtime.hear(handle))


def current() -> Rank | None:
    """Return the rank of the current thread; None outside of ranks."""
    return getattr(_LOCAL, "rank", None)


def asking(call: str) -> Rank:
    """Return the rank of the current thread.

    Raises
    ------
    ProgramError
        If the code runs on no rank.
    """
    rank = current()
    if rank is None:
        raise ProgramError(
            f"{call}: this code runs on no rank; threads that a rank starts are no ranks, so call "
            "it in the rank's own thread."
        )
    return rank


def become(rank: Rank | None) -> None:
    """Set the rank of the current thread."""
    _LOCAL.rank = rank


DONE = "steps done"
"""Key of a rank that has ended after its last step."""


class StepsDone(BaseException):
    """Ends a rank after its last step; not an `Exception`, so that scripts do not catch it."""


# Parts --------------------------------------------------------------------------------------------

MISSING = object()


class Patches:
    """Replaced attributes, restored in reverse order when ``stack`` is closed."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack

    def undo(self, call: Callable[[], Any]) -> None:
        """Add a call when all is restored."""
        self._stack.callback(call)

    def put(self, owner: Any, name: str, value: Any) -> Any:
        """Replace an attribute; return the previous value, or None."""
        own = vars(owner).get(name, MISSING)
        before = getattr(owner, name, None)
        setattr(owner, name, value)
        if own is MISSING:
            self._stack.callback(delattr, owner, name)
        else:
            self._stack.callback(setattr, owner, name, own)
        return before

    def update(self, entries: dict[Any, Any], changes: dict[Any, Any]) -> None:
        """Change entries of a dictionary; all of them are restored."""
        before = dict(entries)
        entries.update(changes)
        self._stack.callback(entries.update, before)
        self._stack.callback(entries.clear)

    def wrap(
        self,
        owner: Any,
        name: str,
        call: Callable[..., Any],
        state: Callable[[], Any] | None = None,
    ) -> None:
        """Replace a function by ``call``, which gets it as its first argument, if there is one.

        With ``state``, such as `current`, it is replaced where that returns something, which
        ``call`` gets before the function.
        """
        original = getattr(owner, name, None)
        if original is None:
            return

        @wraps(original)
        def wrapped(*args: Any, **kwargs: Any) -> Any:
            if state is None:
                return call(original, *args, **kwargs)
            here = state()
            if here is None:
                return original(*args, **kwargs)
            return call(here, original, *args, **kwargs)

        self.put(owner, name, wrapped)


class RankLocal:
    """One kind of state per rank; the defaults of unused methods do nothing."""

    def patch(self, patches: Patches) -> None:
        """Replace state of the process while a program runs."""

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace state of the process inside."""
        with ExitStack() as stack:
            self.patch(Patches(stack))
            yield

    def begin(self, rank: Rank) -> None:
        """Create a rank's state, in its thread, before its script begins."""

    def enter(self, rank: Rank) -> None:
        """Install a rank's state: it resumes."""

    def leave(self, rank: Rank) -> None:
        """Save a rank's state: it is about to pause."""

    def end(self, rank: Rank) -> None:
        """Clean up after a rank, in the rank's thread, when its script has ended."""


class Swapped(RankLocal):
    """State of the process that is swapped whenever another rank runs; ``key`` is its name."""

    key = ""

    def fresh(self, rank: Rank) -> Any:
        """Return the state in which a rank begins."""
        raise NotImplementedError

    def seen(self) -> Any:
        """Return the state of the process."""
        raise NotImplementedError

    def show(self, state: Any) -> None:
        """Set the state of the process."""
        raise NotImplementedError

    def patch(self, patches: Patches) -> None:
        patches.undo(partial(self.show, self.seen()))

    def begin(self, rank: Rank) -> None:
        rank.state[self.key] = self.fresh(rank)
        self.enter(rank)

    def enter(self, rank: Rank) -> None:
        if self.key in rank.state:
            self.show(rank.state[self.key])

    def leave(self, rank: Rank) -> None:
        if self.key in rank.state:
            rank.state[self.key] = self.seen()

    def end(self, rank: Rank) -> None:
        rank.state.pop(self.key, None)


MAIN = "__main__"
"""Key of a rank's main module, and its name in `sys.modules`."""

MARKS = "marks"
"""Key of the prefixes of a rank's lines, by stream; None for a hidden one."""

PARTS: list[RankLocal] = []
"""All parts, in order of installation; they are left in reverse."""


@contextmanager
def added(part: RankLocal) -> Iterator[None]:
    """Add a part after all others."""
    PARTS.append(part)
    try:
        yield
    finally:
        PARTS.remove(part)
