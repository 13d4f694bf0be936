"""Host: what the process that drives a device costs it."""

from __future__ import annotations

from simdp.spec import Bool, Seconds, Spec


class Host(Spec):
    """Time of the host that its device waits for, such as Python between two steps.

    Attributes
    ----------
    step : float
        At the beginning of every step, on every rank [s].
    per_neighbour : float
        The same for each further rank of the job that shares the node, such as its loaders and its
        Python competing for the node's cores [s]; a step measured on one device knows none of it.
    ahead : bool
        Whether the host launches kernels while the device works on earlier ones. Then a device that
        has enough to do waits for no launch, and one with little to do for every one; false charges
        a launch to each kernel.
    """

    step: Seconds = 0.0
    per_neighbour: Seconds = 0.0
    ahead: Bool = False

    def before_step(self, local_size: int) -> float:
        """Time that a step begins with, on each of ``local_size`` ranks of a node [s]."""
        return self.step + self.per_neighbour * (local_size - 1)
