"""Faults by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.faults.base import Fault
from simdp.workload.faults.inf import Inf
from simdp.workload.faults.nan import Nan

FAULTS: dict[str, type[Fault]] = {
    "inf": Inf,
    "nan": Nan,
}
AnyFault = Annotated[Fault, one_of("fault", FAULTS)]

__all__ = ["FAULTS", "AnyFault", "Fault"]
