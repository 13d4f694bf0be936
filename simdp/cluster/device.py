"""Devices: peak rates, memory, power, host overheads.

Every figure is 0 unless it is given, and then costs nothing. Machines of the catalogue bring
calibrated ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, field_validator, model_validator

from simdp.cluster.link import AnyLink
from simdp.files import Catalogue
from simdp.results.metrics import Rates
from simdp.spec import (
    Bandwidth,
    Bool,
    Float,
    FlopRate,
    Flops,
    PositiveBytes,
    Price,
    Seconds,
    Spec,
    form_of,
    from_catalogue,
    problem,
)
from simdp.spec import Power as Watts

# Power --------------------------------------------------------------------------------------------

WAITING_SHARE, WAITING_SHARES = 0.26, (0.13, 0.39)
"""How far from rest to busy the power of a device is that waits in a collective, where nobody says,
and between which shares it may be. The least is one H100's whose all-gather never ended: 152 W, of
70 at rest and 700 (NVIDIA/nccl, 1550). Whole runs of eight nodes draw more: MLPerf's ResNet-50 at
least 23 % by AC meters and 28 % by DC ones, if a GPU computes for an eighth of one node's time."""

LEVELS = ("rest", "waiting", "busy")


class Power(Spec):
    """Power of devices and their nodes; missing values come from the catalogue.

    Attributes
    ----------
    rest : float or None
        Of a device that has nothing to do [W].
    waiting : float or None
        While its collective waits for others or for the network [W]: its kernel spins. Default: 26
        % of the way from idle to busy; results also state the energy at 13 and 39 %.
    busy : float or None
        Of one that computes [W].
    node : float or None
        Power of a node in addition to its devices [W].
    """

    rest: Watts | None = None
    waiting: Watts | None = None
    busy: Watts | None = None
    node: Watts | None = None

    @model_validator(mode="after")
    def _rises(self) -> Power:
        given = [(key, getattr(self, key)) for key in LEVELS if getattr(self, key) is not None]
        for (low, less), (high, more) in pairwise(given):
            if less > more:
                raise problem(
                    f"{low} is {less:g} W and {high} {more:g} W; a device draws least at rest and "
                    "most when it is busy."
                )
        return self

    def over(self, other: Power | None) -> Power:
        """Merge with defaults from another one."""
        if other is None:
            return self
        own = {key: value for key, value in self if value is not None}
        return other.model_copy(update=own)

    def settled(self) -> Power:
        """It, with the power of waiting that follows from the others."""
        if self.waiting is not None or self.rest is None or self.busy is None:
            return self
        return self.model_copy(update={"waiting": self._on_the_way(WAITING_SHARE)})

    def waiting_between(self) -> tuple[float, float] | None:
        """The least and the most that waiting may draw [W]; None where nothing is known."""
        if self.waiting is not None:
            return self.waiting, self.waiting
        if self.rest is None or self.busy is None:
            return None
        low, high = map(self._on_the_way, WAITING_SHARES)
        return low, high

    def _on_the_way(self, share: float) -> float:
        """A share of the way from rest to busy [W]."""
        assert self.rest is not None
        assert self.busy is not None
        return self.rest + share * (self.busy - self.rest)


class ListPrice(Spec):
    """List price of a device, with source and date.

    Attributes
    ----------
    amount : float
        Of one device [USD/s].
    date : str
        When that was so, for prices fall: ``"2026-05"``.
    """

    amount: Price
    date: str


def rates_of(
    powers: Sequence[tuple[Power | None, float]],
    prices: Sequence[tuple[float | None, float]],
    num_nodes: int,
) -> Rates:
    """Add up power and price of all devices.

    Parameters
    ----------
    powers, prices : sequence of (Power or None, float), of (float or None, float)
        Power of each kind of device, its price [USD/s], and the number of devices.
    num_nodes : int
        Number of nodes; each draws the power of the most demanding entry among its devices.
    """
    drawn = [((power or Power()).settled(), count) for power, count in powers]
    sums = {key: _sum([(getattr(power, key), count) for power, count in drawn]) for key in LEVELS}
    ends = [
        ((power or Power()).waiting_between() or (None, None), count) for power, count in powers
    ]
    low, high = (_sum([(end[side], count) for end, count in ends]) for side in (0, 1))
    between = None if low is None or high is None or low == high else (low, high)
    node = max((power.node or 0.0 for power, _ in drawn), default=0.0)
    return Rates(_sum(prices), node=node * num_nodes, waiting_between=between, **sums)


