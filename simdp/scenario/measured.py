"""Measurements of a real machine at points of a scenario, for `validate`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, PlainSerializer, PlainValidator, field_validator, model_validator

from simdp.cluster.hardware import Calibration
from simdp.collectives import FAMILIES
from simdp.errors import ScenarioError, UnitError, shown, unknown_name
from simdp.scenario.overrides import Raw, may_name, override_all, set_key, with_machine
from simdp.spec import (
    Bandwidth,
    Bool,
    Percent,
    PositiveBytes,
    PositiveSeconds,
    Seconds,
    Spec,
    Throughput,
    problem,
)
from simdp.units import format_quantity, parse

S = TypeVar("S")

Role = Literal["calibration", "predicted"]

OUTSIDE = ("measured", "name", "sweep")
"""Keys of a scenario that no point may set."""

COLLECTIVES = (*FAMILIES, "sendrecv")
"""Allowed collectives of a table, with nccl-tests' ``sendrecv``."""

LARGEST_NBYTES = 2**53
"""Largest exact float [bytes]."""


class MeasuredPoint(Spec):
    """One run of a real machine."""

    set: dict[str, Any] = Field(default_factory=dict)
    """Dotted keys that differ from the scenario's."""
    step_time: PositiveSeconds | None = None
    """Mean time of a step [s]."""
    throughput: Throughput | None = None
    """Instead of it: samples of all ranks per second."""
    exposed_sync: Seconds | None = None
    """Wait for gradients in flight after the end of backward [s]; `validate` compares it with
    ``exposed_comm_s`` and ``wait_s``."""
    role: Role = "predicted"
    """Whether a constant was fitted to it."""
    note: str | None = None
    """Shown with a miss: the effect that the simulation lacks, and its size."""

    @model_validator(mode="after")
    def _one_figure(self) -> MeasuredPoint:
        if (self.step_time is None) == (self.throughput is None):
            how_many = "neither" if self.step_time is None else "both"
            raise problem(
                f"{how_many} of step_time and throughput given; give one, such as step_time: 97 ms."
            )
        step_time, exposed = self.step_time, self.exposed_sync
        if step_time is not None and exposed is not None and exposed >= step_time:
            raise problem(
                f"exposed_sync of {format_quantity(exposed, 'time')} is no part of a step of "
                f"{format_quantity(step_time, 'time')}; correct one of them."
            )
        return self

    def seconds(self, samples: float) -> float:
        """Return the time of a step with ``samples`` samples [s]."""
        if self.step_time is not None:
            return self.step_time
        assert self.throughput is not None
        return samples / self.throughput


class ExcludedPoint(Spec):
    """A run that is excluded, because its source or physics marks it as invalid."""

    set: dict[str, Any] = Field(default_factory=dict)
    """As in a point."""
    reason: str
    """The reason."""


Times = tuple[tuple[int, float], ...]
TimesBySize = Annotated[dict[PositiveBytes, PositiveSeconds], Field(min_length=1)]
RatesBySize = Annotated[dict[PositiveBytes, Bandwidth], Field(min_length=1)]


def _times(value: object) -> Times:
    """Read ``{1 MiB: 50 us, ...}``."""
    return _by_size(value, "time", "times, such as {1 MiB: 50 us}", lambda nbytes, time: time)


def _times_of_rates(value: object) -> Times:
    """Read ``{1 MiB: 20 GB/s, ...}``: sizes over times."""
    example = "bandwidths, such as {1 MiB: 20 GB/s}"
    return _by_size(value, "bandwidth", example, lambda nbytes, rate: nbytes / rate)


def _by_size(
    value: object, dimension: str, example: str, seconds_of: Callable[[float, float], float]
) -> Times:
    if isinstance(value, tuple):
        return value
    if not isinstance(value, dict) or not value:
        raise problem(f"{shown(value)} is not a mapping of sizes to {example}.")
    times: dict[int, float] = {}
    for size, text in value.items():
        try:
            nbytes, figure = parse(size, "data size"), parse(text, dimension)
        except UnitError as error:
            raise problem(f"at {size}: {error}") from None
        if nbytes != int(nbytes) or not 1 <= nbytes <= LARGEST_NBYTES:
            raise problem(f"{size} is not a whole number of bytes, 1 or more.")
        if not 0 < figure < inf:
            least = format_quantity(0.0, dimension)
            raise problem(f"at {size}: {text} is out of range; it must be > {least} and finite.")
        seconds = seconds_of(nbytes, figure)
        if times.setdefault(int(nbytes), seconds) != seconds:
            raise problem(f"{size} is there twice, with different {dimension}s; keep one.")
    return tuple(sorted(times.items()))


