"""NCCL's formula: choices, stages, flows, and the values of its constants."""

from itertools import pairwise
from math import hypot, inf, sqrt

import pytest
from for_each import for_each
from pydantic import TypeAdapter, ValidationError

from simdp.collectives import FAMILIES
from simdp.collectives.costs import AnyCost, Wiring, nccl
from simdp.collectives.costs.nccl import WAYS, NcclCost

MIB = 2.0**20
BOX = Wiring(8, 1, 8, 3.4e-6, 300e9, 0.0, inf, 0)
PAIR = Wiring(16, 2, 8, 3.4e-6, 300e9, 14e-6, 100e9, 4)
THIN = Wiring(4, 4, 1, 0.0, inf, 30e-6, 1.25e9, 1)
RACK = Wiring(64, 8, 8, 3.4e-6, 300e9, 14e-6, 100e9, 4)


def cost(**keys):
    return TypeAdapter(AnyCost).validate_python({"kind": "nccl", **keys})


def refusal(**keys):
    with pytest.raises(ValidationError) as caught:
        cost(**keys)
    return str(caught.value)


@for_each("collective", sorted(WAYS))
@for_each("wiring", [BOX, PAIR, THIN])
def test_more_bytes_never_take_less_time(collective, wiring):
    times = [cost().seconds(collective, 2.0**k, wiring) for k in range(31)]
    assert all(0 < a <= b for a, b in pairwise(times))


def test_every_collective_has_a_way():
    assert {*WAYS} == {*FAMILIES, "sendrecv"}


def test_a_single_rank_takes_no_time():
    alone = Wiring(1, 1, 1, 0.0, inf, 0.0, inf, 0)
    assert cost().choice("all_reduce", MIB, alone) == ("none", "none", 0.0)


def test_one_algorithm_and_protocol_follow_the_formula():
    plain = cost(algorithms=["ring"], protocols=["simple"])
    latency, wire = 14 * 3.4e-6, 25 * MIB * 14 / 8 / (0.8 * 300e9)
    wanted = 10e-6 + 8.4e-6 + hypot(latency, wire) + 2 * sqrt(3e-6 * wire)
    assert plain.seconds("all_reduce", 25 * MIB, BOX) == pytest.approx(wanted, rel=1e-12)


def test_summed_stages_add_their_wires_and_latencies():
    summed = cost(algorithms=["ring"], protocols=["simple"], stages="summed", ramp="0 s")
    latency = 28 * 3.4e-6 + 2 * 14e-6
    wire = MIB * 30 / 16 * (1 / (0.8 * 300e9) + 1 / (0.96 * 100e9))
    wanted = 18.4e-6 + latency + wire
    assert summed.seconds("all_reduce", MIB, PAIR) == pytest.approx(wanted, rel=1e-12)
    assert summed.seconds("all_reduce", MIB, PAIR) > cost(
        algorithms=["ring"], protocols=["simple"], ramp="0 s"
    ).seconds("all_reduce", MIB, PAIR)


@for_each("protocol", ["ll", "ll128", "simple"])
def test_every_ring_step_of_three_nodes_or_more_takes_a_step_of_the_network(protocol):
    """7 steps inside nodes and 5 between them, each 9 us: more than the sum of their hops."""
    wiring = RACK._replace(world_size=12, num_nodes=6, local_size=2)
    keys = {"algorithms": ["ring"], "protocols": [protocol], "ramp": "0 s", "ring_step": "9 us"}
    keys |= {"hop": {"inter": "14 us", "intra": "1 us"}, "efficiency": {"intra": 0.5, "inter": 0.5}}
    ring = cost(launch="0 s", base="0 s", **keys)
    wire = 2.0**20 * 11 / 12 / 50e9
    paced = ring.seconds("all_gather", 2.0**20, wiring)
    assert paced == pytest.approx(hypot(11 * 9e-6, wire), rel=1e-12)
    small = ring.seconds("all_gather", 2.0**14, wiring)
    assert small == pytest.approx(hypot(5 * 14e-6 + 6e-6, wire / 64), rel=1e-12)


def test_two_nodes_have_no_ring_step():
    assert cost(ring_step="1 s").choice("all_gather", MIB, PAIR) == cost().choice(
        "all_gather", MIB, PAIR
    )


