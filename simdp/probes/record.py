"""Records of the probes, and their traces."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from math import sqrt
from pathlib import Path
from typing import Any, NamedTuple

from simdp.files import format_yaml, put_text, write_whole
from simdp.probes.figures import median, microseconds, milliseconds, noise, percent, percentiles
from simdp.probes.zoo import scenario_precision
from simdp.units import parse

# Record -------------------------------------------------------------------------------------------

Plain = dict[str, Any]

STEPS = 4
"""Simulated steps of a written scenario; the last ones are steady."""


class About(NamedTuple):
    """Data of a scenario in addition to the times."""

    backend: str  # of the collectives
    device: str  # ``"cpu"`` or ``"cuda"``
    ranks_per_device: int  # ranks that share a GPU
    microbatch: dict[str, int]  # samples per rank, by model
    precision: str  # as in the probe's arguments
    optimizer: str  # as in the probe's arguments
    table: str | None  # a log of `simdp.probes.collectives`


def write_yaml(path: Path, value: Any, comment: str) -> None:
    """Write plain data as YAML atomically, after a comment; creates the folder."""
    lines = "".join(f"# {line}\n" for line in comment.splitlines())
    write_text(path, lines + format_yaml(value))


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; creates its folder."""
    write_whole(path, partial(put_text, text))


# Runs of DDP -------------------------------------------------------------------------------------


def ddp_record(found: Mapping[str, Any], about: About, settings: Plain) -> Plain:
    """Return the record of `simdp.probes.ddp`.

    Parameters
    ----------
    found : mapping
        Measurements of the ranks: ``machine``, ``device``, and ``models`` with their ``runs``;
        times are lists of rounds of seconds.
    about : About
        Settings of the measurement.
    settings : dict
        The recorded arguments of the probe.
    """
    models = {
        name: {key: model[key] for key in ("model", "gradients", "gradient_bytes")}
        | {"runs": _runs(model["runs"])}
        for name, model in found["models"].items()
    }
    scenarios = {
        name: ddp_scenario(name, model, found, about) for name, model in found["models"].items()
    }
    return {
        "probe": "ddp",
        "machine": found["machine"],
        "settings": settings,
        "device": found["device"],
        "models": models,
        "scenarios": scenarios,
    }


def _all(rounds: Sequence[Sequence[float]]) -> list[float]:
    return [seconds for times in rounds for seconds in times]


def _runs(runs: Sequence[Mapping[str, Any]]) -> list[Plain]:
    """Return runs as quantities, with their exposed communication."""
    middles = {_key(run): median(_all(run["step"])) for run in runs}
    return [_one_run(run, middles) for run in runs]


def _key(run: Mapping[str, Any], variant: str | None = None) -> tuple[int, str, int | None]:
    return run["world_size"], variant or run["variant"], run["bucket_cap"]


def _one_run(run: Mapping[str, Any], middles: Mapping[Any, float]) -> Plain:
    cap = run["bucket_cap"]
    made: Plain = {"world_size": run["world_size"], "variant": run["variant"]}
    if run["variant"] != "baseline":
        made["bucket_cap"] = "default" if cap is None else f"{cap} MiB"
    made["step_time"] = percentiles(_all(run["step"]))
    parts = {part: milliseconds(median(_all(run[part]))) for part in PARTS}
    made |= parts | {"noise": percent(noise(run["step"])), "foreign": percent(max(run["foreign"]))}
    if run["variant"] == "ddp":
        made["exposed_communication"] = {
            "over_skipped": milliseconds(middles[_key(run)] - middles[_key(run, "skipped")]),
            "over_no_sync": milliseconds(middles[_key(run)] - middles[_key(run, "no_sync")]),
        }
    if run.get("logging"):
        made["logging"] = run["logging"]
    return made


PARTS = ("forward", "backward", "update")


# Scenarios ---------------------------------------------------------------------------------------


