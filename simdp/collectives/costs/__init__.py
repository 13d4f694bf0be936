"""Costs of collectives without simulated transfers: base class and table of kinds.

The kinds are: transfers over the links, NCCL's formula, or a measured table.
"""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

from simdp.family import Family
from simdp.spec import Spec, one_of


class Wiring(NamedTuple):
    """Links between the ranks of a collective."""

    # world_size, num_nodes, local_size: ranks, their nodes, and ranks of each node
    world_size: int
    num_nodes: int
    local_size: int
    intra_alpha: float  # latency of a link inside a node [s]; 0 with one rank per node
    # send bandwidth of one device inside its node, over all its links [bytes/s]; infinite with one
    # rank per node
    intra_bandwidth: float
    inter_alpha: float  # latency of a link between nodes [s]; 0 with one node
    # send bandwidth of one node, over all the network cards of its ranks [bytes/s]; infinite with
    # one node
    inter_bandwidth: float
    cards: int  # network cards of the ranks of a node; 0 with one node
    # peer, network: link classes inside a node and between nodes; of `simdp.collectives.costs.nccl`
    peer: str = "nvlink"
    network: str = "rdma"

    @property
    def joined(self) -> str:
        """Class of the slowest network between the ranks; empty for one rank."""
        if self.num_nodes > 1:
            return self.network
        return self.peer if self.local_size > 1 else ""


class Cost(Spec):
    """Base of the costs: times of collectives from their transfers or from a formula.

    A timed collective begins when the last rank has entered it, and ends on all ranks at once.
    """

    kind: str

    timed: ClassVar[bool] = True
    """Whether times come from `seconds`; otherwise from the plan's transfers."""

    @abstractmethod
    def seconds(self, collective: str, nbytes: float, wiring: Wiring) -> float:
        """Return the time of a collective after the last rank has entered it [s]; 0 for one rank.

        Parameters
        ----------
        collective : str
            A key of `simdp.collectives.FAMILIES`, or ``sendrecv``: every rank sends to the next.
        nbytes : float
            Bytes of the whole buffer, as `simdp.collectives.Algorithm.plan` and nccl-tests count.
        wiring : Wiring
            Links between the ranks.

        Raises
        ------
        ValueError
            If the cost is not timed, or does not cover the collective.
        """

    def problem_with(self, collective: str, wiring: Wiring) -> str | None:
        """Explain why it has no time for a collective, or None."""
        return None

    def served_by(self, collective: str, nbytes: float, wiring: Wiring) -> str:
        """Name the algorithm of a collective, for tables; arguments as for `seconds`."""
        return self.kind

    def settled(self, base: Path) -> Self:
        """Return the same cost with its file read; a relative path starts from ``base``.

        Raises
        ------
        ScenarioError
            If a file is unreadable or invalid.
        """
        return self


COSTS: Family[Cost] = Family(
    "costs",
    Cost,
    __name__,
    {
        "links": "LinksCost",
        "nccl": "nccl:NcclCost",
        "table": "table:TableCost",
    },
)

AnyCost = Annotated[Cost, one_of("cost", COSTS)]


class LinksCost(Cost):
    """Transfers over the cluster's links, by the algorithm's plan."""

    kind: Literal["links"] = "links"

    timed: ClassVar[bool] = False

    def seconds(self, collective: str, nbytes: float, wiring: Wiring) -> float:
        raise ValueError(f"cost links has no time of {collective}; simulate its transfers")


__all__ = ["COSTS", "AnyCost", "Cost", "Wiring"]
