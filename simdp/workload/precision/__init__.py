"""Precisions by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.spec import one_of
from simdp.workload.precision.amp import Amp
from simdp.workload.precision.base import Precision
from simdp.workload.precision.full import Full
from simdp.workload.precision.mixed import Mixed

PRECISIONS: dict[str, type[Precision]] = {
    "amp": Amp,
    "full": Full,
    "mixed": Mixed,
}
AnyPrecision = Annotated[Precision, one_of("precision", PRECISIONS)]

__all__ = ["PRECISIONS", "AnyPrecision", "Full", "Precision"]