@for_each("algorithm", ["tree", "nvls"])
def test_further_hops_of_deep_trees_take_a_tree_step(algorithm):
    """8 nodes have 6 hops between nodes, 4 more than 2 nodes; 32 nodes have 4 more again."""
    keys = {"algorithms": [algorithm], "protocols": ["simple"], "ramp": "0 s"}
    tree = cost(tree_step="100 us", stages="summed", **keys)
    flat = cost(tree_step="0 s", stages="summed", **keys)
    hop = tree.hop_time("inter", algorithm, "simple", 14e-6)
    for size, filled in ((4 * MIB, 1.0), (MIB, 0.5), (0.25 * MIB, 0.14)):
        for nodes, hops in ((2, 0), (8, 4), (32, 8)):
            wiring = RACK._replace(world_size=8 * nodes, num_nodes=nodes)
            both = [one.seconds("all_reduce", size, wiring) for one in (tree, flat)]
            wanted = hops * (max(filled * 100e-6, hop) - hop)
            assert both[0] - both[1] == pytest.approx(wanted, rel=1e-9, abs=1e-15)


def test_large_buffers_of_deep_trees_get_the_published_share():
    for protocol, share in (("simple", 0.96), ("ll128", 0.88)):
        tree = cost(algorithms=["tree"], protocols=[protocol], tree_efficiency=0.3)
        large = tree.seconds("all_reduce", 2.0**36, RACK)
        assert large == pytest.approx(2.0**36 * 2 / (0.92 * share * 100e9), rel=0.01)
    slow = cost(algorithms=["tree"], protocols=["ll"], tree_efficiency=0.3)
    large = slow.seconds("all_reduce", 2.0**36, RACK)
    assert large == pytest.approx(2.0**36 * 2 / (0.3 * 0.48 * 100e9), rel=0.01)


def test_small_buffers_take_ll_and_large_ones_simple():
    small, large = (cost().choice("all_reduce", size, BOX) for size in (1024.0, 1024 * MIB))
    assert small[:2] == ("ring", "ll")
    assert large[:2] == ("ring", "simple")


def test_trees_serve_small_buffers_of_many_nodes_and_rings_large_ones():
    assert cost().choice("all_reduce", 1024.0, RACK).algorithm == "tree"
    assert cost().choice("all_reduce", 1024 * MIB, RACK).algorithm == "ring"


def test_the_choice_is_the_fastest_of_all():
    choices = list(cost().choices("all_reduce", MIB, PAIR))
    assert len(choices) == 6
    assert cost().choice("all_reduce", MIB, PAIR).seconds == min(c.seconds for c in choices)


def test_a_switch_that_adds_beats_rings_on_hopper_as_published():
    """NCCL 2.30.7 plans with 476 GB/s of bus bandwidth for 8 H100, which measure 482."""
    hopper = BOX._replace(intra_bandwidth=450e9)
    with_nvls = cost(algorithms=["ring", "tree", "nvls"])
    choice = with_nvls.choice("all_reduce", 2.0**34, hopper)
    assert choice.algorithm == "nvls"
    assert 2.0**34 * 14 / 8 / choice.seconds == pytest.approx(476e9, rel=0.03)


def test_a_switch_of_a_large_domain_gets_a_smaller_share():
    """9 times the devices of a node of 8: 9^-0.16 of its share, 73/72 of the buffer."""
    rack = BOX._replace(world_size=72, local_size=72, intra_bandwidth=900e9)
    alone = cost(algorithms=["nvls"], nvls_efficiency=0.6)
    wanted = 2.0**40 * 73 / 72 / (0.6 * 9**-0.16 * 900e9)
    assert alone.seconds("all_reduce", 2.0**40, rack) == pytest.approx(wanted, rel=0.003)
    four = BOX._replace(world_size=4, local_size=4)
    assert nccl.domain_share(four) == nccl.domain_share(BOX) == 1.0


def test_the_slowest_stage_rules():
    assert cost().seconds("all_reduce", 2.0**30, PAIR) == pytest.approx(
        2.0**30 * 30 / 16 / (0.96 * 100e9), rel=0.05
    )


def test_flows_cap_what_a_node_sends():
    capped = cost(flow_bandwidth="0.35 GB/s", flows_per_pair=2)
    large = capped.seconds("all_reduce", 2.0**30, THIN)
    assert large == pytest.approx(2.0**30 * 1.5 / 0.7e9, rel=0.01)
    wide = cost(flow_bandwidth="0.35 GB/s", flows_per_pair=8)
    assert wide.seconds("all_reduce", 2.0**30, THIN) == cost().seconds("all_reduce", 2.0**30, THIN)


