"""Recovery policies by kind; this table is the one place of registration."""

from __future__ import annotations

from typing import Annotated

from simdp.family import Family
from simdp.job.recovery.base import Recovery
from simdp.spec import one_of

RECOVERY: Family[Recovery] = Family(
    "recovery",
    Recovery,
    __name__,
    {
        "elastic": "elastic:Elastic",
        "migrate": "migrate:Migrate",
        "replica_groups": "replica_groups:ReplicaGroups",
        "restart": "restart:Restart",
        "spares": "spares:Spares",
    },
)
AnyRecovery = Annotated[Recovery, one_of("recovery", RECOVERY, default="restart")]

__all__ = ["RECOVERY", "AnyRecovery", "Recovery"]
