"""Make ``points.json`` of ``scenarios/validation``.

python -m benchmarks.leaderboard.gather

Takes about a minute. Where the points change, raise ``VERSION`` and put the day into ``DATE``; then
``python -m benchmarks.leaderboard --replay`` asks simdp again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from benchmarks.leaderboard.points import FILE, put
from simdp.cluster import Cluster
from simdp.cluster.hardware import Device
from simdp.errors import ScenarioError
from simdp.scenario.placement import wiring_of
from simdp.steps.partition import BUCKET_CAP_NBYTES
from simdp.strategies.base import Strategy
from simdp.strategies.ddp import DDP, Apex
from simdp.strategies.horovod import Horovod
from simdp.studies.validate.folds import Item, items_of, kind_of, model_of, site_of
from simdp.studies.validate.jobs import load_measured
from simdp.workload import Workload
from simdp.workload.compute import FromMeasurements, time_at
from simdp.workload.precision import numpy_dtype
from simdp.workload.step_costs import flops_of_calls, matrix_dtype, passes

VERSION = 4
DATE = "2026-11-27"

SCENARIOS = Path(__file__).parents[2] / "scenarios" / "validation"

Record = dict[str, Any]


LATER = ("dataparallel", "marenostrum", "memory", "pytorch-ddp-2026", "sia/sia-quad_bert.yaml")
"""Folders and files of scenarios that are not among the points yet, or have no times."""


def files() -> list[Path]:
    """Scenarios whose points are those of this version."""
    left_out = {SCENARIOS / name for name in LATER}
    found = (
        path for path in SCENARIOS.rglob("*.yaml") if left_out.isdisjoint((path, *path.parents))
    )
    return sorted(found)


def gathered(paths: Sequence[Path]) -> Record:
    """What the file says of some scenarios."""
    items: dict[str, list[Item]] = {}
    for item in items_of(load_measured(paths)):
        items.setdefault(_name(item), []).append(item)
    return {name: _of_scenario(group) for name, group in items.items()}


def _name(item: Item) -> str:
    path = Path(item.file).resolve()
    name = path.relative_to(SCENARIOS) if path.is_relative_to(SCENARIOS) else Path(path.name)
    return name.with_suffix("").as_posix()


def _of_scenario(items: Sequence[Item]) -> Record:
    measured = items[0].measured
    steps = [_step(item) for item in items if not item.is_table]
    common = {
        key: value
        for key, value in (steps[0].items() if steps else ())
        if all(step[key] == value for step in steps)
    }
    return {
        "source": measured.source,
        "noise": measured.noise,
        "steps": common,
        "points": [{k: v for k, v in step.items() if k not in common} for step in steps],
        "tables": [_table(item) for item in items if item.is_table],
    }


def _place(item: Item) -> Record:
    """Where something was measured, and what joins the ranks there."""
    cluster, wires = item.made.cluster, wiring_of(item.made.cluster)
    return {
        "cluster": item.machine,
        "machine": Path(cluster.machine).stem if cluster.machine else None,
        "site": site_of(item),
        "device": _device(cluster).name,
        "nodes": wires.num_nodes,
        "ranks": wires.world_size,
        "ranks_per_node": wires.local_size,
        "intra_latency_s": _plain(wires.intra_alpha),
        "intra_bandwidth": _plain(wires.intra_bandwidth),
        "inter_latency_s": _plain(wires.inter_alpha),
        "inter_bandwidth": _plain(wires.inter_bandwidth),
        "cards": wires.cards,
        "peer": wires.peer,
        "network": wires.network,
    }


def _device(cluster: Cluster) -> Device:
    return cluster.device[0] if isinstance(cluster.device, list) else cluster.device


def _plain(value: float | None) -> float | None:
    """A figure that reads the same everywhere; None for what is not there."""
    return None if value is None or not isfinite(value) else float(f"{value:.9g}")


def _step(item: Item) -> Record:
    made = item.made
    workload, strategy, device = made.workload, made.strategy, _device(made.cluster)
    graph = workload.graph
    learned = sum(tensor.num_elements for tensor in graph.trainable)
    dtype = matrix_dtype(workload, [device])
    samples = workload.samples_per_step(made.cluster.world_size)
    accumulated = workload.grad_accum
    micro_steps = max(accumulated) if isinstance(accumulated, list) else accumulated
    microbatch = workload.microbatch or max(samples // (made.cluster.world_size * micro_steps), 1)
    alone = _micro_step(workload, microbatch)
    tells_of_kernels = alone is None and item.point.role == "calibration"
    role = "given" if item.is_fitted or tells_of_kernels else item.point.role
    kept = getattr(strategy, "param_dtype", None)
    itemsize = numpy_dtype(kept).itemsize if kept else workload.gradient_itemsize
    return {
        **_place(item),
        "model": model_of(item),
        "parameters": graph.num_parameters,
        "tensors": len(graph.trainable),
        "blocks": max(len(graph.blocks), 1),
        "gradient_bytes": learned * workload.gradient_itemsize,
        "parameter_bytes": graph.num_parameters * itemsize,
        "family": kind_of(item),
        "precision": dtype,
        "peak_flops": _plain(device.peak.get(dtype)),
        "memory_bandwidth": _plain(device.memory_bandwidth),
        "microbatch": microbatch,
        "grad_accum": micro_steps,
        "samples": samples,
        "micro_step_flops": _flops(workload, microbatch),
        "micro_step_s": alone,
        "strategy": strategy.kind,
        "bucket_bytes": _bucket(strategy, workload.gradient_itemsize),
        "options": _options(strategy),
        "measured_s": _plain(item.point.seconds(samples)),
        "role": role,
    }


def _micro_step(workload: Workload, microbatch: int) -> float | None:
    """What one device takes for a micro-batch, as was measured [s]; None where nobody did."""
    compute = workload.compute
    if not isinstance(compute, FromMeasurements):
        return None
    points = [(point.microbatch, point.step_time) for point in compute.of_device(None)]
    return _plain(time_at(points, microbatch, float)) if points else None


def _flops(workload: Workload, microbatch: int) -> float | None:
    """Products of forward and backward of a micro-batch; None where a model's are not known."""
    if workload.model.timed:
        return None
    try:
        shapes = workload.model.known_shapes()
    except (ScenarioError, ValueError):
        return None
    graph, again = workload.graph, int(workload.recompute != "none")
    calls = enumerate(flops_of_calls(graph, shapes))
    each = sum((passes(graph, number) + again) * one.products for number, one in calls)
    return _plain(each * microbatch)


