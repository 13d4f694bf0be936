"""A cluster: nodes, the links inside and between them, and the sizes that fit."""

import copy
import pickle
from itertools import pairwise

import numpy as np
import pytest
from for_each import for_each, for_some
from networks import EXAMPLES, TOPO, example
from pydantic import ValidationError

from simdp.cluster import Cluster
from simdp.spec import problems

pytestmark = pytest.mark.slow

INSIDE = {"alpha": "1 us", "bandwidth": "100 GB/s"}
BETWEEN = {"alpha": "10 us", "bandwidth": "10 GB/s"}
DEVICE = "t4-16gb"


def cluster(**keys):
    return Cluster.model_validate({"device": DEVICE, "link": INSIDE, **keys})


def two_level(world_size, per_node, inside, between, links_per_node=1, **keys):
    return cluster(
        world_size=world_size,
        devices_per_node=per_node,
        topology=inside,
        inter_node={
            "topology": EXAMPLES.get(between, between) if isinstance(between, str) else between,
            "link": BETWEEN,
            "links_per_node": links_per_node,
            **keys,
        },
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


@for_each(
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


@for_each("world_size", [0, -1, 2**20 + 1])
def test_world_size_has_a_range(world_size):
    (line,) = refusal(world_size=world_size)
    assert line.startswith(f"world_size: {world_size} is out of range; it must be ")


@for_each("world_size", [1.5, "four"])
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
    assert line.startswith("device: unknown device 'a100-80gb'. Did you mean 'a100-")


def test_an_unknown_device_in_a_list_is_named_by_its_rank():
    (line,) = refusal(world_size=2, device=[DEVICE, "t5"])
    assert line.startswith("device.1: unknown device 't5'; known: ")


def test_an_unknown_link_is_refused_with_a_hint():
    (line,) = refusal(world_size=2, link="nvlink9")
    assert line.startswith("link: unknown link 'nvlink9'. Did you mean 'nvlink")


@for_each("peak", [{}, {"int8": "1 TFLOP/s"}])
def test_a_device_has_peaks_of_known_dtypes(peak):
    (line,) = refusal(world_size=1, device={**FIGURES, "peak": peak})
    given = ", ".join(map(repr, peak)) or "nothing"
    assert line == (
        f"device.peak: {given} is not a dtype with a peak; "
        "known: float64, float32, tfloat32, float16, bfloat16, float8."
    )


@for_each(
    ("efficiency", "line"),
    [
        (
            {"float32": 0.7, "float16": 0.4},
            "device: efficiency is given for float32, float16, but there are peaks for {}; give "
            "one for each of these, or one for all.",
        ),
        ({"float32": 1.5}, "device.efficiency.float32: 1.5 is out of range; it must be <= 1.0."),
        (
            {},
            "device: efficiency is given for nothing, but there are peaks for {}; give one for "
            "each of these, or one for all.",
        ),
    ],
)
def test_efficiency_by_dtype_is_given_for_each_peak(efficiency, line):
    (found,) = refusal(world_size=1, device={**FIGURES, "efficiency": efficiency})
    assert found == line.format(", ".join(FIGURES["peak"]))


def test_half_work_is_a_number_of_operations():
    (found,) = refusal(world_size=1, device={**FIGURES, "half_work": "20 TFLOP/s"})
    assert found == (
        "device.half_work: '20 TFLOP/s' is not a number of operations; write for example "
        '"20 MFLOP".'
    )


@for_each("efficiency", [0, -0.5, 1.5])
def test_efficiency_is_a_fraction(efficiency):
    (line,) = refusal(world_size=1, device={**FIGURES, "efficiency": efficiency})
    assert line.startswith(f"device.efficiency: {efficiency} is out of range; it must be ")


@for_each(
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


UNIFORM = ["ring", "switch", "full_mesh", "torus2d"]
"""Topologies whose links are all as wide as the given one."""

NETWORKS = [name for name in EXAMPLES if not example(name).only_inside]

SIZES = [(8, 4), (6, 2), (4, 1), (9, 3), (5, 5)]


def pairs(n):
    src, dst = (part.ravel() for part in np.indices((n, n)))
    return src[src != dst], dst[src != dst]


@for_some("inside", UNIFORM, 2)
@for_each("between", ["ring", "switch", "full_mesh", "fat_tree", "rail_optimised"])
@for_each(("world_size", "per_node"), SIZES)
@for_each("cards", [1, 2])
def test_every_pair_of_ranks_is_joined_and_stays_in_its_node(
    inside, between, world_size, per_node, cards
):
    where = two_level(world_size, per_node, inside, between, cards)
    src, dst = pairs(world_size)
    routes = where.routes(src, dst)
    used = routes >= 0
    assert used[:, 0].all()
    alpha, bandwidth = where.link_figures(routes)
    same_node = src // per_node == dst // per_node
    outside = used & ~same_node[:, None]
    inner = used & same_node[:, None]
    assert (alpha[outside] == 10e-6).all()
    assert (alpha[inner] == 1e-6).all()
    assert (bandwidth[outside] == max(cards // per_node, 1) * 10e9).all()
    assert (bandwidth[inner] == 100e9).all()
    for start, end, links in zip(src, dst, routes, strict=True):
        assert where.link_name(int(links[0])).startswith("the link from ")
        alone = where.routes(np.array([start]), np.array([end]))[0]
        assert [x for x in alone if x >= 0] == [x for x in links if x >= 0]


@for_each(
    ("inside", "between"),
    [("switch", name) for name in NETWORKS] + [(name, "fat_tree_small") for name in EXAMPLES],
)
def test_every_link_of_a_cluster_has_a_name_and_figures_of_its_own(inside, between):
    where = two_level(6, 2, example(inside), example(between), 2)
    src, dst = pairs(6)
    routes = where.routes(src, dst)
    used = np.unique(routes[routes >= 0])
    assert used.max() < where.num_links
    names = [where.link_name(int(link)) for link in used]
    assert len(set(names)) == len(names)
    alpha, bandwidth = where.link_figures(used)
    assert (alpha >= 0).all()
    assert (bandwidth > 0).all()
    ends = [name.removeprefix("the link from ").split(" to ") for name in names]
    from_end = dict(zip(used.tolist(), ends, strict=True))
    for start, end, links in zip(src, dst, routes, strict=True):
        way = [from_end[int(link)] for link in links if link >= 0]
        first, last = way[0][0], way[-1][1]
        assert first == f"rank {start}" or first.endswith(f"of node {start // 2}")
        assert last == f"rank {end}" or last.endswith(f"of node {end // 2}")
        for (_, reached), (left, _) in pairwise(way):
            assert reached.split(" of node")[0] == left.split(" of node")[0]


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


@for_each("between", ["ring", "full_mesh"])
def test_without_a_switch_a_route_stays_on_the_senders_card(between):
    where = two_level(12, 4, "ring", between, links_per_node=2)
    assert names(where, 3, 4) == ["the link from card 1 of node 0 to card 1 of node 1"]


def test_a_route_over_a_ring_of_nodes_passes_the_nodes_between():
    where = two_level(8, 2, "ring", "ring")
    assert names(where, 0, 5) == [
        "the link from card 0 of node 0 to card 0 of node 1",
        "the link from card 0 of node 1 to card 0 of node 2",
    ]


@for_each("cards", [1, 2, 3, 4, 8])
def test_a_card_serves_the_local_ranks_that_leave_its_number(cards):
    where = two_level(8, 4, "ring", "switch", cards)
    first = [route(where, src, 4)[0] for src in range(4)]
    for one in range(4):
        for other in range(4):
            assert (first[one] == first[other]) == (one % cards == other % cards)


@for_each("between", NETWORKS)
@for_each("cards", [1, 2, 4])
def test_ranks_on_different_cards_share_no_link_between_nodes(between, cards):
    where = two_level(8, 4, "full_mesh", EXAMPLES[between], cards)
    for one in range(4):
        for other in range(4):
            shared = set(route(where, one, 4 + one)) & set(route(where, other, 4 + other))
            narrow = example(between).kind in ("fat_tree", "rail_optimised", "dragonfly")
            if one % cards == other % cards or not narrow:  # else a trunk may be shared
                assert bool(shared) == (one % cards == other % cards)


def test_links_per_node_is_at_least_one():
    raw = {"topology": "switch", "link": BETWEEN, "links_per_node": 0}
    assert refusal(world_size=2, inter_node=raw) == [
        "inter_node.links_per_node: 0 is out of range; it must be >= 1."
    ]


# Network cards -----------------------------------------------------------------------------------


def test_a_list_says_which_card_serves_which_device():
    where = two_level(8, 4, "ring", "switch", 2, nics=[0, 0, 1, 1])
    assert names(where, 1, 6) == [
        "the link from card 0 of node 0 to the inter-node switch",
        "the link from the inter-node switch to card 1 of node 1",
    ]
    assert where.ports(np.arange(8)).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    without = two_level(8, 4, "ring", "switch", 2)
    assert without.ports(np.arange(8)).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_a_partly_used_node_uses_the_first_entries_of_the_list():
    where = two_level(2, 4, "ring", "switch", 2, nics=[1, 0, 1, 1])
    assert where.ports(np.arange(2)).tolist() == [1, 0]


@for_each(
    ("nics", "said"),
    [
        ([0, 1], "inter_node.nics has 2 entries for 4 devices of a node; give one each."),
        ([0, 1, 2, 0], "inter_node.nics names card 2, but links_per_node is 2; give 0 ... 1."),
        ([0, 1, -1, 0], "inter_node.nics names card -1, but links_per_node is 2; give 0 ... 1."),
    ],
)
def test_a_list_of_cards_that_does_not_fit_is_refused(nics, said):
    inter = {"topology": "switch", "link": BETWEEN, "links_per_node": 2, "nics": nics}
    assert refusal(world_size=8, devices_per_node=4, inter_node=inter) == [said]


def test_a_node_that_places_its_cards_adds_the_way_to_them():
    where = two_level(8, 4, "pcie_tree", "switch", 2, nics=[0, 0, 1, 1])
    assert names(where, 1, 6) == [
        "the link from rank 1 to PCIe switch 0",
        "the link from PCIe switch 0 to card 0 of node 0",
        "the link from card 0 of node 0 to the inter-node switch",
        "the link from the inter-node switch to card 1 of node 1",
        "the link from card 1 of node 1 to PCIe switch 1",
        "the link from PCIe switch 1 to rank 6",
    ]
    far = two_level(8, 4, "pcie_tree", "switch", 2)  # rank 1 uses card 1, on the other switch
    links = np.array([route(far, 1, 6)])
    assert far.begins_stage(links).sum() == 2  # and rank 6 uses card 0: staged on both sides


def test_a_ring_of_nodes_ends_at_the_senders_card_there_too():
    where = two_level(8, 4, "pcie_tree", "ring", 2, nics=[0, 0, 1, 1])
    assert names(where, 1, 6)[2:4] == [
        "the link from card 0 of node 0 to card 0 of node 1",
        "the link from card 0 of node 1 to PCIe switch 0",
    ]


def test_nvidia_smi_places_the_cards_that_it_shows():
    dgx = {"kind": "nvidia_smi", "path": str(TOPO / "dgx1_v100.txt"), "pcie": "pcie3-x16"}
    where = two_level(16, 8, dgx, "switch", 4, nics=[0, 0, 1, 1, 2, 2, 3, 3])
    assert len(route(where, 3, 12)) == 6
    assert not where.begins_stage(np.array(route(where, 3, 12))).any()
    box = {"kind": "nvidia_smi", "path": str(TOPO / "pcie_box.txt")}
    assert len(route(two_level(16, 8, box, "switch"), 3, 12)) == 2


def test_what_is_staged_is_known_for_the_whole_cluster():
    where = two_level(8, 4, "pcie_tree", "switch")
    staged = where.routes(np.array([4, 4]), np.array([6, 5]))
    assert where.begins_stage(staged).tolist() == [
        [False, False, False, True, False, False],
        [False] * 6,
    ]


# Mixed clusters ----------------------------------------------------------------------------------


def test_nodes_may_differ_inside():
    where = cluster(
        world_size=12,
        devices_per_node=4,
        topology=["cube_mesh", "ring", "cube_mesh"],
        link=["nvlink2", INSIDE, "nvlink2"],
        inter_node={"link": BETWEEN},
    )
    assert names(where, 4, 6) == [
        "the link from rank 4 to rank 5",
        "the link from rank 5 to rank 6",
    ]
    assert names(where, 8, 10) == ["the link from rank 8 to rank 10"]
    routes = where.routes(np.array([0, 4, 8, 0]), np.array([1, 5, 11, 11]))
    _, bandwidth = where.link_figures(routes[:, :1])
    assert bandwidth[:, 0] == pytest.approx([25e9, 100e9, 50e9, 10e9])
    alone = [route(where, src, dst) for src, dst in ((0, 1), (4, 5), (8, 11), (0, 11))]
    assert [[int(link) for link in links if link >= 0] for links in routes] == alone


def test_links_at_a_nodes_ports_may_differ():
    links = [{"alpha": "1 us", "bandwidth": f"{rate} GB/s"} for rate in (10, 20, 40)]
    inter = {"topology": {"kind": "fat_tree", "ports_per_leaf": 2}, "link": links}
    where = cluster(world_size=6, devices_per_node=2, inter_node=inter)
    _, bandwidth = where.link_figures(where.routes(np.array([0, 4, 2]), np.array([2, 0, 4])))
    np.testing.assert_allclose(
        bandwidth / 1e9, [[10, 20, 1e-9, 1e-9], [40, 40, 40, 10], [20, 40, 40, 40]]
    )


def test_a_link_between_two_nodes_is_as_slow_as_the_slower_one():
    links = [{"alpha": f"{rate} us", "bandwidth": f"{rate} GB/s"} for rate in (10, 20, 40)]
    where = cluster(
        world_size=3, devices_per_node=1, inter_node={"topology": "ring", "link": links}
    )
    alpha, bandwidth = where.link_figures(where.routes(np.array([0, 1]), np.array([1, 2])))
    assert (bandwidth[:, 0] / 1e9).tolist() == [10, 20]
    assert alpha[:, 0] == pytest.approx([20e-6, 40e-6])


def test_lists_have_one_entry_per_node():
    sizes = {"world_size": 4, "devices_per_node": 2}
    inter = {"link": BETWEEN}
    assert refusal(**sizes, inter_node=inter, topology=["ring"]) == [
        "topology lists 1 entries for 2 nodes; give one each."
    ]
    assert refusal(**{**sizes, "link": [INSIDE] * 3}, inter_node=inter) == [
        "link lists 3 entries for 2 nodes; give one each."
    ]
    assert refusal(**sizes, inter_node={"link": [BETWEEN]}) == [
        "inter_node.link lists 1 entries for 2 nodes; give one each."
    ]


def test_what_is_wrong_in_a_list_is_named_by_its_place():
    inter = {"link": [BETWEEN, "ib-hrd"]}
    lines = refusal(world_size=4, devices_per_node=2, topology=["ring", "rign"], inter_node=inter)
    assert [line.split(". Did")[0] for line in lines] == [
        "topology.1: unknown topology 'rign'",
        "inter_node.link.1: unknown link 'ib-hrd'",
    ]


def test_a_mixed_cluster_is_written_down_and_read_again():
    where = cluster(
        world_size=4,
        devices_per_node=2,
        topology=["ring", "cube_mesh"],
        link=["nvlink2", INSIDE],
        inter_node={"link": ["ib-hdr", BETWEEN], "nics": [0, 0]},
    )
    again = Cluster.model_validate(where.model_dump(mode="json", exclude_none=True))
    assert again == where
    assert again.routes(*pairs(4)).tolist() == where.routes(*pairs(4)).tolist()


def test_the_numbering_of_links_does_not_outlive_a_change():
    small = cluster(world_size=2, topology="ring")
    assert small.num_links == 2
    assert small.model_copy(update={"world_size": 4}).num_links == 8
    assert small == cluster(world_size=2, topology="ring")
    for copied in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert copied == small
        assert copied.num_links == 2


# Switches that add -------------------------------------------------------------------------------


ADDS = {"kind": "switch", "in_network": True}


def test_switches_inside_nodes_are_numbered_after_the_ranks():
    where = two_level(6, 2, ADDS, {**EXAMPLES["fat_tree_small"], "in_network": True})
    assert where.inside_parents().tolist() == [2, 2, -1]
    for rank in range(6):
        reducer = 6 + rank // 2
        assert names(where, rank, reducer) == [f"the link from rank {rank} to the switch"]
        assert names(where, reducer, rank) == [f"the link from the switch to rank {rank}"]


def test_switches_between_nodes_come_after_those_inside():
    where = two_level(8, 2, ADDS, {**EXAMPLES["fat_tree_small"], "in_network": True}, 2)
    parents = where.across_parents()
    assert parents.tolist() == [8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 12, 12, -1]
    first = 8 + 4
    assert names(where, 3, first + 1) == ["the link from card 1 of node 1 to leaf switch 1"]
    assert names(where, first + 1, 3) == ["the link from leaf switch 1 to card 1 of node 1"]
    assert names(where, first + 3, first + 4) == ["the link from leaf switch 3 to spine switch 0"]
    assert names(where, first + 4, first) == ["the link from spine switch 0 to leaf switch 0"]
    mixed = where.routes(np.array([0, 0, 8, 3, first + 1]), np.array([1, 7, 1, 13, 3]))
    assert [[int(x) for x in links if x >= 0] for links in mixed] == [
        route(where, src, dst) for src, dst in ((0, 1), (0, 7), (8, 1), (3, 13), (13, 3))
    ]


def test_a_rank_reaches_a_switch_between_nodes_by_its_card():
    where = two_level(8, 4, "pcie_tree", ADDS, 2, nics=[0, 0, 1, 1])
    assert where.inside_parents() is None
    assert names(where, 6, 8) == [
        "the link from rank 6 to PCIe switch 1",
        "the link from PCIe switch 1 to card 1 of node 1",
        "the link from card 1 of node 1 to the inter-node switch",
    ]
    assert len(route(where, 8, 6)) == 3


def test_nodes_that_cannot_add_or_differ_have_no_tree():
    assert cluster(world_size=4, topology="ring").inside_parents() is None
    assert cluster(world_size=4).across_parents() is None
    assert two_level(4, 2, ADDS, "ring").across_parents() is None
    assert two_level(4, 2, [ADDS, "ring"], "ring").inside_parents() is None
    assert two_level(4, 2, [ADDS, ADDS], "ring").inside_parents().tolist() == [2, 2, -1]


# What does not fit -------------------------------------------------------------------------------


@for_each(
    ("keys", "said"),
    [
        (
            {"world_size": 9, "topology": "cube_mesh"},
            "topology: cube_mesh joins 8 devices at most, not 9; enlarge it, or use switch.",
        ),
        (
            {"world_size": 4, "devices_per_node": 16, "topology": "pcie_tree"},
            "topology: pcie_tree joins 8 devices at most, not 16; enlarge it, or use switch.",
        ),
        (
            {
                "world_size": 4,
                "devices_per_node": 9,
                "topology": {"kind": "nvidia_smi", "path": str(TOPO / "dgx_a100.txt")},
            },
            "topology: nvidia_smi joins 8 devices at most, not 9; enlarge it, or use switch.",
        ),
        (
            {"world_size": 6, "topology": {"kind": "torus2d", "dims": [2, 2]}},
            "topology: dims 2 x 2 make 4 places for 6 endpoints; give dims whose product is 6, "
            "or leave them out.",
        ),
        (
            {"world_size": 3, "topology": {"kind": "custom", "links": [{"ends": [0, 1]}]}},
            "topology: there is no route from rank 0 to rank 2; join them.",
        ),
    ],
    ids=str,
)
def test_a_topology_that_does_not_fit_a_node_is_refused(keys, said):
    assert refusal(**keys) == [said]


@for_each(
    ("topology", "said"),
    [
        (
            "pcie_tree",
            "inter_node.topology: pcie_tree is the inside of a node; "
            "use switch, fat_tree or another network.",
        ),
        (
            {"kind": "fat_tree", "leaves": 1, "ports_per_leaf": 7},
            "inter_node.topology: fat_tree joins 7 ports at most, not 8; "
            "enlarge it, or use switch.",
        ),
        (
            {"kind": "dragonfly", "groups": 1, "routers_per_group": 1},
            "inter_node.topology: dragonfly joins 4 ports at most, not 8; "
            "enlarge it, or use switch.",
        ),
        (
            {"kind": "torus3d", "dims": [2, 2, 2]},
            "inter_node.topology: dims 2 x 2 x 2 make 8 places for 4 endpoints; give dims whose "
            "product is 4, or leave them out.",
        ),
        (
            {"kind": "rail_optimised", "spines": 0},
            "inter_node: there is no route from rank 0 to rank 3; join them.",
        ),
        (
            {"kind": "custom", "links": [{"ends": [0, 1]}, {"ends": [2, 3]}]},
            "inter_node: there is no route from rank 0 to rank 4; join them.",
        ),
    ],
    ids=str,
)
def test_a_network_that_does_not_fit_the_nodes_is_refused(topology, said):
    inter = {"topology": topology, "link": BETWEEN, "links_per_node": 2}
    assert refusal(world_size=8, devices_per_node=2, inter_node=inter) == [said]


def test_rails_that_are_apart_will_do_where_every_rank_is_on_the_same():
    rails = {"kind": "rail_optimised", "spines": 0}
    assert two_level(8, 2, "switch", rails, 2, nics=[1, 1]).num_links > 0


# Size --------------------------------------------------------------------------------------------


@for_each("between", ["switch", "fat_tree", "rail_optimised", "dragonfly", "ring"])
def test_16384_ranks_need_arrays_of_that_length_only(between):
    where = two_level(16384, 8, "switch", between, 8)
    ranks = np.arange(16384)
    links = where.routes(ranks, (ranks + 1) % 16384)
    assert links.shape[1] <= 6
    alpha, bandwidth = where.link_figures(links)
    assert alpha.shape == bandwidth.shape == links.shape
    assert (alpha[links >= 0] > 0).all()


def test_nothing_is_no_device_topology_or_card():
    whole = {"world_size": 4, "devices_per_node": 2, "device": "t4-16gb", "link": "pcie3-x16"}
    inter = {"topology": "switch", "link": "ib-hdr"}
    Cluster.model_validate({**whole, "inter_node": inter})
    for wrong in ({"device": None}, {"topology": None}, {"inter_node": {**inter, "link": None}}):
        with pytest.raises(ValidationError):
            Cluster.model_validate({**whole, "inter_node": inter, **wrong})


# More cards than devices --------------------------------------------------------------------------


@for_each("between", ["switch", "ring", "full_mesh", "rail_optimised"])
def test_the_cards_of_a_device_act_as_one(between):
    """Four nodes of two devices with four cards each, and with one that is four times as wide."""
    spread = two_level(8, 2, "switch", between, 8)
    wide = {"alpha": "10 us", "bandwidth": "40 GB/s"}
    joined = two_level(8, 2, "switch", between, 2, link=wide)
    src, dst = pairs(8)
    assert np.array_equal(spread.routes(src, dst), joined.routes(src, dst))
    links = np.arange(spread.num_links)
    for one, other in zip(spread.link_figures(links), joined.link_figures(links), strict=True):
        assert np.array_equal(one, other)
    assert "cards 4-7 of node 0" in names(spread, 1, 3)[0]


@for_each("cards", [2, 8])
def test_a_leaf_has_as_many_ports_and_as_much_bandwidth_up_however_cards_are_spread(cards):
    """Two nodes of two devices on a leaf of 2 x ``cards`` ports, with half of the bandwidth up."""
    tree = {"kind": "fat_tree", "ports_per_leaf": 2 * cards, "oversubscription": 2}
    where = two_level(8, 2, "switch", tree, cards)
    links = np.arange(where.num_links)
    _, bandwidth = where.link_figures(links)
    up = [link for link in links if "leaf switch 0 to spine" in where.link_name(link)]
    assert bandwidth[up].sum() == 2 * cards * 10e9 / 2


def test_a_device_that_names_its_card_uses_no_other():
    where = two_level(4, 2, "switch", "switch", 8, nics=[0, 5])
    _, bandwidth = where.link_figures(np.array(route(where, 1, 3)))
    assert names(where, 1, 3)[0] == "the link from card 5 of node 0 to the inter-node switch"
    assert (bandwidth == 10e9).all()


def test_cards_that_cannot_be_spread_evenly_are_refused():
    def line(cards, between="switch", inside="switch"):
        inter = {"topology": between, "link": BETWEEN, "links_per_node": cards}
        sizes = {"world_size": 4, "devices_per_node": 2, "topology": inside}
        (found,) = refusal(**sizes, inter_node=inter)
        return found

    assert line(5) == (
        "inter_node.links_per_node: 5 cards are no multiple of the 2 ranks of a node; use 4 or 6, "
        "or write the card of each in nics."
    )
    lead = "inter_node.links_per_node: 8 cards are 4 for each of 2 ranks, but "
    assert line(8, "dragonfly") == (
        f"{lead}each card has its own port at a router; use fat_tree or rail_optimised."
    )
    assert line(8, {"kind": "fat_tree", "ports_per_leaf": 6}) == (
        f"{lead}a leaf of 6 ports has cards of several devices; make ports_per_leaf a multiple "
        "of 4."
    )
    places = {"kind": "nvidia_smi", "path": str(TOPO / "dgx_a100.txt"), "pcie": "pcie4-x16"}
    assert line(8, inside=places) == (
        f"{lead}nvidia_smi gives every card its place; leave out the cards' rows."
    )
    one_node = two_level(2, 2, "switch", "dragonfly", 8)
    assert one_node.num_nodes == 1
