"""How torch's DDP sorts gradients into buckets: which tensors travel together, in which order."""

from __future__ import annotations

from collections.abc import Sequence

from simdp.workload.layers import Buffer, Parameter

MiB = 2**20

FIRST_BUCKET_NBYTES = 1 * MiB
"""Limit of the first bucket when no cap is given (torch: kDefaultFirstBucketBytes)."""

BUCKET_CAP_NBYTES = 25 * MiB
"""Limit of the other buckets when no cap is given (torch: bucket_cap_mb)."""


def limits(bucket_cap: float | None) -> list[float]:
    """Limits of the first bucket, the second, ...; the last one holds for all that follow."""
    if bucket_cap is None:
        return [FIRST_BUCKET_NBYTES, BUCKET_CAP_NBYTES]
    return [bucket_cap]


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
