"""Base of quantization hooks: gradients travel as bytes, with what rounds them on each rank."""

from __future__ import annotations

from typing import ClassVar

from simdp.steps.bucket import Bucket
from simdp.steps.coded import Code, Dequantize, Observe, Quantize
from simdp.steps.facts import Facts
from simdp.steps.ops import AllGather, Hold
from simdp.steps.passes import Tags
from simdp.strategies.comm_hooks.base import CommHook, Sending, Sent

SCALE_NBYTES = 8
"""A scale and a zero point travel as two float32."""


class Quantization(CommHook):
    """What both have in common: two all_gathers, of what rounds the numbers and of the bytes."""

    row: ClassVar[int | None] = None

    def divided(self, divisor: float) -> float:
        return 1.0

    def send(
        self, facts: Facts, bucket: Bucket, label: str, wait: float, divisor: float, tags: Tags
    ) -> Sending:
        code, n = Code(bucket, self.row, label), facts.world_size
        scales, sent = next(tags), next(tags)
        rounding, nbytes = float(SCALE_NBYTES * code.num_rows * n), float(code.num_bytes * n)
        yield Hold("temporary", nbytes)
        yield Observe(code)
        yield AllGather(scales, f"{label} scales", rounding, wait=wait)
        # A callback of the first one, which is over before the second begins: one stream has both.
        yield Quantize(code)
        yield AllGather(sent, label, nbytes)
        return Sent((scales, sent), (Dequantize(code, divisor), Hold("temporary", -nbytes)))
