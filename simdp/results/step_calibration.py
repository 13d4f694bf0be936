"""StepCalibration: measured step times beside those of the constants fitted to them."""

from __future__ import annotations

from dataclasses import dataclass

from simdp.results.calibration import Calibrated


@dataclass(frozen=True)
class FittedStep:
    """A measured step time and the fitted one.

    Attributes
    ----------
    title : str
        The scenario, and what the point sets.
    measured, fitted : float
        Times [s].
    """

    title: str
    measured: float
    fitted: float

    @property
    def error(self) -> float:
        """Fitted over measured time, less one."""
        return self.fitted / self.measured - 1


@dataclass(frozen=True)
class NextStep:
    """The further measurement that would narrow the predictions most.

    Attributes
    ----------
    title : str
        Which of the points that are predicted so far.
    before, after : float
        Root mean square, over these points, of half the 90 % interval that the constants leave, as
        a share of the prediction; without and with it.
    """

    title: str
    before: float
    after: float


@dataclass(frozen=True)
class StepCalibration(Calibrated):
    """A calibration by step times.

    Attributes
    ----------
    points : tuple of FittedStep
        Those that the constants bear on.
    next_point : NextStep or None
        None where the scenarios predict nothing.
    """

    points: tuple[FittedStep, ...]
    next_point: NextStep | None
