"""Every key of `cluster` over a machine: another time, a refusal or a remark, or a reason for none.

A machine brings constants of its own, such as a cost of collectives. A key that the scenario sets
beside them must not be dropped without a word.
"""

import json
import typing
from functools import cache
from pathlib import Path

import pytest

import simdp
from simdp.cluster import Cluster
from simdp.cluster.allocators import ALLOCATORS, Allocator
from simdp.cluster.failures import FAILURES, Failures
from simdp.cluster.stragglers import STRAGGLERS, Straggler
from simdp.cluster.topologies import TOPOLOGIES
from simdp.cluster.topologies.base import Topology
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.scenario.overrides import override_all
from simdp.spec import Spec

PER_NODE = {"dgx-h100": 8, "aws-p4d": 8, "hkbu-10gbe": 4}

SMI = Path(__file__).parents[1] / "cluster/topo"
LINK = {"alpha": "70 us", "bandwidth": "0.7 GB/s"}
STAR = [{"ends": [place, "hub"]} for place in range(8)]

VALUES = {
    "world_size": 8,
    "devices_per_node": 2,
    "ranks_per_device": 2,
    "device": "v100-sxm2-32gb",
    "device.efficiency": 0.1,
    "device.flash_efficiency": 0.1,
    "device.flash_efficiency.forward": 0.1,
    "device.flash_efficiency.backward": 0.1,
    "device.memory_efficiency": 0.1,
    "device.stream_efficiency": 0.1,
    "device.half_work": "900 GFLOP",
    "device.misaligned_efficiency": 0.1,
    "device.launch": "90 us",
    "device.multiprocessors": 20,
    "device.peer_to_peer": True,
    "device.peak": dict.fromkeys(
        ("float64", "float32", "tfloat32", "float16", "bfloat16", "float8"), "1 TFLOP/s"
    ),
    "device.memory_bandwidth": "90 GB/s",
    "link": LINK,
    "link.alpha": "70 us",
    "link.bandwidth": "0.2 GB/s",
    "link.transport": {"hkbu-10gbe": "nvlink", "dgx-h100": "pcie", "aws-p4d": "pcie"},
    "inter_node": {"link": LINK},
    "inter_node.link": LINK,
    "inter_node.link.alpha": "700 us",
    "inter_node.link.bandwidth": "0.2 GB/s",
    "inter_node.link.transport": {"hkbu-10gbe": "rdma", "dgx-h100": "tcp", "aws-p4d": "tcp"},
    "inter_node.links_per_node": {"hkbu-10gbe": 4, "dgx-h100": 1, "aws-p4d": 1},
    "inter_node.nics": {"hkbu-10gbe": [1] * 4, "dgx-h100": [0] * 8, "aws-p4d": [0] * 8},
    "host.link": LINK,
    "host.link.alpha": "900 us",
    "host.link.bandwidth": "1 GB/s",
    "host.memory_bandwidth": "1 GB/s",
    "overheads.hook": "90 us",
    "overheads.launch": "90 us",
    "overheads.message": "90 us",
    "overheads.message_per_rank": "90 us",
    "overheads.compute_slowdown": 5.0,
    "overheads.compute_slowdown.accesses": 90,
    "overheads.compute_slowdown.channel": "900 GB/s",
    "overheads.collective_slowdown": 5.0,
    "overheads.copies": {"hkbu-10gbe": False, "dgx-h100": False, "aws-p4d": True},
}
"""Another value of each key, or one for each machine."""

Kinds = dict[str, tuple[dict[str, typing.Any], dict[str, typing.Any]]]

TREE = {"ports_per_leaf": 4}

