"""A hundred jobs, each with a cause planted in it that makes its step longer than all others do.

What a cause costs is what the step would save without it, by our own clock: `savings` simulates the
job again without each of them. So "planted" is well-defined: the cause named is the one whose
removal saves the most; where nothing saves a tenth of the step, the job is bound by its compute.
Ranks that call different collectives never end a step: their planted jobs are the flight recorder's
dumps of a run of ours, in which one rank left the others.
"""

from __future__ import annotations

import pickle
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import simdp
from simdp.reports.rank_rows import rows_of
from simdp.scenario import checked

WORTH = 0.1
"""The part of a step from which on a cause is one."""

CAUSES = (
    "launch_bound",
    "exposed_communication",
    "straggler",
    "imbalance",
    "input_stall",
    "compute_bound",
    "slow_link",
)
"""Those that a step is as long as it is by; `desynchronised` has no step."""

MACHINES = ("dgx-a100", "dgx-h100", "dgx-1", "aws-p4d", "gcp-h200", "ndv4-a100")


@dataclass(frozen=True)
class Planted:
    """A job.

    Attributes
    ----------
    name, cause : str
        What is planted, and how.
    scenario : dict
        The job.
    ranks : tuple of int
        Whose doing it is; empty where it is that of all.
    """

    name: str
    cause: str
    scenario: dict[str, Any]
    ranks: tuple[int, ...] = field(default=())

    def simulate(self):
        """Run it."""
        return simdp.simulate(checked(deepcopy(self.scenario), Path()))


def job(machine, world_size, layers, width, batch, steps=5, strategy="ddp", jitter=0.003, **more):
    """A job without a cause but those that its sizes have."""
    stragglers = [{"kind": "jitter", "sigma": jitter}, *more.pop("stragglers", [])]
    model = more.pop("model", {"kind": "mlp", "widths": [width] * (layers + 1)})
    return {
        "name": "planted",
        "seed": more.pop("seed", 0),
        "cluster": {"machine": machine, "world_size": world_size, "stragglers": stragglers},
        "workload": {
            "model": model,
            "microbatch": batch,
            "steps": steps,
            **more,
        },
        "strategy": strategy,
        "numerics": False,
    }


def _sound(random, **more):
    """Busy with its compute, which hides what is sent."""
    layers, width = int(random.integers(3, 7)), int(random.choice([1024, 2048, 3072]))
    more = {"jitter": float(random.choice([0.002, 0.01, 0.02])), **more}
    world_size = more.pop("world_size", None) or int(random.choice([2, 4, 8]))
    batch = int(random.choice([8192, 12_288, 16_384]))
    strategy = more.pop("strategy", None) or str(random.choice(["ddp", "ddp", "fsdp"]))
    machine = str(random.choice(MACHINES))
    seed = int(random.integers(1_000))
    if "model" in more:  # an image has many samples' worth of work
        batch = int(random.choice([256, 384]))
    more = {"machine": machine, "strategy": strategy, "seed": seed, **more}
    return job(world_size=world_size, layers=layers, width=width, batch=batch, **more)


def _step_of(scenario):
    """What its step takes without what is planted [s]."""
    return _step_time(checked(deepcopy(scenario), Path()))


def compute_bound(random, number):
    """Nothing else costs a tenth of the step."""
    if number % 6 == 5:
        return _sound(random, model="resnet18"), ()
    return _sound(random), ()


def launch_bound(random, number):
    """Kernels shorter than their launches; or a host with other work between two steps."""
    machine, world_size = str(random.choice(MACHINES[:3])), int(random.choice([2, 4, 8]))
    if number % 4 == 3:
        scenario = _sound(random, machine=machine)
        seconds = random.uniform(0.2, 0.8) * _step_of(scenario)
        scenario["workload"]["host"] = {"step": f"{seconds:.3e} s"}
        return scenario, ()
    more = {"host": {"async_launch": True}} if number % 4 == 1 else {}
    optimizer = {"kind": "adamw", "foreach": False} if number % 4 == 2 else "sgd"
    width, layers = int(random.choice([64, 96, 128])), int(random.integers(16, 40))
    batch = int(random.choice([4, 16, 64]))
    if number % 6 == 5:
        more["model"], batch = "resnet18", 1
    return job(machine, world_size, layers, width, batch, optimizer=optimizer, **more), ()


