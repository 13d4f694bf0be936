"""Reducer: gradients travel in buckets while backward still runs, and come back as averages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simdp.steps.bucket import Bucket
from simdp.steps.facts import Facts, Ops
from simdp.steps.ops import AllReduce, Fill, Take, Wait
from simdp.steps.passes import Tags, backward
from simdp.strategies.comm_hooks import CommHook, NoHook, Sent
from simdp.strategies.delayed import Delayed


class Message(NamedTuple):
    """One all_reduce of gradients.

    Attributes
    ----------
    bucket : Bucket
        The gradients.
    wait : float
        How long it is held back when its last gradient is ready [s].
    copied, copied_back : bool
        Whether the copies of the gradients into the bucket, and back, are charged.
    """

    bucket: Bucket
    wait: float = 0.0
    copied: bool = False
    copied_back: bool = False


class Reducer:
    """Averages the gradients of one backward pass, bucket by bucket.

    Parameters
    ----------
    facts : Facts
        Of the run.
    messages : sequence of Message
        In the order in which they are sent; every parameter in one of them.
    tags : iterator of int
        Numbers for its collectives.
    before, after : float
        What gradients are divided by before the sum, and sums after it.
    unused : sequence of str
        Parameters without a gradient that are ready with the first hook.
    comm_hook : CommHook
        Sends the buckets.
    delayed : Delayed or None
        Gradients that are in no bucket.
    """

    def __init__(
        self,
        facts: Facts,
        messages: Sequence[Message],
        tags: Tags,
        before: float = 1.0,
        after: float = 1.0,
        unused: Sequence[str] = (),
        comm_hook: CommHook | None = None,
        delayed: Delayed | None = None,
    ) -> None:
        self.facts, self.messages, self.tags = facts, messages, tags
        self.before, self.after = before, after
        self.hook: CommHook = comm_hook or NoHook()
        self.divisor = self.hook.divided(before)
        self.home = {
            name: number for number, message in enumerate(messages) for name in message.bucket.names
        }
        self.missing = [len(message.bucket.names) for message in messages]
        self.sent: list[Sent] = []
        self.unmarked = list(unused)
        self.delayed, self.delayed_tags = delayed, list[int]()

    def backward(self, micro: int, overlap: bool) -> Ops:
        """Run backward; without ``overlap`` nothing is sent before its end."""
        if overlap:
            yield from backward(self.facts, micro, self.mark_ready)
            return
        yield from backward(self.facts, micro)
        yield from self.mark_all()

    def mark_all(self) -> Ops:
        """Take all gradients, one after the other."""
        for name in self.facts.ready_order:
            yield from self.mark_ready(name)

    def mark_ready(self, name: str) -> Ops:
        """Take a gradient into its bucket; launch every bucket whose turn has come.

        A bucket that is complete waits for the ones before it.
        """
        names, self.unmarked = [*self.unmarked, name], []
        if self.delayed is not None:
            yield from self._delay(name, self.delayed)
        for ready in [ready for ready in names if ready in self.home]:
            message = self.messages[self.home[ready]]
            yield Fill(message.bucket, ready, self.divisor, message.copied)
            self.missing[self.home[ready]] -= 1
        while len(self.sent) < len(self.messages) and not self.missing[len(self.sent)]:
            turn = len(self.sent)
            message, label = self.messages[turn], f"bucket {turn}"
            send = self.hook.send(
                self.facts, message.bucket, label, message.wait, self.before, self.tags
            )
            self.sent.append((yield from send))

    def _delay(self, name: str, delayed: Delayed) -> Ops:
        """Take a gradient that waits for another one; send all of them when that is ready."""
        if name in delayed.bucket.names:
            yield Fill(delayed.bucket, name, self.before)
        if name == delayed.hooked:
            self.delayed_tags.append(next(self.tags))
            tag, bucket, group = self.delayed_tags[-1], delayed.bucket, self.facts.quorum.group
            yield AllReduce(tag, "delayed gradients", bucket.nbytes, bucket, group=group)

    def finish(self, others: Sequence[int] = ()) -> Ops:
        """Wait for all buckets and ``others``, and take the averages out of the buckets."""
        waiting = list[int]()
        for sent in self.sent:
            if not sent.finish:
                waiting += sent.tags
                continue
            yield Wait(sent.tags)
            yield from sent.finish
        yield Wait((*waiting, *others, *self.delayed_tags))
        for message in self.messages:
            yield Take(message.bucket, self.after, message.copied_back)
        if self.delayed is not None:
            yield Take(self.delayed.bucket)
