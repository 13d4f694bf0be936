"""Sources of compute time (roofline, measured steps, a profile), and costs of host and input."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from simdp.errors import unknown_name
from simdp.family import Family
from simdp.files import Catalogue
from simdp.spec import (
    Bandwidth,
    Bool,
    Bytes,
    Float,
    Int,
    PositiveSeconds,
    Seconds,
    Spec,
    from_catalogue,
    one_of,
    problem,
)
from simdp.units import format_quantity


class Compute(Spec):
    """Base of sources of compute times."""

    kind: str

    source: ClassVar[Literal["roofline", "measured", "profile"]] = "roofline"
    """What times come from; ``kind`` may be any name of a class from outside."""

    without_data: ClassVar[bool] = False
    """Whether steps of a model with layers need no dataset if no numbers are computed."""

    @property
    def runs_eagerly(self) -> bool:
        """Whether torch's kernels between layers are charged too."""
        return False

    @property
    def kernel_settings(self) -> tuple[Any, ...]:
        """Fields that change kernels or their arithmetic."""
        return ()

    def arithmetic(self, dtype: str, cudnn: bool) -> str:
        """Arithmetic of products in a dtype: its name, or ``tfloat32`` for float32 in TF32.

        ``cudnn``: they run in cuDNN, which torch allows TF32 (``torch.backends.cudnn.allow_tf32``).
        """
        return "tfloat32" if cudnn and dtype == "float32" else dtype

    def runs_in_float8(self, name: str) -> bool:
        """Whether the products of a linear layer in 16 bits run in 8."""
        return False


COMPUTES: Family[Compute] = Family(
    "computes",
    Compute,
    __name__,
    {
        "measured": "FromMeasurements",
        "profile": "FromProfile",
        "roofline": "FromRoofline",
    },
)
COMPUTE = one_of("compute", COMPUTES)
AnyCompute = Annotated[Compute, COMPUTE]


class Float8(Spec):
    """Products of linear layers in 8 bits, as torchao's and Transformer Engine's.

    Inputs, weights and gradients are cast before each product, with scales from their own largest
    values; attention and all else stays in 16 bits. Only times change: numbers are those of 16
    bits.
    """

    filter_fqns: list[str] = Field(default_factory=list)
    """Layers with one of these in their name keep 16 bits, as torchtitan's ``output``."""


class FromRoofline(Compute):
    """The longer of a kernel's arithmetic and memory traffic, and its launch, kernel by kernel."""

    kind: Literal["roofline"] = "roofline"
    kernels: Literal["layers", "torch"] = "layers"
    """Kernels that are charged: those of the layers alone, as in the calibration of the catalogue's
    machines; or also those of eager torch between them: additions of gradients of values that
    several layers take, and of later micro-steps, casts under ``amp``, scaling and masks of plain
    attention, batch norms' counters, the loss kernel by kernel, and the casts of 16-bit hooks.
    Scripts under ``torchrun`` are charged all of these."""
    float32_matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """As ``torch.set_float32_matmul_precision``: below highest, products of float32 matrices take
    the time of TF32 on devices that have it. Numbers stay those of float32."""
    cudnn_allow_tf32: Bool = True
    """As ``torch.backends.cudnn.allow_tf32``, which is on by default: the same for convolutions and
    recurrent layers."""
    memory_format: Literal["contiguous", "channels_last"] = "contiguous"
    """As ``torch.contiguous_format`` (NCHW) and ``torch.channels_last``, of images: batch norms in
    bfloat16 are slow in the former. Convolutions take the same time in both."""
    float8: Float8 | None = None
    """Linear layers in 16 bits multiply in 8 bits."""

    @property
    def runs_eagerly(self) -> bool:
        return self.kernels == "torch"

    @property
    def kernel_settings(self) -> tuple[Any, ...]:
        return tuple(self.model_dump(mode="json", exclude={"kind"}, exclude_defaults=True).items())

    def arithmetic(self, dtype: str, cudnn: bool) -> str:
        allowed = self.cudnn_allow_tf32 if cudnn else self.float32_matmul_precision != "highest"
        return "tfloat32" if allowed and dtype == "float32" else dtype

    def runs_in_float8(self, name: str) -> bool:
        skipped = self.float8.filter_fqns if self.float8 else [""]
        return not any(part in name for part in skipped)


