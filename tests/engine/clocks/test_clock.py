"""Which clock plays a run, and why; and that several streams and jobs end as they should."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from small_networks import between, cluster
from small_scenario import CLUSTER, FAST

import simdp
from simdp.collectives import FAMILIES
from simdp.collectives.plans import Plan, Round, even_offsets
from simdp.collectives.ring import RingAllReduce
from simdp.engine import network
from simdp.engine.clocks import clock as clocks
from simdp.engine.clocks.clock import clock_for
from simdp.engine.clocks.event import EventFabric
from simdp.engine.clocks.transfers import FabricJob
from simdp.engine.collective import _overlapping
from simdp.engine.network import NetworkRoutes
from simdp.engine.ops import ClockWait, ComputeWork, Launch
from simdp.engine.slowdown import Slowdown
from simdp.errors import ScenarioError
from simdp.results.trace import TraceBuilder
from simdp.scenario.placement import layout

ROOT = Path(__file__).parents[3]
PLAYED = {"collectives": {"cost": "links"}}
PARAMETERS = {
    "model": {"kind": "parameters", "num_params": 1_000_000},
    "microbatch": 8,
    "steps": 2,
    "optimizer": "none",
}


def chosen(where, plans, **options):
    return clock_for(NetworkRoutes(where), plans, Slowdown(where, 0), TraceBuilder(), **options)


def test_the_vectorised_clock_plays_where_no_link_is_shared():
    where = cluster(4, "ring")
    clock = chosen(where, [RingAllReduce().plan(4, 1e6)])
    assert (clock.fabric, clock.why) == ("vector", "no link is shared")


def test_the_event_clock_plays_where_a_link_is_shared_and_says_which():
    where = cluster(4, "switch")
    clock = chosen(where, [FAMILIES["all_reduce"]["direct"]().plan(4, 1e6)])
    assert clock.fabric == "event"
    assert re.fullmatch(
        r"the link from (rank \d|the switch) to (rank \d|the switch) is shared", clock.why
    )


def test_a_certain_clock_may_be_asked_for():
    where, plan = cluster(4, "ring"), RingAllReduce().plan(4, 1e6)
    clock = chosen(where, [plan], fabric="event")
    assert (clock.fabric, clock.why) == ("event", "as asked for")
    assert chosen(where, [plan], fabric="vector").fabric == "vector"
    shares = FAMILIES["all_reduce"]["direct"]().plan(4, 1e6)
    with pytest.raises(ScenarioError, match=r"fabric 'vector' is not exact here: the link from"):
        chosen(where, [shares], fabric="vector")


def test_fixed_shares_stand_in_where_a_collective_has_too_many_transfers(monkeypatch):
    where = cluster(4, "switch")
    plan = FAMILIES["all_reduce"]["direct"]().plan(4, 1e6)
    monkeypatch.setattr(clocks, "MAX_EVENT_TRANSFERS", plan.num_transfers - 1)
    clock = chosen(where, [plan])
    assert clock.fabric == "fixed-share vector"
    assert f" is shared, by a collective of {plan.num_transfers} transfers; fixed" in clock.why
    assert clock.why.endswith("shares err by up to 20 %")
    assert chosen(where, [plan], most_transfers=lambda: 1).fabric == "event"
    assert chosen(where, [plan], fabric="event").fabric == "event"


def test_the_longest_collective_of_a_run_counts_not_the_one_that_shows_what_is_shared(
    load, monkeypatch
):
    """A tree of 4 ranks cuts 4 MB into 8 chunks, which cross 6 connections; at 0 bytes, into 1."""
    monkeypatch.setattr(clocks, "MAX_EVENT_TRANSFERS", 47)
    where = {**CLUSTER, "topology": "switch"}
    collectives = {"all_reduce": "tree"}
    result = simdp.simulate(
        load(cluster=where, workload=PARAMETERS, numerics=False, collectives=collectives)
    )
    assert result.network["fabric"] == "fixed-share vector"
    assert "is shared, by a collective of 48 transfers;" in result.network["why"]
    monkeypatch.setattr(clocks, "MAX_EVENT_TRANSFERS", 48)
    result = simdp.simulate(
        load(cluster=where, workload=PARAMETERS, numerics=False, collectives=collectives)
    )
    assert result.network["fabric"] == "event"


def test_a_run_without_collectives_plays_on_either_clock(load):
    common = {"cluster": {**FAST, "world_size": 1}, "strategy": "single"}
    runs = [simdp.simulate(load(**common), fabric=fabric) for fabric in ("event", "vector")]
    assert runs[0].metrics == runs[1].metrics
    assert runs[0].network["num_links_used"] == 0


# The size of a run ------------------------------------------------------------------------------


def test_a_run_is_small_if_its_events_are_few(load, monkeypatch):
    """Both clocks are exact there, and say the same."""
    one = load(cluster=CLUSTER, **PLAYED)
    small = simdp.simulate(one, keep_trace=True)
    assert small.network["fabric"] == "event"
    count = int(re.search(r"only ([\d,]+) events", small.network["why"])[1].replace(",", ""))
    monkeypatch.setattr(clocks, "SMALL", count - 1)
    large = simdp.simulate(one, keep_trace=True)
    assert large.network["fabric"] == "vector"
    assert large.network["why"] == f"no link is shared, over {count - 1:,} events"
    timed = one.model_copy(update={"numerics": False})
    assert simdp.simulate(timed, keep_trace=True).network["why"] == "no link is shared"
    for name, value in small.metrics.items():
        if value is None:
            assert large.metrics[name] is None
        elif name.endswith("_s"):
            assert large.metrics[name] == pytest.approx(value, rel=1e-12), name


def test_what_a_long_run_costs_is_told_from_its_first_steps(load):
    """Every further step has as many events as the second one, and is not read for it."""
    counts = []
    for steps in (20, 40, 200):
        one = load({"workload.steps": steps}, cluster=CLUSTER, **PLAYED)
        why = simdp.simulate(one, keep_trace=True).network["why"]
        counts.append(int(re.search(r"only ([\d,]+) events", why)[1].replace(",", "")))
    assert counts[2] - counts[0] == 9 * (counts[1] - counts[0]) > 0


def test_there_is_no_other_fabric(load):
    with pytest.raises(ValueError, match="unknown fabric 'simpy'; known: auto, event, vector"):
        simdp.simulate(load(), fabric="simpy")


LARGE = """
import sys
from pathlib import Path
import simdp
from simdp.engine.clocks import clock
from simdp.scenario import checked
cluster = {"world_size": 2, "device": "a100-sxm4-80gb", "topology": "ring", "link": "nvlink3"}
data = {"kind": "regression", "num_samples": 64}
workload = {"model": {"kind": "mlp", "widths": [4, 3]}, "dataset": data, "microbatch": 8}
plain = {"cluster": cluster, "workload": workload, "collectives": {"cost": "links"}}
simdp.simulate(checked({**plain, "numerics": False}, Path()), keep_trace=True)
assert "simpy" not in sys.modules, "there are no numbers"
for clock.SMALL in (0, 10**6):
    simdp.simulate(checked(plain, Path()))
    print("simpy" in sys.modules)
