"""Operations on buckets that travel in a code of few bits; sizes, no arrays."""

from __future__ import annotations

from typing import NamedTuple

from simdp.steps.bucket import Bucket


class Code(NamedTuple):
    """How the numbers of a bucket become bytes, with a scale and a zero point for each row.

    Attributes
    ----------
    bucket : Bucket
        The whole.
    row : int or None
        Elements of a row; None has all in one. The last row is filled up with zeros.
    label : str
        The bucket's name in the trace.
    """

    bucket: Bucket
    row: int | None
    label: str

    @property
    def num_rows(self) -> int:
        """Rows; where they divide a bucket's elements, one of padding follows (as in torch)."""
        return 1 if self.row is None else self.bucket.num_elements // self.row + 1

    @property
    def num_bytes(self) -> int:
        """Elements that are sent, of one byte each."""
        return self.bucket.num_elements if self.row is None else self.num_rows * self.row


class Observe(NamedTuple):
    """Find the scale and the zero point of every row."""

    code: Code


class Quantize(NamedTuple):
    """Round every rank's bucket to bytes."""

    code: Code


class Dequantize(NamedTuple):
    """Make the bucket's content the mean of what all ranks have sent."""

    code: Code
    divisor: float


Coded = Observe | Quantize | Dequantize


class Rounding(NamedTuple):
    """A bucket is cast to a smaller dtype and divided before it travels, or cast back afterwards.

    Attributes
    ----------
    bucket : Bucket
        In the dtype that travels.
    label : str
        Its name in the trace.
    is_back : bool
        Whether it comes back.
    """

    bucket: Bucket
    label: str
    is_back: bool = False
