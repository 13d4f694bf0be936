"""Communication streams of all ranks, and the slowdown of compute and communication together.

While a collective is under way, compute takes ``1 + compute_slowdown`` times as long; while compute
is, a collective takes ``1 + collective_slowdown`` times as long. When compute will end is not known
before the ranks wait: until then a collective counts as slowed down to its end, and what a wait
finds to have run alone is taken off.

Instants have the ranks as their last axis. Before it there may be runs side by side, of one script
and with times of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from simdp.arrays import Floats
from simdp.engine.ops import Launch

Times = Callable[[Launch, Floats], Floats]
"""When each rank is done with a collective at full speed, by when each one begins with it [s]."""

Record = Callable[[Launch, Floats, Floats, Floats], None]
"""Takes a collective, and when each rank asked for it, entered its stream and was done [s]."""


@dataclass
class Queued:
    """A collective in its stream.

    Attributes
    ----------
    op : Launch
        The collective.
    ready, enter, end : ndarray, shape `(world_size,)`
        When its turn may come on each rank, when it does, and when it is done [s].
    behind : list of Queued
        Those of other streams that must be done before.
    message : float or ndarray, shape `(num_runs, 1)`
        How long it keeps its stream before it begins [s].
    """

    op: Launch
    ready: Floats
    enter: Floats
    end: Floats
    behind: list[Queued]
    message: float | Floats

    @property
    def begin(self) -> Floats:
        """When each rank is ready to take part in it, shape `(world_size,)` [s]."""
        return self.enter + self.message


class Streams:
    """The communication streams of ranks that play one script.

    Parameters
    ----------
    of_compute, of_collective : float or ndarray, shape `(num_runs, 1)`
        By how much compute and collectives are slowed down by each other.
    times : callable
        Times a collective.
    record : callable
        Takes every collective once it is known when it is done.
    message : callable
        Tells how long a collective keeps its stream before it begins [s]; as it says, if left out.
    """

    def __init__(
        self,
        of_compute: float | Floats,
        of_collective: float | Floats,
        times: Times,
        record: Record,
        message: Callable[[Launch], float | Floats] = attrgetter("message"),
    ) -> None:
        self.of_compute, self.of_collective = of_compute, of_collective
        self._slows_compute, self._slows_collectives = np.any(of_compute), np.any(of_collective)
        self.times, self.record, self.message = times, record, message
        self._free: dict[int, Floats] = {}
        self._queues: dict[int, list[Queued]] = {}
        self._stream: dict[int, int] = {}
        self._calls: dict[int, Queued] = {}
        self._done: dict[int, Floats] = {}
        self._under_way: list[tuple[Floats, Floats]] = []

    def launch(self, op: Launch, clock: Floats) -> None:
        """Take a collective that every rank's compute stream asks for at its clock [s]."""
        ready = clock + op.wait if op.wait else clock
        if self._slows_collectives:  # its transfers would show it at its full speed
            op = op._replace(record=False)
        queue = self._queues.setdefault(op.stream, [])
        free = queue[-1].end if queue else self._free.get(op.stream)
        # What has been waited for is over on the compute stream that asks for this one.
        behind = [self._calls[call] for call in op.after if call in self._calls]
        queued = self._calls[op.call] = self._placed(op, ready, free, np.inf, behind)
        if self._slows_compute:
            self._under_way.append((queued.begin, queued.end))
        if self._slows_collectives:
            queue.append(queued)
            self._stream[op.call] = op.stream
        else:
            self._leave(queued)

    def wait(self, calls: Sequence[int], clock: Floats) -> Floats:
        """When each rank that waits for collectives goes on, shape `(world_size,)` [s]."""
        stands_still = clock.max(axis=-1, keepdims=True)
        for call in calls:
            if call not in self._done:
                self._settle(self._stream.pop(call), call, stands_still)
            clock = np.maximum(clock, self._done.pop(call))
            del self._calls[call]
        return clock

    def are_free(self, clock: Floats) -> bool:
        """Whether nothing that slows compute down is under way any more."""
        self._under_way = [both for both in self._under_way if (both[1] > clock).any()]
        return not self._under_way

    def stretched(self, clock: Floats, seconds: Floats) -> Floats:
        """How long work takes beside what is under way.

        Parameters
        ----------
        clock : ndarray, shape `(world_size,)`
            When each rank starts with it [s].
        seconds : ndarray, shape `(world_size,)`
            How long it takes alone [s].
        """
        if self.are_free(clock):
            return seconds
        slow, now, left = 1 + self.of_compute, clock, seconds
        for begin, end in self._in_order():
            alone = np.clip(begin - now, 0.0, left)
            now, left = now + alone, left - alone
            beside = np.clip((end - now) / slow, 0.0, left)
            now, left = now + beside * slow, left - beside
        longer: Floats = now + left - clock
        return longer

    def _in_order(self) -> Sequence[tuple[Floats, Floats]]:
        """What is under way, on every rank in the order in which it begins there."""
        if len({*self._free, *self._queues}) < 2:  # those of one stream follow each other
            return self._under_way
        begins, ends = (np.stack(column) for column in zip(*self._under_way, strict=True))
        order = np.argsort(begins, axis=0, kind="stable")
        sorts = (np.take_along_axis(column, order, axis=0) for column in (begins, ends))
        return list(zip(*sorts, strict=True))

    def _placed(
        self,
        op: Launch,
        ready: Floats,
        free: Floats | None,
        until: float | Floats,
        behind: list[Queued],
    ) -> Queued:
        """Place a collective behind what is before it; compute goes on until an instant [s]."""
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
        """Let a stream come to the end of a collective, while compute stands still."""
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
        if self._slows_compute:
            self._under_way = [
                (queued.begin, queued.end)
                for several in self._queues.values()
                for queued in several
            ]
