"""Records of the calls of rank programs.

A call is shown on the first communication lane of its rank that is free; concurrent calls use
further lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from math import inf
from typing import NamedTuple

import numpy as np

from simdp.arrays import Array, Floats, Ints
from simdp.errors import ProgramError
from simdp.results.trace import COMM_LANE, COMPUTE_LANE, FIRST_STREAM_LANE, Trace, TraceBuilder

# CallSignature ------------------------------------------------------------------------------------


class CallSignature(NamedTuple):
    """A call as a rank makes it; all ranks of a group must make the same one."""

    name: str
    """As in torch.distributed."""
    dtype: str = ""
    """Of the tensors; empty if there are none."""
    shape: tuple[int, ...] = ()
    """Of the tensor that every rank passes."""
    more: str = ""
    """Operation, root, and other arguments that must match: ``"op=SUM"``."""

    def __str__(self) -> str:
        tensor = f"{self.dtype}[{', '.join(map(str, self.shape))}]" if self.dtype else ""
        return f"{self.name}({', '.join(part for part in (tensor, self.more) if part)})"


class CallArguments(NamedTuple):
    """A rank's tensors in a call: read when it begins, and written when it ends on this rank."""

    inputs: Sequence[Array] = ()
    outputs: Sequence[Array] = ()


NOTHING = CallArguments()


class Handle:
    """A rank's part of a call, to wait for; ``enter`` and ``end`` are instants [s].

    ``blockers`` describes the current reason of the wait, for reports of deadlocks; ``source`` is
    the source rank of a message, -1 for all other calls; ``slowdown`` is the relative increase of
    work's duration beside the call.
    """

    __slots__ = (
        "blockers",
        "done",
        "end",
        "enter",
        "rank",
        "signature",
        "slowdown",
        "source",
        "waiting",
    )

    def __init__(self, rank: int, signature: CallSignature, blockers: Callable[[], str]) -> None:
        self.rank, self.signature, self.blockers = rank, signature, blockers
        self.done = self.waiting = False
        self.end, self.enter, self.slowdown = 0.0, inf, 0.0
        self.source = -1

    def check_owner(self, call: str, rank: int) -> None:
        """Raise `ProgramError` on another rank."""
        if rank != self.rank:
            raise ProgramError(
                f"{call}: rank {rank} waits for {self.signature} of rank {self.rank}; let each "
                "rank wait for its own calls."
            )


MAX_POLLS = 100_000
"""Polls at one instant after which a program counts as waiting forever."""


class Polls:
    """Counts the polls of a call's end at one instant."""

    def __init__(self) -> None:
        self._count, self._now = 0, 0.0

    def add(self, now: float, handle: Handle, advice: str) -> None:
        """Count a poll; raise `ProgramError` above `MAX_POLLS`."""
        self._count = self._count + 1 if now == self._now else 0
        self._now = now
        if self._count > MAX_POLLS:
            raise ProgramError(
                f"is_completed of {handle.signature} was called {MAX_POLLS:,} times at the same "
                f"instant; virtual time passes in {advice}."
            )


@lru_cache(maxsize=64)
def named(dtype: np.dtype[np.generic]) -> str:
    """Name of a dtype, cached because NumPy is slow."""
    return str(dtype)


