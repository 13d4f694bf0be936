"""A gradient that is not a number, as 0/0 leaves it."""

from __future__ import annotations

import math
from typing import Literal

from simdp.workload.faults.base import Fault


class Nan(Fault):
    """A number that is none in one gradient, as 0/0 or inf - inf leaves it."""

    kind: Literal["nan"] = "nan"

    @property
    def value(self) -> float:
        return math.nan