def _written(times: Times) -> dict[str, str]:
    return {
        format_quantity(nbytes, "data size"): format_quantity(seconds, "time")
        for nbytes, seconds in times
    }


class MeasuredCollective(Spec):
    """A table of nccl-tests: times of one collective, by size."""

    collective: str = Field(json_schema_extra={"enum": list(COLLECTIVES)})
    """For example ``all_reduce``; or ``sendrecv``."""
    set: dict[str, Any] = Field(default_factory=dict)
    """As in a point."""
    times: Annotated[Times, PlainValidator(_times, TimesBySize), PlainSerializer(_written)] = ()
    """Sizes, as nccl-tests counts them [bytes], and times [s]; ascending."""
    algbw: Annotated[Times, PlainValidator(_times_of_rates, RatesBySize)] | None = Field(
        None, exclude=True
    )
    """Instead of ``times``: sizes over times by size, ``{1 MiB: 20 GB/s}``, as the column ``algbw``
    of nccl-tests [bytes/s]; it is converted to ``times``."""
    calibration: Literal["none", "every_second", "all"] = "none"
    """Sizes that constants were fitted to; every second one from the smallest on."""
    note: str | None = None
    """As in a point."""

    @field_validator("collective")
    @classmethod
    def _is_known(cls, value: str) -> str:
        if value not in COLLECTIVES:
            raise problem(unknown_name("collective", value, COLLECTIVES))
        return value

    @model_validator(mode="after")
    def _has_times(self) -> MeasuredCollective:
        if bool(self.times) == bool(self.algbw):
            how_many = "both" if self.times else "neither"
            raise problem(
                f"{how_many} of times and algbw given; give one, such as times: {{1 MiB: 50 us}}."
            )
        if self.algbw:
            object.__setattr__(self, "times", self.algbw)
            object.__setattr__(self, "algbw", None)
        return self

    def roles(self) -> list[Role]:
        """Return the role of each size."""
        every = {"none": 0, "every_second": 2, "all": 1}[self.calibration]
        return [
            "calibration" if every and number % every == 0 else "predicted"
            for number in range(len(self.times))
        ]


class MeasuredMemory(Spec):
    """Peak memory of the fullest rank of a real run."""

    set: dict[str, Any] = Field(default_factory=dict)
    """As in a point."""
    allocated: PositiveBytes | None = None
    """Peak of the tensors, as ``torch.cuda.max_memory_allocated`` [bytes]."""
    reserved: PositiveBytes | None = None
    """In its place: peak of the allocator's segments, as ``torch.cuda.max_memory_reserved``
    [bytes]."""
    out_of_memory: Bool = False
    """In place of both: the run did not fit."""
    note: str | None = None
    """As in a point."""

    @model_validator(mode="after")
    def _one_figure(self) -> MeasuredMemory:
        given = [self.allocated is not None, self.reserved is not None, self.out_of_memory]
        if sum(given) != 1:
            how_many = "more than one" if sum(given) else "none"
            raise problem(
                f"{how_many} of allocated, reserved and out_of_memory given; give one, such as "
                "allocated: 47.36 GB."
            )
        return self


class MeasuredScenario(Spec):
    """Measurements of a real machine."""

    source: str
    """Source of the figures."""
    cluster: str | None = None
    """Cluster that the report counts the points under, if several machines are one cluster, such as
    the same nodes with several networks; None: the machine, else the scenario."""
    noise: Percent = 0.0
    """Lower bound of any model's error, from replicates or rounding: ``2 %``."""
    points: list[MeasuredPoint] = Field(default_factory=list)
    """Steps."""
    collectives: list[MeasuredCollective] = Field(default_factory=list)
    """Tables of single collectives."""
    memory: list[MeasuredMemory] = Field(default_factory=list)
    """Peaks of memory."""
    excluded: list[ExcludedPoint] = Field(default_factory=list)
    """Excluded points of the source."""
    calibration: Calibration | None = None
    """Of constants in this scenario; a catalogue machine has its own."""

    @model_validator(mode="after")
    def _there_is_something(self) -> MeasuredScenario:
        if not self.points and not self.collectives and not self.memory:
            raise problem(
                "has no points, no collectives and no memory; add points: [{set: ..., ...}]."
            )
        left_out = [point.set for point in self.excluded]
        for number, point in enumerate(self.points):
            if point.set in left_out:
                raise problem(f"points.{number} is excluded as well; keep it in one of the lists.")
        return self


