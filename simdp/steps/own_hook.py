"""Operations of a comm hook that the user has written; sizes, no arrays."""

from __future__ import annotations

from typing import NamedTuple

from simdp.steps.bucket import Bucket


class OwnHook(NamedTuple):
    """A bucket that a function sends.

    Attributes
    ----------
    path, name : str
        The file, and the function of a state and a bucket in it.
    bucket : Bucket
        The whole.
    sent : Bucket or None
        What the function hands to its all_reduce; None if it calls none.
    goes_on : bool
        Whether it does something with the sum.
    label : str
        The bucket's name in the trace.
    """

    path: str
    name: str
    bucket: Bucket
    sent: Bucket | None
    goes_on: bool
    label: str


class CallHook(NamedTuple):
    """Every rank calls the function with its bucket."""

    hook: OwnHook


class EndHook(NamedTuple):
    """What it has made of the sum becomes the bucket's content."""

    hook: OwnHook