def _sum(values: Sequence[tuple[float | None, float]]) -> float | None:
    """Sum of values times counts; None where one is not known."""
    known = [value * count for value, count in values if value is not None]
    return sum(known) if len(known) == len(values) else None


# Device -------------------------------------------------------------------------------------------

DEVICES = Catalogue(Path(__file__).parent / "devices")

DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16")

Fraction = Annotated[Float, Field(gt=0, le=1)]


class Device(Spec):
    """One accelerator.

    Attributes
    ----------
    name : str or None
        Name; a catalogue entry's own.
    peak : dict of str to float
        Dense peak rate by dtype [FLOP/s].
    memory : float
        Capacity [bytes].
    memory_bandwidth : float
        Of the device's own memory [bytes/s].
    efficiency : float or dict of str to float
        Fraction of the peak FLOP/s that real layers reach, in (0, 1]; one for all, or by dtype.
    flash_efficiency : float or None
        The same of fused attention (``workload.attention: flash``), over the work that a causal
        mask leaves; None is as for all others.
    memory_efficiency : float
        Fraction of the memory bandwidth that kernels reach, in (0, 1].
    half_work : float
        Work at which a product (of matrices, a convolution, attention) reaches half of that, since
        it fills the device for a part of its time only [FLOP]: Hockney's n_1/2. 0, unless it is
        given: products of any size reach all.
    launch : float
        Time to launch one kernel [s]; charged once per kernel.
    peer_to_peer : bool
        Whether such devices can access each other over PCIe. GeForce cards cannot: without
        measurements, their collectives get less of PCIe (``python -m simdp list constants``).
    price : ListPrice or None
        Price per hour, with its date; None if unknown. A scenario's own ``cluster.price`` has
        precedence.
    power : Power or None
        Power of it, and of a node apart from its devices; as far as known.

    References
    ----------
    Hockney and Jesshope, "Parallel Computers", Adam Hilger, 1981: r_inf and n_1/2.
    """

    name: str | None = None
    peak: dict[str, FlopRate] = Field(
        json_schema_extra={"propertyNames": {"enum": list(DTYPES)}, "minProperties": 1}
    )
    memory: PositiveBytes
    memory_bandwidth: Bandwidth
    efficiency: Fraction | dict[str, Fraction] = 0.5
    flash_efficiency: Fraction | None = None
    memory_efficiency: Fraction = 1.0
    half_work: Flops = 0.0
    launch: Seconds = 5e-6
    peer_to_peer: Bool = True
    price: ListPrice | None = None
    power: Power | None = None

    @field_validator("peak")
    @classmethod
    def _known_dtypes(cls, peak: dict[str, float]) -> dict[str, float]:
        wrong = [dtype for dtype in peak if dtype not in DTYPES]
        if wrong or not peak:
            given = ", ".join(map(repr, wrong)) or "nothing"
            raise problem(f"{given} is no dtype with a peak; known: {', '.join(DTYPES)}.")
        return peak

    @field_validator("efficiency", mode="wrap")
    @classmethod
    def _one_or_by_dtype(cls, value: Any, handler: Any) -> Any:
        """Choose the form by the value, so that an error speaks of the form that was written."""
        by_dtype = isinstance(value, dict)
        return form_of(dict[str, Fraction] if by_dtype else Fraction).validate_python(value)

    @model_validator(mode="after")
    def _each_peak_has_an_efficiency(self) -> Device:
        if isinstance(self.efficiency, dict) and set(self.efficiency) != set(self.peak):
            raise problem(
                f"efficiency is given for {', '.join(self.efficiency) or 'nothing'}, but there are "
                f"peaks for {', '.join(self.peak)}; give one for each of these, or one for all."
            )
        return self

    def rate(self, dtype: str, fused: bool = False) -> float:
        """Arithmetic that real layers, or fused attention, reach in a dtype [FLOP/s]."""
        found = self.efficiency
        if fused and self.flash_efficiency is not None:
            found = self.flash_efficiency
        return self.peak[dtype] * (found[dtype] if isinstance(found, dict) else found)

    @property
    def memory_rate(self) -> float:
        """Memory traffic that kernels reach [bytes/s]."""
        return self.memory_bandwidth * self.memory_efficiency

    def slice(self, k: int) -> Device:
        """Share of one of k ranks that use a device in turn: 1/k of its speed.

        Its memory and launches are whole: ranks have hosts of their own.
        """
        peak = {dtype: rate / k for dtype, rate in self.peak.items()}
        return self.model_copy(update={"peak": peak, "memory_bandwidth": self.memory_bandwidth / k})


