"""Virtual ranks of a torch script.

Code that charges operators, or answers for a device, calls `current` for the running rank.

A part is one kind of state: the generators, the process groups, the devices. The launcher calls all
of them, in the order of `PARTS`, whenever a rank begins, resumes, pauses, or ends.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from simdp.engine.programs.records import Handle
from simdp.engine.programs.runtime import Activity, Runtime
from simdp.errors import ProgramError

# Ranks --------------------------------------------------------------------------------------------

_LOCAL = threading.local()


class Lane(Protocol):
    """A stream in addition to the compute stream.

    Attributes
    ----------
    end : float
        When it finishes its queued work [s].
    """

    end: float


class Rank:
    """A rank of a running script, as if it were a process of its own.

    Parameters
    ----------
    rank : int
        Which, of all ranks.
    runtime : Runtime
        Simulator of the program. Its cluster has a device for each rank.
    device_count : int
        Devices of a node, as ``torch.cuda.device_count()`` has them; the node may have more than
        the program has ranks there.
    environ : dict of str to str
        Its ``os.environ`` to begin with.
    arguments : list of str
        Its ``sys.argv``.
    seed : int
        Of the program.

    Attributes
    ----------
    state : dict
        State of the parts for each rank, each under a name of its own.
    waits : dict
        Pending works that may be waited for, in the order of their calls.
    lane : Lane or None
        The stream that the script queues work on now, if not the compute stream.
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
        """Which of its node's ranks it is; its device, if the script takes the usual one."""
        return self.rank % self.runtime.cluster.local_size

    @property
    def clock(self) -> float:
        """Virtual time of the rank's compute stream, with all that was charged [s]."""
        return self.runtime.clock[self.rank] + self._due

    def charge(self, seconds: float, activity: Activity = "compute", name: str = "compute") -> None:
        """Keep the rank's compute stream busy, behind all that it does already.

        Only adds to a sum: time passes at the rank's next call of another rank, and consecutive
        charges of one activity and name become one span.

        Parameters
        ----------
        seconds : float
            How long, if nothing slows the rank down [s].
        activity : {"compute", "forward", "backward", "update"}
            How pictures show it.
        name : str
            Its name in ``trace.json``.
        """
        if activity != self._activity or name != self._name:
            self.advance()
            self._activity, self._name = activity, name
        self._due += seconds

    def advance(self) -> float:
        """Put all that was charged onto the compute stream; when that is through [s]."""
        if self._due:
            due, self._due = self._due, 0.0
            self.runtime.busy(self.rank, due, self._activity, self._name)
        return self.runtime.clock[self.rank]

    def settle(self) -> float:
        """Let time pass for all that was charged; the clock of the rank then [s]."""
        self.advance()
        return self.runtime.catch_up(self.rank, self._activity, self._name)

    def idle(self, until: float) -> None:
        """Let the compute stream do nothing until an instant [s]."""
        self.runtime.clock[self.rank] = max(self.advance(), until)

    def issue(self) -> float:
        """Let time pass until a call that is made now takes part; when that is [s]."""
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
    """The rank of the current thread; None outside of ranks."""
    return getattr(_LOCAL, "rank", None)


def asking(call: str) -> Rank:
    """The rank of the current thread.

    Raises
    ------
    ProgramError
        If the code runs on no rank.
    """
    found = current()
    if found is None:
        raise ProgramError(
            f"{call}: this code runs on no rank; threads that a rank starts are no ranks, so call "
            "it in the rank's own thread."
        )
    return found


def become(rank: Rank | None) -> None:
    """Set the rank of the current thread."""
    _LOCAL.rank = rank


class RankLocal:
    """One kind of state per rank; the defaults of unused methods do nothing."""

    def installed(self) -> AbstractContextManager[None]:
        """Replace state of the process while a program runs."""
        return nullcontext()

    def begin(self, rank: Rank) -> None:
        """Create a rank's state, in its thread, before its script begins."""

    def enter(self, rank: Rank) -> None:
        """Install a rank's state: it resumes."""

    def leave(self, rank: Rank) -> None:
        """Save a rank's state: it is about to pause."""

    def end(self, rank: Rank) -> None:
        """Clear away after a rank, in the rank's thread, when its script is over."""


PARTS: list[RankLocal] = []
"""All of them; who comes first is installed first, and leaves last."""