# Measured steps -----------------------------------------------------------------------------------

SCATTER = 0.1
"""Share by which a step may be shorter than one of a smaller batch, since measurements scatter: up
to 8.5 % in the traces of Sia (SOSP 2023; ResNet-50, 163 and 200 samples on one RTX)."""


class MeasuredStepTime(Spec):
    """Measured time of one step on one device."""

    microbatch: Int = Field(ge=1, le=10**9)
    """Samples of the step's only micro-step."""
    step_time: PositiveSeconds
    """Of the whole step on one device, without communication [s]."""
    device: str | None = None
    """Name of the device; by default for all devices without points of their own."""
    measured_on: str | None = None
    """Device of the measurement, if its time was scaled to ``device``: intervals of steps include
    the uncertainty of this."""
    sharded_over: Int | None = Field(None, ge=1)
    """Ranks that divided the update among them, where the step is a row of FSDP or ZeRO without its
    communication: it then holds this part of the update only."""


class FromMeasurements(Compute):
    """Step times of one device at one or more batch sizes, spread over the layers.

    A ``step_time`` is that of a whole step of one micro-batch on one device, without communication:
    host time, an exposed copy of the batch, forward, backward and update. A run on one device takes
    exactly that time. The part of forward and backward is linear between two points. Beyond them it
    follows the line through the outermost point and the nearest with which it does not fall, but
    below the smallest batch it is at least proportional to the samples. For a single point, or if
    every line falls, the ratio of measured to roofline time is kept for other batches: launches and
    the weights' traffic stay constant, the rest grows with the samples. The time is divided among
    layers by their roofline times, or equally if a model has no FLOPs.
    """

    source: ClassVar[Literal["roofline", "measured", "profile"]] = "measured"

    kind: Literal["measured"] = "measured"
    points: list[MeasuredStepTime] = Field(min_length=1)
    """In any order."""
    forward_fraction: Float = Field(1 / 3, gt=0, lt=1)
    """Forward's share of forward and backward; a third, as backward has two products for each of
    forward."""

    without_data: ClassVar[bool] = True

    @model_validator(mode="after")
    def _points_agree(self) -> FromMeasurements:
        for device in dict.fromkeys(point.device for point in self.points):
            whose = f" of device {device}" if device else ""
            points = _sorted(p for p in self.points if p.device == device)
            for low, high in pairwise(points):
                if low.microbatch == high.microbatch:
                    raise problem(
                        f"points: two{whose} are of microbatch {low.microbatch}; keep one of them."
                    )
            for number, point in enumerate(points[1:], 1):
                slowest = max(points[:number], key=lambda p: p.step_time)
                if is_contradiction(slowest.step_time, point.step_time):
                    raise problem(
                        f"points: microbatch {point.microbatch}{whose} takes "
                        f"{format_quantity(point.step_time, 'time')}, less than the "
                        f"{format_quantity(slowest.step_time, 'time')} of microbatch "
                        f"{slowest.microbatch}; correct one of them."
                    )
        return self

    def of_device(self, name: str | None) -> list[MeasuredStepTime]:
        """Points that apply to a device, by ascending microbatch; empty if all are of others."""
        own = [p for p in self.points if p.device is not None and p.device == name]
        return _sorted(own or (p for p in self.points if p.device is None))


def is_contradiction(smaller: float, larger: float) -> bool:
    """Whether a larger batch takes less time than a smaller one, beyond the scatter of steps."""
    return larger < (1 - SCATTER) * smaller


def _sorted(points: Iterable[MeasuredStepTime]) -> list[MeasuredStepTime]:
    return sorted(points, key=lambda point: point.microbatch)


