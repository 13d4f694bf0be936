"""torch.nn.DataParallel on the clock and in memory, against what its steps add up to."""

from pathlib import Path

import numpy as np
import pytest
from draws import draws
from for_each import for_each
from hypothesis import given
from hypothesis import strategies as st
from one_batch import play, scenario

import simdp
from simdp.scenario import checked

pytestmark = pytest.mark.slow

ALPHA, BANDWIDTH, LAUNCH = 5e-6, 25e9, 5e-6
LINK = {"link": {"alpha": "5 us", "bandwidth": "25 GB/s"}}
METRICS = ("step_time_s", "compute_s", "wait_s", "exposed_comm_s", "peak_memory_bytes")
WIDE = {"model": {"kind": "mlp", "widths": [8, 1000]}, "optimizer": {"kind": "adam"}}
MANY = {"kind": "blobs", "num_samples": 4000}
FLOAT64 = 8


def spans(result, activity, rank=None, step=1):
    found = [s for s in result.trace.spans if s.activity == activity and s.step == step]
    return [s for s in found if rank in (None, s.rank)]


def comm(result, word, rank=0, step=1):
    return [s for s in spans(result, "comm", rank, step) if word in s.name]


def assert_sums_up(result):
    m = result.metrics
    parts = ("compute_s", "update_s", "exposed_comm_s", "wait_s", "other_s")
    assert sum(m[name] for name in parts) == pytest.approx(m["step_time_s"], rel=1e-12)


# The clock ---------------------------------------------------------------------------------------


@draws(4, 8)
@given(
    st.integers(1, 8),
    st.integers(1, 40),
    st.booleans(),
    st.sampled_from([0.0, 0.5, 1.0]),
    st.sampled_from([1, 3]),
    st.sampled_from(["full_mesh", "switch", "ring"]),
    st.booleans(),
)
def test_both_clocks_tell_the_same(n, batch, loss_in_forward, gil, accumulate, topology, slow):
    strategy = {"kind": "data_parallel", "loss_in_forward": loss_in_forward, "gil": gil}
    strategy["output_device"] = n - 1
    cluster = {"topology": topology}
    cluster["stragglers"] = [{"kind": "lognormal", "sigma": 0.3}] if slow else []
    more = {"cluster": cluster, "global_batch": batch, "grad_accum": accumulate}
    more |= {"steps": 2, "epochs": None}
    by_event = play(strategy, n, "event", **more)
    assert_sums_up(by_event)
    others = [play(strategy, n, numerics=False, **more)]
    if topology != "ring":
        others.append(play(strategy, n, "vector", **more))
    for other in others:
        for name in METRICS:
            np.testing.assert_allclose(other.metrics[name], by_event.metrics[name], rtol=1e-12)


def test_the_batch_is_handed_out_one_piece_after_the_other():
    result = play("data_parallel", 4)
    pieces = np.array([8, 8, 6]) * 5 * FLOAT64  # 30 over 4 is 8, 8, 8, 6; the first one stays
    each = ALPHA + pieces / BANDWIDTH
    begin = comm(result, "scatter x")[0].start
    ends = [comm(result, "scatter x", rank)[0].end for rank in (1, 2, 3)]
    assert ends == pytest.approx(begin + np.cumsum(each), rel=1e-12)
    assert comm(result, "scatter x")[0].end == pytest.approx(ends[-1], rel=1e-12)


def test_outputs_come_together_one_by_one_and_their_gradients_go_back():
    result = play({"kind": "data_parallel", "output_device": 1}, 3)
    each = ALPHA + 10 * 2 * FLOAT64 / BANDWIDTH
    (gather,), (scatter,) = comm(result, "gather outputs", 1), comm(result, "gradients", 1)[:1]
    assert gather.end - gather.start == pytest.approx(2 * each, rel=1e-9)
    assert scatter.name == "scatter output gradients"
    assert scatter.end - scatter.start == pytest.approx(2 * each, rel=1e-9)


def test_a_loss_in_forward_gathers_a_number_from_each_device_instead_of_all_outputs():
    outside = play("data_parallel", 4)
    inside = play({"kind": "data_parallel", "loss_in_forward": True}, 4)
    sent = [sum(s.nbytes for s in comm(outside, "gather outputs", r)) for r in range(4)]
    assert sent == [0, 8 * 2 * FLOAT64, 8 * 2 * FLOAT64, 6 * 2 * FLOAT64]
    numbers = [sum(s.nbytes for s in comm(inside, "gather losses", r)) for r in range(4)]
    assert numbers == [0, FLOAT64, FLOAT64, FLOAT64]
    assert comm(inside, "scatter y")[0].nbytes == (8 + 8 + 6) * 2 * FLOAT64  # targets go too


NO_HOST = {"operator": "0 s", "replicate": "0 s"}


