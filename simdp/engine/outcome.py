"""Metrics of a finished run, projected costs, and kernel launches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from simdp.arrays import Floats, Ints
from simdp.cluster import Cluster
from simdp.cluster.hardware import Device
from simdp.collectives import Plan
from simdp.collectives.costs import Cost, Wiring
from simdp.engine.clocks.clock import FIXED_SHARES, Clock
from simdp.engine.collective import Planner
from simdp.engine.compute.call_times import CallTimes, alike
from simdp.engine.compute.profile_times import MeasuredTimes, profiled_update, times_of
from simdp.engine.compute.roofline import Roofline, roofline_of
from simdp.engine.interpreters.footprints import offloaded_nbytes
from simdp.engine.network import NetworkRoutes
from simdp.engine.network.traffic import Call, Traffic, link_bytes, report
from simdp.engine.run import Run
from simdp.engine.slowdown import Slowdown
from simdp.engine.state import WHOLE, Segment
from simdp.job.targets import LossReached, SamplesNeeded
from simdp.results import metrics
from simdp.results.memory import CollectiveTraffic, KernelSequence, LaunchedKernels, kernels_of
from simdp.results.metrics import (
    Metrics,
    Rates,
    StepRecord,
    energy_range,
    lasting,
    step_bill,
)
from simdp.scenario.placement import wiring_of
from simdp.scenario.root import Scenario
from simdp.steps import ops
from simdp.steps.ops import HostCopy
from simdp.steps.program import Program, flat
from simdp.units import format_quantity
from simdp.workload import Workload
from simdp.workload.compute import FromMeasurements
from simdp.workload.lifetimes import recomputed
from simdp.workload.precision import numpy_dtype
from simdp.workload.step_costs import (
    arithmetic_of_calls,
    flops_of_calls,
    passes,
    time_beside_compute,
)

# Metrics ------------------------------------------------------------------------------------------

PASSES = {"training": 3, "inference": 1}
"""Forward, and backward with twice its FLOPs; recomputed FLOPs are not the model's.

