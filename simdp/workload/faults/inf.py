"""An infinite gradient, as a scaled loss beyond float16's range leaves it."""

from __future__ import annotations

import math
from typing import Literal

from simdp.workload.faults.base import Fault


class Inf(Fault):
    """An infinite number in one gradient, as overflow in 16 bits leaves it."""

    kind: Literal["inf"] = "inf"

    @property
    def value(self) -> float:
        return math.inf
