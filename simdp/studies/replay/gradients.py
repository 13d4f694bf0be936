"""Estimates the number of elements of each tensor in a traced bucket."""

from __future__ import annotations

from collections.abc import Sequence


def dealt(total: int, num_tensors: int, cap: int | None) -> list[int]:
    """Deal a bucket's elements to its tensors, so that the rule which made it makes it again.

    Torch closes a bucket behind the tensor with which it reaches its limit: those before must stay
    below. Within that, tensors are equal: nothing tells more.

    Parameters
    ----------
    total : int
        Elements of the bucket.
    num_tensors : int
        Its tensors, 1 or more.
    cap : int or None
        Elements at which it is closed; None where it is not.

    Returns
    -------
    list of int
        In the order in which they become ready; each above 0, if there are enough elements.
    """
    num = max(1, min(num_tensors, total))
    each = total // num
    if cap is not None and each * (num - 1) >= cap:
        each = max((cap - 1) // (num - 1), 0)
    if not each:
        return [0] * (num_tensors - 1) + [total]
    found = [each] * (num - 1)
    return [*found, total - sum(found)] + [0] * (num_tensors - num)


def homes(ends: Sequence[int], places: Sequence[int]) -> list[list[int]]:
    """Sort tensors into buckets: those that are ready by a bucket's launch, and in none before.

    Parameters
    ----------
    ends : sequence of int
        Kernels before the launch of each bucket, rising.
    places : sequence of int
        Kernels before each tensor is ready, rising.

    Returns
    -------
    list of list of int
        Numbers of the tensors of each bucket; what is behind all is the last one's.
    """
    found: list[list[int]] = [[] for _ in ends]
    bucket = 0
    for number, place in enumerate(places):
        while bucket < len(ends) - 1 and place > ends[bucket]:
            bucket += 1
        if found:
            found[bucket].append(number)
    return found


def fitted_in(sizes: Sequence[int], totals: Sequence[int]) -> list[list[int]] | None:
    """Sort tensors into buckets of which the sums are known, the largest first.

    Each goes to the bucket that has least room left of those where it fits.

    Parameters
    ----------
    sizes, totals : sequence of int
        Of tensors, and of buckets; in one unit.

    Returns
    -------
    list of list of int
        Sizes of each bucket's tensors, the largest last, so that none before it closes a bucket; or
        None where they do not fill the buckets.
    """
    room = list(totals)
    found: list[list[int]] = [[] for _ in totals]
    for size in sorted(sizes, reverse=True):
        bucket = min(
            (i for i, left in enumerate(room) if left >= size), key=room.__getitem__, default=None
        )
        if bucket is None:
            return None
        room[bucket] -= size
        found[bucket].insert(0, size)
    return None if any(room) else found
