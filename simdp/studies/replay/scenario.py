"""Scenario: traces of one or several ranks become a scenario and its profile."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from simdp.arrays import Floats, product
from simdp.cluster.hardware import (
    AnyDevice,
    Link,
    Overheads,
    catalogue_device,
    close_devices,
    device_option,
    read_machine,
)
from simdp.engine.simulate import simulate, times_alone
from simdp.errors import LedBy, ScenarioError
from simdp.files import format_yaml
from simdp.reports import figures
from simdp.reports.figures import nbytes
from simdp.results.result import Result
from simdp.scenario import checked
from simdp.scenario.overrides import Raw, override_all
from simdp.scenario.root import Scenario
from simdp.spec import form_of
from simdp.studies.replay.layers import are_labelled, layers_of, text_of, units_of
from simdp.studies.replay.strategy import Recognised, Sharded, recognise
from simdp.studies.replay.timeline import (
    MARKED_BY,
    UPDATE,
    ClusterCharges,
    StepCollective,
    StepWork,
    step_work,
    windows,
)
from simdp.studies.replay.typical import (
    Typical,
    critical,
    micro_steps,
    optimizer_of,
    ready_times,
    start_skew,
    typical,
    with_foreign,
    without_unit_copies,
)
from simdp.studies.variants import timed_only
from simdp.traces import RankTrace, read_traces
from simdp.traces.matching import check_one_job
from simdp.traces.timeline import timeline
from simdp.units import format_quantity, parse

# Result -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Replayed:
    """A scenario made of traces, and its profile."""

    scenario: Raw  # as in YAML; its model reads ``profile_name``
    profile: str  # the profile's text
    profile_name: str  # its file
    step_time_s: float  # of a step in the traces: the mean over steps and ranks [s]
    num_ranks: int  # ranks of the job, by the traces
    # num_traces, num_steps: ranks with a trace, and steps of all of them that it is made of
    num_traces: int
    num_steps: int
    remarks: tuple[str, ...]  # assumptions, and data that the traces lack
    # part of the host's time before a step that is lost between kernels of the update [s]
    update_gap_s: float = 0.0
    sharded: Sharded = "nothing"  # as of `simdp.studies.replay.strategy.Recognised`

    @property
    def nbytes(self) -> float:
        """Of all gradients, by the profile [bytes]."""
        lines = [line for line in self.profile.splitlines() if not line.startswith("#")]
        column = lines[0].split(",").index("gradient_bytes")
        return float(sum(int(line.split(",")[column]) for line in lines[1:]))

    @property
    def workload(self) -> Raw:
        """The workload, as in YAML."""
        return dict(self.scenario["workload"])

    @property
    def strategy(self) -> Raw:
        """The strategy, as in YAML."""
        return dict(self.scenario["strategy"])

    @property
    def stragglers(self) -> list[Raw]:
        """The stragglers of the cluster, as in YAML."""
        return list(self.scenario["cluster"].get("stragglers", ()))

    @property
    def slow_ranks(self) -> list[int]:
        """Ranks that are slow or late in their steps."""
        return list(dict.fromkeys(row["rank"] for row in self.stragglers if "rank" in row))

    def links(self) -> dict[str, float]:
        """Bandwidths that a faster network would change, by their dotted keys [bytes/s]."""
        with self._checked(None) as scenario:
            cluster = scenario.cluster
            bandwidths = {}
            across = cluster.inter_node
            if across is not None and cluster.num_nodes > 1 and isinstance(across.link, Link):
                bandwidths["cluster.inter_node.link.bandwidth"] = across.link.bandwidth
            if cluster.num_nodes == 1 and isinstance(cluster.link, Link):
                bandwidths["cluster.link.bandwidth"] = cluster.link.bandwidth
            return bandwidths

    def simulate(self, changes: dict[str, object] | None = None) -> Result:
        """Play the scenario, with dotted keys set as by ``--set``.

        Raises
        ------
        ScenarioError
            If a change does not suit it.
        """
        with self._checked(changes) as scenario:
            timed = timed_only(scenario)
            return times_alone(timed) or simulate(timed)

    @contextmanager
    def _checked(self, changes: dict[str, object] | None) -> Iterator[Scenario]:
        """The scenario with changes, and its profile in a temporary folder."""
        with TemporaryDirectory() as folder:
            (Path(folder) / self.profile_name).write_text(self.profile)
            raw = deepcopy(self.scenario)
            if changes:
                raw = override_all(raw, changes, Path(folder))
            yield checked(raw, Path(folder))

    def text(self, command: str = "") -> str:
        """The scenario file, with remarks as comments."""
        ms = self.step_time_s * 1e3
        head = [
            f"{self.scenario['name']}: a replay of {_count(self.num_traces, 'trace')}, "
            f"{_count(self.num_steps, 'step')} of {ms:.4g} ms on {_count(self.num_ranks, 'rank')}",
            *([f"made by: {command}"] if command else []),
            *self.remarks,
        ]
        return "".join(f"# {line}\n" for line in head) + format_yaml(self.scenario)


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'s' * (number != 1)}"


# Links --------------------------------------------------------------------------------------------

FASTEST = 1e13  # bandwidth where all transfers last equally long [bytes/s]


@dataclass(frozen=True)
class RankLinks:
    """Links between ranks."""

    alpha: float  # of a hop from rank to rank [s]
    bandwidth: float  # of a hop [bytes/s]
    num_sizes: int  # collectives that they were fitted to
    # smallest, largest: of these [bytes]
    smallest: float
    largest: float
    error: float  # mean of the relative errors


def fitted(sent: Sequence[StepCollective]) -> RankLinks | None:
    """Fit links to a step's collectives.

    Parameters
    ----------
    sent : sequence of Sent
        Each as short as it ever was.

    Returns
    -------
    Network or None
        None where none of two ranks or more has a size.

    Notes
    -----
    A ring of n makes 2(n-1) steps for an all_reduce of S bytes, n-1 for an all_gather and a
    reduce_scatter, each of S/n: the errors relative to the measured times are least in squares.
    """
    rows = [row for collective in sent if (row := _row(collective)) is not None]
    if not rows:
        return None
    hops, nbytes, seconds, sizes = np.array(rows).T
    scaled = np.stack([hops / seconds, nbytes / seconds], axis=1)
    alpha, beta = _not_negative(scaled)
    error = float(np.abs(product(scaled, [alpha, beta]) - 1).mean())
    bandwidth = min(1 / beta if beta > 0 else FASTEST, FASTEST)
    return RankLinks(
        float(alpha), float(bandwidth), len(rows), float(sizes.min()), float(sizes.max()), error
    )


def _row(sent: StepCollective) -> tuple[float, float, float, float] | None:
    """Hops, bytes over one link, and time of a collective."""
    n, nbytes, seconds = sent.group_size, sent.nbytes, sent.seconds
    if n < 2 or not nbytes > 0 or not seconds > 0:
        return None
    if sent.name == "all_reduce":
        return 2.0 * (n - 1), 2 * (n - 1) / n * nbytes, seconds, nbytes
    if sent.name in ("all_gather", "reduce_scatter"):
        return n - 1.0, (n - 1) / n * nbytes, seconds, nbytes
    if sent.name == "broadcast" and n == 2:
        return 1.0, nbytes, seconds, nbytes
    return None


def _not_negative(scaled: Floats) -> tuple[float, float]:
    """Least squares of ``scaled @ x = 1`` with x not below 0."""
    ones = np.ones(len(scaled))
    if len(scaled) > 1 and np.linalg.matrix_rank(scaled) == 2:
        alpha, beta = np.linalg.lstsq(scaled, ones, rcond=None)[0]
        if alpha >= 0 and beta >= 0:
            return float(alpha), float(beta)
    slopes = [float(column.sum() / product(column, column)) for column in scaled.T]
    errors = [float(((scaled[:, k] * slopes[k] - 1) ** 2).sum()) for k in (0, 1)]
    return (slopes[0], 0.0) if errors[0] < errors[1] else (0.0, slopes[1])


# Scenario -----------------------------------------------------------------------------------------

STEPS = 3  # steps of the scenario: the first is warm-up

UNKNOWN_DEVICE = {
    "name": "not in the catalogue",
    "peak": {"float32": "1 TFLOP/s", "float64": "1 TFLOP/s"},
    "memory": "1 TB",
    "memory_bandwidth": "1 TB/s",
    "launch": "0 s",
}
"""Placeholder for an unknown device: times are those of the profile."""

LEAST_STALL = 0.02  # waiting for input that takes less of a step is none


@dataclass(frozen=True)
class ReplayRequest:
    """Options of a replay."""

    # machine with the network and devices; None fits the network to the traces
    machine: str | None = None
    device: str | None = None  # a name of the catalogue, in place of the traces' own
    microbatch: int = 1  # samples of a micro-step, which traces do not contain
    gradients: float | None = None  # bytes of all gradients, for a trace without collectives
    name: str = "replay"  # name of the scenario


def replay_of(
    traces: Sequence[RankTrace],
    *,
    machine: str | None = None,
    device: str | None = None,
    microbatch: int = 1,
    gradients: float | None = None,
    name: str = "replay",
) -> Replayed:
    """Make a scenario of traces.

    Parameters
    ----------
    traces : sequence of RankTrace
        Of one rank, or of several of the same job.
    machine : str, optional
        Machine with the devices and network: a name of the catalogue, or a file of ``calibrate``.
        By default links are fitted to the transfers of the traces.
    device : str, optional
        Device of the traces, by its name in the catalogue or its driver's; by default theirs.
    microbatch : int
        Samples of a micro-step, which traces do not contain: throughput is in these.
    gradients : float, optional
        Bytes of all gradients, for traces without collectives.
    name : str
        Of the scenario and of its profile.

    Returns
    -------
    Replayed
        Whose step on the traces' own number of ranks takes what it took there.

    Raises
    ------
    ScenarioError
        If there is nothing to replay, or traces are of different jobs.
    """
    request = ReplayRequest(machine, device_option(device), microbatch, gradients, name)
    check_one_job(traces)
    return _Replay(traces, request).done()


class _Replay:
    """A replay under way."""

    def __init__(self, traces: Sequence[RankTrace], request: ReplayRequest) -> None:
        self.traces, self.request = traces, request
        self.own = traces[0].source == "simdp"
        self.remarks = list[str]()
        self.overheads: Mapping[str, Any] = {}
        self.brought: list[Any] = []
        device = None
        if request.machine is not None:
            cluster = read_machine(request.machine, Path()).cluster
            device = cluster["device"]
            device = device[0] if isinstance(device, list) else device
            self.overheads = cluster.get("overheads") or {}
            self.brought = list(cluster.get("stragglers") or [])
        self.has_sent = any(len(trace.collectives) for trace in traces)
        self.charges = ClusterCharges(
            copies=request.machine is not None and self.own,
            slowdown=Overheads.model_validate(self.overheads).compute_slowdown,
            device=None if device is None else form_of(AnyDevice).validate_python(device),
        )
        self.lines = [timeline(trace, place) for place, trace in enumerate(traces)]
        steps = [windows(line) for line in self.lines]
        marks = dict.fromkeys(line.marks.mark for line in self.lines)
        self.remarks += [MARKED_BY[mark] for mark in marks if mark in MARKED_BY]
        self.remarks += dict.fromkeys(remark for trace in traces for remark in trace.remarks)
        works_of_lines = [
            [step_work(line.trace, window, self.charges) for window in mine]
            for line, mine in zip(self.lines, steps, strict=True)
        ]
        works = dict(zip([line.rank for line in self.lines], works_of_lines, strict=True))
        self.typical: Typical = typical(works)
        self.late = dict(self.typical.late)
        self.step_time = self.typical.step_time
        if len(traces) > 1 and max(map(len, works_of_lines)) == 1:
            self._skew([works_of_line[0] for works_of_line in works_of_lines])
        sizes = [t.world_size for t in traces if t.world_size]
        groups = [s.group_size for s in self.typical.step.sent if s.group_size > 0]
        self.num_ranks = max([*sizes[:1], *groups, len(traces)]) if not sizes else sizes[0]
        self.found: Recognised = recognise(self.typical.step, self.num_ranks)
        self.remarks += self.found.remarks
        if self.found.foreign and len(traces) > 1:
            self._take_slowest_phases(works)

    def _take_slowest_phases(self, works: Mapping[int, Sequence[StepWork]]) -> None:
        """Take the slowest rank of each phase, since collectives within a step are not replayed."""
        self.typical, ranks = critical(self.typical, works, self.late)
        self.remarks.append(
            "ranks meet at these collectives, so that the slowest of each phase stands for all: "
            f"rank {ranks[0]} in forward, {ranks[1]} in backward, {ranks[2]} in the update"
        )

    def _skew(self, works: Sequence[StepWork]) -> None:
        """Find ranks that begin their only step late."""
        late, self.step_time = start_skew(self.lines, works)
        for rank, seconds in late.items():
            self.late[rank] = self.late.get(rank, 0.0) + seconds
        if late:
            last = max(late, key=late.__getitem__)
            self.remarks.append(
                f"one step of each rank: rank {last} begins it "
                f"{figures.seconds(late[last])} after the first, for what was "
                "before the traces; the replay has such a pause in every step"
            )

    # The parts of the scenario ---------------------------------------------------------------

    def done(self) -> Replayed:
        step, recognised = self.typical.step, self.found
        if recognised.sharded == "units" and not self.charges.copies:
            step = without_unit_copies(step)
        step = with_foreign(step, recognised.foreign)
        micros = len(micro_steps(step))
        dtype = "float64" if any(s.dtype == "float64" for s in recognised.buckets) else "float32"
        itemsize = 8 if dtype == "float64" else 4
        ready = ready_times(self.traces[0], step)
        layers = layers_of(step, ready, recognised, itemsize, self._elements(itemsize))
        if not any(size for layer in layers for _, size in layer.tensors):
            self.remarks.append(
                "no collective tells how large gradients are: one element stands for them, so "
                "that ranks meet in every step; give --gradients, the bytes of all of them"
            )
            layers[-1] = replace(layers[-1], tensors=((layers[-1].name, 1),))
        at = step.phase == UPDATE
        update, gap = float(step.busy[at].sum()), float(step.idle[at].sum())
        if recognised.sharded != "nothing":
            update *= recognised.strategy.get("shard_size", self.num_ranks)
        profile = text_of(layers, itemsize, self._buffers(), f"replay of {self.request.name}")
        lead = self.typical.lead + gap
        if not self._is_stalled:
            lead += self.typical.stalled
        scenario: Raw = {
            "name": self.request.name,
            "cluster": self._cluster(),
            "workload": self._workload(dtype, micros, update, lead),
            "strategy": self._strategy(),
        }
        if self.request.machine is None:  # whose links are fitted to rings
            scenario["collectives"] = {"cost": "links"}
        return Replayed(
            scenario,
            profile,
            f"{self.request.name}.csv",
            self.step_time,
            self.num_ranks,
            len(self.traces),
            self.typical.num_steps,
            tuple(self.remarks),
            gap,
            recognised.sharded,
        )

    def _strategy(self) -> Raw:
        if self.found.sharded != "units":
            return dict(self.found.strategy)
        layers = [name.removeprefix("backward ") for name in self.typical.step.names]
        named = layers if are_labelled(self.found, layers) else None
        return {**self.found.strategy, "units": units_of(self.found, named)}

    def _elements(self, itemsize: int) -> int | None:
        if self.request.gradients is None:
            return None
        if self.found.buckets:
            raise ScenarioError("--gradients: collectives of the traces tell it; leave it out.")
        return round(self.request.gradients / itemsize)

    def _buffers(self) -> tuple[int, int]:
        """Bytes of buffers and of counters that are broadcast before forward."""
        kinds = [0, 0]
        for number, sent in enumerate(self.found.buffers):
            # Our own traces count integers as elements of the gradients' type, behind the others.
            kinds[sent.dtype == "int64" or (self.own and number > 0)] += int(sent.nbytes)
        return kinds[0] // 8 * 8, -(-kinds[1] // 8) * 8

    def _workload(self, dtype: str, micros: int, update: float, lead: float) -> Raw:
        name, microbatch = self._device(), self.request.microbatch
        device = {} if name is None else {"device": name}
        compute = {"kind": "profile", **device, "microbatch": microbatch, "update": seconds(update)}
        stalled = self._is_stalled
        return {
            "model": {"kind": "profile", "path": f"{self.request.name}.csv"},
            "compute": compute,
            "optimizer": optimizer_of(self.traces[0]),
            "microbatch": microbatch,
            **({"dtype": dtype} if dtype != "float32" else {}),
            **({"grad_accum": micros} if micros > 1 else {}),
            **({"host": {"step": seconds(lead)}} if lead > 0 else {}),
            **({"input": self._input(self.typical.stalled, micros)} if stalled else {}),
            **({} if stalled else {"steps": STEPS}),
        }

    @property
    def _is_stalled(self) -> bool:
        return self.typical.stalled > LEAST_STALL * self.step_time

    def _input(self, stalled: float, micros: int) -> Raw:
        """Loaders that keep the step as long as it is."""
        names = [name for t in self.traces for name in t.host.names if "DataLoader" in name]
        samples = self.request.microbatch * micros
        if any("SingleProcess" in name for name in names):
            return {"workers": 0, "per_sample": seconds(stalled / samples)}
        self.remarks.append(
            "how many workers load is not in a trace: one here, which takes a step for a batch"
        )
        return {"workers": 1, "per_sample": seconds(self.step_time / samples)}

    def _device(self) -> str | None:
        return self.request.device or catalogue_device(self.traces[0].device_name)

    def _cluster(self) -> Raw:
        cluster: Raw
        if self.request.machine is not None:
            cluster = {"machine": self.request.machine, "world_size": self.num_ranks}
            held: Raw = {"hook": "0 s", "launch": "0 s"}
            held |= {} if self.charges.copies else {"copies": False}
            held = {key: value for key, value in held.items() if self.overheads.get(key)}
            if held and self.has_sent:  # the trace holds them
                cluster["overheads"] = held
        else:
            cluster = self._fitted_cluster()
        stragglers = self._stragglers()
        if stragglers:
            cluster["stragglers"] = [*self.brought, *stragglers]
        return cluster

    def _fitted_cluster(self) -> Raw:
        name = self._device()
        if name is None:
            traced = self.traces[0].device_name
            close = [] if traced is None else close_devices(traced)
            hint = f"; similar, for --device: {', '.join(close)}" if close else ""
            self.remarks.append(
                f"{traced or 'the device'} is not in the catalogue, so that times cannot be scaled "
                f"to others{hint}"
            )
        return {
            "world_size": self.num_ranks,
            "device": name or dict(UNKNOWN_DEVICE),
            "topology": "switch",
            "link": self._link(fitted([*self.typical.step.sent])),
        }

    def _link(self, network: RankLinks | None) -> Raw:
        if network is None:
            self.remarks.append(
                "no transfer tells of the network: 10 us and 10 GB/s are placeholders; name a "
                "machine, or write cluster.link"
            )
            return {"alpha": "5 us", "bandwidth": "10 GB/s"}
        low, high = (nbytes(size) for size in (network.smallest, network.largest))
        self.remarks.append(
            f"links are fitted to {network.num_sizes} collectives of {low} to {high}, off by "
            f"{network.error:.0%} on average: each as short as it ever was, which still holds what "
            "all ranks waited; other sizes, more ranks and further nodes are extrapolated"
        )
        # A switch is two links, each with the latency.
        return {
            "alpha": seconds(network.alpha / 2),
            "bandwidth": format_quantity(float(f"{network.bandwidth:.6g}"), "bandwidth"),
        }

    def _stragglers(self) -> list[Raw]:
        stragglers: list[Raw] = [
            {"kind": "slow_rank", "rank": rank, "factor": round(factor, 6)}
            for rank, factor in self.typical.slow.items()
        ]
        return stragglers + [
            {"kind": "pause", "rank": rank, "every": 1, "duration": seconds(late)}
            for rank, late in self.late.items()
        ]


def seconds(value: float) -> str:
    """Write a time as a scenario does, to a nanosecond's thousandth."""
    return format_quantity(float(f"{value:.9g}"), "time")


