"""The event fabric says what the vectorised one says, whatever slows down what."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_networks import cluster

from simdp.cluster.hardware import Overheads
from simdp.collectives.direct import NaiveReduce
from simdp.collectives.ring import RingAllReduce
from simdp.collectives.tree import TreeBroadcast
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.clocks.vector import VectorFabric
from simdp.engine.network import NetworkRoutes
from simdp.engine.ops import ClockBarrier, ClockWait, ComputeWork, Launch
from simdp.engine.slowdown import Slowdown
from simdp.results.trace import TraceBuilder

PAUSE = {"kind": "pause", "rank": 1, "every": "0.3 ms", "duration": "0.1 ms"}
SLOWDOWNS = st.sampled_from([0.0, 0.3, 1.0])


def played(fabric, where, plans, script, overheads):
    """Where each rank's compute and communication begins and ends."""
    trace, network, slowdown = TraceBuilder(), NetworkRoutes(where), Slowdown(where, 0)
    if fabric == "event":
        EventFabric([FabricJob(network, plans, slowdown, trace, overheads)]).play([iter(script)])
    else:
        VectorFabric(network, slowdown, trace, overheads=overheads).play(iter(script))
    built = trace.build()
    kept = [s for s in built.spans if s.activity != "transfer" and s.end > s.start * (1 + 1e-9)]
    return sorted((s.rank, s.lane, s.name, s.activity, s.start, s.end) for s in kept)


def assert_both_say_the_same(where, plans, script, overheads):
    event, vector = (played(f, where, plans, script, overheads) for f in ("event", "vector"))
    assert [span[:4] for span in event] == [span[:4] for span in vector]
    for one, other in zip(event, vector, strict=True):
        assert one[4:] == pytest.approx(other[4:], rel=1e-12, abs=1e-18), one[:4]


@st.composite
def mixes(draw):
    """Work, collectives, and waits for some of them; on two to five ranks."""
    n = draw(st.integers(2, 5))
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    stragglers = draw(st.sampled_from([[], [PAUSE], [{"kind": "slow_rank", "rank": 0}]]))
    for straggler in stragglers:
        if straggler["kind"] == "slow_rank":
            straggler["factor"] = 1.7
    where = cluster(n, "full_mesh", stragglers=stragglers)
    overheads = Overheads(compute_slowdown=draw(SLOWDOWNS), collective_slowdown=draw(SLOWDOWNS))
    message = draw(st.sampled_from([0.0, 3e-6]))
    seconds = draw(st.sampled_from([None, 2e-4]))
    script, open_calls, number = [], [], 0
    for step in range(draw(st.integers(1, 3))):
        for _ in range(draw(st.integers(1, 5))):
            kind = draw(st.sampled_from(["work", "work", "launch", "launch", "wait", "meet"]))
            if kind == "work":
                work = random.exponential(1e-4, n) * random.integers(0, 2, n)
                script.append(ComputeWork(step, "forward", f"work {len(script)}", work))
            elif kind == "launch":
                plan = draw(st.sampled_from([RingAllReduce, TreeBroadcast]))().plan(n, 1e6)
                nbytes, wait = (
                    float(random.integers(0, 8_000_000)),
                    draw(st.sampled_from([0, 1e-5])),
                )
                stream = draw(st.integers(0, 1)) if seconds else 0  # played ones would share links
                of = (step, f"call {number}", number, plan, nbytes, False, stream, wait, message)
                slowdown = draw(SLOWDOWNS) if overheads.compute_slowdown else 0.0
                script.append(Launch(*of, seconds, slowdown=slowdown))
                open_calls.append(number)
                number += 1
            elif kind == "wait" and open_calls:
                count = draw(st.integers(1, len(open_calls)))
                script.append(ClockWait(tuple(open_calls[:count])))
                del open_calls[:count]
            elif kind == "meet":
                script.append(ClockBarrier(step))
    script.append(ClockWait(tuple(open_calls)))
    plans = {0: list({op.plan for op in script if isinstance(op, Launch)})}
    return where, plans, script, overheads


@settings(max_examples=30, deadline=None)
@given(mixes())
def test_both_clocks_agree_with_stragglers_overheads_and_slowdowns(mix):
    assert_both_say_the_same(*mix)


def test_groups_that_are_complete_at_different_instants_are_slowed_down_each_from_its_own():
    where, groups = cluster(4, "full_mesh"), np.array([[0, 1], [2, 3]])
    plan = RingAllReduce().plan(4, 4e6)
    for seconds in (None, 3e-4):
        late = ComputeWork(0, "forward", "first", np.array([0.0, 1e-4, 2e-4, 1e-5]))
        beside = ComputeWork(0, "forward", "second", np.full(4, 1e-4))
        op = Launch(0, "call", 0, plan, 4e6, False, seconds=seconds)
        op = op if seconds is None else op._replace(groups=groups)
        script = [late, op, beside, ClockWait((0,))]
        overheads = Overheads(compute_slowdown=0.5, collective_slowdown=1.0)
        assert_both_say_the_same(where, {0: [plan]}, script, overheads)


def test_flows_that_share_a_link_are_slowed_down_and_keep_their_shares():
    """Two ranks send to a third at half the port's rate, and at a quarter beside compute."""
    where, trace = cluster(3, alpha="0 s"), TraceBuilder()
    plan = NaiveReduce().plan(3, 25e9)
    job = FabricJob(
        NetworkRoutes(where),
        {0: [plan]},
        Slowdown(where, 0),
        trace,
        Overheads(collective_slowdown=1),
    )
    script = [
        Launch(0, "call", 0, plan, 25e9, False),
        ComputeWork(0, "forward", "work", np.array([3.0, 1.0, 2.0])),
        ClockWait((0,)),
    ]
    EventFabric([job]).play([iter(script)])
    # Two seconds of sharing: half of it takes 3 s of compute at half the speed, then 0.5 s.
    assert trace.build().end.max() == pytest.approx(3.5, rel=1e-12)
