"""Fat tree of two or three levels of switches, with oversubscription."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from simdp.arrays import Ints
from simdp.cluster.topologies.clos import Clos, ClosTopology, spines_over
from simdp.spec import Float, Int, problem


class FatTreeTopology(ClosTopology):
    """Leaf switches under spine switches, or with three levels pods of both under core switches.

    Attributes
    ----------
    levels : int
        2: every spine meets every leaf. 3: a pod has leaves and spines of its own, and core
        switches join the pods.
    ports_per_leaf : int
        Ports of a leaf switch that lead down; neighbours in number share a leaf. 20 by default,
        half of the 40 ports of an HDR switch (NVIDIA QM8700).
    leaves : int or None
        Leaf switches that there are, of each pod with three levels. None: as many as needed, or
        as many per pod as a leaf has ports down.
    spines : int or None
        Spine switches, of each pod with three levels. None: ``ports_per_leaf`` over
        ``oversubscription``.
    pods, cores : int or None
        With three levels: pods that there are (None: as many as needed), and core switches above
        each spine (None: leaves of a pod over ``pod_oversubscription``).
    pod_oversubscription : float or None
        With three levels: what the leaves of a pod can send up, over what the pod can (None: 1).
    """

    kind: Literal["fat_tree"] = "fat_tree"
    levels: Literal[2, 3] = 2
    ports_per_leaf: Int = Field(20, ge=1, le=2**16)
    leaves: Int | None = Field(None, ge=1, le=2**16)
    spines: Int | None = Field(None, ge=1, le=2**16)
    pods: Int | None = Field(None, ge=1, le=2**16)
    cores: Int | None = Field(None, ge=1, le=2**16)
    pod_oversubscription: Float | None = Field(None, ge=1, le=1000)

    @model_validator(mode="after")
    def _keys_suit_the_levels(self) -> FatTreeTopology:
        for key in ("pods", "cores", "pod_oversubscription"):
            if self.levels == 2 and getattr(self, key) is not None:
                raise problem(f"{key} belongs to a fat tree of three levels; add levels: 3.")
        return self

    def capacity(self) -> int | None:
        if self.levels == 2:
            return None if self.leaves is None else self.leaves * self.ports_per_leaf
        if self.pods is None:
            return None
        return self.pods * (self.leaves or self.ports_per_leaf) * self.ports_per_leaf

    def clos(self, n: int, per_node: int) -> Clos:
        leaves = -(-n // self.ports_per_leaf)
        in_pod = leaves if self.levels == 2 else self.leaves or self.ports_per_leaf
        pods = -(-leaves // in_pod)
        spines, leaf_trunk = spines_over(self.ports_per_leaf, self.oversubscription, self.spines)
        cores, pod_trunk = spines_over(in_pod, self.pod_oversubscription or 1.0, self.cores)
        return Clos(
            num_ports=n,
            leaves=leaves,
            pods=pods,
            leaves_per_pod=in_pod,
            spines=spines if leaves > 1 else 0,
            cores=cores if pods > 1 else 0,
            leaf_trunk=leaf_trunk,
            pod_trunk=leaf_trunk * pod_trunk,
        )

    def leaf_of(self, ports: Ints, n: int, per_node: int) -> Ints:
        return ports // self.ports_per_leaf

    def leaf_name(self, leaf: int, n: int, per_node: int) -> str:
        return f"leaf switch {leaf}"
