"""Host: what the process that drives a device costs it."""

from __future__ import annotations

from simdp.spec import Seconds, Spec


class Host(Spec):
    """Time of the host that its device waits for, such as Python between two steps.

    Attributes
    ----------
    step : float
        At the beginning of every step, on every rank [s].
    """

    step: Seconds = 0.0
