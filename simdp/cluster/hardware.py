"""Devices, links, and whole machines with the measured costs of their software."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import pairwise
from math import ceil
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from simdp.errors import ScenarioError, close_names, unknown_name
from simdp.files import Catalogue, read_yaml
from simdp.results.metrics import Rates
from simdp.spec import (
    Bandwidth,
    Bool,
    Float,
    FlopRate,
    Flops,
    Int,
    Percent,
    PositiveBytes,
    Price,
    Seconds,
    Spec,
    form_of,
    from_catalogue,
    problem,
    problems,
)
from simdp.spec import Power as Watts

WAITING_SHARE, WAITING_SHARES = 0.26, (0.13, 0.39)
"""Default power of a waiting device, and its bounds, as a fraction of the range from idle to busy.
The least is one H100's whose all-gather never ended: 152 W, of 70 at rest and 700 (NVIDIA/nccl,
1550). Whole runs of eight nodes draw more: MLPerf's ResNet-50 at least 23 % by AC meters and 28 %
by DC ones, if a GPU computes for an eighth of one node's time."""

LEVELS = ("rest", "waiting", "busy")


class Power(Spec):
    """Power of devices and their nodes; missing values come from the catalogue."""

    rest: Watts | None = None
    """Of an idle device [W]."""
    waiting: Watts | None = None
    """While its collective waits for others or for the network [W]: its kernel spins. Default: 26 %
    of the way from idle to busy; results also state the energy at 13 and 39 %."""
    busy: Watts | None = None
    """Of a computing device [W]."""
    node: Watts | None = None
    """Power of a node in addition to its devices [W]."""

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
        return other.model_copy(update={key: value for key, value in self if value is not None})

    def settled(self) -> Power:
        """Return it with the power of waiting derived from the others."""
        if self.waiting is not None or self.rest is None or self.busy is None:
            return self
        return self.model_copy(update={"waiting": self._on_the_way(WAITING_SHARE)})

    def waiting_between(self) -> tuple[float, float] | None:
        """Return bounds of the waiting power [W]; None if unknown."""
        if self.waiting is not None:
            return self.waiting, self.waiting
        if self.rest is None or self.busy is None:
            return None
        low, high = map(self._on_the_way, WAITING_SHARES)
        return low, high

    def _on_the_way(self, share: float) -> float:
        """Return the power at a fraction of the range from rest to busy [W]."""
        assert self.rest is not None
        assert self.busy is not None
        return self.rest + share * (self.busy - self.rest)


class ListPrice(Spec):
    """List price of a device, with source and date."""

    amount: Price
    """Of one device [USD/s]."""
    date: str
    """Date of the price: ``"2026-05"``."""


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
    """Return the sum of values times counts; None if one is unknown."""
    known = [value * count for value, count in values if value is not None]
    return sum(known) if len(known) == len(values) else None


DEVICES = Catalogue(Path(__file__).parent / "devices")

DTYPES = ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8")
"""Kinds of arithmetic with a peak: dtypes, TF32 products of float32, and 8-bit products."""

TENSOR_CORES = ("tfloat32", "float16", "bfloat16", "float8")
"""Kinds of arithmetic whose peaks are those of tensor cores."""

ACCELERATES = {"tfloat32": "float32"}
"""Arithmetic that takes the place of a dtype's where a device has it."""

Fraction = Annotated[Float, Field(gt=0, le=1)]


class FlashEfficiency(Spec):
    """Fractions of the peak that fused attention reaches, by pass."""

    forward: Fraction
    """In (0, 1]."""
    backward: Fraction
    """In (0, 1]."""


