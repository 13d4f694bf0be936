"""Work: what a call with ``async_op=True`` gives back."""

from __future__ import annotations

from simdp.distributed.process import Process, process
from simdp.engine.programs.calls import Handle
from simdp.errors import ProgramError

MAX_POLLS = 100_000
"""Questions at one instant after which a program is taken to wait for time that never passes."""


class Work:
    """A call that is under way; its tensors belong to it until it is over.

    Parameters
    ----------
    process : Process
        Whose.
    handle : Handle
        The call.
    """

    def __init__(self, process: Process, handle: Handle) -> None:
        self._process, self._handle = process, handle

    def wait(self) -> bool:
        """Let the rank wait until the call is over; True then.

        Raises
        ------
        ProgramError
            If the call is another rank's.
        """
        self._asking("wait")
        self._process.runtime.wait(self._handle)
        return True

    def is_completed(self) -> bool:
        """Tell whether the call is over by now. Time passes in `compute` and in what waits only.

        Raises
        ------
        ProgramError
            If a program does nothing but ask, or the call is another rank's.
        """
        asking = self._asking("is_completed")
        now = asking.runtime.clock[asking.rank]
        asking.polls = asking.polls + 1 if now == asking.polled_at else 0
        asking.polled_at = now
        if asking.polls > MAX_POLLS:
            raise ProgramError(
                f"is_completed of {self._handle.asked} was asked {MAX_POLLS:,} times at the same "
                "instant; virtual time passes in compute() and wait() only, so call one of them."
            )
        return self._handle.done

    def _asking(self, call: str) -> Process:
        """The rank that asks, whose this work must be."""
        asking = process(call)
        if asking is not self._process:
            raise ProgramError(
                f"{call}: rank {asking.rank} asks for {self._handle.asked} of rank "
                f"{self._process.rank}; let each rank wait for its own calls."
            )
        return asking

    def source_rank(self) -> int:
        """The rank that a receive got its message from; -1 before, and for other calls."""
        return self._handle.source if self._handle.done else -1
