"""Typed results of a calibration."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field

# Calibration --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FittedPoint:
    """A measured time and the fitted one."""

    source: str  # the file
    collective: str  # a key of `simdp.collectives.FAMILIES`, or ``sendrecv``
    num_nodes: int
    world_size: int
    nbytes: float  # size of the buffer [bytes]
    measured: float  # times [s]
    fitted: float  # times [s]
    algorithm: str  # predicted fastest choice of the fit
    protocol: str  # predicted fastest choice of the fit

    @property
    def error(self) -> float:
        """Fitted over measured time, less one."""
        return self.fitted / self.measured - 1


@dataclass(frozen=True)
class FittedConstant:
    """A constant, its fitted value and its interval."""

    key: str  # dotted, as in a scenario
    # value, low, high: the constant and the ends of its 90 % interval, as they are written in YAML
    value: str
    low: str
    high: str
    is_determined: bool  # whether the data narrow it down


@dataclass(frozen=True)
class NextPoint:
    """The further measurement that reduces the uncertainty of a prediction most."""

    collective: str  # quantity to measure
    num_nodes: int  # quantity to measure
    world_size: int  # quantity to measure
    nbytes: float  # quantity to measure
    target: str  # quantity to predict
    # before, after: half of the 90 % interval of the prediction, relative to it, without and with
    # the measurement
    before: float
    after: float


@dataclass(frozen=True)
class Proposal:
    """A measurement that reduces the uncertainty of a prediction."""

    kind: str  # ``"table"`` of a collective, or ``"step"``
    title: str  # quantity to measure
    world_size: int
    sizes: tuple[int, ...]  # of a table [bytes]
    after: float  # half of the prediction's 90 % interval with it, as a share of the prediction


@dataclass(frozen=True)
class WantedStep:
    """The step of a scenario, and measurements that would reduce its uncertainty."""

    target: str  # the scenario, and its ranks
    # half of the 90 % interval from the fitted constants, relative to the prediction
    before: float
    proposals: tuple[Proposal, ...]  # the best table and the best step, the better one first


@dataclass(frozen=True)
class Calibrated:
    """Base of all calibrations."""

    name: str  # of the machine
    constants: tuple[FittedConstant, ...]
    residual: float  # root mean square of the relative errors
    entry: str  # the machine's entry, in YAML
    version: str  # of simdp
    wanted: WantedStep | None = field(default=None, kw_only=True)

    def to_json(self) -> str:
        """Write it as JSON without the entry, which is YAML."""
        plain = asdict(self)
        del plain["entry"]
        return json.dumps({"simdp": plain.pop("version"), **plain}, indent=1) + "\n"

    @property
    def undetermined(self) -> list[str]:
        """Keys of the constants that the data do not determine."""
        return [constant.key for constant in self.constants if not constant.is_determined]


@dataclass(frozen=True)
class CalibrationStudy(Calibrated):
    """A calibration of collectives; constants are sorted by weight, the largest first."""

    points: tuple[FittedPoint, ...]  # by file, collective and size
    next_point: NextPoint  # next measurements


@dataclass(frozen=True)
class FittedStep:
    """A measured step time and the fitted one."""

    title: str  # the scenario, and the point's settings
    measured: float  # times [s]
    fitted: float  # times [s]

    @property
    def error(self) -> float:
        """Fitted over measured time, less one."""
        return self.fitted / self.measured - 1


@dataclass(frozen=True)
class NextStep:
    """The further measurement that reduces the uncertainty of the predictions most."""

    title: str  # one of the predicted points
    # before, after: root mean square, over these points, of half the 90 % interval from the
    # constants, relative to the prediction; without and with it
    before: float
    after: float


@dataclass(frozen=True)
class StepCalibration(Calibrated):
    """A calibration by step times."""

    points: tuple[FittedStep, ...]  # steps that depend on the constants
    next_point: NextStep | None  # None if the scenarios predict nothing


# Tables of measurements ---------------------------------------------------------------------------


@dataclass(frozen=True)
class RowsScenario:
    """A scenario that was made of some rows of a table."""

    file: str  # its name
    text: str = field(repr=False)  # YAML
    model: str
    machine: str
    strategy: str  # its kind
    precision: str  # as in the table; ``full`` without any
    gpus: tuple[int, ...]
    compute: str  # ``data sheet``, or the rows of one GPU
    lines: tuple[int, ...]  # of the table, from 1
    num_points: int
    assumed: str | None  # of a device's nodes; None for a machine


@dataclass(frozen=True)
class LeftOutRow:
    """A row that cannot become a point."""

    line: int  # from 1
    reason: str


@dataclass(frozen=True)
class TableScenarios:
    """Result of ``python -m simdp calibrate rows``."""

    table: str  # the file
    scenarios: tuple[RowsScenario, ...]
    left_out: tuple[LeftOutRow, ...]
    unused_columns: tuple[str, ...]
    assumed: tuple[str, ...]  # defaults of columns that are not there, and of devices

    def to_json(self) -> str:
        """Write the result, without the scenarios' texts, as one JSON document."""
        plain = asdict(self)
        for scenario in plain["scenarios"]:
            del scenario["text"]
        return json.dumps(plain, indent=1) + "\n"
