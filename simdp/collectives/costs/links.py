"""Links: a collective takes as long as its transfers over the links of the cluster."""

from __future__ import annotations

from typing import ClassVar, Literal

from simdp.collectives.costs.base import Cost
from simdp.collectives.costs.wiring import Wiring


class LinksCost(Cost):
    """Transfer by transfer over the cluster's links, as the algorithm says."""

    kind: Literal["links"] = "links"

    timed: ClassVar[bool] = False

    def seconds(self, collective: str, nbytes: float, wiring: Wiring) -> float:
        raise ValueError(f"cost links has no time of its own for {collective}; play its transfers")
