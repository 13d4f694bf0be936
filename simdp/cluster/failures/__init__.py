"""Failures by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.cluster.failures.base import Event, Failures
from simdp.family import Family
from simdp.spec import one_of

FAILURES: Family[Failures] = Family(
    "failures",
    Failures,
    __name__,
    {
        "empirical": "empirical:Empirical",
        "exponential": "exponential:Exponential",
        "maintenance": "maintenance:Maintenance",
        "spot": "spot:Spot",
        "trace": "trace:Trace",
        "weibull": "weibull:Weibull",
    },
)
AnyFailures = Annotated[Failures, one_of("failure", FAILURES)]

__all__ = ["FAILURES", "AnyFailures", "Event", "Failures"]
