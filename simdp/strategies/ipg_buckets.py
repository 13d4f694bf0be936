"""IPG buckets: gradients as DeepSpeed reduces them, in buckets of so many elements.

A bucket is reduced before the gradient that would not fit ("independent parallel gradients" in
DeepSpeed's sources); one that is larger than a bucket goes alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from simdp.steps.bucket import Bucket
from simdp.steps.facts import Facts, Ops
from simdp.steps.offload import HostCopy
from simdp.steps.ops import Fill, Hold, Wait
from simdp.steps.passes import Tags

BUCKET_ELEMENTS = 500_000_000
"""Elements of a bucket where none are given (DeepSpeed: reduce_bucket_size)."""


class IpgRules(NamedTuple):
    """DeepSpeed's options for reducing gradients; as of `simdp.strategies.zero3.Zero3`.

    With ``to_host``, pieces are copied to the host when they are summed, on the same stream.
    """

    reduce_bucket_size: int
    overlap_comm: bool
    contiguous_gradients: bool
    to_host: bool = False


Start = Callable[[int, str, Bucket, HostCopy | None], Ops]


class IpgBuckets:
    """Reduces the gradients of one backward pass.

    With ``overlap_comm`` buckets travel while others are filled: when one is sent, compute waits
    until no more than ``in_flight`` before it are on their way. Without, it waits for every one.

    Parameters
    ----------
    facts : Facts
        Of the run.
    rules : IpgRules
        How.
    tags : iterator of int
        Numbers for its collectives.
    start : callable
        Starts to reduce a bucket, given its tag, its name in the trace, and what is copied before.
    finish : callable
        What is done with a bucket whose sums are there.
    in_flight : int
        0 in stages 1 and 2, which have two buffers that take turns.
    """

    def __init__(
        self,
        facts: Facts,
        rules: IpgRules,
        tags: Tags,
        start: Start,
        finish: Callable[[Bucket], Ops],
        in_flight: int = 0,
    ) -> None:
        self.facts, self.rules, self.tags = facts, rules, tags
        self._start, self._finish, self._in_flight = start, finish, in_flight
        layout = fill_up(facts.ready_order, facts.sizes, rules.reduce_bucket_size)
        self.buckets = [facts.bucket(names, room=0.0, of="ipg") for names in layout]
        self.home = {name: i for i, bucket in enumerate(self.buckets) for name in bucket.names}
        self.num_sent = 0
        self.pending: list[tuple[int, Bucket]] = []
        self.owed: HostCopy | None = None

    def mark_ready(self, name: str) -> Ops:
        """Take a gradient; first reduce the bucket in which it has no place any more."""
        here = self.home[name]
        if here > self.num_sent:
            yield from self._send()
        yield Fill(self.buckets[here], name, self.facts.world_size)

    def finish(self) -> Ops:
        """Reduce what is left, and wait for all."""
        if self.buckets:
            yield from self._send()
        yield from self._settle()
        if self.owed is not None:
            yield self.owed

    def _send(self) -> Ops:
        bucket, label = self.buckets[self.num_sent], f"bucket {self.num_sent}"
        self.num_sent += 1
        yield from self._settle(self._in_flight)
        # Without buffers to copy gradients into, they are flattened for the way.
        if not self.rules.contiguous_gradients:
            yield Hold("buckets", bucket.nbytes)
        self.pending.append((next(self.tags), bucket))
        yield from self._start(self.pending[-1][0], label, bucket, self.owed)
        if self.rules.to_host:
            self.owed = HostCopy("gradients", bucket.nbytes / self.facts.world_size)
        if not self.rules.overlap_comm:
            yield from self._settle()

    def _settle(self, left: int = 0) -> Ops:
        while len(self.pending) > left:
            tag, bucket = self.pending.pop(0)
            yield Wait((tag,))
            yield from self._finish(bucket)
            if not self.rules.contiguous_gradients:
                yield Hold("buckets", -bucket.nbytes)


def fill_up(ready: Sequence[str], sizes: Mapping[str, int], most: int) -> list[list[str]]:
    """Sort gradients into buckets of at most so many elements, in the order in which they come."""
    found: list[list[str]] = []
    held = 0
    for name in ready:
        if not found or held + sizes[name] > most:
            found.append([])
            held = 0
        found[-1].append(name)
        held += sizes[name]
    return found