class Device(Spec):
    """One accelerator.

    References
    ----------
    Hockney and Jesshope, "Parallel Computers", Adam Hilger, 1981: r_inf and n_1/2.
    """

    name: str | None = None
    """Name; that of a catalogue entry."""
    peak: dict[str, FlopRate] = Field(
        json_schema_extra={"propertyNames": {"enum": list(DTYPES)}, "minProperties": 1}
    )
    """Dense peak rate by dtype [FLOP/s]."""
    memory: PositiveBytes
    """Capacity [bytes]."""
    memory_bandwidth: Bandwidth
    """Of the device's memory [bytes/s]."""
    efficiency: Fraction | dict[str, Fraction] = 0.5
    """Fraction of the peak FLOP/s that real layers reach, in (0, 1]; one for all, or by dtype."""
    flash_efficiency: Fraction | FlashEfficiency | None = None
    """The same for fused attention (``workload.attention: flash``), over the work left by a causal
    mask; one for both passes, or ``{forward: 0.48, backward: 0.27}``. None is ``efficiency``."""
    memory_efficiency: Fraction = 1.0
    """Fraction of the memory bandwidth that the kernels of layers reach, in (0, 1]."""
    stream_efficiency: Fraction | None = None
    """The same for the kernels of an update, which stream through lists of tensors. None is
    ``memory_efficiency``."""
    half_work: Flops = 0.0
    """Work at which a product (of matrices, a convolution, attention) reaches half of the
    efficiency, since small products do not fill the device [FLOP]: Hockney's n_1/2. Default 0:
    products of any size reach all."""
    misaligned_efficiency: Fraction = 1.0
    """Fraction of ``efficiency`` that products of matrices reach on tensor cores if a row is no
    multiple of 16 bytes, as with a vocabulary of 50,257."""
    launch: Seconds = 5e-6
    """Time to launch one kernel [s]; charged once per kernel."""
    multiprocessors: Int = Field(108, ge=2, le=10_000)
    """Streaming multiprocessors or compute units. The default is an A100's; V100 to B200 have 80 to
    148."""
    capability: Annotated[str, Field(pattern=r"^\d+\.\d$")] = "8.0"
    """Compute capability, by which scripts choose what to use. The default is an A100's."""
    peer_to_peer: Bool = True
    """Whether such devices can access each other over PCIe. GeForce cards cannot: without
    measurements, their collectives get less of PCIe (``python -m simdp list constants``)."""
    price: ListPrice | None = None
    """Price per hour, with its date; None if unknown. ``cluster.price`` of a scenario has
    precedence."""
    power: Power | None = None
    """Known power of it, and of a node without its devices."""

    @field_validator("peak")
    @classmethod
    def _known_dtypes(cls, peak: dict[str, float]) -> dict[str, float]:
        wrong = [dtype for dtype in peak if dtype not in DTYPES]
        if wrong or not peak:
            given = ", ".join(map(repr, wrong)) or "nothing"
            lead = f"{given} is not a dtype with a peak"
            raise problem(unknown_name("dtype", "".join(wrong[:1]), list(DTYPES), lead=lead))
        return peak

    @field_validator("efficiency", mode="wrap")
    @classmethod
    def _one_or_by_dtype(cls, value: object, handler: object) -> Any:
        """Choose the form by the value, so that an error refers to the written form."""
        by_dtype = isinstance(value, dict)
        return form_of(dict[str, Fraction] if by_dtype else Fraction).validate_python(value)

    @field_validator("flash_efficiency", mode="wrap")
    @classmethod
    def _one_or_by_pass(cls, value: object, handler: object) -> Any:
        by_pass = isinstance(value, dict | FlashEfficiency)
        return form_of(FlashEfficiency if by_pass else Fraction | None).validate_python(value)

    @model_validator(mode="after")
    def _each_peak_has_an_efficiency(self) -> Device:
        if isinstance(self.efficiency, dict) and set(self.efficiency) != set(self.peak):
            raise problem(
                f"efficiency is given for {', '.join(self.efficiency) or 'nothing'}, but there are "
                f"peaks for {', '.join(self.peak)}; give one for each of these, or one for all."
            )
        return self

    def rate(self, dtype: str, fused: str = "") -> float:
        """Return the arithmetic that real layers reach in a dtype [FLOP/s].

        ``fused``, ``"forward"`` or ``"backward"``, is the pass of a fused attention.
        """
        if dtype in ACCELERATES and dtype not in self.peak:
            dtype = ACCELERATES[dtype]
        efficiency, flash = self.efficiency, self.flash_efficiency
        if fused and flash is not None:
            efficiency = getattr(flash, fused) if isinstance(flash, FlashEfficiency) else flash
        return self.peak[dtype] * (
            efficiency[dtype] if isinstance(efficiency, dict) else efficiency
        )

    @property
    def memory_rate(self) -> float:
        """Memory traffic that the kernels of layers reach [bytes/s]."""
        return self.memory_bandwidth * self.memory_efficiency

    @property
    def stream_rate(self) -> float:
        """Memory traffic that updates reach [bytes/s]."""
        return self.memory_bandwidth * (self.stream_efficiency or self.memory_efficiency)

    def slice(self, k: int) -> Device:
        """Return the share of one of k ranks on a device: 1/k of its speed.

        Its memory and launches are whole, since ranks have separate hosts.
        """
        peak = {dtype: rate / k for dtype, rate in self.peak.items()}
        return self.model_copy(update={"peak": peak, "memory_bandwidth": self.memory_bandwidth / k})


