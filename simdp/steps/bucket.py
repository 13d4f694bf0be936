"""What travels: buckets of gradients, and what compression makes of them; sizes, no arrays."""

from __future__ import annotations

from typing import NamedTuple

Group = str | tuple[int, ...] | None
"""Who takes part: the process groups of a name, some ranks, or all together."""


class Bucket(NamedTuple):
    """Gradients that travel together, as one flat buffer on every rank.

    Attributes
    ----------
    names : tuple of str
        Of the parameters in it, in order.
    num_elements : int
        Of all of them.
    dtype : str
        Of the buffer.
    nbytes : float
        Size of the gradients in it [bytes].
    room : float
        What the buffer takes for good beside the gradients [bytes].
    is_view : bool
        Whether gradients live in it for good.
    is_compressed : bool
        Whether gradients are rounded to another dtype as they come in.
    unit : int or None
        The unit of the strategy's partition that it holds the gradients of.
    of : str
        What tells it from others of the same parameters: a factor of a matrix, or what is left.
    """

    names: tuple[str, ...]
    num_elements: int
    dtype: str
    nbytes: float
    room: float = 0.0
    is_view: bool = False
    is_compressed: bool = False
    unit: int | None = None
    of: str = ""


class Factor(NamedTuple):
    """A gradient seen as a matrix, which travels as the product of two thin ones.

    Attributes
    ----------
    name : str
        The parameter.
    rows, columns : int
        Of the matrix.
    rank : int
        Columns of both thin matrices.
    """

    name: str
    rows: int
    columns: int
    rank: int


class Factoring(NamedTuple):
    """How a bucket is taken apart: matrices M become P = M Q and Q, the others stay as they are.

    Attributes
    ----------
    bucket, rest, p, q : Bucket
        The whole; what travels as it is; the left and the right factors of all matrices.
    factors : tuple of Factor
        The gradients that become two factors each.
    error_feedback, warm_start, epsilon, batched
        As in `simdp.strategies.comm_hooks.power_sgd.PowerSGD`.
    label : str
        The bucket's name in the trace.
    random_seed : int
        As there; of the first Q.
    is_square : bool
        Whether the only matrix is the whole bucket, filled up with zeros until it is square.
    """

    bucket: Bucket
    rest: Bucket
    p: Bucket
    q: Bucket
    factors: tuple[Factor, ...]
    error_feedback: bool
    warm_start: bool
    epsilon: float
    batched: bool
    label: str
    random_seed: int = 0
    is_square: bool = False


class Selection(NamedTuple):
    """The entries of a bucket that a rank sends: those of largest magnitude, with their places.

    Attributes
    ----------
    bucket : Bucket
        The whole.
    num_entries : int
        How many of it are sent.
    entry_nbytes : int
        Size of a value and its place [bytes].
    divisor : float
        What values are divided by before they are sent.
    error_feedback : bool
        Whether what was not sent the last time is added first.
    label : str
        The bucket's name in the trace.
    """

    bucket: Bucket
    num_entries: int
    entry_nbytes: int
    divisor: float
    error_feedback: bool
    label: str