JOINS: Kinds = {
    "cube_mesh": ({}, {}),
    "custom": ({}, {"links": STAR}),
    "dragonfly": (
        {"ports_per_router": 2},
        {"ports_per_router": 1, "routers_per_group": 2, "trunk_alpha": "900 us"}
        | {"groups": 1, "links_per_pair": 9},
    ),
    "fat_tree": (
        TREE,
        {"oversubscription": 9, "trunk_alpha": "900 us", "ports_per_leaf": 2, "levels": 3}
        | {"routing": "pair", "spines": 1, "leaves": 1, "in_network": True}
        | {"pods": 1, "cores": 1, "pod_oversubscription": 9},
    ),
    "full_mesh": ({}, {}),
    "nvidia_smi": (
        {"path": f"{SMI}/dgx_a100.txt", "pcie": "pcie3-x16"},
        {"p2p_level": "loc", "host_bridge": "1 GB/s", "inter_socket": "1 GB/s"}
        | {"host_memory": "1 GB/s", "nvlinks": 2, "pcie": LINK, "matrix": "X"}
        | {"path": f"{SMI}/pcie_box.txt"},
    ),
    "pcie_tree": (
        {},
        {"p2p_level": "loc", "host_bridge": "1 GB/s", "inter_socket": "1 GB/s"}
        | {"host_memory": "1 GB/s", "gpus_per_switch": 1, "switches_per_socket": 1, "sockets": 1},
    ),
    "rail_optimised": (
        {"nodes_per_rail": 1},
        {"oversubscription": 9, "trunk_alpha": "900 us", "routing": "pair", "in_network": True}
        | {"nodes_per_rail": 2, "spines": 1},
    ),
    "ring": ({}, {}),
    "switch": ({}, {"in_network": True}),
    "torus2d": ({}, {"dims": [2, 4]}),
    "torus3d": ({}, {"dims": [2, 2, 2]}),
}
"""Options of every topology: those that it is given first, and other values."""

POINTS = [{"p": 0, "factor": 1}, {"p": 1, "factor": 3}]

SLOW: Kinds = {
    "degraded_link": (
        {"node": 1, "bandwidth": 0.5},
        {"bandwidth": 0.1, "latency": 900, "steps": [1, 2], "node": 0, "card": 0, "rank": 1}
        | {"link": [0, 1], "on": 1, "off": 1},
    ),
    "empirical": (
        {"quantiles": POINTS},
        {"quantiles": [*POINTS[:1], {"p": 1, "factor": 9}]} | {"path": "x.csv"},
    ),
    "gamma": ({"cv": 0.1}, {"cv": 0.9}),
    "jitter": ({"sigma": 0.1}, {"sigma": 0.9}),
    "lognormal": ({"sigma": 0.1}, {"sigma": 0.9, "draws": 4}),
    "pause": (
        {"rank": 1, "every": 2, "duration": "9 ms"},
        {"rank": 2, "every": 1, "duration": "90 ms"},
    ),
    "shared_host": ({"load": "p50"}, {"load": "p90", "persistent_variance": 0.9}),
    "slow_node": ({"node": 1, "factor": 2}, {"node": 0, "factor": 9}),
    "slow_rank": ({"rank": 1, "factor": 2}, {"rank": 2, "factor": 9}),
}

FAMILIES = {"inter_node.topology": JOINS, "topology": JOINS, "stragglers": SLOW}

ALIKE = "all ranks, nodes and cards are alike: which one it is changes no step"

NOT_IN_TIME = {
    "machine": "the others are set over it",
    "allocator": "decides what fits, not how long it takes",
    "device.memory": "decides what fits, not how long it takes",
    "host_memory": "decides what fits, not how long it takes",
    "price": "money alone",
    "device.price": "money alone",
    "power": "energy alone",
    "device.power": "energy alone",
    "device.name": "names the device",
    "device.capability": "torch scripts read it, and choose by it",
    "link.name": "names the link",
    "inter_node.link.name": "names the link",
    "host.link.name": "names the link",
    "host.link.transport": "is that of collectives, which do not use the link",
    "failures": "a run plays none, and says so: see below",
    **dict.fromkeys(("stragglers.slow_rank.rank", "stragglers.slow_node.node"), ALIKE),
    **dict.fromkeys(("stragglers.pause.rank", "stragglers.degraded_link.node"), ALIKE),
    "stragglers.degraded_link.card": ALIKE,
}
"""Keys, each with all that lies below it, that change no time; and why."""

NOT_HERE = {
    ("device.multiprocessors", "aws-p4d"): "compute_slowdown is a number: it takes none of them",
    ("device.multiprocessors", "hkbu-10gbe"): "compute_slowdown is a number: it takes none of them",
    ("device.peer_to_peer", "dgx-h100"): "NVLink joins the devices, whatever PCIe allows",
    ("device.peer_to_peer", "aws-p4d"): "NVLink joins the devices, whatever PCIe allows",
}
"""As above, on one machine."""

TABLES = {Topology: TOPOLOGIES, Straggler: STRAGGLERS, Failures: FAILURES, Allocator: ALLOCATORS}


def specs(annotation):
    """The specs that a field may hold."""
    if isinstance(annotation, type):
        return [annotation] if issubclass(annotation, Spec) else []
    return [spec for part in typing.get_args(annotation) for spec in specs(part)]


