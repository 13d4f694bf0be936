"""What torch's optimizers with a fused kernel share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Self

from pydantic import model_validator

from simdp.spec import Bool, problem
from simdp.workload.optimizers.base import Optimizer


class Fusable(Optimizer):
    """An optimizer of which torch has one kernel that does everything.

    Attributes
    ----------
    fused : bool or None
        True reads and writes every tensor once and makes no temporaries: 28 bytes for each element
        of AdamW in float32. False goes through them kernel by kernel, so that intermediate results
        travel too. None counts the bytes of the former, and the temporaries and launches of the
        latter.
    """

    fused: Bool | None = None

    @model_validator(mode="after")
    def _one_way_at_a_time(self) -> Self:
        if self.fused and self.foreach:
            raise problem("fused and foreach are both true; keep one of them.")
        return self

    @abstractmethod
    def passes(self) -> int:
        """Count the tensors that the kernels of one update read and write, one by one."""

    def nbytes_moved(self, num_elements: int, itemsize: int) -> float:
        if self.fused is False:
            return self.passes() * num_elements * itemsize
        return super().nbytes_moved(num_elements, itemsize)