def test_sockets_lose_bandwidth_with_the_number_of_nodes():
    """A ring of 8 nodes is 0.8066 times, one of 128 nodes 0.525 times as fast as one of 2."""
    keys = {"algorithms": ["ring"], "efficiency": {"inter": 0.2}, "nodes_exponent": 0.155}
    for nodes, share in ((2, 1.0), (8, 0.8066), (128, 0.5249)):
        wiring = THIN._replace(world_size=nodes, num_nodes=nodes)
        large = cost(**keys).seconds("all_gather", 2.0**40, wiring)
        bandwidth = 2.0**40 * (nodes - 1) / nodes / large
        assert bandwidth == pytest.approx(share * 0.2 * 1.25e9, rel=0.001)


def test_two_nodes_share_their_flows_between_both_directions():
    two = THIN._replace(world_size=2, num_nodes=2)
    keys = {"flow_bandwidth": "0.7 GB/s", "algorithms": ["ring"]}
    ratio = cost(two_nodes=0.64, **keys).flow_share(two) / cost(**keys).flow_share(two)
    assert ratio == pytest.approx(0.64)
    assert cost(two_nodes=0.64, **keys).flow_share(THIN) == 0.7e9


def test_devices_share_the_hosts_bandwidth():
    pcie = Wiring(4, 1, 4, 5.7e-6, 15.75e9, 0.0, inf, 0)
    shared = cost(host_bandwidth="8 GB/s", protocols=["simple"], algorithms=["ring"])
    pair = pcie._replace(world_size=2, local_size=2)
    four, two = (shared.seconds("all_gather", 2.0**30, w) for w in (pcie, pair))
    assert four == pytest.approx(2.0**30 * 3 / 4 / 2e9, rel=0.01)
    assert two == pytest.approx(2.0**30 / 2 / 4e9, rel=0.01)


def test_a_hop_without_a_value_is_the_links_alpha_by_protocol():
    assert cost().hop_time("inter", "ring", "simple", 30e-6) == 30e-6
    assert cost().hop_time("inter", "ring", "ll", 14e-6) == pytest.approx(2.7e-6)
    assert cost().hop_time("inter", "tree", "ll", 14e-6) == pytest.approx(5e-6)
    assert cost(hop={"inter": {"ll": "9 us"}}).hop_time("inter", "ring", "ll", 14e-6) == 9e-6


def test_one_value_serves_every_protocol():
    made = cost(hop={"inter": "0.4 ms"}, efficiency={"intra": 0.5}, base="7 us")
    assert made.hop.inter.ll == made.hop.inter.ll128 == made.hop.inter.simple == 0.4e-3
    assert (made.efficiency.intra.ll, made.base.simple) == (0.5, 7e-6)


def test_what_was_asked_before_is_no_part_of_the_value():
    one, other = cost(), cost()
    one.seconds("all_reduce", MIB, BOX)
    assert one == other
    assert one.known
    assert cost(**{"launch": "1 us"}) != other


def test_a_cost_remembers_no_more_than_it_has_room_for(monkeypatch):
    monkeypatch.setattr(nccl, "MAX_KNOWN", 3)
    made = cost()
    first = made.seconds("all_reduce", 1.0, BOX)
    for nbytes in range(2, 9):
        made.seconds("all_reduce", float(nbytes), BOX)
        assert len(made.known) <= 3
    assert made.seconds("all_reduce", 1.0, BOX) == first


def test_a_cost_is_read_back_as_it_was_written():
    made = cost(hop={"inter": "0.4 ms"}, flow_bandwidth="1 GB/s", algorithms=["ring"])
    assert NcclCost.model_validate(made.model_dump(mode="json", exclude_none=True)) == made


def test_a_collective_without_an_algorithm_is_refused():
    wrong = "cost nccl has no algorithm for broadcast; add ring to its algorithms"
    trees = cost(algorithms=["tree"])
    assert trees.problem_with("broadcast", BOX) == wrong
    with pytest.raises(ValueError, match=wrong):
        trees.seconds("broadcast", MIB, BOX)
    assert cost().problem_with("broadcast", BOX) is None


@for_each(
    ("keys", "said"),
    [
        ({"launch": 3}, "has no unit"),
        ({"stages": "both"}, "'overlapped' or 'summed'"),
        ({"algorithms": []}, "at least 1"),
        ({"efficiency": {"inter": 0}}, "greater than 0"),
        ({"two_nodes": 0}, "greater than 0"),
        ({"flow_bandwidth": "3 us"}, "bandwidth"),
        ({"hop": {"inter": {"l": "3 us"}}}, "unknown key 'l'"),
    ],
)
def test_wrong_constants_are_refused(keys, said):
    assert said in refusal(**keys)