# Points as scenarios -----------------------------------------------------------------------------


def settings(measured: MeasuredScenario) -> list[tuple[str, dict[str, Any]]]:
    """Path of each point, table and peak of memory in the file, and its settings."""
    listed = [(f"measured.points.{i}", point.set) for i, point in enumerate(measured.points)]
    for i, table in enumerate(measured.collectives):
        listed.append((f"measured.collectives.{i}", table.set))
    listed += [(f"measured.memory.{i}", peak.set) for i, peak in enumerate(measured.memory)]
    return listed


def built(
    measured: MeasuredScenario,
    written: Raw,
    base: Path,
    look_at: Callable[[Raw, int], tuple[list[str], S | None]],
) -> tuple[list[str], list[S]]:
    """Build the scenarios of `settings`, time-only, since measurements contain no numbers.

    Parameters
    ----------
    measured : MeasuredScenario
        Of a scenario.
    written : dict
        The scenario as plain data, without its machine's values.
    base : Path
        Folder that relative paths start from.
    look_at : callable
        Validates a scenario as plain data and builds it if valid. Its second argument is the
        largest world size of all.

    Returns
    -------
    (list of str, list)
        Problems, one line each; and the scenarios, in the order of `settings`.
    """
    written = {key: value for key, value in written.items() if key not in ("measured", "sweep")}
    filled = with_machine(written, base)
    lines, points = list[str](), list[Raw]()
    for place, chosen in settings(measured):
        outside = [key for key in chosen if key.split(".")[0] in OUTSIDE]
        lines += [f"{place}.set.{key}: set a key of cluster, workload, ..." for key in outside]
        try:
            points.append(_set({**filled, "numerics": False}, written, chosen, base))
        except ScenarioError as error:
            lines += [f"{place}.set.{line}" for line in error.problems]
    if lines:
        return lines, []
    largest = max(map(world_size, points), default=1)
    scenarios: list[S] = []
    for (place, _), point in zip(settings(measured), points, strict=True):
        problems, scenario = look_at(point, largest)
        lines += [f"{place}.set: {line}" for line in problems]
        if scenario is not None:
            scenarios.append(scenario)
    return lines, scenarios


def world_size(raw: Raw) -> int:
    """Return the world size of a scenario as plain data; 1 if it is invalid."""
    cluster = raw.get("cluster")
    size = cluster.get("world_size") if isinstance(cluster, dict) else None
    return size if isinstance(size, int) else 1


def _set(filled: Raw, written: Raw, chosen: Raw, base: Path) -> Raw:
    """Set a point's keys; one that names its machine starts from the file's keys."""
    if may_name(chosen):
        point = override_all(copy.deepcopy(written), chosen, base)
        return {**with_machine(point, base), "numerics": False}
    point = copy.deepcopy(filled)
    for key, value in chosen.items():
        set_key(point, key, value)
    return point


def contradictions(
    measured: MeasuredScenario, keys: Sequence[str], samples: Sequence[float]
) -> list[str]:
    """Refuse points with different times of the same settings.

    Parameters
    ----------
    measured : MeasuredScenario
        Its noise is the maximum difference of replicates.
    keys : sequence of str
        Key of each point's simulation; equal keys mean equal simulations.
    samples : sequence of float
        Of a step of each point.
    """
    first: dict[str, int] = {}
    lines = []
    for i, key in enumerate(keys):
        j = first.setdefault(key, i)
        this, other = (measured.points[k].seconds(samples[k]) for k in (i, j))
        if abs(this - other) > max(measured.noise, 1e-9) * min(this, other):
            lines.append(
                f"measured.points.{i}: contradicts points.{j}: {this * 1e3:.4g} ms and "
                f"{other * 1e3:.4g} ms per step with the same settings; keep one, or raise noise."
            )
    return lines
