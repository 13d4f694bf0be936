"""Operations on units: parameters that are dealt to the ranks, and come and go together."""

from __future__ import annotations

from typing import NamedTuple

from simdp.steps.bucket import Bucket
from simdp.steps.partition import Partition


class Shard(NamedTuple):
    """From here on each rank keeps only what the partition deals to it."""

    partition: Partition


class Unshard(NamedTuple):
    """What has been gathered of a unit is copied out of its buffer, into parameters.

    Attributes
    ----------
    unit, name
        Which.
    nbytes : float
        The buffer's size [bytes].
    """

    unit: int
    name: str
    nbytes: float


class Free(NamedTuple):
    """A unit's parameters are forgotten, but for each rank's own piece.

    Attributes
    ----------
    unit : int
        Which.
    parts : int
        How many neighbours keep it together until it is gathered again; 0 is all that share it.
    """

    unit: int
    parts: int = 0


class Open(NamedTuple):
    """A buffer for the whole gradients of a unit is made."""

    bucket: Bucket


class Release(NamedTuple):
    """The buffer of a unit's whole gradients is given back."""

    bucket: Bucket
