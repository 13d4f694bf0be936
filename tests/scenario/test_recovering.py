"""What a scenario cannot carry of a job's recovery is refused with the reason."""

from for_each import for_each
from small_scenario import CLUSTER, WORKLOAD

TWO_NODES = {
    **CLUSTER,
    "devices_per_node": 2,
    "topology": "switch",
    "inter_node": {"topology": "switch", "link": "ib-hdr"},
}
KEPT = {"every": 10, "write": "1 s"}


@for_each(
    ("recovery", "top", "line"),
    [
        (
            {"kind": "replica_groups"},
            {"strategy": "fsdp"},
            "recovery.kind: replica_groups needs the whole state in every group of 2 ranks, but "
            "fsdp cuts it over all ranks; use ddp, or hsdp with a shard_size that divides 2, or "
            "restart.",
        ),
        (
            {"kind": "replica_groups"},
            {"strategy": "parameter_server"},
            "recovery.kind: replica_groups leaves out ranks that failed, which parameter_server "
            "cannot; use ddp or hsdp, or restart.",
        ),
        (
            {"kind": "replica_groups", "group_nodes": 2},
            {},
            "recovery.group_nodes: 2 nodes are not two or more groups of 2; use a divisor of them "
            "that is smaller.",
        ),
        (
            {"kind": "replica_groups", "min_replicas": 3},
            {},
            "recovery.min_replicas: 3 is more than the 2 groups that there are; use that or fewer.",
        ),
        (
            {"kind": "elastic", "min_nodes": 3},
            {},
            "recovery.min_nodes: 3 is more than the 2 nodes of the cluster; use that or fewer.",
        ),
        (
            {"kind": "elastic"},
            {"cluster": {**TWO_NODES, "device": ["a100-sxm4-80gb"] * 4}},
            "recovery.kind: elastic needs equal nodes, but cluster.device lists one by "
            "one; give one for all, or use restart or spares.",
        ),
        (
            {"kind": "elastic"},
            {"strategy": "parameter_server"},
            "recovery.kind: elastic changes the number of ranks, which parameter_server cannot; "
            "use ddp or fsdp, or restart.",
        ),
        (
            {"kind": "elastic"},
            {"workload": {**WORKLOAD, "samples_per_rank": [16] * 4}},
            "recovery.kind: elastic changes the number of ranks, but workload.samples_per_rank has "
            "a number for each; use microbatch alone, or restart.",
        ),
        (
            {"kind": "elastic"},
            {"checkpoint": None},
            "recovery.rejoin: checkpoint waits for one, but there are none; add checkpoint, or "
            "write rejoin: at_once.",
        ),
        (
            {"kind": "restart"},
            {"checkpoint": {**KEPT, "writers": 5}},
            "checkpoint.writers: 5 is more than the 4 ranks; use that or fewer.",
        ),
        (
            {"kind": "restart"},
            {"checkpoint": {**KEPT, "storage_size": "100 B"}},
            "checkpoint.storage_size: 100 B cannot hold two checkpoints of 60 B, of which the one "
            "before is kept until the next is complete; give more, or a smaller size.",
        ),
    ],
)
def test_a_policy_that_cannot_be_carried_is_refused(recovery, top, line, refuse):
    assert refuse(**{"cluster": TWO_NODES, "checkpoint": KEPT, "recovery": recovery, **top}) == [
        line
    ]


@for_each(
    ("recovery", "strategy"),
    [
        ({"kind": "replica_groups"}, "ddp"),
        ({"kind": "replica_groups"}, {"kind": "hsdp", "shard_size": 2}),
        ({"kind": "elastic"}, "fsdp"),
        ({"kind": "spares", "num": 1}, "zero1"),
    ],
)
def test_others_are_carried(recovery, strategy, load):
    scenario = load(cluster=TWO_NODES, checkpoint=KEPT, recovery=recovery, strategy=strategy)
    assert scenario.resolved()["recovery"]["kind"] == recovery["kind"]


def test_what_no_job_has_is_not_written(load):
    assert {"checkpoint", "recovery"}.isdisjoint(load().resolved())
