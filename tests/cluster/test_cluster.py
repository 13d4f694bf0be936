"""A cluster: nodes, the links inside and between them, and the sizes that fit."""

import numpy as np
import pytest
from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.cluster.topologies import TOPOLOGIES
from simdp.spec import problems

INSIDE = {"alpha": "1 us", "bandwidth": "100 GB/s"}
BETWEEN = {"alpha": "10 us", "bandwidth": "10 GB/s"}
DEVICE = "t4-16gb"


def cluster(**keys):
    return Cluster.model_validate({"device": DEVICE, "link": INSIDE, **keys})


def two_level(world_size, per_node, inside, between, links_per_node=1):
    return cluster(
        world_size=world_size,
        devices_per_node=per_node,
        topology=inside,
        inter_node={"topology": between, "link": BETWEEN, "links_per_node": links_per_node},
    )


def route(where, src, dst):
    links = where.routes(np.array([src]), np.array([dst]))[0]
    return [int(link) for link in links if link >= 0]


def names(where, src, dst):
    return [where.link_name(link) for link in route(where, src, dst)]


def refusal(**keys):
    raw = {"device": DEVICE, "link": INSIDE, **keys}
    with pytest.raises(ValidationError) as caught:
        Cluster.model_validate(raw)
    return [found.line for found in problems(caught.value, raw)]


# Sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("world_size", "per_node", "local_size", "num_nodes"),
    [(8, None, 8, 1), (8, 8, 8, 1), (3, 8, 3, 1), (8, 4, 4, 2), (8, 1, 1, 8), (1, 4, 1, 1)],
)
def test_ranks_fill_nodes(world_size, per_node, local_size, num_nodes):
    where = cluster(world_size=world_size, devices_per_node=per_node, inter_node={"link": BETWEEN})
    assert (where.local_size, where.num_nodes) == (local_size, num_nodes)


def test_a_world_that_fills_no_whole_node_is_refused():
    assert refusal(world_size=6, devices_per_node=4, inter_node={"link": BETWEEN}) == [
        "world_size 6 is neither one partly used node of 4 devices nor a multiple of "
        "devices_per_node; use 4 or 8."
    ]


def test_several_nodes_need_a_network():
    assert refusal(world_size=8, devices_per_node=4) == [
        "world_size 8 needs 2 nodes, but there is no inter_node network; "
        "add inter_node: {topology: switch, link: ib-hdr}."
    ]


def test_devices_of_one_node_need_a_link():
    assert refusal(world_size=2, link=None) == [
        "link is required where a node has two devices or more; add link: nvlink3."
    ]


def test_nodes_of_one_device_need_no_link_inside():
    where = cluster(world_size=3, devices_per_node=1, link=None, inter_node={"link": BETWEEN})
    assert len(route(where, 0, 2)) == 2
    assert cluster(world_size=1, link=None).local_size == 1


@pytest.mark.parametrize("world_size", [0, -1, 2**20 + 1])
def test_world_size_has_a_range(world_size):
    (line,) = refusal(world_size=world_size)
    assert line.startswith(f"world_size: {world_size} is out of range; it must be ")


@pytest.mark.parametrize("world_size", [1.5, "four"])
def test_world_size_is_a_whole_number(world_size):
    assert refusal(world_size=world_size) == [f"world_size: {world_size!r} is not a whole number."]


# Devices -----------------------------------------------------------------------------------------


def test_one_device_serves_every_rank():
    devices = cluster(world_size=3).devices()
    assert [device.name for device in devices] == [DEVICE] * 3


def test_a_list_gives_one_device_per_rank():
    mixed = [DEVICE, "a100-sxm4-80gb", {**FIGURES, "memory": "1 GB"}]
    devices = cluster(world_size=3, device=mixed).devices()
    assert [device.name for device in devices] == [DEVICE, "a100-sxm4-80gb", None]
    assert devices[2].memory == 1e9


FIGURES = {"peak": {"float32": "1 TFLOP/s"}, "memory": "8 GB", "memory_bandwidth": "100 GB/s"}


def test_a_list_of_another_length_is_refused():
    assert refusal(world_size=3, device=[DEVICE, DEVICE]) == [
        "device lists 2 devices for world_size 3; give one per rank."
    ]


def test_an_unknown_device_is_refused_with_a_hint():
    (line,) = refusal(world_size=1, device="a100-80gb")
    assert line.startswith("device: unknown device 'a100-80gb'; known: a100-sxm4-40gb, ")
    assert "Did you mean 'a10" in line


def test_an_unknown_device_in_a_list_is_named_by_its_rank():
    (line,) = refusal(world_size=2, device=[DEVICE, "t5"])
    assert line.startswith("device.1: unknown device 't5'; known: ")


def test_an_unknown_link_is_refused_with_a_hint():
    (line,) = refusal(world_size=2, link="nvlink9")
    assert line.startswith("link: unknown link 'nvlink9'; known: 100gbe, ")
    assert line.endswith("Did you mean 'nvlink4'?") or "Did you mean 'nvlink" in line


@pytest.mark.parametrize("peak", [{}, {"int8": "1 TFLOP/s"}])
def test_a_device_has_peaks_of_known_dtypes(peak):
    (line,) = refusal(world_size=1, device={**FIGURES, "peak": peak})
    given = ", ".join(map(repr, peak)) or "nothing"
    assert line == (
        f"device.peak: {given} is no dtype with a peak; "
        "known: float64, float32, tfloat32, float16, bfloat16."
    )