def exposed_communication(random, number):
    """Much is sent for what is computed."""
    machine = str(random.choice(MACHINES))
    layers, width = int(random.integers(4, 8)), int(random.choice([4096, 6144, 8192]))
    strategy = [
        "ddp",
        {"kind": "ddp", "overlap": False},
        "fsdp",
        {"kind": "ddp", "bucket_cap": "1 MiB"},
        "zero2",
    ][number % 5]
    world_size = int(random.choice([4, 8, 16]))
    batch = int(random.choice([16, 64, 128])) // (4 if strategy == "fsdp" else 1)
    if number == 10:
        more = {"strategy": "ddp", "model": "resnet50", "steps": 3}
        return job("horovod-25g-tcp", 16, 0, 0, 32, **more), ()
    late = [{"kind": "slow_rank", "rank": 1, "factor": 1.1}] if number % 4 == 3 else []
    more = {"strategy": strategy, "stragglers": late}
    return job(machine, world_size, layers, width, batch, **more), ()


def straggler(random, number):
    """One rank, or all of one node, is late in every step."""
    world_size = int(random.choice([4, 8]))
    rank = int(random.integers(world_size))
    if number % 4 == 3:
        scenario = _sound(random, world_size=world_size)
        seconds = 0.2 if number == 3 else random.uniform(0.15, 0.6) * _step_of(scenario)
        late = {"kind": "pause", "rank": rank, "every": 1, "duration": f"{seconds:.3e} s"}
        scenario["cluster"]["stragglers"].append(late)
        return scenario, (rank,)
    late = {"kind": "slow_rank", "rank": rank, "factor": round(random.uniform(1.15, 2.5), 2)}
    more = {"jitter": 0.05} if number % 4 == 1 else {}
    if number % 6 == 4:
        more["model"] = "resnet18"
    return _sound(random, world_size=world_size, stragglers=[late], **more), (rank,)


def imbalance(random, number):
    """Ranks are late by turns."""
    kind = [
        {"kind": "jitter", "sigma": round(random.uniform(0.12, 0.5), 2)},
        {"kind": "gamma", "cv": round(random.uniform(0.15, 0.5), 2)},
        {"kind": "lognormal", "sigma": round(random.uniform(0.15, 0.5), 2)},
    ][number % 3]
    world_size = int(random.choice([4, 8]))
    late = [{"kind": "slow_rank", "rank": 2, "factor": 1.05}] if number % 4 == 1 else []
    return _sound(random, world_size=world_size, steps=12, stragglers=[kind, *late]), ()


def input_stall(random, number):
    """Samples come too slowly, or their copy is not hidden."""
    scenario = _sound(random, steps=6)
    batch = scenario["workload"]["microbatch"]
    if number % 3 == 2:
        link = {"sample_size": "1 MB", "link": "pcie3-x16", "per_sample": "1 us", "pinned": False}
        scenario["workload"]["input"] = {**link, "workers": 2}
    else:
        workers = number % 2 * 2
        # A worker makes batches while the device computes; the process itself does not.
        longer = random.uniform(*((1.2, 2.5) if workers else (0.2, 1.0)))
        each = longer * _step_of(scenario) * max(workers, 1) / batch
        scenario["workload"]["input"] = {"per_sample": f"{each:.3e} s", "workers": workers}
    return scenario, ()


def slow_link(random, number):
    """Between some devices, or at a node's cards, there is less bandwidth than there should be."""
    machine = ["dgx-a100", "dgx-h100", "ndv4-a100"][number % 3]
    layers, width = int(random.integers(4, 8)), int(random.choice([2048, 4096]))
    world_size, share = (16, 0.02) if number % 2 else (8, 0.03)
    share = round(share * random.uniform(0.7, 1.5), 3)
    if number % 2:
        links = {"kind": "degraded_link", "node": int(random.integers(2)), "bandwidth": share}
    else:
        links = {"kind": "degraded_link", "rank": int(random.integers(8)), "bandwidth": share}
    strategy = str(random.choice(["ddp", "fsdp"]))
    batch = int(random.choice([2048, 4096]))
    more = {"strategy": strategy, "stragglers": [links], "jitter": 0.02 * (number % 3)}
    return job(machine, world_size, layers, width, batch, **more), ()


