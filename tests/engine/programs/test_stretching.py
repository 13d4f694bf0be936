import numpy as np
import pytest
from for_each import for_each

from simdp.cluster import Cluster
from simdp.collectives import Collectives
from simdp.engine.programs.records import CallArguments, CallSignature, Handle, Stretching
from simdp.engine.programs.runtime import Runtime


def call(rank, enter, end=None, slowdown=0.6):
    handle = Handle(rank, CallSignature("all_reduce"), lambda: "")
    handle.enter, handle.done, handle.end = enter, end is not None, end or 0.0
    handle.slowdown = slowdown
    return handle


@for_each(
    ("calls", "beside"),
    [
        ([], 0.0),
        ([(1.0, 2.0)], 1.0),  # inside
        ([(0.0, 2.0), (1.0, 3.0)], 3.0),  # two at a time slow as one does
        ([(3.0, None)], 1.0),  # not over yet
        ([(5.0, 6.0)], 0.0),  # later
        ([(-2.0, 9.0)], 4.0),
    ],
)
def test_what_is_lacking_is_the_share_of_the_time_beside_collectives(calls, beside):
    stretching = Stretching(2)
    for enter, end in calls:
        stretching.issued(call(1, enter, end))
    stretching.worked(1, 0.0, 4.0)
    assert stretching.lacking(1) == pytest.approx(beside * 0.6 / 1.6)
    assert stretching.lacking(1) == 0.0  # it was made up for
    assert stretching.lacking(0) == 0.0


def played(slowdown):
    """Two ranks start an all_reduce and work beside it, and wait; when they are through."""
    cluster = Cluster(
        world_size=2,
        topology="fully_connected",
        link={"bandwidth": "1 GB/s", "alpha": "0 s"},
        device="h100-sxm5-80gb",
        overheads={"compute_slowdown": slowdown},
    )
    runtime = Runtime(cluster, {"nccl": Collectives()}, 0, lambda rank: None, slows=True)

    def body(rank):
        group = runtime.group("default", (0, 1), "nccl")
        given = CallArguments([np.ones(10**6)], [np.ones(10**6)])
        handle = group.issue(rank, 0.0, CallSignature("all_reduce"), given, "all_reduce")
        runtime.busy(rank, 0.02, "backward", "work")
        worked = runtime.catch_up(rank, "backward", "work")
        runtime.wait(handle)
        return worked, handle.end

    return runtime.run(body).values


def test_work_beside_a_collective_takes_as_much_longer_as_the_cluster_says():
    # 8 MB on 1 GB/s are under way for 8 ms: 5 ms of work, of 20.
    ((alone, end), _), ((beside, same), _) = played(0.0), played(0.6)
    assert alone == pytest.approx(0.02)
    assert end == same == pytest.approx(0.008)
    assert beside == pytest.approx(0.015 + 0.008, abs=2e-7)
