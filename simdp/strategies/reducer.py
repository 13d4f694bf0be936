"""Reducer: gradients travel in buckets while backward still runs, and come back as averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simdp.strategies.base import Bucket, Pending, Rank, Script


class Message(NamedTuple):
    """One all_reduce of gradients.

    Attributes
    ----------
    names : tuple of str
        The parameters, in the order in which they lie in the bucket.
    wait : float
        How long it is held back when its last gradient is ready [s].
    copied, copied_back : bool
        Whether the copies of the gradients into the bucket, and back, are charged.
    """

    names: tuple[str, ...]
    wait: float = 0.0
    copied: bool = False
    copied_back: bool = False


class Averaging(NamedTuple):
    """How a sum becomes an average.

    Attributes
    ----------
    before, after : float
        What gradients are divided by before the sum, and sums after it.
    compress : str or None
        The dtype in which they travel; None leaves them their own.
    """

    before: float = 1.0
    after: float = 1.0
    compress: str | None = None


def copies_charged(asked: bool | None, rank: Rank) -> bool:
    """Whether copies of gradients cost time: as the strategy says, or else the cluster."""
    return rank.overheads.copies if asked is None else asked


class Reducer:
    """Averages the gradients of one backward pass, bucket by bucket.

    Parameters
    ----------
    rank : Rank
        Whose gradients.
    messages : sequence of Message
        In the order in which they are sent; every parameter in one of them.
    averaging : Averaging
        How sums become averages.
    unused : sequence of str
        Parameters without a gradient that are ready with the first hook.
    """

    def __init__(
        self,
        rank: Rank,
        messages: Sequence[Message],
        averaging: Averaging,
        unused: Sequence[str] = (),
    ) -> None:
        self.rank, self.messages, self.averaging = rank, messages, averaging
        self.buckets: list[Bucket] = [rank.bucket(m.names, averaging.compress) for m in messages]
        self.home = {name: number for number, m in enumerate(messages) for name in m.names}
        self.missing = [len(message.names) for message in messages]
        self.launched: list[Pending] = []
        self.unmarked = list(unused)

    def backward(self, micro_step: int, overlap: bool) -> Script:
        """Run backward; without ``overlap`` nothing is sent before its end."""
        if overlap:
            yield from self.rank.backward(micro_step, hook=self.mark_ready)
            return
        yield from self.rank.backward(micro_step)
        for name in self.rank.ready_order:
            yield from self.mark_ready(name)

    def mark_ready(self, name: str) -> Script:
        """Take a gradient into its bucket; launch every bucket whose turn has come.

        A bucket that is complete waits for the ones before it.
        """
        names, self.unmarked = [*self.unmarked, name], []
        for ready in names:
            number = self.home[ready]
            bucket, copied = self.buckets[number], self.messages[number].copied
            yield from self.rank.fill(bucket, ready, self.averaging.before, copied)
            self.missing[number] -= 1
        while len(self.launched) < len(self.buckets) and not self.missing[len(self.launched)]:
            turn = len(self.launched)
            bucket, wait = self.buckets[turn], self.messages[turn].wait
            pending = yield from self.rank.all_reduce(bucket, f"bucket {turn}", wait)
            self.launched.append(pending)

    def finish(self, others: Sequence[Pending] = ()) -> Script:
        """Wait for all buckets and ``others``, and take the averages out of the buckets."""
        yield from self.rank.wait([*self.launched, *others])
        for message, bucket in zip(self.messages, self.buckets, strict=True):
            yield from self.rank.empty(bucket, message.copied_back, self.averaging.after)