"""


@pytest.mark.slow
def test_simpy_is_imported_only_where_it_plays():
    done = subprocess.run(
        [sys.executable, "-c", LARGE],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=True,
    )
    assert done.stdout.split() == ["False", "True"]


# Streams ------------------------------------------------------------------------------------------


def two_streams(where, plans, sizes, delays):
    """When the collectives of two streams end that are launched side by side."""
    trace = TraceBuilder()
    job = FabricJob(NetworkRoutes(where), {0: [plans[0]], 1: [plans[1]]}, Slowdown(where, 0), trace)
    script = [
        ComputeWork(0, "forward", "x", np.asarray(delays, dtype=float)),
        Launch(0, "a", 0, plans[0], sizes[0], False, 0),
        Launch(0, "b", 1, plans[1], sizes[1], False, 1),
        ClockWait((0, 1)),
    ]
    EventFabric([job]).play([iter(script)])
    spans = [span for span in trace.build().spans if span.activity == "comm"]
    return [max(s.end for s in spans if s.name.endswith(name)) for name in "ab"]


def test_streams_over_different_links_do_not_wait_for_each_other():
    """Two chains, one from rank 0 to 3 and the other back: each as if it were alone."""
    where, nbytes = cluster(6, "ring"), 4e6
    one = Round(np.array([0, 1, 2]), np.array([1, 2, 3]), np.arange(3), False)
    back = Round(one.dst, one.src, one.chunk, False)
    plans = [
        Plan("broadcast", 6, 3, 0, lambda r=r: iter([r] * 5), even_offsets(3)) for r in (one, back)
    ]
    delays = [0.0, 0.0, 1e-5, 0.0, 0.0, 0.0]
    first, second = two_streams(where, plans, [nbytes, 2 * nbytes], delays)
    assert first == pytest.approx(1e-5 + 5 * (5e-6 + nbytes / 3 / 25e9), rel=1e-12)
    assert second == pytest.approx(1e-5 + 5 * (5e-6 + 2 * nbytes / 3 / 25e9), rel=1e-12)


def test_the_shorter_of_two_streams_ends_first_and_leaves_the_links_to_the_other():
    """No latency: until the shorter ring's end both have half; then the longer one has all."""
    where, n = cluster(4, "ring", alpha="0 s"), 4
    plan = RingAllReduce().plan(n, 4e6)
    short, long = two_streams(where, [plan, plan], [2e6, 6e6], np.zeros(n))
    moved = 2 * (n - 1) / n
    assert short == pytest.approx(moved * 2 * 2e6 / 25e9, rel=1e-9)
    assert long == pytest.approx(moved * 8e6 / 25e9, rel=1e-9)


