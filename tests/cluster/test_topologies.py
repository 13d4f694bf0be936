"""Every topology: routes lead over real links from the source to the destination."""

from functools import cache

import numpy as np
import pytest
from for_each import for_each
from networks import EXAMPLES, LINK, bisection, example, pairs, route
from pydantic import TypeAdapter, ValidationError

from simdp.cluster import Cluster
from simdp.cluster.topologies import ALSO_CALLED, TOPOLOGIES, AnyTopology
from simdp.cluster.topologies.direct import RingTopology, SwitchTopology

pytestmark = pytest.mark.slow

SIZES = [2, 3, 4, 5, 8, 9, 16]

CASES = [
    (name, n)
    for name in EXAMPLES
    for n in SIZES
    if (example(name).capacity() or n) >= n and example(name).problem_with(n) is None
]

every_kind = pytest.mark.parametrize("kind", TOPOLOGIES)
every_case = for_each(("name", "n"), CASES)
every_size = pytest.mark.parametrize("n", SIZES)

B = LINK.bandwidth


@cache
def routes(name, n):
    """Every ordered pair with its route as a list of links."""
    topology = example(name)
    src, dst = pairs(n)
    return [
        (int(start), int(end), links[links >= 0])
        for start, end, links in zip(src, dst, topology.routes(src, dst, n), strict=True)
    ]


ADDING = ("fat_tree", "rail_optimised", "switch")


def adding(name):
    """An example whose switches can add, if any of its kind can."""
    topology = example(name)
    return topology.model_copy(update={"in_network": True}) if topology.kind in ADDING else topology


def build(**keys):
    return TypeAdapter(AnyTopology).validate_python(keys)


def test_every_kind_has_an_example():
    assert {example(name).kind for name in EXAMPLES} == set(TOPOLOGIES)


@for_each("name", EXAMPLES)
def test_every_example_is_looked_at_in_several_sizes(name):
    assert len([n for other, n in CASES if other == name]) >= 3


@for_each("kind", sorted(set(TOPOLOGIES) - {"custom", "nvidia_smi"}))
def test_a_topology_is_written_by_its_kind(kind):
    built = TypeAdapter(AnyTopology).validate_python(kind)
    assert type(built) is TOPOLOGIES[kind]
    assert built.kind == kind


# What holds for all ------------------------------------------------------------------------------


@every_case
def test_every_pair_is_reachable_over_real_links(name, n):
    topology = example(name)
    for src, dst, links in routes(name, n):
        assert len(links)
        assert links.max() < topology.num_links(n)
        leaves, enters = topology.ends(links, n)
        assert leaves[0] == src
        assert enters[-1] == dst
        np.testing.assert_array_equal(leaves[1:], enters[:-1])


@every_case
def test_no_route_takes_a_link_twice(name, n):
    for _, _, links in routes(name, n):
        assert len(set(links.tolist())) == len(links)


@every_case
def test_short_routes_end_in_minus_one(name, n):
    for links in example(name).routes(*pairs(n), n):
        used = links >= 0
        assert (links[~used] == -1).all()
        assert not (~used[:-1] & used[1:]).any()


@every_case
def test_each_direction_has_a_link_of_its_own(name, n):
    """But on the way to a host memory that both may be stored in."""
    topology = example(name)
    taken = {}
    for src, dst, links in routes(name, n):
        staged = topology.begins_stage(links, n).any()
        taken[src, dst] = set((links[[0, -1]] if staged else links).tolist())
    for (src, dst), links in taken.items():
        assert not links & taken[dst, src]


@every_case
def test_figures_are_positive_and_equal_in_both_directions(name, n):
    topology = example(name)
    narrowest = {}
    for src, dst, links in routes(name, n):
        alpha, bandwidth = topology.figures(links, LINK, n)
        assert alpha.shape == bandwidth.shape == links.shape
        assert (alpha >= 0).all()
        assert alpha[0] > 0
        assert (bandwidth > 0).all()
        narrowest[src, dst] = bandwidth.min()
    assert all(narrowest[dst, src] == width for (src, dst), width in narrowest.items())


