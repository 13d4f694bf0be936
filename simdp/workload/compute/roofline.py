"""Times from the figures of the devices."""

from __future__ import annotations

from typing import Literal

from simdp.workload.compute.base import Compute


class FromRoofline(Compute):
    """The longer of a kernel's arithmetic and memory traffic, and its launch, kernel by kernel.

    Attributes
    ----------
    kernels : {"layers", "torch"}
        Which are charged: those of the layers alone, with which machines of the catalogue were
        calibrated; or also what eager torch runs between them: additions of gradients of what
        several layers take, and of later micro-steps, casts of what flows under ``amp``, scaling
        and masks of plain attention, batch norms' counters, the loss kernel by kernel, and the
        casts of 16-bit hooks. Scripts under ``torchrun`` are charged all of these.
    """

    kind: Literal["roofline"] = "roofline"
    kernels: Literal["layers", "torch"] = "layers"

    @property
    def runs_eagerly(self) -> bool:
        return self.kernels == "torch"
