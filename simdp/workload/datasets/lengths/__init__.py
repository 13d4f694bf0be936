"""Distributions of the samples' lengths by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.spec import one_of
from simdp.workload.datasets.lengths.base import Lengths

LENGTHS: Family[Lengths] = Family(
    "lengths",
    Lengths,
    __name__,
    {
        "empirical": "empirical:Empirical",
        "fixed": "fixed:Fixed",
        "lognormal": "lognormal:Lognormal",
        "uniform": "uniform:Uniform",
    },
)
AnyLengths = Annotated[Lengths, one_of("lengths", LENGTHS)]

__all__ = ["LENGTHS", "AnyLengths", "Lengths"]
