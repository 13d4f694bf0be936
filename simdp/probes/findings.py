"""A machine file and scenarios from the records of a machine's probes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from simdp.probes.figures import median, microseconds, percent
from simdp.probes.record import HOST_LINK, write_yaml
from simdp.results.collective import read_nccl_tests
from simdp.units import parse
from simdp.workload.compute import is_contradiction

Plain = dict[str, Any]

MACHINE, SCENARIO, MORE = "machine.yaml", "scenario.yaml", "scenarios"
"""The machine's file; the scenario of the first model; the folder of those of the others."""

COMMAND = "python -m simdp probe"


class Failure(NamedTuple):
    """A part that could not be measured, and the reason in one line."""

    part: str
    reason: str


@dataclass
class Findings:
    """Records of the parts that were measured.

    Attributes
    ----------
    layers, ddp : dict of str to dict
        Records of `simdp.probes.layers` and `simdp.probes.ddp`, by model.
    logs : dict of int to Path
        Logs of `simdp.probes.collectives`, by number of ranks, in the folder of the results.
    failures : list of Failure
        Of the other parts.
    """

    layers: dict[str, Plain] = field(default_factory=dict)
    ddp: dict[str, Plain] = field(default_factory=dict)
    logs: dict[int, Path] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    @property
    def records(self) -> list[Plain]:
        """All records, each of which describes the machine and its device."""
        return [*self.layers.values(), *self.ddp.values()]

    @property
    def machine(self) -> Plain:
        """Names and versions of the machine."""
        return self.records[0]["machine"]

    @property
    def largest_log(self) -> Path | None:
        """The log of the most ranks."""
        return self.logs[max(self.logs)] if self.logs else None


# Device ------------------------------------------------------------------------------------------

RATES = {"memory": "data size", "memory_bandwidth": "bandwidth", "launch": "time"}


def device_figures(records: Sequence[Mapping[str, Any]]) -> Plain:
    """Return the middle of each figure of a device over some records; at least one."""
    devices = [record["device"] for record in records]
    dtypes = list(dict.fromkeys(dtype for device in devices for dtype in device["peak"]))
    peaks = {
        dtype: _middle([d["peak"][dtype] for d in devices if dtype in d["peak"]], "compute rate")
        for dtype in dtypes
    }
    others = {key: _middle([d[key] for d in devices], kind) for key, kind in RATES.items()}
    return {"peak": peaks, "efficiency": 1.0, **others}


