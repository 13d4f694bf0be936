"""Typed results of a calibration."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

# Calibration --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedPoint:
    """A measured time and the fitted one.

    Attributes
    ----------
    source : str
        The file.
    collective : str
        A key of `simdp.collectives.FAMILIES`, or ``sendrecv``.
    num_nodes, world_size : int
        Between how many nodes and ranks.
    nbytes : float
        Size of the buffer [bytes].
    measured, fitted : float
        Times [s].
    algorithm, protocol : str
        Predicted fastest choice of the fit.
    """

    source: str
    collective: str
    num_nodes: int
    world_size: int
    nbytes: float
    measured: float
    fitted: float
    algorithm: str
    protocol: str

    @property
    def error(self) -> float:
        """Fitted over measured time, less one."""
        return self.fitted / self.measured - 1


@dataclass(frozen=True)
class FittedConstant:
    """A constant, its fitted value and its interval.

    Attributes
    ----------
    key : str
        Dotted, as in a scenario.
    value, low, high : str
        The constant and the ends of its 90 % interval, as they are written in YAML.
    is_determined : bool
        Whether the data narrow it down.
    """

    key: str
    value: str
    low: str
    high: str
    is_determined: bool


@dataclass(frozen=True)
class NextPoint:
    """The further measurement that would narrow a prediction most.

    Attributes
    ----------
    collective, num_nodes, world_size, nbytes
        Quantity to measure.
    target : str
        Quantity to predict.
    before, after : float
        Half of the 90 % interval of the prediction, as a share of it, without and with it.
    """

    collective: str
    num_nodes: int
    world_size: int
    nbytes: float
    target: str
    before: float
    after: float


@dataclass(frozen=True)
class Proposal:
    """A measurement that would narrow a prediction.

    Attributes
    ----------
    kind : str
        ``"table"`` of a collective, or ``"step"``.
    title : str
        Quantity to measure.
    world_size : int
        On how many ranks.
    sizes : tuple of int
        Of a table [bytes].
    after : float
        Half of the prediction's 90 % interval with it, as a share of the prediction.
    """

    kind: str
    title: str
    world_size: int
    sizes: tuple[int, ...]
    after: float


@dataclass(frozen=True)
class WantedStep:
    """The step of a scenario, and measurements that would reduce its uncertainty.

    Attributes
    ----------
    target : str
        The scenario, and its ranks.
    before : float
        Half of the 90 % interval that the fitted constants leave, as a share of the prediction.
    proposals : tuple of Proposal
        The best table and the best step, the better one first.
    """

    target: str
    before: float
    proposals: tuple[Proposal, ...]


@dataclass(frozen=True)
class Calibrated:
    """Common parts of all calibrations.

    Attributes
    ----------
    name : str
        Of the machine.
    constants : tuple of FittedConstant
        Fitted constants.
    residual : float
        Root mean square of the relative errors.
    entry : str
        The machine, in YAML.
    version : str
        Of simdp.
    wanted : WantedStep or None
        Requested settings.
    """

    name: str
    constants: tuple[FittedConstant, ...]
    residual: float
    entry: str
    version: str
    wanted: WantedStep | None = field(default=None, kw_only=True)

    def to_json(self) -> str:
        """Write it as JSON, for machines that read it; without the entry, which is YAML."""
        said = {key: value for key, value in asdict(self).items() if key != "entry"}
        return json.dumps(said, indent=1) + "\n"

    @property
    def undetermined(self) -> list[str]:
        """Keys of the constants that the data leave open."""
        return [constant.key for constant in self.constants if not constant.is_determined]


@dataclass(frozen=True)
class CalibrationStudy(Calibrated):
    """A calibration of collectives; its constants are sorted, the weightiest first.

    Attributes
    ----------
    points : tuple of FittedPoint
        By file, collective and size.
    next_point : NextPoint
        Next measurements.
    """

    points: tuple[FittedPoint, ...]
    next_point: NextPoint


@dataclass(frozen=True)
class FittedStep:
    """A measured step time and the fitted one.

    Attributes
    ----------
    title : str
        The scenario, and the point's settings.
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