# Job ----------------------------------------------------------------------------------------------


def read_job(paths: Sequence[Path]) -> list[RankTrace]:
    """Read the traces of one job, sorted by rank.

    Parameters
    ----------
    paths : sequence of Path
        Files, folders and archives, as `simdp.traces.read_traces` takes them.

    Raises
    ------
    ScenarioError
        If one cannot be read, or holds something else.
    """
    traces = [trace for path in paths for trace in read_traces(path)]
    return sorted(traces, key=lambda trace: -1 if trace.rank is None else trace.rank)


def replay(
    *paths: str | os.PathLike[str],
    machine: str | None = None,
    device: str | None = None,
    microbatch: int = 1,
    gradients: float | None = None,
) -> Replayed:
    """Read the traces of a job, and make a scenario of them.

    Parameters
    ----------
    *paths : path-like
        As for `read_job`.
    machine, device, microbatch, gradients
        As for `simdp.studies.replay.scenario.replay_of`.

    Raises
    ------
    ScenarioError
        If there is nothing to replay.
    """
    return replay_of(
        read_job([Path(path) for path in paths]),
        machine=machine,
        device=device,
        microbatch=microbatch,
        gradients=gradients,
    )


def size_of(text: str) -> float:
    """Read ``--gradients`` [bytes].

    Raises
    ------
    ScenarioError
        If it is no size.
    """
    with LedBy("--gradients: "):
        size = parse(text, "data size")
    if size <= 0:
        raise ScenarioError(f"--gradients: {text} is nothing; write for example 102 MB.")
    return size
