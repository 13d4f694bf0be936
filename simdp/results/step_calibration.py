"""StepCalibration: measured step times beside those of the constants fitted to them."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from simdp.results.calibration import FittedConstant


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
class StepCalibration:
    """A calibration by step times.

    Attributes
    ----------
    name : str
        Of the machine.
    points : tuple of FittedStep
        Those that the constants bear on.
    constants : tuple of FittedConstant
        What was fitted.
    residual : float
        Root mean square of the relative errors.
    next_point : NextStep or None
        None where the scenarios predict nothing.
    entry : str
        The machine, in YAML.
    version : str
        Of simdp.
    """

    name: str
    points: tuple[FittedStep, ...]
    constants: tuple[FittedConstant, ...]
    residual: float
    next_point: NextStep | None
    entry: str
    version: str

    def to_json(self) -> str:
        """Write it as JSON, for machines that read it; without the entry, which is YAML."""
        said = {key: value for key, value in asdict(self).items() if key != "entry"}
        return json.dumps(said, indent=1) + "\n"

    @property
    def undetermined(self) -> list[str]:
        """Keys of the constants that the data leave open."""
        return [constant.key for constant in self.constants if not constant.is_determined]
