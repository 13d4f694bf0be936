"""A machine file and scenarios from the records of a machine's probes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from simdp.probes.figures import median, microseconds, percent
from simdp.probes.record import (
    HOST_LINK,
    DDPRecord,
    DeviceFigures,
    LayersRecord,
    LayersStep,
    Machine,
    MeasuredCompute,
    MeasuredPoint,
    Overheads,
    ProbeScenario,
    ScenarioCluster,
    ScenarioPoint,
    write_yaml,
)
from simdp.results.collective import read_nccl_tests
from simdp.units import parse
from simdp.workload.compute import is_contradiction

MACHINE, SCENARIO, MORE = "machine.yaml", "scenario.yaml", "scenarios"
"""The machine's file; the scenario of the first model; the folder of those of the others."""

COMMAND = "python -m simdp probe"


class Failure(NamedTuple):
    """A part that could not be measured, and the reason in one line."""

    part: str
    reason: str


@dataclass
class Findings:
    """Records of the parts that were measured."""

    layers: dict[str, LayersRecord] = field(default_factory=dict)
    """Records of `simdp.probes.layers` and `simdp.probes.ddp`, by model."""
    ddp: dict[str, DDPRecord] = field(default_factory=dict)
    """Records of `simdp.probes.layers` and `simdp.probes.ddp`, by model."""
    logs: dict[int, Path] = field(default_factory=dict)
    """Logs of `simdp.probes.collectives`, by number of ranks, in the folder of the results."""
    failures: list[Failure] = field(default_factory=list)
    """Of the other parts."""

    @property
    def records(self) -> list[LayersRecord | DDPRecord]:
        """All records, each of which describes the machine and its device."""
        return [*self.layers.values(), *self.ddp.values()]

    @property
    def machine(self) -> Machine:
        """Names and versions of the machine."""
        return self.records[0].machine

    @property
    def device(self) -> DeviceFigures:
        """The middle of each figure of the device over all records."""
        return device_figures([record.device for record in self.records])

    @property
    def largest_log(self) -> Path | None:
        """The log of the most ranks."""
        return self.logs[max(self.logs)] if self.logs else None


# Device ------------------------------------------------------------------------------------------


def device_figures(devices: Sequence[DeviceFigures]) -> DeviceFigures:
    """Return the middle of each figure over some measurements of a device; at least one."""
    dtypes = dict.fromkeys(dtype for device in devices for dtype in device.peak)
    peaks = {
        dtype: _middle([d.peak[dtype] for d in devices if dtype in d.peak], "compute rate")
        for dtype in dtypes
    }
    return DeviceFigures(
        peak=peaks,
        memory=_middle([device.memory for device in devices], "data size"),
        memory_bandwidth=_middle([device.memory_bandwidth for device in devices], "bandwidth"),
        launch=_middle([device.launch for device in devices], "time"),
    )


