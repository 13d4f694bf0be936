"""Compute times on a cluster's devices, by the kind of ``compute``."""

from __future__ import annotations

from simdp.engine.compute.call_times import CallTimes
from simdp.engine.compute.profile_times import MeasuredTimes, ProfileTimes

Times = CallTimes | MeasuredTimes | ProfileTimes

COMPUTE: dict[str, type[CallTimes] | type[MeasuredTimes] | type[ProfileTimes]] = {
    "measured": MeasuredTimes,
    "profile": ProfileTimes,
    "roofline": CallTimes,
}

__all__ = ["COMPUTE", "Times"]
