"""Cost: how the time of a collective is found."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import ClassVar, Self

from simdp.collectives.costs.wiring import Wiring
from simdp.spec import Spec


class Cost(Spec):
    """Where the time of a collective comes from: from its transfers, or from a formula.

    A timed collective begins when the last rank has entered it, and ends on every rank at once.
    """

    kind: str

    timed: ClassVar[bool] = True
    """Whether `seconds` tells the time; otherwise the transfers of the algorithm's plan do."""

    @abstractmethod
    def seconds(self, collective: str, nbytes: float, wiring: Wiring) -> float:
        """Time of a collective, from when the last rank has entered it.

        Parameters
        ----------
        collective : str
            A key of `simdp.collectives.FAMILIES`, or ``sendrecv``: every rank sends to the next.
        nbytes : float
            Bytes of the whole buffer, as `simdp.collectives.Algorithm.plan` and nccl-tests count.
        wiring : Wiring
            Between which ranks.

        Returns
        -------
        float
            In seconds; 0 for a single rank.

        Raises
        ------
        ValueError
            If the cost is not timed, or knows nothing of the collective.
        """

    def problem_with(self, collective: str, wiring: Wiring) -> str | None:
        """Say why it cannot tell the time of a collective, or None."""
        return None

    def served_by(self, collective: str, nbytes: float, wiring: Wiring) -> str:
        """Name what serves a collective, for tables; arguments as for `seconds`."""
        return self.kind

    def settled(self, base: Path) -> Self:
        """The same cost with its file read; a relative path starts from ``base``.

        Raises
        ------
        ScenarioError
            If a file cannot be read, or holds something else.
        """
        return self
