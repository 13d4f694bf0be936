"""Times from the figures of the devices."""

from __future__ import annotations

from typing import Literal

from simdp.workload.compute.base import Compute


class FromRoofline(Compute):
    """The longer of a kernel's arithmetic and memory traffic, and its launch, kernel by kernel."""

    kind: Literal["roofline"] = "roofline"
