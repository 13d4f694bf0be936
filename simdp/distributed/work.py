"""Work: what a call with ``async_op=True`` gives back, and the future of its tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from simdp.arrays import Array
from simdp.distributed.groups import Member
from simdp.distributed.process import Process, process
from simdp.engine.programs.calls import Asked, Given, Handle
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
    tensors : sequence of ndarray
        What it leaves here.
    """

    def __init__(self, process: Process, handle: Handle, tensors: Sequence[Array]) -> None:
        self._process, self._handle, self._tensors = process, handle, tensors

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

    def is_success(self) -> bool:
        """Tell that the call has not failed, as torch does while it is under way as well."""
        self._asking("is_success")
        return True

    def get_future(self) -> Future:
        """The tensors that the call leaves on this rank, as a future."""
        self._asking("get_future")
        return Future(self, lambda: list(self._tensors))

    def __str__(self) -> str:
        return str(self._handle.asked)

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


class Future:
    """What a call leaves, as torch.futures.Future has it.

    Parameters
    ----------
    work : Work
        The call.
    find : callable
        Finds the value once the call is over.
    """

    def __init__(self, work: Work, find: Callable[[], Any]) -> None:
        self._work, self._find = work, find
        self._found: list[Any] = []

    def wait(self) -> Any:
        """Let the rank wait until the call is over; its value."""
        self._work.wait()
        return self.value()

    def done(self) -> bool:
        """Tell whether the call is over by now, as `Work.is_completed`."""
        return self._work.is_completed()

    def value(self) -> Any:
        """What the call left: the list of its tensors, or what a callback made of them.

        Raises
        ------
        ProgramError
            If the call is not over.
        """
        if not self.done():
            raise ProgramError(f"value: {self._work} is not over yet; call wait() first.")
        if not self._found:
            self._found.append(self._find())
        value: Any = self._found[0]
        return value

    def then(self, callback: Callable[[Future], Any]) -> Future:
        """A future of ``callback(self)``.

        It runs once: now if the call is over, or else when the rank first waits for that future or
        asks for its value.
        """
        following = Future(self._work, lambda: callback(self))
        if self.done():
            following.value()
        return following


def issue(
    at: Member,
    asked: Asked,
    given: Given,
    async_op: bool,
    collective: str,
    op: str = "SUM",
    root: int = 0,
    tensors: Sequence[Array] | None = None,
) -> Work | None:
    """Issue a collective; wait for it, or give back its work.

    Parameters
    ----------
    at : Member
        Who, and in which group.
    asked, given, collective, op, root
        As for `simdp.engine.programs.groups.Group.issue`.
    async_op : bool
        Whether the rank goes on.
    tensors : sequence of ndarray, optional
        What its future holds; the outputs, or where there are none the inputs, if left out.
    """
    runtime, rank = at.process.runtime, at.process.rank
    handle = at.group.issue(rank, runtime.clock[rank], asked, given, collective, op, root)
    if async_op:
        return Work(at.process, handle, tensors or given.outputs or given.inputs)
    runtime.wait(handle)
    return None