PLANTS = {
    compute_bound: 13,
    launch_bound: 13,
    exposed_communication: 12,
    straggler: 13,
    imbalance: 12,
    input_stall: 12,
    slow_link: 12,
}
"""How many of each; thirteen desynchronised jobs make a hundred."""


def planted(of=PLANTS, seed=18):
    """The jobs that have a step, always the same; or those with some of the causes, or others."""
    made = []
    for plant, count in PLANTS.items():
        if plant not in of:
            continue
        random = np.random.default_rng([seed, sum(plant.__name__.encode())])
        for number in range(count):
            scenario, ranks = plant(random, number)
            name = f"{plant.__name__} {number}"
            made.append(Planted(name, plant.__name__, scenario, ranks))
    return made


def held_out():
    """Other jobs, drawn after the diagnosis was made: another seed, and models of other sizes.

    Of some of them another cause than the one planted is now the main one.
    """
    made = planted(seed=2026)
    random = np.random.default_rng(2026)
    for one in made:
        model = one.scenario["workload"]["model"]
        factor = random.choice([0.625, 0.75, 1.25, 1.5])
        if isinstance(model, dict):
            model["widths"] = [round(width * factor / 32) * 32 for width in model["widths"]]
        else:
            batch = one.scenario["workload"]["microbatch"]
            one.scenario["workload"]["microbatch"] = max(round(batch * factor), 1)
    return made


# What removing a cause would save ----------------------------------------------------------------


def savings(one):
    """What part of the step each cause costs, by simulating the job without it.

    A slow link is repaired before communication is made free, since otherwise both would be the
    same; all others are taken away alone.
    """
    scenario = checked(deepcopy(one.scenario), Path())
    whole = _step_time(scenario)
    repaired = _without_stragglers(scenario, ("degraded_link",))
    sound = whole if repaired is scenario else _step_time(repaired)
    found = {
        "launch_bound": whole - _step_time(_without_launches(scenario)),
        "exposed_communication": sound - _step_time(_without_transfers(repaired)),
        "slow_link": whole - sound,
        "straggler": 0.0,
        "imbalance": 0.0,
        "input_stall": 0.0,
    }
    for cause, kinds in {
        "straggler": ("slow_rank", "pause"),
        "imbalance": ("jitter", "gamma", "lognormal"),
    }.items():
        without = _without_stragglers(scenario, kinds)
        if without is not scenario:
            found[cause] = whole - _step_time(without)
    if scenario.workload.input is not None:
        fed = _with(scenario, workload=scenario.workload.model_copy(update={"input": None}))
        found["input_stall"] = whole - _step_time(fed)
    return {cause: seconds / whole for cause, seconds in found.items()}


def main_cause(found):
    """The cause that costs the most; compute, where none costs a tenth of the step."""
    worst = max(found, key=found.__getitem__)
    return worst if found[worst] >= WORTH else "compute_bound"


def _step_time(scenario):
    """The mean of all steps that a trace shows, the first one too [s]."""
    result = simdp.simulate(scenario)
    ends = result.step_ends
    return float((ends[:, -1] - ends[:, 0]).mean()) / (ends.shape[1] - 1)


def _with(scenario, **parts):
    return scenario.model_copy(update=parts)


def _without_stragglers(scenario, kinds):
    cluster = scenario.cluster
    kept = [s for s in cluster.stragglers if s.kind not in kinds]
    if len(kept) == len(cluster.stragglers):
        return scenario
    return _with(scenario, cluster=cluster.model_copy(update={"stragglers": kept}))


def _without_launches(scenario):
    cluster, workload = scenario.cluster, scenario.workload
    free = {
        "device": cluster.device.model_copy(update={"launch": 0.0}),
        "overheads": cluster.overheads.model_copy(update={"hook": 0.0, "launch": 0.0}),
    }
    idle = workload.host.model_copy(update={"step": 0.0})
    return _with(
        scenario,
        cluster=cluster.model_copy(update=free),
        workload=workload.model_copy(update={"host": idle}),
    )


