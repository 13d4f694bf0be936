"""How long a collective takes, by the key ``collectives.cost``.

The family of costs: the transfers over the links, NCCL's formula, or a measured table.
"""

from __future__ import annotations

from typing import Annotated

from simdp.collectives.costs.base import Cost
from simdp.collectives.costs.wiring import Wiring
from simdp.family import Family
from simdp.spec import one_of

COSTS: Family[Cost] = Family(
    "costs",
    Cost,
    __name__,
    {
        "links": "links:LinksCost",
        "nccl": "nccl:NcclCost",
        "table": "table:TableCost",
    },
)

AnyCost = Annotated[Cost, one_of("cost", COSTS)]

__all__ = ["COSTS", "AnyCost", "Cost", "Wiring"]