Chowdhery et al., PaLM, JMLR 24 (2023), appendix B.
"""


class ModelRates(NamedTuple):
    """Metrics that follow from the model and its samples per second."""

    tokens_per_s: float | None = None
    tokens_per_s_per_gpu: float | None = None
    model_flops: float | None = None
    mfu: float | None = None
    hfu: float | None = None


def mean_lengths(scenario: Scenario, segment: Segment, steps: range | None) -> dict[str, float]:
    """Mean unpadded length of the samples of some steps, by input; empty if all are equal.

    ``steps`` are counted from the begin of the simulated ``segment``; None: the whole data set.
    """
    workload = scenario.workload
    known = workload.lengths(scenario.seed, scenario.base)
    if not known or steps is None:
        return {name: float(lengths.mean()) for name, lengths in known.items()}
    n, totals, samples = scenario.cluster.world_size, dict.fromkeys(known, 0), 0
    dealt = workload.batches(n, scenario.seed, scenario.base, segment.start)
    for batches in islice(dealt, steps.start, steps.stop):
        for parts in batches.micro:
            samples += int(parts.sizes.sum())
            for name, lengths in known.items():
                totals[name] += int(parts.totals(lengths).sum())
    return {name: total / max(samples, 1) for name, total in totals.items()}


def rates(
    scenario: Scenario,
    throughput: float | None,
    step_time: float,
    segment: Segment = WHOLE,
    steps: range | None = None,
) -> ModelRates:
    """Rates of all ranks that follow from their samples per second.

    Parameters
    ----------
    scenario, segment, steps
        As for `mean_lengths`: the steps that count.
    throughput, step_time : float
        Of all ranks [samples/s]; of a steady step [s].

    Returns
    -------
    ModelRates
        ``tokens_per_s``: of the model's first input, if it takes tokens, without padding;
        ``tokens_per_s_per_gpu``: the same per device; ``model_flops``: FLOPs of the model's
        products in a step of all ranks, forward and twice as many backward. Attention counts all
        pairs of tokens, even if it is causal, as in torchtitan and llm-foundry: ``6 P + 12 L d S``
        per token of P parameters of products (PaLM, appendix B). ``mfu``: these relative to the
        devices' peak in the dtype of the products (of 16 bits where linear layers multiply in 8,
        of TF32 where products of float32 run in it); ``hfu``: with the forward FLOPs repeated by
        `recompute`, but without the internal recomputation of fused attention. None where it does
        not apply.
    """
    model_rates = ModelRates()
    workload, cluster = scenario.workload, scenario.cluster
    model, names = workload.model, workload.model.graph.inputs
    shapes = model.input_shapes()
    if not throughput or model.timed or any(shapes[name] is None for name in names):
        return model_rates
    cut = {name: tuple(shapes[name] or ()) for name in names}
    mean = mean_lengths(scenario, segment, steps)
    for name, length in mean.items():
        cut[name] = (max(round(length), 1), *cut[name][1:])
    first = names[0]
    if model.num_tokens(first) is not None:
        tokens = throughput * mean.get(first, cut[first][0])
        model_rates = ModelRates(tokens, tokens / float((1 / cluster.sharers()).sum()))
    if (packs := workload.packs(scenario.base)) is not None:  # no attention between pieces
        throughput *= len(packs.pieces) / len(packs.first)
        cut[first] = (max(round(float(packs.pieces.mean())), 1),)
    of_calls = flops_of_calls(workload.graph, tuple(cut[name] for name in names))
    graph, most = workload.graph, PASSES[workload.mode]
    flops = sum(
        min(most, passes(graph, n)) * call_flops.products for n, call_flops in enumerate(of_calls)
    )
    if not flops:
        return model_rates
    model_rates = model_rates._replace(model_flops=throughput * step_time * flops)
    if peak := peak_flops(scenario):
        again = sum(of_calls[call].products for run in recomputed(workload) for call in run.again)
        mfu, hfu = throughput * flops / peak, throughput * (flops + again) / peak
        model_rates = model_rates._replace(mfu=mfu, hfu=hfu)
    return model_rates


def peak_flops(scenario: Scenario) -> float | None:
    """Arithmetic of all devices at their peaks [FLOP/s]; None where one lacks the dtype."""
    cluster, workload = scenario.cluster, scenario.workload
    dtype = workload.precision.low or workload.dtype
    if not isinstance(cluster.device, list):
        of_device = _peak(cluster.device, workload, dtype)
        return None if of_device is None else of_device * float((1 / cluster.sharers()).sum())
    peaks = [_peak(device, workload, dtype) for device in cluster.device]
    shared = zip(peaks, cluster.sharers().tolist(), strict=True)
    return None if None in peaks else sum((peak or 0.0) / k for peak, k in shared)


def _peak(device: Device, workload: Workload, dtype: str) -> float | None:
    """Peak in a dtype, or in TF32 where torch multiplies so on this device [FLOP/s]."""
    could = "tfloat32" in device.peak and dtype == "float32" and not workload.model.timed
    if could and "tfloat32" in arithmetic_of_calls(workload):
        dtype = "tfloat32"
    return device.peak.get(dtype)


TIMES_FASTER, TIMES_SLOWER = 2.0, 3.0
"""Ratios to the device's own figures beyond which a measured step is remarked on: entries of the
catalogue meet most rows within 20 %, and small batches that wait for their host take longer."""


def unlikely_steps(scenario: Scenario) -> dict[str, str]:
    """Remark on measured steps that contradict the figures of their device."""
    workload, doubts = scenario.workload, list[str]()
    compute, devices = workload.compute, scenario.cluster.devices()
    if not isinstance(compute, FromMeasurements) or workload.model.timed:
        return {}
    if not any(call.layer.autocast == "lower" for call in workload.graph.calls):
        return {}  # without products, nothing to hold a time against
    for device in dict.fromkeys(device.name for device in devices):
        of_kind = next(other for other in devices if other.name == device)
        times = CallTimes(workload, Roofline([of_kind]))
        for point in compute.of_device(device):
            size = point.microbatch
            passes = sum(times.whole(name, 0, size) for name in ("forward", "backward"))
            own = passes + time_beside_compute(workload, size, of_kind, point.sharded_over)
            ratio = point.step_time / own
            if 1 / TIMES_FASTER <= ratio <= TIMES_SLOWER:
                continue
            slower = f"{ratio:.1f} times as long as"
            how = slower if ratio > 1 else f"{1 / ratio:.1f} times faster than"
            doubts.append(
                f"{format_quantity(point.step_time, 'time')} at microbatch {size} is {how} the "
                f"device's figures give, {format_quantity(float(f'{own:.3g}'), 'time')}"
            )
    if not doubts:
        return {}
    return {"measured step": f"{'; '.join(doubts)}: check dtype, lengths and what the step held"}


LEAST_UPDATE = 0.01
"""Least share of a measured step in which it matters whether its update was sharded."""


def taken_as_whole(scenario: Scenario) -> dict[str, str]:
    """Remark on a measured step, taken as one device's, that may be of a sharded update."""
    workload, partition = scenario.workload, scenario.program.partition
    if not isinstance(workload.compute, FromMeasurements) or partition is None:
        return {}
    device, places = scenario.cluster.devices()[0], partition.num_places
    for point in workload.compute.of_device(device.name):
        size = point.microbatch
        whole, part = (time_beside_compute(workload, size, device, n) for n in (1, places))
        share = (whole - part) / point.step_time
        if point.sharded_over is None and share >= LEAST_UPDATE:
            text = (
                "the measured step is taken as one device's, with the whole update; if it is of a "
                f"row sharded over {places} ranks, write sharded_over: {places} in "
                f"workload.compute.points ({100 * share:.2g} % of it; 1 if it is not)"
            )
            return {"update": text}
    return {}