@every_case
def test_no_two_links_join_the_same_vertices(name, n):
    topology = example(name)
    links = np.arange(topology.num_links(n))
    leaves, enters = topology.ends(links, n)
    real = leaves != enters  # a full mesh numbers links to oneself that no route takes
    joined = list(zip(leaves[real].tolist(), enters[real].tolist(), strict=True))
    assert len(set(joined)) == len(joined)
    for u, v in joined:
        assert (v, u) in joined


@every_case
def test_every_switch_has_a_name_of_its_own(name, n):
    topology = example(name)
    ends = np.concatenate(topology.ends(np.arange(topology.num_links(n)), n))
    first = n + topology.num_cards(1)
    switches = sorted({int(v) for v in ends if v >= first})
    names = [topology.switch_name(v, n) for v in switches]
    assert len(set(names)) == len(names)
    assert all(names)


@every_case
def test_stages_begin_only_after_the_first_link(name, n):
    topology = example(name)
    for _, _, links in routes(name, n):
        begins = topology.begins_stage(links, n)
        assert not begins[0]
        assert begins.sum() <= 1


@every_case
def test_only_networks_of_ports_end_in_a_switch_above_every_endpoint(name, n):
    topology = example(name)
    if topology.of_ports:
        for _, _, links in routes(name, n):
            leaves, enters = topology.ends(links[[0, -1]], n)
            assert enters[0] >= n
            assert leaves[1] >= n


@every_case
def test_who_adds_is_a_tree_over_real_links(name, n):
    topology = adding(name)
    parents = topology.parents(n)
    if parents is None:
        assert topology.kind not in ADDING
        return
    assert (parents[:n] >= n).all()
    assert (parents == -1).sum() == 1
    assert parents[-1] == -1
    child = np.flatnonzero(parents >= 0)
    assert (parents[child] > child).all()  # so there is no circle
    for src, dst in ((child, parents[child]), (parents[child], child)):
        links = topology.routes(src, dst, n)
        assert links.shape[1] == 1 or (links[:, 1:] == -1).all()
        leaves, enters = topology.ends(links[:, 0], n)
        np.testing.assert_array_equal(leaves, src)
        np.testing.assert_array_equal(enters, dst)


@for_each("name", EXAMPLES)
def test_switches_add_only_where_the_scenario_says_so(name):
    assert example(name).parents(4) is None
    assert (adding(name).parents(4) is not None) == (example(name).kind in ADDING)


@for_each("name", EXAMPLES)
def test_one_endpoint_has_nowhere_to_go(name):
    nobody = np.array([], dtype=np.int64)
    assert example(name).routes(nobody, nobody, 1).shape[0] == 0
    assert example(name).num_links(1) >= 0


@for_each(
    "kind", ["dragonfly", "fat_tree", "full_mesh", "rail_optimised", "switch", "torus2d", "torus3d"]
)
def test_routes_of_16384_endpoints_are_a_matter_of_arrays(kind):
    n = 16384
    topology, ranks = build(kind=kind), np.arange(n)
    links = topology.routes(ranks, (ranks + 1) % n, n, 8)
    assert links.shape[0] == n
    assert links.shape[1] <= 6
    leaves, enters = topology.ends(links[:, 0], n, 8)
    np.testing.assert_array_equal(leaves, ranks)
    assert (enters != ranks).all()


# Bisections, by hand -----------------------------------------------------------------------------


