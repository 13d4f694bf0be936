"""A trace of two ranks tells what our own simulation says of many."""

import pytest

from simdp.studies.replay.scenario import replay_of
from tests.for_each import for_each, for_some
from tests.studies.replay.traced import replayed, scenario, step_time, traces_of, with_keys

MACHINES = ("dgx-a100", "hkbu-10gbe")

STRATEGIES = ("ddp", "fsdp", "zero1", "zero2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "by_rank"),
    [
        pytest.param("ddp", False, marks=pytest.mark.long),
        ("fsdp", True),
        pytest.param("zero2", False, marks=pytest.mark.long),
        pytest.param("ddp", True, marks=pytest.mark.long),
        pytest.param("fsdp", False, marks=pytest.mark.long),
        pytest.param("zero1", False, marks=pytest.mark.long),
        pytest.param("zero1", True, marks=pytest.mark.long),
        pytest.param("zero2", True, marks=pytest.mark.long),
    ],
)
@for_each("machine", MACHINES)
def test_two_ranks_tell_of_many(tmp_path, machine, strategy, by_rank):
    raw = scenario(machine, strategy=strategy)
    found = replayed(raw, tmp_path, by_rank, machine=machine)
    assert found.step_time_s == pytest.approx(step_time(raw), rel=0.001)
    assert found.scenario["strategy"]["kind"] == strategy
    for n, off in ((2, 0.01), (4, 0.02), (16, 0.02), (64, 0.02)):
        direct = step_time(with_keys(raw, world_size=n))
        again = found.simulate({"cluster.world_size": n}).metrics["step_time_s"]
        assert again == pytest.approx(direct, rel=off), n


BF16 = {"kind": "ddp", "comm_hook": "bf16"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "by_rank", [pytest.param(False, marks=pytest.mark.long), True], ids=["trace.json", "by rank"]
)
@for_some(
    ("model", "strategy"),
    [
        ("bert-base", "zero3"),
        ("vgg16", "zero3"),
        ("resnet18", "zero3"),
        ("bert-base", "fsdp1"),
        ("vgg16", "fsdp"),
        ("bert-base", BF16),
    ],
    6,
)
def test_what_waits_for_its_network_is_replayed_too(tmp_path, model, strategy, by_rank):
    """There a parameter at the wrong place, or a root without any, costs up to a sixth."""
    raw = scenario("hkbu-ib100", model, strategy)
    found = replayed(raw, tmp_path, by_rank, machine="hkbu-ib100")
    for n in (2, 4, 64):
        direct = step_time(with_keys(raw, world_size=n))
        again = found.simulate({"cluster.world_size": n}).metrics["step_time_s"]
        assert again == pytest.approx(direct, rel=0.02), n


@pytest.mark.slow
@pytest.mark.long
def test_tensors_that_are_broadcast_by_owner_find_their_buckets(tmp_path):
    """Of a layer with three quarters of all parameters, the bucket would else be the last."""
    raw = scenario("aws-p3dn", "vgg16", "zero1")
    found = replayed(raw, tmp_path, machine="aws-p3dn")
    for n in (2, 16):
        direct = step_time(with_keys(raw, world_size=n))
        again = found.simulate({"cluster.world_size": n}).metrics["step_time_s"]
        assert again == pytest.approx(direct, rel=0.02), n


@pytest.mark.slow
@for_some("model", ["bert-base", "vgg16"], 2)
def test_models_do_not_matter(tmp_path, model):
    raw = scenario("dgx-h100", model)
    found = replayed(raw, tmp_path, machine="dgx-h100")
    for n in (2, 64):
        direct = step_time(with_keys(raw, world_size=n))
        again = found.simulate({"cluster.world_size": n}).metrics["step_time_s"]
        assert again == pytest.approx(direct, rel=0.02), n


@pytest.mark.slow
def test_buckets_are_those_of_the_job_and_another_limit_changes_them_alike(tmp_path):
    raw = scenario("hkbu-10gbe")
    found = replayed(raw, tmp_path, machine="hkbu-10gbe")
    for cap in (None, "1 MiB", "100 MiB"):
        changed = raw | {"strategy": {"kind": "ddp", "bucket_cap": cap}}
        again = found.simulate({"strategy.bucket_cap": cap}).metrics
        assert again["step_time_s"] == pytest.approx(step_time(changed), rel=0.02), cap


@pytest.mark.slow
def test_micro_steps_are_found(tmp_path):
    raw = scenario(grad_accum=3)
    found = replayed(raw, tmp_path, machine="dgx-a100")
    assert found.scenario["workload"]["grad_accum"] == 3
    changed = scenario(grad_accum=6)
    again = found.simulate({"workload.grad_accum": 6}).metrics["step_time_s"]
    assert again == pytest.approx(step_time(changed), rel=0.02)


