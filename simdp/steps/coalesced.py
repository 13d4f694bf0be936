"""Operations on several units at once, which are cut by themselves and travel together."""

from __future__ import annotations

from typing import NamedTuple

from simdp.steps.bucket import Bucket
from simdp.steps.offload import HostCopy


class GatherTogether(NamedTuple):
    """Start to put the parameters of some units together, in one all_gather.

    Attributes
    ----------
    tag, label, nbytes
        As of `simdp.steps.ops.AllReduce`.
    units : tuple of int
        Which.
    before : HostCopy or None
        What is copied on the communication stream before it begins.
    """

    tag: int
    label: str
    nbytes: float
    units: tuple[int, ...]
    before: HostCopy | None = None


class ReduceTogether(NamedTuple):
    """Start to sum the gradients of some units in one reduce_scatter, each piece on its owner.

    What an owner gets is added to its pieces of the step's gradients; the whole ones are forgotten.
    ``before`` is as of `GatherTogether`.
    """

    tag: int
    label: str
    bucket: Bucket
    units: tuple[int, ...]
    before: HostCopy | None = None


class KeepSums(NamedTuple):
    """Of a bucket whose sums all ranks have, each adds its own pieces to those of the step.

    The whole gradients are forgotten.
    """

    bucket: Bucket


Coalesced = GatherTogether | ReduceTogether | KeepSums
