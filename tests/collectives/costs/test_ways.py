"""What NCCL's algorithms send, and over how many hops."""

from math import inf

import pytest
from closed_forms import ring_all_reduce_time
from for_each import for_each

from simdp.collectives.costs import Wiring
from simdp.collectives.costs.nccl import WAYS, AlgorithmTraffic, peer_channels


def wiring(nodes, local, cards=1):
    """Links of 1 byte per second each, without latency."""
    many = nodes > 1
    return Wiring(
        world_size=nodes * local,
        num_nodes=nodes,
        local_size=local,
        intra_alpha=0.0,
        intra_bandwidth=1.0 if local > 1 else inf,
        inter_alpha=0.0,
        inter_bandwidth=float(cards) if many else inf,
        cards=cards if many else 0,
    )


@for_each(("nodes", "local"), [(1, 8), (4, 1), (2, 4), (3, 5)])
def test_rings_take_the_steps_and_bytes_of_the_closed_form(nodes, local):
    way = WAYS["all_reduce"]["ring"](wiring(nodes, local))
    n = nodes * local
    assert way.intra_hops + way.inter_hops == 2 * (n - 1)
    assert way.inter_hops == 2 * (nodes - 1)
    assert max(way.intra_sent, way.inter_sent) == pytest.approx(ring_all_reduce_time(1, n, 0, 1))
    halves = [WAYS[name]["ring"](wiring(nodes, local)) for name in ("reduce_scatter", "all_gather")]
    assert AlgorithmTraffic(*(sum(pair) for pair in zip(*halves, strict=True))) == pytest.approx(
        way
    )


def test_two_nodes_send_half_as_much_up_and_down_a_double_tree():
    two, three = (WAYS["all_reduce"]["tree"](wiring(n, 4)).inter_sent for n in (2, 3))
    assert (two, three) == (1, 2)


@for_each(("nodes", "hops"), [(1, 0), (2, 2), (3, 2), (4, 4), (9, 6)])
def test_trees_grow_with_the_logarithm_of_the_nodes(nodes, hops):
    way = WAYS["all_reduce"]["tree"](wiring(nodes, 4))
    assert (way.intra_hops, way.inter_hops) == (6, hops)


def test_broadcast_and_reduce_are_pipelines_through_every_rank():
    assert WAYS["broadcast"]["ring"](wiring(2, 4)) == AlgorithmTraffic(6, 1, 1, 1)
    assert WAYS["reduce"]["ring"](wiring(1, 4)) == AlgorithmTraffic(3, 0, 1, 0)


def test_every_rank_sends_a_piece_to_every_other_in_an_all_to_all():
    way = WAYS["all_to_all"]["p2p"](wiring(2, 4))
    assert way == AlgorithmTraffic(3, 4, 3 / 8, 4 * 4 / 8)
    alone = WAYS["all_to_all"]["p2p"](wiring(1, 4))
    assert (alone.inter_hops, alone.inter_sent) == (0, 0)


def test_gather_sends_what_the_others_have_to_the_roots_node():
    assert WAYS["gather"]["p2p"](wiring(2, 4)) == AlgorithmTraffic(3, 4, 3 / 8, 4 / 8)
    assert WAYS["scatter"] == WAYS["gather"]


def test_a_send_to_the_next_rank_leaves_a_node_by_one_card():
    way = WAYS["sendrecv"]["p2p"](wiring(2, 2, cards=2))
    assert way.inter_sent / wiring(2, 2, cards=2).inter_bandwidth == 1
    assert WAYS["sendrecv"]["p2p"](wiring(1, 2)) == AlgorithmTraffic(1, 0, 1, 0)


@for_each(
    ("nodes", "local", "channels", "rate"),
    [(2, 1, 4, 50e9), (10, 1, 2, 28e9), (10, 2, 2, 28e9), (10, 4, 2, 28e9), (10, 8, 1, 14e9)],
)
def test_a_send_between_nodes_gets_the_channels_that_leave_room_for_all_peers(
    nodes, local, channels, rate
):
    """Cards of 400 Gbit/s, one for each GPU: nccl-tests measured 44, 25, 25, 26 and 15 GB/s."""
    fast = wiring(nodes, local, cards=local)._replace(inter_bandwidth=local * 50e9)
    assert peer_channels(fast) == channels
    sent = WAYS["sendrecv"]["p2p"](fast).inter_sent
    assert fast.inter_bandwidth / sent == pytest.approx(rate, rel=1e-12)


def test_a_switch_that_adds_takes_the_buffer_once():
    way = WAYS["all_reduce"]["nvls"](wiring(1, 8))
    assert (way.intra_hops, way.intra_sent) == (1, 9 / 8)
    assert WAYS["all_gather"]["nvls"](wiring(1, 8)).intra_sent == 7 / 8


def test_a_switch_adds_for_several_ranks_and_gathers_in_one_node():
    assert WAYS["all_reduce"]["nvls"](wiring(4, 1)) is None
    assert WAYS["all_gather"]["nvls"](wiring(2, 4)) is None