@for_each(("gil", "launches"), [(0.0, 1.0), (0.5, 2.5), (1.0, 4.0)])
def test_launches_of_forward_wait_for_the_lock(gil, launches):
    """Four threads: a launch takes 1 + 3 gil times as long; the loss and backward need no lock."""
    model = {"kind": "mlp", "widths": [5, 8, 2], "activation": "relu"}
    quick = {"device": {**scenario("ddp", 1)["cluster"]["device"], "launch": "5 us"}}
    more = {"cluster": quick, "model": model, "host": NO_HOST}
    result = play({"kind": "data_parallel", "gil": gil}, 4, **more)
    forward = spans(result, "forward", rank=1)
    assert sum(s.end - s.start for s in forward) == pytest.approx(3 * launches * LAUNCH, rel=1e-3)
    free = play({"kind": "data_parallel", "gil": 0.0}, 4, **more)
    for rank in range(4):
        backward, alike = (spans(r, "backward", rank) for r in (result, free))
        times = [[s.end - s.start for s in found] for found in (backward, alike)]
        assert times[0] == pytest.approx(times[1], rel=1e-9)


def test_one_device_copies_nothing_and_takes_as_long_as_single():
    alone, single = play("data_parallel", 1), play("single", 1)
    for name in METRICS:
        assert alone.metrics[name] == single.metrics[name]


def test_devices_without_a_piece_take_no_part_but_wait():
    result = play("data_parallel", 8, global_batch=10, steps=2, epochs=None)
    for rank in (5, 6, 7):
        lengths = {s.activity: 0.0 for s in result.trace.spans}
        for span in result.trace.spans:
            if span.rank == rank and span.step == 1:
                lengths[span.activity] += span.end - span.start
        assert lengths.pop("wait") == pytest.approx(result.metrics["step_time_s"], rel=1e-12)
        assert not any(lengths.values())
    assert result.metrics["bytes_sent_per_rank"][5:] == [0, 0, 0]
    assert result.metrics["peak_memory_bytes"][5:] == [0, 0, 0]


def test_the_optimizer_works_on_device_0_alone():
    result = play("data_parallel", 3)
    update = {rank: sum(s.end - s.start for s in spans(result, "update", rank)) for rank in (0, 1)}
    assert update[0] > 0
    assert update[1] == 0


def test_the_model_travels_on_every_forward_and_its_gradients_once_each():
    """Parameters and float buffers in the workload's dtype, counters in int64."""
    layers = [
        {"name": "l1", "kind": "linear", "in_features": 5, "out_features": 4},
        {"name": "bn", "kind": "batch_norm1d", "num_features": 4},
        {"name": "l2", "kind": "linear", "in_features": 4, "out_features": 2},
    ]
    result = play("data_parallel", 2, model={"kind": "sequential", "layers": layers}, grad_accum=2)
    num_parameters = 5 * 4 + 4 + 4 + 4 + 4 * 2 + 2
    sent = {name: [s.nbytes for s in comm(result, name)] for name in ("param", "buff", "count")}
    assert sent["param"] == [num_parameters * FLOAT64] * 2
    assert sent["buff"] == [8 * FLOAT64] * 2
    assert sent["count"] == [8] * 2
    back = [s.nbytes for s in comm(result, "reduce gradients", rank=1)]
    assert back == [num_parameters * FLOAT64] * 2
    assert result.metrics["bucket_bytes"] == [num_parameters * FLOAT64]


def test_large_models_travel_in_pieces_of_10_mib():
    model = {"kind": "mlp", "widths": [1024, 1024, 1024, 1024]}
    result = play("data_parallel", 2, model=model, dtype="float32", numerics=False)
    layer = 4 * 1024 * 1024
    copies = [s.nbytes for s in comm(result, "parameters")]
    assert copies == [3 * layer + 2 * 4096, 4096]  # 8 MiB and a bit are not yet full
    assert [s.nbytes for s in comm(result, "reduce gradients", rank=1)] == [
        2 * (layer + 4096),
        layer + 4096,
    ]


def test_gradients_are_summed_when_the_last_replica_is_through():
    slow = {"stragglers": [{"kind": "slow_rank", "rank": 2, "factor": 5.0}]}
    result = play("data_parallel", 3, cluster=slow)
    last = max(s.end for s in spans(result, "backward", rank=2))
    begins = [s.start for s in comm(result, "reduce", 2)]
    assert min(begins) == pytest.approx(last, rel=1e-12)