VENDORS = ("nvidia", "tesla", "geforce", "amd", "instinct")
"""Words that drivers add to a device's name, some in some versions only."""


def catalogue_device(name: str | None) -> str | None:
    """Find a device of the catalogue by its name or by a driver's.

    Parameters
    ----------
    name : str or None
        A name of ``python -m simdp list devices``, or one as in a profiler trace, ``nvidia-smi``
        and ``torch.cuda.get_device_name()``: ``"NVIDIA A100-SXM4-80GB"``. Case, punctuation and the
        vendor's name make no difference.

    Returns
    -------
    str or None
        Its name in the catalogue; None without a name, and for every other device: another board
        or memory size, a laptop's, or a part of a device (MIG).
    """
    if not name or name in DEVICES.names():
        return name or None
    return _devices_by_name().get("".join(_words(name)))


def driver_name(device: str) -> str | None:
    """Name a catalogue device as its driver does; None for other devices."""
    return str(DEVICES.read(device)["driver_names"][0]) if device in DEVICES.names() else None


def device_option(name: str | None) -> str | None:
    """Return the catalogue's name of the device given as ``--device``.

    Raises
    ------
    ScenarioError
        If it is not in the catalogue.
    """
    device_name = catalogue_device(name)
    if name is not None and device_name is None:
        raise ScenarioError([f"--device: {_unknown_device(name)}"])
    return device_name


def close_devices(name: str) -> list[str]:
    """Find devices of the catalogue of the same or a similar model: of a 3090 Ti, the 3090."""
    same, known, plain = catalogue_device(name), DEVICES.names(), "".join(_words(name))
    if same is not None:
        return [same]
    models = {device: re.sub(r"-(sxm\d|pcie)|-\d+gb$|-", "", device) for device in known}
    close = [device for device in known if re.match(rf"{models[device]}(?!\d)", plain)]
    return close or close_names(plain, known)


def _unknown_device(name: str) -> str:
    return unknown_name("device", name, DEVICES.names(), close_devices(name))


@cache
def _devices_by_name() -> dict[str, str]:
    """Catalogue names by every spelling of them and of drivers' names."""
    return {
        "".join(_words(spelling)): device
        for device in DEVICES.names()
        for spelling in (device, *DEVICES.read(device)["driver_names"])
    }


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in VENDORS]


AnyDevice = Annotated[
    Device, from_catalogue("device", DEVICES.names, DEVICES.figures, _unknown_device)
]


def describe_device(name: str) -> str:
    """Describe a catalogue device in one line, for ``python -m simdp list``."""
    entry: dict[str, Any] = dict(DEVICES.read(name))
    peak = entry["peak"]["float32"]
    return f"{peak} float32, {entry['memory']} at {entry['memory_bandwidth']}"


class HostMemory(Spec):
    """The memory of a node's processors, and the links of devices to it."""

    link: AnyLink = Field("pcie4-x16", validate_default=True)
    """Between each device and it, in both directions at once."""
    memory_bandwidth: Bandwidth = 204.8e9
    """Of a node, shared by its ranks [bytes/s]. The default is that of one socket with eight
    channels of DDR4-3200, 8 x 25.6 GB/s (AMD EPYC 7003 series, data sheet)."""

    def copying(self, nbytes: float) -> float:
        """Return the time to copy between a device and it [s]."""
        return self.link.alpha + nbytes / self.link.bandwidth if nbytes else 0.0


