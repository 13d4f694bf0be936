"""Nominal times: what strategies may know of time, which nothing gets in the way of."""

from pathlib import Path

import closed_forms
import pytest
from for_each import for_each
from small_scenario import FAST, WORKLOAD

import simdp
from simdp.engine.collective import Planner
from simdp.engine.run import NominalTimes, Run
from simdp.engine.slowdown import Slowdown
from simdp.scenario import checked

ALPHA, BANDWIDTH = 5e-6, 25e9
DEEP = {**WORKLOAD, "model": {"kind": "mlp", "widths": [64, 256, 128, 3]}, "steps": 2}


def scenario(collectives=None, workload=WORKLOAD, **cluster):
    return checked(
        {
            "cluster": {**FAST, "world_size": 4, **cluster},
            "workload": workload,
            "strategy": {"kind": "ddp", "overlap": False},
            "collectives": collectives or {},
            "numerics": False,
        },
        Path(),
    )


def run_of(chosen):
    return Run(chosen, Slowdown(chosen.cluster, chosen.seed), Planner(chosen.cluster))


def nominal(chosen):
    run = run_of(chosen)
    return NominalTimes(run.times, run.samples, run.program.facts, run.launcher)


@for_each("nbytes", [4e3, 4e6])
def test_an_all_reduce_is_predicted_with_what_comes_before_it(nbytes):
    ring = closed_forms.ring_all_reduce_time(nbytes, 4, ALPHA, 1 / BANDWIDTH)
    plain = nominal(scenario())
    assert plain.all_reduce_seconds(nbytes) == pytest.approx(ring, rel=1e-12)
    talkative = nominal(scenario(overheads={"message": "100 us", "message_per_rank": "10 us"}))
    assert talkative.all_reduce_seconds(nbytes) == pytest.approx(ring + 140e-6, rel=1e-12)


def test_a_timed_all_reduce_is_predicted_by_its_cost():
    run = run_of(scenario({"cost": "nccl"}))
    plan = run.launcher.plan("all_reduce", 1e6)
    launch = run.launcher.launch(0, plan, 1e6, "asked")
    assert run.launcher.predicted("all_reduce", 1e6) == launch.seconds > 0


@for_each("cards", [1, 2])
def test_a_node_sends_over_all_its_cards(cards):
    link = {"alpha": "1 us", "bandwidth": "3 GB/s"}
    outside = {"topology": "switch", "link": link, "links_per_node": cards}
    nodes = {"devices_per_node": 2, "topology": "switch", "inter_node": outside}
    assert scenario(**nodes).program_with(None).facts.node_bandwidth() == 3e9 * cards
    assert scenario().program_with(None).facts.node_bandwidth() == float("inf")


def ready(chosen):
    """When gradients are ready, and which are, from the start of backward."""
    batches = next(chosen.workload.batches(4, chosen.seed, chosen.base))
    facts = chosen.program.facts
    times = nominal(chosen).ready_times(batches, 0)
    assert len(times) == len(facts.ready_order)
    return dict(zip(facts.ready_order, times, strict=True))


@for_each("hook", [0, 3])
def test_gradients_are_ready_when_backward_has_been_through_their_layers(hook):
    """Without stragglers, and with a hook for each, as in a run whose hooks come one by one."""
    chosen = scenario(workload=DEEP, overheads={"hook": f"{hook} us"})
    found = ready(chosen)
    spans = [s for s in simdp.simulate(chosen).trace.spans if s.rank == 0 and s.step == 1]
    backward = [s for s in spans if s.activity == "backward"]
    hooks = 0
    for span in backward:
        clock = span.end - backward[0].start
        for name in (f"{span.name}.bias", f"{span.name}.weight"):
            if name in found:
                hooks += 1
                assert found[name] == pytest.approx(clock + hooks * hook * 1e-6, rel=1e-9)
    assert hooks == len(found) == 6


def test_the_slowest_device_counts_and_no_straggler_does():
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 1, "factor": 3.0}]}
    plain, late = (ready(scenario(workload=DEEP, **more)) for more in ({}, slow))
    assert plain == late
    whole = {**FAST["device"], "launch": "0 s"}
    half = {**whole, "peak": {"float32": "5 TFLOP/s"}, "memory_bandwidth": "500 GB/s"}
    fast, mixed = (
        ready(scenario(workload=DEEP, device=[whole] * 3 + [last])) for last in (whole, half)
    )
    for name, instant in fast.items():
        assert mixed[name] == pytest.approx(2 * instant, rel=1e-9)