HOST_SHARE = 0.1
"""Least host memory of offloaded tensors that is remarked on where the nodes' is unknown, as a
share of the memory of a node's devices. Every machine of the catalogue whose host memory is known
has more of it than of its devices'."""


def unchecked_host_memory(scenario: Scenario) -> dict[str, str]:
    """Remark on the host memory that offloaded tensors need where the nodes' is unknown."""
    cluster, needed = scenario.cluster, offloaded_nbytes(scenario)
    of_devices = sum(device.memory for device in cluster.devices()) / cluster.num_nodes
    if cluster.host_memory is not None or needed <= HOST_SHARE * of_devices:
        return {}
    size = format_quantity(float(f"{needed:.2g}"), "data size")
    return {"host memory": f"needs {size} per node; set cluster.host_memory to check it"}


NOT_REACHED = "not reached"
"""Topic of a remark on events that a run is too short for."""


def not_reached(scenario: Scenario, num_steps: int, metrics: Metrics) -> dict[str, str]:
    """Remark on events that begin behind the last simulated step, or have a longer period."""
    strategy, rebalance = scenario.strategy, scenario.workload.rebalance
    events = [
        straggler.rare_event(metrics.step_time_s) for straggler in scenario.cluster.stragglers
    ]
    first, period = strategy.first_alike, strategy.steps_together
    events.append((first, f"steps of the strategy after its first {first}, which differ"))
    if strategy.averages_parameters:
        events.append((first + period - 1, f"the average of weights every {period} steps"))
    if rebalance is not None and rebalance.every is not None:
        events.append((rebalance.every, f"workload.rebalance every {rebalance.every} steps"))
    missed = [event[1] for event in events if event and is_missed(event, num_steps, metrics)]
    steps = "one step is" if num_steps == 1 else f"{num_steps} steps are"
    return {NOT_REACHED: f"{steps} too short for {'; '.join(missed)}"} if missed else {}


def is_missed(event: tuple[int | float, str] | None, num_steps: int, metrics: Metrics) -> bool:
    """Return whether an event, as of `Straggler.rare_event`, is behind the last simulated step."""
    begin = event[0] if event else 0
    return bool(begin) and begin >= (metrics.simulated_s if isinstance(begin, float) else num_steps)


def too_fast(metrics: Metrics) -> dict[str, str]:
    """Warning about a step that is faster than its FLOPs at the devices' peak."""
    share = metrics.mfu
    if share is None or share <= 1.0:
        return {}
    return {
        "MFU above 100 %": "the step is faster than the devices' peak allows: either measured "
        "compute times are of another device or dtype, or kernels need fewer FLOPs (Winograd)"
    }


def spared_tiers(clock: Clock, traffic: Traffic, num_steps: int) -> dict[str, str]:
    """Remark on oversubscribed switches between nodes that the traffic of steps does not reach."""
    numbering = clock.network.cluster.numbering
    ports = numbering.num_nodes * numbering.cards, numbering.cards
    between = None if numbering.inter is None else numbering.inter.topology
    if between is None or not between.spared(np.empty(0, dtype=np.int64), *ports):
        return {}
    first = metrics.num_warm_up(num_steps)
    links, _ = link_bytes(clock.network, traffic.per_step(first, num_steps - first))
    used = links[links >= numbering.between] - numbering.between
    spared = between.spared(used, *ports).items() if len(used) else ()
    lines = [f"{key} is not reached: traffic keeps to the {text}" for key, text in spared]
    return {"oversubscription": "; ".join(lines)} if lines else {}