LARGE_BUFFER = 2.0**30
"""A buffer that reaches the full bus bandwidth of a collective [bytes]."""

MIN_CHANNELS, MAX_CHANNELS = 2, 32
"""Channels of NCCL's communicators: two where there is only a network card or PCIe; at most 32."""


class Contention(Spec):
    """What the kernel of a collective takes from compute: multiprocessors, and memory traffic.

    While a collective runs, compute takes ``1 + held / (all - held) + traffic`` times as long. The
    kernel holds a multiprocessor for each channel, as long as it lasts: as many channels as the
    largest buffers' bus bandwidth fills. Its ``traffic`` is the share of the memory bandwidth that
    the bytes take which it moves on average.

    Notes
    -----
    Measured with blocks of NCCL's size on an H200 of 132 multiprocessors
    (records/h200-1gpu/contention.yaml). Beside 4, 8, 16 and 32 that only wait, fused attention
    takes 1.03, 1.05, 1.12 and 1.28 times as long, by the formula 1.03, 1.06, 1.14 and 1.32; whole
    steps of GPT-2 1.08, 1.11, 1.19 and 1.31, since tiles of products come in waves. 450 GB/s of its
    3.9 TB/s lengthen elementwise kernels by 11 to 13 %, steps by 6 to 12 %.
    """

    accesses: Float = Field(3.0, ge=0, le=100)
    """Bytes of a device's memory that are read and written per byte of bus bandwidth: a step of a
    ring reads its own data and what has arrived, while the next data arrives."""
    channel: Bandwidth = 12e9
    """Bus bandwidth of a channel [bytes/s]: DGX-1 has 12 channels for 132 GB/s, DGX A100 24 for
    240, a card of 100 Gbit/s two. (Those of a graph search are doubled at connect time: NCCL 2.x,
    src/graph/connect.cc.)"""

    def slowdown(self, device: Device, bandwidth: float, full: float) -> float:
        """Return the relative increase of compute time on a device beside a collective.

        Parameters
        ----------
        device : Device
            Whose compute it slows down.
        bandwidth, full : float
            Bus bandwidth of the collective, and that of a large buffer [bytes/s].
        """
        channels = min(max(ceil(full / self.channel), MIN_CHANNELS), MAX_CHANNELS)
        held = min(channels, device.multiprocessors - 1)
        traffic = self.accesses * bandwidth / device.memory_bandwidth
        return held / (device.multiprocessors - held) + traffic


Slowdown = Annotated[Float, Field(ge=0, le=10)]


class Overheads(Spec):
    """Costs of hooks, launches and messages, and interference of compute and communication."""

    hook: Seconds = 0.0
    """Time on the compute stream per gradient copied into a bucket [s]: DDP's hook, and the launch
    of the copy."""
    launch: Seconds = 0.0
    """Time on the compute stream per started collective [s]."""
    message: Seconds = 0.0
    """Time of the host on the communication stream per collective, before it begins [s]."""
    message_per_rank: Seconds = 0.0
    """The same for each rank of the world [s]: for a coordinator that receives from all ranks, as
    in Horovod."""
    compute_slowdown: Slowdown | Contention = 0.0
    """Relative increase of compute time during a collective, whose kernels use multiprocessors and
    memory bandwidth: one for all collectives, or `Contention`, by what each of them takes. About
    0.6 on V100 with NVLink: torch's DDP benchmark (pytorch benchmarks/distributed/ddp/README.md)
    finds steps 3 to 4 % longer, all within the few milliseconds of collectives; `Contention` gives
    0.6 there with eight GPUs. Without NVLink, where copies leave no room for kernels, up to 10: one
    after the other."""
    collective_slowdown: Float = Field(0.0, ge=0, le=10)
    """Relative increase of a collective's time during compute."""
    copies: Bool = False
    """Charge the copies of gradients into buckets and back, at memory bandwidth, unless the
    strategy sets it."""

    @field_validator("compute_slowdown", mode="wrap")
    @classmethod
    def _one_or_by_contention(cls, value: object, handler: object) -> Any:
        by_contention = isinstance(value, dict | Contention)
        return form_of(Contention if by_contention else Slowdown).validate_python(value)

    def before_collective(self, world_size: int) -> float:
        """Return the time before a collective of ``world_size`` ranks on its stream [s]."""
        return self.message + self.message_per_rank * world_size


