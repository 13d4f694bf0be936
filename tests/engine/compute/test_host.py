"""Host time of eager operators: floors of passes, the interpreter's lock, replicate."""

from pathlib import Path

import numpy as np
import pytest
from for_each import for_each, for_some

import simdp
from simdp.engine.compute.profile_times import operators_of
from simdp.scenario import checked
from simdp.studies.intervals import HOST_KEY, with_pool
from simdp.workload.compute import BACKWARD_OPERATORS, EAGER_HOST, HOSTS, Host

RESNET = {"model": "resnet18", "steps": 2, "optimizer": "none", "microbatch": 1}


A100 = {"device": "a100-sxm4-80gb", "topology": "switch", "link": "nvlink3"}


def play(workload=(), strategy="ddp", world_size=1, cluster=A100):
    """Result of ResNet-18, one sample a rank."""
    cluster = {**cluster, "world_size": world_size}
    raw = {"cluster": cluster, "workload": {**RESNET, **dict(workload)}, "strategy": strategy}
    return simdp.simulate(checked({**raw, "numerics": False}, Path()))


def host(operator, **more):
    return {"host": {"operator": operator, **more}}


def test_a_pass_takes_at_least_as_long_as_its_host():
    """ResNet-152 has 670 kernels in forward: the floor of 92 ms that V100 and A100 have."""
    found = play({"model": "resnet152", **host("46 us")}).metrics["compute_s"]
    assert found == pytest.approx(46e-6 * 670 * (1 + BACKWARD_OPERATORS), rel=0.01)


def test_a_device_that_has_enough_to_do_waits_for_no_host():
    work = {"microbatch": 512, "model": "resnet152"}
    quick, slow = play(work), play({**work, **host("20 us")})
    assert slow.metrics["compute_s"] == pytest.approx(quick.metrics["compute_s"], rel=1e-3)


def test_the_floor_does_not_depend_on_the_batch():
    floors = [play({**host("100 us"), "microbatch": n}).metrics["compute_s"] for n in (1, 2, 4)]
    assert floors == pytest.approx([floors[0]] * 3, rel=5e-3)


def test_cuda_graphs_have_no_floor():
    floor, graphs = (
        play({**host("100 us"), **more}).metrics["compute_s"]
        for more in ({}, {"compile": True, "cuda_graphs": True})
    )
    assert graphs < 0.1 * floor


def test_compiled_elementwise_chains_are_launched_once():
    plain, compiled = (play({**host("100 us"), "compile": on}) for on in (False, True))
    assert compiled.metrics["compute_s"] < 0.98 * plain.metrics["compute_s"]


def measured(step_time, microbatch=64):
    return {"kind": "measured", "points": [{"microbatch": microbatch, "step_time": step_time}]}


def test_a_measured_step_keeps_its_length():
    for seconds in ("5 ms", "500 ms"):
        work = {"compute": measured(seconds), "microbatch": 64}
        with_host, without = play({**work, **host("46 us")}), play(work)
        assert with_host.metrics["step_time_s"] == pytest.approx(without.metrics["step_time_s"])


def test_small_batches_of_a_measured_step_end_at_the_floor():
    """ResNet-152 on V100: 138.9 ms with 64 images; 101.5, 91.9 and 94.3 ms with 32, 16 and 8."""
    work = {"model": "resnet152", "compute": measured("138.9 ms"), **host("46 us")}
    found = [play({**work, "microbatch": n}).metrics["step_time_s"] for n in (32, 16, 8)]
    assert found == pytest.approx([0.1015, 0.0919, 0.0943], rel=0.1)


def test_threads_of_one_interpreter_launch_in_turn():
    strategy = {"kind": "data_parallel", "gil": 0.5}
    work = {"microbatch": None, "global_batch": 4, **host("100 us", replicate="0 s")}
    found = play(work, strategy, 4)
    forward = [
        s.end - s.start for s in found.trace.spans if s.activity == "forward" and s.rank == 1
    ]
    alone = operators_of(found_workload(work), 100)[:69].sum() * 100e-6
    assert sum(forward) / 2 == pytest.approx((1 + 0.5 * 3) * alone, rel=0.02)


def found_workload(work):
    raw = {"cluster": {"machine": "dgx-a100", "world_size": 1}, "workload": {**RESNET, **work}}
    return checked({**raw, "strategy": "data_parallel", "numerics": False}, Path()).workload


