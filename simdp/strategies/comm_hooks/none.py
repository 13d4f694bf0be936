"""No hook: gradients travel as they are; and one that sends nothing."""

from __future__ import annotations

from typing import Literal

from simdp.steps.bucket import Bucket
from simdp.steps.facts import Facts
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks.base import CommHook, Sending, Sent, plain


class NoHook(CommHook):
    """Divide by the number of ranks, then all_reduce (torch: allreduce_hook)."""

    kind: Literal["none"] = "none"

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        return plain(facts, bucket, label, wait, tags)


class Noop(CommHook):
    """Send nothing: each rank keeps its own gradients (torch: debugging_hooks.noop_hook).

    Measures what DDP takes without communication. Gradients are not averaged, nor divided.
    """

    kind: Literal["noop"] = "noop"

    def divided(self, divisor: float) -> float:
        return 1.0

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        yield from ()
        return Sent()
