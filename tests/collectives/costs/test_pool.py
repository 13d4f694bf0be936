"""The pool: what clusters reach by class of network."""

from math import inf, log, sqrt
from pathlib import Path

import pytest
from for_each import for_each

import simdp
from simdp.cluster.hardware import LINKS, MACHINES, read_machine
from simdp.collectives.costs import Wiring
from simdp.collectives.costs.nccl import NETWORKS, PEERS, NcclCost, pooled, share_of
from simdp.files import read_yaml
from simdp.units import parse

PACKAGE = Path(simdp.__file__).parent
FILE = read_yaml(PACKAGE / "collectives/costs/pool.yaml")
CLASSES = [("peer", name) for name in PEERS] + [("network", name) for name in NETWORKS]


def figures():
    """Every figure of the pool: class, constant, machine and value."""
    for place, name in CLASSES:
        for constant in ("share", "flow"):
            for machines in FILE[place][name].get(constant, {}).values():
                for machine, value in machines.items():
                    yield place, constant, machine, value


def fitted(machine, place, constant):
    """What the machine's entry has in place of a figure: a share, or a rate [bytes/s]."""
    entry = read_machine(machine, Path())
    cost = entry.collectives["cost"]
    if "flow_bandwidth" in cost and constant == "flow":
        return parse(cost["flow_bandwidth"], "bandwidth")
    where = "intra" if place == "peer" else "inter"
    share = cost["efficiency"][where]["simple"]
    if constant == "share":
        return share
    between = entry.cluster["inter_node"]
    link = between["link"]
    rate = LINKS.figures(link) if isinstance(link, str) else link
    cards = between.get("links_per_node", 1)
    return share * cards * parse(rate["bandwidth"], "bandwidth")


@for_each(("place", "constant", "machine", "value"), list(figures()))
def test_every_figure_is_the_one_that_its_machine_has(place, constant, machine, value):
    assert machine in MACHINES.names()
    number = parse(value, "bandwidth") if isinstance(value, str) else value
    assert number == pytest.approx(fitted(machine, place, constant), rel=5e-3)


def test_no_machine_is_in_two_sites():
    for place, name in CLASSES:
        for constant in ("share", "flow"):
            sites = FILE[place][name].get(constant, {})
            machines = [machine for each in sites.values() for machine in each]
            assert len(machines) == len(set(machines))


def test_a_class_keeps_what_is_published_where_a_mean_of_sites_errs_more():
    assert pooled("peer", "nvlink", "share")[0] == 0.8
    assert pooled("peer", "nvlink", "share").is_published
    host = pooled("peer", "host", "share")
    assert not host.is_published
    logs = [log(value) for value in host.sites.values()]
    assert log(host.value) == pytest.approx(sum(logs) / len(logs))


def test_the_spread_is_that_of_one_further_site():
    host = pooled("peer", "host", "share")
    misses = sum((log(value) - log(host.value)) ** 2 for value in host.sites.values())
    n = len(host.sites)
    wanted = sqrt((0.3**2 * 2 + misses) / (2 + n - 1)) * sqrt(1 + 1 / n)
    assert host.spread == pytest.approx(wanted)


def test_a_machine_is_left_out_with_its_whole_site():
    whole = pooled("network", "tcp", "flow")
    assert "polaris" in whole.sites
    without = pooled("network", "tcp", "flow", ["polaris-tcp"])
    assert "polaris" not in without.sites
    assert without.value < whole.value
    assert pooled("network", "tcp", "flow", ["dgx-1"]) == whole


def test_sockets_give_a_node_what_their_flows_carry_and_a_thin_card_its_share():
    flow = pooled("network", "tcp", "flow").value * sqrt(2)  # twice 50 Gbit/s
    assert share_of("network", "tcp", "simple", 12.5e9) * 12.5e9 == pytest.approx(flow)
    assert share_of("network", "tcp", "ll", 12.5e9) * 12.5e9 == pytest.approx(flow / 2)
    assert share_of("network", "tcp", "simple", 0.125e9) == 0.96


def test_sockets_are_compared_at_cards_of_50_gbit():
    """Polaris's 400 Gbit/s count by their rate over the square root of 8; slow cards fully."""
    sites, mean = pooled("network", "tcp", "flow").sites, sqrt(9.65e9 * 3.24e9)
    assert sites["polaris"] == pytest.approx(mean / sqrt(8))
    assert sites["horovod"] == pytest.approx(2.3e9)
    for site, cards in FILE["network"]["tcp"]["cards"].items():
        for machine in FILE["network"]["tcp"]["flow"][site]:
            between = read_machine(machine, Path()).cluster["inter_node"]
            rate = (
                LINKS.figures(between["link"])
                if isinstance(between["link"], str)
                else between["link"]
            )
            number = between.get("links_per_node", 1) * parse(rate["bandwidth"], "bandwidth")
            assert parse(cards, "bandwidth") == pytest.approx(number)


def test_a_cost_takes_the_share_of_its_wirings_class_unless_it_says_another():
    box = Wiring(8, 1, 8, 5.7e-6, 31.5e9, 0.0, inf, 0, peer="host")
    host = pooled("peer", "host", "share").value
    plain = NcclCost.model_validate({"kind": "nccl"})
    assert plain.share("intra", "simple", box) == host
    assert plain.share("intra", "ll", box) == host / 2
    named = NcclCost.model_validate({"kind": "nccl", "peer": "pcie"})
    assert named.share("intra", "simple", box) == 0.8
    given = NcclCost.model_validate({"kind": "nccl", "efficiency": {"intra": 0.3}})
    assert given.share("intra", "simple", box) == 0.3


def test_a_process_launches_for_its_devices_one_after_the_other():
    box = Wiring(8, 1, 8, 3.4e-6, 300e9, 0.0, inf, 0)
    alone, all_eight = (
        NcclCost.model_validate({"kind": "nccl", "devices_per_process": n}) for n in (1, 8)
    )
    later = all_eight.seconds("all_reduce", 1024, box) - alone.seconds("all_reduce", 1024, box)
    assert later == pytest.approx(7 * 2.8e-6)
