"""Every topology: routes lead over real links from the source to the destination."""

import numpy as np
import pytest
from pydantic import TypeAdapter

from simdp.cluster.topologies import TOPOLOGIES, AnyTopology
from simdp.cluster.topologies.ring import RingTopology
from simdp.cluster.topologies.switch import SwitchTopology

SIZES = [2, 3, 4, 5, 8, 9, 16]

every_topology = pytest.mark.parametrize("topology", [t() for t in TOPOLOGIES.values()], ids=str)
every_size = pytest.mark.parametrize("n", SIZES)


def pairs(n):
    src, dst = (part.ravel() for part in np.indices((n, n)))
    return src[src != dst], dst[src != dst]


def routes(topology, n):
    """Every ordered pair with its route as a list of links."""
    src, dst = pairs(n)
    for start, end, links in zip(src, dst, topology.routes(src, dst, n), strict=True):
        yield int(start), int(end), links[links >= 0]


@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_a_topology_is_written_by_its_kind(kind):
    built = TypeAdapter(AnyTopology).validate_python(kind)
    assert type(built) is TOPOLOGIES[kind]
    assert built.kind == kind


@every_topology
@every_size
def test_every_pair_is_reachable_over_real_links(topology, n):
    for src, dst, links in routes(topology, n):
        assert len(links)
        assert links.max() < topology.num_links(n)
        leaves, enters = topology.ends(links, n)
        assert leaves[0] == src
        assert enters[-1] == dst
        np.testing.assert_array_equal(leaves[1:], enters[:-1])


@every_topology
@every_size
def test_no_route_takes_a_link_twice(topology, n):
    for _, _, links in routes(topology, n):
        assert len(set(links.tolist())) == len(links)


@every_topology
@every_size
def test_short_routes_end_in_minus_one(topology, n):
    for links in topology.routes(*pairs(n), n):
        used = links >= 0
        assert (links[~used] == -1).all()
        assert not (~used[:-1] & used[1:]).any()


@every_topology
@every_size
def test_each_direction_has_a_link_of_its_own(topology, n):
    taken = {(src, dst): set(links.tolist()) for src, dst, links in routes(topology, n)}
    for (src, dst), links in taken.items():
        assert not links & taken[dst, src]


@every_topology
def test_only_a_switch_ends_in_a_port_of_the_receiver(topology):
    for _, dst, links in routes(topology, 5):
        leaves, enters = topology.ends(links[-1:], 5)
        assert topology.last_link_is_the_receivers == (leaves[0] >= 5)
        assert enters[0] == dst


@every_topology
def test_one_endpoint_has_nowhere_to_go(topology):
    nobody = np.array([], dtype=np.int64)
    assert topology.routes(nobody, nobody, 1).shape[0] == 0
    assert topology.num_links(1) >= 0


@every_size
def test_a_ring_takes_the_shorter_way(n):
    for src, dst, links in routes(RingTopology(), n):
        assert len(links) == min((dst - src) % n, (src - dst) % n)


def test_a_ring_goes_up_where_both_ways_are_equally_long():
    links = RingTopology().routes(np.array([3]), np.array([1]), 4)
    assert links.tolist() == [[3, 0]]


def test_two_endpoints_of_a_ring_share_one_link():
    ring = RingTopology()
    assert ring.num_links(2) == 2  # one full-duplex link: a direction each
    assert {links.tolist()[0] for _, _, links in routes(ring, 2)} == {0, 1}


@pytest.mark.parametrize(("n", "num_links"), [(1, 0), (2, 2), (3, 6), (8, 16)])
def test_a_ring_has_a_link_to_each_neighbour(n, num_links):
    assert RingTopology().num_links(n) == num_links


@every_size
def test_a_switch_is_two_links_for_every_pair(n):
    assert all(len(links) == 2 for _, _, links in routes(SwitchTopology(), n))


@every_size
def test_neighbours_on_a_full_mesh_are_one_link_away(n):
    mesh = TOPOLOGIES["full_mesh"]()
    links = [links.tolist() for _, _, links in routes(mesh, n)]
    assert all(len(route) == 1 for route in links)
    assert len({route[0] for route in links}) == n * (n - 1)
