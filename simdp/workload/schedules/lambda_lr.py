"""torch.optim.lr_scheduler.LambdaLR, of a table instead of a function."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from simdp.spec import Float
from simdp.workload.schedules.base import Schedule

Table = Annotated[list[Annotated[Float, Field(ge=0)]], Field(min_length=1)]


class LambdaLR(Schedule):
    """``lr(k) = base table[k - 1]``: what torch's LambdaLR makes of a function with these values.

    Attributes
    ----------
    table : list of float
        Factor of each step; a step after the last is an error.

    References
    ----------
    torch.optim.lr_scheduler.LambdaLR.
    """

    multiplies: ClassVar[bool] = True

    kind: Literal["lambda_lr"] = "lambda_lr"
    table: Table

    def lr(self, base: float, step: int) -> float:
        return base * within(self.kind, self.table, step)[-1]


def within(kind: str, table: list[float], length: int) -> list[float]:
    """The first entries of a table.

    Raises
    ------
    ValueError
        If it has not so many.
    """
    if length > len(table):
        raise ValueError(
            f"{kind} has a table of {len(table)}, but {length} are needed; make it longer."
        )
    return table[:length]
