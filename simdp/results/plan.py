"""Typed results of plan, fits and extrapolate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simdp.errors import ScenarioError
from simdp.files import read_json
from simdp.keys import PLAIN_KEYS, short_key, with_current_keys, written
from simdp.results.result import Inline, as_json

GOALS = {"cheapest": "cost_usd", "fastest": "finish_s", "greenest": "energy_kwh"}
"""Goals of a plan, and the field of an option that each minimises."""

WAYS = ("finish_s", "cost_usd", "peak_memory_bytes")
"""Figures of an option that the front minimises."""


@dataclass(frozen=True)
class Option:
    """One simulated way to train."""

    set: dict[str, Any]  # dotted keys and values, all that differ from the scenario
    step_time_s: float  # of a steady step [s]
    # until the target is reached [s]; without a target, until a million samples are trained
    finish_s: float
    # cost_usd, energy_kwh: of that time; None if prices or power are unknown
    cost_usd: float | None
    energy_kwh: float | None
    peak_memory_bytes: float  # of the fullest rank [bytes]
    # low_s, high_s: the 90 % interval of a step [s]; None for a machine without measurements
    low_s: float | None = None
    high_s: float | None = None
    why: str = ""  # in words: its advantage over the next one, or its place on the front
    # largest part of its step or, if nearly full, ``memory``: ``compute``, ``communication``,
    # ``waiting``, ``other``
    limit: str = ""
    # parts of a steady step [s]: ``compute``, ``update``, ``exposed_comm``, ``wait``, ``other``
    shares: dict[str, float] = field(default_factory=dict)
    # world_size, global_batch: ranks, and samples of all of them in a step
    world_size: int = 1
    global_batch: int = 1
    memory_share: float = 0.0  # of the fullest device's memory
    file: str | None = None  # its scenario, in the plan's folder
    # by constraint, the ratio to the limit if above 1; with `Plan.sure`, of the time, money and
    # energy that are not exceeded with that probability
    misses: dict[str, float] = field(default_factory=dict)
    gpu_hours: float = 0.0  # GPUs times `finish_s` [h]
    # standard error of `finish_s` over `finish_s`, where it is the mean of simulated jobs; else 0
    mean_error: float = 0.0
    # changes to the training other than its time, as ``"global batch: 512 in place of 256"``; empty
    # if equal to the scenario's
    changes_training: list[str] = field(default_factory=list)
    # probability that it meets the given ones of deadline, budget and energy, from the variation of
    # runs and the interval of the step; None without any
    chance_to_meet: float | None = None
    # the same if a step takes exactly `step_time_s`: the share of runs that meet them
    chance_by_luck: float | None = None

    @property
    def label(self) -> str:
        """Its settings, in short: ``"machine: dgx-h100, world_size: 32, fsdp"``."""
        return ", ".join(
            written(value) if key in PLAIN_KEYS else f"{short_key(key)}: {written(value)}"
            for key, value in self.set.items()
        )

    @property
    def finish_interval(self) -> tuple[float, float] | None:
        """The 90 % interval of `finish_s` from that of the step [s]."""
        if self.low_s is None or self.high_s is None or not self.step_time_s:
            return None
        scale = self.finish_s / self.step_time_s
        return scale * self.low_s, scale * self.high_s

    def value(self, way: str) -> float | None:
        """Return one of its figures: a value of `GOALS`, or of `WAYS`."""
        figure: float | None = getattr(self, way)
        return figure


@dataclass(frozen=True)
class InfeasiblePoints:
    """Points of a plan that are infeasible for one reason."""

    reason: str
    count: int
    option: str | None  # of the command or the scenario, that might allow them


@dataclass(frozen=True)
class PlanResult(Inline):
    """Result of ``python -m simdp plan``."""

    version: str
    """Of simdp."""
    scenario: dict[str, Any]
    """As resolved."""
    goal: str
    """A key of `GOALS`."""
    limits: dict[str, float]
    """Limits, in SI units, by constraint: ``deadline`` [s], ``budget`` [USD], ``energy`` [kWh],
    ``memory`` [bytes of a device]."""
    target: str | None
    """Target of `Option.finish_s`, in words; None for a million samples."""
    choices: dict[str, list[Any]]
    """Dotted keys, and the values considered."""
    best: tuple[Option, ...]
    """Of those that meet the limits: the best, and the next alternatives, best first."""
    front: tuple[Option, ...]
    """The Pareto front in time, money and memory of those that meet the limits, the fastest
    first."""
    nearest: Option | None = None
    """If none meets the limits: the one that misses them least."""
    binding: str | None = None
    """The constraint without which there would be a better one, or one at all; see `limits`."""
    order: str = ""
    """Certainty that the best is the best, in words."""
    num_points: int = 0
    """Number of points."""
    num_simulated: int = 0
    """Number of simulated points."""
    pruned: dict[str, int] = field(default_factory=dict)
    """Points not simulated, by reason: ``impossible``, ``memory``, ``deadline``, ``budget``,
    ``energy``, a ``price`` or ``power`` that is needed and not known, ``worse`` than a simulated
    one, or not ``sampled``."""
    infeasible: list[InfeasiblePoints] = field(default_factory=list)
    """Points that are impossible, or miss a limit by their bounds, by reason."""
    sure: float | None = None
    """Probability with which options must meet the limits; None: on average."""
    is_exact: bool = True
    """Whether best and front are proved for all points; else for a sample."""
    notes: tuple[str, ...] = ()
    """Further notes."""

    @property
    def options(self) -> tuple[Option, ...]:
        """All its options, each once: the best, the next ones, the front, or the nearest."""
        options: list[Option] = []
        nearest = () if self.nearest is None else (self.nearest,)
        for option in (*self.best, *self.front, *nearest):
            if all(option.set != other.set for other in options):
                options.append(option)
        return tuple(options)

    def number(self, option: Option) -> int:
        """Return its place among `options`, from 1; also that of its file."""
        return next(n for n, other in enumerate(self.options, 1) if other.set == option.set)

    @property
    def is_order_sure(self) -> bool:
        """Whether the 90 % intervals show that the best is the best."""
        return self.order.startswith("sure") or len(self.best) == 1

    def to_json(self) -> str:
        """Write plan.json; times in seconds, sizes in bytes; the same input, the same bytes."""
        document = asdict(self)
        return as_json({"simdp": document.pop("version"), **document}) + "\n"

    @classmethod
    def load(cls, path: Path) -> PlanResult:
        """Read a plan.json.

        Raises
        ------
        ScenarioError
            If the file is invalid.
        """
        content = read_json(path)
        try:
            return cls.of(with_current_keys(content, advises=False))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ScenarioError(f"{path}: is not a plan.json of simdp.") from None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> PlanResult:
        """Rebuild from the plain data of `to_json`."""
        rest = {**content}
        nearest = rest.pop("nearest")
        return cls(
            version=rest.pop("simdp"),
            best=tuple(Option(**option) for option in rest.pop("best")),
            front=tuple(Option(**option) for option in rest.pop("front")),
            nearest=None if nearest is None else Option(**nearest),
            notes=tuple(rest.pop("notes")),
            infeasible=[InfeasiblePoints(**row) for row in rest.pop("infeasible", ())],
            **rest,
        )


@dataclass(frozen=True)
class FittingRow:
    """One method."""

    # strategy, recompute: method: kinds of ``strategy`` and of ``workload.recompute``
    strategy: str
    recompute: str
    microbatch: int  # samples per rank and micro-step: as many as fit
    # whether the fullest device has enough memory: ``state`` is yes; None if that depends on host
    # memory of an unknown size
    fits: bool | None
    # tensors of the fullest rank, as a run's ``peak_memory_bytes`` [bytes]
    peak_memory_bytes: float
    # step_time_s, tokens_per_s, mfu: of a steady step of one micro-step; None where it does not
    # fit, and where it does not apply
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    # dotted keys of a scenario, in addition to ``workload.microbatch``
    settings: dict[str, Any] = field(default_factory=dict)
    # ``full``: all weights are trained; ``offload``: all, with states in the host's memory;
    # ``lora``: adapters; ``qlora``: adapters of a model in 4 bits
    method: str = "full"
    # ``yes``; ``no``, also for want of host memory; or ``tight``, if it depends on the memory of
    # CUDA, NCCL and fragmentation
    state: str = "yes"
    gpus: int = 1
    precision: str = "full"  # kind of ``workload.precision``, and its 16-bit type
    # memory_low_bytes, memory_high_bytes: bounds of the memory used on the fullest device [bytes]
    memory_low_bytes: float = 0.0
    memory_high_bytes: float = 0.0
    host_memory_bytes: float | None = None  # of a node, for offloaded tensors; None without
    samples_per_s: float | None = None  # of all ranks
    # usd_per_million_tokens, usd_per_million_samples: at the devices' list prices; None without
    usd_per_million_tokens: float | None = None
    usd_per_million_samples: float | None = None
    # low_s, high_s: ends of the step's 90 % interval [s], of the chosen row, or the first; None
    # for unknown hardware
    low_s: float | None = None
    high_s: float | None = None
    chosen: bool = False  # whether ``init`` writes this row


@dataclass(frozen=True)
class Fitting:
    """All methods for one model on one cluster."""

    # model, machine: requested device and machine; the machine of the assumed links, if only a
    # device was given
    model: str
    machine: str
    assumed: str | None  # assumption about the links, in words; None if a machine was given
    gpus: int  # number of ranks; if requested, the least that fits
    memory_bytes: float  # of a device [bytes]
    samples_are: str  # definition of a sample, in words
    # best first: fitting rows by tokens, or samples, per second, all weights before adapters; then
    # the rest by memory
    rows: list[FittingRow] = field(default_factory=list)
    precision: str = "full"  # precision of all rows
    is_least: bool = False  # whether each row is on the fewest ranks that fit
    price_date: str | None = None  # date of the list prices
    host_memory_bytes: float | None = None  # of a node; None if unknown
    # where nothing fits, the longest sample, by halving, with which something does [tokens]
    fitting_length: int | None = None
    # host memory of a node that this takes, if the nodes' is unknown [bytes]; None without
    fitting_host_bytes: float | None = None

    @property
    def chosen(self) -> FittingRow | None:
        """The row that ``init`` writes: the simplest of those that are nearly the fastest."""
        return next((row for row in self.rows if row.chosen), None)

    def to_json(self) -> str:
        """Return one JSON document; the same input, the same bytes."""
        document: dict[str, Any] = asdict(self)
        return as_json(document)


@dataclass(frozen=True)
class RecordedStep:
    """The step that an extrapolation starts from."""

    source: str  # file or folder of the recording
    kind: str  # ``trace``, ``script`` or ``scenario``
    # device of measured compute times; None if they are computed from each device's figures
    device: str | None
    gpus: int  # ranks of the recording
    # step_time_s, throughput_samples_per_s: of all ranks; measured in traces, else simulated
    step_time_s: float
    throughput_samples_per_s: float


@dataclass(frozen=True)
class ExtrapolatedPoint:
    """A machine, a number of GPUs and a strategy; figures are None if it cannot run."""

    machine: str
    gpus: int
    strategy: str
    problem: str | None = None  # why it cannot run
    step_time_s: float | None = None
    # low_s, high_s: the 90 % interval of a step [s]; None where no uncertainty is known
    low_s: float | None = None
    high_s: float | None = None
    throughput_samples_per_s: float | None = None
    tokens_per_s: float | None = None
    # samples per second over the recording's, in total and per GPU
    speedup: float | None = None
    efficiency: float | None = None
    # of the fullest rank, and of a device [bytes]; traces do not contain activations
    peak_memory_bytes: float | None = None
    device_memory_bytes: float | None = None
    # whether that is enough; None for traces, unless weights and states alone are too large
    fits: bool | None = None
    # largest part of the step or, if nearly full, ``memory``: ``compute``, ``communication``,
    # ``waiting``, ``other``
    limit: str | None = None
    # parts of the step [s]: ``compute``, ``update``, ``exposed_comm``, ``wait``, ``other``
    shares: dict[str, float] = field(default_factory=dict)
    scaled: bool = False  # whether compute was measured on another device


@dataclass
class Extrapolation(Inline):
    """Predicted steps of one recording on machines, numbers of GPUs and strategies."""

    version: str  # of simdp
    recording: RecordedStep
    # in the order of machines, strategies and numbers of GPUs
    points: list[ExtrapolatedPoint] = field(default_factory=list)
    # by machine, the number of the point with the most samples per second that fits, from 0
    best: dict[str, int] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)  # assumptions, and points that do not fit

    def to_json(self) -> str:
        """Return one JSON document; the same input, the same bytes."""
        document = {
            "simdp": self.version,
            "recording": asdict(self.recording),
            "points": [asdict(point) for point in self.points],
            "best": self.best,
            "remarks": self.remarks,
        }
        return as_json(document) + "\n"