def test_a_collective_of_another_stream_waits_for_the_one_that_it_comes_after():
    where, n = cluster(4, "ring"), 4
    plan = RingAllReduce().plan(n, 4e6)
    delays = np.array([0.0, 2e-4, 0.0, 1e-4])
    ends = {}
    for after in ((), (0,)):
        trace = TraceBuilder()
        job = FabricJob(NetworkRoutes(where), {0: [plan], 1: [plan]}, Slowdown(where, 0), trace)
        script = [
            ComputeWork(0, "forward", "x", delays),
            Launch(0, "a", 0, plan, 4e6, False, 0),
            Launch(0, "b", 1, plan, 4e6, False, 1, after=after),
            ClockWait((0, 1)),
        ]
        EventFabric([job]).play([iter(script)])
        spans = [span for span in trace.build().spans if span.activity == "comm"]
        ends[after] = [max(s.end for s in spans if s.name.endswith(name)) for name in "ab"]
    alone = 2 * (n - 1) * (5e-6 + 4e6 / n / 25e9)
    assert ends[()][0] == pytest.approx(ends[()][1])  # side by side
    assert ends[0,] == pytest.approx([2e-4 + alone, 2e-4 + 2 * alone])


def test_a_link_that_two_streams_use_is_shared():
    where = cluster(4, "ring")
    plan = RingAllReduce().plan(4, 1e6)
    assert chosen(where, {0: [plan]}).fabric == "vector"
    clock = chosen(where, {0: [plan], 1: [plan]})
    assert clock.fabric == "event"
    assert "is shared" in clock.why


def test_a_job_may_end_with_a_collective_that_nobody_waits_for():
    """Beside a neighbour that never ends, the clock runs until that collective is done."""
    where = cluster(8, devices_per_node=2, inter_node=between("ring", "0 s"))
    plan, half = RingAllReduce().plan(4, 1e6), cluster(4)

    def endless():
        for number in range(10_000):
            yield Launch(0, "x", number, plan, 1e6, False)
            yield ClockWait((number,))
        raise AssertionError("the clock should have stopped long ago")

    traces = [TraceBuilder(), TraceBuilder(keep=False)]
    jobs = [
        FabricJob(NetworkRoutes(where, np.array(ranks)), {0: [plan]}, Slowdown(half, 0), trace)
        for ranks, trace in zip(([0, 1, 4, 5], [2, 3, 6, 7]), traces, strict=True)
    ]
    EventFabric(jobs).play([iter([Launch(0, "last", 0, plan, 1e6, False)]), endless()])
    assert {span.rank for span in traces[0].build().spans} == {0, 1, 2, 3}


