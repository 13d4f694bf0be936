"""Links in the loop: what flows over them shares them, and ends with an event."""

import numpy as np
import pytest
from small_networks import cluster

from simdp.engine.clocks.flows import EventLoop, FlowLinks
from simdp.engine.network import NetworkRoutes


@pytest.fixture
def loop():
    return EventLoop()


@pytest.fixture
def net(loop):
    """Three ranks behind a switch, at 25 GB/s."""
    where = cluster(3)
    links, network = FlowLinks(loop, where), NetworkRoutes(where)

    def route(src, dst):
        found, _, bandwidth = network.connect(np.array([src]), np.array([dst]))
        return links.route(found[0], float(bandwidth[0]))

    return links, route


def test_a_flow_alone_has_the_whole_bandwidth(loop, net):
    links, route = net
    assert loop.run(until=links.flow(route(0, 1), 25e9)) == loop.now == 1.0


def test_flows_into_one_port_share_it_and_the_longer_one_then_has_it_alone(loop, net):
    links, route = net
    ends = {}

    def sender(rank, nbytes):
        ends[rank] = yield links.flow(route(rank, 2), nbytes)

    loop.process(sender(0, 25e9))
    loop.process(sender(1, 50e9))
    loop.run()
    assert ends == pytest.approx({0: 2.0, 1: 3.0}, rel=1e-12)


def test_a_flow_that_begins_later_slows_down_the_one_that_is_under_way(loop, net):
    links, route = net
    first = links.flow(route(0, 2), 50e9)
    loop.at(1.0, lambda now: links.join(route(1, 2), 12.5e9, lambda now: None))
    assert loop.run(until=first) == pytest.approx(2.5, rel=1e-12)


def test_a_way_that_is_slower_than_its_links_keeps_its_own_pace(loop, net):
    links, _ = net
    assert loop.run(until=links.flow(links.route(np.array([0, -1]), 5e9), 10e9)) == 2.0


def test_no_bytes_are_there_at_once(loop, net):
    links, route = net
    assert loop.run(until=links.flow(route(0, 1), 0.0)) == 0.0


def test_routes_may_be_laid_while_others_are_in_use(loop, net):
    links, route = net
    first = links.flow(route(0, 2), 50e9)
    loop.run(until=1.0)
    second = links.flow(route(1, 2), 12.5e9)
    assert loop.run(until=second) == pytest.approx(2.0, rel=1e-12)
    assert loop.run(until=first) == pytest.approx(2.5, rel=1e-12)