def participation(run: Run, charged: Sequence[StepRecord]) -> dict[str, Any] | None:
    """Numbers of counted and dropped samples in the simulated steps; None if none was dropped."""
    if not run.dropped.any():
        return None
    counted = sum(record.samples for record in charged)
    return {"counted": counted, "dropped": run.dropped.tolist()}


def network_of(run: Run, clock: Clock, traffic: Traffic, ends: Floats) -> dict[str, Any]:
    """Link use of a steady step, fabric and chosen algorithms.

    A step lasts from the first rank's begin to the last one's end. Traffic of neighbours is their
    total scaled to a step. ``ends`` is that of `metrics.step_ends`.
    """
    num_steps = ends.shape[1] - 1
    first = metrics.num_warm_up(num_steps)
    moved = traffic.per_step(first, num_steps - first)
    seconds = float(ends[:, -1].max() - ends[:, first].min()) / (num_steps - first)
    share = seconds / float(ends.max()) if seconds else 0.0
    others = [
        (other.network, {plan: nbytes * share for plan, nbytes in other.traffic.done.items()})
        for other in clock.others
    ]
    used = report(clock.network, moved, seconds, others, clock.fabric == FIXED_SHARES)
    calls = traffic.timed_per_step(first, num_steps - first)
    # If some collectives are simulated, the timed ones may be only in the setup.
    if traffic.timed and (run.scenario.collectives.all_timed or calls != {}):
        used["num_links_used"] = None  # a timed collective need not use its plan's links
        wires = wires_of(run.scenario.collectives.cost, wiring_of(run.scenario.cluster), calls)
        timed = [
            {"link": name, "nbytes": nbytes, "utilization": min(busy / seconds, 1.0)}
            for name, nbytes, busy in wires
            if seconds
        ]
        every = [*timed, *used["links"]]
        used["links"] = sorted(every, key=lambda link: -link["utilization"]) if timed else every
        used["bottleneck"] = used["links"][0] if used["links"] else None
    cards = cards_used(clock.network, moved)
    return {
        "fabric": clock.fabric,
        "why": clock.why,
        **used,
        **({"cards": {"used": cards[0], "of": cards[1]}} if cards else {}),
        "chosen": run.launcher.chosen(),
    }


def wires_of(
    cost: Cost, wiring: Wiring, calls: Mapping[Call, float] | None
) -> list[tuple[str, float, float]]:
    """Traffic of timed collectives by NCCL's model.

    ``calls`` are the numbers of calls per step by collective and size; None if unknown.

    Returns
    -------
    list of (str, float, float)
        Links inside a node and NICs, the busier first: name, bytes sent by one device or node
        [bytes], and their time at full bandwidth [s]. Empty for costs without traffic.
    """
    way_of = getattr(cost, "way", None)
    if way_of is None or not calls or wiring.world_size == 1:
        return []
    intra = inter = 0.0
    for (collective, nbytes), count in calls.items():
        way = way_of(collective, nbytes, wiring)
        intra += count * nbytes * way.intra_sent
        inter += count * nbytes * way.inter_sent
    wires = [
        ("a device's links in its node", intra, intra / wiring.intra_bandwidth),
        ("a node's network cards", inter, inter / wiring.inter_bandwidth),
    ]
    return sorted((wire for wire in wires if wire[1]), key=lambda wire: -wire[2])


