"""Plot, the base of every picture: reads a study, draws on the axes that it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from matplotlib.axes import Axes

from simdp.results.result import Study


class Plot(ABC):
    """One kind of picture.

    Attributes
    ----------
    kind : str
        Its name in the table and its file's.
    needs : str
        What a study must have, for messages.
    num_axes : int
        How many panels it draws on, one above the other.
    """

    kind: ClassVar[str]
    needs: ClassVar[str]
    num_axes: ClassVar[int] = 1

    @abstractmethod
    def fits(self, study: Study) -> bool:
        """Tell whether the study has what the plot shows."""

    @abstractmethod
    def draw(self, study: Study, *axes: Axes) -> None:
        """Draw on ``num_axes`` panels and touch nothing else.

        Parameters
        ----------
        study : Study
            One that fits; left as it is.
        *axes : Axes
            Empty panels from the top, made inside `simdp.reports.theme.style`.
        """

    def num_rows(self, study: Study) -> int:
        """Count the rows of bars, which decide the height; 0 for curves."""
        return 0
