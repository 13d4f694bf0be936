"""Checks between the parts of a scenario.

Each part may be valid on its own; these checks need several parts, at one point of a sweep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from simdp.cluster import Cluster
from simdp.cluster.hardware import DEVICES, Device
from simdp.cluster.stragglers import Pause
from simdp.collectives import Collectives
from simdp.errors import shown, unknown_name
from simdp.job.recovery import Checkpoint, Elastic, ReplicaGroups
from simdp.job.targets import LossReached, Target
from simdp.scenario.overrides import Raw
from simdp.scenario.placement import among_others, group_layout, layout, wiring_of, wiring_of_groups
from simdp.scenario.root import Scenario
from simdp.spec import Problem
from simdp.steps.program import ProcessGroups, Program
from simdp.strategies import STRATEGIES
from simdp.strategies.base import Strategy, infers
from simdp.strategies.memory import checkpoint_nbytes, host_memory, host_memory_needed
from simdp.units import format_quantity
from simdp.workload import Workload
from simdp.workload.compute import (
    FromMeasurements,
    FromRoofline,
    MeasuredStepTime,
    is_contradiction,
)
from simdp.workload.execution import widened
from simdp.workload.sampling import DropLast, Rebalance
from simdp.workload.step_costs import arithmetic_of_calls, time_beside_compute


def frozen_problems(workload: Workload, strategy: Strategy) -> list[str]:
    """Reject strategies that do not support frozen parameters."""
    if not workload.graph.frozen:
        return []
    wrong = strategy.problem_with_frozen()
    return [f"workload.frozen: {wrong}"] if wrong else []


# Goals --------------------------------------------------------------------------------------------


def target_problems(
    target: Target | None, cluster: Cluster, workload: Workload, base: Path, numerics: bool
) -> list[str]:
    """Explain why a target does not fit an otherwise valid scenario."""
    if target is None:
        return []
    if workload.mode != "training":
        return ["target: nothing is learned with workload.mode: inference; leave it out."]
    n = cluster.world_size
    if isinstance(target, LossReached):
        if not numerics:
            return [
                "target.loss: only replicas that learn can reach a loss, and numerics is false; "
                "set numerics: true, or write {samples: ...}."
            ]
        num_steps = workload.num_steps(n, base)
        if target.window > num_steps:
            return [
                f"target.window: a mean over {target.window} steps never comes about in a run of "
                f"{num_steps}; write less, or set workload.steps to more."
            ]
        return []
    target = target.in_samples(workload.tokens_per_sample(0, base))
    wrong = target.problem_with(workload.samples_per_step(n), workload.num_samples(base))
    return [f"target.{wrong}"] if wrong else []


def noise_problems(
    cluster: Cluster, workload: Workload, strategy: Strategy, base: Path, numerics: bool
) -> list[str]:
    """Explain why a requested gradient noise scale cannot be measured."""
    if not workload.gradient_noise:
        return []
    n = cluster.world_size
    why = None
    if not numerics:
        why = "numerics is false, so that there are no gradients; set it to true"
    elif n < 2:
        why = "one rank has no other gradient to compare; set cluster.world_size to 2 or more"
    elif not strategy.has_synchronous_ranks or strategy.averages_parameters:
        why = f"ranks of {strategy.kind} have no gradients of the same weights; use ddp"
    elif workload.loss.adds:
        why = f"{workload.loss.kind} adds losses up; use one that averages"
    elif _keeps_pieces(strategy, workload, n, workload.num_samples(base)):
        why = f"{strategy.kind} keeps no whole gradient; use ddp, whose noise is the same"
    return [f"workload.gradient_noise: {why}, or leave this out."] if why else []


def _keeps_pieces(strategy: Strategy, workload: Workload, n: int, num_samples: int) -> bool:
    partition = Program.of(strategy, workload, n, num_samples).partition
    return partition is not None and not partition.kept.weights


# Recovering ---------------------------------------------------------------------------------------


def recovery_problems(scenario: Scenario) -> list[str]:
    """Refuse policies that a valid scenario does not support, and checkpoints that do not fit."""
    lines, recovery = list[str](), scenario.recovery
    if scenario.checkpoint is not None:
        lines += _without_room(scenario.checkpoint, scenario)
        writers, ranks = scenario.checkpoint.writers, scenario.cluster.world_size
        if writers is not None and writers > ranks:
            lines.append(
                f"checkpoint.writers: {writers} is more than the {ranks} ranks; use that or fewer."
            )
    if isinstance(recovery, Elastic):
        lines += _not_elastic(scenario, recovery)
    if isinstance(recovery, ReplicaGroups):
        lines += _not_in_groups(scenario, recovery)
    return lines


def _without_room(checkpoint: Checkpoint, scenario: Scenario) -> list[str]:
    if checkpoint.size is not None:  # its own check
        return []
    wrong = checkpoint.problem_with_size(
        checkpoint_nbytes(scenario.workload, scenario.program.outer_optimizer)
    )
    return [f"checkpoint.{wrong}"] if wrong else []


def _not_elastic(scenario: Scenario, recovery: Elastic) -> list[str]:
    """Explain why the world size cannot shrink."""
    cluster, workload, strategy = scenario.cluster, scenario.workload, scenario.strategy
    lines = []
    if recovery.min_nodes > cluster.num_nodes:
        lines.append(
            f"recovery.min_nodes: {recovery.min_nodes} is more than the {cluster.num_nodes} nodes "
            "of the cluster; use that or fewer."
        )
    if listed := cluster.listed():
        lines.append(
            f"recovery.kind: elastic needs equal nodes, but cluster.{listed[0]} lists one by one; "
            "give one for all, or use restart or spares."
        )
    if not strategy.has_synchronous_ranks:
        lines.append(
            f"recovery.kind: elastic changes the number of ranks, which {strategy.kind} cannot; "
            "use ddp or fsdp, or restart."
        )
    if workload.samples_per_rank is not None:
        lines.append(
            "recovery.kind: elastic changes the number of ranks, but workload.samples_per_rank "
            "has a number for each; use microbatch alone, or restart."
        )
    if recovery.rejoin == "checkpoint" and scenario.checkpoint is None:
        lines.append(
            "recovery.rejoin: checkpoint waits for one, but there are none; add checkpoint, or "
            "write rejoin: at_once."
        )
    return lines


def _not_in_groups(scenario: Scenario, recovery: ReplicaGroups) -> list[str]:
    """Explain why groups of nodes cannot fail one by one."""
    cluster, strategy = scenario.cluster, scenario.strategy
    nodes, size = cluster.num_nodes, recovery.group_nodes
    if nodes % size or nodes == size:
        return [
            f"recovery.group_nodes: {nodes} nodes are not two or more groups of {size}; use a "
            "divisor of them that is smaller."
        ]
    groups = nodes // size
    if recovery.min_replicas > groups:
        return [
            f"recovery.min_replicas: {recovery.min_replicas} is more than the {groups} groups that "
            "there are; use that or fewer."
        ]
    if not strategy.has_synchronous_ranks:
        return [
            f"recovery.kind: replica_groups leaves out ranks that failed, which {strategy.kind} "
            "cannot; use ddp or hsdp, or restart."
        ]
    partition = scenario.program.partition
    ranks = size * cluster.local_size
    if partition is None or ranks % partition.num_places == 0:
        return []
    places = partition.num_places
    over = "all" if places == cluster.world_size else str(places)
    return [
        f"recovery.kind: replica_groups needs the whole state in every group of {ranks} ranks, but "
        f"{strategy.kind} cuts it over {over} ranks; use ddp, or hsdp with a shard_size that "
        f"divides {ranks}, or restart."
    ]


# Doubts -------------------------------------------------------------------------------------------


def follows(place: tuple[str, ...], doubts: list[tuple[str, ...]]) -> bool:
    """Return whether a problem may follow from a removed key: there, around it, or in a field."""
    return any(place[: len(doubt)] == doubt or place == doubt[:-1] for doubt in doubts)


def sure(doubts: list[tuple[str, ...]], *places: tuple[str, ...]) -> bool:
    """Return whether nothing was removed at these places, inside them or around them."""
    return not any(
        doubt[: len(place)] == place[: len(doubt)] for doubt in doubts for place in places
    )


def remove_invalid(raw: Raw, invalid: Problem) -> tuple[str, ...] | None:
    """Remove invalid keys and return their paths; an entry of a list removes the list too."""
    place = invalid.place if invalid.unknown is None else (*invalid.place, invalid.unknown)
    here: Any = raw
    inside, depth = None, 0
    for depth, part in enumerate(place, 1):  # noqa: B007  the depth reached counts
        inside, here = here, here.get(part)
        if not isinstance(here, dict):
            break
    if inside is None or inside.pop(place[depth - 1], None) is None:
        return None
    return place[:depth]


def unused_problems(workload: Workload, strategy: Strategy, world_size: int) -> list[str]:
    """Refuse missing ranks and parameters, and strategies that would deadlock."""
    if not workload.unused:
        return []
    known = [parameter.name for parameter in workload.graph.parameters]
    for rank, names in workload.unused.items():
        if not 0 <= rank < world_size:
            return [
                f"workload.unused: rank {rank} does not exist; with world_size {world_size}, ranks "
                f"are 0 ... {world_size - 1}."
            ]
        wrong = [name for name in names if name not in known]
        if wrong:
            lead = f"workload.unused.{rank}: no parameter is called {shown(wrong[0])}"
            return [unknown_name("", wrong[0], known, lead=lead)]
    problem = strategy.problem_with_unused(workload)
    return [problem] if problem else []


# Feasibility --------------------------------------------------------------------------------------

Sure = Callable[..., bool]
"""``sure(("cluster", "world_size"), ...)``: whether the values at these places are reliable."""


def failure_problems(cluster: Cluster, largest: int) -> list[str]:
    """Refuse failures of nodes that the sweep's largest world size lacks."""
    num_nodes = -(-largest // (cluster.ranks_per_node or largest))
    faults = [failures.problem_with(num_nodes) for failures in cluster.failures]
    return [f"cluster.failures.{i}.{wrong}" for i, wrong in enumerate(faults) if wrong]


def fault_problems(workload: Workload, largest: int) -> list[str]:
    """Refuse faults on ranks that the sweep's largest world size lacks."""
    return [
        f"workload.inject.{i}.rank: rank {fault.rank} does not exist; the largest "
        f"world_size is {largest}, so ranks are 0 ... {largest - 1}."
        for i, fault in enumerate(workload.inject)
        if fault.rank >= largest
    ]


def joint_problems(
    cluster: Cluster, workload: Workload, strategy: Strategy, sure: Sure
) -> list[str]:
    """Return the problems between the parts of one point."""
    n = cluster.world_size
    lines, batch = [], workload.global_batch
    if sure(("strategy",), ("cluster", "world_size"), ("workload",)):
        wrong = _cannot_infer(workload, strategy) or strategy.problem_with(n, workload)
        lines += [f"strategy.{wrong}"] if wrong else []
    if strategy.num_late and sure(("strategy",), ("cluster", "stragglers")):
        lines += _backup_problems(cluster)
    if strategy.in_one_process and sure(("strategy",), ("cluster",)):
        lines += _single_process_problems(cluster, strategy)
    # One process may have fewer samples than devices: some of these are then idle.
    least = 1 if strategy.in_one_process else n
    if batch is not None and batch < least and sure(("cluster", "world_size")):
        lines.append(
            f"workload.global_batch: {batch} samples cannot feed {n} ranks; use {n} or more."
        )
    if workload.recompute != "none" and sure(("workload",)) and not workload.graph.blocks:
        lines.append(
            f"workload.recompute: the model {workload.model.kind} has no blocks to compute again; "
            "write none."
        )
    parts = workload.samples_per_rank
    if parts is not None and len(parts) != n and sure(("cluster", "world_size")):
        lines.append(
            f"workload.samples_per_rank: has {len(parts)} entries for {n} ranks; give one each."
        )
    if workload.rebalance is not None and sure(("strategy",), ("cluster", "world_size")):
        lines += _rebalance_problems(workload.rebalance, strategy, n)
    if sure(("strategy",), ("cluster", "world_size"), ("workload",)):
        lines += unused_problems(workload, strategy, n) + frozen_problems(workload, strategy)
    computed = () if workload.model.timed else (workload.dtype, workload.precision.low)
    float8 = isinstance(workload.compute, FromRoofline) and workload.compute.float8
    if float8 and sure(("workload",), ("strategy",)):
        if float8_problem := _float8_problem(workload):
            lines.append(float8_problem)
        else:
            computed = (*computed, "float8")
    for dtype in dict.fromkeys(dtype for dtype in computed if dtype):
        lines += _peak_problems(cluster, dtype) if sure(("workload", "dtype")) else []
    if sure(("workload",)):
        lines += _output_unit_problems(workload)
    if sure(("cluster", "device"), ("workload",)):
        lines += measured_problems(cluster, workload)
    return lines


def _output_unit_problems(workload: Workload) -> list[str]:
    """Reject units that the model lacks, and 32-bit values with 16-bit weights."""
    precision, here = workload.precision, "workload.precision.output_units"
    if not precision.wide_units or precision.low is None:
        return []
    if workload.model.timed:
        return [f"{here}: the outputs of timed layers are unknown; leave it out."]
    names = [name for unit in precision.wide_units for name in unit.split(", ")]
    known = {block.name for block in workload.graph.modules(names) if block.calls}
    for name in names:
        if name not in known:
            return [f"{here}: no layer runs in a module {name!r}; name modules of the model."]
    mixes = widened(workload.graph, precision.wide_units, precision.low, workload.dtype).mixes
    if mixes is None:
        return []
    layer = workload.graph.calls[mixes].layer
    return [
        f"{here}: {layer.name or layer.kind} is in none of these, so that its {precision.low} "
        f"weights or inputs meet {workload.dtype} ones, which torch refuses; add its module, or "
        "leave output_units out."
    ]


def _rebalance_problems(rule: Rebalance, strategy: Strategy, world_size: int) -> list[str]:
    """Refuse unequal shards if ranks are weighted equally, and shares of missing ranks."""
    lines, weighs = [], strategy.weighs_by_shard
    if not weighs:
        do = "use ddp" if weighs is None else "add strategy.weight_by_shard: true"
        lines.append(
            f"workload.rebalance: under {strategy.kind} a rank with few samples would count as "
            f"much as one with many; {do}{' with weight_by_shard: true' * (weighs is None)}."
        )
    if rule.shares is not None and len(rule.shares) != world_size:
        lines.append(
            f"workload.rebalance.shares: has {len(rule.shares)} entries for {world_size} ranks; "
            "give one each."
        )
    return lines


def _cannot_infer(workload: Workload, strategy: Strategy) -> str | None:
    """Refuse inference with strategies that only train."""
    if workload.mode == "training" or infers(strategy):
        return None
    able = [kind for kind, member in STRATEGIES.items() if infers(member)]
    return (
        f"kind: {strategy.kind} shares the work of training, and workload.mode is inference; use "
        f"{', '.join(able[:-1])} or {able[-1]}."
    )


def _backup_problems(cluster: Cluster) -> list[str]:
    """Reject pauses by the clock with backup workers: late ranks must be known before a step."""
    return [
        f"strategy.backup_ranks: it is unknown before a step which rank cluster.stragglers.{i} "
        "will stop on the clock; let it pause by steps, or use strategy: {kind: "
        "parameter_server, backup: ...}."
        for i, straggler in enumerate(cluster.stragglers)
        if isinstance(straggler, Pause) and straggler.on_the_clock()
    ]


def _single_process_problems(cluster: Cluster, strategy: Strategy) -> list[str]:
    """Refuse clusters with devices that one process cannot use exclusively."""
    lines = []
    if cluster.num_nodes > 1:
        lines.append(
            f"strategy.kind: {strategy.kind} is one process, which has devices of one node, but "
            f"there are {cluster.num_nodes} nodes; use ddp, or set cluster.world_size to "
            f"{cluster.local_size}."
        )
    if cluster.ranks_per_device > 1:
        lines.append(
            f"strategy.kind: {strategy.kind} has one copy of the model on a device, but "
            f"cluster.ranks_per_device is {cluster.ranks_per_device}; set it to 1, or use ddp."
        )
    return lines


def measured_problems(cluster: Cluster, workload: Workload) -> list[str]:
    """Refuse measured steps that lack a device, or are too short for it."""
    compute = workload.compute
    if not isinstance(compute, FromMeasurements):
        return []
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    names = list(dict.fromkeys([*DEVICES.names(), *(d.name for d in devices if d.name)]))
    lines = [
        f"workload.compute.points.{number}.device: {unknown_name('device', point.device, names)}"
        for number, point in enumerate(compute.points)
        if point.device is not None and point.device not in names
    ]
    for device in [] if lines else devices:
        points = compute.of_device(device.name)
        if not points:
            lines.append(
                f"workload.compute.points: none holds for device {device.name or 'without a name'}"
                "; add one of it, or one that names no device."
            )
        lines += _too_short(workload, device, points)
    return list(dict.fromkeys(lines))


def _too_short(
    workload: Workload, device: Device, points: Sequence[MeasuredStepTime]
) -> Iterator[str]:
    """Refuse steps that leave no time for compute, or are shorter than those of smaller batches."""
    compute = workload.compute
    assert isinstance(compute, FromMeasurements)
    smaller, least = 0, 0.0
    for point in points:
        size, shards = point.microbatch, point.sharded_over
        beside = time_beside_compute(workload, size, device, shards)
        left, step_time = point.step_time - beside, format_quantity(point.step_time, "time")
        place = f"workload.compute.points.{compute.points.index(point)}.step_time"
        if left <= 0:
            yield (
                f"{place}: {step_time} holds no compute, since the host and the update take "
                f"{_three_digits(beside)} of it on one device; give the time of a whole step."
            )
        elif is_contradiction(least, left):
            yield (
                f"{place}: {step_time} leaves {_three_digits(left)} for compute next to the copy "
                f"of the batch, less than the {_three_digits(least)} of microbatch {smaller}; "
                "correct one of them, or workload.input."
            )
        elif left > least:
            smaller, least = point.microbatch, left


def _three_digits(seconds: float) -> str:
    return format_quantity(float(f"{seconds:.3g}"), "time")


def algorithm_problems(
    cluster: Cluster, collectives: Collectives, called: Sequence[str], among_jobs: bool = False
) -> list[str]:
    """Reject algorithms or costs that do not support this cluster.

    ``called`` are keys of ``collectives``; ``among_jobs``, whether other jobs share the network.
    """
    alone = layout(cluster)
    where = among_others(alone) if among_jobs else alone
    lines = []
    for name in dict.fromkeys(called) if cluster.world_size > 1 else ():
        algorithm = getattr(collectives, name)
        why = algorithm.problem_with(where)
        if why and algorithm.problem_with(alone) is None:
            why = (
                "needs switches that add between nodes, and these add for one job alone; "
                "use ring, or leave out neighbours."
            )
        if why:
            lines.append(f"collectives.{name}: {algorithm.kind} {why}")
    return lines + _cost_problems(cluster, collectives, called)


def shared_network_problems(collectives: Collectives, strategy: Strategy) -> list[str]:
    """Reject parts that do not support other jobs on the network, if there are any."""
    lines, cost = [], collectives.cost
    if cost.timed:
        lines.append(
            f"collectives.cost: {cost.kind} knows no other jobs on the network; use links, or "
            "leave out neighbours."
        )
    if strategy.has_server:
        lines.append(
            f"strategy.kind: {strategy.kind} knows no other jobs on the network; use ddp, or leave "
            "out neighbours."
        )
    return lines


def group_problems(
    cluster: Cluster, collectives: Collectives, groups: Sequence[ProcessGroups]
) -> list[str]:
    """Reject algorithms or costs that do not support the process groups in use."""
    lines = []
    for several in groups:
        where = group_layout(cluster, several.ranks)
        wiring = wiring_of_groups(cluster, several.ranks, where.local_size)
        for name in several.collectives if where.world_size > 1 else ():
            algorithm, cost = getattr(collectives, name), collectives.cost_of(name)
            if why := algorithm.problem_with(where):
                lines.append(f"collectives.{name}: in {several.name} groups {algorithm.kind} {why}")
            if cost.timed and (why := cost.problem_with(name, wiring)):
                lines.append(f"collectives.cost: in {several.name} groups {why}.")
    return lines


def _cost_problems(cluster: Cluster, collectives: Collectives, called: Sequence[str]) -> list[str]:
    """Refuse a cost without a time of a called collective."""
    if not collectives.cost.timed:
        return []
    wiring = wiring_of(cluster)
    wrong = [collectives.cost_of(n).problem_with(n, wiring) for n in dict.fromkeys(called)]
    return [f"collectives.cost: {line}." for line in wrong if line]


def _float8_problem(workload: Workload) -> str | None:
    """Refuse 8 bits where no linear layer has 16 bits to begin with."""
    if not workload.model.timed and "float8" in arithmetic_of_calls(workload):
        return None
    return (
        "workload.compute.float8: no linear layer that it covers runs in 16 bits; set "
        "workload.precision: amp or a strategy's param_dtype: bfloat16, or leave it out."
    )


def _peak_problems(cluster: Cluster, dtype: str) -> list[str]:
    """Refuse devices without a peak rate of a dtype."""
    listed = isinstance(cluster.device, list)
    devices = cluster.device if isinstance(cluster.device, list) else [cluster.device]
    lacking = [r for r, device in enumerate(devices) if dtype not in device.peak]
    if not lacking:
        return []
    place = f"cluster.device.{lacking[0]}" if listed else "cluster.device"
    known = ", ".join(devices[lacking[0]].peak)
    return [f"{place}.peak: has no {dtype}, which the workload computes in; known: {known}."]


def size_problems(
    cluster: Cluster, workload: Workload, strategy: Strategy, base: Path, numerics: bool
) -> list[str]:
    """Check batches, data and memory of an otherwise valid point."""
    n, num_samples = cluster.world_size, workload.num_samples(base)
    if not workload.dataset.has_samples:
        num_samples = workload.samples_per_step(n)  # every step is a full one
    wrong = _problem_with_packs(workload, strategy, numerics)
    wrong = wrong or _problem_with_batches(workload, n, num_samples)
    if wrong is None:
        late = _problem_with_schedule(workload, strategy, n, base, numerics)
        wrong = f"lr_schedule: {late}" if late else None
    wrong = wrong or _problem_with_pieces(workload, strategy, n, num_samples)
    if wrong:
        return [f"workload.{wrong}"]
    return _memory_problems(workload, strategy, n, num_samples) if numerics else []


def _problem_with_packs(workload: Workload, strategy: Strategy, numerics: bool) -> str | None:
    if workload.packing is None:
        return None
    if numerics:
        return "packing: packs have times but no numbers; write numerics: false, or leave this out."
    if strategy.in_one_process:
        return (
            f"packing: {strategy.kind} cuts a batch into samples, but packs lie in one row; use "
            "ddp, or leave this out."
        )
    return None


def _problem_with_schedule(
    workload: Workload, strategy: Strategy, world_size: int, base: Path, numerics: bool
) -> str | None:
    schedule = workload.lr_schedule
    other = sorted(schedule.counted() - {"step"})
    if other and strategy.has_server:
        return (
            f"{schedule.kind} follows the {other[0]}, but the updates of a {strategy.kind} belong "
            "to no common epoch; use one that counts steps."
        )
    if "reductions" in other and not numerics:
        return (
            f"{schedule.kind} follows the loss, which numerics: false leaves out; set numerics: "
            "true, or use another schedule."
        )
    num_updates = strategy.num_updates(world_size, workload.num_steps(world_size, base))
    num_epochs = workload.num_epochs(world_size, base) if "epoch" in other else 1
    return schedule.problem_with(num_updates, num_epochs)


def _problem_with_pieces(
    workload: Workload, strategy: Strategy, world_size: int, num_samples: int
) -> str | None:
    """Refuse optimizers that need whole tensors with sharded parameters."""
    kind = workload.optimizer.kind
    optimizers = [workload.optimizer.for_parameter(name) for name in workload.graph.ready_order]
    if strategy.has_dtensors and any(optimizer.indexes_gradients for optimizer in optimizers):
        return (
            f"optimizer: {kind} does not work under {strategy.kind}: torch refuses to index the "
            "sharded gradients of fully_shard; use ddp or fsdp1, or another optimizer."
        )
    if not any(rule.whole_tensors and not rule.trusts for rule in optimizers):
        return None
    partition = Program.of(strategy, workload, world_size, num_samples).partition
    if partition is None or partition.owners is not None or partition.num_places == 1:
        return None
    return (
        f"optimizer: {kind} updates whole tensors, of which {strategy.kind} leaves each rank a "
        "piece; use ddp, or zero1, whose ranks own whole tensors."
    )


def _problem_with_batches(workload: Workload, world_size: int, num_samples: int) -> str | None:
    accumulate, parts = workload.grad_accum, workload.samples_per_rank
    if parts is not None and sum(parts) > num_samples:
        return (
            f"samples_per_rank: {parts} needs {sum(parts)} samples, but the dataset "
            f"has {num_samples}."
        )
    if isinstance(accumulate, list) and workload.global_batch is not None:
        shard = -(-min(workload.global_batch, num_samples) // world_size)
        if sum(accumulate) != shard:
            return (
                f"grad_accum: {accumulate} sums to {sum(accumulate)}, but each rank gets "
                f"{shard} of the {workload.global_batch} samples; make the sums equal."
            )
    drops, least = workload.drop_last is True, workload.least_left(world_size)
    if drops and parts is None and workload.samples_per_step(world_size) > num_samples:
        return (
            "drop_last: leaves nothing, since one step takes "
            f"{workload.samples_per_step(world_size)} samples and the dataset has {num_samples}."
        )
    if drops and parts is not None and workload.samples_per_step(1) > max(parts):
        return (
            f"drop_last: leaves nothing, since one step takes {workload.samples_per_step(1)} "
            f"samples of a rank and samples_per_rank is {parts}."
        )
    if isinstance(workload.drop_last, DropLast) and least > num_samples:
        return (
            f"drop_last: leaves nothing of the {num_samples} samples, of which {least} have to be "
            "there; use fewer ranks, or smaller micro-batches."
        )
    return None


def _memory_problems(
    workload: Workload, strategy: Strategy, world_size: int, num_samples: int
) -> list[str]:
    """Refuse arrays that exceed this machine's memory."""
    needed = host_memory_needed(workload, strategy, world_size, num_samples)
    there = host_memory()
    if needed <= there:
        return []
    return [
        f"numerics: the arrays of {world_size} ranks need {needed / 1e9:.1f} GB, but this machine "
        f"has {format_quantity(round(there, -8), 'data size')}; set numerics: false to simulate "
        "the time alone."
    ]
