"""Precisions by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.precision.base import Precision
from simdp.workload.precision.full import Full

PRECISIONS: Family[Precision] = Family(
    "precisions",
    Precision,
    __name__,
    {
        "amp": "amp:Amp",
        "full": "full:Full",
        "mixed": "mixed:Mixed",
    },
)
AnyPrecision = Annotated[Precision, one_of("precision", PRECISIONS)]

__all__ = ["PRECISIONS", "AnyPrecision", "Full", "Precision"]
