"""How long compute takes on a cluster's devices, by the key ``compute``."""

from __future__ import annotations

from simdp.engine.compute.call_times import CallTimes
from simdp.engine.compute.profile_times import ProfileTimes

COMPUTE: dict[str, type[CallTimes] | type[ProfileTimes]] = {
    "profile": ProfileTimes,
    "roofline": CallTimes,
}

__all__ = ["COMPUTE"]
