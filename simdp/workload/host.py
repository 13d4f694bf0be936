"""Host: what the process that drives a device costs it."""

from __future__ import annotations

from simdp.spec import Seconds, Spec


class Host(Spec):
    """Time of the host that its device waits for, such as Python between two steps.

    Attributes
    ----------
    step : float
        At the beginning of every step, on every rank [s].
    per_neighbour : float
        The same for each further rank of the job that shares the node, such as its loaders and its
        Python competing for the node's cores [s]; a step measured on one device knows none of it.
    """

    step: Seconds = 0.0
    per_neighbour: Seconds = 0.0

    def before_step(self, local_size: int) -> float:
        """Time that a step begins with, on each of ``local_size`` ranks of a node [s]."""
        return self.step + self.per_neighbour * (local_size - 1)