LINKS = Catalogue(Path(__file__).parent / "links")


FASTEST_PCIE = 64e9
"""Above the bandwidth of PCIe 5.0 x16 in one direction [bytes/s]."""

LATENCY_OF_SOCKETS = 25e-6
"""Between a hop over RDMA, 14 us in NCCL's model, and one through the kernel, 30 us [s]."""


class Link(Spec):
    """One direction of a link."""

    name: str | None = None
    """Name; that of a catalogue entry."""
    alpha: Seconds
    """Latency of a transfer [s]."""
    bandwidth: Bandwidth
    """In one direction [bytes/s]; the inverse of beta."""
    transport: Literal["nvlink", "pcie", "rdma", "libfabric", "tcp"] | None = None
    """Transport in collectives, which determines their share of the link without measurements
    (``python -m simdp list constants``). None: derived from its figures, see `carries`."""

    def carries(self, between_nodes: bool) -> str:
        """Return its transport in collectives, by default derived from its figures."""
        if self.transport is not None:
            return self.transport
        if between_nodes:
            return "tcp" if self.alpha >= LATENCY_OF_SOCKETS else "rdma"
        return "nvlink" if self.bandwidth > FASTEST_PCIE else "pcie"


AnyLink = Annotated[Link, from_catalogue("link", LINKS.names, LINKS.figures)]


def describe_link(name: str) -> str:
    """Describe a catalogue link in one line, for ``python -m simdp list``."""
    entry = LINKS.read(name)
    return f"{entry['bandwidth']}, {entry['alpha']} per message"


# One or list --------------------------------------------------------------------------------------


def one_or_list(member: object, value: object, info: ValidationInfo, optional: bool = False) -> Any:
    """Validate one value or a list by the written form, so that an error refers to that form.

    ``member`` is the type of one value; ``optional`` allows None.
    """
    if value is None and optional:
        return None
    return _adapter(member, isinstance(value, list)).validate_python(value, context=info.context)


@cache
def _adapter(member: Any, listed: bool) -> TypeAdapter[Any]:
    return TypeAdapter(list[member] if listed else member)


MACHINES = Catalogue(Path(__file__).parent / "machines")

OLD_NAMES = {"lambda-a100-sxm4": "lambda-a100-sxm4-vm"}
"""Earlier names of machines, which still load."""

SUFFIX = ".yaml"
"""End of the name of a machine in a file, as written by ``python -m simdp calibrate``."""


class Calibration(Spec):
    """Data of a machine's fit, and how well they determine its constants."""

    data: str
    """The measurements."""
    residual: Percent = 0.0
    """Root mean square of the fit's relative errors."""
    intervals: dict[str, Annotated[list[Any], Field(min_length=2, max_length=2)]] = Field(
        default_factory=dict
    )
    """Ends of the 90 % interval of each constant, by dotted key, as written."""
    errors: dict[str, str] = Field(default_factory=dict)
    """Fitted over measured time, less one, by point."""
    tables: dict[str, list[int]] = Field(default_factory=dict)
    """Collectives with tables of nccl-tests, and the number of nodes of each."""
    steps: dict[str, list[int]] = Field(default_factory=dict)
    """Models with steps, by the names of presets, and the number of nodes of each."""
    precisions: list[Literal["float64", "float32", "tfloat32", "float16", "bfloat16"]] = Field(
        default_factory=list
    )
    """Dtypes of the products of these steps; another one is new to the constants. Empty:
    unknown."""
    taken: dict[str, str] = Field(default_factory=dict)
    """Constants of ``intervals`` that were fitted to another machine, and its name."""
    notes: list[str] = Field(default_factory=list)
    """Further findings of the fit, such as constants that the data do not determine."""


