"""What a strategy holds in its hands: scripts, tensors, buckets, collectives under way."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, NamedTuple, Protocol

from simdp.workload.layers import Buffer, Parameter

Script = Generator[Any, None, None]
"""A generator that the engine drives."""

Tensor = Parameter | Buffer


class Pending(Protocol):
    """A collective under way."""


class Bucket(Protocol):
    """Gradients that travel together, as one flat buffer on every rank."""

    @property
    def nbytes(self) -> float:
        """Size of the buffer [bytes]."""

    @property
    def names(self) -> Sequence[str]:
        """Of the parameters in it, in order."""


SHARD, REPLICATE = "shard", "replicate"
"""Names of process groups: the ranks that share all pieces, and those with the same pieces."""


class Around(NamedTuple):
    """What is run around each call of the model, as hooks of torch's modules are.

    Attributes
    ----------
    before, after : callable
        Take the number of a call; in backward ``before`` is run before it goes through the call.
    """

    before: Callable[[int], Script]
    after: Callable[[int], Script]


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
    """How a bucket is taken apart.

    Attributes
    ----------
    factors : tuple of Factor
        Its gradients that become two factors each.
    rest : tuple of str
        The other ones.
    error_feedback, warm_start, epsilon, batched
        As in `simdp.strategies.comm_hooks.power_sgd.PowerSGD`.
    """

    factors: tuple[Factor, ...]
    rest: tuple[str, ...]
    error_feedback: bool
    warm_start: bool
    epsilon: float
    batched: bool


class Factored(Protocol):
    """A bucket that has been taken apart."""

    @property
    def rest(self) -> Bucket:
        """What travels as it is."""

    @property
    def p(self) -> Bucket:
        """The left factors of all matrices."""

    @property
    def q(self) -> Bucket:
        """The right factors of all matrices."""


class Selected(Protocol):
    """The entries of a bucket that a rank sends."""
