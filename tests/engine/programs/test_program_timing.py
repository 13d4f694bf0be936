"""The times of calls are those of collectives by themselves, and groups share what they share."""

import numpy as np
import pytest
from for_each import for_each

import simdp.distributed as dist
from simdp.cluster import Cluster
from simdp.collectives import FAMILIES, Collectives
from simdp.distributed.launch import collectives_of, find
from simdp.engine.collective import Bench
from simdp.engine.programs.playing import group_wiring
from simdp.scenario.placement import wiring_of

NBYTES = 64_000

OURS = {"peak": {"float32": "19.5 TFLOP/s"}, "memory": "80 GB", "memory_bandwidth": "2 TB/s"}
"""A device without a catalogue name, so that transfers go over the links."""

SWITCH = {
    "world_size": 8,
    "devices_per_node": 4,
    "device": OURS,
    "link": {"alpha": "1 us", "bandwidth": "10 GB/s"},
    "inter_node": {"link": {"alpha": "5 us", "bandwidth": "1 GB/s"}},
}


def took(call, cluster, backend="nccl", late=(), members=None):
    """When each rank is through with a call, which some ranks make late."""

    def program(rank):
        dist.init_process_group(backend)
        group = None if members is None else dist.new_group(members)
        if members is not None and rank not in members:
            return dist.clock()
        dist.compute(seconds=dict(late).get(rank, 0.0))
        call(rank, group)
        return dist.clock()

    return dist.launch(program, cluster=cluster).values