def _bucket(strategy: Strategy, itemsize: int) -> float | None:
    """The most gradients that travel together [bytes]; None where the strategy sets none."""
    if isinstance(strategy, Horovod):
        caps = {"none": 0.0, "threshold": strategy.fusion_threshold}
        return caps.get(strategy.merge)
    if isinstance(strategy, Apex):
        return float(strategy.message_size * itemsize)
    if isinstance(strategy, DDP):
        return float(BUCKET_CAP_NBYTES if strategy.bucket_cap is None else strategy.bucket_cap)
    return None


def _options(strategy: Strategy) -> Record:
    """What else a strategy says, in SI units."""
    said = {name: getattr(strategy, name) for name in type(strategy).model_fields if name != "kind"}
    return {name: v for name, v in said.items() if isinstance(v, str | bool | int | float)}


def _table(item: Item) -> Record:
    table = item.table
    times = zip(table.times, table.roles(), strict=True)
    return {
        **_place(item),
        "collective": table.collective,
        "fitted": table.calibration != "none",
        "times": [[nbytes, _plain(seconds), role] for (nbytes, seconds), role in times],
    }


def lines(scenarios: Record) -> Iterator[str]:
    """The file's text, a point a line."""
    yield f'{{"version": {VERSION}, "date": "{DATE}", "scenarios": {{\n'
    for n, (name, scenario) in enumerate(scenarios.items()):
        yield "," * bool(n) + f"{json.dumps(name)}: {{\n"
        parts = []
        for key, value in scenario.items():
            text = json.dumps(value)
            if isinstance(value, list) and value:
                text = "[\n" + ",\n".join(json.dumps(one) for one in value) + "\n]"
            parts.append(f"{json.dumps(key)}: {text}")
        yield ",\n".join(parts) + "\n}"
    yield "\n}}\n"


def main() -> int:
    """Write the file."""
    put(FILE, "".join(lines(gathered(files()))))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