def time_at(
    points: Sequence[tuple[int, float]], microbatch: int, size: Callable[[int], float]
) -> float:
    """Time at a batch size, from a curve of ascending batch sizes and times [s].

    See `FromMeasurements`; ``size`` is the function of the batch size that the time is proportional
    to, if no line applies.
    """
    after = bisect_left([samples for samples, _ in points], microbatch)
    if 0 < after < len(points):
        return _line(points[after - 1], points[after], microbatch)
    below = after == 0
    nearest, *others = points if below else reversed(points)
    first, seconds = nearest
    for other in others:
        if (other[1] >= seconds) if below else (other[1] <= seconds):
            line = _line(nearest, other, microbatch)
            return max(line, seconds * microbatch / first) if below else line
    return seconds * size(microbatch) / size(first)


def _line(point: tuple[int, float], other: tuple[int, float], microbatch: int) -> float:
    """Time at a batch size on the line through two points [s]."""
    (low, shorter), (high, longer) = point, other
    return shorter + (longer - shorter) * (microbatch - low) / (high - low)


DEVICES = Catalogue(Path(__file__).parents[1] / "cluster" / "devices")
"""Names of the catalogue's devices; workloads do not import clusters."""


class FromProfile(Compute):
    """Times of each layer, from the file of a model of kind profile."""

    source: ClassVar[Literal["roofline", "measured", "profile"]] = "profile"

    kind: Literal["profile"] = "profile"
    device: str | None = None
    """Device of the measurement, a name of the catalogue. On another device of the catalogue times
    grow as its arithmetic (for the share ``products`` of a layer) and its memory (for the rest) are
    slower; without it times apply to every device."""
    dtype: Literal["float64", "float32", "tfloat32", "float16", "bfloat16"] | None = None
    """Dtype of the measured products, with ``device``; None is the workload's dtype."""
    microbatch: Int | None = Field(None, ge=1, le=10**9)
    """Samples of the measured micro-step: the device's times grow in proportion to the samples, the
    host's stay. None: a micro-step's time does not depend on its samples."""
    update: Seconds | None = None
    """Time of one device to update all parameters [s]; shards take their share. None: the bytes
    that the optimizer moves, over the memory's bandwidth."""

    @field_validator("device")
    @classmethod
    def _in_the_catalogue(cls, name: str | None) -> str | None:
        if name is not None and name not in DEVICES.names():
            raise problem(unknown_name("device", name, DEVICES.names()))
        return name

    @model_validator(mode="after")
    def _dtype_is_of_a_device(self) -> FromProfile:
        if self.dtype is not None and self.device is None:
            raise problem(
                "dtype defines how products scale between devices; add device, or leave it out."
            )
        return self


LINKS = Catalogue(Path(__file__).parents[1] / "cluster" / "links")
"""Data of the catalogue's links; workloads do not import clusters."""


def _figures(name: str) -> dict[str, Any]:
    """Figures of a link of the catalogue that apply here: all but its collectives' transport."""
    return {key: value for key, value in LINKS.figures(name).items() if key != "transport"}


class HostLink(Spec):
    """One direction of the link from the host to its devices, like a link of the cluster."""

    name: str | None = None
    """Name; by default the catalogue entry's."""
    alpha: Seconds
    """Latency of a copy [s]."""
    bandwidth: Bandwidth
    """Bytes per second."""