CALLS = {
    "all_gather": lambda r, g: dist.all_gather_into_tensor(
        np.zeros(NBYTES, np.int8), np.zeros(NBYTES // 8, np.int8), group=g
    ),
    "all_reduce": lambda r, g: dist.all_reduce(np.zeros(NBYTES, np.int8), group=g),
    "all_to_all": lambda r, g: dist.all_to_all_single(
        np.zeros(NBYTES, np.int8), np.zeros(NBYTES, np.int8), group=g
    ),
    "barrier": lambda r, g: dist.barrier(group=g),
    "broadcast": lambda r, g: dist.broadcast(np.zeros(NBYTES, np.int8), 0, group=g),
    "gather": lambda r, g: dist.gather(
        np.zeros(NBYTES // 8, np.int8), None if r else [np.zeros(NBYTES // 8, np.int8)] * 8
    ),
    "reduce": lambda r, g: dist.reduce(np.zeros(NBYTES, np.int8), 0, group=g),
    "reduce_scatter": lambda r, g: dist.reduce_scatter_tensor(
        np.zeros(NBYTES // 8, np.int8), np.zeros(NBYTES, np.int8), group=g
    ),
    "scatter": lambda r, g: dist.scatter(
        np.zeros(NBYTES // 8, np.int8), None if r else [np.zeros(NBYTES // 8, np.int8)] * 8
    ),
}


def test_every_collective_is_tried():
    assert set(CALLS) == set(FAMILIES)


@pytest.mark.slow
@for_each("backend", dist.BACKENDS)
@for_each("name", CALLS)
def test_a_call_takes_what_its_collective_takes_by_itself(name, backend):
    cluster = Cluster.model_validate({**SWITCH, "inter_node": None, "devices_per_node": 8})
    asked = getattr(collectives_of(backend, Collectives()), name)
    nbytes = 0 if name == "barrier" else NBYTES
    alone = Bench(cluster).time(asked, nbytes)
    assert max(took(CALLS[name], cluster, backend)) == pytest.approx(alone.seconds, rel=1e-9)


@for_each("name", CALLS)
def test_a_machine_with_a_formula_is_asked_for_its_time(name):
    where = find("dgx-a100", 16)
    nbytes = 0 if name == "barrier" else NBYTES
    if name in ("all_gather", "gather", "reduce_scatter", "scatter"):
        nbytes *= 2  # eight pieces were for eight ranks
    cost = where.collectives.cost
    if name in ("gather", "scatter"):
        pytest.skip("its list is for eight ranks")
    if name in ("all_gather", "reduce_scatter"):
        call = {
            "all_gather": lambda r, g: dist.all_gather_into_tensor(
                np.zeros(nbytes, np.int8), np.zeros(nbytes // 16, np.int8)
            ),
            "reduce_scatter": lambda r, g: dist.reduce_scatter_tensor(
                np.zeros(nbytes // 16, np.int8), np.zeros(nbytes, np.int8)
            ),
        }[name]
    else:
        call = CALLS[name]

    def program(rank):
        dist.init_process_group()
        dist.compute(seconds=1.0 if rank == 3 else 0.0)
        call(rank, None)
        return dist.clock()

    seconds = cost.seconds(name, nbytes, wiring_of(where.cluster))
    for end in dist.launch(program, 16).values:
        assert end == pytest.approx(1.0 + seconds, rel=1e-12)


def test_nobody_leaves_before_the_last_has_come():
    cluster = Cluster.model_validate(SWITCH)
    found = took(CALLS["broadcast"], cluster, late={5: 1.0}.items())
    assert min(found) >= 1.0


def test_groups_that_share_no_link_take_what_one_takes():
    cluster = Cluster.model_validate(SWITCH)

    def program(rank, groups):
        dist.init_process_group()
        mine = [dist.new_group(group) for group in groups]
        for members, group in zip(groups, mine, strict=True):
            if rank in members:
                CALLS["all_reduce"](rank, group)
        return dist.clock()

    one = dist.launch(program, cluster=cluster, args=([[0, 1, 2, 3]],)).simulated_s
    both = dist.launch(program, cluster=cluster, args=([[0, 1, 2, 3], [4, 5, 6, 7]],)).simulated_s
    assert both == one > 0


def test_groups_that_share_the_wire_between_nodes_take_half_of_it_each_and_their_latency_once():
    cluster = Cluster.model_validate(SWITCH)

    def program(rank, groups):
        dist.init_process_group()
        mine = [dist.new_group(group) for group in groups]
        for members, group in zip(groups, mine, strict=True):
            if rank in members:
                CALLS["all_reduce"](rank, group)
        return dist.clock()

    one = dist.launch(program, cluster=cluster, args=([[0, 4]],)).simulated_s
    both = dist.launch(program, cluster=cluster, args=([[0, 4], [1, 5]],)).simulated_s
    # A ring of two: twice half of the buffer; ways of two links inside and two between the nodes.
    assert one == pytest.approx(2 * (2 * 5e-6 + NBYTES / 2 / 1e9), rel=1e-12)
    assert both == pytest.approx(2 * (2 * 5e-6 + 2 * NBYTES / 2 / 1e9), rel=1e-12)


def test_calls_that_a_formula_times_hold_their_links_together():
    where = find("dgx-a100", 16)
    seconds = where.collectives.cost.seconds("all_reduce", NBYTES, wiring_of(where.cluster))

    def program(rank, late):
        dist.init_process_group()
        other = dist.new_group()
        works = [dist.all_reduce(np.zeros(NBYTES, np.int8), async_op=True)]
        dist.compute(seconds=late)
        works.append(dist.all_reduce(np.zeros(NBYTES, np.int8), group=other, async_op=True))
        return [(work.wait(), dist.clock())[1] for work in works]

    def ends(late):
        return dist.launch(program, 16, args=(late,)).values

    # At once: each has half. Else the first has half of its own behind it when the other comes.
    assert ends(0.0) == [pytest.approx([2 * seconds] * 2, rel=1e-9)] * 16
    assert ends(seconds / 2) == [pytest.approx([1.5 * seconds, 2 * seconds], rel=1e-9)] * 16


def test_calls_of_one_group_take_turns():
    cluster = Cluster.model_validate(SWITCH)

    def program(rank, count):
        dist.init_process_group()
        works = [dist.all_reduce(np.zeros(1000), async_op=True) for _ in range(count)]
        works[-1].wait()
        return dist.clock()

    one, three = (dist.launch(program, cluster=cluster, args=(n,)).simulated_s for n in (1, 3))
    assert three == pytest.approx(3 * one, rel=1e-9)


def test_a_group_is_wired_as_its_ranks_are():
    cluster = find("dgx-a100", 16).cluster
    whole = wiring_of(cluster)
    assert group_wiring(cluster, np.arange(16)) == whole
    inside = group_wiring(cluster, np.array([0, 1, 5]))
    assert (inside.world_size, inside.num_nodes, inside.local_size, inside.cards) == (3, 1, 3, 0)
    assert inside.inter_bandwidth == np.inf
    across = group_wiring(cluster, np.array([0, 8]))
    assert (across.num_nodes, across.local_size, across.cards) == (2, 1, 1)
    assert across.intra_bandwidth == np.inf
    assert across.inter_bandwidth == whole.inter_bandwidth / whole.cards