def listed(ranks: Sequence[int]) -> str:
    """``rank 3``, or ``ranks 0, 2``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def deliver(values: Sequence[Array], given: CallArguments) -> None:
    """Write results into the tensors of a rank."""
    for target, value in zip(given.outputs, values, strict=True):
        target[...] = value if value.shape == target.shape else value.reshape(target.shape)


# ProgramRecords -----------------------------------------------------------------------------------

STEP = 0
"""Step of all spans: programs have no steps."""

ROUNDING = 1e-12
"""A wait below this fraction of the clock is a rounding error."""


class ProgramRecords:
    """Collects the spans of all ranks."""

    def __init__(self, world_size: int) -> None:
        self._builder = TraceBuilder()
        self._busy = [np.zeros(world_size)]  # end of the last span, by lane

    def compute(self, rank: int, activity: str, name: str, start: float, end: float) -> None:
        """Add work of a rank [s]."""
        self._builder.add_one(rank, STEP, COMPUTE_LANE, activity, name, start, end)

    def call(
        self, ranks: Ints, name: str, ready: Floats, enter: Floats, end: Floats, nbytes: Floats
    ) -> None:
        """Add a call: each rank waits until all are ready, then takes part.

        ``ready``, ``enter`` and ``end`` are each rank's issue, entry into its free stream, and end
        [s]; ``nbytes`` are the bytes that it sends.
        """
        latest = ready.max()
        begin = np.minimum(np.maximum(enter, latest), end)
        begin = np.where(begin - enter > ROUNDING * latest, begin, enter)
        self._add(ranks, name, enter, begin, end, nbytes)

    def message(
        self, rank: int, name: str, enter: float, begin: float, end: float, nbytes: float
    ) -> None:
        """Add a rank's part of a message: it waits for the other rank, then takes part [s]."""
        number = 0
        while number < len(self._busy) and self._busy[number][rank] > enter:
            number += 1
        if number == len(self._busy):
            self._busy.append(np.zeros_like(self._busy[0]))
        self._busy[number][rank] = end
        lane = _lane(number)
        if begin > enter:
            self._builder.add_one(rank, STEP, lane, "wait", name, enter, begin)
        self._builder.add_one(rank, STEP, lane, "comm", name, begin, end, nbytes)

    def _add(
        self, ranks: Ints, name: str, enter: Floats, begin: Floats, end: Floats, nbytes: Floats
    ) -> None:
        lane = self._lanes(ranks, enter, end)
        waits = np.flatnonzero(begin > enter)
        if len(waits):
            early = ranks[waits], STEP, _one_or_all(lane[waits])
            self._builder.add(*early, "wait", name, enter[waits], begin[waits])
        self._builder.add(ranks, STEP, _one_or_all(lane), "comm", name, begin, end, nbytes)

    def _lanes(self, ranks: Ints, start: Floats, end: Floats) -> Ints:
        """First lane of each rank that is free at its start."""
        lanes = np.full(len(ranks), -1)
        number = 0
        while (left := np.flatnonzero(lanes < 0)).size:
            if number == len(self._busy):
                self._busy.append(np.zeros_like(self._busy[0]))
            busy = self._busy[number]
            taken = left[busy[ranks[left]] <= start[left]]
            busy[ranks[taken]] = end[taken]
            lanes[taken] = _lane(number)
            number += 1
        return lanes

    def build(self) -> Trace:
        """Return all spans."""
        return self._builder.build()


def _lane(number: int) -> int:
    """Lane of a rank's communication of this number, from 0."""
    return COMM_LANE if number == 0 else FIRST_STREAM_LANE + number - 1


def _one_or_all(lanes: Ints) -> int | Ints:
    """One number if all are equal, which takes less memory."""
    return int(lanes[0]) if (lanes == lanes[0]).all() else lanes


SHORT = 1e-7
"""A correction below this needs no further one [s]."""


class Stretching:
    """Slowdown of compute by concurrent collectives.

    While a collective runs on a rank, from its entry to its end, work takes ``1 + slowdown`` times
    as long, as in scenarios; the slowdown is that of its handle. Later collectives are unknown when
    work starts; so a rank works at full speed first, then adds the missing time, in ever smaller
    pieces.
    """

    def __init__(self, world_size: int) -> None:
        self._calls: list[list[Handle]] = [[] for _ in range(world_size)]
        self._worked: list[list[tuple[float, float]]] = [[] for _ in range(world_size)]

    def issued(self, handle: Handle) -> None:
        """Record a collective that a rank issued."""
        self._calls[handle.rank].append(handle)

    def worked(self, rank: int, start: float, end: float) -> None:
        """Record work of a rank between two instants [s]."""
        if self._calls[rank]:
            self._worked[rank].append((start, end))

    def lacking(self, rank: int) -> float:
        """Missing time of a rank's work since the last call [s]."""
        worked, self._worked[rank] = self._worked[rank], []
        if not worked:
            return 0.0
        lacking, last = 0.0, worked[-1][1]
        calls = sorted(self._calls[rank], key=lambda call: call.enter)
        for start, end in worked:
            now = start
            for call in calls:
                begin, until = max(call.enter, now), min(call.end, end) if call.done else end
                if until > begin:
                    lacking += (until - begin) * call.slowdown / (1 + call.slowdown)
                    now = until
        self._calls[rank] = [call for call in calls if not call.done or call.end > last]
        return lacking

    def is_beside(self, rank: int) -> bool:
        """Whether a rank has collectives that may slow its work down."""
        return bool(self._calls[rank])
