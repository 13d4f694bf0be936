"""Host: what a node's processors lend to its devices, for what is kept in their memory."""

from __future__ import annotations

from pydantic import Field

from simdp.cluster.link import AnyLink
from simdp.spec import Bandwidth, Spec


class HostMemory(Spec):
    """The memory of a node's processors, and how devices reach it.

    Attributes
    ----------
    link : Link
        Between each device and it, in both directions at once.
    memory_bandwidth : float
        Of a node, which its ranks share [bytes/s]. The default is that of one socket with eight
        channels of DDR4-3200, 8 x 25.6 GB/s (AMD EPYC 7003 series, data sheet).
    """

    link: AnyLink = Field("pcie4-x16", validate_default=True)
    memory_bandwidth: Bandwidth = 204.8e9

    def copying(self, nbytes: float) -> float:
        """Time to copy between a device and it [s]."""
        return self.link.alpha + nbytes / self.link.bandwidth if nbytes else 0.0
