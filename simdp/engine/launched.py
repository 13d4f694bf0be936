"""What the spans of a scenario's run consist of; see `simdp.results.launched`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.engine.choice import Planner
from simdp.engine.compute import COMPUTE
from simdp.engine.compute.columns import alike
from simdp.engine.compute.measured_times import MeasuredTimes
from simdp.engine.compute.profile_times import told_update
from simdp.engine.compute.roofline import Roofline, roofline_of
from simdp.engine.launcher import Launcher
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.results.launched import Kernels, Launched, Sent, kernels_of
from simdp.scenario import Scenario
from simdp.steps import ops
from simdp.steps.offload import HostCopy
from simdp.steps.program import Called, Program, called_by, flat
from simdp.workload.precision.rounding import numpy_dtype

Found = dict[tuple[str, str], tuple[list[Kernels], Ints]]


def launched(scenario: Scenario) -> Launched:
    """Work out what the spans of a run consist of.

    Parameters
    ----------
    scenario : Scenario
        One point, as it is played.
    """
    workload, cluster = scenario.workload, scenario.cluster
    roofline = roofline_of(cluster)
    of_device = [device.memory for device in roofline.different]
    layers = {call.layer.name or call.layer.kind: call.layer.kind for call in workload.graph.calls}
    common: dict[str, Any] = {
        "layers": layers | {"loss": workload.loss.kind},
        "launch": roofline.launch,
        "memory": np.array(of_device)[roofline.device],
        "local_size": cluster.local_size,
        "runs_ahead": workload.host.ahead,
        "is_graph": workload.cuda_graphs,
    }
    if scenario.strategy.player == "server":
        return Launched(kernels=_of_calls(scenario, roofline, None), **common)
    planner = Planner(cluster, seed=scenario.seed)
    run = Run(scenario, Slowdown(cluster, scenario.seed), planner)
    return Launched(
        kernels=_of_calls(scenario, roofline, run.program) | _of_update(run),
        sent=dict(_sent(scenario, run)),
        groups={several.name: several.ranks for several in run.program.groups},
        host_copies=frozenset(_host_copies(run.program)),
        updates_on_host=scenario.strategy.updates_on_host,
        **common,
    )


# Compute -----------------------------------------------------------------------------------------


def _of_calls(scenario: Scenario, roofline: Roofline, program: Program | None) -> Found:
    """Kernels of each call; none where steps were measured as a whole."""
    workload, n = scenario.workload, scenario.cluster.world_size
    times = COMPUTE[workload.compute.kind](workload, roofline)
    if isinstance(times, MeasuredTimes):
        return {}
    num_samples = workload.num_samples(scenario.base)
    kinds, _ = workload.kinds_of_steps(n, num_samples)
    batch = kinds[0].sizes[0]
    if program is not None and program.scatters:
        batch = np.full(n, max(int(batch.max()), 1))
    # Of ranks that share a device, as many others may make a kernel longer.
    first, column = alike(batch, roofline.sharers, roofline.device)
    found: Found = {}
    for activity in ("forward", "backward"):
        for rank in first.tolist():
            call, idle, busy = times.kernels(activity, rank, int(batch[rank]))
            ends = np.searchsorted(call, np.arange(len(times.names) + 1))
            # A layer that is called again has the kernels of its last call.
            for name, number in {name: i for i, name in enumerate(times.names)}.items():
                mine = slice(ends[number], ends[number + 1])
                known, _ = found.setdefault((activity, name), ([], column))
                known.append(kernels_of(idle[mine], busy[mine]))
    return found


def _of_update(run: Run) -> Found:
    """Kernels of the optimizer's loop over tensors: equal ones, for want of knowing better."""
    n, footprint = run.world_size, run.memory.footprint
    if run.scenario.strategy.updates_on_host or run.scenario.workload.cuda_graphs:
        return {}
    _, moved, beside = run.costs.per_update()
    launches = np.broadcast_to(np.asarray(footprint.launched_by_optimizer(), float), n)
    whole: Floats = run.roofline.moving(moved) + np.asarray(beside) + np.zeros(n)
    idle = launches * run.roofline.launch
    if told_update(run.scenario.workload, run.roofline) is not None:  # whose launches nobody knows
        launches, idle = np.ones(n), np.zeros(n)
    pairs, column = np.unique(np.stack([launches, idle, whole]), axis=1, return_inverse=True)
    listed = []
    for count, waited, seconds in pairs.T.tolist():
        k = max(int(count), 1)
        listed.append(kernels_of(np.full(k, waited / k), np.full(k, (seconds - waited) / k)))
    return {("update", "optimizer"): (listed, column.ravel())}


# What is sent ------------------------------------------------------------------------------------


def _sent(scenario: Scenario, run: Run) -> Iterator[tuple[tuple[str, float], Sent]]:
    """How each collective of the program is carried out, by its name and size."""
    names = run.times.names
    for plan in (run.program.setup, *run.program.plans):
        for op in flat(plan):
            called = called_by(op)
            if called is None:
                continue
            if isinstance(op, ops.Exchange):
                label = f"{names[op.call]} statistics"
            else:
                label = str(getattr(op, "label", ""))
            key = f"{called.collective} {label}", float(called.nbytes)
            yield key, _carried_out(run.launcher, called, _dtype(scenario, run, op))


def _carried_out(launcher: Launcher, called: Called, dtype: str) -> Sent:
    algorithm, protocol = launcher.serving(
        called.collective, called.nbytes, called.root, called.group
    )
    group = called.group if isinstance(called.group, str) else ""
    return Sent(algorithm, protocol, group, dtype)


def _dtype(scenario: Scenario, run: Run, op: Any) -> str:
    """Dtype of what an operation sends; empty where codes travel, or indices."""
    precision, dtype = scenario.workload.precision, scenario.workload.dtype
    bucket = getattr(op, "bucket", None)
    if bucket is not None:
        return str(bucket.dtype)
    if isinstance(op, ops.Exchange):
        return dtype
    if getattr(op, "selection", None) is not None:
        return ""
    known = (precision.weight_dtype(dtype), precision.low, dtype)
    itemsize = run.program.facts.weight_itemsize
    fitting = [name for name in known if name and numpy_dtype(name).itemsize == itemsize]
    return fitting[0] if fitting else ""


def _host_copies(program: Program) -> Iterator[str]:
    for plan in (program.setup, *program.plans):
        for op in flat(plan):
            if isinstance(op, HostCopy):
                yield op.name