def test_replicate_takes_the_host_a_while_for_every_module_and_device():
    work = {"microbatch": None, "global_batch": 4, **host("0 s", replicate="10 us")}
    found = play(work, "data_parallel", 4)
    (span,) = (s for s in found.trace.spans if (s.name, s.rank, s.step) == ("replicate", 2, 1))
    assert span.end - span.start == pytest.approx(4 * 68 * 10e-6)  # torchvision: 68 modules


@for_each(
    ("model", "modules"), [("resnet152", 423), ("resnet50", 151), ("resnet18", 68), ("vgg16", 42)]
)
def test_modules_are_those_of_torchvision(model, modules):
    raw = {
        "cluster": {"machine": "dgx-a100", "world_size": 1},
        "workload": {**RESNET, "model": model},
    }
    scenario = checked({**raw, "strategy": "ddp", "numerics": False}, Path())
    assert scenario.workload.graph.num_modules == modules


DGX = {"machine": "dgx-a100"}

MEASURED = [
    ("resnet152", 92.243, {2: 179.613, 3: 210.852, 4: 270.332}),
    ("resnet34", 25.017, {2: 47.613, 3: 61.525, 4: 76.211}),
    ("resnext101_32x8d", 99.719, {2: 150.773, 3: 171.176, 4: 199.884}),
    ("vgg16", 27.680, {2: 37.140, 3: 39.818, 4: 43.494}),
]
"""nn.DataParallel on A100 SXM4, 12 images each, float: ms on 1 GPU and on several
(github.com/ryujaehun/pytorch-gpu-benchmark @3f47a9e, medians of 50 steps)."""


@for_some(("model", "alone", "several"), MEASURED, 3, ids=lambda value: str(value)[:9])
def test_data_parallel_on_a100_follows_from_one_gpu(model, alone, several):
    """The mean error of the twelve is 4.5 %."""
    for n, milliseconds in several.items():
        work = {"model": model, "microbatch": None, "global_batch": 12 * n}
        compute = measured(f"{alone} ms", 12)
        found = play({**work, "compute": compute}, "data_parallel", n, DGX).metrics["step_time_s"]
        assert found == pytest.approx(milliseconds * 1e-3, rel=0.1)


def test_hosts_of_the_catalogue_have_figures_and_sources():
    assert EAGER_HOST in HOSTS.names()
    for name in HOSTS.names():
        entry = HOSTS.read(name)
        assert entry["source"].keys() == entry.keys() - {"source"}
        assert Host.model_validate({"name": name, **HOSTS.figures(name)}).operator > 0


def test_an_unknown_host_is_refused():
    work = {**RESNET, "host": "datacentre-1999"}
    raw = {"cluster": {**A100, "world_size": 1}, "workload": work, "strategy": "ddp"}
    with pytest.raises(
        simdp.ScenarioError, match=r"unknown host 'datacentre-1999'\. Did you mean "
    ):
        checked({**raw, "numerics": False}, Path())


def test_only_a_host_that_is_not_given_has_an_interval():
    def keys(host, strategy="data_parallel"):
        work = {**RESNET, "microbatch": None, "global_batch": 4, **host}
        raw = {"cluster": {"machine": "dgx-a100", "world_size": 4}, "workload": work}
        point = checked({**raw, "strategy": strategy, "numerics": False}, Path())
        ends = [one.calibration.intervals for one in with_pool([], point)]
        return sorted(key for each in ends for key in each if key.startswith(HOST_KEY))

    both = [f"{HOST_KEY}operator", f"{HOST_KEY}replicate"]
    assert keys({}) == keys({"host": "datacentre-2026"}) == both
    assert keys({"host": {"operator": "1 us"}}) == [f"{HOST_KEY}replicate"]
    assert keys({}, "ddp") == []


def test_waiting_falls_to_the_calls_that_are_late():
    """The recurrence, written out for a device whose first call is long."""
    found = play({**host("100 us")}, strategy="single")
    spans = [s for s in found.trace.spans if s.activity == "forward" and s.step == 1]
    free = play(strategy="single")
    works = [s.end - s.start for s in free.trace.spans if s.activity == "forward" and s.step == 1]
    operators = operators_of(found_workload({"microbatch": None, "global_batch": 1}), 100)
    end, ends = 0.0, []
    for number, work in enumerate(works):
        end = max(end, operators[:number].sum() * 100e-6) + work
        ends.append(end)
    np.testing.assert_allclose([s.end - spans[0].start for s in spans], ends, rtol=1e-9)