def _middle(texts: Sequence[str], dimension: str) -> str:
    """Return the middle one of some quantities, as written."""
    ordered = sorted(texts, key=lambda text: parse(text, dimension))
    return ordered[len(ordered) // 2]


def device_name(machine: Mapping[str, Any]) -> str:
    """Return a name in the catalogue's form for the device of a machine."""
    text = str(machine.get("gpu", machine["cpu"])).lower()
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


def machine_entry(found: Findings) -> Plain:
    """Return the machine's file as plain data: its device, its link, and what DDP adds."""
    about = found.machine
    ddp = found.ddp.items()
    overheads = [record["scenarios"][name]["cluster"]["overheads"] for name, record in ddp]
    models = [model for _, record in ddp for model in record["models"].values()]
    ranks = [run["world_size"] for model in models for run in model["runs"]]
    link, source, caveats = _link(found)
    cluster: Plain = {
        "devices_per_node": int(about.get("gpus", max(ranks, default=1))),
        "device": {"name": device_name(about), **device_figures(found.records)},
        "topology": "switch",
        "link": link,
    }
    sources = {
        "device": f"{COMMAND} on {about.get('gpu', about['cpu'])}, torch {about['torch']}: "
        "the middle of several measurements; peak is that of products of square matrices",
        "link": source,
    }
    if overheads:
        sources["overheads"] = "steps of DDP that send nothing, over those without DDP"
        hook = median([parse(one["hook"], "time") for one in overheads])
        cluster["overheads"] = {**overheads[0], "hook": microseconds(hook)}
    return {
        "caveats": [
            "The device's efficiency is 1, that of large products: steps of models that were not "
            "measured are longer than simulated.",
            *caveats,
        ],
        "cluster": cluster,
        "source": sources,
    }


def _link(found: Findings) -> tuple[Any, str, list[str]]:
    """Return the link, where it comes from, and what to know about it."""
    log = found.largest_log
    if log is None:
        assumed = "pcie4-x16" if "gpu" in found.machine else dict(HOST_LINK)
        caveat = "The link was not measured, since collectives of two ranks or more were not."
        return assumed, "an assumption", [caveat]
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


def scenario(found: Findings, name: str, up: str = "") -> Plain:
    """Return a model's scenario, with its measured points.

    Parameters
    ----------
    found : Findings
        With a record of DDP of the model.
    name : str
        The model.
    up : str
        Path from the scenario's folder to that of the machine's file, such as ``"../"``.
    """
    made: Plain = dict(found.ddp[name]["scenarios"][name])
    hook = made["cluster"]["overheads"]["hook"]
    world_size = made["cluster"]["world_size"]
    made["cluster"] = {
        "machine": f"{up}{MACHINE}",
        "world_size": world_size,
        "overheads": {"hook": hook},
    }
    notes = _steps(found, name)
    workload = {**made["workload"], "compute": _compute(made["workload"]["compute"], notes)}
    if "gpu" in found.machine and workload["model"]["kind"] in FUSED:
        workload["attention"] = "flash"
    made["workload"] = workload
    measured = {**made.pop("measured"), **_memory(notes)}
    numerics = made.pop("numerics")
    if (log := found.largest_log) is not None:
        made["collectives"] = {"cost": {"kind": "table", "path": f"{up}{log.name}"}}
    return {**made, "numerics": numerics, "measured": measured}


def _steps(found: Findings, name: str) -> list[Plain]:
    """Return the steps of a model without DDP in the precision of its scenario."""
    if name not in found.layers:
        return []
    precision = found.ddp[name]["settings"]["precision"][0]
    steps: list[Plain] = found.layers[name]["models"][name]["precisions"][precision]["steps"]
    return [step for step in steps if not step.get("out_of_memory")]


def _compute(compute: Plain, steps: Iterable[Plain]) -> Plain:
    """Return measured compute with the times of other micro-batches that do not contradict it."""
    points: list[Plain] = list(compute["points"])
    for step in steps:
        new = {"microbatch": step["microbatch"], "step_time": step["step_time"]["p50"]}
        if all(_agree(*sorted([point, new], key=_microbatch)) for point in points):
            points.append(new)
    return {**compute, "points": sorted(points, key=_microbatch)}


def _microbatch(point: Plain) -> int:
    return int(point["microbatch"])


def _agree(small: Plain, large: Plain) -> bool:
    """Return whether two micro-batches differ, and the larger one takes no less time."""
    times = [parse(point["step_time"], "time") for point in (small, large)]
    return small["microbatch"] < large["microbatch"] and not is_contradiction(*times)


def _memory(steps: Iterable[Plain]) -> Plain:
    """Return ``measured.memory`` of a GPU's steps."""
    alone = {"cluster.world_size": 1, "strategy": "single"}
    peaks = [
        {
            "set": {**alone, "workload.microbatch": step["microbatch"]},
            "allocated": step["memory"]["allocated"],
        }
        for step in steps
        if "memory" in step
    ]
    return {"memory": peaks} if peaks else {}


# Files -------------------------------------------------------------------------------------------


def write_files(found: Findings, out: Path) -> list[Path]:
    """Write the machine's file and the scenarios, and return the latter's paths, the first first.

    Models without a record of DDP have no scenario.
    """
    device = found.machine.get("gpu", found.machine["cpu"])
    write_yaml(out / MACHINE, machine_entry(found), f"{device}: measured by {COMMAND}")
    paths: list[Path] = []
    for name in found.ddp:
        is_first = not paths
        path = out / SCENARIO if is_first else out / MORE / f"{name}.yaml"
        comment = (
            f"How long does a step of {name} take here under DDP?\n"
            "Steps of the fewest ranks calibrate, more are predicted."
        )
        write_yaml(path, scenario(found, name, "" if is_first else "../"), comment)
        paths.append(path)
    return paths