AnyDevice = Annotated[Device, from_catalogue("device", DEVICES.names, DEVICES.figures)]


def describe(name: str) -> str:
    """One line about a catalogue device, for ``python -m simdp list``."""
    entry: dict[str, Any] = dict(DEVICES.read(name))
    peak = entry["peak"]["float32"]
    return f"{peak} float32, {entry['memory']} at {entry['memory_bandwidth']}"


# Host ---------------------------------------------------------------------------------------------


class HostMemory(Spec):
    """The memory of a node's processors, and how devices reach it.

    Attributes
    ----------
    link : Link
        Between each device and it, in both directions at once.
    memory_bandwidth : float
        Of a node, which its ranks share [bytes/s]. The default is that of one socket with eight
        channels of DDR4-3200, 8 x 25.6 GB/s (AMD EPYC 7003 series, data sheet).
    """

    link: AnyLink = Field("pcie4-x16", validate_default=True)
    memory_bandwidth: Bandwidth = 204.8e9

    def copying(self, nbytes: float) -> float:
        """Time to copy between a device and it [s]."""
        return self.link.alpha + nbytes / self.link.bandwidth if nbytes else 0.0


# Overheads ----------------------------------------------------------------------------------------


class Overheads(Spec):
    """Costs of hooks, launches and messages, and interference of compute and communication.

    Attributes
    ----------
    hook : float
        Time on the compute stream per gradient that is taken into a bucket [s]: DDP's hook, and
        the launch of the copy.
    launch : float
        Time on the compute stream per collective that is started [s].
    message : float
        Time on the communication stream per collective, before it begins [s]: the host that
        hands it over.
    message_per_rank : float
        The same for each rank of the world [s]: for a coordinator that receives from all ranks, as
        in Horovod.
    compute_slowdown : float
        The part by which compute takes longer while a collective is under way: its kernels hold
        multiprocessors and memory bandwidth. About 0.6 on V100 with NVLink: torch's DDP benchmark
        (pytorch benchmarks/distributed/ddp/README.md) finds steps 3 to 4 % longer, all of which
        comes from the few milliseconds for which collectives run. Without NVLink, where copies
        leave no room for kernels, up to 10: one after the other.
    collective_slowdown : float
        The part by which a collective takes longer while compute is under way.
    copies : bool
        Charge the copies of gradients into buckets and back, at the memory's bandwidth, where the
        strategy does not say.
    """

    hook: Seconds = 0.0
    launch: Seconds = 0.0
    message: Seconds = 0.0
    message_per_rank: Seconds = 0.0
    compute_slowdown: Float = Field(0.0, ge=0, le=10)
    collective_slowdown: Float = Field(0.0, ge=0, le=10)
    copies: Bool = False

    def before_collective(self, world_size: int) -> float:
        """Time that a collective keeps the communication stream before it begins [s].

        Parameters
        ----------
        world_size : int
            Number of ranks that take part.
        """
        return self.message + self.message_per_rank * world_size