class Machine(Spec):
    """An entry of the catalogue, or of a file."""

    cluster: dict[str, Any]
    """Keys of a scenario; those of the scenario have precedence."""
    collectives: dict[str, Any] = Field(default_factory=dict)
    """Keys of a scenario; those of the scenario have precedence."""
    source: dict[str, Any] | str
    """Sources of the figures."""
    calibration: Calibration | None = None
    """Of fitted constants."""
    caveats: list[str] = Field(default_factory=list)
    """Unusual properties of this machine that change its times, one plain sentence each."""
    usual: Bool = True
    """Whether nodes with its device are usually like this one. Others are the machine of a device
    only where there is none like it."""
    site: str | None = None
    """Site, shared by entries of the same nodes or lab: measurements of one apply to the others."""

    @field_validator("cluster")
    @classmethod
    def _stands_alone(cls, value: dict[str, object]) -> dict[str, Any]:
        if "machine" in value:
            raise problem("a machine cannot include another one; write out its keys.")
        return value


def is_file(name: str) -> bool:
    """Return whether a machine is a user's file."""
    return name.endswith(SUFFIX)


def is_known(name: str) -> bool:
    """Return whether a name is a current or earlier one of the catalogue."""
    return name in OLD_NAMES or name in MACHINES.names()


def read_machine(name: str, base: Path) -> Machine:
    """Read a machine of the catalogue or a YAML file; relative paths start from ``base``.

    Raises
    ------
    ScenarioError
        If there is no such machine, or the file is invalid.
    """
    if not is_file(name):
        if not is_known(name):
            raise ScenarioError([unknown_name("machine", name, MACHINES.names())])
        return Machine.model_validate(dict(MACHINES.read(OLD_NAMES.get(name, name))))
    path = base / name
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise ScenarioError([f"{path}: is not a machine; it must be a mapping with cluster: ..."])
    try:
        return Machine.model_validate(raw)
    except ValidationError as error:
        raise ScenarioError([f"{path}: {p.line}" for p in problems(error, raw)]) from None


def _known(name: object) -> Any:
    if isinstance(name, str) and not is_file(name) and not is_known(name):
        raise problem(unknown_name("machine", name, MACHINES.names()))
    return name


def _names(schema: dict[str, object]) -> None:
    """Add the names and descriptions for editors."""
    names = [{"const": name, "description": describe_machine(name)} for name in MACHINES.names()]
    names += [{"const": old, "description": f"Now {new}."} for old, new in OLD_NAMES.items()]
    schema["anyOf"] = [*names, {"pattern": rf"{re.escape(SUFFIX)}$"}]


AnyMachine = Annotated[str, BeforeValidator(_known), Field(json_schema_extra=_names)]


def describe_machine(name: str) -> str:
    """Describe a catalogue machine with its caveats in one line, for ``python -m simdp list``."""
    caveats = read_machine(name, Path()).caveats
    return hardware(name) + "".join(f". {caveat.rstrip('.')}" for caveat in caveats)


def hardware(name: str) -> str:
    """Describe the nodes of a catalogue machine in one line."""
    cluster = read_machine(name, Path()).cluster
    per_node, device = cluster.get("devices_per_node", 1), cluster["device"]
    inter = cluster.get("inter_node", {}).get("link")
    between = "" if inter is None else f", {_title(inter, 'bandwidth')} between nodes"
    return f"{per_node} x {_title(device, 'name')} per node{between}"


def _title(part: str | Mapping[str, object], key: str) -> object:
    """Return the title of a part: its catalogue name, or one of its figures."""
    return part if isinstance(part, str) else part.get(key, "device")


def machines_with(device: str) -> dict[str, Machine]:
    """Read the catalogue's machines with devices of this kind alone, by name."""
    machines = {name: read_machine(name, Path()) for name in MACHINES.mentioning(device)}
    return {
        name: machine
        for name, machine in machines.items()
        if machine.cluster.get("device") == device
    }
