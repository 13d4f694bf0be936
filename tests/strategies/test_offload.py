"""What ZeRO keeps in the memory of the host: bytes that leave the device, and copies that cost."""

import pytest
from for_each import for_each
from pydantic import ValidationError
from sharded_runs import play, sent, spans

from simdp.steps.ops import HostCopy
from simdp.strategies.zero import Zero1, Zero2, Zero3

WIDE = {"widths": [64] * 6, "optimizer": {"kind": "adam", "lr": 0.01}}
PARAMETERS = 8 * 5 * (64 * 64 + 64)
STAGES = [
    {"kind": "zero1", "communication": "deepspeed", "reduce_bucket_size": 5000},
    {"kind": "zero2", "communication": "deepspeed", "reduce_bucket_size": 5000},
    {"kind": "zero3", "param_persistence_threshold": 0, "reduce_bucket_size": 5000},
]
EVERYTHING = {"offload_optimizer": "cpu", "offload_param": "cpu"}


def host(link_bandwidth="20 GB/s", memory_bandwidth="100 GB/s"):
    link = {"alpha": "10 us", "bandwidth": link_bandwidth}
    return {"host": {"link": link, "memory_bandwidth": memory_bandwidth}}


def offloaded(strategy, cluster=None, n=2, **more):
    return play({**strategy, "offload_optimizer": "cpu", **more}, n, cluster or host(), **WIDE)


def of_rank(result, activity, name, step=1, rank=0):
    found = [s for s in result.trace.spans if (s.activity, s.name) == (activity, name)]
    return [s.end - s.start for s in found if s.step == step and s.rank == rank]


@for_each("strategy", STAGES)
def test_the_optimizers_state_leaves_the_device(strategy):
    memory = offloaded(strategy).metrics["memory_bytes"]
    before = play(strategy, 2, **WIDE).metrics["memory_bytes"]
    assert memory["optimizer_state"] == 0
    assert before["optimizer_state"] > 0
    kept = before["gradients"] if strategy["kind"] == "zero1" else 0
    assert memory["gradients"] == kept
    assert memory["parameters"] == before["parameters"]


def test_parameters_may_leave_it_too():
    memory = offloaded(STAGES[2], **EVERYTHING).metrics["memory_bytes"]
    assert memory["parameters"] == 0


@for_each("strategy", STAGES)
def test_what_is_sent_and_learned_does_not_change(strategy):
    here, there = play(strategy, 2, **WIDE), offloaded(strategy)
    assert sent(here) == sent(there)
    assert here.metrics["loss"] == there.metrics["loss"]


@for_each("strategy", STAGES)
def test_the_ranks_of_a_node_share_the_bandwidth_of_its_memory(strategy):
    one, other = offloaded(strategy), offloaded(strategy, host(memory_bandwidth="50 GB/s"))
    alone = offloaded(strategy, {**host(), "devices_per_node": 1, **NODES})
    times = [sum(of_rank(result, "update", "optimizer")) for result in (one, other, alone)]
    assert times[0] > 0
    assert times[1] == pytest.approx(2 * times[0], rel=1e-12)
    assert times[2] == pytest.approx(times[0] / 2, rel=1e-12)


NODES = {"inter_node": {"link": {"alpha": "5 us", "bandwidth": "10 GB/s"}}}


@for_each("strategy", STAGES)
def test_updated_parameters_are_copied_back_a_piece_on_each_rank(strategy):
    (seconds,) = of_rank(offloaded(strategy), "copy", "parameters")
    assert seconds == pytest.approx(10e-6 + PARAMETERS / 2 / 20e9, rel=1e-12)
    if strategy["kind"] == "zero3":
        assert of_rank(offloaded(strategy, **EVERYTHING), "copy", "parameters") == []


@for_each("strategy", STAGES)
def test_a_slow_link_makes_a_long_step(strategy):
    fast, slow = offloaded(strategy), offloaded(strategy, host("1 GB/s"))
    # Gradients go, parameters come, half of them on each of two ranks.
    wanted = PARAMETERS * (1 / 1e9 - 1 / 20e9)
    more = slow.metrics["step_time_s"] - fast.metrics["step_time_s"]
    assert 0.5 * wanted < more < 1.01 * wanted


def test_offloaded_parameters_are_copied_before_they_are_gathered():
    slow = offloaded(STAGES[2], host("1 GB/s"), **EVERYTHING)
    stays = offloaded(STAGES[2], host("1 GB/s"))
    first = [
        min(s.end for s in spans(result) if "all_gather" in s.name) for result in (slow, stays)
    ]
    begun = [min(s.start for s in result.trace.spans if s.step == 1) for result in (slow, stays)]
    assert first[0] - begun[0] > first[1] - begun[1] + 8 * (64 * 64 + 64) / 2 / 1e9


@for_each("kind", [Zero1, Zero2])
def test_offloading_is_deepspeeds(kind):
    with pytest.raises(ValidationError, match="offload_optimizer belongs to communication: deep"):
        kind(offload_optimizer="cpu")


def test_parameters_are_offloaded_with_the_optimizer():
    with pytest.raises(ValidationError, match="offload_param: cpu needs offload_optimizer: cpu"):
        Zero3(offload_param="cpu")


def test_a_copy_of_nothing_takes_no_time():
    from simdp.cluster.hardware import HostMemory

    assert HostMemory().copying(0.0) == 0
    assert HostMemory().link.name == "pcie4-x16"
    assert HostCopy("gradients", 0.0).nbytes == 0