def ddp_scenario(
    name: str, model: Mapping[str, Any], found: Mapping[str, Any], about: About
) -> Plain:
    """Return the scenario that should reproduce a model's runs.

    Compute is calibrated on steps of the fewest ranks without DDP; DDP's overhead, copies and a
    hook per gradient, on those with it. All other steps are predicted.
    """
    runs = {_key(run): run for run in model["runs"]}
    smallest = min(run["world_size"] for run in model["runs"])
    base = runs[smallest, "baseline", None]
    microbatch = about.microbatch[name]
    cluster: Plain = {"world_size": smallest}
    if about.ranks_per_device > 1:
        cluster["ranks_per_device"] = about.ranks_per_device
    link = "pcie4-x16" if about.device == "cuda" else HOST_LINK  # a table gives the costs
    cluster |= {"device": dict(found["device"]), "topology": "switch", "link": link}
    cluster["overheads"] = _overheads(model, found["device"])
    if about.device == "cpu" and _crowded(model, found["machine"]):
        cluster["overheads"] |= {"compute_slowdown": 1.0, "collective_slowdown": 1.0}
    workload: Plain = {
        "model": dict(model["model"]),
        "optimizer": about.optimizer,
        "microbatch": microbatch,
        "precision": scenario_precision(about.precision),
        "steps": STEPS,
        "compute": measured_compute([(microbatch, base)]),
    }
    collectives: Plain = {}
    if about.table is not None:
        collectives["cost"] = {"kind": "table", "path": about.table}
    return {
        "name": f"probe_{name}",
        "cluster": cluster,
        "workload": workload,
        "strategy": {"kind": "ddp"},
        **({"collectives": collectives} if collectives else {}),
        "numerics": False,
        "measured": _measured(runs, smallest, _source(found["machine"], about)),
    }


def _overheads(model: Mapping[str, Any], device: Mapping[str, Any]) -> Plain:
    """Return DDP's overhead without communication: copies at memory bandwidth, the rest per hook.

    A gradient is read and written when copied into a bucket, and again when copied out.
    """
    smallest = min(run["world_size"] for run in model["runs"])
    mine = [run for run in model["runs"] if run["world_size"] == smallest]
    alone = median([t for run in mine if run["variant"] == "baseline" for t in _all(run["step"])])
    wrapped = median([t for run in mine if run["variant"] == "skipped" for t in _all(run["step"])])
    copies = 4 * model["gradient_bytes"] / parse(device["memory_bandwidth"], "bandwidth")
    hook = max(wrapped - alone - copies, 0.0) / model["gradients"]
    return {"copies": True, "hook": microseconds(hook)}


def _crowded(model: Mapping[str, Any], machine: Mapping[str, Any]) -> bool:
    """Return whether a rank's cores are too few for the threads of the backend.

    Then training and communication each get half of the time while both are active.
    """
    largest = max(run["world_size"] for run in model["runs"])
    return bool(machine["cores"] < largest * (machine["threads_per_rank"] + 1))


HOST_LINK = {"alpha": "50 us", "bandwidth": "2 GB/s"}
"""Between processes of one host over loopback TCP, in orders of magnitude; a table replaces it."""


def measured_compute(points: Sequence[tuple[int, Mapping[str, Any]]]) -> Plain:
    """Return ``compute: measured`` from steps of one rank, by micro-batch."""
    forward = sum(median(_all(run["forward"])) for _, run in points)
    backward = sum(median(_all(run["backward"])) for _, run in points)
    return {
        "kind": "measured",
        "points": [
            {"microbatch": size, "step_time": milliseconds(median(_all(run["step"])))}
            for size, run in points
        ],
        "forward_fraction": round(forward / (forward + backward), 4),
    }


def _measured(runs: Mapping[Any, Mapping[str, Any]], smallest: int, source: str) -> Plain:
    """Return the ``measured:`` block: the fewest ranks calibrate, more are predicted."""
    base = runs[smallest, "baseline", None]
    points: list[Plain] = [
        {
            "set": {"cluster.world_size": smallest, "strategy": "single"},
            "step_time": milliseconds(median(_all(base["step"]))),
            "role": "calibration",
        }
    ]
    if smallest > 1:  # `single` has one rank; several without communication are no step of ours
        points = []
    found = [run for run in runs.values() if run["variant"] == "ddp"]
    for run in found:
        cap = run["bucket_cap"]
        chosen: Plain = {"cluster.world_size": run["world_size"]}
        chosen |= {} if cap is None else {"strategy.bucket_cap": f"{cap} MiB"}
        step_time = milliseconds(median(_all(run["step"])))
        role = "calibration" if run["world_size"] == smallest else "predicted"
        points.append({"set": chosen, "step_time": step_time, "role": role})
    variances = [noise(run["step"]) ** 2 / len(run["step"]) for run in [base, *found]]
    error = sqrt(sum(variances) / len(variances))  # of a figure, which all rounds make together
    return {"source": source, "noise": percent(error), "points": points}


def _source(machine: Mapping[str, Any], about: About) -> str:
    device = machine.get("gpu", machine["cpu"])
    return f"simdp.probes.ddp on {device}, torch {machine['torch']}, {about.backend}"