def _without_transfers(scenario):
    cluster, cost = scenario.cluster, scenario.collectives.cost
    free = {"alpha": 0.0, "bandwidth": 1e18}
    parts = {"link": cluster.link.model_copy(update=free)}
    if cluster.inter_node is not None:
        link = cluster.inter_node.link.model_copy(update=free)
        parts["inter_node"] = cluster.inter_node.model_copy(update={"link": link})
    nothing = cost.base.model_copy(update={"ll": 0.0, "ll128": 0.0, "simple": 0.0})
    quick = cost.model_copy(update={"launch": 0.0, "base": nothing, "ramp": 0.0})
    return _with(
        scenario,
        cluster=cluster.model_copy(update=parts),
        collectives=scenario.collectives.model_copy(update={"cost": quick}),
    )


# Ranks that left the others ----------------------------------------------------------------------


@dataclass(frozen=True)
class Left:
    """Dumps of a flight recorder in which one rank left the others.

    Attributes
    ----------
    name : str
        What it did instead.
    world_size, rank, number : int
        Who, and at which of its collectives, from 1 on.
    strategy : str
        Of the job.
    """

    name: str
    world_size: int
    rank: int
    number: int
    strategy: str


def left():
    """The desynchronised jobs, always the same."""
    random = np.random.default_rng(18)
    names = ("missing", "size", "type", "dtype")
    made = []
    for number in range(13):
        world_size = int(random.choice([2, 4, 8]))
        rank, at = int(random.integers(world_size)), int(random.integers(3, 8))
        strategy = str(random.choice(["ddp", "fsdp"]))
        made.append(Left(names[number % 4], world_size, rank, at, strategy))
    return made


def dump(one, folder):
    """Write the dumps of a job, as ``torch`` does: a pickle for each rank."""
    scenario = job("dgx-a100", one.world_size, 4, 1024, 512, steps=6, strategy=one.strategy)
    result = simdp.simulate(checked(scenario, Path()))
    for rank, rows in rows_of(result.trace, range(one.world_size)):
        calls = [row for row in rows if row.call is not None]
        content = _dump_of(one, rank, calls)
        (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(content))


def _dump_of(one, rank, calls):
    """What a rank's recorder holds when the job hangs at a collective."""
    entries = []
    for number, row in enumerate(calls[: one.number], 1):
        hangs = number == one.number
        if hangs and one.name == "missing" and rank == one.rank:
            break
        kind, size = row.call.collective, int(row.call.nbytes / 4)
        sent = size // one.world_size if kind == "all_gather" else size
        got = size // one.world_size if kind == "reduce_scatter" else size
        dtype = "Float"
        if hangs and rank == one.rank:
            if one.name == "size":
                sent, got = sent + 64, got + 64
            elif one.name == "type":
                kind, sent, got = "broadcast", size, size
            elif one.name == "dtype":
                dtype = "BFloat16"
        entries.append(_entry(number, kind, sent, got, dtype, hangs, row.start))
    status = {
        "last_enqueued_collective": len(entries),
        "last_started_collective": len(entries),
        "last_completed_collective": one.number - 1,
    }
    return {
        "version": "2.5",
        "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": _all(one.world_size)}},
        "pg_status": {"0": status},
        "entries": entries,
        "rank": rank,
    }


def _all(world_size):
    return f"[{', '.join(map(str, range(world_size)))}]"


def _entry(number, kind, sent, got, dtype, hangs, instant):
    return {
        "record_id": number - 1,
        "pg_id": 0,
        "process_group": ("0", "default_pg"),
        "collective_seq_id": number,
        "p2p_seq_id": 0,
        "op_id": number,
        "profiling_name": f"nccl:{kind}",
        "time_created_ns": instant,
        "time_discovered_started_ns": instant,
        "time_discovered_completed_ns": None if hangs else instant + 1_000_000,
        "duration_ms": None if hangs else 1.0,
        "input_sizes": ((sent,),),
        "input_dtypes": [dtype],
        "output_sizes": ((got,),),
        "output_dtypes": [dtype],
        "state": "started" if hangs else "completed",
        "retired": not hangs,
        "timeout_ms": 600_000,
        "is_p2p": False,
        "frames": [],
    }
