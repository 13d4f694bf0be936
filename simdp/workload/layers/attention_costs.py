"""What attention costs a device and keeps: kernel by kernel, or with one kernel each way."""

from __future__ import annotations

from typing import NamedTuple

from simdp.workload.layers.base import Kept, Kernel
from simdp.workload.layers.dropout import dropout_cost

LOGSUMEXP = 4
"""Bytes of what a fused kernel keeps of each row of scores, in float32 whatever the dtype."""

FULL = 4
"""Bytes of a number in float32."""

BACKWARD_PRODUCTS = 2.5
"""Five products where forward has two: scores are computed again."""


class Work(NamedTuple):
    """The sizes of attention on one sample.

    Attributes
    ----------
    queries, keys : int
        Lengths.
    depth : int
        Features of a head.
    num_heads, num_kv_heads : int
        Heads of the queries; of the keys and values.
    pairs : float
        Queries times those keys that each of them looks at, of one head.
    dropout : bool
        Whether weights are left out.
    upcast : bool
        Whether softmax runs in float32 if the rest has 16 bits.
    """

    queries: int
    keys: int
    depth: int
    num_heads: int
    num_kv_heads: int
    pairs: float
    dropout: bool
    upcast: bool

    @property
    def width(self) -> int:
        """Features of all heads."""
        return self.num_heads * self.depth

    @property
    def packed(self) -> int:
        """Elements of queries, keys and values."""
        return self.queries * self.width + 2 * self.keys * self.num_kv_heads * self.depth

    @property
    def scores(self) -> float:
        """Elements of all heads' scores."""
        return float(self.num_heads * self.queries * self.keys)


# Kernel by kernel, as torch's plain implementation launches them ---------------------------------


def eager_forward(work: Work, itemsize: int) -> list[Kernel]:
    """Heads apart, QK^T with the mask, softmax, dropout, PV, heads together."""
    product = _product(work, itemsize)
    return [
        Kernel(0.0, 2.0 * work.packed * itemsize),
        *_repeated(work, itemsize),
        product,
        *_casts(work, itemsize),
        Kernel(5 * work.scores, 2 * work.scores * _softmax_itemsize(work, itemsize)),
        *_casts(work, itemsize),
        *[dropout_cost(work.scores, itemsize)] * work.dropout,
        product,
        Kernel(0.0, 2.0 * work.queries * work.width * itemsize),
    ]


def eager_backward(work: Work, itemsize: int) -> list[Kernel]:
    """Slopes of V and P, dropout, softmax, those of Q and K, heads together."""
    product = _product(work, itemsize)
    return [
        product,
        product,
        *[dropout_cost(work.scores, itemsize)] * work.dropout,
        *_casts(work, itemsize),
        Kernel(4 * work.scores, 3 * work.scores * _softmax_itemsize(work, itemsize)),
        *_casts(work, itemsize),
        product,
        product,
        *_repeated(work, itemsize),
        Kernel(0.0, 2.0 * work.packed * itemsize),
    ]


def eager_kept(work: Work, itemsize: int, inputs: tuple[int, ...]) -> Kept:
    """Queries, keys, values and all weights; with dropout these once more, and the mask.

    Of keys and values that several heads share, copies for all heads are kept instead. In 16 bits
    a softmax in float32 is kept as it is, beside what becomes of it.
    """
    nbytes = work.scores * itemsize
    nbytes += work.scores * (itemsize + 1) * work.dropout
    nbytes += work.scores * FULL * _is_cast(work, itemsize)
    if work.num_kv_heads < work.num_heads and len(inputs) == 3:
        return Kept(inputs[:1], nbytes=nbytes + 2.0 * work.keys * work.width * itemsize)
    return Kept(inputs, nbytes=nbytes)


def _product(work: Work, itemsize: int) -> Kernel:
    """One of the six products; each moves the scores and two of Q, K, V and their like."""
    moved = work.scores + (work.queries + work.keys) * work.width
    return Kernel(2.0 * work.queries * work.keys * work.width, float(moved * itemsize))


def _repeated(work: Work, itemsize: int) -> list[Kernel]:
    """Keys and values copied for each head that shares them; backward, the copies' sums."""
    heads = work.num_heads + work.num_kv_heads
    copy = Kernel(0.0, float(work.keys * heads * work.depth * itemsize))
    return [copy, copy] if work.num_kv_heads < work.num_heads else []


def _is_cast(work: Work, itemsize: int) -> bool:
    return work.upcast and itemsize < FULL


def _softmax_itemsize(work: Work, itemsize: int) -> int:
    return max(itemsize, FULL) if work.upcast else itemsize


def _casts(work: Work, itemsize: int) -> list[Kernel]:
    return [Kernel(0.0, work.scores * (itemsize + FULL))] * _is_cast(work, itemsize)


# One kernel each way -----------------------------------------------------------------------------


def flash_forward(work: Work, itemsize: int) -> list[Kernel]:
    """Reads queries, keys and values; writes the output and a number of each row of scores."""
    moved = (work.packed + work.queries * work.width) * itemsize + _rows_nbytes(work)
    return [Kernel(_flash_flops(work), moved)]


def flash_backward(work: Work, itemsize: int) -> list[Kernel]:
    """Reads these again, and the output and its slope; writes the slopes of the three."""
    moved = 2 * (work.packed + work.queries * work.width) * itemsize + _rows_nbytes(work)
    return [Kernel(BACKWARD_PRODUCTS * _flash_flops(work), moved)]


def flash_kept(work: Work, inputs: tuple[int, ...]) -> Kept:
    """Queries, keys, values, the output, and a number of each row; no weights."""
    return Kept(inputs, output=True, nbytes=_rows_nbytes(work))


def _flash_flops(work: Work) -> float:
    """Two products, of those scores alone that somebody looks at."""
    return 4.0 * work.pairs * work.width


def _rows_nbytes(work: Work) -> float:
    return float(LOGSUMEXP * work.num_heads * work.queries)