@pytest.mark.parametrize(
    "collectives",
    [{"broadcast": "tree"}, {"reduce": "auto", "broadcast": "auto"}, {"cost": "nccl"}],
    ids=lambda collectives: "-".join(collectives),
)
def test_other_algorithms_and_costs_serve_the_devices_that_are_used(collectives):
    """10 over 8 are five devices: collectives are of these, and copies ask no library."""
    raw = scenario("data_parallel", 8, global_batch=10, host=NO_HOST)
    plain = simdp.simulate(checked(raw, Path()))
    result = simdp.simulate(checked({**raw, "collectives": collectives}, Path()))
    assert_sums_up(result)
    assert result.metrics["step_time_s"] != plain.metrics["step_time_s"]
    for name, weights in plain.replicas[0].items():
        np.testing.assert_allclose(result.replicas[0][name], weights, rtol=0, atol=1e-14)
    copies = [[s.end - s.start for s in comm(r, "scatter x", 0, 0)] for r in (plain, result)]
    assert copies[0] == pytest.approx(copies[1], rel=1e-9)
    idle = [s for s in result.trace.spans if s.rank > 4 and s.activity == "comm" and s.step < 4]
    assert not any(s.end > s.start or s.nbytes for s in idle)


# Memory ------------------------------------------------------------------------------------------


def test_device_0_has_what_lasts_and_the_others_have_copies_for_a_while():
    result = play("data_parallel", 4, **WIDE, numerics=False, global_batch=32)
    size = 9000 * FLOAT64
    first, *others = result.metrics["peak_memory_bytes"]
    parts = result.metrics["memory_bytes"]
    assert parts["parameters"] == size
    assert parts["optimizer_state"] == 2 * size
    assert len(set(others)) == 1
    assert first - others[0] > 2 * size


def test_a_loss_in_forward_takes_the_outputs_off_device_0():
    more = {**WIDE, "numerics": False, "global_batch": 4000, "optimizer": "none", "dataset": MANY}
    outside = play("data_parallel", 4, **more).metrics["peak_memory_bytes"]
    inside = play({"kind": "data_parallel", "loss_in_forward": True}, 4, **more)
    inside = inside.metrics["peak_memory_bytes"]
    gathered = 4000 * 1000 * FLOAT64
    assert outside[0] > gathered + outside[1]
    assert inside[0] < outside[0] - gathered
    assert inside[0] - inside[1] < 0.1 * (outside[0] - outside[1])


def test_another_output_device_takes_the_outputs_off_device_0():
    more = {**WIDE, "numerics": False, "global_batch": 4000, "optimizer": "none", "dataset": MANY}
    moved = play({"kind": "data_parallel", "output_device": 3}, 4, **more)
    peaks = moved.metrics["peak_memory_bytes"]
    assert peaks[3] > peaks[0] > peaks[1] == peaks[2]


@for_each("accumulate", [1, 3])
@for_each("loss_in_forward", [False, True])
def test_all_that_is_borrowed_is_given_back(accumulate, loss_in_forward):
    strategy = {"kind": "data_parallel", "loss_in_forward": loss_in_forward}
    result = play(strategy, 3, global_batch=12, grad_accum=accumulate, steps=2, epochs=None)
    kept = np.zeros(3)
    for held in result.trace.memory:
        kept[held.ranks] += held.nbytes
    parameters = sum(w.nbytes for w in result.replicas[0].values())
    assert kept.tolist() == [2 * parameters, 0, 0]  # and the optimizer's momentum


def test_blocks_that_are_computed_again_change_no_bit_and_give_all_memory_back():
    layers = {"num_layers": 3, "d_model": 8, "nhead": 2, "dim_feedforward": 12, "vocab_size": 11}
    model = {"kind": "transformer", "task": "language_model", "sequence_length": 6, **layers}
    more = {"model": model, "dataset": {"kind": "tokens", "num_samples": 12}, "global_batch": 6}
    kept, again = (play("data_parallel", 3, recompute=how, **more) for how in ("none", "blocks"))
    assert again.metrics["compute_s"] > kept.metrics["compute_s"]
    for name, weights in kept.replicas[0].items():
        assert weights.tobytes() == again.replicas[0][name].tobytes()
    totals = [np.zeros(3), np.zeros(3)]
    for total, result in zip(totals, (kept, again), strict=True):
        for held in result.trace.memory:
            total[held.ranks] += held.nbytes
    assert totals[0].tolist() == totals[1].tolist()
    assert totals[0][1] == totals[0][2] == 0


def test_a_neighbour_may_be_one_process():
    pair = {"devices_per_node": 2, "inter_node": {"link": LINK["link"]}}
    raw = scenario("ddp", 4, cluster=pair, global_batch=None, microbatch=4)
    alone = simdp.simulate(checked(raw, Path()))
    job = scenario("data_parallel", 2)
    neighbour = {"world_size": 2, "workload": job["workload"], "strategy": "data_parallel"}
    beside = simdp.simulate(checked({**raw, "neighbours": [neighbour]}, Path()))
    assert beside.metrics["step_time_s"] == alone.metrics["step_time_s"]  # it keeps to its node