class Input(Spec):
    """The input pipeline of every rank: workers that make batches, and the copy to the device.

    Workers take turns, as those of torch's DataLoader; each makes whole batches, one for each
    micro-step, at most ``workers * prefetch`` ahead of the training loop.
    """

    workers: Int = Field(0, ge=0, le=4096)
    """Processes per rank (num_workers). With 0 the training process makes the batches itself, when
    it needs them."""
    prefetch: Int = Field(2, ge=1, le=4096)
    """Batches ahead per worker (prefetch_factor)."""
    per_sample: Seconds = 0.0
    """Time of a worker per sample [s]."""
    sample_size: Bytes = 0.0
    """Bytes per sample that are copied to the device."""
    link: Annotated[HostLink, from_catalogue("link", LINKS.names, _figures)] | None = None
    """Link of the copy: a catalogue name, or figures."""
    pinned: Bool = True
    """True: during the compute of a batch, the next one is taken from the workers and copied
    (pin_memory and non_blocking on a separate stream); without workers there is no next one. False:
    the compute stream copies."""
    shared_link: Int = Field(1, ge=1, le=2**20)
    """Ranks of a node that share the link, each with an equal part of its bandwidth."""

    @model_validator(mode="after")
    def _costs_something(self) -> Input:
        if not self.per_sample and not self.sample_size:
            raise problem(
                "the input costs nothing; give per_sample, such as 3 ms, or sample_size and link."
            )
        if self.sample_size and self.link is None:
            raise problem("sample_size needs a link to cross; add for example link: pcie3-x16.")
        if self.link is not None and not self.sample_size:
            raise problem("link: nothing is copied; add sample_size, such as 602 kB.")
        return self

    def copy_time(self, samples: float, sharers: int = 1) -> float:
        """Time to copy a batch while ``sharers`` ranks use the link [s]."""
        if self.link is None or not samples:
            return 0.0
        return self.link.alpha + sharers * samples * self.sample_size / self.link.bandwidth

    def blocking_time(self, samples: float) -> float:
        """Time of a batch's copy on the compute stream of one device [s]."""
        return 0.0 if self.pinned and self.workers else self.copy_time(samples)


HOSTS = Catalogue(Path(__file__).parent / "hosts")

EAGER_HOST = "datacentre-2020"
"""The entry of `HOSTS` that is assumed where one process drives several devices."""

BACKWARD_OPERATORS = 2.0
"""Host time of backward per operator of forward, in times of ``Host.operator``: steps of ResNet-152
on V100 and A100 that wait for their host take 138 to 164 us per kernel of forward in total."""


def describe_host(name: str) -> str:
    """One line about a host of the catalogue, for ``python -m simdp list``."""
    entry = HOSTS.read(name)
    return (
        f"{entry['operator']} per operator of forward, {entry['replicate']} per module and device"
    )


class Host(Spec):
    """Time of the host that its device waits for, such as Python between two steps."""

    name: str | None = None
    """Name; a catalogue entry's own (``python -m simdp list hosts``)."""
    step: Seconds = 0.0
    """At the beginning of every step, on every rank [s]."""
    per_neighbour: Seconds = 0.0
    """Additional time for each further rank of the job on the node, such as its loaders and its
    Python competing for the node's cores [s]; not part of a step measured on one device."""
    async_launch: Bool = False
    """Whether the host launches kernels while the device works on earlier ones. Then a busy device
    waits for no launch, and one with little work for every one; false charges a launch to each
    kernel."""
    operator: Seconds | None = None
    """Host time of an operator of forward in eager torch: Python, dispatch, launch [s]; backward
    takes twice as much. A pass takes at least as long as its host (the floor of small batches);
    measured steps limit it. CUDA graphs have no such floor. None: no floor, except under
    nn.DataParallel, whose threads share one interpreter: there it is that of `EAGER_HOST`."""
    replicate: Seconds | None = None
    """Host time of nn.DataParallel's ``replicate`` per module and device in every forward [s].
    None: that of `EAGER_HOST`."""

    def before_step(self, local_size: int) -> float:
        """Host time before a step, on each of ``local_size`` ranks of a node [s]."""
        return self.step + self.per_neighbour * (local_size - 1)

    def of_one_process(self) -> Host:
        """The host where one process drives all devices: missing times are `EAGER_HOST`'s."""
        usual = Host.model_validate({"name": EAGER_HOST, **HOSTS.figures(EAGER_HOST)})
        return usual.model_copy(update={key: value for key, value in self if value is not None})


AnyHost = Annotated[Host, from_catalogue("host", HOSTS.names, HOSTS.figures)]
