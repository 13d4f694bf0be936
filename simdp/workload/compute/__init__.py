"""Where compute times come from, by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.compute.base import Compute

COMPUTES: Family[Compute] = Family(
    "computes",
    Compute,
    __name__,
    {
        "measured": "measured:FromMeasurements",
        "profile": "profile:FromProfile",
        "roofline": "roofline:FromRoofline",
    },
)
COMPUTE = one_of("compute", COMPUTES)
AnyCompute = Annotated[Compute, COMPUTE]

__all__ = ["COMPUTE", "COMPUTES", "AnyCompute", "Compute"]
