"""Operations of one process with several devices: a batch in one place, cut over all."""

from __future__ import annotations

from typing import NamedTuple

from simdp.steps.bucket import Bucket, Group


class Scatter(NamedTuple):
    """Rank 0 hands out each rank's piece of an array of its batch, one after the other.

    Attributes
    ----------
    micro : int
        The micro-batch.
    name : str
        An input of the model, or ``y``, the targets.
    """

    micro: int
    name: str


class CopyOut(NamedTuple):
    """Start to copy rank 0's tensors to other ranks, which borrow them for a micro-step.

    As `Broadcast`, among the ranks of ``group``, of which rank 0 is one.
    """

    tag: int
    label: str
    nbytes: float
    names: tuple[str, ...]
    group: Group


class Gather(NamedTuple):
    """Copy every rank's outputs, or its loss, to a rank, one after the other."""

    micro: int
    root: int
    losses: bool = False


class LossOfAll(NamedTuple):
    """A rank computes the loss of all outputs that it has gathered."""

    micro: int
    root: int


class HandBack(NamedTuple):
    """Hand the gradients of what was gathered back from the root, after its loss's backward."""

    micro: int
    root: int
    losses: bool = False


class Reduce(NamedTuple):
    """Start to sum gradients of a micro-step on rank 0, in one flat buffer."""

    tag: int
    label: str
    bucket: Bucket
    group: Group


class TakeSums(NamedTuple):
    """Add the sums to rank 0's gradients of the step, and let the copies of the model go."""

    micro: int
