"""Typed results of plan and fits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from simdp.errors import ScenarioError
from simdp.files import read_json
from simdp.moved import with_current_keys
from simdp.results.comparison import PLAIN_KEYS, short_key, written
from simdp.results.result import Inline, as_json

GOALS = {"cheapest": "cost_usd", "fastest": "finish_s", "greenest": "energy_kwh"}
"""What a plan may be for, and the field of an option that is least then."""

WAYS = ("finish_s", "cost_usd", "peak_memory_bytes")
"""In which an option of the front is no worse than any other, or better in another one."""


@dataclass(frozen=True)
class Option:
    """One way to train, as it was simulated.

    Attributes
    ----------
    set : dict
        Dotted keys and values, all that differ from the scenario.
    step_time_s : float
        Of a steady step [s].
    finish_s : float
        Until the target is reached [s]; without a target, until a million samples are trained.
    cost_usd, energy_kwh : float or None
        Of that time; None if prices or power are unknown.
    peak_memory_bytes : float
        Of the fullest rank [bytes].
    low_s, high_s : float or None
        The 90 % interval of a step [s]; None for a machine without measurements.
    why : str
        In words: its advantage over the next one, or its place on the front.
    limit : str
        Largest part of its step or, if nearly full, ``memory``: ``compute``, ``communication``,
        ``waiting``, ``other``.
    shares : dict of str to float
        Parts of a steady step [s]: ``compute``, ``update``, ``exposed_comm``, ``wait``, ``other``.
    world_size, global_batch : int
        Ranks, and samples of all of them in a step.
    memory_share : float
        Of the fullest device's memory.
    file : str or None
        Its scenario, in the plan's folder.
    misses : dict of str to float
        By constraint, the ratio to the limit if above 1; with `Plan.sure`, of the time, money and
        energy that are not exceeded with that probability.
    gpu_hours : float
        GPUs times `finish_s` [h].
    mean_error : float
        Standard error of `finish_s` over `finish_s`, where it is the mean of simulated jobs; else
        0.
    changes_training : list of str
        Changes to the training other than its time, as ``"global batch: 512 in place of 256"``;
        empty if equal to the scenario's.
    chance_to_meet : float or None
        The probability that it meets deadline, budget and energy, all that are given: runs differ
        by luck, and the step may be off by its interval. None where none of them is given.
    chance_by_luck : float or None
        The same if a step takes exactly `step_time_s`: the share of runs that meet them.
    """

    set: dict[str, Any]
    step_time_s: float
    finish_s: float
    cost_usd: float | None
    energy_kwh: float | None
    peak_memory_bytes: float
    low_s: float | None = None
    high_s: float | None = None
    why: str = ""
    limit: str = ""
    shares: dict[str, float] = field(default_factory=dict)
    world_size: int = 1
    global_batch: int = 1
    memory_share: float = 0.0
    file: str | None = None
    misses: dict[str, float] = field(default_factory=dict)
    gpu_hours: float = 0.0
    mean_error: float = 0.0
    changes_training: list[str] = field(default_factory=list)
    chance_to_meet: float | None = None
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
        """The 90 % interval of `finish_s`, as far as the step decides it [s]."""
        if self.low_s is None or self.high_s is None or not self.step_time_s:
            return None
        scale = self.finish_s / self.step_time_s
        return scale * self.low_s, scale * self.high_s

    def value(self, way: str) -> float | None:
        """One of its figures: a value of `GOALS`, or of `WAYS`."""
        found: float | None = getattr(self, way)
        return found


@dataclass(frozen=True)
class PlanResult(Inline):
    """Everything that ``python -m simdp plan`` found.

    Attributes
    ----------
    version : str
        Of simdp.
    scenario : dict
        As resolved.
    goal : str
        A key of `GOALS`.
    limits : dict of str to float
        Limits, in SI units, by constraint: ``deadline`` [s], ``budget`` [USD], ``energy`` [kWh],
        ``memory`` [bytes of a device].
    target : str or None
        Target of `Option.finish_s`, in words; None for a million samples.
    choices : dict of str to list
        Dotted keys, and the values that were looked at.
    best : tuple of Option
        Of those that meet the limits: the best, and the next alternatives, best first. Empty where
        none does.
    front : tuple of Option
        Of those that meet the limits all that no other one is better than in time, money and
        memory at once, the fastest first.
    nearest : Option or None
        Where none meets the limits: the one that misses them least.
    binding : str or None
        The constraint without which there would be a better one, or one at all; see `limits`.
    order : str
        How sure it is that the best is the best, in words.
    num_points, num_simulated : int
        How many there are, and how many of them were simulated.
    pruned : dict of str to int
        Why the others were not: ``impossible``, ``memory``, ``deadline``, ``budget``, ``energy``,
        ``worse`` than one that was simulated, or not ``sampled``.
    infeasible : list of dict
        Why points cannot be chosen: ``reason``, how many (``count``), and the ``option`` of the
        command or the scenario with which they might be; it may be None. All that are impossible,
        or miss a limit by their bounds.
    sure : float or None
        With which probability options must meet the limits; None: in the mean.
    is_exact : bool
        Whether best and front are proved to be those of all points; else a sample was looked at.
    notes : tuple of str
        Further notes.
    """

    version: str
    scenario: dict[str, Any]
    goal: str
    limits: dict[str, float]
    target: str | None
    choices: dict[str, list[Any]]
    best: tuple[Option, ...]
    front: tuple[Option, ...]
    nearest: Option | None = None
    binding: str | None = None
    order: str = ""
    num_points: int = 0
    num_simulated: int = 0
    pruned: dict[str, int] = field(default_factory=dict)
    infeasible: list[dict[str, Any]] = field(default_factory=list)
    sure: float | None = None
    is_exact: bool = True
    notes: tuple[str, ...] = ()

    @property
    def options(self) -> tuple[Option, ...]:
        """All its options, each once: the best, the next ones, the front, or the nearest."""
        found: list[Option] = []
        nearest = () if self.nearest is None else (self.nearest,)
        for option in (*self.best, *self.front, *nearest):
            if all(option.set != other.set for other in found):
                found.append(option)
        return tuple(found)

    def number(self, option: Option) -> int:
        """Its place among `options`, from 1; also that of its file."""
        return next(n for n, one in enumerate(self.options, 1) if one.set == option.set)

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
            If the file is none.
        """
        content = read_json(path)
        try:
            return cls.of(with_current_keys(content, advises=False))
        except (KeyError, TypeError, AttributeError, ValueError):
            raise ScenarioError([f"{path}: is not a plan.json of simdp."]) from None

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> PlanResult:
        """Rebuild from the output of `to_json`, read as plain data."""
        rest = {**content}
        nearest = rest.pop("nearest")
        return cls(
            version=rest.pop("simdp"),
            best=tuple(Option(**one) for one in rest.pop("best")),
            front=tuple(Option(**one) for one in rest.pop("front")),
            nearest=None if nearest is None else Option(**nearest),
            notes=tuple(rest.pop("notes")),
            **rest,
        )