def cards_used(network: NetworkRoutes, moved: Mapping[Plan, float]) -> tuple[int, int] | None:
    """Number of NICs per node that plans send through, and number of NICs per node.

    None if nodes have one NIC, if nothing is sent between nodes, or if network switches reduce,
    which belong to no node.
    """
    cluster = network.cluster
    n, m, nics = cluster.world_size, cluster.local_size, cluster.numbering.nics
    there = len(np.unique(nics))
    if cluster.num_nodes == 1 or there == 1 or network.vertices is not None:
        return None
    used = np.zeros((cluster.num_nodes, int(nics.max()) + 1), dtype=bool)
    for plan, nbytes in moved.items():
        for part in plan.everything if nbytes else ():
            c = network.of_part(part)
            src, dst = c.src.reshape(-1), c.dst.reshape(-1)
            if max(src.max(initial=0), dst.max(initial=0)) >= n:
                return None
            leaves = src[src // m != dst // m]
            used[leaves // m, nics[leaves % m]] = True
    most = int(used.sum(axis=1).max())
    bond = cluster.numbering.bond
    return (bond * most, bond * there) if most else None


# Costs and targets --------------------------------------------------------------------------------

HOUR = 3600.0


def cost_of(scenario: Scenario, metrics: Metrics) -> dict[str, Any]:
    """Cost of a steady step; see `simdp.results.result.Result.cost`."""
    cluster = scenario.cluster
    rates = cluster.rates()
    if not rates.is_known:
        return {}
    cost: dict[str, Any] = dict(step_bill(rates, metrics))
    between = energy_range(rates, metrics.busy_s, metrics.waiting_s, metrics.other_s)
    if between is not None:
        cost["energy_between_kwh"] = list(between)
    if rates.price is not None:
        cost["price_usd_per_h"] = rates.price * HOUR / float((1 / cluster.sharers()).sum())
        cost["price_date"] = price_date(cluster)
    return cost


def price_date(cluster: Cluster) -> str | None:
    """The oldest date of the list prices in use; None with a price of the user's own."""
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    if cluster.price is not None:
        return None
    return min((device.price.date for device in devices if device.price is not None), default=None)


def need_of(scenario: Scenario, global_batch: float) -> SamplesNeeded | None:
    """Samples needed for a scenario's target; None without one, or if only a run can tell."""
    target = scenario.target_in_samples
    if target is None:
        return None
    return target.need(global_batch, scenario.workload.num_samples(scenario.base))


def target_of(
    scenario: Scenario,
    metrics: Metrics,
    records: Sequence[StepRecord],
    ends: Floats,
) -> dict[str, Any] | None:
    """Time and cost of the target; see `simdp.results.result.Result.target`.

    ``metrics`` are of the steady step, ``ends`` from `simdp.results.metrics.step_ends`.
    """
    target, workload = scenario.target, scenario.workload
    if target is None:
        return None
    rates = scenario.cluster.rates()
    if isinstance(target, LossReached):
        return _of_loss(target, rates, metrics, records, ends) if scenario.numerics else None
    throughput = metrics.throughput_samples_per_s
    batch = float(workload.samples_per_step(scenario.cluster.world_size))
    need = need_of(scenario, batch)
    if need is None or not throughput:
        return None
    summary = {
        "samples": {"mean": need.mean, "sd": need.sd},
        "steps": need.steps(batch),
        **_over_time(rates, metrics, need.seconds(throughput)),
    }
    return {"kind": target.kind, **summary}


def _of_loss(
    target: LossReached,
    rates: Rates,
    metrics: Metrics,
    records: Sequence[StepRecord],
    ends: Floats,
) -> dict[str, Any]:
    """Steps, time and cost until a loss is reached; ``ends`` may cover only the last steps."""
    steps = target.reached_after([record.loss for record in records])
    summary: dict[str, Any] = {"kind": target.kind, "reached": steps is not None, "steps": steps}
    column = None if steps is None else ends.shape[1] - 1 - (len(records) - steps)
    if steps is None or column is None or column < 0:
        return summary | dict.fromkeys(("samples", "time_s", "cost_usd", "energy_kwh"))
    seconds = {"mean": float(ends[:, column].max())}
    done = float(sum(record.samples for record in records[:steps]))
    return summary | {"samples": {"mean": done, "sd": 0.0}, **_over_time(rates, metrics, seconds)}


def _over_time(
    rates: Rates, metrics: Metrics, seconds: dict[str, float]
) -> dict[str, dict[str, float] | None]:
    """Times, with the cost and energy of steady steps."""
    bills = {name: lasting(rates, metrics, time) for name, time in seconds.items()}
    costs = {name: bill.cost_usd for name, bill in bills.items() if bill.cost_usd is not None}
    energies = {
        name: bill.energy_kwh for name, bill in bills.items() if bill.energy_kwh is not None
    }
    return {"time_s": seconds, "cost_usd": costs or None, "energy_kwh": energies or None}


Found = dict[tuple[str, str], tuple[list[KernelSequence], Ints]]


def launched(scenario: Scenario) -> LaunchedKernels:
    """Kernels and traffic of the spans of a run."""
    workload, cluster = scenario.workload, scenario.cluster
    roofline = roofline_of(cluster)
    of_device = [device.memory for device in roofline.different]
    layers = {call.layer.name or call.layer.kind: call.layer.kind for call in workload.graph.calls}
    common: dict[str, Any] = {
        "layers": layers | {"loss": workload.loss.kind},
        "launch": roofline.launch,
        "memory": np.array(of_device)[roofline.device],
        "local_size": cluster.local_size,
        "runs_ahead": workload.host.async_launch,
        "is_graph": workload.cuda_graphs,
    }
    if scenario.strategy.has_server:
        return LaunchedKernels(kernels=_of_calls(scenario, roofline, None), **common)
    run = Run(scenario, Slowdown(cluster, scenario.seed), Planner(cluster, seed=scenario.seed))
    plans = (run.program.setup, *run.program.plans)
    return LaunchedKernels(
        kernels=_of_calls(scenario, roofline, run.program) | _of_update(run),
        sent=dict(_sent(scenario, run)),
        groups={several.name: several.ranks for several in run.program.groups},
        host_copies=frozenset(
            op.name for plan in plans for op in flat(plan) if isinstance(op, HostCopy)
        ),
        updates_on_host=scenario.strategy.updates_on_host,
        **common,
    )


def _of_calls(scenario: Scenario, roofline: Roofline, program: Program | None) -> Found:
    """Kernels of each call; empty if only whole steps were measured."""
    workload, n = scenario.workload, scenario.cluster.world_size
    times = times_of(workload, scenario.strategy, roofline)
    if workload.compute.source == "measured":
        return {}
    assert not isinstance(times, MeasuredTimes)
    num_samples = workload.num_samples(scenario.base)
    kinds, _ = workload.kinds_of_steps(n, num_samples)
    batch = kinds[0].sizes[0]
    if program is not None and program.scatters:
        batch = np.full(n, max(int(batch.max()), 1))
    # On a shared device a kernel takes longer, so that the number of sharers is part of the key.
    first, column = alike(batch, roofline.sharers, roofline.device)
    launches: Found = {}
    for activity in ("forward", "backward"):
        for rank in first.tolist():
            call, idle, busy = times.kernels(activity, rank, int(batch[rank]))
            ends = np.searchsorted(call, np.arange(len(times.names) + 1))
            # A layer that is called repeatedly has the kernels of its last call.
            for name, number in {name: i for i, name in enumerate(times.names)}.items():
                mine = slice(ends[number], ends[number + 1])
                known, _ = launches.setdefault((activity, name), ([], column))
                known.append(kernels_of(idle[mine], busy[mine]))
    return launches


def _of_update(run: Run) -> Found:
    """Kernels of the optimizer's loop over tensors, assumed to be equal."""
    n, footprint = run.world_size, run.memory.footprint
    if run.scenario.strategy.updates_on_host or run.scenario.workload.cuda_graphs:
        return {}
    _, moved, beside = run.costs.per_update()
    launches = np.broadcast_to(np.asarray(footprint.launched_by_optimizer(), float), n)
    whole: Floats = run.roofline.updating(moved) + np.asarray(beside) + np.zeros(n)
    idle = launches * run.roofline.launch
    if profiled_update(run.scenario.workload, run.roofline) is not None:  # with unknown launches
        launches, idle = np.ones(n), np.zeros(n)
    pairs, column = np.unique(np.stack([launches, idle, whole]), axis=1, return_inverse=True)
    listed = []
    for count, waited, seconds in pairs.T.tolist():
        k = max(int(count), 1)
        listed.append(kernels_of(np.full(k, waited / k), np.full(k, (seconds - waited) / k)))
    return {("update", "optimizer"): (listed, column.ravel())}


# Traffic -----------------------------------------------------------------------------------------


def _sent(scenario: Scenario, run: Run) -> Iterator[tuple[tuple[str, float], CollectiveTraffic]]:
    """Algorithm and dtype of each collective of the program, by its name and size."""
    names = run.times.names
    for plan in (run.program.setup, *run.program.plans):
        for op in flat(plan):
            called = op.called
            if called is None:
                continue
            if isinstance(op, ops.Exchange):
                label = f"{names[op.call]} statistics"
            else:
                label = str(getattr(op, "label", ""))
            key = f"{called.collective} {label}", float(called.nbytes)
            algorithm, protocol = run.launcher.serving(
                called.collective, called.nbytes, called.root, called.group
            )
            group = called.group if isinstance(called.group, str) else ""
            dtype = _dtype(scenario, run, op)
            yield key, CollectiveTraffic(algorithm, protocol, group, dtype)


def _dtype(scenario: Scenario, run: Run, op: object) -> str:
    """Dtype of an operation's data; empty for codes and indices."""
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
