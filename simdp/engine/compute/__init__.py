"""Compute times on a cluster's devices, by the kind of ``compute``."""

from __future__ import annotations

from simdp.engine.compute.profile_times import COMPUTE, Times, times_of

__all__ = ["COMPUTE", "Times", "times_of"]
