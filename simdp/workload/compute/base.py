"""Compute: where the times of forward and backward come from; `simdp.engine.compute` finds them."""

from __future__ import annotations

from typing import ClassVar

from simdp.spec import Spec


class Compute(Spec):
    """A source of compute times."""

    kind: str

    without_data: ClassVar[bool] = False
    """Whether steps of a model that has layers, but computes no numbers, need no data set."""

    @property
    def runs_eagerly(self) -> bool:
        """Whether what torch runs between layers is charged, too."""
        return False
