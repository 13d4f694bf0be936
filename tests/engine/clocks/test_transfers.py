"""Transfers: a collective in the loop, which ranks enter when they like."""

import pytest
from closed_forms import ring_all_reduce_time
from small_networks import cluster

from simdp.collectives.ring import RingAllReduce
from simdp.engine.clocks.flows import EventLoop, FlowLinks
from simdp.engine.clocks.transfers import Transfers
from simdp.engine.network import NetworkRoutes
from simdp.engine.ops import Launch


def test_ranks_come_and_leave_as_processes_do():
    """A ring that its last rank enters at 3 s, beside links that only it uses or might not."""
    where, n, nbytes = cluster(4, "ring"), 4, 4e6
    for alone in (False, True):
        loop, ends = EventLoop(), {}
        transfers, network = Transfers(loop, FlowLinks(loop, where)), NetworkRoutes(where)
        op = Launch(0, "call", 0, RingAllReduce().plan(n, nbytes), nbytes, False)
        call = transfers.call(op, range(n), network, "any")
        if alone:
            transfers.wires.find_owners()

        def rank(number, loop=loop, transfers=transfers, call=call, ends=ends):
            yield loop.until(number)
            transfers.come(call, number, loop.now)
            ends[number] = yield call.done(loop, number)

        for number in range(n):
            loop.process(rank(number))
        loop.run()
        expected = 3.0 + ring_all_reduce_time(nbytes, n, 5e-6, 1 / 25e9)
        assert ends == pytest.approx(dict.fromkeys(range(n), expected), rel=1e-12)
        assert call.is_done
