"""A cluster as plain numbers."""

from math import inf

import numpy as np
import pytest
from for_each import for_each

from simdp.cluster import Cluster
from simdp.scenario.placement import wiring_of, wiring_of_groups

DEVICE = "v100-sxm2-32gb"
LINK = {"alpha": "3 us", "bandwidth": "24 GB/s"}


def wiring(**keys):
    return wiring_of(Cluster.model_validate({"device": DEVICE, **keys}))


def test_a_lone_rank_has_no_links():
    assert wiring(world_size=1)[:8] == (1, 1, 1, 0.0, inf, 0.0, inf, 0)


@for_each(("topology", "count"), [("switch", 1), ("ring", 2), ("full_mesh", 7), ("cube_mesh", 1)])
def test_a_device_sends_over_all_its_links_together(topology, count):
    found = wiring(world_size=8, topology=topology, link=LINK)
    assert found.intra_bandwidth == pytest.approx(count * 24e9)
    assert found.intra_alpha == 3e-6


def test_a_node_sends_over_the_cards_that_its_ranks_use():
    inter = {"link": {"alpha": "9 us", "bandwidth": "10 GB/s"}, "links_per_node": 4}
    keys = {"link": LINK, "inter_node": inter}
    full = wiring(world_size=16, devices_per_node=8, **keys)
    assert (full.num_nodes, full.local_size, full.cards) == (2, 8, 4)
    assert (full.inter_alpha, full.inter_bandwidth) == (9e-6, 40e9)
    assert wiring(world_size=4, devices_per_node=1, **keys)[6:8] == (40e9, 1)
    shared = {**inter, "nics": [0] * 8}
    assert wiring(world_size=16, devices_per_node=8, link=LINK, inter_node=shared).cards == 1
    assert wiring(world_size=8, devices_per_node=8, **keys).inter_bandwidth == inf


def test_the_slowest_of_nodes_that_differ_counts():
    slow = {"alpha": "5 us", "bandwidth": "6 GB/s"}
    inter = {"link": [LINK, slow]}
    found = wiring(world_size=4, devices_per_node=2, link=[LINK, slow], inter_node=inter)
    assert (found.intra_alpha, found.intra_bandwidth) == (5e-6, 6e9)
    assert (found.inter_alpha, found.inter_bandwidth) == (5e-6, 6e9)


def test_stages_through_host_memory_add_up():
    tree = {"kind": "pcie_tree", "p2p_level": "loc", "host_memory": "1e6 GB/s"}
    found = wiring(world_size=2, topology=tree, link=LINK)
    assert found.intra_bandwidth == pytest.approx(12e9)
    assert wiring(world_size=2, topology="pcie_tree", link=LINK).intra_bandwidth == 24e9


def test_groups_inside_a_node_know_no_network_and_those_across_share_its_cards():
    inter = {"link": {"alpha": "9 us", "bandwidth": "10 GB/s"}, "links_per_node": 4}
    keys = {"device": DEVICE, "devices_per_node": 4, "link": LINK, "inter_node": inter}
    where = Cluster.model_validate({"world_size": 8, **keys})
    ranks, whole = np.arange(8).reshape(2, 4), wiring_of(where)
    inside = wiring_of_groups(where, ranks, 4)
    assert (inside.world_size, inside.num_nodes, inside.local_size, inside.cards) == (4, 1, 4, 0)
    assert (inside.intra_bandwidth, inside.inter_bandwidth) == (whole.intra_bandwidth, inf)
    across = wiring_of_groups(where, ranks.T, 1)
    assert (across.world_size, across.num_nodes, across.local_size, across.cards) == (2, 2, 1, 1)
    assert (across.intra_alpha, across.inter_alpha, across.inter_bandwidth) == (0.0, 9e-6, 10e9)
    assert wiring_of_groups(where, np.arange(8)[None, :], 4) == whole


def test_ranks_that_are_strewn_unevenly_count_as_alone_on_their_nodes():
    inter = {"link": {"alpha": "9 us", "bandwidth": "10 GB/s"}}
    keys = {"device": DEVICE, "devices_per_node": 2, "link": LINK, "inter_node": inter}
    where = Cluster.model_validate({"world_size": 6, **keys})
    found = wiring_of_groups(where, np.arange(6).reshape(2, 3), 0)
    assert (found.num_nodes, found.local_size) == (3, 1)


def classes(**keys):
    found = wiring(**keys)
    return found.peer, found.network


def between(link):
    return {"world_size": 4, "devices_per_node": 2, "inter_node": {"link": link}}


def test_catalogue_links_and_devices_tell_their_classes():
    assert classes(world_size=2, link="nvlink2") == ("nvlink", "rdma")
    assert classes(**between("ib-edr"), link="nvlink2") == ("nvlink", "rdma")
    assert classes(**between("100gbe"), link="nvlink2") == ("nvlink", "tcp")
    assert classes(**between("ib-edr"), link="pcie3-x16") == ("pcie", "roce")
    assert classes(**between("50gbe"), link="pcie3-x16", device="rtx3090-24gb") == ("host", "tcp")
    assert classes(world_size=2, link="nvlink3", device="rtx3090-24gb")[0] == "nvlink"


def test_links_by_figures_are_what_these_suggest():
    fast, slow = ({"alpha": "3 us", "bandwidth": f"{rate} GB/s"} for rate in (100, 25))
    sockets = {"alpha": "30 us", "bandwidth": "100 Gbit/s"}
    assert classes(**between(slow), link=fast) == ("nvlink", "rdma")
    assert classes(**between(sockets), link=slow) == ("pcie", "tcp")
    assert classes(**between(slow), link=slow) == ("pcie", "rdma")


def test_the_slowest_class_of_nodes_that_differ_counts():
    assert classes(**between(["ib-edr", "100gbe"]), link=["nvlink2", "pcie3-x16"])[0] == "pcie"
    assert classes(**between(["ib-edr", "100gbe"]), link="nvlink2")[1] == "tcp"


def test_a_topology_that_leads_through_the_host_has_no_class_for_it_too():
    keys = {"world_size": 2, "device": "rtx3090-24gb", "link": "pcie4-x16"}
    assert classes(**keys)[0] == "host"
    assert classes(**keys, topology={"kind": "pcie_tree", "p2p_level": "loc"})[0] == "pcie"