@for_each(
    ("keys", "n", "per_node", "half", "links"),
    [
        ({"kind": "ring"}, 8, 1, range(4), 2),
        ({"kind": "ring"}, 2, 1, range(1), 1),
        ({"kind": "full_mesh"}, 6, 1, range(3), 9),
        ({"kind": "switch"}, 6, 1, range(3), 3),
        ({"kind": "torus2d"}, 16, 1, range(8), 8),  # two cuts through four rings
        ({"kind": "torus2d", "dims": [2, 8]}, 16, 1, range(8), 8),  # one cut through eight pairs
        ({"kind": "torus3d"}, 64, 1, range(32), 32),
        ({"kind": "cube_mesh"}, 8, 1, range(4), 1),  # 2 + 2 + 1 + 1 of six NVLinks
        ({"kind": "cube_mesh"}, 8, 1, (0, 1, 4, 5), 2),  # 1 + 2 + 2 + 1 and as many
        ({"kind": "fat_tree", "ports_per_leaf": 4}, 16, 1, range(8), 8),
        ({"kind": "fat_tree", "ports_per_leaf": 4, "oversubscription": 4}, 16, 1, range(8), 2),
        ({"kind": "fat_tree", "ports_per_leaf": 4, "spines": 3}, 16, 1, range(8), 8),
        ({"kind": "fat_tree", "ports_per_leaf": 2, "levels": 3}, 16, 1, range(8), 8),
        (
            {
                "kind": "fat_tree",
                "ports_per_leaf": 2,
                "levels": 3,
                "oversubscription": 2,
                "pod_oversubscription": 2,
            },
            16,
            1,
            range(8),
            2,
        ),
        ({"kind": "rail_optimised"}, 16, 4, range(8), 8),
        ({"kind": "rail_optimised", "oversubscription": 2}, 16, 4, (0, 1, 4, 5, 8, 9, 12, 13), 4),
        ({"kind": "rail_optimised", "nodes_per_rail": 2}, 16, 4, range(8), 8),
        (
            {"kind": "dragonfly", "ports_per_router": 1, "routers_per_group": 2, "groups": 4},
            8,
            1,
            range(4),
            4,  # two groups on each side, a link between every two
        ),
        (
            {"kind": "dragonfly", "ports_per_router": 4, "routers_per_group": 1, "groups": 2},
            8,
            1,
            range(4),
            1,
        ),
        (
            {
                "kind": "dragonfly",
                "ports_per_router": 4,
                "routers_per_group": 1,
                "links_per_pair": 3,
            },
            8,
            1,
            range(4),
            3,
        ),
        ({"kind": "pcie_tree", "inter_socket": "3 GB/s"}, 8, 1, range(4), 0.5),
        ({"kind": "pcie_tree", "host_bridge": "3 GB/s"}, 8, 1, range(4), 1),
        ({"kind": "pcie_tree"}, 4, 1, range(2), 1),  # two on a switch share its uplink
        ({"kind": "custom", "links": [{"ends": [0, 1], "width": 2.5}]}, 2, 1, [0], 2.5),
    ],
    ids=str,
)
def test_a_bisection_carries_what_it_should(keys, n, per_node, half, links):
    assert bisection(build(**keys), half, n, per_node) == pytest.approx(links, rel=1e-12)


# Ring, switch, full mesh -------------------------------------------------------------------------


@every_size
def test_a_ring_takes_the_shorter_way(n):
    for src, dst, links in routes("ring", n):
        assert len(links) == min((dst - src) % n, (src - dst) % n)


def test_a_ring_goes_up_where_both_ways_are_equally_long():
    links = RingTopology().routes(np.array([3]), np.array([1]), 4)
    assert links.tolist() == [[3, 0]]


def test_two_endpoints_of_a_ring_share_one_link():
    ring = RingTopology()
    assert ring.num_links(2) == 2  # one full-duplex link: a direction each
    assert {links.tolist()[0] for _, _, links in routes("ring", 2)} == {0, 1}


@for_each(("n", "num_links"), [(1, 0), (2, 2), (3, 6), (8, 16)])
def test_a_ring_has_a_link_to_each_neighbour(n, num_links):
    assert RingTopology().num_links(n) == num_links


@every_size
def test_a_switch_is_two_links_for_every_pair(n):
    assert all(len(links) == 2 for _, _, links in routes("switch", n))


def test_a_switch_that_adds_is_one_link_away():
    links = SwitchTopology().routes(np.array([1, 4, 0]), np.array([4, 2, 3]), 4)
    assert links.tolist() == [[1, -1], [6, -1], [0, 7]]


@every_size
def test_neighbours_on_a_full_mesh_are_one_link_away(n):
    links = [links.tolist() for _, _, links in routes("full_mesh", n)]
    assert all(len(route) == 1 for route in links)
    assert len({route[0] for route in links}) == n * (n - 1)


# Torus -------------------------------------------------------------------------------------------