@pytest.mark.parametrize("efficiency", [0, -0.5, 1.5])
def test_efficiency_is_a_fraction(efficiency):
    (line,) = refusal(world_size=1, device={**FIGURES, "efficiency": efficiency})
    assert line.startswith(f"device.efficiency: {efficiency} is out of range; it must be ")


@pytest.mark.parametrize(
    ("link", "line"),
    [
        (
            {"alpha": "5 us", "bandwidth": 25},
            'link.bandwidth: 25 has no unit; write for example "25 GB/s".',
        ),
        (
            {"alpha": "5 us", "bandwidth": "5 us"},
            "link.bandwidth: '5 us' is not a bandwidth; write for example \"25 GB/s\".",
        ),
        (
            {"alpha": "5 us", "bandwidth": "0 GB/s"},
            "link.bandwidth: 0 GB/s is out of range; it must be > 0 B/s and finite.",
        ),
        (
            {"alpha": "-5 us", "bandwidth": "1 GB/s"},
            "link.alpha: -5 us is out of range; it must be >= 0 s and finite.",
        ),
        (
            {"alpha": "1e400 s", "bandwidth": "1 GB/s"},
            "link.alpha: 1e400 s is out of range; it must be >= 0 s and finite.",
        ),
        ({"alpha": "5 us"}, "link.bandwidth: is required but was not given; add it."),
    ],
)
def test_a_link_needs_a_latency_and_a_bandwidth(link, line):
    assert refusal(world_size=2, link=link) == [line]


# Routes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inside", TOPOLOGIES)
@pytest.mark.parametrize("between", TOPOLOGIES)
@pytest.mark.parametrize(("world_size", "per_node"), [(8, 4), (6, 2), (4, 1), (9, 3), (5, 5)])
@pytest.mark.parametrize("cards", [1, 2])
def test_every_pair_of_ranks_is_joined_and_stays_in_its_node(
    inside, between, world_size, per_node, cards
):
    where = two_level(world_size, per_node, inside, between, cards)
    src, dst = (part.ravel() for part in np.indices((world_size, world_size)))
    src, dst = src[src != dst], dst[src != dst]
    routes = where.routes(src, dst)
    used = routes >= 0
    assert used[:, 0].all()
    alpha, bandwidth = where.link_figures(routes)
    same_node = src // per_node == dst // per_node
    outside = used & ~same_node[:, None]
    inner = used & same_node[:, None]
    assert (alpha[outside] == 10e-6).all()
    assert (alpha[inner] == 1e-6).all()
    assert (bandwidth[outside] == 10e9).all()
    assert (bandwidth[inner] == 100e9).all()
    for start, end, links in zip(src, dst, routes, strict=True):
        assert where.link_name(int(links[0])).startswith("the link from ")
        alone = where.routes(np.array([start]), np.array([end]))[0]
        assert [x for x in alone if x >= 0] == [x for x in links if x >= 0]


def test_nodes_do_not_share_the_links_inside_them():
    where = two_level(8, 4, "ring", "switch")
    assert not set(route(where, 0, 1)) & set(route(where, 4, 5))


def test_a_switch_inside_a_node_is_a_link_up_and_a_link_down():
    where = cluster(world_size=4)
    assert names(where, 1, 3) == [
        "the link from rank 1 to the switch",
        "the link from the switch to rank 3",
    ]


def test_a_link_names_the_ranks_of_its_node():
    where = two_level(8, 4, "ring", "switch")
    assert names(where, 7, 4) == ["the link from rank 7 to rank 4"]
    assert names(where, 4, 6) == [
        "the link from rank 4 to rank 5",
        "the link from rank 5 to rank 6",
    ]


def test_behind_a_switch_sender_and_receiver_each_use_their_own_card():
    where = two_level(8, 4, "ring", "switch", links_per_node=2)
    assert names(where, 1, 6) == [
        "the link from card 1 of node 0 to the inter-node switch",
        "the link from the inter-node switch to card 0 of node 1",
    ]


@pytest.mark.parametrize("between", ["ring", "full_mesh"])
def test_without_a_switch_a_route_stays_on_the_senders_card(between):
    where = two_level(12, 4, "ring", between, links_per_node=2)
    assert names(where, 3, 4) == ["the link from card 1 of node 0 to card 1 of node 1"]


def test_a_route_over_a_ring_of_nodes_passes_the_nodes_between():
    where = two_level(8, 2, "ring", "ring")
    assert names(where, 0, 5) == [
        "the link from card 0 of node 0 to card 0 of node 1",
        "the link from card 0 of node 1 to card 0 of node 2",
    ]


@pytest.mark.parametrize("cards", [1, 2, 3, 4, 8])
def test_a_card_serves_the_local_ranks_that_leave_its_number(cards):
    where = two_level(8, 4, "ring", "switch", cards)
    first = [route(where, src, 4)[0] for src in range(4)]
    for one in range(4):
        for other in range(4):
            assert (first[one] == first[other]) == (one % cards == other % cards)


@pytest.mark.parametrize("between", TOPOLOGIES)
@pytest.mark.parametrize("cards", [1, 2, 4])
def test_ranks_on_different_cards_share_no_link_between_nodes(between, cards):
    where = two_level(8, 4, "full_mesh", between, cards)
    for one in range(4):
        for other in range(4):
            shared = set(route(where, one, 4 + one)) & set(route(where, other, 4 + other))
            assert bool(shared) == (one % cards == other % cards)


def test_links_per_node_is_at_least_one():
    raw = {"topology": "switch", "link": BETWEEN, "links_per_node": 0}
    assert refusal(world_size=2, inter_node=raw) == [
        "inter_node.links_per_node: 0 is out of range; it must be >= 1."
    ]
