"""How torch's DDP sorts gradients into buckets: which tensors travel together, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from simdp.workload.layers import Buffer, Parameter

MiB = 2**20

FIRST_BUCKET_NBYTES = 1 * MiB
"""Limit of the first bucket when no cap is given (torch: kDefaultFirstBucketBytes)."""

BUCKET_CAP_NBYTES = 25 * MiB
"""Limit of the other buckets when no cap is given (torch: bucket_cap_mb)."""


REBUILT_SINCE = (1, 6)
"""torch that rebuilds buckets in the order in which gradients became ready (pull request 35137)."""

ONE_AT_FIRST_SINCE = (1, 12)
"""torch whose first iteration has one bucket with everything (pull request 72843)."""

EQUAL_CAPS_SINCE = (2, 5)
"""torch whose first bucket has the same cap as the others where one is given (pull request
121640)."""


class Rules(NamedTuple):
    """How a version of torch sorts gradients.

    Attributes
    ----------
    rebuilds : bool
        Whether buckets follow the order in which gradients became ready, from the second
        iteration on.
    one_at_first : bool
        Whether the first iteration has one bucket with everything.
    equal_caps : bool
        Whether a cap that is given holds for the first bucket too.
    """

    rebuilds: bool = True
    one_at_first: bool = True
    equal_caps: bool = True


def rules(version: str | None) -> Rules:
    """What a version of torch does, such as ``"1.4"`` or ``"2.1.0"``; None is the newest."""
    if version is None:
        return Rules()
    major, minor = map(int, version.split(".")[:2])
    here = (major, minor)
    return Rules(here >= REBUILT_SINCE, here >= ONE_AT_FIRST_SINCE, here >= EQUAL_CAPS_SINCE)


def limits(bucket_cap: float | None, equal_caps: bool = True) -> list[float]:
    """Limits of the first bucket, the second, ...; the last one holds for all that follow."""
    if bucket_cap is None:
        return [FIRST_BUCKET_NBYTES, BUCKET_CAP_NBYTES]
    return [bucket_cap] if equal_caps else [FIRST_BUCKET_NBYTES, bucket_cap]


def assign(
    parameters: Sequence[Parameter | Buffer], itemsize: int, caps: Sequence[float]
) -> list[list[str]]:
    """Sort tensors into buckets by torch's rule.

    A tensor is added to the open bucket, which closes as soon as it holds its limit or more: a
    bucket can exceed its limit by nearly one tensor, and no tensor is split.

    Parameters
    ----------
    parameters : sequence of Parameter or Buffer
        In the order in which they are to be sorted.
    itemsize : int
        Bytes per element.
    caps : sequence of float
        From `limits` [bytes].

    Returns
    -------
    list of list of str
        The names in each bucket.

    References
    ----------
    torch, reducer.cpp, compute_bucket_assignment_by_size.
    """
    buckets: list[list[str]] = []
    open_names: list[str] = []
    held = 0
    for parameter in parameters:
        open_names.append(parameter.name)
        held += parameter.num_elements * itemsize
        if held >= caps[min(len(buckets), len(caps) - 1)]:
            buckets.append(open_names)
            open_names, held = [], 0
    if open_names:
        buckets.append(open_names)
    return buckets