@dataclass(frozen=True)
class FittingRow:
    """One method.

    Attributes
    ----------
    strategy, recompute : str
        Method: kinds of ``strategy`` and of ``workload.recompute``.
    microbatch : int
        Samples per rank and micro-step: as many as fit.
    fits : bool
        Whether the fullest device surely has room: ``state`` is yes.
    peak_memory_bytes : float
        Tensors of the fullest rank, as a run's ``peak_memory_bytes`` [bytes].
    step_time_s, tokens_per_s, mfu : float or None
        Of a steady step of one micro-step; None where it does not fit, and where it does not apply.
    settings : dict of str to value
        Dotted keys of a scenario, in addition to ``workload.microbatch``.
    method : str
        ``full``: all weights are trained; ``offload``: all, with states in the host's memory;
        ``lora``: adapters; ``qlora``: adapters of a model in 4 bits.
    state : str
        ``yes``; ``no``; or ``tight``, if it depends on the memory of CUDA, NCCL and fragmentation.
    gpus : int
        Number of ranks.
    precision : str
        Kind of ``workload.precision``, and its 16-bit type.
    memory_low_bytes, memory_high_bytes : float
        The least and the most that is taken of the fullest device, tensors and all else [bytes].
    samples_per_s : float or None
        Of all ranks.
    usd_per_million_tokens, usd_per_million_samples : float or None
        At the devices' list prices; None where there is none.
    low_s, high_s : float or None
        Ends of the step's 90 % interval [s], of the row that is chosen, or the first; None where
        nothing is known of the hardware.
    chosen : bool
        Whether ``init`` writes this one.
    """

    strategy: str
    recompute: str
    microbatch: int
    fits: bool
    peak_memory_bytes: float
    step_time_s: float | None = None
    tokens_per_s: float | None = None
    mfu: float | None = None
    settings: dict[str, Any] = field(default_factory=dict)
    method: str = "full"
    state: str = "yes"
    gpus: int = 1
    precision: str = "full"
    memory_low_bytes: float = 0.0
    memory_high_bytes: float = 0.0
    samples_per_s: float | None = None
    usd_per_million_tokens: float | None = None
    usd_per_million_samples: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    chosen: bool = False


@dataclass(frozen=True)
class Fitting:
    """All methods for one model on one cluster.

    Attributes
    ----------
    model, machine : str
        Requested device and machine; the machine of the assumed links, if only a device was given.
    assumed : str or None
        Assumption about the links, in words; None if a machine was given.
    gpus : int
        Number of ranks; if requested, the least that fits.
    memory_bytes : float
        Of a device [bytes].
    samples_are : str
        Definition of a sample, in words.
    rows : list of FittingRow
        Best first: fitting rows by tokens, or samples, per second, all weights before adapters;
        then the rest by memory.
    precision : str
        That all rows train in.
    is_least : bool
        Whether each row is on the least number of ranks that it fits on.
    price_date : str or None
        When devices had their list price.
    """

    model: str
    machine: str
    assumed: str | None
    gpus: int
    memory_bytes: float
    samples_are: str
    rows: list[FittingRow] = field(default_factory=list)
    precision: str = "full"
    is_least: bool = False
    price_date: str | None = None

    @property
    def chosen(self) -> FittingRow | None:
        """The row that ``init`` writes: the simplest of those that are nearly the fastest."""
        return next((row for row in self.rows if row.chosen), None)

    def to_json(self) -> str:
        """One JSON document; the same input, the same bytes."""
        document: dict[str, Any] = asdict(self)
        return as_json(document)
