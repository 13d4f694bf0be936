"""Reducer: gradients travel in buckets while backward still runs, and come back as averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simdp.strategies.base import Bucket, Pending, Rank, Script
from simdp.strategies.comm_hooks import CommHook, NoHook, Sent


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
    comm_hook : CommHook
        Sends the buckets; it has a say in what ``averaging`` asks for before the sum.
    """

    def __init__(
        self,
        rank: Rank,
        messages: Sequence[Message],
        averaging: Averaging,
        unused: Sequence[str] = (),
        comm_hook: CommHook | None = None,
    ) -> None:
        self.rank, self.messages, self.averaging = rank, messages, averaging
        self.hook: CommHook = comm_hook or NoHook()
        self.divisor = self.hook.divided(rank, averaging.before)
        dtype = averaging.compress or self.hook.dtype
        self.buckets: list[Bucket] = [rank.bucket(m.names, dtype) for m in messages]
        self.home = {name: number for number, m in enumerate(messages) for name in m.names}
        self.missing = [len(message.names) for message in messages]
        self.sent: list[Sent] = []
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
            yield from self.rank.fill(bucket, ready, self.divisor, copied)
            self.missing[number] -= 1
        while len(self.sent) < len(self.buckets) and not self.missing[len(self.sent)]:
            turn = len(self.sent)
            bucket, wait, divisor = (
                self.buckets[turn],
                self.messages[turn].wait,
                self.averaging.before,
            )
            label = f"bucket {turn}"
            self.sent.append((yield from self.hook.send(self.rank, bucket, label, wait, divisor)))

    def finish(self, others: Sequence[Pending] = ()) -> Script:
        """Wait for all buckets and ``others``, and take the averages out of the buckets."""
        waiting = list[Pending]()
        for sent in self.sent:
            if sent.finish is None:
                waiting += sent.pending
                continue
            yield from self.rank.wait(sent.pending)
            yield from sent.finish()
        yield from self.rank.wait([*waiting, *others])
        for message, bucket in zip(self.messages, self.buckets, strict=True):
            yield from self.rank.empty(bucket, message.copied_back, self.averaging.after)