def _middle(texts: Sequence[str], dimension: str) -> str:
    """Return the middle one of some quantities, as written."""
    ordered = sorted(texts, key=lambda text: parse(text, dimension))
    return ordered[len(ordered) // 2]


def device_name(name: str) -> str:
    """Return the name of a device in the catalogue's form."""
    text = name.lower()
    return "-".join(re.findall(r"[a-z0-9]+", re.sub(r"\((r|tm)\)", " ", text))) or "device"


# Machine -----------------------------------------------------------------------------------------


class FittedLink(NamedTuple):
    """A link of a switch whose ring takes the times of a log."""

    alpha: float  # [s]
    bandwidth: float  # [bytes/s]
    error: float  # mean error of the ring's times
    world_size: int  # ranks of the log


def fitted_link(log: Path) -> FittedLink:
    """Fit a link to a log's all_reduces, by relative errors.

    A ring of n ranks through a switch, two links a transfer, takes
    ``2 (n - 1) (2 alpha + S / (n bandwidth))``.
    """
    table = read_nccl_tests(log, "all_reduce")
    n = table.world_size
    assert n is not None, "the log of a probe names its ranks"
    sizes = np.array([row.nbytes for row in table.rows], float)
    times = np.array([row.seconds for row in table.rows])
    columns = np.stack([1 / times, sizes / times], axis=1)
    start, slope = np.linalg.lstsq(columns, np.ones(len(times)), rcond=None)[0]
    if start < 0 or slope <= 0:  # too scattered for two constants: the last row, without a latency
        start, slope = 0.0, times[-1] / sizes[-1]
    error = float(np.abs((start + slope * sizes) / times - 1).mean())
    return FittedLink(start / (4 * (n - 1)), 2 * (n - 1) / (n * slope), error, n)


def machine_entry(findings: Findings) -> dict[str, object]:
    """Return the machine's file as plain data: its device, its link, and what DDP adds."""
    machine, name = findings.machine, findings.machine.device_name
    overheads = [
        record.scenarios[model].cluster.overheads for model, record in findings.ddp.items()
    ]
    models = [model for record in findings.ddp.values() for model in record.models.values()]
    ranks = [run.world_size for model in models for run in model.runs]
    link, source, caveats = _link(findings)
    cluster: dict[str, object] = {
        "devices_per_node": machine.gpus or max(ranks, default=1),
        "device": {"name": device_name(name), **findings.device.model_dump()},
        "topology": "switch",
        "link": link,
    }
    sources = {
        "device": f"{COMMAND} on {name}, torch {machine.torch}: "
        "the middle of several measurements; peak is that of products of square matrices",
        "link": source,
    }
    if overheads:
        sources |= {"overheads": "steps of DDP that send nothing, over those without DDP"}
        hook = microseconds(median([parse(overhead.hook, "time") for overhead in overheads]))
        cluster |= {"overheads": overheads[0].model_copy(update={"hook": hook}).model_dump()}
    return {
        "caveats": [
            "The device's efficiency is 1, that of large products: steps of models that were not "
            "measured are longer than simulated.",
            *caveats,
        ],
        "cluster": cluster,
        "source": sources,
    }


def _link(findings: Findings) -> tuple[str | dict[str, str], str, list[str]]:
    """Return the link, where it comes from, and what to know about it."""
    log = findings.largest_log
    if log is None:
        caveat = "The link was not measured, since collectives of two ranks or more were not."
        return "pcie4-x16" if findings.machine.gpu else HOST_LINK, "an assumption", [caveat]
    fit = fitted_link(log)
    link = {"alpha": microseconds(fit.alpha), "bandwidth": f"{fit.bandwidth / 1e9:.4g} GB/s"}
    source = (
        f"a ring with this link takes the times of all_reduce of {fit.world_size} ranks in "
        f"{log.name}, {percent(fit.error)} off in the mean"
    )
    return link, source, []


# Scenarios ---------------------------------------------------------------------------------------

FUSED = ("transformer", "bert-base", "gpt2", "llama")
"""Models whose attention torch computes in one kernel on a GPU, without keeping its weights."""


def scenario(findings: Findings, name: str, up: str = "") -> ProbeScenario:
    """Return a model's scenario, with its measured points.

    Parameters
    ----------
    findings : Findings
        With a record of DDP of the model.
    name : str
        The model.
    up : str
        Path from the scenario's folder to that of the machine's file, such as ``"../"``.
    """
    base, steps = findings.ddp[name].scenarios[name], _steps(findings, name)
    cluster, workload, log = base.cluster, base.workload, findings.largest_log
    is_fused = findings.machine.gpu is not None and workload.model.get("kind") in FUSED
    cost = log and {"cost": {"kind": "table", "path": f"{up}{log.name}"}}
    return base.model_copy(
        update={
            "cluster": ScenarioCluster(
                machine=f"{up}{MACHINE}",
                world_size=cluster.world_size,
                overheads=Overheads(hook=cluster.overheads.hook),
            ),
            "workload": workload.model_copy(
                update={
                    "compute": _compute(workload.compute, steps),
                    "attention": "flash" if is_fused else workload.attention,
                }
            ),
            "collectives": cost or base.collectives,
            "measured": base.measured.model_copy(update={"memory": _memory(steps) or None}),
        }
    )


def _steps(findings: Findings, name: str) -> list[LayersStep]:
    """Return the steps of a model without DDP in the precision of its scenario."""
    if name not in findings.layers:
        return []
    precision = findings.ddp[name].settings.precision[0]
    return findings.layers[name].fitting(name, precision)


def _compute(compute: MeasuredCompute, steps: Iterable[LayersStep]) -> MeasuredCompute:
    """Return measured compute with the times of other micro-batches that do not contradict it."""
    points = list(compute.points)
    for step in steps:
        new = MeasuredPoint(microbatch=step.microbatch, step_time=step.step_time.p50)
        if all(_agree(*sorted([point, new], key=_microbatch)) for point in points):
            points.append(new)
    return compute.model_copy(update={"points": sorted(points, key=_microbatch)})


def _microbatch(point: MeasuredPoint) -> int:
    return point.microbatch


def _agree(small: MeasuredPoint, large: MeasuredPoint) -> bool:
    """Return whether two micro-batches differ, and the larger one takes no less time."""
    times = [parse(point.step_time, "time") for point in (small, large)]
    return small.microbatch < large.microbatch and not is_contradiction(*times)


def _memory(steps: Iterable[LayersStep]) -> list[ScenarioPoint]:
    """Return ``measured.memory`` of a GPU's steps."""
    alone = {"cluster.world_size": 1, "strategy": "single"}
    return [
        ScenarioPoint(
            set={**alone, "workload.microbatch": step.microbatch}, allocated=step.memory.allocated
        )
        for step in steps
        if step.memory is not None
    ]


# Files -------------------------------------------------------------------------------------------


def write_files(findings: Findings, out: Path) -> list[Path]:
    """Write the machine's file and the scenarios, and return the latter's paths, the first first.

    Models without a record of DDP have no scenario.
    """
    comment = f"{findings.machine.device_name}: measured by {COMMAND}"
    write_yaml(out / MACHINE, machine_entry(findings), comment)
    paths: list[Path] = []
    for name in findings.ddp:
        is_first = not paths
        path = out / SCENARIO if is_first else out / MORE / f"{name}.yaml"
        comment = (
            f"How long does a step of {name} take here under DDP?\n"
            "Steps of the fewest ranks calibrate, more are predicted."
        )
        write_yaml(path, scenario(findings, name, "" if is_first else "../"), comment)
        paths.append(path)
    return paths