# Thousands of slices ------------------------------------------------------------------------------


def test_parts_of_a_thousand_slices_are_told_apart_without_a_look_at_every_pair():
    where = cluster(4, "full_mesh", devices_per_node=2, inter_node=between("full_mesh", cards=2))
    plan = FAMILIES["all_reduce"]["hierarchical"](slices=1024).plan(layout(where), 1e6)
    assert len(plan.everything) == 3 * 1024
    # One slice is scattered inside the nodes while another is gathered there.
    assert chosen(where, [plan]).fabric == "event"
    assert _overlapping(plan)


# Routes that are too long -------------------------------------------------------------------------


def test_routes_that_would_fill_the_memory_are_refused_in_one_line(monkeypatch):
    monkeypatch.setattr(network, "MAX_ROUTE_LINKS", 100)
    where = cluster(16, "ring")
    plan = FAMILIES["all_reduce"]["halving_doubling"]().plan(16, 1e6)
    with pytest.raises(ScenarioError) as caught:
        chosen(where, [plan])
    assert caught.value.problems == [
        "collectives.all_reduce: 64 connections over routes of up to 8 links do not fit in "
        "memory; use an algorithm between neighbours, such as ring, or a topology with short "
        "routes, such as switch."
    ]
    assert chosen(where, [RingAllReduce().plan(16, 1e6)]).fabric == "vector"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["halving_doubling", "recursive_doubling", "tree"])
def test_a_ring_of_sixteen_thousand_ranks_is_too_long_for_those_who_send_far(load, kind):
    where = {**CLUSTER, "world_size": 16_384}
    scenario = load(
        cluster=where, workload=PARAMETERS, numerics=False, collectives={"all_reduce": kind}
    )
    with pytest.raises(ScenarioError, match="do not fit in memory; use an algorithm between"):
        simdp.simulate(scenario)


# Scale --------------------------------------------------------------------------------------------

SCALE = """
import sys
from pathlib import Path
import simdp
from simdp.scenario import checked
kind, topology = sys.argv[1:3]
between = {"topology": "switch", "link": "ib-hdr", "links_per_node": 8}
node = {"devices_per_node": 8, "inter_node": between}
cluster = {"world_size": 4096, "device": "a100-sxm4-80gb", "topology": topology, "link": "nvlink3"}
model = {"kind": "parameters", "num_params": 40_000_000}
result = simdp.simulate(checked({
    "cluster": cluster | (node if topology == "switch" else {}),
    "workload": {"model": model, "microbatch": 8, "steps": 2},
    "collectives": {"all_reduce": kind, "cost": "links"},
}, Path()))
assert result.metrics["step_time_s"] > 0
# Not getrusage, which counts what the parent held before this process began.
status = dict(line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
print(result.network["fabric"], int(status["VmHWM"].split()[0]) // 1024, sep=":")
"""


def long(*values):
    return pytest.param(*values, marks=pytest.mark.long)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "topology", "fabric"),
    [
        ("ring", "switch", "vector"),
        long("tree", "switch", "fixed-share vector"),
        long("halving_doubling", "switch", "vector"),
        long("hierarchical", "switch", "vector"),
        long("auto", "switch", "vector"),
        long("tree", "full_mesh", "vector"),
        long("double_binary_tree", "full_mesh", "fixed-share vector"),
    ],
)
def test_a_step_of_four_thousand_ranks_needs_little_memory(kind, topology, fabric):
    """160 MB of gradients, of which trees make two million transfers and more."""
    done = subprocess.run(
        [sys.executable, "-c", SCALE, kind, topology],
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found, megabytes = done.stdout.strip().split(":")
    assert found == fabric
    assert int(megabytes) < 400
