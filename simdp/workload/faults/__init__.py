"""Faults by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.faults.base import Fault

FAULTS: Family[Fault] = Family(
    "faults",
    Fault,
    __name__,
    {
        "inf": "inf:Inf",
        "nan": "nan:Nan",
    },
)
AnyFault = Annotated[Fault, one_of("fault", FAULTS)]

__all__ = ["FAULTS", "AnyFault", "Fault"]