@pytest.mark.slow
@for_some(
    "strategy",
    [
        {"kind": "ddp", "no_sync": False},
        {"kind": "fsdp", "sync": "last"},
        {"kind": "hsdp", "shard_size": 2, "all_reduce": "last"},
        {"kind": "fsdp"},
        {"kind": "fsdp1"},
        {"kind": "zero2"},
        {"kind": "zero3"},
    ],
    7,
)
def test_what_each_micro_step_exchanges_is_found(tmp_path, strategy):
    raw = scenario(strategy=strategy, n=4, cluster={"devices_per_node": 2}, grad_accum=3)
    found = replayed(raw, tmp_path, machine="dgx-a100")
    again = found.simulate({"cluster.devices_per_node": 2})
    assert again.metrics["step_time_s"] == pytest.approx(step_time(raw), rel=0.02)
    assert strategy.items() <= found.scenario["strategy"].items()
    assert found.nbytes == pytest.approx(46.8e6, rel=0.01)  # ResNet-18, each gradient once


@pytest.mark.slow
def test_another_strategy_is_predicted_from_a_trace_of_ddp(tmp_path):
    raw = scenario("hkbu-ib100", "bert-base")
    found = replayed(raw, tmp_path, machine="hkbu-ib100")
    direct = step_time(scenario("hkbu-ib100", "bert-base", "fsdp", 8))
    again = found.simulate({"strategy": "fsdp", "cluster.world_size": 8}).metrics["step_time_s"]
    assert again == pytest.approx(direct, rel=0.03)


@pytest.mark.slow
@for_each("strategy", ["ddp", "zero2"])
def test_without_a_machine_links_are_those_of_the_transfers(tmp_path, strategy):
    links = {
        "world_size": 4,
        "device": "v100-sxm2-16gb",
        "topology": "switch",
        "link": {"alpha": "5 us", "bandwidth": "2 GB/s"},
    }
    raw = scenario(strategy=strategy) | {"cluster": links, "collectives": {"cost": "links"}}
    found = replayed(raw, tmp_path)
    alpha, bandwidth = (found.scenario["cluster"]["link"][key] for key in ("alpha", "bandwidth"))
    assert float(bandwidth.split()[0]) == pytest.approx(2, rel=0.01), bandwidth
    assert alpha.endswith("us") or alpha.endswith("ns")
    for n in (4, 16):
        direct = step_time(with_keys(raw, world_size=n))
        again = found.simulate({"cluster.world_size": n}).metrics["step_time_s"]
        assert again == pytest.approx(direct, rel=0.02), n


@pytest.mark.slow
def test_one_rank_alone_predicts_as_all_do(tmp_path):
    raw = scenario("hkbu-10gbe")
    all_of_them = traces_of(raw, tmp_path)
    found = replay_of(all_of_them[:1], machine="hkbu-10gbe")
    assert (found.num_traces, found.num_ranks) == (1, 2)
    direct = step_time(with_keys(raw, world_size=8))
    assert found.simulate({"cluster.world_size": 8}).metrics["step_time_s"] == pytest.approx(
        direct, rel=0.02
    )


@pytest.mark.slow
def test_another_device_scales_the_profile(tmp_path):
    """All of it within what its kernels allow: arithmetic 2.5 times as fast, memory 2.2 times."""
    raw = scenario("dgx-1")
    found = replayed(raw, tmp_path)
    same, other = (
        found.simulate({"cluster.device": name}).metrics["compute_s"]
        for name in (found.scenario["cluster"]["device"], "h100-sxm5-80gb")
    )
    assert 1.5 < same / other < 6


@pytest.mark.slow
@for_each("strategy", STRATEGIES)
@pytest.mark.long
def test_a_cluster_that_charges_nothing_is_replayed_too(tmp_path, strategy):
    """Then no copy tells how large a tensor is, but buckets, units and broadcasts alone."""
    links = {
        "world_size": 2,
        "device": "a100-sxm4-80gb",
        "devices_per_node": 4,
        "topology": "ring",
        "link": {"alpha": "3 us", "bandwidth": "20 GB/s"},
        "inter_node": {"topology": "switch", "link": "100gbe"},
    }
    raw = scenario(model="resnet50", strategy=strategy)
    raw |= {"cluster": links, "collectives": {"cost": "links"}}
    found = replayed(raw, tmp_path, True)
    for n in (2, 4, 16, 64):
        direct = step_time(with_keys(raw, world_size=n))
        again = found.simulate({"cluster": {**links, "world_size": n}}).metrics["step_time_s"]
        assert again == pytest.approx(direct, rel=0.02), n
