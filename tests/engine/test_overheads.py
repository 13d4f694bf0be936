"""What the software costs: hooks, launches and messages, and how compute and collectives meet."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from for_each import for_each

import simdp
from simdp.cluster.hardware import AnyDevice, Contention
from simdp.engine.clocks.vector import Streams
from simdp.engine.ops import Launch
from simdp.errors import ScenarioError
from simdp.scenario import checked
from simdp.spec import form_of

DEVICE = {
    "peak": {"float32": "10 TFLOP/s"},
    "memory": "10 GB",
    "memory_bandwidth": "1 TB/s",
    "efficiency": 0.5,
    "launch": "3 us",
    "multiprocessors": 40,
}
LINK = {"alpha": "2 us", "bandwidth": "10 GB/s"}
LAYERS = 4


def scenario(overheads=None, world_size=4, topology="ring", link=LINK, device=DEVICE, **more):
    raw = {
        "cluster": {
            "world_size": world_size,
            "device": device,
            "topology": topology,
            "link": link,
            "overheads": overheads or {},
        },
        "workload": {
            "model": {"kind": "mlp", "widths": [256] * (LAYERS + 1)},
            "dataset": {"kind": "regression", "num_samples": 4096},
            "microbatch": 64,
            "steps": 3,
        },
        "strategy": {"kind": "ddp", "bucket_cap": "0 B", "broadcast_buffers": False},
        "numerics": False,
        **more,
    }
    return checked(raw, Path())


def step_time(*args, **kwargs):
    return simdp.simulate(scenario(*args, **kwargs)).metrics["step_time_s"]


# On the clock ----------------------------------------------------------------------------------


def test_hooks_and_launches_stand_in_the_way_of_backward():
    plain = step_time(world_size=1)
    tensors = 2 * LAYERS
    assert step_time({"hook": "10 us"}, 1) == pytest.approx(plain + tensors * 10e-6, rel=1e-12)
    assert step_time({"launch": "7 us"}, 1) == pytest.approx(plain + tensors * 7e-6, rel=1e-12)


def test_hooks_and_launches_are_host_time_in_the_trace_and_other_time_in_the_metrics():
    result = simdp.simulate(scenario({"hook": "10 us", "launch": "7 us"}, 1))
    spans = [s for s in result.trace.spans if s.activity == "host" and s.rank == 0 and s.step == 1]
    assert [s.name for s in spans] == ["hook", "launch"] * (2 * LAYERS)
    assert result.metrics["other_s"] == pytest.approx(2 * LAYERS * 17e-6, rel=1e-9)


def test_messages_keep_the_communication_stream_and_grow_with_the_ranks():
    """Bucket after bucket, where communication takes longer than everything else."""
    plain, tensors = step_time(world_size=4), 2 * LAYERS
    message = step_time({"message": "1 ms"}, 4)
    both = step_time({"message": "1 ms", "message_per_rank": "1 ms"}, 4)
    assert both - message == pytest.approx(tensors * 4e-3, rel=1e-9)
    assert message > plain + (tensors - 1) * 1e-3


@for_each("overheads", [{"message": "30 us", "message_per_rank": "2 us"}, {}])
def test_both_fabrics_charge_messages_alike(overheads):
    one = scenario({**overheads, "hook": "3 us", "launch": "5 us"})
    vector, event = (simdp.simulate(one, fabric=fabric) for fabric in ("vector", "event"))
    for key, value in vector.metrics.items():
        if value is None:
            assert event.metrics[key] is None
        elif key.endswith("_s"):
            assert event.metrics[key] == pytest.approx(value, rel=1e-9, abs=1e-15), key


def test_compute_is_slower_beside_a_collective_and_never_after_it():
    plain = simdp.simulate(scenario())
    slowed = simdp.simulate(scenario({"compute_slowdown": 0.5}))
    spans = [s for s in plain.trace.spans if s.rank == 0 and s.step == 1]
    first = min(s.start for s in spans if s.activity == "comm")
    beside = max(s.end for s in spans if s.activity == "backward") - first
    assert beside > 0  # communication takes longer than what is left of backward
    grown = slowed.metrics["compute_s"] - plain.metrics["compute_s"]
    assert grown == pytest.approx(0.5 * beside, rel=1e-9)
    assert slowed.metrics["update_s"] == pytest.approx(plain.metrics["update_s"], rel=1e-12)


def test_a_collective_is_slower_beside_compute_and_at_full_speed_once_ranks_wait():
    plain = simdp.simulate(scenario())
    slowed = simdp.simulate(scenario({"collective_slowdown": 1.0}))
    spans = [s for s in plain.trace.spans if s.rank == 0 and s.step == 1]
    first = min(s.start for s in spans if s.activity == "comm")
    beside = max(s.end for s in spans if s.activity == "backward") - first
    longer = slowed.metrics["step_time_s"] - plain.metrics["step_time_s"]
    assert longer == pytest.approx(beside / 2, rel=1e-9)  # half of it was done at half the speed


@for_each("all_reduce", ["ring", "naive"])
def test_slowdowns_are_charged_where_transfers_share_links_as_where_they_do_not(all_reduce):
    """Behind `naive` all ranks wait for one port; both tests above hold there as well."""
    where = {"collectives": {"all_reduce": all_reduce}, "topology": "ring"}
    plain, compute, collective = (
        simdp.simulate(scenario(overheads, **where))
        for overheads in ({}, {"compute_slowdown": 0.5}, {"collective_slowdown": 1.0})
    )
    assert all_reduce == "ring" or plain.network["why"].endswith("is shared")
    spans = [s for s in plain.trace.spans if s.rank == 0 and s.step == 1]
    first = min(s.start for s in spans if s.activity == "comm")
    beside = max(s.end for s in spans if s.activity == "backward") - first
    grown = compute.metrics["compute_s"] - plain.metrics["compute_s"]
    assert grown == pytest.approx(0.5 * beside, rel=1e-9)
    longer = collective.metrics["step_time_s"] - plain.metrics["step_time_s"]
    assert longer == pytest.approx(beside / 2, rel=1e-9)


# Contention --------------------------------------------------------------------------------------


@for_each("all_reduce", ["ring", "naive"])
def test_contention_slows_by_the_channels_held_and_the_bytes_moved(all_reduce):
    where = {"collectives": {"all_reduce": all_reduce}, "topology": "ring"}
    plain, slowed = (
        simdp.simulate(scenario(overheads, **where))
        for overheads in ({}, {"compute_slowdown": {"accesses": 3}})
    )
    clock = simdp.simulate(scenario({"compute_slowdown": {"accesses": 3}}, **where), fabric="event")
    assert clock.metrics["step_time_s"] == pytest.approx(slowed.metrics["step_time_s"], rel=1e-9)
    assert slowed.metrics["compute_s"] > plain.metrics["compute_s"]


def test_a_slow_wire_takes_little_from_compute_for_as_long_as_it_is_under_way():
    """Beside the whole of backward: two channels of 40 multiprocessors, and hardly any bytes."""
    wire = {"alpha": "1 us", "bandwidth": "1 MB/s"}
    contention = {"compute_slowdown": {"accesses": 3}}
    slowed, plain = (simdp.simulate(scenario(o, link=wire)) for o in (contention, {}))
    spans = [s for s in plain.trace.spans if s.rank == 0 and s.step == 1]
    first = min(s.start for s in spans if s.activity == "comm")
    beside = max(s.end for s in spans if s.activity == "backward") - first
    grown = slowed.metrics["compute_s"] - plain.metrics["compute_s"]
    assert grown == pytest.approx(2 / 38 * beside, rel=0.01)


def test_contention_is_that_of_blocks_measured_on_an_h200():
    """records/h200-1gpu/contention.yaml: fused attention beside blocks that wait."""
    device = form_of(AnyDevice).validate_python("h200-sxm5-141gb")
    for blocks, measured in ((4, 1.027), (8, 1.0536), (16, 1.118), (32, 1.2833)):
        found = 1 + Contention().slowdown(device, 0.0, blocks * 12e9)
        assert found == pytest.approx(measured, abs=0.04)
    traffic = Contention(accesses=1.0).slowdown(device, 450e9, 0.0)
    waiting = Contention(accesses=1.0).slowdown(device, 0.0, 0.0)
    assert 0.06 < traffic - waiting < 0.13  # measured: 0.062 for GPT-2 to 0.127


def test_what_contention_reads_and_writes_is_a_number_of_0_or_more():
    with pytest.raises(ScenarioError, match=r"overheads\.compute_slowdown\.accesses: -1"):
        scenario({"compute_slowdown": {"accesses": -1}})
    with pytest.raises(ScenarioError, match=r"device\.multiprocessors: 1 .*2"):
        scenario(device={**DEVICE, "multiprocessors": 1})


@pytest.mark.slow
def test_numbers_do_not_depend_on_overheads():
    """Timing changes when, never what."""
    costly = {"hook": "1 ms", "message": "1 ms", "compute_slowdown": 1, "collective_slowdown": 1}
    results = [simdp.simulate(scenario(o, numerics=True)) for o in ({}, costly)]
    plain, slowed = (result.replicas[0] for result in results)
    assert all(np.array_equal(plain[name], slowed[name]) for name in plain)


@for_each("key", ["compute_slowdown", "collective_slowdown"])
def test_a_slowdown_is_a_share_of_0_or_more(key):
    with pytest.raises(ScenarioError, match=rf"cluster\.overheads\.{key}: -0.1 .*0"):
        scenario({key: -0.1})


def test_an_optimizer_that_loops_over_tensors_launches_kernels_for_each():
    times = {}
    for foreach in (None, False):
        workload = {
            "model": {"kind": "mlp", "widths": [64, 32, 8]},
            "dataset": {"kind": "regression", "num_samples": 64},
            "optimizer": {"kind": "sgd", "momentum": 0.9, "foreach": foreach},
            "microbatch": 64,
        }
        one = scenario(world_size=1, workload=workload)
        times[foreach] = simdp.simulate(one).metrics["update_s"]
    # All four tensors are in one launch of each kernel, which take longer than their bytes do.
    nbytes = 5 * 4 * (64 * 32 + 32 + 32 * 8 + 8)
    assert nbytes / 1e12 < 3 * 3e-6
    assert times[None] == pytest.approx(3 * 3e-6, rel=1e-9)
    assert times[False] == pytest.approx(nbytes / 1e12 + 4 * 3 * 3e-6, rel=1e-9)


# Streams by themselves -------------------------------------------------------------------------


class Played:
    """Streams of two ranks whose collectives take a second from when the last rank has come."""

    def __init__(self, of_compute=0.0, of_collective=0.0):
        self.spans, self.of_compute = [], of_compute
        self.streams = Streams(
            of_collective,
            lambda op, begin: np.full(2, begin.max() + 1.0),
            lambda op, ready, enter, end: self.spans.append((op.name, *end.tolist())),
        )

    def launch(self, number, at, stream=0, wait=0.0, message=0.0, after=()):
        plan = SimpleNamespace(num_transfers=0)
        op = Launch(0, str(number), number, plan, 1.0, False, stream, wait, message, None, after)
        op = op._replace(slowdown=self.of_compute)
        self.streams.launch(op, np.array(at, dtype=float))


def test_a_wait_and_a_message_come_before_the_collective():
    played = Played()
    played.launch(0, [0, 0], wait=0.5, message=0.25)
    played.launch(1, [0, 0], message=0.25)
    assert played.streams.wait([1], np.zeros(2)).tolist() == [3.0, 3.0]
    assert played.spans == [("0", 1.75, 1.75), ("1", 3.0, 3.0)]


def test_a_collective_begins_behind_those_of_other_streams_that_it_comes_after():
    played = Played()
    played.launch(0, [0, 0.5])
    played.launch(1, [0, 0], stream=1, after=(0,))
    played.launch(2, [0, 0], stream=2)
    assert played.streams.wait([1, 0, 2], np.zeros(2)).tolist() == [2.5, 2.5]
    played.launch(3, [3, 3], after=(1,))  # that has been waited for
    assert played.streams.wait([3], np.zeros(2)).tolist() == [4.0, 4.0]
    assert played.spans == [("0", 1.5, 1.5), ("1", 2.5, 2.5), ("2", 1.0, 1.0), ("3", 4.0, 4.0)]


def test_what_comes_after_a_collective_moves_with_it_when_that_is_placed_anew():
    played = Played(of_collective=1.0)
    played.launch(0, [0, 0])
    played.launch(1, [0, 0], stream=1, after=(0,))
    # As above the first one ends at 1.5; the second one has a second then, with nothing beside it.
    assert played.streams.wait([1], np.ones(2)).tolist() == [2.5, 2.5]
    assert played.streams.wait([0], np.full(2, 2.5)).tolist() == [2.5, 2.5]
    assert played.spans == [("0", 1.5, 1.5), ("1", 2.5, 2.5)]


def test_work_is_stretched_only_while_something_is_under_way():
    played = Played(of_compute=1.0)
    played.launch(0, [0, 0.5])  # under way until 1.5
    longer = played.streams.stretched(np.array([0.0, 0.5]), np.array([1.0, 1.0]))
    assert longer == pytest.approx([1.75, 1.5])  # 0.75 of a second in 1.5, the rest at full speed
    assert played.streams.stretched(np.array([2.0, 2.0]), np.ones(2)).tolist() == [1.0, 1.0]


def test_a_collective_is_placed_anew_once_it_is_known_when_compute_ended():
    played = Played(of_collective=1.0)
    played.launch(0, [0, 0])
    played.launch(1, [0, 0])
    played.launch(2, [0, 0], stream=1)
    assert played.spans == []  # nothing is known yet
    # Half of the first was done in the second that compute ran; the other half takes 0.5 s.
    assert played.streams.wait([0], np.ones(2)).tolist() == [1.5, 1.5]
    assert played.streams.wait([1, 2], np.full(2, 1.5)).tolist() == [2.5, 2.5]
    assert played.spans == [("0", 1.5, 1.5), ("1", 2.5, 2.5), ("2", 1.75, 1.75)]


def test_compute_meets_what_is_left_after_a_wait():
    played = Played(of_collective=1.0, of_compute=1.0)
    played.launch(0, [0, 0])
    played.launch(1, [0, 0])
    clock = played.streams.wait([0], np.zeros(2))
    assert clock.tolist() == [1.0, 1.0]
    # The second runs beside compute from now on: two seconds, in which one second is computed.
    assert played.streams.stretched(clock, np.full(2, 1.5)).tolist() == [2.5, 2.5]