def test_a_torus_goes_along_its_first_dimension_first_and_wraps_around():
    torus = build(kind="torus2d", dims=[3, 4])
    assert route(torus, 0, 11, 12) == [0, 8, 11]  # (0, 0) to (2, 3): one back along each
    assert route(torus, 0, 6, 12) == [0, 4, 5, 6]  # (0, 0) to (1, 2): two ways, the one up


def test_a_torus_of_three_dimensions_does_the_same():
    torus = build(kind="torus3d", dims=[2, 3, 4])
    assert route(torus, 0, 23, 24) == [0, 12, 20, 23]
    assert route(torus, 23, 0, 24) == [23, 11, 3, 0]


@for_each(
    ("dims", "num_links"), [([1, 1], 0), ([1, 2], 2), ([2, 2], 8), ([2, 3], 18), ([3, 3], 36)]
)
def test_a_dimension_of_two_has_one_link_and_a_dimension_of_one_none(dims, num_links):
    assert build(kind="torus2d", dims=dims).num_links(dims[0] * dims[1]) == num_links


@for_each(
    ("kind", "n", "shape"),
    [
        ("torus2d", 16, [4, 4]),
        ("torus2d", 12, [3, 4]),
        ("torus2d", 7, [1, 7]),
        ("torus3d", 64, [4, 4, 4]),
        ("torus3d", 12, [2, 2, 3]),
        ("torus3d", 16384, [16, 32, 32]),
    ],
)
def test_a_torus_is_as_square_as_its_size_allows(kind, n, shape):
    assert build(kind=kind).shape(n) == shape


@for_each("n", [2, 3, 5, 9])
def test_a_torus_of_one_ring_is_that_ring(n):
    torus = build(kind="torus2d", dims=[1, n])
    assert torus.routes(*pairs(n), n).tolist() == RingTopology().routes(*pairs(n), n).tolist()


# Cube mesh and custom ----------------------------------------------------------------------------


def test_a_cube_mesh_has_six_nvlinks_on_every_gpu():
    mesh = build(kind="cube_mesh")
    links = np.arange(mesh.num_links(8))
    leaves, _ = mesh.ends(links, 8)
    _, bandwidth = mesh.figures(links, LINK, 8)
    assert np.bincount(leaves, bandwidth / B * 6) == pytest.approx([6] * 8)
    assert np.bincount(leaves).tolist() == [4] * 8


def test_a_cube_mesh_joins_the_others_by_way_of_one_gpu():
    mesh = build(kind="cube_mesh")
    hops = {(src, dst): len(links) for src, dst, links in routes("cube_mesh", 8)}
    assert sorted(hops.values()) == [1] * 32 + [2] * 24
    assert route(mesh, 0, 7, 8) == [0, 3, 7] or route(mesh, 0, 7, 8) == [0, 4, 7]
    assert route(mesh, 0, 7, 8) == [0, 4, 7]  # 2 and 2 NVLinks, not 2 and 1


def test_a_search_prefers_few_links_then_wide_ones_then_low_numbers():
    ends = [
        ([0, "a"], 1),
        (["a", 1], 1),
        ([0, "b"], 2),
        (["b", 1], 2),
        ([0, "c"], 2),
        (["c", 1], 2),
    ]
    links = [{"ends": pair, "width": width} for pair, width in ends]
    assert route(build(kind="custom", links=links), 0, 1, 2) == [0, 3, 1]
    links = [*links, {"ends": [0, 1], "width": 0.1}]
    assert route(build(kind="custom", links=links), 0, 1, 2) == [0, 1]


def test_connections_of_endpoints_that_are_not_there_are_left_out():
    links = [{"ends": [0, 1]}, {"ends": [1, 2]}, {"ends": [2, "s"]}]
    assert build(kind="custom", links=links).num_links(2) == 2


# Fat tree and rails ------------------------------------------------------------------------------


def test_a_fat_tree_turns_round_where_it_can():
    tree = build(kind="fat_tree", ports_per_leaf=2, levels=3)  # pods of 4 ports, 2 leaves, 2 spines
    n = 16
    assert [len(route(tree, 0, dst, n)) - 1 for dst in (1, 2, 3, 4, 15)] == [2, 4, 4, 6, 6]
    assert route(tree, 0, 1, n) == [0, n, 1]


