"""Allocator: how much of a device's memory a tensor takes."""

from __future__ import annotations

from abc import abstractmethod

from simdp.spec import Spec


class Allocator(Spec):
    """How a device's memory is handed out."""

    kind: str

    @abstractmethod
    def taken(self, nbytes: float) -> float:
        """Bytes of device memory that a tensor of so many bytes takes; 0 for none."""
