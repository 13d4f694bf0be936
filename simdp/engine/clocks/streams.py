"""Communication streams of all ranks, and the mutual slowdown of compute and communication.

While a collective runs, compute takes ``1 + slowdown`` times as long, by the one that began first;
while compute runs, a collective takes ``1 + collective_slowdown`` times as long. The end of compute
is unknown before the ranks wait: until then a collective counts as slowed down to its end, and a
wait subtracts the part that ran without compute.

The last axis of instants is the ranks. An axis before it holds independent runs of one script.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from simdp.arrays import Floats
from simdp.engine.ops import Launch

Times = Callable[[Launch, Floats], Floats]
"""Returns each rank's end of a collective at full speed from the ranks' begins [s]."""

Record = Callable[[Launch, Floats, Floats, Floats], None]
"""Receives a collective and each rank's instants: ready, entered its stream, done [s]."""


@dataclass
class Queued:
    """A collective in its stream.

    ``ready``, ``enter`` and ``end`` are each rank's earliest entry, actual entry, and end [s];
    ``behind`` are collectives of other streams that must end before; ``message`` is the time in its
    stream before it begins, a number or of shape `(num_runs, 1)` [s].
    """

    op: Launch
    ready: Floats
    enter: Floats
    end: Floats
    behind: list[Queued]
    message: float | Floats

    @property
    def begin(self) -> Floats:
        """Instant at which each rank is ready to take part, shape `(world_size,)` [s]."""
        return self.enter + self.message


class Slowing(NamedTuple):
    """A collective that slows compute down: its begin and end on each rank [s], and by how much."""

    begin: Floats
    end: Floats
    slowdown: float | Floats


class Streams:
    """The communication streams of ranks that run one script."""

    def __init__(
        self,
        of_collective: float | Floats,
        times: Times,
        record: Record,
        message: Callable[[Launch], float | Floats] = attrgetter("message"),
        of_compute: Callable[[Launch], float | Floats] = attrgetter("slowdown"),
    ) -> None:
        self.of_compute, self.of_collective = of_compute, of_collective
        self._slows_collectives = np.any(of_collective)
        self.times, self.record, self.message = times, record, message
        self._free: dict[int, Floats] = {}
        self._queues: dict[int, list[Queued]] = {}
        self._stream: dict[int, int] = {}
        self._calls: dict[int, Queued] = {}
        self._done: dict[int, Floats] = {}
        self._under_way: list[Slowing] = []
        self._sorted: list[Slowing] | None = None  # of those under way, until they change

    def launch(self, op: Launch, clock: Floats) -> None:
        """Queue a collective that every rank's compute stream launches at its clock [s]."""
        ready = clock + op.wait if op.wait else clock
        if self._slows_collectives:  # spans of its transfers would show the full speed
            op = op._replace(record=False)
        queue = self._queues.setdefault(op.stream, [])
        free = queue[-1].end if queue else self._free.get(op.stream)
        # A collective that was waited for has ended on the compute stream that launches this one.
        behind = [self._calls[call] for call in op.after if call in self._calls]
        queued = self._calls[op.call] = self._placed(op, ready, free, np.inf, behind)
        self._note(queued)
        if self._slows_collectives:
            queue.append(queued)
            self._stream[op.call] = op.stream
        else:
            self._leave(queued)

    def _note(self, queued: Queued) -> None:
        """Note a collective that slows compute down."""
        slowdown = self.of_compute(queued.op)
        if np.any(slowdown):
            self._under_way.append(Slowing(queued.begin, queued.end, slowdown))
            self._sorted = None

    def wait(self, calls: Sequence[int], clock: Floats) -> Floats:
        """Instant at which each rank continues after a wait, shape `(world_size,)` [s]."""
        stands_still = clock.max(axis=-1, keepdims=True)
        for call in calls:
            if call not in self._done:
                self._settle(self._stream.pop(call), call, stands_still)
            clock = np.maximum(clock, self._done.pop(call))
            del self._calls[call]
        return clock

    def are_free(self, clock: Floats) -> bool:
        """Whether no collective that slows compute down is running."""
        left = [transfer for transfer in self._under_way if (transfer.end > clock).any()]
        if len(left) < len(self._under_way):
            self._under_way, self._sorted = left, None
        return not left

    def stretched(self, clock: Floats, seconds: Floats) -> Floats:
        """Duration of work that runs concurrently with collectives, shape `(world_size,)` [s].

        ``clock`` is its start, ``seconds`` its duration without collectives.
        """
        if self.are_free(clock):
            return seconds
        now, left = clock, seconds
        for begin, end, slowdown in self._in_order():
            slow = 1 + slowdown
            alone = np.minimum(np.maximum(begin - now, 0.0), left)
            now, left = now + alone, left - alone
            beside = np.minimum(np.maximum((end - now) / slow, 0.0), left)
            now, left = now + beside * slow, left - beside
        return now + left - clock

    def _in_order(self) -> Sequence[Slowing]:
        """Intervals of running collectives, sorted by their begin on every rank."""
        if len({*self._free, *self._queues}) < 2:  # those of one stream follow each other
            return self._under_way
        if self._sorted is None:
            shape = self._under_way[0].begin.shape
            columns = [
                np.stack([np.broadcast_to(part, shape) for part in column])
                for column in zip(*self._under_way, strict=True)
            ]
            order = np.argsort(columns[0], axis=0, kind="stable")
            sorts = (np.take_along_axis(column, order, axis=0) for column in columns)
            self._sorted = [Slowing(*values) for values in zip(*sorts, strict=True)]
        return self._sorted

    def _placed(
        self,
        op: Launch,
        ready: Floats,
        free: Floats | None,
        until: float | Floats,
        behind: list[Queued],
    ) -> Queued:
        """Place a collective behind its predecessors; compute runs until an instant [s]."""
        enter = ready if free is None else np.maximum(ready, free)
        for other in behind:
            enter = np.maximum(enter, other.end)
        message = self.message(op)
        begin = enter + message
        end = self.times(op, begin)
        if self._slows_collectives:
            all_in = op.latest(begin)
            own = np.maximum(end - all_in, 0.0)
            beside = np.clip((until - all_in) / (1 + self.of_collective), 0.0, own)
            end = end + self.of_collective * beside
        return Queued(op, ready, enter, end, behind, message)

    def _leave(self, queued: Queued) -> None:
        op = queued.op
        self._free[op.stream] = self._done[op.call] = queued.end
        self.record(op, queued.ready, queued.enter, queued.end)

    def _settle(self, stream: int, call: int, until: Floats) -> None:
        """Finish a stream up to a collective while compute is idle from an instant on [s]."""
        queue = self._queues[stream]
        number = next(i for i, queued in enumerate(queue) if queued.op.call == call)
        for queued in queue[: number + 1]:
            op = queued.op
            for other in queued.behind:
                if other.op.call in self._stream:
                    self._settle(self._stream.pop(other.op.call), other.op.call, until)
            free = self._free.get(stream)
            settled = self._placed(op, queued.ready, free, until, queued.behind)
            queued.enter, queued.end = settled.enter, settled.end
            self._leave(queued)
            self._stream.pop(op.call, None)
        left = self._queues[stream] = queue[number + 1 :]
        free = self._free[stream]
        for place, queued in enumerate(left):
            placed = self._placed(queued.op, queued.ready, free, np.inf, queued.behind)
            queued.enter, queued.end = placed.enter, placed.end
            left[place], free = queued, queued.end
        self._under_way, self._sorted = [], None
        for several in self._queues.values():
            for queued in several:
                self._note(queued)