def test_a_fat_tree_routes_by_destination():
    """D-mod-k: all that goes to a port comes down from one spine; equal shifts share no trunk."""
    tree = build(kind="fat_tree", ports_per_leaf=4)
    n = 16
    last = {int(links[-2]) for src, dst, links in _routes(tree, n) if dst == 5 and src // 4 != 1}
    assert len(last) == 1
    ranks = np.arange(n)
    for shift in range(1, n):
        links = tree.routes(ranks, (ranks + shift) % n, n)
        used = links[links >= 0]
        assert len(set(used.tolist())) == len(used)


def test_a_fat_tree_can_spread_by_pairs_as_ecmp_does():
    tree = build(kind="fat_tree", ports_per_leaf=4, routing="pair")
    n = 16
    spines = [
        tree.ends(links[1:2], n)[1][0] for src, dst, links in _routes(tree, n) if len(links) > 2
    ]
    counts = np.unique(spines, return_counts=True)[1]
    assert len(counts) == 4
    assert counts.min() > 192 / 4 / 2  # of 192 pairs on different leaves
    last = {int(links[-2]) for src, dst, links in _routes(tree, n) if dst == 5 and src // 4 != 1}
    assert len(last) > 1


def _routes(topology, n):
    src, dst = pairs(n)
    for start, end, links in zip(src, dst, topology.routes(src, dst, n), strict=True):
        yield int(start), int(end), links[links >= 0]


def test_trunks_of_a_fat_tree_are_as_wide_as_oversubscription_leaves():
    tree = build(kind="fat_tree", ports_per_leaf=6, spines=2, oversubscription=2, trunk_alpha="0 s")
    links = tree.routes(np.array([0]), np.array([6]), 12)[0]
    alpha, bandwidth = tree.figures(links, LINK, 12)
    assert (bandwidth / B).tolist() == [1, 1.5, 1.5, 1]
    assert alpha.tolist() == [1e-6, 0, 0, 1e-6]


def test_two_levels_of_a_fat_tree_are_one_pod():
    assert [example("fat_tree_small").switch_name(v, 4) for v in (4, 5, 6)] == [
        "leaf switch 0",
        "leaf switch 1",
        "spine switch 0",
    ]
    assert example("fat_tree_3").switch_name(16 + 8, 16) == "spine switch 0 of pod 0"
    assert example("fat_tree_3").switch_name(16 + 8 + 4, 16) == "core switch 0"


def test_a_fat_tree_adds_from_leaf_to_pod_to_core():
    parents = adding("fat_tree_3").parents(8)  # 4 leaves in 2 pods
    assert parents.tolist() == [8, 8, 9, 9, 10, 10, 11, 11, 12, 12, 13, 13, 14, 14, -1]
    assert adding("fat_tree_small").parents(4).tolist() == [4, 4, 5, 5, 6, 6, -1]
    assert adding("fat_tree").parents(4).tolist() == [4, 4, 4, 4, -1]


def test_a_rail_has_one_card_of_every_node():
    rails = build(kind="rail_optimised", in_network=True)
    n, cards = 12, 4
    assert route(rails, 1, 9, n, cards) == [1, n + 1, 9]  # card 1 of nodes 0 and 2
    assert len(route(rails, 1, 10, n, cards)) - 1 == 4
    assert rails.switch_name(n + 1, n, cards) == "rail switch 1"
    units = build(kind="rail_optimised", nodes_per_rail=2)
    assert units.switch_name(n + 5, n, cards) == "rail switch 1 of unit 1"
    assert rails.parents(n, cards).tolist()[:5] == [n, n + 1, n + 2, n + 3, n]


def test_rails_without_a_spine_are_apart():
    rails = build(kind="rail_optimised", spines=0, in_network=True)
    assert rails.parts(6, 3).tolist() == [0, 1, 2, 0, 1, 2]
    assert rails.parts(3, 1) is None
    assert rails.parents(6, 3) is None


# Dragonfly ---------------------------------------------------------------------------------------


def test_a_dragonfly_takes_at_most_one_link_between_groups():
    fly = build(kind="dragonfly", ports_per_router=2, routers_per_group=4, groups=9)
    n = 72
    assert route(fly, 0, 1, n) == [0, n, 1]
    assert route(fly, 0, 2, n) == [0, n, n + 1, 2]
    # Groups 1 and 2 after group 0 are reached from router 0; 7 and 8 from router 3.
    assert route(fly, 0, 8, n) == [0, n, n + 7, n + 4, 8]
    assert route(fly, 0, 71, n) == [0, n, n + 3, n + 32, n + 35, 71]
    assert fly.switch_name(n + 35, n) == "router 3 of group 8"
    between = 2 * n + 9 * 16
    for _, _, links in _routes(fly, n):
        assert (links >= between).sum() <= 1
        assert len(links) <= 5


def test_links_between_routers_have_a_latency_of_their_own():
    fly = build(kind="dragonfly", trunk_alpha="2 us", routers_per_group=1, ports_per_router=1)
    links = fly.routes(np.array([0]), np.array([1]), 2)[0]
    assert fly.figures(links, LINK, 2)[0].tolist() == [1e-6, 2e-6, 1e-6]


# What is refused ---------------------------------------------------------------------------------


def refusal(**keys):
    with pytest.raises(ValidationError) as caught:
        build(**keys)
    return [str(found["msg"]) for found in caught.value.errors()]


@for_each("key", ["pods", "cores", "pod_oversubscription"])
def test_keys_of_three_levels_are_refused_with_two(key):
    assert refusal(kind="fat_tree", **{key: 2}) == [
        f"{key} belongs to a fat tree of three levels; add levels: 3."
    ]


def test_dims_have_one_entry_per_dimension():
    assert refusal(kind="torus2d", dims=[2, 2, 2]) == ["has 3 entries; give 2."]


def test_dims_that_do_not_multiply_to_the_endpoints_are_a_problem():
    assert build(kind="torus3d", dims=[2, 2, 2]).problem_with(12) == (
        "dims 2 x 2 x 2 make 8 places for 12 endpoints; "
        "give dims whose product is 12, or leave them out."
    )


@for_each(
    ("ends", "said"),
    [
        ([0], "[0] are no two ends; give two different endpoints or switches."),
        ([1, 1], "[1, 1] are no two ends; give two different endpoints or switches."),
        ([0, 256], "endpoint 256 does not exist; give 0 ... 255."),
        ([-1, "a"], "endpoint -1 does not exist; give 0 ... 255."),
    ],
)
def test_a_connection_has_two_ends_that_exist(ends, said):
    assert refusal(kind="custom", links=[{"ends": ends}]) == [said]


def test_a_connection_is_given_once():
    assert refusal(kind="custom", links=[{"ends": [0, 1]}, {"ends": [1, 0]}]) == [
        "[1, 0] are connected twice; add up the widths."
    ]


@for_each(
    ("keys", "most"),
    [
        ({"kind": "cube_mesh"}, 8),
        ({"kind": "custom", "links": [{"ends": [0, 1]}]}, 256),
        ({"kind": "dragonfly", "groups": 3}, 96),
        ({"kind": "fat_tree", "leaves": 2, "ports_per_leaf": 3}, 6),
        ({"kind": "fat_tree", "pods": 2, "leaves": 4, "ports_per_leaf": 3, "levels": 3}, 24),
        ({"kind": "fat_tree", "pods": 2, "ports_per_leaf": 3, "levels": 3}, 18),
        ({"kind": "pcie_tree", "sockets": 1}, 4),
        ({"kind": "fat_tree"}, None),
        ({"kind": "ring"}, None),
    ],
    ids=str,
)
def test_a_topology_knows_how_much_it_can_join(keys, most):
    assert build(**keys).capacity() == most


@for_each("name", ALSO_CALLED)
def test_a_topology_may_be_called_otherwise(name):
    raw = {"world_size": 8, "device": "v100-sxm2-16gb", "topology": name, "link": "nvlink2"}
    kind = ALSO_CALLED[name]["kind"]
    if kind == "rail_optimised":  # joins nodes
        inter = {"topology": name, "link": "ib-hdr"}
        raw |= {"topology": "switch", "devices_per_node": 4, "inter_node": inter}
        topology = Cluster.model_validate(raw).inter_node.topology
    else:
        topology = Cluster.model_validate(raw).topology
    assert topology.model_dump()["kind"] == kind
