"""Plot, the base of every picture: reads a study, draws on the axes that it is given."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Generic, TypeVar

from matplotlib.axes import Axes

from simdp.results.calibration import CalibrationStudy
from simdp.results.collective import CollectiveStudy
from simdp.results.comparison import Comparison
from simdp.results.job import JobStudy
from simdp.results.result import Study
from simdp.results.step_calibration import StepCalibration
from simdp.results.validation import Validation

D = TypeVar(
    "D",
    Study,
    CollectiveStudy,
    Validation,
    CalibrationStudy,
    StepCalibration,
    Comparison,
    JobStudy,
)


class Plot(ABC, Generic[D]):
    """One kind of picture.

    Attributes
    ----------
    kind : str
        Its name in the table and its file's.
    reads : type
        What it draws: `Study`, `CollectiveStudy`, `Validation`, `CalibrationStudy`,
        `StepCalibration`, `Comparison` or `JobStudy`.
    needs : str
        What a study must have, for messages.
    num_axes : int
        How many panels it draws on, one above the other.
    widths : tuple of float
        Relative widths of panels that stand side by side and share their rows; else empty.
    """

    kind: ClassVar[str]
    reads: ClassVar[type]
    needs: ClassVar[str]
    num_axes: ClassVar[int] = 1
    widths: ClassVar[tuple[float, ...]] = ()

    @abstractmethod
    def fits(self, study: D) -> bool:
        """Tell whether the study has what the plot shows."""

    @abstractmethod
    def draw(self, study: D, *axes: Axes) -> None:
        """Draw on ``num_axes`` panels and touch nothing else.

        Parameters
        ----------
        study : object of type `reads`
            One that fits; left as it is.
        *axes : Axes
            Empty panels from the top, made inside `simdp.reports.theme.style`.
        """

    def num_rows(self, study: D) -> int:
        """Count the rows of bars, which decide the height; 0 for curves."""
        return 0