def keys(spec, lead=""):
    """Every key of a spec with dots; the kinds of a family, and their options, below it."""
    for name, field in spec.model_fields.items():
        if name == "kind":
            continue
        yield f"{lead}{name}"
        for inner in dict.fromkeys(specs(field.annotation)):
            if inner not in TABLES:
                yield from keys(inner, f"{lead}{name}.")
            for kind in TABLES.get(inner, ()):
                yield f"{lead}{name}.{kind}"
                options = TABLES[inner][kind].model_fields
                yield from (
                    f"{lead}{name}.{kind}.{option}" for option in options if option != "kind"
                )


def is_covered(key):
    """Whether a table names a key, one below it, or one above it that has a reason."""
    parts = key.split(".")
    above = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    tried = changes()
    below = any(other.startswith(f"{key}.") for other in tried)
    return key in tried or below or not above.isdisjoint(NOT_IN_TIME)


def raw(machine, probe):
    """Two nodes; or one, on which the network between nodes hides nothing; or state on the host."""
    nodes = 1 if probe == "one node" else 2
    model = {"kind": "gpt2", "n_layer": 2, "n_embd": 1023, "n_head": 11, "sequence_length": 256}
    strategy = {"kind": "ddp", "bucket_cap": "5 MiB"}
    if probe == "offload":
        strategy = {"kind": "zero2", "communication": "deepspeed", "offload_optimizer": "cpu"}
    return {
        "cluster": {"machine": machine, "world_size": nodes * PER_NODE[machine]},
        "workload": {"model": {**model, "vocab_size": 1001}, "microbatch": 4, "steps": 3}
        | {"precision": {"kind": "amp", "dtype": "float16"}, "optimizer": "adamw"}
        | {"attention": "flash"},
        "strategy": strategy,
        "numerics": False,
    }


@cache
def outcome(machine, probe, written):
    """The times of a run and what it remarks; or why it is refused."""
    given = {f"cluster.{key}": value for key, value in json.loads(written).items()}
    try:
        result = simdp.simulate(checked(override_all(raw(machine, probe), given, Path()), Path()))
    except ScenarioError as error:
        return None, error.problems
    times = {key: value for key, value in result.metrics.items() if key.endswith("_s")}
    remarks = {key: text for key, text in result.remarks.items() if key != "calibration"}
    return times, remarks


def changes(machine="dgx-h100"):
    """The keys that are set before, and with the changed one, by what is changed."""
    found = {}
    for key, value in VALUES.items():
        found[key] = (
            {},
            {key: value[machine] if isinstance(value, dict) and machine in value else value},
        )
    for family, kinds in FAMILIES.items():
        for kind, (needed, options) in kinds.items():

            def written(more, kind=kind, needed=needed, family=family):
                member = {"kind": kind, **needed, **more}
                return {family: [member] if family == "stragglers" else member}

            if kind not in ("custom", "switch"):  # whose option is required, and the machines' own
                found[f"{family}.{kind}"] = {}, written({})
            for option, value in options.items():
                before = {} if kind == "custom" else written({})
                found[f"{family}.{kind}.{option}"] = before, written({option: value})
    return found


def is_silent(machine, before, after):
    """Whether setting keys changes nothing on any probe, and is not remarked."""
    for probe in ("two nodes", "one node", "offload"):
        usual, changed = (outcome(machine, probe, json.dumps(each)) for each in (before, after))
        if changed[0] is None or usual != changed:
            return False
    return True


@pytest.mark.slow
def test_every_key_of_a_cluster_has_another_value_or_a_reason():
    """A key that is added needs a line above."""
    missing = [key for key in keys(Cluster) if not is_covered(key)]
    assert missing == []
    assert set(VALUES) <= set(keys(Cluster))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("machine", "every"),
    [("dgx-h100", 6), *(pytest.param(m, 1, marks=pytest.mark.long) for m in PER_NODE)],
)
def test_no_key_is_dropped_without_a_word(machine, every):
    tried = dict(list(changes(machine).items())[::every])
    silent = [key for key, change in tried.items() if is_silent(machine, *change)]
    unexplained = [
        key for key in silent if key not in NOT_IN_TIME and (key, machine) not in NOT_HERE
    ]
    assert unexplained == []
    effective = tried.keys() - set(silent)
    assert [key for key, where in NOT_HERE if where == machine and key in effective] == []


def test_failures_are_left_to_a_job_and_a_run_says_so():
    failing = {"failures": [{"kind": "exponential", "mtbf": "1000 h"}]}
    _, remarks = outcome("dgx-h100", "one node", json.dumps(failing))
    assert remarks["job"] == "cluster.failures: not in this run; python -m simdp job plays them"
